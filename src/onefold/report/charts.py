"""Charts as SVG, made here: small, crisp, without a script, and readable where they are put.

A `Chart` knows its words too: a title, and a sentence that says what can be seen, for those who cannot see it. Colours
are classes, which the style sheet of the page, or the one that a chart outside of the page carries along, gives a light
and a dark value. Bars of one colour are one path: a chart of sixty bars in four colours is four paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Final

from markupsafe import Markup

from onefold.report.text import brief, moment, span

WIDE, NARROW = 1000, 350
"""For a page and for a phone: letters in a chart that is shrunk cannot be read."""
LETTER: Final = 6.6
"""How wide a letter of the labels is, about."""
LABELS: Final = 16
"""How high a line of labels is."""


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    title: str
    told: str
    """What can be seen in it, in a sentence."""
    width: float
    height: float
    body: Markup
    stretched: bool = False
    """Whether it takes any shape that it is given; then it holds no words."""

    @property
    def inline(self) -> Markup:
        return self._drawn(Markup(""))

    @property
    def decoration(self) -> Markup:
        """For a place where the words beside it say the same."""
        return Markup(
            '<svg class="chart" viewBox="0 0 {w} {h}" width="{w}" height="{h}" aria-hidden="true">{b}</svg>'
        ).format(w=_n(self.width), h=_n(self.height), b=self.body)

    @property
    def svg(self) -> str:
        """A picture that stands by itself."""
        return str(self._drawn(Markup("<style>{}</style>").format(Markup(palette()))))  # noqa: S704  # our own file

    def _repr_html_(self) -> str:
        return self.svg

    def _drawn(self, style: Markup) -> Markup:
        label = f"{self.name}-{self.width:.0f}"
        return Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {w} {h}" width="{w}" height="{h}"'
            '{free} role="img" aria-labelledby="{label}-t {label}-d"><title id="{label}-t">{title}</title>'
            '<desc id="{label}-d">{description}</desc>{style}{body}</svg>'
        ).format(
            w=_n(self.width), h=_n(self.height), label=label, title=self.title, description=self.told, style=style,
            free=Markup(' preserveAspectRatio="none"') if self.stretched else "", body=self.body,
        )  # fmt: skip


@cache
def palette() -> str:
    return (files("onefold.report") / "templates" / "palette.css").read_text(encoding="utf-8")


def _n(value: float) -> str:
    """A coordinate, without digits that nobody sees."""
    return f"{value:.1f}".removesuffix(".0")


def box(x: float, y: float, width: float, height: float) -> str:
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h{_n(-width)}z"


def path(pieces: Iterable[str], kind: str) -> Markup:
    drawn = "".join(pieces)
    return Markup('<path class="{}" d="{}"/>').format(kind, drawn) if drawn else Markup("")


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> Markup:
    return path([f"M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"], kind)


def label(x: float, y: float, text: str, kind: str = "start") -> Markup:
    """A text; ``kind`` says which of its ends is at x: start, middle or end."""
    return Markup('<text x="{}" y="{}" class="{}">{}</text>').format(_n(x), _n(y), kind, text)


def hint(x: float, y: float, width: float, height: float, text: str) -> Markup:
    return Markup('<path class="hint" d="{}"><title>{}</title></path>').format(box(x, y, width, height), text)


@dataclass(frozen=True, slots=True)
class Panel:
    """Stacked columns over a scale of their own: where they stand, and how high a value is."""

    left: float
    top: float
    width: float
    height: float
    highest: float

    def columns(self, stacks: Sequence[Sequence[float]], kinds: Sequence[str]) -> Markup:
        """One column per stack, a colour per kind. What is not nothing can be seen."""
        step = self.width / max(1, len(stacks))
        gap = 1.0 if step > 4 else 0.0
        pieces: dict[str, list[str]] = {kind: [] for kind in kinds}
        for i, stack in enumerate(stacks):
            floor = self.top + self.height
            for value, kind in zip(stack, kinds, strict=True):
                if value > 0:
                    high = max(1.0, value / (self.highest or 1) * self.height)
                    floor -= high
                    pieces[kind].append(box(self.left + i * step, floor, step - gap, high))
        return Markup("").join(path(drawn, kind) for kind, drawn in pieces.items())

    def frame(self, title: str, description: Callable[[float], str]) -> Markup:
        ground = self.top + self.height
        return Markup("").join(
            (
                line(self.left, ground, self.left + self.width, ground, "axis"),
                line(self.left, self.top, self.left + self.width, self.top),
                label(self.left - 6, self.top + 4, description(self.highest), "end"),
                label(self.left - 6, ground, "0", "end"),
                label(self.left, self.top - 8, title),
            )
        )

    def hints(self, texts: Sequence[str]) -> Markup:
        step = self.width / max(1, len(texts))
        return Markup("").join(
            hint(self.left + i * step, self.top, step, self.height, text) for i, text in enumerate(texts)
        )


def bars(name: str, title: str, description: str, rows: Sequence[tuple[str, float, str, str]], width: float) -> Chart:
    """Lying bars: label, value, the value in words, and colour of each."""
    highest = max((value for _, value, _, _ in rows), default=0) or 1
    left = min(width * 0.4, LETTER * max((len(row[0]) for row in rows), default=0) + 12)
    right = 1.3 * LETTER * max((len(row[2]) for row in rows), default=0) + 12  # in bold letters
    room = max(20.0, width - left - right)
    drawn = []
    for i, (words, value, text, kind) in enumerate(rows):
        y, long = i * 26, max(2.0 if value else 0.0, value / highest * room)
        drawn += [label(0, y + 16, words), path([box(left, y + 4, long, 16)] if value else [], kind)]
        drawn.append(label(left + long + 8, y + 16, text, "start strong"))
    return Chart(name, title, description, width, len(rows) * 26, Markup("").join(drawn))


def shares(
    name: str, title: str, description: str, parts: Sequence[tuple[float, str]], width: float, height: float = 14
) -> Chart:
    """One bar, cut into its parts; a part that is not nothing can be seen."""
    total = sum(value for value, _ in parts) or 1
    pieces = [(max(3.0, value / total * width), kind) for value, kind in parts if value > 0]
    scale = width / (sum(long for long, _ in pieces) or 1)
    x, drawn = 0.0, []
    for long, kind in pieces:
        drawn.append(path([box(x, 0, max(0.5, long * scale - 1), height)], kind))
        x += long * scale
    return Chart(name, title, description, width, height, Markup("").join(drawn), stretched=True)


TIME_STEPS: Final = tuple(
    unit * n
    for unit, times in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 30, 90, 365, 3_650)),
    )
    for n in times
)
SPAN_TICKS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000)
"""Where a span of time is labelled: milliseconds, seconds, minutes, hours, days."""

Tick = tuple[float, str]


def ticks(low: int, high: int, time: bool, most: int) -> list[Tick]:
    """At most so many round places from low to high, with their labels.

    >>> ticks(0, 95, time=False, most=5)
    [(0, '0'), (20, '20'), (40, '40'), (60, '60'), (80, '80')]
    >>> [label for _, label in ticks(1_700_000_000_000, 1_700_003_600_000, time=True, most=4)]
    ['22:15', '22:30', '22:45', '23:00']
    >>> [label for _, label in ticks(1_000_000, 1_000_250, time=False, most=3)]  # which in short would be one number
    ['1,000,000', '1,000,100', '1,000,200']
    """
    least = max(1, high - low) / max(1, most)
    if time:
        step = next((step for step in TIME_STEPS if step >= least), int(least) + 1)
    else:
        size = 10 ** max(0, math.floor(math.log10(least)))
        step = next(size * n for n in (1, 2, 5, 10) if size * n >= least)
    first = -(-low // step) * step
    places = list(range(first, high + 1, step))[: 4 * most]
    labels = [_label(value, step) if time else brief(value) for value in places]
    if not time and len(set(labels)) < len(labels):
        labels = [f"{value:,}" for value in places]
    return list(zip(places, labels, strict=True))


def _label(ms: int, step: int) -> str:
    try:
        when = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return moment(ms)
    if step >= 86_400_000:
        return f"{when:%Y-%m-%d}"
    if step >= 60_000:
        return f"{when:%m-%d}" if when.hour == when.minute == 0 else f"{when:%H:%M}"
    return f"{when:%H:%M:%S}" if step >= 1_000 else f"{when:%S}.{when.microsecond // 1000:03}"


def logarithmic(highest: float, left: float, width: float) -> Callable[[float], float]:
    """Where a span of time stands on an axis whose every doubling is as long; 0 is its left end."""
    whole = math.log2(max(1.0, highest) + 1)
    return lambda value: left + math.log2(max(0.0, value) + 1) / whole * width


def span_ticks(highest: float, room: Callable[[float], float], apart: float) -> list[Tick]:
    """The labelled places of such an axis, no nearer to each other than ``apart``."""
    chosen: list[Tick] = []
    for value in SPAN_TICKS:
        if value <= highest and (not chosen or room(value) - room(chosen[-1][0]) >= apart):
            chosen.append((value, span(value)))
    return chosen
