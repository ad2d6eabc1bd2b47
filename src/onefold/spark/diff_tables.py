"""``diff(a, b)``: which rows two tables do not share. Exact, and much is never looked at.

Two passes. The first sums both tables up, range by range (`diff_ranges`), and shuffles nothing but sums. Where they
differ, and only there, the second reads the rows again and compares them one by one, by their ids (`diff_rows`). Equal
tables cost one pass; a few differences cost a second one over the columns, and next to no shuffle; where all is
different, ids of 32 bytes are shuffled, and the wide rows stay where they are.

Both tables are read twice and must not change in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark.columns import quoted
from onefold.spark.diff_forms import as_type, common, form, hashable, null_masks, row_form
from onefold.spark.diff_ranges import BITS_MAX, Compared, bits_for, compare, range_of, row_id
from onefold.spark.diff_rows import TOLD, Rows, Side

Hash: TypeAlias = Literal["xxhash64", "sha256"]
HASHES: Final = get_args(Hash)
SPOKEN_MAX: Final = 200
"""How much of a row an error shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was found, in figures."""

    rows_a: int
    rows_b: int
    fingerprint_a: str
    fingerprint_b: str
    ranges: int = 0
    """Into how many ranges the ids were scattered, and compared by their fingerprints."""
    ranges_differing: int = 0
    """In how many of them the rows were compared one by one."""
    only_a: int = 0
    """How many rows of A are missing in B."""
    only_b: int = 0
    differing: int = 0
    """Of how many keys both have rows, and not the same ones."""
    repeated_a: int = 0
    """How many of the rows, or keys, that were found different A holds more than once."""
    repeated_b: int = 0

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, as often."""
        return not (self.only_a or self.only_b or self.differing)

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {"equal": self.equal, **asdict(self)}


