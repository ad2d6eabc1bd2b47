"""What must be right on every Spark, classic and Connect: `./run test matrix` runs this file with each of them.

Rows are made here and judged by the scalar engines, so that nothing is asked of Spark but what a user asks.
"""
# mypy: disable-error-code=arg-type
# The types of columns are tuples; that one name alone, a list or an expression will do is tried here.

import random
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onefold import ChainDetector, Sequences
from onefold.errors import Misuse
from onefold.spark import (
    ChainColumns,
    ProducerColumns,
    ReceptionColumns,
    advise_window,
    diff,
    explain,
    judge_chains,
    judge_ids,
    judge_producers,
    judge_receptions,
    missing_ranges,
)
from onefold.spark import run as jobs
from onefold.spark.chains import ChainsEngine
from onefold.spark.dialect import SPARK, from_arrow
from onefold.spark.figures import Figures
from onefold.spark.ids import IdColumns, IdsEngine
from onefold.spark.ingest import SourceSpec

CHAINED = ChainColumns(
    key="device", timestamp="n", sequence=None, previous_timestamp="prev", previous_sequence=None, arrival="at"
)
NUMBERED = ProducerColumns(producer="device", sequence="n", order="at")
HEARD = ReceptionColumns(frame=("device", "n"), station="station", time="at", kind=None, fcnt="n", device="device")


@pytest.fixture(scope="module")
def table():
    """Two thousand messages of ten devices: lost, copied and out of order."""
    chance, rows = random.Random(7), []
    for device in range(10):
        numbers = [n for n in range(2, 200) if chance.random() > 0.1]
        copies = [n for n in numbers if chance.random() < 0.2]
        late = sorted((*numbers, *copies), key=lambda n: n + chance.random() * 8)
        rows += [{"device": f"d{device}", "n": n, "prev": n - 1, "station": f"s{n % 3}"} for n in late]
    chance.shuffle(by_turn := [row["device"] for row in rows])
    queues = defaultdict(list)
    for row in rows:
        queues[row["device"]].append(row)
    ordered = [queues[device].pop(0) | {"at": at} for at, device in enumerate(by_turn, 1)]
    kinds = {"device": pa.string(), "n": pa.int64(), "prev": pa.int64(), "station": pa.string(), "at": pa.int64()}
    return pa.Table.from_pylist(ordered, pa.schema(kinds))


@pytest.fixture(scope="module")
def df(spark, table):
    return from_arrow(spark, table)


def judged(df, step):
    return {row["at"]: row["verdict"] for row in df.transform(step).select("at", "verdict").collect()}


def chained(table):
    chains: dict[str, ChainDetector] = defaultdict(lambda: ChainDetector(jump_max_ms=None))
    return {
        row["at"]: str(chains[row["device"]].judge((row["prev"], 0), (row["n"], 0)).verdict)
        for row in table.to_pylist()
    }


def firsts(table):
    least: dict[tuple, int] = {}
    rows = [((row["device"], row["n"]), row["at"]) for row in table.to_pylist()]
    return {at: "FIRST" if least.setdefault(name, at) == at else "REPEAT" for name, at in rows}


def test_chains_are_judged_as_by_the_scalar_engine(df, table):
    step = judge_chains(CHAINED, jump_max_ms="off")
    assert judged(df, step) == chained(table)
    assert judged(df.withColumn("n", F.col("n").cast("string")), step) == chained(table)


def test_ids_count_once(df, table):
    assert judged(df, judge_ids(["device", "n"], order="at")) == firsts(table)


def test_producers_are_judged_as_by_the_scalar_engine(df, table):
    topics, truth = Sequences(memory="highest"), {}
    for row in table.to_pylist():
        answer = topics.push(row["device"], row["n"])
        truth[row["at"]] = str(answer.verdict)
        if answer.verdict == "FIRST":
            topics.persist(row["device"], row["n"])
    assert judged(df, judge_producers(NUMBERED, remember="highest")) == truth


def test_receptions_count_once(df, table):
    assert judged(df, judge_receptions(HEARD)) == firsts(table)


def test_text_that_is_no_number_is_refused_and_never_cut(spark):
    texts = ["1", " 2 ", "+3", "3.5", "4e0", "x", "", "99999999999999999999", None, "-1"]
    df = spark.createDataFrame([("d", text, at) for at, text in enumerate(texts)], "device string, n string, at long")
    step = judge_producers(ProducerColumns(producer="device", sequence="n", order="at"))
    assert [at for at, verdict in sorted(judged(df, step).items()) if verdict == "FIRST"] == [0, 1, 2]


def test_a_stream_goes_on_from_its_memory(spark, table, tmp_path):
    (tmp_path / "in").mkdir()
    for part in range(3):
        pq.write_table(table.slice(part * 800, 800), tmp_path / "in" / f"{part}.parquet")
    rows = spark.readStream.schema("device string, n long, prev long, station string, at long")
    stream = rows.option("maxFilesPerTrigger", 1).parquet(f"file:{tmp_path}/in")
    step = judge_ids(("device", "n"), order="at", memory=f"{tmp_path}/memory")
    query = (
        stream.transform(step)
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", f"file:{tmp_path}/checkpoint")
        .start(f"file:{tmp_path}/out", format="parquet")
    )
    assert query.awaitTermination(240)
    out = pq.read_table(tmp_path / "out", columns=["at", "verdict"]).to_pylist()
    # Files come in any order: which copy counts is open, that one counts is not.
    names = {row["at"]: (row["device"], row["n"]) for row in table.to_pylist()}
    first = [names[row["at"]] for row in out if row["verdict"] == "FIRST"]
    assert len(out) == len(table)
    assert len(first) == len(set(first)) == len(set(names.values()))


