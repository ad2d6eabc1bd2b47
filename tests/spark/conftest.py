import pytest

from onefold.spark.session import session


@pytest.fixture(scope="session")
def spark():
    """One SparkSession for the whole run: a second JVM costs more than all tests of a file."""
    return session("local[2]", memory="1g", config={"spark.sql.shuffle.partitions": "4"})
