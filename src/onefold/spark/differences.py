"""``diff(a, b)``: the rows that two tables do not share, exactly, without comparing what is equal.

Two passes. The first sums up both tables, range by range (`fingerprints`), and shuffles only sums. The second reads
the rows of the ranges that differ, and compares them by their ids. It shuffles narrow rows: the id of the key and the
id of the whole row, 32 bytes each. The result is the *delta*: the ids that one table holds more often than the other,
and how often each table has their key. It is small where the tables are similar, and is joined to select the wide rows,
which are not shuffled.

Equal tables cost one pass; a few differences cost a second one over the columns, and next to no shuffle. Both tables
are read twice and must not change in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark import fingerprints
from onefold.spark.columns import AnyColumns, Columns, Names, in_any_case, listed, quoted
from onefold.spark.dialect import from_arrow, to_arrow
from onefold.spark.fingerprints import BITS_MAX, RANGE, Compared, form, row_form, row_id, with_words, word_names
from onefold.text import plain

Hash: TypeAlias = Literal["xxhash64", "sha256"]
HASHES: Final = get_args(Hash)
KEPT_SHARE: Final = 1 / 8
"""Up to this share of differing ranges, their rows are cached by Spark; beyond, they are read again when needed."""
ALL_SHARE: Final = 1 / 2
"""Beyond this share of differing ranges, filtering rows by range does not pay."""
DELTA_MAX: Final = 50_000
"""Up to this many differing ids, of about 100 bytes, are collected in the driver and broadcast."""
SPOKEN_MAX: Final = 200
"""Characters of a row that an error shows."""
OUTCOME: Final = ("differs_in", "row_a", "row_b")
ROWS: Final = ("rows_a", "rows_b")
"""The columns beside the key of differing rows, and of doubled keys."""

_KEY, _ROW, _N, _I = "_onefold_key", "_onefold_row", ("_onefold_na", "_onefold_nb"), "_onefold_i"
_KEYED: Final = ("_onefold_ka", "_onefold_kb")
_MORE: Final = ("_onefold_ma", "_onefold_mb")


def diff(
    a: DataFrame, b: DataFrame, *, key: Names | None = None, columns: Names | None = None,
    buckets: int | None = None, hash: Hash = "xxhash64",
) -> Diff:  # fmt: skip
    """Compare two tables.

        with diff(a, b, key=["id"]) as found:
            found.summary.only_a, found.summary.only_b, found.summary.differing
            found.differing.show()

    ``key``: the columns that identify a row; None: the whole row does, and copies are counted, as in ``exceptAll``.
    ``columns``: the other columns to compare; None: all others, which both tables must have. Names are
    case-insensitive, ``"h.id"`` is a field of a struct, and expressions such as ``F.lower("id")`` are accepted.
    ``buckets``: the number of ranges of the first pass, a power of two; None: by the size of the tables. ``hash``: what
    the fingerprints are made with, see `fingerprints`; "sha256" where somebody may try to hide a difference. Rows are
    always compared by SHA-256.

    Two nulls are equal, all NaNs are equal, and text is compared by its bytes.
    """
    names, rest = chosen(a, b, key, columns)
    a, b = (AnyColumns(name=(*names, *rest)).put_into(df) for df in (a, b))
    if buckets is not None and (not 2 <= buckets <= 1 << BITS_MAX or buckets & (buckets - 1)):
        raise Misuse(f"buckets is {buckets}, must be a power of two from 2 to {1 << BITS_MAX}", buckets=buckets)
    if hash not in HASHES:
        raise Misuse(f"hash is {hash!r}, must be {' or '.join(HASHES)}", hash=hash)
    bits = fingerprints.bits_for([a, b]) if buckets is None else buckets.bit_length() - 1
    kinds = common_types(a, b, [*names, *rest])
    for name, kind in kinds.items():
        try:
            form(F.lit(None), kind)
        except Misuse as error:
            raise Misuse(f"column {name!r}: {error}", column=name) from error
    sides = [Side(df, names, kinds, bits, whole=key is None, hash=hash) for df in (a, b)]
    compared = fingerprints.compare(sides[0].summed(), sides[1].summed(), bits)
    return Diff(sides, compared, whole=key is None)


def chosen(a: Columns, b: Columns, key: Names | None, columns: Names | None) -> tuple[list[str], list[str]]:
    """The key and the other columns, spelled as in the first table; `Misuse` that names a missing one."""
    names = [] if key is None else _spelled(a, key)
    if key is not None and not names:
        raise Misuse("key is empty, must name at least one column, or be None: the whole row", key=key)
    for name in names:
        if name.lower() in (*OUTCOME, *ROWS):
            raise Misuse(f"key column {name!r} has a name that the outcome needs: rename it", column=name)
    if columns is None:
        for df, other, owner in ((a, b, "the first"), (b, a, "the second")):
            for name in df.columns:
                if name not in other.columns and in_any_case(other.columns, name) is None:
                    what = f"column {name!r} is only in {owner} table"
                    raise Misuse(f"{what}: name the columns to compare", column=name)
    rest = [name for name in (a.columns if columns is None else _spelled(a, columns)) if name not in names]
    for name in (*names, *rest):
        for df, which in ((a, "first"), (b, "second")):
            if not AnyColumns(name=(name,)).are_in(df):
                near = next(iter(get_close_matches(name, df.columns, n=1)), None)
                close = "" if near is None else f", did you mean {near!r}"
                there = ", ".join(df.columns)
                text = f"no column {name!r} in the {which} table{close}: the columns are {there}"
                raise Misuse(text, column=name, wrong=name, right=near)
    if not names and not rest:
        raise Misuse("there is no column to compare")
    return names, rest


def _spelled(df: Columns, names: Names) -> list[str]:
    several = listed(names)
    return list(dict.fromkeys(AnyColumns(name=tuple(several)).of(df).name)) if several else []


def common_types(a: Columns, b: Columns, names: Iterable[str]) -> dict[str, T.DataType]:
    """The common types of the columns; `Misuse` that names a column without one."""
    kinds = {}
    for name in names:
        ours, theirs = a.schema[name].dataType, b.schema[name].dataType
        kind = fingerprints.common(ours, theirs)
        if kind is None:
            both = f"{ours.simpleString()} in the first table and {theirs.simpleString()} in the second"
            raise Misuse(f"column {name!r} is {both}: cast one of them", column=name)
        kinds[name] = kind
    return kinds


class Side:
    """One of the two tables, with the expressions by which its rows are compared."""

    def __init__(
        self, df: DataFrame, key: Sequence[str], kinds: Mapping[str, T.DataType], bits: int, *, whole: bool, hash: Hash
    ) -> None:
        self.df, self.key, self.kinds = df, key, kinds
        self.cells = {}
        """The compared columns, cast to the common types."""
        for name, kind in kinds.items():
            column, own = F.col(quoted(name)), df.schema[name].dataType
            self.cells[name] = column if own.simpleString() == kind.simpleString() else column.cast(kind)
        plain = {name: fingerprints.hashable(cell, kinds[name]) for name, cell in self.cells.items()}
        naming = kinds if whole else key
        self._key_form, self._row_form = (
            row_form((self.cells[name], kinds[name]) for name in names) for names in (naming, kinds)
        )
        self._range = fingerprints.range_of((plain[name] for name in naming), bits)
        self._values = [*fingerprints.null_masks(self.cells.values()), *plain.values()]
        if hash == "sha256":
            self._values = [row_id(self._row_form)]

    def summed(self) -> DataFrame:
        """The range and the words of each row, of which the fingerprints are made."""
        return with_words(self.df.withColumn(RANGE, self._range), self._values).select(RANGE, *word_names())

    def suspects(self, ranges: DataFrame | None, *, whole: bool) -> DataFrame:
        """All columns of the rows in these ranges (None: all), with the ids of key and row."""
        rows = self.df
        if ranges is not None:
            rows = rows.withColumn(RANGE, self._range).join(F.broadcast(ranges), RANGE, "left_semi").drop(RANGE)
        rows = rows.withColumn(_ROW, F.unhex(row_id(self._row_form)))
        return rows.withColumn(_KEY, F.col(_ROW) if whole else F.unhex(row_id(self._key_form)))


def delta(suspects: Sequence[DataFrame], *, whole: bool) -> DataFrame:
    """The ids that one side holds more often, with the counts of both sides for the id and for its key."""
    ones = (F.lit(1).cast("long"), F.lit(0).cast("long"))
    a, b = (rows.select(_KEY, _ROW, ones[i].alias(_N[0]), ones[1 - i].alias(_N[1])) for i, rows in enumerate(suspects))
    # Partitioned by the key alone, so that one shuffle serves both steps below.
    together = a.unionAll(b).repartition(_KEY)
    counted = together.groupBy(_KEY, _ROW).agg(*(F.sum(name).alias(name) for name in _N))
    by_key = Window.partitionBy(_KEY)
    totals = {_KEYED[i]: F.col(_N[i]) if whole else F.sum(_N[i]).over(by_key) for i in (0, 1)}
    return counted.withColumns(totals).where(F.col(_N[0]) != F.col(_N[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The difference in figures."""

    rows_a: int
    rows_b: int
    fingerprint_a: str
    fingerprint_b: str
    ranges: int = 0
    """The number of ranges whose fingerprints were compared."""
    ranges_differing: int = 0
    """How many of them differ, so that their rows were compared one by one."""
    only_a: int = 0
    """Rows of A that B lacks."""
    only_b: int = 0
    differing: int = 0
    """Keys that both have, with different content."""
    doubled: int = 0
    """Keys that both have, one of them more often. Such a key may differ in content too."""
    repeated_a: int = 0
    """Of the differing rows, or keys: how many A holds more than once."""
    repeated_b: int = 0

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, equally often."""
        return not (self.only_a or self.only_b or self.differing or self.doubled)

    def to_dict(self) -> dict[str, Any]:
        return {"equal": self.equal, **asdict(self)}


class Diff:
    """The difference of two tables: figures at once, rows lazily.

    A ``with`` block, or ``close()``, frees what Spark has cached for the rows.
    """

    def __init__(self, sides: Sequence[Side], compared: Compared, *, whole: bool) -> None:
        self._sides = sides
        self._whole = whole
        self._stored: list[DataFrame] = []
        self._clean = not len(compared.differing)
        share = len(compared.differing) / compared.ranges
        spark = sides[0].df.sparkSession
        ranges = from_arrow(spark, pa.table({RANGE: compared.differing})) if share <= ALL_SHARE else None
        self._suspects = [side.suspects(ranges, whole=whole) for side in sides]
        if not self._clean and share <= KEPT_SHARE:
            self._suspects = [self._store(suspects) for suspects in self._suspects]
        self._delta = delta(self._suspects, whole=whole)
        if not self._clean:
            first = to_arrow(self._delta.limit(DELTA_MAX + 1))
            is_small = first.num_rows <= DELTA_MAX
            self._delta = from_arrow(spark, first) if is_small else self._store(self._delta)
        self.summary = Summary(
            rows_a=compared.a.count,
            rows_b=compared.b.count,
            fingerprint_a=str(compared.a),
            fingerprint_b=str(compared.b),
            ranges=compared.ranges,
            ranges_differing=len(compared.differing),
            **({} if self._clean else self._counts()),
        )

    def _store(self, df: DataFrame) -> DataFrame:
        self._stored.append(df)
        return df.persist()

    def _counts(self) -> dict[str, int]:
        a, b = (F.col(name) for name in _KEYED)
        more = [F.max(F.col(_N[i]) - F.col(_N[1 - i])).alias(_MORE[i]) for i in (0, 1)]
        keys = self._delta.groupBy(_KEY).agg(*(F.any_value(name).alias(name) for name in _KEYED), *more)
        cells = {"repeated_a": F.count_if(a > 1), "repeated_b": F.count_if(b > 1)}
        if self._whole:  # the row is the key
            cells |= {"only_a": F.sum(F.when(a > b, a - b)), "only_b": F.sum(F.when(b > a, b - a))}
        else:
            cells |= {"only_a": F.sum(F.when(b == 0, a)), "only_b": F.sum(F.when(a == 0, b))}
            cells |= {"differing": F.count_if(F.least(*_MORE) > 0), "doubled": F.count_if((a > 0) & (b > 0) & (a != b))}
        row = keys.agg(*(cell.alias(name) for name, cell in cells.items())).collect()[0]
        return {name: int(row[name] or 0) for name in cells}

    @property
    def equal(self) -> bool:
        return self.summary.equal

    @property
    def only_a(self) -> DataFrame:
        """The rows of A that B lacks, as they are in A; of a row that A holds more often, the surplus copies."""
        return self._only(0)

    @property
    def only_b(self) -> DataFrame:
        """The rows of B that A lacks."""
        return self._only(1)

    def _only(self, side: int) -> DataFrame:
        """The rows of a side whose key the other lacks; without a key, the surplus copies."""
        df = self._sides[side].df
        if self._clean:
            return df.limit(0)
        if self._whole:
            rows = self._surplus(side)
        else:  # the other side has none of these keys, so all their rows count
            alone = self._delta.where(F.col(_KEYED[1 - side]) == 0).select(_ROW)
            rows = self._suspects[side].join(alone, _ROW, "left_semi")
        return rows.select(*(F.col(quoted(name)) for name in df.columns))

    @property
    def differing(self) -> DataFrame:
        """Keys with different content: the key, ``differs_in`` (the columns), ``row_a`` and ``row_b``.

        If a key has several rows, those that both hold are left out, and the others are paired as far as possible.
        """
        kinds, differs = self._sides[0].kinds, []
        for name in (name for name in kinds if name not in self._sides[0].key):
            cells = [form(F.col(side).getField(name), kinds[name]) for side in "ab"]
            differs.append(F.when(cells[0] != cells[1], F.lit(name)))
        columns = F.array_compact(F.array(*differs)) if differs else F.array().cast("array<string>")
        outcome = zip((columns, F.col("a"), F.col("b")), OUTCOME, strict=True)
        return self._paired("inner").select(*self._names(), *(cell.alias(name) for cell, name in outcome))

    @property
    def doubled(self) -> DataFrame:
        """The keys that both have, one of them more often: the key, ``rows_a`` and ``rows_b``."""
        alone = self._paired("full_outer").where(F.col("a").isNull() | F.col("b").isNull())
        rows = (F.coalesce(f"a{name}", f"b{name}").alias(own) for name, own in zip(_KEYED, ROWS, strict=True))
        return alone.dropDuplicates([_KEY]).select(*self._names(), *rows)

    def _paired(self, how: str) -> DataFrame:
        a, b = (self._contents(i, name) for i, name in enumerate("ab"))
        return a.join(b, [_KEY, _I], how)

    def _names(self) -> list[Column]:
        key = self._sides[0].key
        return [F.coalesce(F.col("a_key").getField(name), F.col("b_key").getField(name)).alias(name) for name in key]

    def _contents(self, side: int, name: str) -> DataFrame:
        """The rows of shared keys that the other side lacks: key and content as structs, numbered within the key."""
        cells, key = self._sides[side].cells, self._sides[side].key
        surplus = self._surplus(side).where((F.col(_KEYED[0]) > 0) & (F.col(_KEYED[1]) > 0))
        if self._clean or self._whole:
            surplus = surplus.limit(0)
        rest = [column for column in cells if column not in key] or key  # an empty struct cannot be written
        content = F.struct(*(cells[column].alias(column) for column in rest))
        keyed = F.struct(*(cells[column].alias(column) for column in key))
        nth = F.row_number().over(Window.partitionBy(_KEY).orderBy(_ROW))
        often = (F.col(each).alias(f"{name}{each}") for each in _KEYED)
        return surplus.select(_KEY, nth.alias(_I), keyed.alias(f"{name}_key"), content.alias(name), *often)

    def _surplus(self, side: int) -> DataFrame:
        """The rows that a side holds more often, as many copies as it has more."""
        more = F.col(_N[side]) - F.col(_N[1 - side])
        rows = self._suspects[side].join(self._delta.where(more > 0).drop(_KEY), _ROW)
        nth = F.row_number().over(Window.partitionBy(_ROW).orderBy(_ROW))
        return rows.withColumn(_I, nth).where(F.col(_I) <= more)

    def close(self) -> None:
        for df in self._stored:
            df.unpersist()
        self._stored.clear()

    def __enter__(self) -> Diff:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def sampled(df: DataFrame, names: Iterable[str] | None, most: int) -> list[dict[str, Any]]:
    """The first rows, of these columns or all, as values that JSON can hold."""
    columns = [quoted(name) for name in (df.columns if names is None else names)]
    rows = df.select(*columns).limit(most).collect()
    return [{name: _plain(value) for name, value in row.asDict(recursive=True).items()} for row in rows]


def spoken(row: Mapping[str, Any]) -> str:
    r"""A row, or an id, as one line of text without control characters.

    >>> spoken({"device": "a\n", "ts": 5})
    'device a?, ts 5'
    """
    words = ", ".join(f"{name} {'null' if value is None else value}" for name, value in row.items())
    return plain(words, SPOKEN_MAX)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)
