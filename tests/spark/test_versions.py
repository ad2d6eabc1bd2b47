"""Runs that go on: hour by hour as in one go, after a crash as without one, and never from other files than said."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from onefold.errors import Misuse
from onefold.spark import run as jobs
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ProducerColumns
from onefold.spark.host import MemoryOptions
from onefold.spark.ingest import SourceSpec
from onefold.spark.producers import ProducersEngine
from onefold.spark.versions import NothingNew, VersionLog
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make
from tests.lib.examples import proof
from tests.lib.going_on import answers, hours, same_as_one_run

OPEN = ChainsEngine(floor="open", partitions=2)
PHASES = ("judging", "keeping the books", "finding what is missing", "publishing", "auditing")


class Job:
    """An hourly job in a folder: its source, output and memory."""

    def __init__(self, spark, folder, engine=OPEN):
        self.spark, self.engine, self.folder = spark, engine, folder
        self.source = folder / "in"
        self.source.mkdir()

    def add(self, name, table):
        pq.write_table(table, self.source / f"{name}.parquet")

    def run(self, version=None, say=lambda step: None, **options):
        memory = MemoryOptions(path=str(self.folder / "memory"), version=version)
        source, out = SourceSpec(path=str(self.source)), str(self.folder / "out")
        return jobs.run(self.spark, source, self.engine, out, memory=memory, say=say, **options)

    def published(self):
        """Verdict and reason of each row, by its offset: a list, for a row may be there twice."""
        found: dict[int, list[tuple[str, str]]] = {}
        for folder in sorted((self.folder / "out" / "batches").iterdir()):
            for verdict in ("firsts", "repeats", "unsure", "rejects"):
                table = pq.read_table(folder / verdict, columns=["offset", "verdict", "reason"])
                for row in table.to_pylist():
                    found.setdefault(row["offset"], []).append((row["verdict"], row["reason"]))
        return found

    def answers(self):
        published = self.published()
        assert all(len(answers) == 1 for answers in published.values()), "a row was published twice"
        return {offset: answers[0] for offset, answers in published.items()}


@pytest.fixture
def job(spark, tmp_path):
    return Job(spark, tmp_path)


@pytest.fixture(scope="module")
def parts():
    """Traffic with copies, losses and disorder, in four hours."""
    return hours(make(Traffic(rows=1_200, chains=12, faults=Faults(losses=0.02))).messages, 4)


def test_hours_one_after_the_other_are_one_run_over_all_of_them(spark, tmp_path):
    same_as_one_run(spark, tmp_path, 3, rows=2_000)


def test_a_run_reads_only_the_files_that_came_since_and_says_so(job, parts):
    job.add("h0", parts[0])
    assert job.run().version == 0
    job.add("h1", parts[1])
    job.add("late", parts[3])
    second = job.run()
    assert second.version == 1
    assert second.manifest.rows == len(parts[1]) + len(parts[3])
    with pytest.raises(NothingNew, match="version 1"):
        job.run()
    assert second.tally.received == second.manifest.rows


@pytest.mark.parametrize("phases", [PHASES[::2], proof(PHASES)], ids=["some", "all"])
def test_a_run_that_dies_at_any_step_is_done_again_with_the_same_files(job, phases):
    parts = hours(make(Traffic(rows=1_200, chains=12, faults=Faults(losses=0.02))).messages, len(phases) + 2)
    job.add("h0", parts[0])
    job.run()
    job.add("h1", parts[1])
    for number, phase in enumerate(phases, 1):

        def die(step, phase=phase):
            if step == phase:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            job.run(say=die)
        job.add(f"h{number + 1}", parts[number + 1])  # which comes too late for what is done again
        again = job.run()
        assert (again.version, again.left, again.manifest.rows) == (number, 1, len(parts[number])), phase
    assert job.run().version == len(phases) + 1
    source = SourceSpec(path=str(job.source))
    jobs.run(job.spark, source, OPEN, str(job.folder / "once"), say=lambda step: None)
    assert job.answers() == answers([job.folder / "once"])


def test_without_the_version_rule_what_a_dead_run_had_judged_would_be_lost(job, parts):
    job.add("h0", parts[0])

    def die(step):
        if step == "auditing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(say=die)
    rows = job.spark.read.parquet(str(job.source))
    copy = shutil.copytree(job.folder / "memory", job.folder / "careless")
    careless = rows.transform(job.engine.step(MemoryOptions(path=str(copy), version=1)))
    assert careless.where("verdict = 'FIRST'").count() == 0, "read what was not published: all are taken for copies"
    assert job.run().tally.to_dict()["first"] > 100


def test_files_that_are_gone_when_a_dead_run_is_done_again_leave_nothing_in_the_memory(job, spark, parts, tmp_path):
    job.add("h0", parts[0])
    job.run()
    job.add("h1", parts[1])

    def die(step):
        if step == "auditing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(say=die)
    os.remove(job.source / "h1.parquet")
    job.add("h2", parts[2])
    job.add("h1b", parts[1])
    again = job.run()
    assert (again.version, again.left) == (1, 0)
    firsts = {offset for offset, (verdict, _) in job.answers().items() if verdict == "FIRST"}
    (tmp_path / "calm").mkdir()
    calm = Job(spark, tmp_path / "calm")
    calm.add("h0", parts[0])
    calm.run()
    calm.add("h1", parts[1])
    calm.add("h2", parts[2])
    calm.run()
    assert {offset for offset, (verdict, _) in calm.answers().items() if verdict == "FIRST"} == firsts


def test_a_published_version_is_told_again_for_the_same_files_and_refused_for_others(job, parts):
    job.add("h0", parts[0])
    job.run(version=0)
    with pytest.raises(NothingNew):
        job.run(version=0)
    job.add("h1", parts[1])
    with pytest.raises(Misuse, match=r"version 0 is published, from other files: .*h1.parquet is new"):
        job.run(version=0)
    with pytest.raises(Misuse, match="version 3 leaves a hole: 1 is the next"):
        job.run(version=3)
    job.run(version=1)
    job.add("h0", parts[2])
    with pytest.raises(Misuse, match=r"h0.parquet has changed or is gone"):
        job.run(version=0)
    assert len(job.published()) == len(parts[0]) + len(parts[1])


def test_a_memory_and_an_output_belong_together(job, spark, parts, tmp_path):
    job.add("h0", parts[0])
    job.run()
    (tmp_path / "other").mkdir()
    other = Job(spark, tmp_path / "other")
    other.add("h0", parts[0])
    os.rename(tmp_path / "memory", tmp_path / "other" / "memory")
    job.add("h1", parts[1])
    with pytest.raises(Misuse, match="another"):
        job.run()
    other.add("h1", parts[1])
    assert other.run().version == 0, "a first version that was not published is done again, whole"
    other.add("h2", parts[2])
    other.run()
    os.rename(tmp_path / "other" / "out", tmp_path / "other" / "moved")
    with pytest.raises(Misuse, match="remembers versions up to 1, but the output has none"):
        other.run()


def test_a_version_in_a_delta_table_carries_its_number_and_lists_what_is_missing(job, parts):
    for number, part in enumerate(parts[:3]):
        job.add(f"h{number}", part)
        result = job.run(format="delta", strategy="mark")
        assert result.version == number
        assert result.audit is not None
        assert result.audit.agrees
    with pytest.raises(NothingNew):
        job.run(format="delta", strategy="mark")
    import deltalake

    table = deltalake.DeltaTable(str(job.folder / "out")).to_pyarrow_table()
    assert table.num_rows == sum(map(len, parts[:3]))
    firsts = table.filter(pc.equal(table["verdict"], "FIRST"))
    one = jobs.check(job.spark, SourceSpec(path=str(job.source)), OPEN, say=lambda step: None, ranges_max=1_000)
    assert len(firsts) == one.tally.to_dict()["first"]
    assert result.gaps == one.gaps


def test_producers_go_on_too_and_list_what_is_missing_of_those_that_were_silent(spark, tmp_path):
    engine = ProducersEngine(columns=ProducerColumns(producer=("p",), sequence="n"), memory="gaps", partitions=1)
    job = Job(spark, tmp_path, engine)
    job.add("h0", pa.table({"offset": [0, 1, 2], "p": ["a", "a", "b"], "n": [0, 4, 0]}))
    job.run()
    job.add("h1", pa.table({"offset": [3, 4], "p": ["b", "b"], "n": [0, 3]}))
    assert sorted(job.run().ranges, key=str) == [
        {"p": "a", "lower_sequence": 0, "upper_sequence": 3},
        {"p": "b", "lower_sequence": 0, "upper_sequence": 2},
    ]
    job.add("h2", pa.table({"offset": [5, 6], "p": ["a", "a"], "n": [2, 4]}))
    result = job.run()
    assert result.keys == 2
    assert {(row["p"], row["lower_sequence"], row["upper_sequence"]) for row in result.ranges} == {
        ("a", 0, 1), ("a", 2, 3), ("b", 0, 2),
    }  # fmt: skip
    assert job.answers()[6][0] == "REPEAT"


def test_the_log_lists_all_files_again_from_time_to_time_and_reads_few_documents(tmp_path, monkeypatch):
    from onefold.spark import versions
    from onefold.spark.files import SourceFile
    from onefold.spark.memory import MemoryFolder

    monkeypatch.setattr(versions, "WHOLE_EVERY", 4)
    MemoryFolder.opened(str(tmp_path), {"engine": "chains"})
    files = [SourceFile(f"file:/in/{n}", n, n) for n in range(11)]
    last = None
    for n in range(11):
        log = VersionLog(str(tmp_path))
        version = log.next(last, files[: n + 1])
        assert version.files == (files[n].path,)
        log.begin(version)
        last = version.number
    for name in ("000000000005", "000000000002"):  # older than the last that lists all
        os.remove(tmp_path / "_versions" / f"{name}.json")
    with pytest.raises(NothingNew):
        VersionLog(str(tmp_path)).next(last, files)
    whole = json.loads((tmp_path / "_versions" / "000000000007.json").read_text())
    assert len(whole["before"]) == 7
