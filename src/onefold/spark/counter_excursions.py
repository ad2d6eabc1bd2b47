"""Excursions of a frame counter: a few frames that are elsewhere, until the line goes on where it was.

    1000 1001 | 5 6 | 1002          old frames, replayed or kept somewhere
    30 31 | 9000 | 32 33            a forged one
    65535 1 | 0 | 2                 one that is merely late

An excursion begins where the counter falls, or jumps ahead by more than 16, and is over at the first frame, at most 16
later, that goes on with the line: it is ahead of the line's last number, and much nearer to it than to the frame before
it (of an excursion of one frame, nearer). So a device that was restarted and counts on from there, until it is past
what it had reached before, is on no excursion.

Of excursions within others only the outer one counts.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.engines.lorawan.validation import GAP_MAX

LATE_MAX: Final = 16
"""How far a counter may fall and be taken for late: few devices send more frames than this while clocks are off."""
EXCURSION_MAX: Final = 16
"""Of how many frames an excursion may be. What is longer is looked at as a line of its own."""

OWN: Final = "_onefold_"
"""What the names of columns that are ours begin with."""
OFF, SMALL = "off", "small"


def apart(from_: Column, to: Column, size: Column) -> Column:
    """How far a counter is ahead of another one, or behind, whichever is shorter on its circle."""
    half = F.shiftright(size, 1)
    return F.pmod(to - from_ + half, size) - half


def own_apart(from_: str, to: str) -> Column:
    """The same of two columns of ours."""
    return apart(F.col(OWN + from_), F.col(OWN + to), F.col(OWN + "m"))


def with_excursions(rows: DataFrame, own: list[Column]) -> DataFrame:
    """The rows with ``off`` (it is part of an excursion) and ``small`` (a small fall is late here, and no restart).

    ``own``: the columns that name a device. Columns of ours: ``t``, the time; ``n``, the number; ``m``, its circle.
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
    rows = rows.withColumn(OWN + "end", F.col(OWN + "at") + _length() - 1)
    earlier, so_far = (by_time.rowsBetween(Window.unboundedPreceding, last) for last in (-1, 0))
    within = F.coalesce(F.max(OWN + "end").over(earlier) >= F.col(OWN + "at"), F.lit(False))
    rows = rows.withColumn(OWN + "end", F.when(~within, F.col(OWN + "end")))
    off = F.coalesce(F.max(OWN + "end").over(so_far) >= F.col(OWN + "at"), F.lit(False)) & number.isNotNull()
    return rows.withColumn(OWN + OFF, off).drop(OWN + "after", OWN + "at", OWN + "end")


def _length() -> Column:
    """Of how many frames the excursion is that begins with this one; null if none does."""
    move, after = F.col(OWN + "move"), F.col(OWN + "after")
    falls = (move < -LATE_MAX) | ((move < 0) & ~F.col(OWN + SMALL))
    places = F.sequence(F.lit(0), F.least(F.size(after), F.lit(EXCURSION_MAX)) - 1)
    length = F.get(F.filter(places, _is_over), 0) + 1
    return F.when((falls | (move > LATE_MAX)) & (F.size(after) > 0), length)


def _is_over(place: Column) -> Column:
    """Whether the frame at this place after the first one of an excursion goes on with the line."""
    first, line, size, after = (F.col(OWN + name) for name in ("n", "before", "m", "after"))
    here, then = F.get(after, place), F.get(after, place + 1)
    last = F.when(place == 0, first).otherwise(F.get(after, place - 1))
    on, back = apart(line, here, size), F.abs(apart(last, here, size))
    nearer = F.when(place == 0, back > on).otherwise(back > 2 * on + LATE_MAX)
    below = (apart(here, first, size) > LATE_MAX) & F.coalesce(apart(then, first, size) > 0, F.lit(True))
    return on.between(1, GAP_MAX) & nearer & (below | (F.col(OWN + "move") < 0))
