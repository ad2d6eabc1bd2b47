"""Times may be written in many ways: whole numbers, decimals, timestamps, dates, text. What they say is the same."""

import json
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from onefold import ChainDetector
from onefold.chains import ANSWERS
from onefold.chains.columns import ColumnarDetector
from onefold.chains.rules import IN_ORDER, NEW_CHAIN, OPENS_GAP, SEEN
from onefold.spark.chains import ChainsEngine, judge_chains
from onefold.spark.columns import ChainColumns, ProducerColumns, ReceptionColumns, in_order, milliseconds, moment
from onefold.spark.explanations import explain
from onefold.spark.figures import Figures
from onefold.spark.gaps import LOWER, UPPER, missing_ranges
from onefold.spark.host import KeyColumns, judge_partition
from onefold.spark.ingest import SourceSpec
from onefold.spark.producers import judge_producers
from onefold.spark.receptions.judge import judge_receptions
from onefold.spark.run import check, run
from onefold.spark.stream import Streaming, run_stream
from onefold.spark.window import advise_window
from tests.lib.examples import examples

NOW_MS = 1_772_352_000_000  # 2026-03-01 08:00:00, half a night before the clocks of New York are set
NAMES = ChainColumns(key=("chain",), timestamp="t", sequence=None, previous_timestamp="p", previous_sequence=None,
                     arrival="a")  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def iso(micros: int, digits: int = 6) -> str:
    return at(micros).strftime("%Y-%m-%dT%H:%M:%S.%f")[: 20 + digits]


def offset(micros: int) -> str:
    return at(micros).astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(timespec="microseconds")


FINE: dict[str, tuple[str, Callable[[int], object]]] = {
    "a timestamp": ("timestamp", at),
    "a timestamp without a zone": ("timestamp_ntz", lambda micros: at(micros).replace(tzinfo=None)),
    "text with Z": ("string", lambda micros: iso(micros) + "Z"),
    "text with an offset": ("string", offset),
    "text without a zone": ("string", lambda micros: iso(micros).replace("T", " ")),
    "text to the nanosecond": ("string", lambda micros: iso(micros) + "000Z"),
}
"""How times are written to the microsecond: the type, and the value of so many microseconds since 1970."""

