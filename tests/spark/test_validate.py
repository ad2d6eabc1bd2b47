import pytest

from onefold.chains.columns import NO_PREVIOUS, refused
from onefold.chains.rules import SEQUENCE_MAX, TIMESTAMP_MAX, pack
from onefold.spark.columns import CORRUPT, ChainColumns, packed

NAMES = ChainColumns(key=("id",))
COLUMNS = ("id", "timestamp", "sequence", "previous_timestamp", "previous_sequence", "arrival")
GOOD = {"id": "a", "timestamp": 100, "sequence": 2, "previous_timestamp": 99, "previous_sequence": 1, "arrival": 100}
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

ROWS: dict[str, tuple[dict, int | str | None]] = {
    "a good row": ({}, pack((100, 2))),
    "the largest numbers": ({"timestamp": TIMESTAMP_MAX, "sequence": SEQUENCE_MAX, "arrival": TIMESTAMP_MAX}, LONG_MAX),
    "no previous": ({"previous_timestamp": None, "previous_sequence": None}, pack((100, 2))),
    "no arrival": ({"arrival": None}, pack((100, 2))),
    "just within the jump": ({"arrival": 50}, pack((100, 2))),
    "an arrival in the far future": ({"arrival": LONG_MAX}, pack((100, 2))),
    "a previous that is not below": ({"previous_timestamp": 100, "previous_sequence": 2}, "bad_numbering"),
    "no key": ({"id": None}, "null_key"),
    "no key and no number": ({"id": None, "timestamp": None}, "null_key"),
    "no timestamp": ({"timestamp": None}, "bad_number"),
    "no sequence": ({"sequence": None}, "bad_number"),
    "half a previous": ({"previous_timestamp": None}, "bad_number"),
    "the other half": ({"previous_sequence": None}, "bad_number"),
    "a negative timestamp": ({"timestamp": -1}, "bad_number"),
    "a negative sequence": ({"sequence": LONG_MIN}, "bad_number"),
    "a negative previous": ({"previous_timestamp": -1}, "bad_number"),
    "a timestamp of 2^43": ({"timestamp": TIMESTAMP_MAX + 1}, "number_out_of_range"),
    "the largest long": ({"timestamp": LONG_MAX}, "number_out_of_range"),
    "a sequence of 2^20": ({"sequence": SEQUENCE_MAX + 1}, "number_out_of_range"),
    "a previous of 2^43": ({"previous_timestamp": TIMESTAMP_MAX + 1}, "number_out_of_range"),
    "a previous sequence of 2^20": ({"previous_sequence": SEQUENCE_MAX + 1}, "number_out_of_range"),
    "a jump": ({"arrival": 49}, "jump_too_far"),
    "an arrival before all time": ({"arrival": LONG_MIN}, "jump_too_far"),
    "a jump to a bad number": ({"arrival": 0, "previous_timestamp": 100, "previous_sequence": 2}, "bad_numbering"),
}


def table_of(spark, rows, kind="long"):
    numbers = ", ".join(f"{name} {kind}" for name in COLUMNS[1:])
    return spark.createDataFrame([tuple(row[name] for name in COLUMNS) for row in rows], f"id string, {numbers}")


def packed_rows(df, names=NAMES, jump_max_ms=50):
    found = packed(df, names, jump_max_ms)
    return df.select(found.previous.alias("p"), found.number.alias("n"), found.arrival.alias("a")).collect()


@pytest.mark.parametrize("kind", ["long", "string"])
def test_a_row_gets_its_packed_number_or_the_first_reason_against_it(spark, kind):
    rows = [{**GOOD, **change} for change, _ in ROWS.values()]
    if kind == "string":
        rows = [{n: v if v is None or n == "id" else str(v) for n, v in row.items()} for row in rows]
    got = dict(zip(ROWS, (row.n for row in packed_rows(table_of(spark, rows, kind))), strict=True))
    assert got == {name: refused(wanted) if isinstance(wanted, str) else wanted for name, (_, wanted) in ROWS.items()}


def test_text_that_is_no_number_and_no_time_is_refused_as_such_whatever_the_ansi_mode(spark):
    texts = ("abc", "12.5", "", "1e3", "0x10", "9223372036854775808", "NaN", "--1", "1 2")
    before = spark.conf.get("spark.sql.ansi.enabled")
    row = {name: value if name == "id" else str(value) for name, value in GOOD.items()}
    rows = [{**row, name: text} for text in texts for name in COLUMNS[1:]]
    reasons = [refused(f"bad_{what}") for what in ("number", "number", "number", "number", "time")] * len(texts)
    try:
        for ansi in ("true", "false"):
            spark.conf.set("spark.sql.ansi.enabled", ansi)
            assert [row.n for row in packed_rows(table_of(spark, rows, "string"))] == reasons
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def test_what_crosses_to_python_holds_no_null(spark):
    rows = [dict.fromkeys(COLUMNS), {**GOOD, "previous_timestamp": None, "previous_sequence": None}]
    nothing, no_previous = packed_rows(table_of(spark, rows))
    assert (nothing.p, nothing.n) == (NO_PREVIOUS, refused("null_key"))
    assert no_previous.p == NO_PREVIOUS


def test_without_the_columns_the_sequence_is_zero_and_there_is_no_previous(spark):
    names = ChainColumns(key=("id",), sequence=None, previous_timestamp=None, previous_sequence=None, arrival=None)
    df = table_of(spark, [GOOD]).select("id", "timestamp")
    assert [tuple(row) for row in packed_rows(df, names, None)] == [(NO_PREVIOUS, pack((100, 0)), pack((100, 0)))]


def test_an_arrival_may_be_a_timestamp(spark):
    df = table_of(spark, [GOOD]).selectExpr("* except (arrival)", "timestamp_millis(1704067200123) as arrival")
    assert packed_rows(df)[0].a == 1_704_067_200_123_000


def test_a_row_that_could_not_be_read_is_malformed_whatever_else_it_is(spark):
    df = table_of(spark, [GOOD, dict.fromkeys(COLUMNS)]).selectExpr("*", f"if(id is null, '{{oops', null) as {CORRUPT}")
    assert [row.n for row in packed_rows(df)] == [pack((100, 2)), refused("malformed")]
