"""``advise_window(df)``: how long must copies be remembered, what does that cost, and what gets through all the same?

A window forgets: what comes again after it counts again. How long it must be is not a matter of taste but of the data:
of the lags of its copies, which are measured here.

    window      an id is remembered for so long from its first row on; a copy whose lag is at most that is caught. One
                that comes later begins a window of its own, so what leaks is at most what is told here
    watermark   the same by ``dropDuplicatesWithinWatermark`` of Spark, where a copy must come *less* than the delay
                after its first, and what is late by the delay is dropped unseen. Spark forgets an id when its
                watermark, itself a delay behind, has passed the end of the window: it remembers for twice as long
    intervals   what `judge_chains` remembers: one entry per chain and one per gap, whatever the lags are

Cost: two passes over the narrow columns, one shuffle of integers, and a few passes over one number per row, which is
kept on the disks of Spark's storage meanwhile. Nothing but counts reaches the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark.columns import ChainColumns, milliseconds, quoted
from onefold.spark.window_lags import LAG, UNUSABLE, WindowColumns, kept, lags, timed, why_unusable
from onefold.spark.window_late import LATE, lateness
from onefold.spark.window_ranks import Distribution, Quantile
from onefold.spark.window_state import ID_BYTES, Peaks, interval_memory, peaks

Say: TypeAlias = Callable[[str], None]

FORMAT: Final = 1
SHARES: Final = (0.99, 0.999, 0.9999)
SHARES_MAX: Final = 16
SHOWN: Final = (0.5, 0.9)
"""Quantiles that are told beside the shares that are asked for: what is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFor:
    """The shortest window that catches a share of the copies."""

    share: float
    window_ms: int
    caught: int
    leaked: int
    leaked_share: float
    """Of all copies."""
    ids: int
    """How many ids it has to remember at its peak, at most."""
    bytes: int
    """At 16 bytes an id and 8 its time; what a store adds is not counted."""
    watermark_ms: int
    """The delay of a watermark that does the same."""
    watermark_ids: int
    watermark_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What was measured, and which window follows from it."""

    key: Sequence[str]
    time: str
    order: str | None
    rows: int
    unusable: Mapping[str, int]
    """Rows that say nothing, by why; see `window_lags.UNUSABLE`."""
    from_ms: int
    to_ms: int
    ids: int
    copies: int
    lags: Mapping[str, Any]
    late: Mapping[str, Any] | None
    """How late rows are; None: without an order nobody can tell."""
    skewed: Mapping[str, int]
    """Copies that bear a time before that of their first, which came sooner: clocks that do not agree."""
    windows: Sequence[WindowFor]
    slot_ms: int
    """How finely peaks were counted; 1: exactly."""
    intervals: Mapping[str, Any]
    seconds: float

    @property
    def recommended(self) -> WindowFor | None:
        """The window for the largest share that was asked for; None: there are no copies, none is needed."""
        return max(self.windows, key=lambda window: window.share, default=None)

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        best = self.recommended
        return {
            "format": FORMAT,
            **asdict(self),
            "recommended_ms": None if best is None else best.window_ms,
            "all_ids_bytes": ID_BYTES * self.ids,
        }


def advise_window(
    df: DataFrame, *, key: Iterable[str] | None = None, time: str = "arrival", order: str | None = None,
    shares: Iterable[float] = SHARES, chains: ChainColumns | None = None, say: Say | None = None,
) -> Advice:  # fmt: skip
    """Measure the lags of the copies in a table, and which windows would catch which share of them.

    ``key``: the columns of a message's id. None: chain and number of ``chains``, else all columns but time and order.
    ``time``: the clock of the window. ``order``: what says which row came first, if the time does not, such as the
    offset of rows with an event time; then also measures how late rows are. ``chains``: the columns of numbered
    messages, to compare with interval memory. None: those of the usual names, if they are all there.
    """
    started, tell = monotonic(), say or _silent
    wanted = _shares(shares)
    numbered = _usual(df) if chains is None else chains
    columns = WindowColumns(key=_key(key, numbered), time=time, order=order)
    columns.check(df)
    tell("looking at the columns")
    looked = _look(df, columns)
    tell("measuring lags")
    rows, told = timed(df, columns), (*SHOWN, *wanted)
    with kept(lags(rows)) as table:
        found = Distribution.of(table, LAG)
        at = found.quantiles(told)
        late = None if order is None or not found.nulls else _late(rows, told)
        tell("counting what must be remembered")
        # A copy must come less than the delay after its first, and no row be late by as much.
        delays = {share: 1 + max(at[share].value, late[1][share].value if late else 0) for share in wanted if at}
        lengths = [*(at[share].value for share in delays), *(2 * delay for delay in delays.values())]
        peak = peaks(table, lengths) if lengths else Peaks({}, 1)
    tell("comparing with interval memory")
    return Advice(
        key=columns.id(df),
        time=time,
        order=order,
        **looked,
        ids=found.nulls,
        copies=found.total,
        lags=_told(found, at),
        late=_told(*late) if late else None,
        skewed={"copies": found.negative, "most_ms": max(0, -found.least)},
        windows=[_window(share, at[share], delay, found.total, peak) for share, delay in delays.items()],
        slot_ms=peak.slot_ms,
        intervals=interval_memory(df, numbered),
        seconds=round(monotonic() - started, 3),
    )


def _silent(step: str) -> None:
    pass


def _shares(shares: Iterable[float]) -> list[float]:
    wanted = sorted(set(shares))
    for share in wanted:
        if not 0 < share <= 1:
            raise Misuse(f"share is {share}, must be above 0 and at most 1", share=share)
    if not 0 < len(wanted) <= SHARES_MAX:
        raise Misuse(f"there are {len(wanted)} shares, must be 1 to {SHARES_MAX}", shares=wanted)
    return wanted


def _usual(df: DataFrame) -> ChainColumns | None:
    names = ChainColumns(arrival=None)
    return names if all(name in df.columns for _, name in names.named) else None


def _key(key: Iterable[str] | None, chains: ChainColumns | None) -> tuple[str, ...] | None:
    if isinstance(key, str):
        raise Misuse(f"key is a list of names, not {key!r}", key=key)
    if key is not None:
        return tuple(dict.fromkeys(key))
    if chains is None:
        return None
    return (*chains.key, *(name for name in (chains.timestamp, chains.sequence) if name is not None))


def _look(df: DataFrame, columns: WindowColumns) -> dict[str, Any]:
    """How many rows there are, which of them can be used, and from when to when they are."""
    why = why_unusable(df, columns)
    usable = F.when(why.isNull(), milliseconds(df, columns.time))
    sample = F.first(F.col(quoted(columns.time)).cast("string"), ignorenulls=True)
    reasons = [F.count_if(why == reason) for reason in UNUSABLE]
    rows, low, high, such, *counts = df.agg(
        F.count(F.lit(1)), F.min(usable), F.max(usable), sample, *reasons
    ).collect()[0]
    unusable = {reason: count for reason, count in zip(UNUSABLE, counts, strict=True) if count}
    if rows and low is None:
        told = ", ".join(f"{count:,} {reason}" for reason, count in unusable.items())
        raise Misuse(f"none of {rows:,} rows can be used: {told}; {columns.time!r} holds {such!r}", column=columns.time)
    return {"rows": rows, "unusable": unusable, "from_ms": low or 0, "to_ms": high or 0}


def _late(rows: DataFrame, shares: Sequence[float]) -> tuple[Distribution, dict[float, Quantile]]:
    with kept(lateness(rows)) as table:
        found = Distribution.of(table, LATE)
        return found, found.quantiles(shares)


def _told(found: Distribution, at: Mapping[float, Quantile]) -> dict[str, Any]:
    quantiles = {f"{share:.15g}": quantile.value for share, quantile in sorted(at.items())}
    return {"count": found.total, "most_ms": max(0, found.most), "quantiles": quantiles, "bins": found.bins()}


def _window(share: float, at: Quantile, delay_ms: int, copies: int, peak: Peaks) -> WindowFor:
    ids, twice = peak.ids[at.value], peak.ids[2 * delay_ms]
    return WindowFor(
        share=share,
        window_ms=at.value,
        caught=at.upto,
        leaked=copies - at.upto,
        leaked_share=(copies - at.upto) / copies,
        ids=ids,
        bytes=ID_BYTES * ids,
        watermark_ms=delay_ms,
        watermark_ids=twice,
        watermark_bytes=ID_BYTES * twice,
    )
