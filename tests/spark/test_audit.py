"""The audit: whatever is lost, added or counted twice between source and sink is found, and named."""

import pyarrow.parquet as pq
import pytest

from onefold.cli.main import describe
from onefold.errors import Misuse
from onefold.spark import audit
from onefold.spark import run as jobs
from onefold.spark.audits import AuditFailed, AuditFinding, Ids, books_differ, published
from onefold.spark.chains import ChainsEngine
from onefold.spark.engine import Identity
from onefold.spark.files import Place
from onefold.spark.fingerprints import fingerprint, row_values
from onefold.spark.ingest import SourceSpec
from onefold.tally import Tally
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, write
from onefold.verdict import Answer, Verdict

SCHEMA = "device string, ts long, before long"
ROWS = [("a", 1, None), ("a", 2, 1), ("a", 2, 1), ("b", 7, None), (None, 8, None)]
GOOD = ("FIRST new_chain", "FIRST in_order", "REPEAT seen", "FIRST new_chain", "REJECT null_key")
IDENTITY = Identity(names=("device",), numbers=("ts",))


def judged(spark, rows, answers, schema=SCHEMA):
    labelled = [(*row, *answer.split()) for row, answer in zip(rows, answers, strict=True)]
    return spark.createDataFrame(labelled, f"{schema}, verdict string, reason string").coalesce(1)


def test_source_and_sink_agree_when_every_row_is_there_once(spark):
    found = audit(spark.createDataFrame(ROWS, SCHEMA), judged(spark, ROWS, GOOD), IDENTITY)
    assert found.clean
    assert found.check() is found
    assert (found.source, found.ids, found.repeats, found.fingerprint_source) == (5, 3, 1, found.fingerprint_published)


def test_a_source_without_a_single_good_message_agrees_with_its_sink(spark):
    """Spark leaves a job off that nothing comes out of, and with it what was to be seen in passing."""
    source = spark.createDataFrame(ROWS[4:], SCHEMA)
    sent = fingerprint(source, row_values(source, source.columns))
    found = audit(source, judged(spark, ROWS[4:], GOOD[4:]), IDENTITY, sent=sent)
    assert (found.clean, found.published, found.ids) == (True, 1, 0)


def test_what_cannot_be_sorted_is_named_as_it_comes(spark):
    wrong = AuditFinding(["tags"])
    wrong.add("missing", spark.createDataFrame([({"a": 1},)], "tags map<string, int>"), 1)
    assert wrong.shown == {"missing": [{"tags": {"a": 1}}]}


def test_folders_without_a_file_hold_no_rows(spark, tmp_path):
    (tmp_path / "messages").mkdir()
    place = Place(spark, str(tmp_path))
    with pytest.raises(Misuse, match="holds no rows of a run"):
        published(spark, place)
    said = Tally(2, {Answer(Verdict.FIRST, "new"): 2})
    assert books_differ(said, spark, place) == ["the books say 2 FIRST new, the rows 0"]


def test_what_is_lost_invented_counted_twice_or_counted_nowhere_is_named(spark):
    source = [*ROWS, ("c\n", 9, None), ("e", 1, None), ("e", 1, None)]
    sink = [*ROWS[:2], *ROWS[3:], ("a", 2, 1), ("d", 1, None), ("e", 1, None)]
    answers = ["FIRST new_chain", "FIRST in_order", "REPEAT seen", "REJECT null_key", "FIRST in_order"]
    rows = judged(spark, sink, [*answers, "FIRST new_chain", "REPEAT below_floor"])
    found = audit(spark.createDataFrame(source, SCHEMA), rows, ["device", "ts"])
    assert (found.missing, found.surplus, found.twice, found.orphans, found.orphans_by_rule) == (2, 1, 1, 1, 1)
    assert found.shown == {
        "missing": [{"device": "c\n", "ts": 9}, {"device": "e", "ts": 1}],  # of the two, one is there
        "surplus": [{"device": "d", "ts": 1}],
        "twice": [{"device": "a", "ts": 2}],
        "orphans": [{"device": "b", "ts": 7}],
    }
    with pytest.raises(AuditFailed) as caught:
        found.check()
    assert str(caught.value) == (
        "source and sink do not agree: 2 missing in the sink: [device c?, ts 9], [device e, ts 1]; "
        "1 not in the source: [device d, ts 1]; 1 counted twice: [device a, ts 2]"
    )
    assert [row.device for row in found.tables["surplus"].collect()] == ["d"]


def test_numbers_that_are_text_are_the_same_number_however_they_are_written(spark):
    rows = judged(spark, [("a", "5"), ("a", "05")], ["FIRST new_chain", "FIRST ahead"], "device string, ts string")
    assert Ids(rows, IDENTITY).counts()["twice"] == 1


def test_an_id_that_expires_may_come_again_later_but_not_sooner(spark):
    rows = [("f", 0), ("f", 60), ("g", 0), ("g", 59)]
    known = Identity(names=("frame",), time="at", expiry_ms=60)
    ids = Ids(judged(spark, rows, ["FIRST new_frame"] * 4, "frame string, at long"), known)
    assert ids.counts() == {"ids": 2, "twice": 1, "again": 1, "repeats": 0, "orphans": 0, "orphans_by_rule": 0}


def test_columns_that_are_not_published_are_misuse(spark):
    source = spark.createDataFrame(ROWS, SCHEMA)
    with pytest.raises(Misuse, match="no column 'before' in the second table"):
        audit(source, judged(spark, ROWS, GOOD).drop("before"), IDENTITY)


def test_a_run_that_lost_a_row_is_not_complete_and_names_it(spark, tmp_path):
    write(make(Traffic(rows=200, chains=3, faults=Faults(malformed=0.02))), tmp_path / "t")
    out = tmp_path / "out"

    def lose(step):
        if step == "auditing":
            largest = max((out / "messages").glob("*.parquet"), key=lambda file: file.stat().st_size)
            largest.with_name(f".{largest.name}.crc").unlink(missing_ok=True)
            pq.write_table(pq.read_table(largest).slice(1), largest)

    source = SourceSpec(path=str(tmp_path / "t" / "messages"))
    with pytest.raises(AuditFailed, match=r"1 missing in the sink: \[stream") as caught:
        jobs.run(spark, source, ChainsEngine(floor="open", partitions=1), str(out), strategy="mark", say=lose)
    assert describe(caught.value) == (3, str(caught.value))
    assert pq.read_table(out / "audit" / "missing").num_rows == 1
    assert not (out / "run.json").exists()
