"""Of `./run test matrix`, what every run of the tests has: Spark Connect, and the oldest of everything."""

import subprocess
import sys

import pytest

from tests.lib import matrix


def test_through_spark_connect():
    assert matrix.tested(sys.executable, connect=True, words=[]) == 0


def test_on_the_oldest_packages():
    try:
        python = matrix.made("oldest")
    except (LookupError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the environment cannot be made: {error}")
    assert matrix.tested(python, connect=False, words=[]) == 0
