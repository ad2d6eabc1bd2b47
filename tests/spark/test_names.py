"""What columns may be called: anything, but for the names that are added on the way; those are refused at once."""

import re

import pytest
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import Naming, advise_window, audit, diff, send_batch
from onefold.spark.chains import ChainsEngine, judge_chains
from onefold.spark.columns import ChainColumns, ProducerColumns, ReceptionColumns
from onefold.spark.gaps import missing_ranges, missing_sequences
from onefold.spark.ids import judge_ids
from onefold.spark.ingest import SourceSpec
from onefold.spark.producers import judge_producers
from onefold.spark.receptions.counters import missing_counters
from onefold.spark.receptions.judge import judge_receptions
from onefold.spark.run import check


def chains(key, **names):
    return judge_chains(ChainColumns(key=(key,), timestamp="n", sequence=None, previous_timestamp=None,
                                     previous_sequence=None, arrival=None, **names))  # fmt: skip


def producers(key):
    return judge_producers(ProducerColumns(producer=(key,), sequence="n"))


def receptions(key):
    return judge_receptions(ReceptionColumns(frame=("f",), station="s", time="n", kind=None, device=(key,), fcnt=None))


JUDGES = {"chains": chains, "producers": producers, "receptions": receptions}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("judge", JUDGES)
def test_a_name_that_is_added_on_the_way_is_refused_before_anything_is_judged(spark, judge, streaming):
    source = spark.readStream.format("rate").load() if streaming else spark.range(1).withColumn("value", F.lit(1))
    df = source.selectExpr("'x' as k", "cast(value as int) as n", "'f' as f", "'s' as s")
    for name in ("_onefold_folder", "_OneFold_At", "__onefold_0"):
        with pytest.raises(Misuse, match=re.escape(f"there is a column {name!r}: rename it")):
            df.withColumn(name, F.lit(1)).transform(JUDGES[judge]("k"))


@pytest.mark.parametrize(
    ("judge", "name"),
    [("chains", "lower_timestamp"), ("chains", "Upper_Sequence"), ("producers", "lower_sequence"),
     ("receptions", "upper_sequence")],
)  # fmt: skip
def test_a_key_that_is_called_as_an_end_of_a_range_is_refused(spark, judge, name):
    df = spark.sql(f"select 'x' as `{name}`, 1 as n, 'f' as f, 's' as s")
    with pytest.raises(Misuse, match=re.escape(f"column {name!r}") + ".*rename it"):
        df.transform(JUDGES[judge](name))


def test_a_check_of_files_refuses_such_names_too(spark, tmp_path):
    spark.sql("select 'x' as lower_timestamp, 1 as n").write.parquet(f"{tmp_path}/in")
    names = ChainColumns(key=("lower_timestamp",), timestamp="n", sequence=None, previous_timestamp=None,
                         previous_sequence=None, arrival=None)  # fmt: skip
    with pytest.raises(Misuse, match="column 'lower_timestamp'"):
        check(spark, SourceSpec(path=f"{tmp_path}/in"), ChainsEngine(columns=names))


@pytest.mark.parametrize("judge", JUDGES)
def test_a_key_with_a_collation_is_refused_for_what_it_calls_equal_would_be_split(spark, judge):
    df = spark.sql("select 'A' collate UTF8_LCASE as k, 1 as n, 'f' as f, 's' as s")
    message = r"column 'k' \(\w+\) has the collation UTF8_LCASE, .* cast it to a plain string first"
    with pytest.raises(Misuse, match=message):
        df.transform(JUDGES[judge]("k"))
    if judge == "chains":  # as the message says
        cured = df.selectExpr("lower(k) collate UTF8_BINARY as k", "n")
        assert cured.transform(chains("k")).count() == 1


def test_a_message_may_have_columns_of_any_other_name(spark):
    """Also of those that the steps of the missing ranges have for their own."""
    names = ("_n", "_p", "previous", "step", "lost", "device0", "a.b")
    for name in names:  # the plan is enough to know
        df = spark.createDataFrame([("x", 1, None), ("x", 3, 2), ("x", 9, 8)], f"`{name}` string, n long, m long")
        columns = ChainColumns(key=(name,), timestamp="n", sequence=None, previous_timestamp="m",
                               previous_sequence=None, arrival=None)  # fmt: skip
        assert missing_ranges(df, columns).columns[0] == name
    assert {name: counted(spark, name) for name in names[-3:]} == dict.fromkeys(names[-3:], (1, 2))


@pytest.mark.proof
@pytest.mark.parametrize("name", ["_n", "_p", "previous", "step"])
def test_ranges_are_counted_whatever_a_key_is_called(spark, name):
    assert counted(spark, name) == (1, 2)


def counted(spark, name):
    """How many ranges are missing of a key so called, in the two engines that count."""
    df = spark.createDataFrame([("x", 0, 1), ("x", 2, 2), ("x", 9, 3)], f"`{name}` string, n long, t long")
    heard = ReceptionColumns(frame=("n",), station="n", time="t", kind=None, device=(name,), fcnt="n")
    sequences = missing_sequences(df.where("n < 9"), ProducerColumns(producer=(name,), sequence="n"))
    return sequences.count(), missing_counters(df, heard).count()


@pytest.fixture(scope="module")
def spelled(spark):
    """A column in capitals, a struct, and a copy."""
    rows = [("a", 1, ("d", "x")), ("a", 1, ("d", "x")), ("b", 2, ("d", "y"))]
    df = spark.createDataFrame(rows, "Id string, n int, h struct<device string, ID string>")
    return df.withColumn("ts", F.timestamp_seconds("n"))


NAMED = ["iD", ["ID", "N"], "H.id", F.lower, [F.lower, "n"]]
"""Columns as people name them; an expression is made when there is a Spark."""


def named(given):
    each = [name if isinstance(name, str) else name("id") for name in ([given] if callable(given) else given)]
    return given if isinstance(given, str) else each[0] if callable(given) else each


@pytest.mark.parametrize("given", NAMED, ids=["case", "list", "field", "expression", "both"])
def test_columns_are_named_by_one_or_several_in_any_case_fields_and_expressions(spark, spelled, given, tmp_path):
    judged = spelled.transform(judge_ids(named(given), time="TS"))
    assert sorted(row.verdict for row in judged.select("verdict").collect()) == ["FIRST", "FIRST", "REPEAT"]
    other = spelled.where("n = 2").withColumnsRenamed({"Id": "ID", "n": "N"})
    with diff(spelled, other, key=named(given)) as difference:
        found = difference.summary
        assert (found.only_a, found.only_b, found.differing, found.doubled) == (2, 0, 0, 0)
    with diff(spelled, other, key="n", columns=named(given)) as difference:
        assert difference.summary.only_a == 2
    assert audit(spelled, judged, named(given)).agrees
    assert audit(spelled, judged, columns=named(given)).agrees
    assert advise_window(spelled, key=named(given), time="TS").copies == 1
    store = f"sqlite:///{tmp_path / 's.db'}"
    sent = send_batch(judged, store=store, transport=store, to="q", source="s", mark=1, body=named(given))
    assert sent == (2, 0, 0)


def test_a_column_that_no_table_has_is_named_as_it_was_asked_for(spelled):
    for key in ("h.nothing", "nothing", ["id", "h.x.y"]):
        with pytest.raises(Misuse, match=r"no column .* in the first table"):
            diff(spelled, spelled, key=key)
    with pytest.raises(Misuse, match=r"column .Id. is only in the second table"):
        diff(spelled.drop("id"), spelled, key="n")
    assert Naming(columns="id").columns == ("id",)  # type: ignore[arg-type]
