"""The figures of a run for its report: when things happened, to which keys, how late copies came, what was rejected.

They are native aggregates over a few columns of the judged rows. The result is bounded for any run: below a megabyte as
JSON, in `run.json` under ``figures``.

    timeline     verdicts over some sixty equal stretches of time. The axis spans the firsts (all rows, if there are
                 none) without the outermost thousandth on either side if that lies far off: one number from the year
                 2200 must not squeeze an hour of traffic into a single stretch. Rows beyond are counted separately
    worst_keys   the keys with the most rows that do not count
    strips       the keys with missing messages, and their widest missing ranges. A range was *forgotten* if a message
                 from within or above it was UNSURE forgotten: an engine forgets the lowest ranges, up to a mark
    lags         how long after its first a copy came; for an id that expires, after the last first before it. A copy
                 without its first has no lag. Exact up to four seconds, longer lags to one part in two thousand: one
                 pass is enough for a picture. `onefold window` is exact
    rejects      some rows of each reason, those with the lowest hash: the same in every run, and not all from one key
    phases       how long each phase took

Cost: keys, strips and lags cost nothing if the judging tasks noted them (`notes`); the timeline is a pass over two
columns. Without notes, two concurrent passes over a few columns of the judged rows: one counts by key, and by stretch
of time on the way; one finds the firsts of copies. Rejected rows are read once more.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any, Final, NamedTuple

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from onefold import __version__
from onefold.errors import Misuse
from onefold.spark.audits import books, published
from onefold.spark.columns import WHOLE, cut_text, milliseconds, quoted, told
from onefold.spark.dialect import most_by, on_thread
from onefold.spark.engine import Engine, Subject
from onefold.spark.files import Place
from onefold.spark.fingerprints import Counts, hashable
from onefold.spark.gaps import NAME, key_names, remembered_gaps
from onefold.spark.host import REASON, VERDICT
from onefold.spark.memory import ALL, MemoryFolder
from onefold.spark.notes import DIGITS, KEYS_MAX, RANGES_MAX, STRIPS_MAX, Lags, Notes
from onefold.spark.session import believed_bytes, java_version
from onefold.spark.window import Distribution, bins, rank_of
from onefold.tally import Tally
from onefold.verdict import Verdict

VERDICTS: Final = ("FIRST", "REPEAT", "UNSURE", "REJECT")
"""The order of the four counts in every figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How much of each figure is kept: as much as a page shows."""

    bins_max: int = 60
    """The most stretches of the timeline."""
    keys_max: int = KEYS_MAX
    """The most keys in ``worst_keys``."""
    strips_max: int = STRIPS_MAX
    """The most keys whose missing ranges are listed."""
    ranges_max: int = RANGES_MAX
    """The most ranges per key, the widest first."""
    samples_max: int = 5
    """The most sample rows per reason to reject; 0: the report contains no rows."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name != "samples_max")
            if value < least:
                raise Misuse(f"{field.name} is {value}, must be at least {least}", **{field.name: value})

    @property
    def are_noted(self) -> bool:
        """Whether the notes of tasks hold enough for these limits."""
        return self.keys_max <= KEYS_MAX and self.strips_max <= STRIPS_MAX and self.ranges_max <= RANGES_MAX

    def take(
        self, rows: DataFrame, gaps: Callable[[], DataFrame], judging: Engine, tally: Tally, keys: int,
        span: Span | None = None, notes: Notes | None = None, naming: DataFrame | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The figures of judged rows with this number of keys. ``gaps``: their missing ranges, called only without
        notes.

        ``span``: of the firsts on the time axis, if known already. ``notes``: of the tasks that judged; ``naming``:
        rows that contain the keys of the notes.
        """
        subject = judging.subject(rows)

        def by_key_and_time() -> tuple[Any, Any, Any]:
            over_time = Timeline.of(rows, subject, tally, self, span)
            if notes is not None and self.are_noted:
                worst, strips = noted_keys(notes, rows if naming is None else naming, subject, self)
                return worst, strips, None if over_time is None else over_time.figure(rows)
            needed = rows.select(VERDICT, REASON, *(F.col(quoted(name)) for name in subject.columns))
            watched = rows if over_time is None or not subject.key else over_time.counts.watch(needed)
            worst, strips = keys_and_strips(watched, gaps(), subject, self)
            return worst, strips, None if over_time is None else over_time.figure(rows)

        figures: list[Callable[[], Any]] = [
            by_key_and_time,
            lambda: lags(rows, subject, tally.count(Verdict.REPEAT), None if notes is None else notes.lags),
            lambda: reject_samples(rows, subject, tally, self),
        ]
        # Concurrently: a small run spends most of its time on planning, while the cores are idle.
        with ThreadPoolExecutor(len(figures), thread_name_prefix="onefold-figures") as threads:
            begun = [threads.submit(on_thread(rows.sparkSession, figure)) for figure in figures]
            (worst, strips, over_time), late, refused = (figure.result() for figure in begun)
        return {
            "timeline": over_time,
            "worst_keys": worst,
            "strips": None if strips is None else {"keys": keys, **strips},
            "lags": late,
            "rejects": refused,
        }


def has(verdict: str) -> Column:
    return F.col(VERDICT) == verdict


def cell(df: DataFrame, name: str, chars_max: int) -> Column:
    """A value to show: a whole number unchanged, anything else as text cut to ``chars_max``."""
    is_whole = isinstance(df.schema[name].dataType, WHOLE)
    return F.col(quoted(name)).alias(name) if is_whole else cut_text(df, name, chars_max)


KEY_CHARS_MAX: Final = 60
KEY_COLUMNS_MAX: Final = 8
ALL_RANGES_MAX: Final = 6_000
"""The most ranges in all strips together."""

_KEY = "_onefold_key"
_SEEN_FROM, _SEEN_TO, _FORGOTTEN = "_onefold_from", "_onefold_to", "_onefold_forgotten"
_LOWER, _UPPER, _WIDTH = "_onefold_lower", "_onefold_upper", "_onefold_width"
_RANGES, _LOST, _SHOWN, _SHARE = "_onefold_ranges", "_onefold_lost", "_onefold_shown", "_onefold_share"


def keys_and_strips(
    rows: DataFrame, gaps: DataFrame, subject: Subject, limits: Figures
) -> tuple[list[dict[str, Any]] | None, dict[str, Any] | None]:
    """The keys with the most rows that are not FIRST, and the keys that miss the most; None without key columns.

    Cost: one job. Rows are counted by key before they are shuffled; each key keeps its widest missing ranges, which are
    far fewer. Then every task returns only the worst of its keys.
    """
    if not subject.key:
        return None, None
    aliases = [f"{_KEY}{i}" for i in range(len(subject.key))]
    key = [F.col(quoted(name)).alias(alias) for name, alias in zip(subject.key, aliases, strict=True)]
    keys = counted_by_key(rows, key, subject)
    if subject.number is None:
        keys = keys.withColumns({name: F.lit(None).cast("long") for name in (_RANGES, _LOST, _SHOWN)})
    else:
        keys = keys.join(widest_ranges(gaps, key, subject, limits.ranges_max), aliases, "left")
    # The share that is missing: of a key's time, or of its messages if these are numbered without holes.
    every = F.col(_SEEN_TO) - F.col(_SEEN_FROM) if subject.number_is_time else F.col(_LOST) + F.col("FIRST")
    share = F.coalesce(F.least(F.try_divide(F.col(_LOST), every), F.lit(1.0)), F.lit(0.0))
    keys = keys.withColumn(_SHARE, share)
    name = F.struct(*(cell(keys, alias, KEY_CHARS_MAX) for alias in aliases[:KEY_COLUMNS_MAX])).alias(_KEY)
    line = F.struct(name, *VERDICTS, _SEEN_FROM, _SEEN_TO, _FORGOTTEN, _RANGES, _SHOWN, _SHARE)
    rest = F.col("REPEAT") + F.col("UNSURE") + F.col("REJECT")
    # Ties are broken by the key, so that runs are reproducible.
    worst = most_by(F.when(rest > 0, line), F.when(rest > 0, F.struct(rest, *aliases)), limits.keys_max)
    is_missing = F.col(_RANGES) > 0
    rank = F.when(is_missing, F.struct(_SHARE, _RANGES, *aliases))
    strips = most_by(F.when(is_missing, line), rank, limits.strips_max)
    lines, drawn = keys.agg(worst, strips).collect()[0]
    worst_keys = [
        {"key": _key(row[_KEY], subject), "counts": [row[verdict] for verdict in VERDICTS]} for row in lines or []
    ]  # fmt: skip
    strip_rows = [
        {
            "key": row[_KEY],
            "share": row[_SHARE],
            "ranges": row[_RANGES],
            "from": row[_SEEN_FROM],
            "to": row[_SEEN_TO],
            "forgotten": row[_FORGOTTEN],
            "shown": row[_SHOWN],
        }
        for row in drawn or []
    ]
    return worst_keys, _strips(strip_rows, subject)


def noted_keys(
    notes: Notes, naming: DataFrame, subject: Subject, limits: Figures
) -> tuple[list[dict[str, Any]] | None, dict[str, Any] | None]:
    """The same from the notes of the tasks. Cost: looking up some hundred names among the rows."""
    worst, strips = notes.worst[: limits.keys_max], notes.strips[: limits.strips_max]
    keys: dict[tuple[int, int], Any] = {}
    if notes.names:
        wanted = naming.sparkSession.createDataFrame(notes.names, [*NAME])
        names = key_names([naming], subject.key, wanted)
        cells = [cell(names, name, KEY_CHARS_MAX) for name in subject.key[:KEY_COLUMNS_MAX]]
        keys = {(first, check): values for first, check, values in names.select(*NAME, F.struct(*cells)).collect()}
    worst_keys = [
        {"key": _key(keys[tuple(entry["name"])], subject), "counts": entry["counts"]} for entry in worst
    ]  # fmt: skip
    rows = [
        {**strip, "key": keys[tuple(strip["name"])], "shown": strip["shown"][: limits.ranges_max]} for strip in strips
    ]
    return worst_keys, _strips(rows, subject)


def _strips(rows: Sequence[Mapping[str, Any]], subject: Subject) -> dict[str, Any] | None:
    if not rows:
        return None
    total = sum(len(row["shown"]) for row in rows)
    most = total if total <= ALL_RANGES_MAX else ALL_RANGES_MAX // len(rows)
    strips = [_strip(row, subject, most) for row in rows]
    return {"column": subject.number, "time": subject.number_is_time, "rows": strips}


def counted_by_key(rows: DataFrame, key: Sequence[Column], subject: Subject) -> DataFrame:
    """The keys with their four counts, the least and the greatest number of their firsts, and the forgotten mark."""
    number = F.lit(None).cast("long") if subject.number is None else milliseconds(rows, subject.number)
    return rows.groupBy(*key).agg(
        *(F.count_if(has(verdict)).alias(verdict) for verdict in VERDICTS),
        F.min(F.when(has("FIRST"), number)).alias(_SEEN_FROM),
        F.max(F.when(has("FIRST"), number)).alias(_SEEN_TO),
        F.max(F.when(F.col(REASON) == "forgotten", number)).alias(_FORGOTTEN),
    )


def widest_ranges(gaps: DataFrame, key: Sequence[Column], subject: Subject, ranges_max: int) -> DataFrame:
    lower, upper = milliseconds(gaps, subject.lower), milliseconds(gaps, subject.upper)
    # Below the first number seen, the width is known only if keys begin at a known number.
    start = upper if subject.least is None else F.lit(subject.least - 1).cast("long")
    width = upper - F.coalesce(lower, start)
    ranges = gaps.select(*key, lower.alias(_LOWER), upper.alias(_UPPER), width.alias(_WIDTH))
    # Ties of the width are broken by the upper end.
    widest = most_by(F.struct(_WIDTH, _LOWER, _UPPER), F.struct(_WIDTH, _UPPER), ranges_max)
    aliases = ranges.columns[: len(key)]
    return ranges.groupBy(*aliases).agg(
        F.count(F.lit(1)).alias(_RANGES), F.sum(_WIDTH).alias(_LOST), widest.alias(_SHOWN)
    )


def _key(values: Iterable[Any], subject: Subject) -> dict[str, Any]:
    return dict(zip(subject.key, values, strict=False))  # at most KEY_COLUMNS_MAX


def _strip(row: Mapping[str, Any], subject: Subject, most: int) -> dict[str, Any]:
    widest = sorted(row["shown"], key=lambda gap: -gap[0])[:most]
    ranges = sorted(((lower, upper) for _, lower, upper in widest), key=lambda ends: ends[1])
    before = [upper if subject.least is None else subject.least for lower, upper in ranges if lower is None]
    mark, lines = row["forgotten"], []
    for lower, upper in ranges:
        is_missing = mark is None or (lower is not None and lower >= mark)
        lines.append([lower, upper, "missing" if is_missing else "forgotten"])
    return {
        "key": _key(row["key"], subject),
        "from": min([row["from"], *before]),
        "to": max([row["to"], *(upper for _, upper in ranges)]),
        "ranges": row["ranges"],
        "shown": lines,
        "missing": round(row["share"], 4),
    }


SHARES: Final = (0.5, 0.9, 0.99, 0.999, 0.9999, 1)
SENT_MAX: Final = 2_000_000
"""Up to this many copies, of about 40 bytes each, are broadcast to meet their firsts; more are shuffled."""

_ID, _AT, _FIRST, _AGAIN, _LAG = "_onefold_id", "_onefold_at", "_onefold_first", "_onefold_again", "_onefold_lag"


def lags(rows: DataFrame, subject: Subject, copies: int, noted: Lags | None = None) -> dict[str, Any]:
    """The lags of all copies, or why they are unknown; ``noted``: from the notes of the tasks.

    Cost: nothing if they were noted; else one job, with one shuffle of (hash of the id, arrival), or none if there are
    few copies. Joins and sorts are Spark's own, which spill: an id with a million copies is a longer task, not a larger
    one.
    """
    if subject.arrival is None or subject.identity is None:
        return {"why_not": subject.no_arrival}
    figure: dict[str, Any] = {
        "column": subject.arrival,
        "window_ms": subject.window_ms,
        "count": 0,
        "bins": [],
        "quantiles": {},
    }
    if not copies:
        return figure
    lag: Lags | Distribution | None = noted
    if lag is None:
        lag = Distribution.of(since_first(rows, subject, is_few=copies <= SENT_MAX), _LAG)
    if not lag.total:
        return figure if subject.arrival_least is None else {"why_not": subject.no_arrival}
    upto, quantiles = np.cumsum(lag.count), {}
    for share in SHARES:  # rounded up to the end of a bucket
        lower = int(lag.lower[np.searchsorted(upto, rank_of(share, lag.total))])
        end = lower + (1 << max(0, lower.bit_length() - DIGITS)) - 1
        quantiles[f"{share:g}"] = min(end, lag.most)
    return {
        **figure,
        "count": lag.total,
        "bins": [list(entry) for entry in bins(lag.lower, lag.count)],
        "quantiles": quantiles,
    }


def since_first(rows: DataFrame, subject: Subject, *, is_few: bool) -> DataFrame:
    """The lag of each copy whose first is there; ``is_few``: the copies fit into the memory of every task."""
    # By 64 bits: among ten million ids two share a hash once in 400,000 runs, which does not harm a picture.
    identity, arrival = subject.identity, subject.arrival
    assert identity is not None
    assert arrival is not None
    values = [hashable(F.col(quoted(name)), rows.schema[name].dataType) for name in identity.names]
    values += identity.number(rows)
    timed = rows.select(VERDICT, F.xxhash64(*values).alias(_ID), milliseconds(rows, arrival).alias(_AT))
    least = F.lit(True) if subject.arrival_least is None else F.col(_AT) >= subject.arrival_least
    firsts, copies = (
        timed.where(has(verdict) & F.col(_AT).isNotNull() & least).drop(VERDICT) for verdict in ("FIRST", "REPEAT")
    )
    if identity.time is None:  # an id counts once
        paired = firsts.withColumnRenamed(_AT, _FIRST).join(F.broadcast(copies) if is_few else copies, _ID)
    else:  # an id that expires may count again: the last first before the copy
        both = firsts.withColumn(_AGAIN, F.lit(False)).unionByName(copies.withColumn(_AGAIN, F.lit(True)))
        by_id = Window.partitionBy(_ID).orderBy(_AT, _AGAIN).rowsBetween(Window.unboundedPreceding, Window.currentRow)
        first = F.last(F.when(~F.col(_AGAIN), F.col(_AT)), ignorenulls=True).over(by_id)
        paired = both.withColumn(_FIRST, first).where(_AGAIN)
    # try_subtract, because the difference of two foreign times may overflow.
    return paired.select(F.try_subtract(_AT, _FIRST).alias(_LAG)).where(F.col(_LAG).isNotNull())


COLUMNS_MAX: Final = 40
CELL_CHARS_MAX: Final = 120

_NTH, _HASH, _ROW = "_onefold_nth", "_onefold_hash", "_onefold_row"


def reject_samples(rows: DataFrame, subject: Subject, tally: Tally, limits: Figures) -> list[dict[str, Any]]:
    """Each reason to reject with its count and some rows, the most frequent first.

    Cost: one job; each task returns no more rows than are asked for.
    """
    counts = {answer.reason: count for answer, count in tally if answer.verdict is Verdict.REJECT and count}
    samples: dict[str, list[dict[str, str | None]]] = {reason: [] for reason in counts}
    if counts and limits.samples_max:
        # The columns that a message is judged by, then others up to COLUMNS_MAX, in the order of the table.
        own = [name for name in rows.columns if name not in (VERDICT, REASON)]
        first = set(sorted(own, key=lambda name: name not in subject.columns)[:COLUMNS_MAX])
        cells = F.struct(*(cell(rows, name, CELL_CHARS_MAX) for name in own if name in first))
        by = [hashable(F.col(quoted(name)), rows.schema[name].dataType) for name in subject.columns]
        refused = rows.where(has("REJECT"))
        narrow = refused.select(REASON, F.xxhash64(F.lit(0), *by).alias(_HASH), cells.alias(_ROW))
        nth = F.row_number().over(Window.partitionBy(REASON).orderBy(_HASH))
        some = narrow.withColumn(_NTH, nth).where(F.col(_NTH) <= limits.samples_max)
        for row in sorted(some.collect(), key=lambda row: row[_NTH]):
            texts = {name: None if value is None else str(value) for name, value in row[_ROW].asDict().items()}
            samples.setdefault(row[REASON], []).append(texts)
    often = sorted(counts, key=lambda reason: (-counts[reason], reason))
    return [{"reason": reason, "count": counts[reason], "rows": samples[reason]} for reason in often]


OUTERMOST: Final = (0.001, 0.999)
ACCURACY: Final = 10_000
"""The default accuracy of Spark's sketch: a rank is off by a ten-thousandth of all rows."""
FAR: Final = 5
"""Far off: more than a fifth of the distance between the two quantiles beyond them."""

_BIN = "_onefold_bin"


@dataclass(frozen=True, slots=True)
class Axis:
    """Equal stretches of whole numbers, beginning at ``low``.

    >>> Axis.around(0, 100, 3, 97, 60)
    Axis(low=0, width=2, bins=51)
    >>> Axis.around(0, 10**15, 3, 97, 10).high
    120
    """

    low: int
    width: int
    bins: int

    @classmethod
    def around(cls, least: int, most: int, low: int, high: int, bins_max: int) -> Axis:
        """From the least value to the greatest, but not far beyond two quantiles."""
        far = (high - low) // FAR
        start, end = max(least, low - far), min(most, high + far)
        width = -(-(end - start + 1) // bins_max)
        return cls(start, width, -(-(end - start + 1) // width))

    @property
    def high(self) -> int:
        return self.low + self.width * self.bins

    def bin(self, at: Column) -> Column:
        """The index of the stretch that a value falls into; null: outside."""
        # try_subtract, because the difference of two foreign numbers may overflow.
        number = F.call_function("div", F.try_subtract(at, F.lit(self.low)), F.lit(self.width))
        return F.when((at >= self.low) & (number < self.bins), number)


class Span(NamedTuple):
    """The least and the greatest value, and two quantiles; None without any value."""

    least: int | None
    most: int | None
    outermost: str | None
    """The two quantiles, separated by a comma: before Spark 4.1 an observed array cannot be read in Python."""

    @staticmethod
    def cells(at: Column) -> dict[str, Column]:
        quantiles = F.array_join(F.percentile_approx(at, list(OUTERMOST), ACCURACY), ",")
        return dict(zip(Span._fields, (F.min(at), F.max(at), quantiles), strict=True))

    @staticmethod
    def firsts(judged: DataFrame, subject: Subject) -> dict[str, Column]:
        """The aggregates for the span of all firsts; none if there is no axis."""
        return {} if subject.axis is None else Span.cells(F.when(has("FIRST"), milliseconds(judged, subject.axis)))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Four counts for each stretch of time, and for the rows outside."""

    column: str
    time: bool
    axis: Axis
    counts: Counts
    number: Column
    """For each row, the combined index of its stretch and its verdict."""

    @classmethod
    def of(cls, rows: DataFrame, subject: Subject, tally: Tally, limits: Figures, span: Span | None) -> Timeline | None:
        """The timeline of these rows, not counted yet; None if no row has a time.

        Cost: one job for the axis, unless the ``span`` of the firsts is known.
        """
        if subject.axis is None:
            return None
        at = milliseconds(rows, subject.axis)
        if span is None or span.least is None:
            spanned = rows.where(has("FIRST")) if tally.count(Verdict.FIRST) else rows
            span = Span(*spanned.agg(*Span.cells(at).values()).collect()[0])
        if span.least is None or span.most is None or span.outermost is None:
            return None
        low, high = map(int, span.outermost.split(","))
        axis = Axis.around(span.least, span.most, low, high, limits.bins_max)
        verdict = F.call_function("array_position", F.lit(list(VERDICTS)), F.col(VERDICT)) - 1
        number = F.coalesce(axis.bin(at), F.lit(axis.bins)) * len(VERDICTS) + verdict
        counts = Counts(number, (axis.bins + 1) * len(VERDICTS), called="onefold_timeline")
        return cls(subject.axis, subject.axis_is_time, axis, counts, number)

    def figure(self, rows: DataFrame) -> dict[str, Any]:
        """The figure, from the observed counts; if these were lost or not observed, by one job."""
        numbers = self.counts.counts
        if numbers is None:
            numbers = {row[0]: row[1] for row in rows.groupBy(self.number.alias(_BIN)).count().collect()}
        width = len(VERDICTS)
        bins = [[numbers.get(i * width + verdict, 0) for verdict in range(width)] for i in range(self.axis.bins + 1)]
        ends = {"from": self.axis.low, "to": self.axis.high}
        return {"column": self.column, "time": self.time, **ends, "bins": bins[:-1], "outside": bins[-1]}


class Phases:
    """The phases of a run and how long each took; the first begins at once."""

    def __init__(self, first: str, say: Callable[[str], None], *, clock: Callable[[], float] = monotonic) -> None:
        self._say = say
        self._clock = clock
        self._begun = [(first, clock())]

    def begin(self, step: str) -> None:
        self._begun.append((step, self._clock()))
        self._say(step)

    @property
    def seconds(self) -> float:
        """The seconds since the first phase began."""
        return self._clock() - self._begun[0][1]

    def lasted(self) -> list[tuple[str, float]]:
        """The phases with their seconds, the last one up to now."""
        ends = [start for _, start in self._begun[1:]] + [self._clock()]
        return [(step, round(end - start, 3)) for (step, start), end in zip(self._begun, ends, strict=True)]


def circumstances(source: DataFrame, phases: Phases) -> dict[str, Any]:
    """Further facts for the report: the phases, the size of the source, the versions of the software."""
    spark, size = source.sparkSession, believed_bytes(source)
    versions = {"onefold": __version__, "python": platform.python_version(), "spark": spark.version}
    versions["java"] = java_version(spark)
    return {"phases": [list(phase) for phase in phases.lasted()], "bytes_in": size, "versions": versions}


def stream_document(
    spark: SparkSession, engine: Engine, memory: str, output: str, figures: Figures, ranges_max: int = 20
) -> dict[str, Any] | None:
    """The figures of a stream for its page, and what is missing now by its memory.

    None: the published rows have no verdicts. Cost: as for a table without notes.
    """
    rows = published(spark, Place(spark, output))
    if VERDICT not in rows.columns:
        return None
    tally, engine = books(spark, Place(spark, output)), engine.fitted(rows)
    folder = MemoryFolder.anywhere(memory)
    if engine.note_rules(rows) is None:
        missing = engine.missing(rows.where(has("FIRST")))
    else:
        gaps = remembered_gaps(spark, folder, ALL)
        missing = engine.named_gaps(rows, key_names([rows], engine.key, gaps).join(gaps, [*NAME]))
    missing = missing.persist()
    try:
        keys = sum(int(run.header["figures"].get("keys", 0)) for run in folder.newest().values())
        cells = [F.col(quoted(name)) for name in missing.columns]
        first = missing.orderBy(*cells).limit(ranges_max).select(*(told(missing, name) for name in missing.columns))
        return {
            "figures": figures.take(rows, lambda: missing, engine, tally, keys),
            "keys": keys,
            "missing_ranges": missing.count(),
            "missing_ranges_shown": [row.asDict() for row in first.collect()],
        }
    finally:
        missing.unpersist()
