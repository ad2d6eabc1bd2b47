"""The gap map: of each key a strip of what was seen and what was not, the worst first.

Strips over time share one axis, so that an outage that hit many keys stands out as a column. Numbers that only mean
something within a key (sequences, counters) have an axis of their own per key. A range is drawn at least a hair wide:
one lost message among millions is still there to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from onefold.report.charts import LABELS, LETTER, Chart, box, label, line, path
from onefold.report.quantities import many, place, share
from onefold.report.reading import Part, named
from onefold.report.scales import Tick, ticks

KINDS: Final = {
    "missing": "missing: known to exist, never arrived",
    "forgotten": "forgotten: its memory was given up",
    "unfillable": "unfillable: asked for, and given up",
}
"""What can be wrong with a range; the names are those of the colours."""
STRIPS_MAX: Final = 300
RANGES_MAX: Final = 40
KEY_CHARS_MAX: Final = 40
KEY_COLUMNS_MAX: Final = 8
HAIR: Final = 1.5
"""The least width of a range, in units of the picture."""
UNITS: Final = 1000
"""How wide the picture of a strip is before it is stretched to its place."""
DRAWN_MAX: Final = 25
"""How many strips the chart for notebooks has, and how many of a page are not folded."""


@dataclass(frozen=True, slots=True)
class Strip:
    """One key: its columns, where it begins and ends, and its ranges."""

    key: list[tuple[str, str]]
    low: int
    high: int
    ranges: int
    missing: float
    shown: list[tuple[int | None, int, str]]

    @property
    def name(self) -> str:
        """The values of its columns."""
        return " / ".join(value for _, value in self.key)

    def by_kind(self, time: bool) -> list[tuple[str, list[tuple[str, str]]]]:
        """The ranges in words, those of a kind together: after what, up to what."""
        kinds = {kind: [told(a, b, time) for a, b, of in self.shown if of == kind] for kind in KINDS}
        return [(kind, ranges) for kind, ranges in kinds.items() if ranges]

    def ends(self, time: bool) -> str:
        """From where to where the key was seen."""
        return " to ".join(told(self.low, self.high, time))

    def drawn(self, axis: tuple[int, int], width: float, top: float = 0, height: float = 14, left: float = 0) -> Markup:
        """What was seen, and over it what was not, within the axis."""
        low, high = axis
        scale = width / max(1, high - low)

        def piece(start: int, end: int) -> str:
            a, b = (min(max((value - low) * scale, 0), width) for value in (start, end))
            return box(left + min(a, width - HAIR), top, max(HAIR, b - a), height)

        drawn = [path([piece(self.low, self.high)], "seen")]
        for kind in KINDS:
            pieces = [piece(self.low if a is None else a, b) for a, b, of in self.shown if of == kind]
            drawn.append(path(pieces, kind))
        return Markup("").join(drawn)


@dataclass(frozen=True, slots=True)
class GapMap:
    """The strips, and the axis that they share if they do."""

    strips: list[Strip]
    keys: int
    time: bool
    shared: tuple[int, int] | None

    def axis(self, strip: Strip) -> tuple[int, int]:
        """Over what a strip is drawn."""
        return self.shared or (strip.low, strip.high)

    def ticks(self, most: int) -> list[Tick]:
        """Round places of the shared axis."""
        return ticks(*self.shared, time=True, most=most) if self.shared else []

    def scale(self) -> Chart:
        """The shared axis alone, as wide as the strips of a page about are."""
        low, high = self.shared or (0, 1)
        width = 580.0
        drawn = []
        for value, words in self.ticks(int(width / 110)):
            x = (value - low) * width / max(1, high - low)
            drawn += [line(x, 0, x, 4, "axis"), label(min(max(x, 18), width - 18), LABELS, words, "middle")]
        return Chart("scale", "", "", width, LABELS + 4, Markup("").join(drawn))

    def chart(self, width: float) -> Chart:
        """The worst strips as one picture."""
        strips = self.strips[:DRAWN_MAX]
        left = min(width * 0.35, 10 + LETTER * max((len(strip.name) for strip in strips), default=0))
        room, letters = width - left - 150, int((left - 10) / LETTER)
        drawn: list[Markup] = []
        for i, strip in enumerate(strips):
            name = strip.name if len(strip.name) <= letters else strip.name[: max(1, letters - 1)] + "…"
            told = f"{many(strip.ranges, 'range')}, {share(strip.missing, 1)}"
            drawn += [label(0, 24 * i + 13, name), strip.drawn(self.axis(strip), room, 24 * i + 2, 14, left)]
            drawn.append(label(left + room + 8, 24 * i + 13, told))
        foot = 24 * len(strips)
        if self.shared:
            scale = room / max(1, self.shared[1] - self.shared[0])
            for value, words in self.ticks(int(room / 110)):
                x = left + (value - self.shared[0]) * scale
                drawn += [line(x, foot, x, foot + 4, "axis"), label(x, foot + LABELS, words, "middle")]
        told = f"The {len(strips)} worst of {many(self.keys, 'key')}: where messages are missing."
        return Chart("gap_map", "Gap map", told, width, foot + LABELS + 6, Markup("").join(drawn))


def read_gap_map(document: Part) -> GapMap:
    """The strips of a run's document."""
    part, timeline = document["figures"]["strips"], document["figures"]["timeline"]
    time = part["time"].value is True
    strips = [_strip(row) for row in part["rows"].each(STRIPS_MAX)]
    shared = None
    if time and strips:
        same = timeline and timeline["column"].value == part["column"].value
        shared = (
            (timeline["from"].whole(), timeline["to"].whole())  # which no poisoned number has stretched
            if same
            else (min(strip.low for strip in strips), max(strip.high for strip in strips))
        )
    return GapMap(strips, max(len(strips), part["keys"].count()), time, shared)


def _strip(row: Part) -> Strip:
    shown = []
    for entry in row["shown"].each(RANGES_MAX):
        lower, upper, of = entry.row(3)
        if (kind := of.text()) not in KINDS:
            of.wrong(f"one of {', '.join(KINDS)}")
        shown.append((lower.whole() if lower else None, upper.whole(), kind))
    ranges, missing = row["ranges"].count(), row["missing"].real() if row["missing"] else 0.0
    return Strip(
        named(row["key"], KEY_CHARS_MAX)[:KEY_COLUMNS_MAX],
        row["from"].whole(),
        row["to"].whole(),
        ranges,
        missing,
        shown,
    )


def told(lower: int | None, upper: int, time: bool) -> tuple[str, str]:
    """A range in words: after what, up to what; a day is not said twice.

    >>> told(1_700_000_000_000, 1_700_000_000_500, time=True), told(None, 7, time=False)
    (('2023-11-14 22:13:20.000', '22:13:20.500'), ('the beginning', '7'))
    """
    after, upto = place(lower, time), place(upper, time)
    day = after[:11]
    return after, upto.removeprefix(day) if time and day.endswith(" ") else upto
