"""Where a pipeline writes how far it is, for `onefold serve console`, and for the report of a stream.

    PATH/progress.jsonl   of a stream: a line of JSON per batch, with the time; then one that says how it ended
    PATH/progress.json    of a batch run: which step it is in, how long those before it took, and how it ended

Only in a folder of this machine that the pipeline has made its own; elsewhere nothing is written. Trouble with these
files never stops a pipeline: they are told about, not counted on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from onefold.report.secrets import without_secrets

LINES, STEPS = "progress.jsonl", "progress.json"
LINES_MAX: Final = 2_000
"""The newest lines that are kept, about 2 MB; the file is cut when it has twice as many."""
WHY_CHARS_MAX: Final = 500


def local_folder(path: str) -> Path | None:
    """The folder of this machine that a path means; None: it is elsewhere.

    >>> local_folder("out"), local_folder("file:///a%20b"), local_folder("hdfs://host/out")
    (PosixPath('out'), PosixPath('/a b'), None)
    """
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme and "://" in path else Path(path)


class BatchLines:
    """The file that a stream tells its batches in."""

    def __init__(
        self, folder: Path, *, lines_max: int = LINES_MAX, clock: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        self._file = folder / LINES
        self._lines_max = lines_max
        self._clock = clock
        self._count: int | None = None

    def tell(self, document: dict[str, Any]) -> None:
        """Add a line."""
        line = json.dumps({"at_ms": round(self._clock() * 1000), **document})  # in ASCII, which can always be written
        with suppress(OSError):
            if self._count is None:
                self._count = self._found()
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            self._count += 1
            if self._count >= 2 * self._lines_max:
                self._cut()

    def _found(self) -> int:
        """How many lines an earlier start left; one that a crash tore is ended, so that the next stands by itself."""
        if not self._file.exists():
            return 0
        text = self._file.read_bytes()
        if text and not text.endswith(b"\n"):
            with self._file.open("ab") as file:
                file.write(b"\n")
        return len(text.splitlines())

    def _cut(self) -> None:
        kept = self._file.read_bytes().splitlines(keepends=True)[-self._lines_max :]
        _replace(self._file, b"".join(kept))
        self._count = len(kept)


@contextmanager
def steps_told(
    folder: Path | None, say: Callable[[str], None], *, clock: Callable[[], float] = time.time
) -> Iterator[Callable[[str], None]]:
    """Yield a function that says which step has begun, and writes it down; in the end, how it ended.

    It is first called when the folder is the run's own.
    """
    began = clock()
    steps: list[tuple[str, float]] = []

    def write(state: str, **more: str) -> None:
        if folder is None or not steps:
            return
        now = clock()
        starts = [start for _, start in steps]
        lasted = [round(end - start, 3) for start, end in zip(starts, [*starts[1:], now], strict=True)]
        told = {"state": state, "began_ms": round(began * 1000), "at_ms": round(now * 1000), **more}
        names = (name for name, _ in steps)
        with suppress(OSError):
            document = {**told, "steps": list(zip(names, lasted, strict=True))}
            _replace(folder / STEPS, json.dumps(document).encode())

    def begin(step: str) -> None:
        steps.append((step, clock()))
        write("running")
        say(step)

    try:
        yield begin
    except BaseException as error:
        write("failed", why=without_secrets(f"{type(error).__name__}: {error}"[:WHY_CHARS_MAX]))
        raise
    write("complete")


def _replace(file: Path, text: bytes) -> None:
    """Write it so that it is seen whole or not at all."""
    draft = file.with_name(f"{file.name}.new")
    draft.write_bytes(text)
    os.replace(draft, file)
