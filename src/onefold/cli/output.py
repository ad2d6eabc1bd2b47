"""The output of the commands.

Standard output is for programs: with ``--json`` it gets JSON, and nothing else. Standard error is for people: results
as text, progress and errors.

Much of the text is foreign: names of producers, payloads, keys, rows, settings, errors of servers. All of it goes
through this module, which escapes terminal control characters (`printable`) and hides passwords in addresses
(`without_logins`).

Progress: on a terminal a live line with Spark's tasks, elsewhere one plain line per step.

A pipeline also writes its progress to files, for `onefold serve console` and the report of a stream:

    PATH/progress.jsonl   of a stream: a line of JSON per batch, with the time; then one that says how it ended
    PATH/progress.json    of a batch run: the current step, the duration of the steps before it, and how it ended

These files are written only to local folders that the pipeline has signed. Errors with them never stop a pipeline.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final, TypeAlias
from unicodedata import category
from urllib.parse import unquote, urlsplit

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typer import Option

from onefold.report.text import without_secrets
from onefold.stores.addresses import is_far
from onefold.text import OBEYED, printable, without_logins

PIPE_COLUMNS: Final = 120
"""The width for a pipe or file, which has none of its own; ``COLUMNS`` overrides it."""

AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print one JSON document on standard output.")]
REFRESH_S = 0.25
LINES, STEPS = "progress.jsonl", "progress.json"
LINES_MAX: Final = 2_000
"""How many of the newest lines are kept, about 2 MB; the file is cut at twice as many."""
WHY_CHARS_MAX: Final = 500


class People(Console):
    """Rich's console, safe for foreign text."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(without_logins(each) if isinstance(each, str) else each for each in objects), **options)

    def lines(self, *lines: RenderableType, style: str | None = None) -> None:
        """Print each line without markup and without wrapping."""
        for line in lines:
            self.print(line, style=style, markup=False, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape before rich measures, so that the widths of columns are right."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(printable(text), style)


_IN_NOTEBOOK: Final = "ipykernel" in sys.modules  # its standard error claims to be a terminal
people: Final = People(
    stderr=True,
    width=None if (sys.stderr.isatty() and not _IN_NOTEBOOK) or "COLUMNS" in os.environ else PIPE_COLUMNS,
    highlight=False,
    emoji=False,
    force_jupyter=False,
    force_terminal=False if _IN_NOTEBOOK else None,
)
"""Where text for people goes. Foreign text may hold brackets: print it with ``markup=False``."""


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Print on standard output; if its reader is gone, drop this and all later output."""
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit_json(document: Any, indent: int | None = 2) -> None:
    """Print the document on standard output."""
    with until_nobody_reads():
        print(json_text(document, indent=indent), flush=True)


def tell(lines: Iterable[RenderableType] | str, document: Any, as_json: bool, indent: int | None = 2) -> None:
    """Print a result: lines for people, and with ``as_json`` a document for programs."""
    people.lines(*([lines] if isinstance(lines, str) else lines))
    if as_json:
        emit_json(document, indent)


def json_text(document: Any, indent: int | None = None) -> str:
    """The document as JSON with control characters escaped; the values stay the same.

    >>> print(json_text({"name": "ä" + chr(27) + chr(0x9B) + chr(0x202E)}))
    {"name": "ä\\u001b\\u009b\\u202e"}
    """
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=str)
    if text.isprintable():
        return text
    return "".join(json.dumps(sign)[1:-1] if category(sign) in OBEYED and sign != "\n" else sign for sign in text)


def fail(message: str, code: int) -> int:
    """Print an error on standard error, prefixed with "onefold:", and return the exit code."""
    for line in message.splitlines() or [""]:
        print(f"onefold: {printable(without_logins(line))}", file=sys.stderr)
    return code


@contextmanager
def progress(console: Console, first: str = "starting", *, spark: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step, with Spark's tasks; without Spark only on a terminal."""
    if not console.is_terminal:
        yield (lambda step: console.print(f"{step} ...", highlight=False)) if spark else (lambda step: None)
        return
    state = {"step": first}
    done = threading.Event()
    started = monotonic()
    with console.status(Text(first)) as status:

        def refresh() -> None:
            while not done.wait(REFRESH_S):
                finished = total = 0
                if spark:
                    from onefold.spark.session import running_tasks  # the command may still be importing it

                    finished, total = running_tasks()
                tasks = f"  {finished} of {total} tasks" if total else ""
                status.update(Text.assemble(f"{state['step']}{tasks}  ", (f"{monotonic() - started:.0f} s", "dim")))

        watcher = threading.Thread(target=refresh, daemon=True)
        watcher.start()
        try:
            yield lambda step: state.update(step=step)
        finally:
            done.set()
            watcher.join()


def local_folder(path: str) -> Path | None:
    """The local folder of a path; None if it is in an object store or the like.

    >>> local_folder("out"), local_folder("file:///a%20b"), local_folder("hdfs://host/out")
    (PosixPath('out'), PosixPath('/a b'), None)
    """
    if path.lower().startswith("file:"):
        return Path(unquote(urlsplit(path).path))
    return None if is_far(path) else Path(path)


class BatchLines:
    def __init__(self, folder: Path, *, lines_max: int = LINES_MAX, clock: Callable[[], float] = time.time) -> None:
        self._file = folder / LINES
        self._lines_max = lines_max
        self._clock = clock
        self._count: int | None = None

    def tell(self, document: dict[str, Any]) -> None:
        line = json.dumps({"at_ms": round(self._clock() * 1000), **document})  # ASCII, which always encodes
        with suppress(OSError):
            torn = b""
            if self._count is None:  # an earlier start may have left lines, the last one torn by a crash
                before = self._file.read_bytes() if self._file.exists() else b""
                self._count = len(before.splitlines())
                torn = b"" if not before or before.endswith(b"\n") else b"\n"
            with self._file.open("ab") as file:
                file.write(torn + line.encode() + b"\n")
            self._count += 1
            if self._count >= 2 * self._lines_max:
                newest = self._file.read_bytes().splitlines(keepends=True)[-self._lines_max :]
                replace_file(self._file, b"".join(newest))
                self._count = len(newest)


@contextmanager
def step_log(
    folder: Path | None, say: Callable[[str], None], *, clock: Callable[[], float] = time.time
) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step and writes it to progress.json; at the end, how the run ended.

    Nothing is written before its first call: only then is the folder signed.
    """
    began = clock()
    steps: list[tuple[str, float]] = []

    def write(state: str, **more: str) -> None:
        if folder is None or not steps:
            return
        now = clock()
        ends = [*(start for _, start in steps[1:]), now]
        lasted = [(name, round(end - start, 3)) for (name, start), end in zip(steps, ends, strict=True)]
        times = {"began_ms": round(began * 1000), "at_ms": round(now * 1000)}
        with suppress(OSError):
            replace_file(folder / STEPS, json.dumps({"state": state, **times, **more, "steps": lasted}).encode())

    def begin(step: str) -> None:
        steps.append((step, clock()))
        write("running")
        say(step)

    try:
        yield begin
    except BaseException as error:
        write("failed", why=without_secrets(f"{type(error).__name__}: {error}")[:WHY_CHARS_MAX])
        raise
    write("complete")


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old or the new one."""
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
