"""The Spark room: the only one that imports pyspark. The public steps are functions DataFrame -> DataFrame.

Names are loaded when they are first used, so that looking for a Java, or reading the docs, needs no Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.spark.columns import ChainColumns
    from onefold.spark.gaps import missing_ranges
    from onefold.spark.judge import judge_chains

__all__ = ["ChainColumns", "judge_chains", "missing_ranges"]

_HOMES = {"ChainColumns": "columns", "judge_chains": "judge", "missing_ranges": "gaps"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
