"""What a command says, and to whom.

Programs read standard output: with ``--json`` it gets one JSON document, and nothing else ever. People read standard
error: results as text, progress and errors go there, so that a pipe never gets to see them.
"""

import json
import os
import sys
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console

PIPE_COLUMNS: Final = 120
"""The width for a pipe or file, which has none of its own; ``COLUMNS`` overrides it."""

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
"""The option that every command has."""


def _people() -> Console:
    width = None if sys.stderr.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    return Console(stderr=True, width=width, highlight=False, emoji=False)


people: Final = _people()
"""Where text for people goes. Foreign text may hold brackets: print it with ``markup=False``."""


def emit_json(document: Any) -> None:
    """Print the document, and nothing else ever, on standard output; a reader who has gone away is no error."""
    try:
        print(json.dumps(document, indent=2, ensure_ascii=False, default=str), flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which must not fail aloud.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: int) -> int:
    """Tell on standard error, each line with our name before it, and give the exit code back."""
    for line in message.splitlines() or [""]:
        print(f"onefold: {line}", file=sys.stderr)
    return code