FORMS: dict[str, tuple[str, Callable[[int], object]]] = {
    "whole numbers": ("long", lambda micros: micros // 1000),
    "numbers of 64 bits without a sign": ("decimal(20,0)", lambda micros: Decimal(micros // 1000)),
    "decimals": ("decimal(18,3)", lambda micros: Decimal(micros // 1000)),
    "numbers in text": ("string", lambda micros: str(micros // 1000)),
    "text to the millisecond": ("string", lambda micros: iso(micros, 3) + "Z"),
    **FINE,
}
"""The same of times that are whole milliseconds."""


@pytest.fixture(autouse=True)
def abroad(spark):
    """What a time says must not depend on the time zone of the session."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def judged(spark, rows, forms, jump_max_ms, more=()):
    """What rows of (chain, time, previous, arrival), in microseconds, are answered in each form, in one job of Spark.

    The judge's own steps, but for the shuffle: the integers of every form, put in order and judged.
    """
    kinds = [kind for kind, _ in forms.values()]
    schema = ", ".join(f"{role}{k} {kind}" for k, kind in enumerate(kinds) for role in "tpa")
    cells = [(row[0], *(None if micros is None else written(micros) for _, written in forms.values()
                        for micros in row[1:])) for row in rows]  # fmt: skip
    df = spark.createDataFrame(cells, f"chain string, {schema}")
    limit: Any = "off" if jump_max_ms is None else jump_max_ms
    parts = [ChainsEngine(columns=named(k), jump_max_ms=limit).integers(df) for k in range(len(forms))]
    read = reduce(lambda table, part: table.transform(part.read), parts, df)
    found = read.select(*(F.array(*part.columns) for part in parts)).collect()
    answers = {}
    for k, form in enumerate(forms):
        columns = KeyColumns.of(np.array([row[k] for row in found], np.int64).T)
        (codes,) = judge_partition(iter([columns]), ColumnarDetector().judge, 1_000)
        answers[form] = sorted((str(row), str(ANSWERS[code])) for row, code in zip(rows, codes, strict=True))
    return answers


def named(k):
    return ChainColumns(key=("chain",), timestamp=f"t{k}", sequence=None, previous_timestamp=f"p{k}",
                        previous_sequence=None, arrival=f"a{k}")  # fmt: skip


def messages(step):
    """Messages of some chains as a shuffled, damaged, partly repeated walk; times in multiples of ``step`` us."""
    gaps = st.lists(st.integers(1, 3_000), min_size=1, max_size=20)
    return st.builds(walk, st.lists(gaps, min_size=1, max_size=12), st.randoms(use_true_random=False), st.just(step))


def walk(chains, chance: random.Random, step):
    rows = []
    for chain, gaps in enumerate(chains):
        number = NOW_MS * 1000
        for gap in gaps:
            previous, number = number, number + gap * step
            arrival = number + chance.choice((0, 0, 0, 50, -1, -1_000_000)) * step
            named = chance.choice((previous, previous, previous, None, number))
            rows.append((str(chain), number, named, chance.choice((arrival, arrival, arrival, None, -arrival))))
    rows += chance.choices(rows, k=len(rows) // 2)
    chance.shuffle(rows)
    return rows


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(messages(1000))
def test_the_same_messages_get_the_same_answers_however_their_times_are_written(spark, rows):
    found = judged(spark, rows, FORMS, 900_000)
    for form, answers in found.items():
        assert answers == found["whole numbers"], form


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(messages(1))
def test_messages_that_are_microseconds_apart_are_told_apart_in_every_form(spark, rows):
    found = judged(spark, rows, FINE, None)
    for form, answers in found.items():
        assert answers == expected(rows), form


def expected(rows):
    """What the scalar detector answers if the rows come in the order of judgement."""
    chains: defaultdict[str, ChainDetector] = defaultdict(ChainDetector)
    answers = []
    for chain, time, previous, arrival in sorted(rows, key=place):
        names = None if previous is None else divmod(previous, 1000)
        answers.append((str((chain, time, previous, arrival)), str(chains[chain].judge(names, divmod(time, 1000)))))
    return sorted(answers)


def place(row):
    chain, time, previous, arrival = row
    return chain, arrival is not None, arrival or 0, time, -1 if previous is None else previous


TEXTS = {
    "1772352000323": (NOW_MS + 323, 0),
    " 1772352000323 ": (NOW_MS + 323, 0),
    "-5": (-5, 0),
    "2026": (2026, 0),  # a whole number is one, also if it looks like a year
    "2026-03-01": (NOW_MS - 8 * 3_600_000, 0),
    "2026-03-01T08:00": (NOW_MS, 0),
    "2026-03-01T08:00Z": (NOW_MS, 0),
    "2026-03-01 09:00+01:00": (NOW_MS, 0),
    "2026-03-01T08:00:00Z": (NOW_MS, 0),
    "2026-03-01 08:00:00": (NOW_MS, 0),
    "2026-03-01T08:00:00.323Z": (NOW_MS + 323, 0),
    "2026-03-01T08:00:00.323 Z": (NOW_MS + 323, 0),
    "2026-03-01T08:00:00.323456Z": (NOW_MS + 323, 456_000),
    "2026-03-01T08:00:00.323456789Z": (NOW_MS + 323, 456_789),
    "2026-03-01T08:00:00.32345678900Z": (NOW_MS + 323, 456_789),
    "2026-03-01T08:00:00.3234561": (NOW_MS + 323, 456_100),
    "2026-03-01T09:00:00+0100": (NOW_MS, 0),
    "2026-03-01T09:00:00+01": (NOW_MS, 0),
    "2026-03-01 09:00:00 Europe/Berlin": (NOW_MS, 0),
    "1969-12-31T23:59:59.999999Z": (-1, 999_000),
    "2026-03-29 02:30:00": (NOW_MS + 28 * 86_400_000 - 5 * 3_600_000 - 1_800_000, 0),  # not there in half of Europe
    "2026-03-08 02:30:00": (NOW_MS + 7 * 86_400_000 - 5 * 3_600_000 - 1_800_000, 0),  # not there in New York
    "2026-03-01T08:00:00.1234567891Z": None,  # beyond nanoseconds nothing can be told
    "2026-02-30T00:00:00Z": None,
    "2026-03-01T25:00:00Z": None,
    "2026-03-01T08:00:00\t": None,
    "08:00:00": None,  # Spark would take it for a time of today
    "T08:00:00Z": None,
    "2026-03": None,
    "yesterday": None,
    "": None,
    "12.5": None,
    "9223372036854775808": None,
}
"""What a text says: milliseconds, and nanoseconds below them; None: no time."""


def read(df, name="v"):
    ms, below = moment(df, name)
    return [tuple(row) for row in df.select(ms, F.lit(0) if below is None else below).collect()]


def test_a_text_is_a_whole_number_or_an_iso_time_whatever_the_zone_of_the_session(spark):
    df = spark.createDataFrame([(text,) for text in TEXTS], "v string")
    found = dict(zip(TEXTS, read(df), strict=True))
    assert found == {text: (None, None) if said is None else said for text, said in TEXTS.items()}


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("tinyint", [5, -5, None], [(5, 0), (-5, 0), (None, 0)]),
        ("int", [2**31 - 1], [(2**31 - 1, 0)]),
        ("decimal(20,0)", [Decimal(7), Decimal(2**64 - 1)], [(7, 0), (None, 0)]),
        ("decimal(6,2)", [Decimal("7.00"), Decimal("7.01")], [(7, 0), (None, 0)]),
        ("decimal(38,0)", [Decimal(10**37), Decimal(-(10**37))], [(None, 0), (None, 0)]),
        ("date", [date(2026, 3, 1), date(1969, 12, 31)], [(NOW_MS - 8 * 3_600_000, 0), (-86_400_000, 0)]),
        ("timestamp", [at(-1), None], [(-1, 999_000), (None, None)]),
        ("timestamp_ntz", [datetime(2026, 3, 8, 2, 30)], [(1_772_937_000_000, 0)]),
    ],
)
def test_each_type_of_column_says_its_time(spark, kind, values, said):
    assert read(spark.createDataFrame([(value,) for value in values], f"v {kind}")) == said


EXTREMES = {
    "long": ["-9223372036854775808", "9223372036854775807"],
    "decimal(38,0)": ["-99999999999999999999999999999999999999", "99999999999999999999999999999999999999"],
    "string": ["'-9223372036854775808'", "'9223372036854775807'", "'9999-12-31'", "'0000-01-01'"],
    "timestamp": ["timestamp_micros(-9223372036854775808)", "timestamp_micros(9223372036854775807)"],
    "timestamp_ntz": ["timestamp_ntz '-290307-01-01 00:00:00'", "timestamp_ntz '294246-12-31 00:00:00'"],
    "date": ["date_from_unix_date(-2147483648)", "date_from_unix_date(2147483647)"],
}


def test_no_value_ends_a_job_whatever_it_is(spark):
    """In one job: each of them as time, as previous time and as arrival."""
    tables = []
    for kind, values in EXTREMES.items():
        rows = spark.sql(" union all ".join(f"select 'x' as chain, cast({v} as {kind}) as v" for v in values))
        df = rows.selectExpr("chain", "v as t0", "v as p0", "v as a0")
        parts = ChainsEngine(columns=named(0), jump_max_ms=900_000).integers(df)
        tables.append(df.transform(parts.read).select(F.array(*parts.columns)))
    found = reduce(lambda a, b: a.unionAll(b), tables).collect()
    assert len(found) == sum(map(len, EXTREMES.values()))
    assert all(None not in row[0] and row[0][4] < 0 for row in found)  # each is refused


def test_numbers_in_text_keep_their_order_in_whatever_unit_they_are(spark):
    """Seconds, milliseconds, micro- and nanoseconds of our days, and times between them."""
    ordered = ["-9000000000000000000", "-1772352000000000000", "-5", "0", "1772352000", "1772352000000",
               "2026-03-01T08:00:00.000001Z", "2026-03-01T08:00:00.0008Z", "1772352000001", "8796093022206",
               "8796093022207", "8796093022208", "2249-01-01T00:00:00Z", "1772352000000000", "1772352000000000000",
               "1772352000000000001", "9214000000000000000"]  # fmt: skip
    df = spark.createDataFrame([(text,) for text in ordered], "v string")
    places = [row[0] for row in df.select(in_order(df, "v")).collect()]
    assert places == sorted(places)
    assert len(set(places)) == len(places)


def chain_of(spark, kind, rows):
    """What rows of (time, previous, arrival) of one chain are answered by the judge itself."""
    df = spark.createDataFrame([("x", i, *row) for i, row in enumerate(rows)],
                               f"chain string, i int, t {kind}, p {kind}, a {kind}")  # fmt: skip
    found = df.transform(judge_chains(NAMES, jump_max_ms="off", partitions=1)).orderBy("i").collect()
    return [f"{row.verdict} {row.reason}" for row in found]


def test_two_messages_less_than_a_millisecond_apart_are_judged_in_the_order_of_their_arrival(spark):
    """By number alone the other one would be the first of its chain."""
    df = spark.createDataFrame(
        [("x", 10, None, at(NOW_MS * 1000 + 900)), ("x", 20, None, at(NOW_MS * 1000 + 100))],
        "chain string, t long, p long, a timestamp",
    )
    judged = df.transform(judge_chains(NAMES, jump_max_ms="off", partitions=1)).collect()
    assert {row.t: row.reason for row in judged}[20] == "new_chain"


def test_an_arrival_before_1970_is_a_time_like_any_other_and_none_at_all_comes_before_it(spark):
    rows = [(30, 20, 5), (20, 10, -5), (10, None, None)]
    assert chain_of(spark, "long", rows) == ["FIRST in_order", "FIRST in_order", "FIRST new_chain"]


def test_text_that_is_no_time_is_refused_also_as_arrival_and_never_taken_for_none(spark):
    rows = [("10", None, "2026-03-01T08:00:00Z"), ("20", "10", "soon"), ("20", "10", "2026-03-01T08:00:01Z")]
    assert chain_of(spark, "string", rows) == ["FIRST new_chain", "REJECT bad_time", "FIRST in_order"]


def test_the_jump_guard_measures_from_an_arrival_that_is_text(spark):
    rows = [("x", "2026-03-01T08:15:01Z", "2026-03-01T08:00:00Z"), ("y", "2026-03-01T08:15:00Z", "2026-03-01 08:00")]
    names = ChainColumns(key=("chain",), timestamp="t", sequence=None, previous_timestamp=None, previous_sequence=None,
                         arrival="a")  # fmt: skip
    df = spark.createDataFrame(rows, "chain string, t string, a string")
    found = {row.chain: row.reason for row in df.transform(judge_chains(names, partitions=1)).collect()}
    assert found == {"x": "jump_too_far", "y": "new_chain"}


def test_a_time_below_the_millisecond_has_no_room_beside_a_sequence(spark):
    df = spark.createDataFrame(
        [("x", at(NOW_MS * 1000), 1, None, None), ("x", at(NOW_MS * 1000 + 1), 2, at(NOW_MS * 1000), 1),
         ("x", at(NOW_MS * 1000 + 1000), 3, at(NOW_MS * 1000 + 1), 2)],
        "chain string, t timestamp, s int, p timestamp, q int",
    )  # fmt: skip
    names = ChainColumns(key=("chain",), timestamp="t", sequence="s", previous_timestamp="p", previous_sequence="q",
                         arrival=None)  # fmt: skip
    found = [f"{row.verdict} {row.reason}" for row in df.transform(judge_chains(names)).orderBy("s").collect()]
    assert found == ["FIRST new_chain", "REJECT time_too_fine", "REJECT time_too_fine"]


def test_a_previous_time_may_be_written_in_another_way_than_the_time(spark):
    df = spark.createDataFrame(
        [("x", at(NOW_MS * 1000 + 7), None), ("x", at(NOW_MS * 1000 + 9), iso(NOW_MS * 1000 + 7) + "Z")],
        "chain string, t timestamp, p string",
    )  # fmt: skip
    names = ChainColumns(key=("chain",), timestamp="t", sequence=None, previous_timestamp="p", previous_sequence=None,
                         arrival=None)  # fmt: skip
    found = df.transform(judge_chains(names)).orderBy("t").collect()
    assert [row.reason for row in found] == ["new_chain", "in_order"]
    assert missing_ranges(df, names).collect() == []


RANGES = {
    "long": (lambda ms: ms, lambda low: (NOW_MS, 0, NOW_MS + 20, 0)),
    "string": (lambda ms: iso(ms * 1000) + "Z", lambda low: (NOW_MS, 0, NOW_MS + 20, 0)),
    "timestamp": (lambda ms: at(ms * 1000 + 5), lambda low: (at(NOW_MS * 1000 + 5), 0, at(NOW_MS * 1000 + 20_005), 0)),
    "timestamp_ntz": (
        lambda ms: at(ms * 1000 + 5).replace(tzinfo=None),
        lambda low: (low(NOW_MS * 1000 + 5), 0, low(NOW_MS * 1000 + 20_005), 0),
    ),
}


@pytest.mark.parametrize("kind", RANGES)
def test_what_is_missing_is_told_in_the_type_of_the_column(spark, kind):
    written, wanted = RANGES[kind]
    times = [(None, NOW_MS), (NOW_MS + 20, NOW_MS + 30)]
    rows = [("x", written(time), None if previous is None else written(previous)) for previous, time in times]
    df = spark.createDataFrame(rows, f"chain string, t {kind}, p {kind}")
    gaps = missing_ranges(df, NAMES)
    assert gaps.schema[LOWER[0]].dataType.simpleString() == ("bigint" if kind in ("long", "string") else kind)
    (row,) = gaps.collect()
    found = tuple(row[name] for name in (*LOWER, *UPPER))
    expected = wanted(lambda micros: at(micros).replace(tzinfo=None))
    assert found == tuple(v.astimezone().replace(tzinfo=None) if isinstance(v, datetime) and v.tzinfo else v
                          for v in expected)  # fmt: skip


def test_producers_and_receptions_take_times_in_text_and_refuse_what_is_none(spark):
    rows = [("x", 2, "2026-03-01T08:00:00.0002Z"), ("x", 1, "2026-03-01T08:00:00.0001Z"), ("x", 3, "soon")]
    df = spark.createDataFrame(rows, "producer string, sequence int, at string")
    judge = judge_producers(ProducerColumns(order="at"))
    assert [row.reason for row in df.transform(judge).orderBy("sequence").collect()] == ["new", "new", "bad_time"]
    heard = df.selectExpr("producer as frame", "cast(sequence as string) as station", "at")
    receptions = ReceptionColumns(time="at", kind=None, device=(), fcnt=None)
    found = heard.transform(judge_receptions(receptions)).orderBy("station").collect()
    assert sorted(row.reason for row in found) == ["bad_time", "new_frame", "other_station"]


def test_milliseconds_of_a_time_are_rounded_down(spark):
    df = spark.createDataFrame([(at(-1),), (at(1_999),)], "v timestamp")
    assert [row[0] for row in df.select(milliseconds(df, "v")).collect()] == [-1, 1]


LINES = [  # device, time, previous, arrival: one is missing, one comes twice, two come in the wrong order
    ("a", 0, None, 0), ("a", 10, 0, 10), ("a", 30, 20, 30), ("a", 10, 0, 40), ("b", 10, 0, 60), ("b", 0, None, 50),
]  # fmt: skip
FILES = {
    "milliseconds in JSON": ("json", lambda ms: NOW_MS + ms),
    "times in JSON": ("json", lambda ms: iso((NOW_MS + ms) * 1000, 3) + "Z"),
    "times in CSV": ("csv", lambda ms: offset((NOW_MS + ms) * 1000)),
}


def test_files_with_times_in_text_are_checked_as_those_with_milliseconds(spark, tmp_path):
    found = {}
    for name, (format, written) in FILES.items():
        rows = [(device, *(None if ms is None else written(ms) for ms in times)) for device, *times in LINES]
        folder = tmp_path / name
        folder.mkdir()
        if format == "json":
            keys = ("chain", "t", "p", "a")
            lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
        else:
            lines = ["chain,t,p,a", *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]
        (folder / f"part.{format}").write_text("\n".join(lines) + "\n")
        run = check(
            spark, SourceSpec(path=str(folder), format=format), ChainsEngine(columns=NAMES), say=lambda step: None
        )
        found[name] = (dict(run.tally), run.ranges)
    one, *others = found.values()
    assert [one] * len(others) == others
    assert one[0] == {NEW_CHAIN: 2, IN_ORDER: 2, OPENS_GAP: 1, SEEN: 1}
    assert [row["chain"] for row in one[1]] == ["a"]
    assert [(row["lower_timestamp"], row["upper_timestamp"]) for row in one[1]] == [(NOW_MS + 10, NOW_MS + 20)]


def test_a_run_over_timestamps_tells_and_explains_what_is_missing_as_times(spark, tmp_path):
    rows = [(chain, *(None if ms is None else at((NOW_MS + ms) * 1000 + 7) for ms in times)) for chain, *times in LINES]
    spark.createDataFrame(rows, "chain string, t timestamp, p timestamp, a timestamp").write.parquet(f"{tmp_path}/in")
    judging = ChainsEngine(columns=NAMES)
    result = run(
        spark, SourceSpec(path=f"{tmp_path}/in"), judging, f"{tmp_path}/out", figures=Figures(), say=lambda step: None
    )
    missing = {"chain": "a", "lower_timestamp": "2026-03-01T08:00:00.010007Z", "lower_sequence": 0,
               "upper_timestamp": "2026-03-01T08:00:00.020007Z", "upper_sequence": 0}  # fmt: skip
    assert result.ranges == [missing]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["missing_ranges_shown"] == [missing]
    assert result.figures is not None
    assert result.figures["strips"]["rows"][0]["shown"] == [[NOW_MS + 10, NOW_MS + 20, "missing"]]
    for word, copies, ranges in [
        ("2026-03-01T08:00:00.010007Z", 3, 0),
        ("2026-03-01T08:00:00.010008Z", 0, 1),
        ("2026-03-01T09:00:00.020007+01:00", 0, 1),
        ("2026-03-01T08:00:00.020008Z", 0, 0),
        ("yesterday", 0, 0),
    ]:
        told = explain(spark, f"{tmp_path}/out", [word], judging=judging)
        assert (told["rows"], told["missing_ranges"]) == (copies, ranges), word
    told = explain(spark, f"{tmp_path}/out", ["a"], judging=judging)
    assert told["shown"][0]["message"] == {"t": "2026-03-01T08:00:00.000007Z"}


def test_the_window_is_measured_over_times_in_text_and_goes_by_an_order_finer_than_milliseconds(spark):
    rows = [(1, "2026-03-01T08:00:05Z", "2026-03-01T08:00:00.0008Z"), (1, "2026-03-01T08:00:00Z", "2026-03-01 08:00")]
    df = spark.createDataFrame([*rows, (2, "noon", "2026-03-01")], "id int, t string, o string")
    advice = advise_window(df, key=["id"], time="t", order="o")
    assert (advice.ids, advice.copies, dict(advice.unusable)) == (1, 1, {"no_time": 1})
    assert advice.windows[0].window_ms == 5_000
    assert advice.skewed["copies"] == 0


@pytest.fixture
def streamed(spark, tmp_path):
    """What comes of a folder of Parquet files that is read as a stream by a step."""

    def run(folder, step, name):
        source = spark.readStream.schema(spark.read.parquet(folder).schema).parquet(folder)
        writer = source.transform(step).writeStream.format("parquet").option("path", f"{tmp_path}/{name}")
        query = writer.option("checkpointLocation", f"{tmp_path}/{name}.c").trigger(availableNow=True).start()
        query.awaitTermination()
        return spark.read.parquet(f"{tmp_path}/{name}")

    return run


def test_a_stream_reads_times_as_a_table_does_and_tells_given_up_ranges_as_times(spark, streamed, tmp_path):
    rows = [
        (chain, *(None if ms is None else written((NOW_MS + ms) * 1000 + 7)
                  for ms, (_, written) in zip(times, list(FINE.values())[:3], strict=True)))
        for chain, *times in LINES
    ]  # fmt: skip
    folder = f"{tmp_path}/in"
    spark.createDataFrame(rows, "chain string, t timestamp, p timestamp_ntz, a string").write.parquet(folder)
    table = spark.read.parquet(folder).transform(judge_chains(NAMES))
    cells = ("chain", "t", "a", "verdict", "reason")
    judged = streamed(folder, judge_chains(NAMES, buckets=2, memory=f"{tmp_path}/memory"), "judged")
    found = sorted(map(tuple, table.select(*cells).collect()))
    assert sorted(map(tuple, judged.select(*cells).collect())) == found
    assert [answer[-1] for answer in found] == ["new_chain", "in_order", "seen", "opens_gap", "new_chain", "in_order"]
    run_stream(
        spark, SourceSpec(path=folder), ChainsEngine(columns=NAMES),
        Streaming(checkpoint=f"{tmp_path}/c", ordered_wait_ms=0, buckets=2), f"{tmp_path}/out",
    )  # fmt: skip
    gaps = spark.read.parquet(f"{tmp_path}/out/batches/*/gaps")
    (gap,) = gaps.select("chain", *(F.unix_micros(name) for name in (LOWER[0], UPPER[0]))).collect()
    assert tuple(gap[1:]) == ((NOW_MS + 10) * 1000 + 7, (NOW_MS + 20) * 1000 + 7)
