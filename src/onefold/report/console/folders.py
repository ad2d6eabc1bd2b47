"""A pipeline as its folder tells it: `onefold run` writes there how far it is, and in the end what came of it.

    progress.jsonl, stream.json   of a stream: a line per batch, and one that says how it ended
    progress.json, run.json       of a batch run: the step it is in; all of it, once it is complete

Nothing is read while the files stay as they are. A file may be torn, old, or not ours: that is shown, not raised.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from onefold.errors import OnefoldError
from onefold.report.console.watch import (
    POINTS_MAX,
    REJECTS_MAX,
    TEXT_CHARS_MAX,
    Fact,
    Kind,
    Rejected,
    State,
    Unit,
    View,
    counts_of,
    finite,
    shown,
    whole,
)
from onefold.tally import Tally
from onefold.verdict import Verdict

LINES: Final = "progress.jsonl"
ENDS: Final[Mapping[Any, tuple[State, str]]] = {
    "end": ("complete", "all read"),
    "stopped": ("stopped", "stopped"),
    "failed": ("trouble", "ended with an error"),
}
FACTS: Final[Mapping[str, tuple[str, Unit]]] = {
    "gaps": ("open gaps", "count"),
    "keys": ("keys remembered", "count"),
    "state_bytes": ("state", "bytes"),
    "rows_per_second": ("last batch", "rate"),
    "seconds": ("it took", "seconds"),
    "held": ("held back", "count"),
    "behind": ("still to read", "count"),
}
"""What is told of the last batch, and how."""


def stream_view(
    lines: Sequence[Mapping[str, Any]], more: Mapping[str, Any], rejected: Callable[[int], Sequence[tuple[str, str]]]
) -> View:
    """How a stream stands after these lines; ``rejected``: some rows that were rejected in a batch, with the reason."""
    batches = [line for line in lines if type(line.get("batch")) is int][-POINTS_MAX - 1 :]
    if not batches:
        return View(kind="stream", state="waiting", told="no batch yet", **more)
    tallies = [Tally.from_dict(line["tally"]) for line in batches]
    last, tally = batches[-1], tallies[-1]
    state, how = ENDS.get(lines[-1].get("event"), ("running", ""))
    text = f"{how}; batch {last['batch']:,}" if how else f"batch {last['batch']:,}"
    if not tally.balanced:
        state, text = "trouble", f"THE BOOKS DO NOT BALANCE: {tally}"
    figures = (
        (label, last.get(name), unit) for name, (label, unit) in FACTS.items() if name != "held" or last.get(name)
    )
    points = tuple((whole(line["at_ms"]), *counts_of(tally)) for line, tally in zip(batches, tallies, strict=True))
    return View(
        kind="stream", state=state, told=text, at_ms=whole(lines[-1]["at_ms"]), counts=counts_of(tally),
        balanced=tally.balanced, points=points[-POINTS_MAX:], rejects=_rejects(batches, tallies, rejected),
        facts=tuple((label, finite(value), unit) for label, value, unit in figures if value is not None), **more,
    )  # fmt: skip


def _rejects(
    batches: Sequence[Mapping[str, Any]], tallies: Sequence[Tally], rejected: Callable[[int], Sequence[tuple[str, str]]]
) -> tuple[Rejected, ...]:
    """What was rejected in each of the last batches: by how much the books have grown. The newest has its rows."""
    rejects: list[Rejected] = []
    grown = [(batches[0], tallies[0], Tally())] if batches[0]["batch"] == 0 else []
    grown += [(line, new, old) for (old, new), line in zip(pairwise(tallies), batches[1:], strict=True)]
    for line, new, old in reversed(grown):
        more = {answer: count - old.count(*answer) for answer, count in new if answer.verdict is Verdict.REJECT}
        samples = dict(reversed(rejected(line["batch"]))) if any(more.values()) and not rejects else {}
        rejects += [
            Rejected(reason=shown(answer.reason), count=count, where=f"batch {line['batch']:,}",
                     row=shown(samples.get(answer.reason, ""), 300))
            for answer, count in more.items()
            if count > 0
        ]  # fmt: skip
        if len(rejects) >= REJECTS_MAX:
            break
    return tuple(rejects[:REJECTS_MAX])


RUN, STEPS, STREAM, REPORT = "run.json", "progress.json", "stream.json", "report.html"
WATCHED: Final = (RUN, STEPS, STREAM, LINES, REPORT)
BYTES_MAX: Final = 8 << 20
"""Of run.json: that of a run is below 1 MB."""
TAIL_BYTES: Final = 512 << 10
"""Of progress.jsonl the last part: some 500 batches."""
TAIL_LINES: Final = 500
STEPS_MAX: Final = 20
STATES: Final[Mapping[Any, State]] = {"running": "running", "failed": "trouble", "complete": "complete"}

Row: TypeAlias = tuple[str, str]
"""The reason, and the row as text."""
RejectedRows: TypeAlias = Callable[[Path], Sequence[Row]]
"""Some of the rejected rows in a folder of a run, or of a batch."""


class Folder:
    """The folder of a run or a stream; it need not be there yet."""

    every_s: Final = 0.5

    def __init__(self, path: Path, rejected: RejectedRows = lambda folder: ()) -> None:
        self.path = path
        words = str(path)  # of a long one its end, by which runs differ
        self.name = shown(words if len(words) <= TEXT_CHARS_MAX else f"...{words[3 - TEXT_CHARS_MAX :]}")
        self._rejected = rejected
        self._signs: list[tuple[int, int, int] | None] = []
        self._view: View | None = None

    @property
    def explains(self) -> bool:
        """Whether it can be asked about a message; from any thread."""
        return any((self.path / name).is_file() for name in (RUN, STREAM))

    def look(self) -> View:
        signs: list[tuple[int, int, int] | None] = []
        for name in WATCHED:
            try:
                stat = os.stat(self.path / name)
            except OSError:
                signs.append(None)
            else:
                signs.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        if self._view is None or signs != self._signs:
            self._signs, self._view = signs, self._read()
        return self._view

    def _read(self) -> View:
        names = {name for name in WATCHED if (self.path / name).is_file()}
        more: dict[str, Any] = {"name": self.name, "report": REPORT in names, "explains": self.explains}
        try:
            if names & {LINES, STREAM}:
                lines = _tail(self.path / LINES) if LINES in names else []
                return stream_view(lines, more, lambda batch: self._rejected(self.path / "batches" / f"{batch:012}"))
            return self._run_view(names, more)
        except (OSError, OnefoldError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            kind: Kind = "stream" if names & {LINES, STREAM} else "run"
            ours = isinstance(error, LookupError | TypeError | AttributeError)  # their words are for programmers
            why = "it is not as onefold writes it" if ours else error
            return View(kind=kind, state="trouble", told=shown(f"cannot be read: {why}"), **more)

    def _run_view(self, names: set[str], more: dict[str, Any]) -> View:
        steps = _document(self.path / STEPS) if STEPS in names else {}
        state = STATES.get(steps.get("state"), "running") if steps else "complete"
        if state != "complete":
            past, now = steps["steps"][:-1], steps["steps"][-1][0]
            facts: tuple[Fact, ...] = tuple((shown(name), finite(took), "seconds") for name, took in past[-STEPS_MAX:])
            text = shown(steps.get("why") or now)
            return View(kind="run", state=state, told=text, at_ms=whole(steps["at_ms"]), facts=facts, **more)
        if RUN not in names:
            return View(kind="run", state="waiting", told="nothing is there yet", **more)
        run = _document(self.path / RUN)
        tally = Tally.from_dict(run["tally"])
        figures: tuple[tuple[str, str, Unit], ...] = (
            ("open gaps", "missing_ranges", "count"), (shown(run.get("engine", "keys")), "keys", "count"),
            ("remembered", "state_entries", "count"), ("took", "seconds", "seconds"),
        )  # fmt: skip
        samples = dict(reversed(self._rejected(self.path) if tally.count(Verdict.REJECT) else ()))
        rejects = tuple(
            Rejected(reason=shown(answer.reason), count=count, row=shown(samples.get(answer.reason, ""), 300))
            for answer, count in tally
            if answer.verdict is Verdict.REJECT
        )
        audit = run.get("audit") or {}
        agrees, alone = audit.get("agrees"), whole(audit.get("orphans", 0)) + whole(audit.get("orphans_by_rule", 0))
        text = "complete" if tally.balanced else "THE BOOKS DO NOT BALANCE"
        if tally.balanced:
            text += "" if agrees is None else "; source and sink agree" if agrees else "; SOURCE AND SINK DO NOT AGREE"
            text += f"; {alone:,} repeats have no first" if alone else ""
            text += "; not all can be told, see the report" if run.get("cannot_tell") else ""
        return View(
            kind="run", state="complete" if tally.balanced and agrees is not False else "trouble", told=text,
            at_ms=round((self.path / RUN).stat().st_mtime * 1000), counts=counts_of(tally), balanced=tally.balanced,
            facts=tuple((label, finite(run[name]), unit) for label, name, unit in figures if name in run),
            rejects=rejects, **more,
        )  # fmt: skip


def _document(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        text = file.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise ValueError(f"{path.name} has more than {BYTES_MAX:,} bytes")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} is no JSON object")
    return document


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last lines; one that is torn, or no object, is passed over."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).splitlines()[1 if size > TAIL_BYTES else 0 :][-TAIL_LINES:]
    documents = []
    for line in lines:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            documents.append(document)
    return documents
