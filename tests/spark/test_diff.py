"""Two tables compared: exactly the rows that they do not share, by every way of hashing, whatever the values are."""

import datetime as dt
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark import diff, differences
from onefold.spark.diff_files import DiffTable, append, read_table
from onefold.spark.fingerprints import (
    RANGE,
    Fingerprint,
    bits_for,
    common,
    compare,
    fingerprint,
    form,
    hashable,
    null_masks,
    range_of,
    row_form,
    with_words,
    word_names,
)

NAN, OTHER_NAN = float("nan"), np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf8\xff", "<f8")[0].item()
UTC = dt.UTC

# Values that differ from each other, of each type; a list inside is several ways to say one value.
DISTINCT: dict[str, list[Any]] = {
    "int": [None, 0, 1, -1, 12, 2**31 - 1, -(2**31)],
    "bigint": [None, 0, 1, 11, 2**63 - 1, -(2**63)],
    "boolean": [None, True, False],
    "double": [None, [0.0, -0.0], 1.0, -1.0, [NAN, OTHER_NAN], float("inf"), 5e-324, 0.1, 0.1 + 2**-56, 1e308],
    "float": [None, [0.0, -0.0], 1.5, [NAN], float("-inf"), 1.401298464324817e-45],
    "decimal(38,18)": [None, Decimal(0), Decimal("1.5"), Decimal("1E-18"), Decimal("-1E-18"), Decimal(10**19)],
    "string": [None, "", "n", "a", "a;", "1:a", "ä", "\0", "0", "null", "a" * 40, "a" * 41],
    "binary": [None, b"", b"n", b"\x00", b"\x00\x00", b"0", b"\xff;"],
    "date": [None, dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    "timestamp": [
        None,
        dt.datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        dt.datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=UTC),
        dt.datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        dt.datetime(2024, 10, 27, 1, 30, tzinfo=UTC),  # half past one in Berlin, twice
    ],
    "timestamp_ntz": [None, dt.datetime(2024, 3, 31, 2, 30), dt.datetime(2024, 3, 31, 3, 30)],
    "interval day to second": [None, dt.timedelta(0), dt.timedelta(microseconds=1), dt.timedelta(days=-1)],
    "array<string>": [None, [[]], [[""]], [[None]], [["a", "b"]], [["a,b"]], [["ab"]], [["b", "a"]], [["t1:a"]]],
    "array<array<int>>": [None, [[]], [[[]]], [[[1], [2]]], [[[1, 2]]], [[[], [1, 2]]], [[None]], [[[None]]]],
    "struct<a:string,b:string>": [None, (None, None), ("", None), (None, ""), ("a", "b"), ("ab", ""), ("", "ab")],
    "map<string,int>": [None, [{}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{"a": 2, "b": 1}], [{"a": None}]],
}  # fmt: skip


def cells(kind):
    """(class, value) of all values: two of one class are equal, all others are not."""
    for number, value in enumerate(DISTINCT[kind]):
        for way in value if isinstance(value, list) else [value]:
            yield number, way


def every_kind(spark):
    """A table with a column per type, and the class of each of its values; shorter columns begin anew."""
    columns = [list(cells(kind)) for kind in DISTINCT]
    length = max(map(len, columns))
    repeated = [(column * length)[:length] for column in columns]
    classes = [[number for number, _ in column] for column in repeated]
    rows = list(zip(*([value for _, value in column] for column in repeated), strict=True))
    return classes, spark.createDataFrame(rows, ", ".join(f"c{i} {kind}" for i, kind in enumerate(DISTINCT)))


def told_apart(values, classes):
    """Whether two values are equal exactly where their classes are."""
    return len(set(values)) == len(set(classes)) == len(set(zip(values, classes, strict=True)))


def test_a_form_is_equal_exactly_where_the_values_are(spark):
    classes, df = every_kind(spark)
    pairs = [(F.col(field.name), field.dataType) for field in df.schema.fields]
    wanted = [form(*pair) for pair in pairs] + [F.xxhash64(pair[0].isNull(), hashable(*pair)) for pair in pairs]
    found = zip(*df.select(*wanted).collect(), strict=True)
    for values, known, kind in zip(found, classes * 2, [*DISTINCT] * 2, strict=True):
        assert told_apart(values, known), kind


def test_a_form_does_not_depend_on_the_settings_of_the_session(spark):
    row = "timestamp'2024-03-31 01:30:00Z' t, timestamp_ntz'2024-03-31 02:30:00' n, date'2024-03-31' d, 1e-18BD m"
    df = spark.sql(f"select {row}")
    cells = row_form((F.col(field.name), field.dataType) for field in df.schema.fields)
    found = set()
    for zone, ansi in (("UTC", "true"), ("Europe/Berlin", "false")):
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            found.add(df.select(cells).collect()[0][0])
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            spark.conf.set("spark.sql.ansi.enabled", "true")
    assert found == {"T1711848600000000;v19:2024-03-31 02:30:00D19813;m0.000000000000000001;"}


