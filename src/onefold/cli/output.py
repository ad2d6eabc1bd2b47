"""What a command says, and to whom.

Programs read standard output: with ``--json`` it gets one JSON document, and nothing else ever. People read standard
error: results as text, progress and errors go there, so that a pipe never gets to see them.

Much of what is told was written by strangers: names of producers, payloads, keys, rows, settings, errors of servers. It
goes through here and nowhere else, so it is here that nothing of it reaches a terminal as a command (`printable`), and
that no password of an address is repeated (`without_logins`).
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeAlias
from unicodedata import category

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from onefold.links.plain import OBEYED, printable, without_logins

PIPE_COLUMNS: Final = 120
"""The width for a pipe or file, which has none of its own; ``COLUMNS`` overrides it."""

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
"""The option that every command has."""


class People(Console):
    """Rich's console, for text that strangers may have written."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's; passwords in addresses are hidden."""
        super().print(*(without_logins(each) if isinstance(each, str) else each for each in objects), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's; printable before it is measured, so that columns are as wide as what stands in them."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """As rich's; what is no control of rich's own is made printable, whatever it stood in."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(printable(text), style)


def _people() -> People:
    width = None if sys.stderr.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    return People(stderr=True, width=width, highlight=False, emoji=False)


people: Final = _people()
"""Where text for people goes. Foreign text may hold brackets: print it with ``markup=False``."""


def emit_json(document: Any) -> None:
    """Print the document, and nothing else ever, on standard output; a reader who has gone away is no error."""
    try:
        print(json_text(document, indent=2), flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which must not fail aloud.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_text(document: Any, indent: int | None = None) -> str:
    """The document as JSON that a terminal can show too: what it would obey is escaped, which changes no value.

    >>> print(json_text({"name": "ä" + chr(27) + chr(0x9B) + chr(0x202E)}))
    {"name": "ä\\u001b\\u009b\\u202e"}
    """
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=str)
    if text.isprintable():
        return text
    return "".join(json.dumps(sign)[1:-1] if category(sign) in OBEYED and sign != "\n" else sign for sign in text)


def fail(message: str, code: int) -> int:
    """Tell on standard error, each line with our name before it, and give the exit code back."""
    for line in message.splitlines() or [""]:
        print(f"onefold: {printable(without_logins(line))}", file=sys.stderr)
    return code
