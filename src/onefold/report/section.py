"""A section of the page: its name, its values, or one line on why it is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from onefold.report.charts import NARROW, WIDE, Chart

OLD: Final = "This run did not keep the figures for it."
"""Why most sections of an old run are not there."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: its name is also that of its template."""

    name: str
    title: str
    why_not: str = ""
    """Why there is nothing to show."""
    lead: str = ""
    """What it tells, in a sentence."""
    values: dict[str, Any] = field(default_factory=dict)


def both(draw: Callable[[float], Chart]) -> list[Chart]:
    """A chart for wide pages and one for narrow ones."""
    return [draw(WIDE), draw(NARROW)]