class Diff:
    """What two tables do not share: figures at once, rows when they are asked for.

    A ``with`` block, or ``close()``, gives back what was kept in Spark's storage for the rows.
    """

    def __init__(self, rows: Rows, compared: Compared) -> None:
        self._rows = rows
        self.summary = Summary(
            rows_a=compared.a.count,
            rows_b=compared.b.count,
            fingerprint_a=str(compared.a),
            fingerprint_b=str(compared.b),
            ranges=compared.ranges,
            ranges_differing=len(compared.differing),
            **rows.counts(),
        )

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, as often."""
        return self.summary.equal

    @property
    def only_a(self) -> DataFrame:
        """The rows of A that B lacks, as they are in A; of a row that A holds more often, so many more."""
        return self._rows.only(0)

    @property
    def only_b(self) -> DataFrame:
        """The rows of B that A lacks."""
        return self._rows.only(1)

    @property
    def differing(self) -> DataFrame:
        """Rows of one key that differ: the key, ``differs_in`` (the columns), ``row_a`` and ``row_b``.

        Where a key has several rows, those that both hold are left out and the others are paired; ``row_a`` or
        ``row_b`` is null where there are more of them on the other side.
        """
        return self._rows.differing()

    def close(self) -> None:
        """Give back what was kept."""
        self._rows.close()

    def __enter__(self) -> Diff:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def diff(
    a: DataFrame, b: DataFrame, *, key: Iterable[str] | None = None, columns: Iterable[str] | None = None,
    buckets: int | None = None, hash: Hash = "xxhash64",
) -> Diff:  # fmt: skip
    """Compare two tables.

    ``key``: the columns that name a row; None: a row is named by all that it holds, and counted as often as it is
    there, as ``exceptAll`` does. ``columns``: what else must agree; None: every other column, which then both must
    have. ``buckets``: into how many ranges the ids are scattered, a power of two; None: by the size of the tables.
    ``hash``: what the fingerprints are made with, see `diff_ranges`; "sha256" where somebody may want the difference
    not to be found. Rows are always compared by SHA-256.

    Two nulls are equal, every NaN is one value, and text is compared by its bytes.
    """
    names, rest = chosen(a, b, key, columns)
    bits = bits_for([a, b]) if buckets is None else _bits(buckets)
    if hash not in HASHES:
        raise Misuse(f"hash is {hash!r}, must be {' or '.join(HASHES)}", hash=hash)
    sides = _sides(a, b, names, rest, bits, whole=key is None, hash=hash)
    compared = compare(sides[0].summed(), sides[1].summed(), bits)
    return Diff(Rows(sides[0], sides[1], compared, whole=key is None), compared)


def sampled(df: DataFrame, names: Iterable[str] | None, most: int) -> list[dict[str, Any]]:
    """A few rows as JSON can hold them, in order; by these columns or all."""
    columns = [quoted(name) for name in (df.columns if names is None else names)]
    rows = df.select(*columns).limit(most).collect()
    return [{name: _plain(value) for name, value in row.asDict(recursive=True).items()} for row in rows]


def spoken(row: Mapping[str, Any]) -> str:
    r"""A row, or an id, in words, on one line, without anything that a terminal obeys.

    >>> spoken({"device": "a\n", "ts": 5})
    'device a?, ts 5'
    """
    words = ", ".join(f"{name} {'null' if value is None else value}" for name, value in row.items())
    return "".join(sign if sign.isprintable() else "?" for sign in words)[:SPOKEN_MAX]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def chosen(
    a: DataFrame, b: DataFrame, key: Iterable[str] | None, columns: Iterable[str] | None
) -> tuple[list[str], list[str]]:
    """The key and the other columns that are compared; `Misuse` that names the column if one is missing."""
    if isinstance(key, str) or isinstance(columns, str):
        raise Misuse(f"key and columns are lists of names, not {key or columns!r}", key=key, columns=columns)
    names = [] if key is None else list(dict.fromkeys(key))
    if key is not None and not names:
        raise Misuse("key is empty, must name at least one column, or be None: the whole row", key=key)
    if taken := [name for name in names if name.lower() in TOLD]:
        raise Misuse(f"key column {taken[0]!r} has a name that the outcome needs: rename it", column=taken[0])
    if columns is None:
        alone = [name for name in (*a.columns, *b.columns) if (name in a.columns) != (name in b.columns)]
        if alone:
            owner = "the first" if alone[0] in a.columns else "the second"
            raise Misuse(f"column {alone[0]!r} is only in {owner} table: name the columns to compare", column=alone[0])
    rest = [name for name in (a.columns if columns is None else dict.fromkeys(columns)) if name not in names]
    for name in (*names, *rest):
        for df, which in ((a, "first"), (b, "second")):
            if df.columns.count(name) != 1:
                there = ", ".join(df.columns)
                raise Misuse(f"no column {name!r} in the {which} table: the columns are {there}", column=name)
    if not names and not rest:
        raise Misuse("there is no column to compare")
    return names, rest


def _sides(
    a: DataFrame, b: DataFrame, key: Sequence[str], rest: Sequence[str], bits: int, *, whole: bool, hash: Hash
) -> list[Side]:
    """Both tables with the columns that are compared, brought to common types."""
    kinds = {}
    for name in (*key, *rest):
        ours, theirs = a.schema[name].dataType, b.schema[name].dataType
        kind = common(ours, theirs)
        if kind is None:
            kinds_of = f"{ours.simpleString()} in the first table and {theirs.simpleString()} in the second"
            raise Misuse(f"column {name!r} is {kinds_of}: cast one of them", column=name)
        try:
            form(F.lit(None), kind)
        except Misuse as error:
            raise Misuse(f"column {name!r}: {error}", column=name) from error
        kinds[name] = kind
    sides = []
    for df in (a, b):
        cells = {name: as_type(F.col(quoted(name)), df.schema[name].dataType, kind) for name, kind in kinds.items()}
        plain = {name: hashable(cell, kinds[name]) for name, cell in cells.items()}
        named = rest if whole else key
        key_form, both = (row_form((cells[name], kinds[name]) for name in names) for names in (named, (*key, *rest)))
        sides.append(
            Side(
                df=df,
                cells=cells,
                kinds=kinds,
                key=key,
                key_form=key_form,
                row_form=both,
                range=range_of((plain[name] for name in named), bits),
                values=[row_id(both)] if hash == "sha256" else [*null_masks(cells.values()), *plain.values()],
            )
        )
    return sides


def _bits(buckets: int) -> int:
    if not 2 <= buckets <= 1 << BITS_MAX or buckets & (buckets - 1):
        raise Misuse(f"buckets is {buckets}, must be a power of two from 2 to {1 << BITS_MAX}", buckets=buckets)
    return buckets.bit_length() - 1
