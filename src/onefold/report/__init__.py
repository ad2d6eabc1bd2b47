"""Reports of runs: from the figures and samples of a run to text and pages, never from its rows."""

from typing import TYPE_CHECKING

from onefold.moved import loaded_on_use

if TYPE_CHECKING:
    from onefold.report.page import RunReport

__all__ = ["RunReport"]
__getattr__ = loaded_on_use(__name__, {"RunReport": "page"})  # text for a terminal needs no templates
