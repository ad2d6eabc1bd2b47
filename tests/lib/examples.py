"""What only ``./run proof`` tries: all examples of a law, and the cases of a table that are marked so."""

from typing import Any

import pytest

ALL = False
"""Set by conftest.py, before the first law is imported and decorated."""


def examples(count: int) -> int:
    """So many of `count`: a run of the tests is one of many, and each tries other ones."""
    return count if ALL else max(2, count // 5)


def sample(*values: Any) -> Any:
    """A case of a table of tests/proof that every run of the tests has a look at."""
    return pytest.param(*values, marks=pytest.mark.sample)


def proof(*values: Any) -> Any:
    """A case of `pytest.mark.parametrize` that is like the others, and left to `./run proof`."""
    return pytest.param(*values, marks=pytest.mark.proof)
