"""The frame counters of devices: which frames were lost, and what only looks like a loss.

A device counts its uplinks, so a number that nobody heard was lost on the air. In the order of time, the numbers of a
device form *lines* that rise by one from frame to frame:

    roll_over   a 16-bit counter goes from 65,535 to 0, a 32-bit one from 2^32 - 1: the line continues. The highest
                number of a device shows which of the two it has
    late        the number falls by 16 or less, well above zero or just over the edge: stations' clocks differ. The
                frame takes its place in the line
    excursion   at most 16 frames are behind or ahead of the line, which then continues where it was: a gateway that
                kept them, a replay, another device with the same address. Those within the line take their place in
                it; all others are *strays*, and in no line
    reset       the number falls otherwise, or jumps by more than 16,384 (MAX_FCNT_GAP of LoRaWAN 1.0), or would have
                rolled over with hundreds lost and only the numbers right after the edge heard again: the device
                restarted or joined again. A new line; what was lost around it is unknown

Within a line each frame is then compared with its neighbours by number, so a late one fills the gap it left.
Excursions:

    1000 1001 | 5 6 | 1002          old frames, replayed or kept by a gateway
    30 31 | 9000 | 32 33            a forged frame
    65535 1 | 0 | 2                 a late frame

An excursion begins where the counter falls, or jumps ahead by more than 16, and ends at the first frame, at most 16
later, that continues the line: it is ahead of the line's last number, and much nearer to it than to the frame before it
(after an excursion of one frame, just nearer). So a device that restarted and counts on until it is past its former
number is on no excursion. Of nested excursions only the outer one counts.

Cost: one shuffle of the uplinks by device, and a handful of sorts of them.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.lorawan.rules import GAP_MAX
from onefold.spark.columns import ReceptionColumns, milliseconds, quoted, whole
from onefold.spark.gaps import LOWER, UPPER

LATE_MAX: Final = 16
"""How far the counter of a late frame may fall: few devices send more frames within the difference of two clocks."""
EXCURSION_MAX: Final = 16
"""The longest excursion, in frames. A longer one is a line of its own."""

OWN: Final = "_onefold_"
OFF, SMALL = "off", "small"


def apart(from_: Column, to: Column, size: Column) -> Column:
    """How far ``to`` is ahead of ``from_`` (negative: behind), whichever is shorter on the circle of the counter."""
    half = F.shiftright(size, 1)
    return F.pmod(to - from_ + half, size) - half


def own_apart(from_: str, to: str) -> Column:
    return apart(F.col(OWN + from_), F.col(OWN + to), F.col(OWN + "m"))


def with_excursions(rows: DataFrame, own: list[Column]) -> DataFrame:
    """The rows with ``off`` (part of an excursion) and ``small`` (a small fall means late here, not a restart).

    ``own``: the columns that name a device. Our own columns: ``t``, the time; ``n``, the number; ``m``, its modulus.
    """
    number = F.col(OWN + "n")
    by_time = Window.partitionBy(*own, number.isNull()).orderBy(OWN + "t", OWN + "n")
    recent = F.max(OWN + "n").over(by_time.rowsBetween(-LATE_MAX, -1))
    rows = rows.withColumns({
        OWN + "before": F.lag(OWN + "n").over(by_time),
        OWN + "after": F.collect_list(OWN + "n").over(by_time.rowsBetween(1, EXCURSION_MAX + 1)),
        OWN + "at": F.row_number().over(by_time),
        OWN + SMALL: (number > LATE_MAX) | F.coalesce(recent >= F.col(OWN + "m") - 2 * LATE_MAX, F.lit(False)),
    })  # fmt: skip
    rows = rows.withColumn(OWN + "move", own_apart("before", "n"))
    move, after = F.col(OWN + "move"), F.col(OWN + "after")
    begins = (move < -LATE_MAX) | ((move < 0) & ~F.col(OWN + SMALL)) | (move > LATE_MAX)
    places = F.sequence(F.lit(0), F.least(F.size(after), F.lit(EXCURSION_MAX)) - 1)
    length = F.when(begins & (F.size(after) > 0), F.get(F.filter(places, _is_over), 0) + 1)
    rows = rows.withColumn(OWN + "end", F.col(OWN + "at") + length - 1)
    earlier, so_far = (by_time.rowsBetween(Window.unboundedPreceding, last) for last in (-1, 0))
    within = F.coalesce(F.max(OWN + "end").over(earlier) >= F.col(OWN + "at"), F.lit(False))
    rows = rows.withColumn(OWN + "end", F.when(~within, F.col(OWN + "end")))
    off = F.coalesce(F.max(OWN + "end").over(so_far) >= F.col(OWN + "at"), F.lit(False)) & number.isNotNull()
    return rows.withColumn(OWN + OFF, off).drop(OWN + "after", OWN + "at", OWN + "end")


def _is_over(index: Column) -> Column:
    """Whether the frame at this position after the first one of an excursion continues the line."""
    first, line, size, after = (F.col(OWN + name) for name in ("n", "before", "m", "after"))
    here, then = F.get(after, index), F.get(after, index + 1)
    last = F.when(index == 0, first).otherwise(F.get(after, index - 1))
    on, back = apart(line, here, size), F.abs(apart(last, here, size))
    nearer = F.when(index == 0, back > on).otherwise(back > 2 * on + LATE_MAX)
    below = (apart(here, first, size) > LATE_MAX) & F.coalesce(apart(then, first, size) > 0, F.lit(True))
    return on.between(1, GAP_MAX) & nearer & (below | (F.col(OWN + "move") < 0))


PREVIOUS, STEP, LOST = "previous", "step", "lost"
AHEAD, TO_NEXT, NEXT_STEP = "ahead", "to_next", "next_step"

BACKLOG_MAX: Final = 256
"""How far out of order a frame may be that a gateway kept until it could send it."""

EDGE_LOST_MAX: Final = 256
EDGE_SHARE: Final = 64
"""Of a long loss over the edge, some part falls after the edge. If that is less than one part in ``EDGE_SHARE``, it was
no roll-over: of true ones with more than ``EDGE_LOST_MAX`` lost, one in 64 is taken for a reset."""

_BITS_16, _BITS_32 = 1 << 16, 1 << 32


def counter_steps(
    uplinks: DataFrame, device: Sequence[str], fcnt: str, time: str, *, frame: Sequence[str] = ()
) -> DataFrame:
    """The uplinks with ``previous`` (the counter below), ``step`` and ``lost`` (how many are missing between the two).

    ``step``: "next", "gap", "roll_over" (with a gap or without), "reset", "again" (a repeated counter), "stray" (in no
    line; ``previous`` is then the line's last counter before it in time); null for a device's first frame, and without
    a counter. ``frame``: the columns that name a frame; a repeated frame is "again", whatever its number, and in no
    line.

    And compared with its neighbours in time that are in a line: ``ahead`` (how far it is ahead of the one before;
    negative: behind), ``to_next`` (how far the one after is ahead of it), both over the edge if that is shorter, and
    ``next_step`` (the step of the one after).
    """
    own, counter = [F.col(quoted(name)) for name in device], whole(uplinks, fcnt)
    rows = uplinks.withColumns(
        {OWN + "t": milliseconds(uplinks, time), OWN + "c": F.when(counter.between(0, _BITS_32 - 1), counter)}
    )
    width = F.when(F.max(OWN + "c").over(Window.partitionBy(*own)) >= _BITS_16, _BITS_32).otherwise(_BITS_16)
    rows = rows.withColumn(OWN + "m", width.cast("long"))
    seen = F.lit(False)
    if frame:
        copies = Window.partitionBy(*own, *(F.col(quoted(name)) for name in frame)).orderBy(OWN + "t", OWN + "c")
        rows = rows.withColumn(OWN + "copy", F.row_number().over(copies))
        seen = F.col(OWN + "copy") > 1
    rows = rows.withColumn(OWN + "n", F.when(~seen, F.col(OWN + "c")))
    steps = _among_neighbours(_placed(with_excursions(rows, own), own), device)
    added = (PREVIOUS, STEP, LOST, AHEAD, TO_NEXT, NEXT_STEP)
    return steps.select(*(F.col(quoted(name)) for name in uplinks.columns), *added)


def _placed(rows: DataFrame, own: list[Column]) -> DataFrame:
    """Find the lines, place each frame in one, and compare it with the frame below."""
    n, off, move = F.col(OWN + "n"), F.col(OWN + OFF), F.col(OWN + "move")
    by_time = Window.partitionBy(*own, n.isNull()).orderBy(OWN + "t", OWN + "n")
    in_line = F.last(F.when(~off, n), ignorenulls=True).over(by_time.rowsBetween(Window.unboundedPreceding, -1))
    rows = rows.withColumn(OWN + "before", in_line)
    rows = rows.withColumn(OWN + "move", own_apart("before", "n"))
    late = F.col(OWN + SMALL) & (move >= -LATE_MAX)
    edge = (n < F.col(OWN + "before")) & (move - 1 > EDGE_LOST_MAX) & (n * EDGE_SHARE < move - 1)
    breaks = F.coalesce((move > GAP_MAX) | ((move < 0) & ~late) | edge, F.lit(False)) & ~off
    rows = rows.withColumn(OWN + "break", breaks)
    rows = rows.withColumn(OWN + "line", F.sum(F.col(OWN + "break").cast("long")).over(by_time))
    of_line = Window.partitionBy(*own, n.isNull(), OWN + "line")
    goes = F.when(off, 0).when(F.col(OWN + "break") | move.isNull(), n).otherwise(move)
    at = F.sum(goes).over(of_line.orderBy(OWN + "t", OWN + "n")) + F.when(off, move).otherwise(0)
    rows = rows.withColumn(OWN + "place", F.when(n.isNotNull(), at))
    # A frame of an excursion is within the line if it is not below it, and neither far ahead nor above it.
    position = F.col(OWN + "place")
    true = F.when(~off, position)
    early = (move <= BACKLOG_MAX) & (position < F.max(true).over(of_line))
    within = F.when(move > 0, early).otherwise(position >= F.min(true).over(of_line))
    rows = rows.withColumn(OWN + "stray", off & ~within)
    by_place = Window.partitionBy(*own, n.isNull(), OWN + "line", OWN + "stray").orderBy(OWN + "place", OWN + "t")
    below = F.when(F.col(OWN + "stray"), F.col(OWN + "before")).otherwise(F.lag(OWN + "n").over(by_place))
    rows = rows.withColumns({PREVIOUS: F.when(n.isNotNull(), below), OWN + "low": F.lag(OWN + "place").over(by_place)})
    low, size = F.col(OWN + "low"), F.col(OWN + "m")
    step = (
        F.when(n.isNull(), F.when(F.col(OWN + "c").isNotNull(), F.lit("again")))
        .when(F.col(OWN + "stray"), F.lit("stray"))
        .when(low.isNull(), F.when(F.col(OWN + "line") > 0, F.lit("reset")))
        .when(position == low, F.lit("again"))
        .when(F.floor(position / size) > F.floor(low / size), F.lit("roll_over"))
        .when(position == low + 1, F.lit("next"))
        .otherwise(F.lit("gap"))
    )
    lost = F.when(~F.col(OWN + "stray"), position - low - 1)
    return rows.withColumns({STEP: step, LOST: F.coalesce(F.greatest(lost, F.lit(0)), F.lit(0)).cast("long")})


def _among_neighbours(rows: DataFrame, device: Sequence[str]) -> DataFrame:
    """Compare each frame, also those in no line, with the frames in a line before and after it in time."""
    in_line = F.col(OWN + "n").isNotNull() & ~F.coalesce(F.col(STEP).isin("again", "stray"), F.lit(False))
    names = ", ".join(quoted(name) for name in device)
    in_time = f"over (partition by {names} order by {OWN}t, {OWN}c)"
    rows = rows.withColumn(OWN + "in_line", F.when(in_line, F.struct(F.col(OWN + "n").alias("n"), STEP)))
    rows = rows.withColumns({
        OWN + "last": F.expr(f"lag({OWN}in_line) ignore nulls {in_time}"),
        OWN + "next": F.expr(f"lead({OWN}in_line) ignore nulls {in_time}"),
    })  # fmt: skip
    size, number = F.col(OWN + "m"), F.col(OWN + "c")
    return rows.withColumns({
        AHEAD: apart(F.col(f"{OWN}last.n"), number, size),
        TO_NEXT: apart(number, F.col(f"{OWN}next.n"), size),
        NEXT_STEP: F.col(f"{OWN}next.{STEP}"),
    })  # fmt: skip


def missing_counters(firsts: DataFrame, columns: ReceptionColumns | None = None) -> DataFrame:
    """One row per missing range: the device, ``lower_sequence`` (heard) and ``upper_sequence`` (missing).

    ``firsts``: the receptions whose verdict is FIRST. Over a roll-over the upper end is counted on, past 65,535.
    """
    names = columns or ReceptionColumns()
    firsts = names.added_to(firsts)
    names = names.of(firsts)
    key = [F.col(quoted(name)) for name in names.device]
    lower, upper = F.col(PREVIOUS).alias(LOWER[1]), (F.col(PREVIOUS) + F.col(LOST)).alias(UPPER[1])
    if names.fcnt is None or not key:  # without counters nothing is known to be missing
        return firsts.select(*key, *(F.lit(None).cast("long").alias(name) for name in (LOWER[1], UPPER[1]))).limit(0)
    data = firsts if names.kind is None else firsts.where(F.coalesce(F.col(quoted(names.kind)) != "join", F.lit(True)))
    for name in names.device:
        data = data.where(F.col(quoted(name)).isNotNull())
    # Under our own names, since the source's may be those of the columns that are added here.
    device, frame = [f"device{i}" for i in range(len(key))], [f"frame{i}" for i in range(len(names.frame))]
    theirs = (*names.device, *names.frame, names.fcnt, names.time)
    narrow = data.select(
        *(F.col(quoted(name)).alias(ours) for name, ours in zip(theirs, (*device, *frame, "fcnt", "at"), strict=True))
    )
    steps = counter_steps(narrow, device, "fcnt", "at", frame=frame)
    named = [F.col(ours).alias(name) for ours, name in zip(device, names.device, strict=True)]
    return steps.where(F.col(LOST) > 0).select(*named, lower, upper)