def test_tables_of_the_catalogue_are_checked_judged_published_and_explained(spark, df, table, tmp_path):
    spark.sql(f"create database if not exists every location 'file:{tmp_path}/warehouse'")
    try:
        df.write.saveAsTable("every.events")
        source, engine = SourceSpec(path="every.events", format="table"), ChainsEngine(columns=CHAINED)
        found = jobs.check(spark, source, engine, say=lambda step: None)
        done = jobs.run(spark, source, engine, str(tmp_path / "out"), figures=Figures(), say=lambda step: None)
        assert found.tally == done.tally
        assert done.tally.received == len(table)
        assert done.audit is not None
        assert done.audit.agrees
        assert (
            found.gaps
            == done.gaps
            == missing_ranges(
                df.transform(judge_chains(CHAINED, jump_max_ms="off")).where("verdict = 'FIRST'"), CHAINED
            ).count()
        )
        assert explain(spark, str(tmp_path / "out"), ["d3"], judging=engine)
        with diff(spark.table("every.events"), df.where("at > 5"), key="at") as difference:
            assert difference.summary.only_a == 5
            assert sorted(row["at"] for row in difference.only_a.collect()) == [1, 2, 3, 4, 5]
        with pytest.raises(Misuse, match=r"^there is no table every.nothing"):
            jobs.check(spark, SourceSpec(path="every.nothing", format="table"), engine, say=lambda step: None)
    finally:
        spark.sql("drop database every cascade")


def test_json_lines_that_are_no_objects_are_refused_and_counted(spark, tmp_path):
    lines = ['{"id": "a"}', '{"id": "a"}', '{"id": "b"} {"id": "c"}', '{"id": "d", "id": "e"}', "[1]", '{"id": 7}', "x"]
    (tmp_path / "in.json").write_text("\n".join(lines))
    engine = IdsEngine(columns=IdColumns(id="id"))
    source = SourceSpec(path=str(tmp_path / "in.json"), format="json")
    if SPARK < (4, 0):
        with pytest.raises(Misuse, match=r"4 lines are not one JSON object each, .*: Spark 4 sets them aside"):
            jobs.check(spark, source, engine, say=lambda step: None)
        (tmp_path / "in.json").write_text("\n".join(lines[:2] + lines[5:6]))
        assert jobs.check(spark, source, engine, say=lambda step: None).tally.received == 3
        return
    tally = jobs.check(spark, source, engine, say=lambda step: None).tally
    counts = {str(answer.verdict): count for answer, count in tally}
    assert (tally.received, counts) == (7, {"FIRST": 2, "REPEAT": 1, "REJECT": 4})


def test_a_window_is_advised(df):
    advice = advise_window(df, key=["device", "n"], time="at")
    assert advice.key == ("device", "n")


NESTED = "named_struct('Device', device) as H", "n as N", "prev", "station", "at as At"


@pytest.mark.parametrize(
    ("step", "plain"),
    [
        (judge_chains(ChainColumns(key="h.device", timestamp="n", sequence=None, previous_timestamp="PREV",
                                   previous_sequence=None, arrival="at"), jump_max_ms="off"),
         judge_chains(CHAINED, jump_max_ms="off")),
        (judge_ids(["h.device", "n"], order="at"), judge_ids(["device", "n"], order="at")),
        (judge_producers(ProducerColumns(producer=["h.device"], sequence="n", order="AT")), judge_producers(NUMBERED)),
        (judge_receptions(ReceptionColumns(frame=("h.device", "n"), station="Station", time="at", kind=None, fcnt="n",
                                           device="H.DEVICE")), judge_receptions(HEARD)),
    ],
    ids=["chains", "ids", "producers", "receptions"],
)  # fmt: skip
def test_fields_of_structs_and_names_in_any_case_are_columns_to_every_engine(df, step, plain):
    rows = df.selectExpr(*NESTED).transform(step)
    assert rows.columns[:5] == ["H", "N", "prev", "station", "At"]
    assert "h.device" not in [name.lower() for name in rows.columns]
    flat = df.transform(plain).select("at", "verdict").collect()
    assert sorted(rows.select("At", "verdict").collect()) == sorted(flat)


def test_expressions_are_columns(df):
    copies = df.withColumn("device", F.when(F.col("at") % 2 == 0, F.upper("device")).otherwise(F.col("device")))
    rows = copies.transform(judge_ids([F.lower(F.col("device")), "n"], order="at"))
    assert rows.columns == [*df.columns, "verdict", "reason"]
    assert rows.where("verdict = 'FIRST'").count() == df.select("device", "n").distinct().count()


def test_one_column_is_not_two():
    with pytest.raises(Misuse, match=r"^time is \['a', 'b'\], must be one column$"):
        IdColumns(id="id", time=["a", "b"])
