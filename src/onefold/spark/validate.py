"""What can be said of a row without any memory: is its key whole, its number a number, its time believable?

All of it is native column logic. The result is one integer per row: the packed number, or, for a row that is refused
here, the negative integer that stands for the reason (see `engines.chains.columnar`).
"""

from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.engines.chains.columnar import NO_PREVIOUS, refused
from onefold.engines.chains.number import SEQUENCE_BITS, SEQUENCE_MAX, TIMESTAMP_MAX
from onefold.spark.columns import ChainColumns, Moment, in_order, milliseconds, moment, no_time, quoted, whole

CORRUPT = "_corrupt_record"
"""Where Spark's readers put the text of a row that they could not read."""


class Packed(NamedTuple):
    """A row's numbers, as columns of longs; ``arrival`` is null where it is not known."""

    previous: Column
    number: Column
    arrival: Column


def packed(df: DataFrame, columns: ChainColumns, jump_max_ms: int | None) -> Packed:
    """The packed numbers of every row; ``number`` is negative where the row is refused."""
    own = _Parts.of(df, columns.timestamp, columns.sequence)
    before = None
    if columns.previous_timestamp is not None:
        before = _Parts.of(df, columns.previous_timestamp, columns.previous_sequence)
    fine = columns.sequence is None and columns.previous_sequence is None
    number, parts = own.packed(fine), [own] if before is None else [own, before]
    none = F.lit(NO_PREVIOUS).cast("long")
    previous = none if before is None else F.coalesce(before.packed(fine), none)
    finer = [] if fine else [part.time.below > 0 for part in parts if part.time.below is not None]
    jumps = None
    if jump_max_ms is not None and columns.arrival is not None:
        jumps = _ahead(own.time.ms, milliseconds(df, columns.arrival)) > jump_max_ms
    refusals = [
        ("malformed", F.col(CORRUPT).isNotNull() if CORRUPT in df.columns else None),
        ("null_key", _any([F.col(quoted(name)).isNull() for name in columns.key])),
        ("bad_number", _any([*own.not_natural, *_bad_previous(columns, before)])),
        ("number_out_of_range", _any([part.too_big for part in parts])),
        ("time_too_fine", _any(finer) if finer else None),
        ("bad_numbering", previous >= number),
        ("bad_time", None if columns.arrival is None else no_time(df, columns.arrival)),
        ("jump_too_far", jumps),
    ]
    judged = number
    for reason, condition in reversed(refusals):
        if condition is not None:
            judged = F.when(condition, F.lit(refused(reason)).cast("long")).otherwise(judged)
    return Packed(
        previous=previous,
        number=judged,
        arrival=number if columns.arrival is None else in_order(df, columns.arrival),
    )


class _Parts(NamedTuple):
    """A number: its time, and its sequence if there is a column of it."""

    time: Moment
    sequence: Column | None

    @classmethod
    def of(cls, df: DataFrame, timestamp: str, sequence: str | None) -> "_Parts":
        return cls(moment(df, timestamp), None if sequence is None else whole(df, sequence))

    def packed(self, fine: bool) -> Column:
        """One long. ``fine``: without a sequence, what the time has below the millisecond stands in its place."""
        rest = self.time.below if fine and self.sequence is None else self.sequence
        return F.shiftleft(self.time.ms, SEQUENCE_BITS).bitwiseOR(F.lit(0).cast("long") if rest is None else rest)

    @property
    def not_natural(self) -> list[Column]:
        return [part.isNull() | (part < 0) for part in (self.time.ms, self.sequence) if part is not None]

    @property
    def too_big(self) -> Column:
        late = self.time.ms > TIMESTAMP_MAX
        return late if self.sequence is None else late | (self.sequence > SEQUENCE_MAX)


def _bad_previous(columns: ChainColumns, before: _Parts | None) -> list[Column]:
    """Half a previous number, or one that is not a number, is no number."""
    if before is None:
        return []
    names = [columns.previous_timestamp, columns.previous_sequence]
    given = _any([F.col(quoted(name)).isNotNull() for name in names if name is not None])
    return [given & _any(before.not_natural)]


def _ahead(timestamp: Column, arrival: Column) -> Column:
    """How far the timestamp lies ahead; an arrival before all time must not overflow, which would end the job."""
    return timestamp - F.when(arrival < -TIMESTAMP_MAX, F.lit(-TIMESTAMP_MAX)).otherwise(arrival)


def _any(conditions: list[Column]) -> Column:
    return reduce(or_, conditions)
