"""What gives the memory of a stream its meaning: the same bytes under other settings would say something else.

A meaning is a flat mapping of names to values: the engine, its columns with their order and types, the rules that
decide, the number of buckets, the format of the state. Names are those of the settings. It is kept where the memory is
(the folder, and the checkpoint around it) and where its outcome goes (the sink); whoever goes on with another one is
told the first name that differs, and both values.

Not part of it are bounds, which may change from start to start, because what is remembered says by itself where they
were: ``gap_count_max``, ``idle_ms``, ``state_rows_max``, ``order_wait_ms``, ``late_ms``, ``digests_max``.

A rule that an engine gets later is listed where it differs from what was done before, so that what was kept before
stays good.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pyspark.sql import DataFrame

from onefold.errors import Misuse

Meaning: TypeAlias = Mapping[str, str | int | bool]


def of_columns(df: DataFrame, named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each role with its columns, in their order, and their types."""
    meaning: dict[str, str] = {}
    for role, name in named:
        column = f"{name} {df.schema[name].dataType.simpleString()}"
        meaning[role] = f"{meaning[role]}, {column}" if role in meaning else column
    return meaning


def difference(before: Meaning, now: Meaning) -> str | None:
    """The first name whose value is another one, with both values; None: they mean the same.

    >>> difference({"engine": "chains", "key": "a string, b string"}, {"engine": "chains", "key": "b string, a string"})
    "key = 'a string, b string', not 'b string, a string'"
    >>> difference({"engine": "chains", "payload": "x int"}, {"engine": "chains"})
    "payload = 'x int', not none"
    """
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            was, is_ = ("none" if value is None else repr(value) for value in (before.get(name), now.get(name)))
            return f"{name} = {was}, not {is_}"
    return None


def refuse_other(owner: object, before: Meaning, now: Meaning) -> None:
    """Raise `Misuse` if what a checkpoint, a sink or a state remembers means something else now."""
    if (other := difference(before, now)) is not None:
        raise Misuse(
            f"{owner} was begun with {other}: what is remembered there would mean something else; set it back, or begin"
            " anew with an empty checkpoint and an empty output",
            place=str(owner), before=dict(before), now=dict(now),
        )  # fmt: skip
