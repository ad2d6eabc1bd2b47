"""The frame counters of devices: what was lost, and what only looks like a loss.

A device counts its uplinks, so a number that nobody heard was lost on the air. The numbers of a device are looked at
in the order of time, as *lines* that rise by one from frame to frame:

    roll_over   a counter of 16 bits goes from 65,535 to 0, one of 32 bits from 2^32 - 1: the line goes on. Which of the
                two a device has is seen from its highest number
    reset       the number falls otherwise, or jumps by more than 16,384 (MAX_FCNT_GAP of LoRaWAN 1.0), or would have
                rolled over with hundreds lost only to be heard again right behind the edge: the device was restarted or
                joined again. A new line; what was lost around it cannot be known
    late        the number falls by 16 or less, well above zero, or by any amount for one frame only: stations' clocks
                differ, or somebody replays. No new line: the frame takes its place in the one that is there

Within a line the frames are then compared with their neighbours by number, so a late one fills the gap it left.

Cost: one shuffle of the uplinks by device, and three sorts of them.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.engines.lorawan.validation import GAP_MAX
from onefold.spark.columns import milliseconds, quoted, whole
from onefold.spark.gaps import LOWER, UPPER
from onefold.spark.reception_columns import ReceptionColumns

PREVIOUS, STEP, LOST = "previous", "step", "lost"
LATE_MAX: Final = 16
"""How far a counter may fall and be taken for late: few devices send more frames than this while clocks are off."""

EDGE_LOST_MAX: Final = 256
EDGE_SHARE: Final = 64
"""Of a long loss over the edge, some part falls behind it. If that is not one part in ``EDGE_SHARE``, there was no
edge: of true roll-overs with more than ``EDGE_LOST_MAX`` lost, one in 64 is taken for a reset."""

_BITS_16, _BITS_32 = 1 << 16, 1 << 32
_OWN: Final = "_onefold_"


def counter_steps(
    uplinks: DataFrame, device: Sequence[str], fcnt: str, time: str, *, frame: Sequence[str] = ()
) -> DataFrame:
    """The uplinks with ``previous`` (the counter below), ``step`` and ``lost`` (how many are missing between the two).

    ``step``: "next", "gap", "roll_over" (with a gap or without), "reset", "again" (the counter was there before); null
    of a device's first frame, and where there is no counter. ``frame``: the columns that name a frame; one that was
    there before is "again", whatever its number, and no part of a line.
    """
    own = [F.col(quoted(name)) for name in device]
    names = ", ".join(quoted(name) for name in device)
    rows = uplinks.withColumns({_OWN + "t": milliseconds(uplinks, time), _OWN + "c": _counter(uplinks, fcnt)})
    seen = F.lit(False)
    if frame:
        copies = Window.partitionBy(*own, *(F.col(quoted(name)) for name in frame)).orderBy(_OWN + "t", _OWN + "c")
        rows = rows.withColumn(_OWN + "copy", F.row_number().over(copies))
        seen = F.col(_OWN + "copy") > 1
    rows = rows.withColumn(_OWN + "n", F.when(~seen, F.col(_OWN + "c")))
    in_time = f"over (partition by {names} order by {_OWN}t, {_OWN}n)"
    width = F.when(F.max(_OWN + "n").over(Window.partitionBy(*own)) >= _BITS_16, _BITS_32).otherwise(_BITS_16)
    rows = rows.withColumns({
        _OWN + "m": width,
        _OWN + "before": F.expr(f"lag({_OWN}n) ignore nulls {in_time}"),
        _OWN + "after": F.expr(f"lead({_OWN}n) ignore nulls {in_time}"),
    })  # fmt: skip
    steps = _placed(rows, own)
    return steps.select(*(F.col(quoted(name)) for name in uplinks.columns), PREVIOUS, STEP, LOST)


def _counter(uplinks: DataFrame, fcnt: str) -> Column:
    number = whole(uplinks, fcnt)
    return F.when(number.between(0, _BITS_32 - 1), number)


def _apart(from_: str, to: str) -> Column:
    """How far a counter is ahead of another one, or behind, whichever is shorter on its circle."""
    size, half = F.col(_OWN + "m"), F.floor(F.col(_OWN + "m") / 2)
    return F.pmod(F.col(_OWN + to) - F.col(_OWN + from_) + half, size) - half


def _placed(rows: DataFrame, own: list[Column]) -> DataFrame:
    """Find the lines, give each frame its place in one, and compare it with the frame below."""
    move, on = _apart("before", "n"), _apart("before", "after")
    late = ((move >= -LATE_MAX) & (F.col(_OWN + "n") > LATE_MAX)) | F.coalesce(on.between(1, GAP_MAX), F.lit(False))
    edge = (F.col(_OWN + "n") < F.col(_OWN + "before")) & (move - 1 > EDGE_LOST_MAX)
    breaks = (move > GAP_MAX) | ((move < 0) & ~late) | (edge & (F.col(_OWN + "n") * EDGE_SHARE < move - 1))
    by_time = Window.partitionBy(*own).orderBy(_OWN + "t", _OWN + "n")
    rows = rows.withColumns({_OWN + "move": move, _OWN + "break": F.coalesce(breaks, F.lit(False))})
    line = F.sum(F.col(_OWN + "break").cast("long")).over(by_time)
    rows = rows.withColumn(_OWN + "line", F.when(F.col(_OWN + "n").isNotNull(), line))  # those without: a line apart
    begins = F.col(_OWN + "break") | F.col(_OWN + "move").isNull()
    in_line = Window.partitionBy(*own, _OWN + "line").orderBy(_OWN + "t", _OWN + "n")
    place = F.sum(F.when(begins, F.col(_OWN + "n")).otherwise(F.col(_OWN + "move"))).over(in_line)
    by_place = Window.partitionBy(*own, _OWN + "line").orderBy(_OWN + "place", _OWN + "t")
    rows = rows.withColumn(_OWN + "place", F.when(F.col(_OWN + "n").isNotNull(), place))
    rows = rows.withColumns(
        {PREVIOUS: F.lag(_OWN + "n").over(by_place), _OWN + "low": F.lag(_OWN + "place").over(by_place)}
    )
    return rows.withColumns({STEP: _step(), LOST: _lost()})


def _step() -> Column:
    place, low, size = F.col(_OWN + "place"), F.col(_OWN + "low"), F.col(_OWN + "m")
    return (
        F.when(F.col(_OWN + "n").isNull(), F.when(F.col(_OWN + "c").isNotNull(), F.lit("again")))
        .when(low.isNull(), F.when(F.col(_OWN + "line") > 0, F.lit("reset")))
        .when(place == low, F.lit("again"))
        .when(F.floor(place / size) > F.floor(low / size), F.lit("roll_over"))
        .when(place == low + 1, F.lit("next"))
        .otherwise(F.lit("gap"))
    )


def _lost() -> Column:
    return F.coalesce(F.greatest(F.col(_OWN + "place") - F.col(_OWN + "low") - 1, F.lit(0)), F.lit(0)).cast("long")


def missing_counters(firsts: DataFrame, columns: ReceptionColumns | None = None) -> DataFrame:
    """One row per missing range: the device, ``lower_sequence`` (heard) and ``upper_sequence`` (missing).

    ``firsts``: the receptions whose verdict is FIRST. Over a roll-over the upper end is counted on, past 65,535.
    """
    names = columns or ReceptionColumns()
    key = [F.col(quoted(name)) for name in names.device]
    lower, upper = F.col(PREVIOUS).alias(LOWER[1]), (F.col(PREVIOUS) + F.col(LOST)).alias(UPPER[1])
    if names.fcnt is None or not key:  # nobody counts: nothing can be known to be missing
        return firsts.select(*key, *(F.lit(None).cast("long").alias(name) for name in (LOWER[1], UPPER[1]))).limit(0)
    data = firsts if names.kind is None else firsts.where(F.coalesce(F.col(quoted(names.kind)) != "join", F.lit(True)))
    for name in names.device:
        data = data.where(F.col(quoted(name)).isNotNull())
    narrow = data.select(
        *(F.col(quoted(name)) for name in dict.fromkeys((*names.device, names.fcnt, names.time, *names.frame)))
    )
    steps = counter_steps(narrow, names.device, names.fcnt, names.time, frame=names.frame)
    return steps.where(F.col(LOST) > 0).select(*key, lower, upper)
