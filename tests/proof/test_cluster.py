"""A real standalone cluster on loopback: a master and two workers, whose Python has Spark's needs but no onefold."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pyarrow.parquet as pq
import pyspark
import pytest

from onefold.spark import java
from onefold.spark import run as jobs
from onefold.spark import session as shipping
from onefold.spark.chains import ChainsEngine
from onefold.spark.ingest import SourceSpec
from onefold.spark.session import _variables
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, write

SPARK_HOME = Path(pyspark.__file__).parent
ROWS = 2_000
FAULTY = Faults(poisoned=0.3, malformed=0.02, losses=0.02, late_heads=0.2)
FOLDERS = ("firsts", "repeats", "unsure", "rejects")


# --- the cluster ---------------------------------------------------------------------------------------------------


def environ(folder, **more):
    """Of ours, without what an earlier session or the user's own Spark may have left in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH", "ONEFOLD_"))}
    alone = {"SPARK_HOME": SPARK_HOME, "JAVA_HOME": java.find().home, "SPARK_LOCAL_DIRS": folder / "spark-local"}
    alone |= {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}  # seven JVMs that live for seconds: compile little
    return kept | {name: str(value) for name, value in (alone | more).items()}


def members(session_id):
    """The processes of a session: all that a process started as its leader has started, and what those have."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(") ")[2].split()[:4]
        except OSError:  # gone meanwhile
            continue
        if int(session) == session_id and state != "Z":
            found.append(int(stat.parent.name))
    return found


def gone(session_id, seconds=60.0):
    end = time.monotonic() + seconds
    while members(session_id) and time.monotonic() < end:
        time.sleep(0.1)
    return not members(session_id)


@contextmanager
def started(words, log, env):
    """A process in a session of its own, of which nothing is left at the end."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(word) for word in words], stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=env,
            cwd=log.parent, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        for sign, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 60.0)):
            for pid in members(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            process.poll()
            if gone(process.pid, seconds):
                break
        process.wait(60)


def said(process, log, pattern, seconds=60.0):
    """What the process says of itself, as soon as it does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"no {pattern!r} within {seconds} s:\n{log.read_text(errors='replace')[-2000:]}")


def bare_python(folder):
    """An environment with the packages of this one, but without onefold: no .pth file, so no editable install."""
    venv.create(folder, symlinks=True)
    place = {"base": str(folder), "platbase": str(folder)}
    for kind in ("purelib", "platlib"):
        target = Path(sysconfig.get_path(kind, "venv", place))
        for package in Path(sysconfig.get_path(kind)).iterdir():
            left_out = package.suffix == ".pth" or package.name.startswith("onefold")
            if not left_out and not (target / package.name).exists():
                (target / package.name).symlink_to(package)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def python(folder):
    return bare_python(folder / "bare")


class Cluster(NamedTuple):
    url: str
    workers: list[int]

    def idle(self, seconds=60.0):
        """Whether the executors of all jobs have ended, with their Pythons; they are given some time for it."""
        end = time.monotonic() + seconds
        while not (alone := all(members(pid) == [pid] for pid in self.workers)) and time.monotonic() < end:
            time.sleep(0.1)
        return alone


@pytest.fixture(scope="module")
def cluster(folder):
    env = environ(folder, SPARK_LOCAL_IP="127.0.0.1", SPARK_DAEMON_MEMORY="256m", SPARK_NO_DAEMONIZE="1")
    spark_class = [SPARK_HOME / "bin" / "spark-class"]
    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as processes:
        log = folder / "master.log"
        process = processes.enter_context(
            started([*spark_class, "org.apache.spark.deploy.master.Master", *here], log, env)
        )
        url = said(process, log, r"Starting Spark master at (spark://127\.0\.0\.1:[1-9]\d*)")
        workers = []
        for name in ("worker-1", "worker-2"):
            (folder / name).mkdir()
            means = ["--cores", "1", "--memory", "600m", "--work-dir", folder / name]
            words = [*spark_class, "org.apache.spark.deploy.worker.Worker", *here, *means, url]
            worker_log = folder / f"{name}.log"
            workers.append((processes.enter_context(started(words, worker_log, env)), worker_log))
        for worker, worker_log in workers:
            said(worker, worker_log, r"(Successfully registered with master)")
        yield Cluster(url, [worker.pid for worker, _ in workers])
    assert not [pid for started in (process, *(worker for worker, _ in workers)) for pid in members(started.pid)]


# --- the jobs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traffic(folder):
    write(make(Traffic(rows=ROWS, chains=20, faults=FAULTY)), folder / "traffic")
    return folder / "traffic"


@pytest.fixture(scope="module")
def local_run(spark, traffic, folder):
    source = SourceSpec(path=str(traffic / "messages"))
    judging = ChainsEngine(floor="open", partitions=4)
    return jobs.run(spark, source, judging, str(folder / "local"), say=lambda step: None)


def pipeline(folder, traffic, master, python):
    folder.mkdir()
    (folder / "pipeline.toml").write_text(
        f"""
[source]
path = "{traffic / "messages"}"
[judge]
floor = "open"
[publish]
path = "out"
[spark]
master = "{master}"
partitions = 4
memory = "512m"
[spark.config]
"spark.executor.memory" = "512m"
"spark.sql.shuffle.partitions" = 2
"spark.pyspark.python" = "{python}"
"""
    )
    return folder


def ended(words, cwd, env, seconds=120):
    """Exit code and standard error of a command that leaves nothing running."""
    log = cwd / "said.log"
    with started(words, log, env) as process:
        code = process.wait(seconds)
        assert gone(process.pid), members(process.pid)
    return code, log.read_text(errors="replace")


def onefold(cwd, **more):
    command = [sys.executable, "-m", "onefold.cli.main", "run", "pipeline.toml"]
    return ended(command, cwd, environ(cwd, **more))


def rows(folder):
    """Every row of a run, with the folder that it is in."""
    tables = {name: pq.read_table(folder / name).sort_by("offset") for name in FOLDERS}
    return {name: table.select(sorted(table.column_names)).to_pylist() for name, table in tables.items()}


def test_a_cluster_without_onefold_publishes_what_one_machine_does(cluster, python, traffic, local_run, folder):
    code, text = onefold(pipeline(folder / "run", traffic, cluster.url, python))
    assert code == 0, text
    assert f"the books balance: {ROWS:,} in =" in text
    assert "WARN" not in text
    assert cluster.idle()
    assert json.loads((folder / "run" / "out" / "tally.json").read_text()) == local_run.tally.to_dict()
    out = rows(folder / "run" / "out")
    assert sorted(row["offset"] for name in FOLDERS for row in out[name]) == list(range(ROWS))
    assert out == rows(folder / "local")
    gaps = [pq.read_table(run / "gaps").to_pylist() for run in (folder / "run" / "out", folder / "local")]
    assert sorted(map(str, gaps[0])) == sorted(map(str, gaps[1]))
    # It was the cluster: both workers had an executor, and the package came to where it ran.
    assert all(list((folder / name).glob("app-*/*")) for name in ("worker-1", "worker-2"))
    assert list(folder.glob(f"worker-*/app-*/*/{shipping.archive().name}"))


SUBMITTED = """
import json, sys
from onefold.errors import Misuse
from onefold.spark import ChainColumns, judge_chains
from onefold.spark import session as shipping
from onefold.spark.session import session

ship, shipping.ship = shipping.ship, lambda spark: False
spark = session()  # of one machine, if nobody had submitted it

def found():
    where = lambda _: __import__("onefold").__file__
    try:
        return spark.sparkContext.parallelize([0], 1).map(where).first()
    except Exception as error:
        return "No module named 'onefold'" if "No module named 'onefold'" in str(error) else str(error)

said = {"master": spark.sparkContext.master, "before": found()}
said |= {"shipped": [ship(spark), ship(spark)], "after": found()}
rows = spark.createDataFrame([("a", 5), ("a", 6), ("a", 5)], "key string, timestamp long")
names = ChainColumns(key=("key",), sequence=None, previous_timestamp=None, previous_sequence=None, arrival=None)
said["verdicts"] = sorted(row.verdict for row in rows.transform(judge_chains(names, partitions=2)).collect())
try:
    shipping.require_libraries(spark, ["numpy", "no_such_package"])
except Misuse as error:
    said["lack"] = str(error)
json.dump(said, open(sys.argv[1], "w"))
"""


def test_only_what_is_shipped_is_found_and_spark_submit_names_the_master(cluster, python, folder):
    home = folder / "submit"
    home.mkdir()
    (home / "job.py").write_text(SUBMITTED)
    conf = {
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": sys.executable,
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    confs = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url, *confs, "job.py", "said.json"]
    code, text = ended(command, home, environ(home, SPARK_LOCAL_IP="127.0.0.1"))
    assert code == 0, text
    said = json.loads((home / "said.json").read_text())
    assert said["master"] == cluster.url
    assert said["before"] == "No module named 'onefold'"  # the control
    assert said["shipped"] == [True, False]
    assert said["after"].endswith(f"{shipping.archive().name}/onefold/__init__.py")
    assert said["verdicts"] == ["FIRST", "FIRST", "REPEAT"]
    assert said["lack"].startswith(f"the executors' Python has no no_such_package ({python}): install it there")
    assert "\n" not in said["lack"]


# --- without a cluster ---------------------------------------------------------------------------------------------


@pytest.mark.sample
def test_the_archive_holds_every_source_and_nothing_else_and_is_always_the_same():
    root = Path(shipping.__file__).parents[1]
    path = shipping.archive.__wrapped__()
    with ZipFile(path) as file:
        assert file.namelist() == sorted(
            str(source.relative_to(root.parent))
            for source in [*root.rglob("*.py"), *root.rglob("*.lua"), root / "py.typed"]
        )
    again = shipping.archive.__wrapped__()
    assert again != path
    assert again.read_bytes() == path.read_bytes()
    assert shipping.archive() == shipping.archive()


def test_the_archive_is_all_that_a_bare_python_needs_of_onefold(python, tmp_path):
    words = "import onefold.spark.host, onefold.chains.columns; print(onefold.__file__)"
    alone = [str(python), "-c", words]
    without = subprocess.run(alone, env={}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named 'onefold'" in without.stderr
    env = {"PYTHONPATH": str(shipping.archive())}
    done = subprocess.run(alone, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(str(shipping.archive())), done.stderr


def test_one_machine_needs_no_shipping(spark):
    assert not shipping.ship(spark)


@pytest.mark.parametrize(
    ("here", "config", "user", "expected"),
    [
        (True, {}, None, sys.executable),
        (True, {}, "/users/python", "/users/python"),
        (False, {}, None, None),
        (False, {}, "/users/python", "/users/python"),
        (False, {"spark.pyspark.python": "/their/python"}, "/users/python", "/their/python"),
    ],
)
def test_the_drivers_python_is_only_named_to_executors_that_have_it(here, config, user, expected, monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if user:
        monkeypatch.setenv("PYSPARK_PYTHON", user)
    variables = _variables(here, config)
    assert variables.get("PYSPARK_PYTHON", user) == expected
    assert ("SPARK_LOCAL_IP" in variables) is here
