"""What can be said of a row without any memory: is its key whole, its number a number, its time believable?

All of it is native column logic. The result is one integer per row: the packed number, or, for a row that is refused
here, the negative integer that stands for the reason (see `engines.chains.columnar`).
"""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.engines.chains.columnar import NO_PREVIOUS, refused
from onefold.engines.chains.number import SEQUENCE_BITS, SEQUENCE_MAX, TIMESTAMP_MAX
from onefold.spark.columns import ChainColumns, milliseconds, quoted, whole

CORRUPT = "_corrupt_record"
"""Where Spark's readers put the text of a row that they could not read."""


class Packed(NamedTuple):
    """A row's numbers, as columns of longs without nulls."""

    previous: Column
    number: Column
    arrival: Column


def packed(df: DataFrame, columns: ChainColumns, jump_max_ms: int | None) -> Packed:
    """The packed numbers of every row; ``number`` is negative where the row is refused."""
    zero = F.lit(0).cast("long")
    timestamp = whole(df, columns.timestamp)
    sequence = zero if columns.sequence is None else whole(df, columns.sequence)
    arrival = None if columns.arrival is None else milliseconds(df, columns.arrival)
    number = _pack(timestamp, sequence)
    previous = F.coalesce(_previous(df, columns), F.lit(NO_PREVIOUS).cast("long"))
    refusals = [
        ("malformed", F.col(CORRUPT).isNotNull() if CORRUPT in df.columns else None),
        ("null_key", _any([F.col(quoted(name)).isNull() for name in columns.key])),
        ("bad_number", _any([_not_natural(timestamp), _not_natural(sequence), *_bad_previous(df, columns)])),
        ("number_out_of_range", _any([_too_big(timestamp, sequence), *_previous_too_big(df, columns)])),
        ("bad_numbering", previous >= number),
        ("jump_too_far", None if jump_max_ms is None or arrival is None else _ahead(timestamp, arrival) > jump_max_ms),
    ]
    judged = number
    for reason, condition in reversed(refusals):
        if condition is not None:
            judged = F.when(condition, F.lit(refused(reason)).cast("long")).otherwise(judged)
    return Packed(
        previous=previous,
        number=judged,
        arrival=number if arrival is None else arrival,
    )


def _pack(timestamp: Column, sequence: Column) -> Column:
    return F.shiftleft(timestamp, SEQUENCE_BITS).bitwiseOR(sequence)


def _previous_parts(df: DataFrame, columns: ChainColumns) -> tuple[Column, Column] | None:
    if columns.previous_timestamp is None:
        return None
    timestamp = whole(df, columns.previous_timestamp)
    no_sequence = columns.previous_sequence is None
    return timestamp, F.lit(0).cast("long") if no_sequence else whole(df, str(columns.previous_sequence))


def _previous(df: DataFrame, columns: ChainColumns) -> Column:
    parts = _previous_parts(df, columns)
    return F.lit(NO_PREVIOUS).cast("long") if parts is None else _pack(*parts)


def _bad_previous(df: DataFrame, columns: ChainColumns) -> list[Column]:
    """Half a previous number, or one that is not a number, is no number."""
    parts = _previous_parts(df, columns)
    if parts is None:
        return []
    names = [columns.previous_timestamp, columns.previous_sequence]
    given = _any([F.col(quoted(name)).isNotNull() for name in names if name is not None])
    return [given & _any([_not_natural(part) for part in parts])]


def _previous_too_big(df: DataFrame, columns: ChainColumns) -> list[Column]:
    parts = _previous_parts(df, columns)
    return [] if parts is None else [F.coalesce(_too_big(*parts), F.lit(False))]


def _not_natural(column: Column) -> Column:
    return column.isNull() | (column < 0)


def _too_big(timestamp: Column, sequence: Column) -> Column:
    return (timestamp > TIMESTAMP_MAX) | (sequence > SEQUENCE_MAX)


def _ahead(timestamp: Column, arrival: Column) -> Column:
    """How far the timestamp lies ahead; an arrival before all time must not overflow, which would end the job."""
    return timestamp - F.when(arrival < -TIMESTAMP_MAX, F.lit(-TIMESTAMP_MAX)).otherwise(arrival)


def _any(conditions: list[Column]) -> Column:
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found
