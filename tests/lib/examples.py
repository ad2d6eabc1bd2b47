"""How many examples a law gets: all of them in ``./run proof``, some of them in every other run."""

ALL = False
"""Set by conftest.py, before the first law is imported and decorated."""


def examples(count: int) -> int:
    """So many of `count`: a run of the tests is one of many, and each tries other ones."""
    return count if ALL else max(5, count // 5)