def test_neighbours_do_not_run_into_each_other(spark):
    rows = [("a", "b"), ("ab", ""), ("", "ab"), (None, "ab"), ("ab", None), ("t1:b", "a"), ("a", "t1:b"), (None, None)]
    df = spark.createDataFrame(rows, "x string, y string")
    cells = [(F.col(name), T.StringType()) for name in df.columns]
    told = df.select(row_form(cells), F.xxhash64(*null_masks([F.col("x"), F.col("y")]), "x", "y")).collect()
    assert [len(set(column)) for column in zip(*told, strict=True)] == [len(rows)] * 2


def test_types_are_brought_together_only_where_nothing_is_lost():
    kinds = [
        T.ByteType(),
        T.LongType(),
        T.FloatType(),
        T.DoubleType(),
        T.DecimalType(10, 2),
        T.StringType(),
        T.DateType(),
    ]
    assert common(kinds[0], kinds[1]) == T.LongType()
    assert common(kinds[2], kinds[3]) == T.DoubleType()
    assert common(kinds[4], T.DecimalType(5, 4)) == T.DecimalType(12, 4)
    assert common(kinds[1], kinds[4]) == T.DecimalType(22, 2)
    assert common(T.DecimalType(38, 0), T.DecimalType(38, 38)) is None
    assert common(kinds[1], kinds[3]) is None
    assert common(kinds[5], kinds[6]) is None
    assert common(kinds[5], kinds[1]) is None
    nested = T.ArrayType(T.StructType([T.StructField("a", T.IntegerType(), False)]), False)
    wider = T.ArrayType(T.StructType([T.StructField("a", T.LongType())]))
    assert common(nested, wider) == wider


def random_tables(spark, cases):
    """Many small pairs of tables as one pair of large ones: (case, key, text, value), few of each, so many equal."""
    chance = random.Random(7)
    texts, values = [None, "", "x", "y"], [None, 0.0, -0.0, NAN, 1.0]
    sides: list[list[tuple]] = [[], []]
    for case in range(cases):
        for rows in sides:
            for _ in range(chance.randrange(10)):
                rows.append((case, chance.randrange(5), chance.choice(texts), chance.choice(values)))
        if chance.random() < 0.3:
            sides[1] += [row for row in sides[0] if row[0] == case]
    frames = [spark.createDataFrame(rows, "c int, k int, s string, v double").coalesce(1) for rows in sides]
    return sides, frames


def told(row):
    """A row as two that are equal print alike."""
    case, key, text, value = row
    return (case, key, text, "null" if value is None else str(value + 0.0))


def alone(found):
    """The rows that only A has, and those that only B has, in one job."""
    both = found.only_a.withColumn("side", F.lit(0)).unionAll(found.only_b.withColumn("side", F.lit(1))).collect()
    return [Counter(told(row[:-1]) for row in both if row.side == side) for side in (0, 1)]


def test_whole_rows_are_compared_as_bags(spark):
    sides, frames = random_tables(spark, 300)
    a, b = (Counter(map(told, rows)) for rows in sides)
    with diff(*frames, buckets=65_536, hash="sha256") as found:
        assert alone(found) == [a - b, b - a]
        assert (found.summary.only_a, found.summary.only_b) == ((a - b).total(), (b - a).total())
        assert found.summary.repeated_a == sum(1 for row, n in a.items() if n > 1 and n != b[row])
        assert not found.equal


def test_by_key_each_key_is_missing_surplus_differing_or_the_same(spark, monkeypatch):
    monkeypatch.setattr(differences, "DELTA_MAX", 10)  # and so many differ that they do not come to the driver
    sides, frames = random_tables(spark, 300)
    a: dict[tuple, Counter] = {}
    b: dict[tuple, Counter] = {}
    for rows, keyed in zip(sides, (a, b), strict=True):
        for row in map(told, rows):
            keyed.setdefault(row[:2], Counter())[row] += 1
    with diff(*frames, key=["c", "k"], buckets=2) as found:
        assert alone(found) == [
            sum((ours[key] for key in ours.keys() - theirs.keys()), Counter()) for ours, theirs in ((a, b), (b, a))
        ]
        more = {key: (a[key] - b[key], b[key] - a[key]) for key in a.keys() & b.keys()}
        changed = {key for key, (ours, theirs) in more.items() if ours and theirs}
        doubled = {key: (a[key].total(), b[key].total()) for key in more if a[key].total() != b[key].total()}
        differing = found.differing.collect()
        assert {(row.c, row.k): (row.rows_a, row.rows_b) for row in found.doubled.collect()} == doubled
        assert found.doubled.count() == len(doubled)
    assert {(row.c, row.k) for row in differing} == changed
    assert (found.summary.differing, found.summary.doubled) == (len(changed), len(doubled))
    for key in changed:
        pairs = [row for row in differing if (row.c, row.k) == key]
        assert len(pairs) == min(rows.total() for rows in more[key])
        for side, rows in zip(("row_a", "row_b"), more[key], strict=True):
            assert Counter(told((*key, *row[side])) for row in pairs) <= rows
    for row in differing:
        ours, theirs = told((0, 0, *row.row_a)), told((0, 0, *row.row_b))
        assert row.differs_in == [name for name, x, y in zip("sv", ours[2:], theirs[2:], strict=True) if x != y]


