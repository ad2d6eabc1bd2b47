"""A day of events with ids from one seed, and the truth about each row.

Every event has a UUID, the time when it happened, a status and an amount; each row also has the time at which it was
ingested (``ingested_at``). Copies have the id and the time of their event. They have the same ingest time as the first
(a file that was loaded twice), a later one (a retry), or one later than the window (a replay of yesterday's file); some
differ from the first in a column (`conflict`). Rows are in the order of ingestion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onefold.errors import Misuse
from onefold.testing.faults import DAY_MS, Delay, Faults, Share, check, plan
from onefold.testing.traffic import BEGIN_MS

STATUSES: Final = ("paid", "shipped", "cancelled")
USERS: Final = 500
DISTANCE_MAX_MS: Final = 2_000
"""Delay from event to ingestion, unless it is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What to make; shares are of copies, unless said otherwise.

    >>> Events(conflicts=2)
    Traceback (most recent call last):
    onefold.errors.Misuse: conflicts is 2, must be between 0.0 and 1.0
    """

    seed: Annotated[int, (0, 2**63 - 1)] = 1
    rows: Annotated[int, (1, 10_000_000)] = 10_000
    """Delivered rows, exactly: events and their copies."""
    copies: Share = 0.10
    """Share of events that are repeated, once or more."""
    same: Share = 0.25
    """Copies with the ingest time of the first."""
    late: Share = 0.02
    """Copies ingested when the newest event is more than the window ahead of theirs."""
    conflicts: Share = 0.01
    """Copies that differ from the first in status or amount."""
    copy_delay_ms: Delay = 600_000
    """Maximal delay of a copy after the first, unless it is late; most come much sooner."""
    reorder: Share = 0.05
    """Share of events that are ingested late, by up to ``copy_delay_ms``."""
    window_ms: Annotated[int, (1, DAY_MS // 4)] = 3_600_000

    def __post_init__(self) -> None:
        check(self)
        if self.same + self.late > 1:
            raise Misuse(f"same and late are {self.same} and {self.late}, must be at most 1 together")


@dataclass(frozen=True, slots=True, eq=False)
class MadeEvents:
    """Events as a table, and the truth about each row."""

    settings: Events
    messages: pa.Table
    """``event_id ts user status amount ingested_at offset``; times are timestamps, ``offset`` is the row's index."""
    rows: pa.Table
    """The truth by ``offset``: ``verdict`` and ``reason`` where all ids are remembered and content is compared, the
    offset of the first (``of``), how long after it the row came (``lag_ms``), how far its event lay behind the newest
    one by then (``late_ms``), and the column in which it ``differs``."""

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        return {"rows": self.rows}


def make_events(events: Events) -> MadeEvents:
    """Make the events.

    >>> made = make_events(Events(rows=1000))
    >>> len(made.messages), made.messages.column_names[:3]
    (1000, ['event_id', 'ts', 'user'])
    """
    rng = np.random.default_rng(events.seed)
    counts = plan(events.rows, 1, Faults(copies=events.copies, losses=0, late_heads=0))
    count, again = counts.originals, counts.copies
    ts = BEGIN_MS + np.sort(rng.integers(0, DAY_MS, count))
    first_arrival = ts + rng.integers(1, DISTANCE_MAX_MS, count, endpoint=True)
    first_arrival += np.where(
        rng.random(count) < events.reorder, rng.integers(0, events.copy_delay_ms, count, endpoint=True), 0
    )
    # Late copies need events after the window, so only events of the first half of the day have them.
    kind = rng.permutation(np.arange(again))
    is_same, is_late = kind < events.same * again, kind >= again - round(events.late * again)
    copied = rng.choice(count, counts.copied, replace=False) if again else np.empty(0, np.int64)
    of = np.concatenate([copied, rng.choice(copied, again - len(copied))]) if again else copied
    of[is_late] = rng.integers(0, max(1, count // 2), int(is_late.sum()))
    delay = 1 + np.minimum(rng.exponential(events.copy_delay_ms / 10 + 1, again), events.copy_delay_ms).astype(np.int64)
    far = events.window_ms + events.window_ms // 8 + 2 * events.copy_delay_ms + DISTANCE_MAX_MS
    delay[is_late] = far + rng.integers(0, events.window_ms, int(is_late.sum()), endpoint=True)
    delay[is_same] = 0
    differs = np.zeros(again, np.int8)  # not among the same: a copy judged before its first would count instead
    able = np.flatnonzero(~is_same)
    clash = rng.choice(able, min(len(able), round(events.conflicts * again)), replace=False)
    differs[clash] = rng.integers(1, 3, len(clash))
    source = np.concatenate([np.arange(count), of])
    arrival = np.concatenate([first_arrival, first_arrival[of] + delay])
    change = np.concatenate([np.zeros(count, np.int8), differs])
    order = np.argsort(arrival, kind="stable")  # at the same ms an event stays before its copies
    return _tables(events, rng, ts, first_arrival, source[order], arrival[order], change[order], order)


def _tables(
    events: Events, rng: np.random.Generator, ts: npt.NDArray[np.int64], first_arrival: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64], arrival: npt.NDArray[np.int64], change: npt.NDArray[np.int8],
    order: npt.NDArray[np.int64],
) -> MadeEvents:  # fmt: skip
    count = len(ts)
    data = rng.bytes(16 * count)
    ids = pa.array([str(UUID(bytes=data[i : i + 16], version=4)) for i in range(0, len(data), 16)])
    status, amount, user = (rng.integers(0, most, count) for most in (len(STATUSES), 10_000, USERS))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    of, is_copy = position[source], order >= count
    newest = np.maximum.accumulate(ts[source])
    verdicts = np.where(~is_copy, "FIRST", np.where(change > 0, "REJECT", "REPEAT"))
    reasons = np.where(~is_copy, "new", np.where(change > 0, "conflict", "seen"))
    messages: dict[str, Any] = {
        "event_id": ids.take(pa.array(source)),
        "ts": pa.array(ts[source], pa.timestamp("ms", "UTC")),
        "user": pa.array([f"u{i}" for i in range(USERS)]).take(pa.array(user[source])),
        "status": pa.array(STATUSES).take(pa.array((status[source] + (change == 1)) % len(STATUSES))),
        "amount": pa.array(amount[source] + (change == 2)),
        "ingested_at": pa.array(arrival, pa.timestamp("ms", "UTC")),
        "offset": pa.array(np.arange(len(order))),
    }
    rows = {
        "offset": messages["offset"],
        "verdict": pa.array(verdicts),
        "reason": pa.array(reasons),
        "of": pa.array(of),
        "lag_ms": pa.array(arrival - first_arrival[source], mask=~is_copy),
        "late_ms": pa.array(newest - ts[source]),
        "differs": pa.array(["", "status", "amount"]).take(pa.array(change)),
    }
    return MadeEvents(events, pa.table(messages), pa.table(rows))
