"""A stream, from the lines that it wrote: one per batch, and one that says how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from onefold.services.console.view import (
    POINTS_MAX,
    REJECTS_MAX,
    Fact,
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
    told = f"{how}; batch {last['batch']:,}" if how else f"batch {last['batch']:,}"
    if not tally.balanced:
        state, told = "trouble", f"THE BOOKS DO NOT BALANCE: {tally}"
    points = tuple((whole(line["at_ms"]), *counts_of(tally)) for line, tally in zip(batches, tallies, strict=True))
    return View(
        kind="stream", state=state, told=told, at_ms=whole(lines[-1]["at_ms"]), counts=counts_of(tally),
        balanced=tally.balanced, points=points[-POINTS_MAX:], facts=_facts(last),
        rejects=_rejects(batches, tallies, rejected), **more,
    )  # fmt: skip


def _facts(last: Mapping[str, Any]) -> tuple[Fact, ...]:
    known = ((label, last.get(name), unit) for name, (label, unit) in FACTS.items() if name != "held" or last.get(name))
    return tuple((label, finite(value), unit) for label, value, unit in known if value is not None)


def _rejects(
    batches: Sequence[Mapping[str, Any]], tallies: Sequence[Tally], rejected: Callable[[int], Sequence[tuple[str, str]]]
) -> tuple[Rejected, ...]:
    """What was rejected in each of the last batches: by how much the books have grown. The newest has its rows."""
    found: list[Rejected] = []
    grown = [(batches[0], tallies[0], Tally())] if batches[0]["batch"] == 0 else []
    grown += [(line, new, old) for (old, new), line in zip(pairwise(tallies), batches[1:], strict=True)]
    for line, new, old in reversed(grown):
        more = {answer: count - old.count(*answer) for answer, count in new if answer.verdict is Verdict.REJECT}
        samples = dict(reversed(rejected(line["batch"]))) if any(more.values()) and not found else {}
        found += [
            Rejected(reason=shown(answer.reason), count=count, where=f"batch {line['batch']:,}",
                     row=shown(samples.get(answer.reason, ""), 300))
            for answer, count in more.items()
            if count > 0
        ]  # fmt: skip
        if len(found) >= REJECTS_MAX:
            break
    return tuple(found[:REJECTS_MAX])