@pytest.fixture(scope="module")
def big(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("big")
    n = np.arange(5_000)
    table = pa.table({"id": n, "name": [f"row {i}" for i in n], "value": n / 7})
    pq.write_table(table, folder / "a.parquet")
    changed = table.set_column(1, "name", pa.array([f"row {i}" if i != 777 else "other" for i in n]))
    changed = changed.set_column(2, "value", pa.array(np.where(n == 888, 0, n / 7)))
    pq.write_table(changed.filter(pa.compute.not_equal(table["id"], 5)), folder / "b.parquet")
    return spark.read.parquet(str(folder / "a.parquet")), spark.read.parquet(str(folder / "b.parquet"))


def test_only_the_ranges_that_differ_are_looked_at_and_columns_that_are_not_asked_for_are_not(big):
    with diff(*big, key=["id"], columns=["name"], buckets=256) as found:
        assert (found.summary.ranges, found.summary.ranges_differing) == (256, 2)
        assert (found.summary.only_a, found.summary.only_b, found.summary.differing) == (1, 0, 1)
        assert found.summary.fingerprint_a != found.summary.fingerprint_b


def test_fingerprints_do_not_depend_on_the_order_of_the_rows_and_the_number_of_ranges(big):
    values = [F.col("id"), F.col("name")]
    found = compare(ranged(big[0], values, 9), ranged(big[0].repartition(3), values, 9), 9)
    assert len(found.differing) == 0
    assert found.a == found.b == fingerprint(big[0], values)


def ranged(df, values, bits):
    return with_words(df.withColumn(RANGE, range_of(values[:1], bits)), values).select(RANGE, *word_names())


def test_copies_never_cancel_each_other(spark):
    tables = [spark.createDataFrame(rows, "k int") for rows in ([(1,), (2,), (2,), (3,)], [(1,), (3,), (4,), (4,)])]
    a, b = (fingerprint(df, [F.col("k")]) for df in tables)
    assert (a.count, a.xors) == (b.count, b.xors)
    assert a != b


def test_tables_without_rows_are_equal_and_have_no_differing_rows(spark):
    empty = spark.createDataFrame([], "k int, v string")
    with diff(empty, empty, key=["k"]) as found:
        assert found.equal
        assert found.summary.rows_a == 0
        assert found.differing.columns == ["k", "differs_in", "row_a", "row_b"]


def test_a_fingerprint_of_nothing_and_of_something_differ():
    assert str(Fingerprint()) != str(Fingerprint(1))
    assert Fingerprint.of([None] * 7) == Fingerprint()


def test_there_are_more_ranges_for_larger_tables(spark, big):
    assert bits_for([big[0]]) < bits_for([spark.range(10**9)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ["nope"]}, "no column 'nope' in the first table"),
        ({"key": []}, "key is empty"),
        ({"key": "nope"}, "no column 'nope' in the first table"),
        ({"buckets": 100}, "power of two"),
        ({"hash": "md5"}, "hash is 'md5'"),
    ],
)
def test_misuse_is_named(big, options, said):
    with pytest.raises(Misuse, match=said):
        diff(*big, **options)


def test_columns_that_cannot_be_compared_are_named(spark):
    a, b = spark.createDataFrame([(1, "x")], "k int, v string"), spark.createDataFrame([(1, 2)], "k int, v int")
    with pytest.raises(Misuse, match="column 'v' is string in the first table and int in the second"):
        diff(a, b)
    with pytest.raises(Misuse, match="column 'w' is only in the second table"):
        diff(a, a.withColumn("w", F.lit(1)))
    with pytest.raises(Misuse, match="'row_a'"):
        diff(a.withColumnRenamed("k", "row_a"), a.withColumnRenamed("k", "row_a"), key=["row_a"])


def test_what_a_table_of_text_would_not_give_back_is_not_appended(spark, tmp_path):
    (tmp_path / "a=b.csv").write_text("id,name,at\n1,x,2024-01-01T00:00:00.000Z\n")
    left = f"_onefold_repair_{'0' * 32}"
    (tmp_path / left).mkdir()
    (tmp_path / left / "left by one that died.csv").write_text("id,name,at\n9,,\n")
    table = DiffTable(str(tmp_path), "csv")
    at, schema = dt.datetime(2024, 1, 1, 0, 0, 0, 7), "id long, name string, at timestamp"
    rows = spark.createDataFrame([(2, ' "y", z ', at), (3, None, None)], schema)
    append(spark, rows, table)
    assert sorted(read_table(spark, table).collect())[1:] == rows.collect()
    before = sorted(tmp_path.iterdir())
    bad = [(4, "two\nlines", at), (2**40, "y", at), (5, "y", at)]
    with pytest.raises(Misuse, match=r"as csv cannot keep 2 rows, such as \[id \d+, name (two\?lines|y), at 2024"):
        append(spark, spark.createDataFrame(bad, schema), table)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(Misuse, match=r"column 'name' of .* is not in the other table"):
        append(spark, rows.drop("name"), table)
