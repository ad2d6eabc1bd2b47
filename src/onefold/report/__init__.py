"""What a run looks like: its figures in, text out. Made from the tally and samples, never from the whole data."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.report.run_report import RunReport

__all__ = ["RunReport"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: text for a terminal needs no templates."""
    if name != "RunReport":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onefold.report.run_report import RunReport

    return RunReport
