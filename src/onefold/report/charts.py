"""The charts of a run as SVG, without scripts.

A `Chart` has a title and a sentence that describes it, for screen readers. Colours are CSS classes with a light and a
dark value, from the style sheet of the page, or inside a chart that is used elsewhere. Bars of one colour are one path:
a chart of sixty bars in four colours is four paths.

The gap map has a strip per key, the worst first, with what was seen and what was not. Strips over time share an axis,
so an outage of many keys shows as a column. Sequences and counters, which have no meaning across keys, have an axis
per key. Each range has a minimum width, so one lost message among millions is visible.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Final

from markupsafe import Markup

from onefold.report.documents import VERDICTS, ReportPart, VerdictTable, named
from onefold.report.text import brief, many, moment, place, share, size, span

WIDE, NARROW = 1000, 350
"""For a page and for a phone, because scaled-down letters cannot be read."""
LETTER: Final = 6.6
"""The approximate width of a letter."""
LABELS: Final = 16
"""The height of a line of labels."""
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
"""The labels of a logarithmic axis of milliseconds, seconds, minutes, hours, days."""
Tick = tuple[float, str]
BINS_MAX: Final = 240
BATCHES_MAX: Final = 500
PHASES_MAX: Final = 30
MARKED: Final = ("0.5", "0.99", "0.999")
"""Quantiles of the lags that are marked."""
LEFT: Final = 54
"""The left edge of plots, after a number."""
KINDS: Final = {
    "missing": "missing: known to exist, never arrived",
    "forgotten": "forgotten: its memory was given up",
    "unfillable": "unfillable: asked for, and given up",
}
"""The kinds of missing ranges; also the names of the colours."""
STRIPS_MAX: Final = 300
RANGES_MAX: Final = 40
KEY_CHARS_MAX: Final = 40
KEY_COLUMNS_MAX: Final = 8
HAIR: Final = 1.5
"""The minimum width of a range, in units of the picture."""
UNITS: Final = 1000
"""The width of a strip before it is stretched."""
DRAWN_MAX: Final = 25
"""How many strips a chart shows, and how many of a page are not folded."""


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    title: str
    told: str
    """What the chart shows, in a sentence."""
    width: float
    height: float
    body: Markup = field(repr=False)
    stretched: bool = False
    """Whether it may be stretched; then it holds no text."""

    @property
    def inline(self) -> Markup:
        return self._drawn(Markup(""))

    @property
    def decoration(self) -> Markup:
        """Hidden from screen readers, for places where the text says the same."""
        return Markup(
            '<svg class="chart" viewBox="0 0 {w} {h}" width="{w}" height="{h}" aria-hidden="true">{b}</svg>'
        ).format(w=_n(self.width), h=_n(self.height), b=self.body)

    @property
    def svg(self) -> str:
        """A picture with its own style sheet."""
        return str(self._drawn(Markup("<style>{}</style>").format(Markup(palette()))))  # noqa: S704  # our own file

    def _repr_svg_(self) -> str:
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
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def box(x: float, y: float, width: float, height: float) -> str:
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h{_n(-width)}z"


def path(pieces: Iterable[str], kind: str) -> Markup:
    drawn = "".join(pieces)
    return Markup('<path class="{}" d="{}"/>').format(kind, drawn) if drawn else Markup("")


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> Markup:
    return path([f"M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"], kind)


def label(x: float, y: float, text: str, kind: str = "start") -> Markup:
    """A text; ``kind``: which part of it is at x: start, middle or end."""
    return Markup('<text x="{}" y="{}" class="{}">{}</text>').format(_n(x), _n(y), kind, text)


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot of stacked columns with its own scale."""

    left: float
    top: float
    width: float
    height: float
    highest: float

    def columns(self, stacks: Sequence[Sequence[float]], kinds: Sequence[str]) -> Markup:
        """One column per stack, a colour per kind. Any value above 0 is visible."""
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
        hint = Markup('<path class="hint" d="{}"><title>{}</title></path>')  # a tooltip
        places = (box(self.left + i * step, self.top, step, self.height) for i in range(len(texts)))
        return Markup("").join(hint.format(area, text) for area, text in zip(places, texts, strict=True))


def bars(name: str, title: str, description: str, rows: Sequence[tuple[str, float, str, str]], width: float) -> Chart:
    """Horizontal bars; a row is label, value, the value as text, and colour."""
    highest = max((value for _, value, _, _ in rows), default=0) or 1
    margin = min(width * 0.45, LETTER * max((len(row[0]) for row in rows), default=0) + 12)
    right = 1.3 * LETTER * max((len(row[2]) for row in rows), default=0) + 12  # in bold letters
    room = max(20.0, width - margin - right)
    drawn = []
    for i, (words, value, text, kind) in enumerate(rows):
        y, long = i * 26, max(2.0 if value else 0.0, value / highest * room)
        drawn += [label(0, y + 16, words), path([box(margin, y + 4, long, 16)] if value else [], kind)]
        drawn.append(label(margin + long + 8, y + 16, text, "start strong"))
    return Chart(name, title, description, width, len(rows) * 26, Markup("").join(drawn))


def shares(
    name: str, title: str, description: str, parts: Sequence[tuple[float, str]], width: float, height: float = 14
) -> Chart:
    """One bar, split into its parts; any part above 0 is visible."""
    total = sum(value for value, _ in parts) or 1
    pieces = [(max(3.0, value / total * width), kind) for value, kind in parts if value > 0]
    scale = width / (sum(long for long, _ in pieces) or 1)
    x, drawn = 0.0, []
    for long, kind in pieces:
        drawn.append(path([box(x, 0, max(0.5, long * scale - 1), height)], kind))
        x += long * scale
    return Chart(name, title, description, width, height, Markup("").join(drawn), stretched=True)


def ticks(low: int, high: int, time: bool, most: int) -> list[Tick]:
    """At most ``most`` round values from low to high, with their labels.

    >>> ticks(0, 95, time=False, most=5)
    [(0, '0'), (20, '20'), (40, '40'), (60, '60'), (80, '80')]
    >>> [label for _, label in ticks(1_700_000_000_000, 1_700_003_600_000, time=True, most=4)]
    ['22:15', '22:30', '22:45', '23:00']
    >>> [label for _, label in ticks(1_000_000, 1_000_250, time=False, most=3)]  # abbreviated, all would be 1 M
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


def axis(ticks: Iterable[Tick], at: Callable[[float], float], ground: float) -> Markup:
    """The ticks of an axis with their labels below it."""
    drawn = []
    for value, text in ticks:
        drawn += [line(at(value), ground, at(value), ground + 4, "axis")]
        drawn += [label(at(value), ground + LABELS, text, "middle")]
    return Markup("").join(drawn)


def law(ledger: VerdictTable, width: float) -> Chart:
    parts = list(zip(ledger.totals, VERDICTS, strict=True))
    words = ", ".join(f"{n:,} {name} ({share(n, ledger.judged)})" for n, name in parts)
    return shares("law", "All messages by verdict", words, parts, width)


def timeline(part: ReportPart, width: float) -> Chart:
    """Verdicts over time: all of them, and below, on its own scale, what does not count."""
    bins = [counts.counts() for counts in part["bins"].each(BINS_MAX)]
    low, high, time = part["from"].whole(), part["to"].whole(), part["time"].value is True
    room = width - LEFT - 4
    every = Panel(LEFT, 24, room, 140, max(map(sum, bins), default=0))
    rest = Panel(LEFT, 206, room, 80, max((sum(counts[1:]) for counts in bins), default=0))
    edges = [low + (high - low) * i // max(1, len(bins)) for i in range(len(bins) + 1)]
    hints = [
        f"{place(edge, time)}: " + ", ".join(f"{n:,} {name}" for n, name in zip(counts, VERDICTS, strict=True) if n)
        for edge, counts in zip(edges, bins, strict=False)
    ]
    per_ms = room / max(1, high - low)
    round_places = ticks(low, high, time, int(width / 110))
    drawn = [
        every.frame("all messages", brief), every.columns(bins, VERDICTS), every.hints(hints),
        rest.frame("only what does not count", brief), rest.columns([b[1:] for b in bins], VERDICTS[1:]),
        rest.hints(hints), axis(round_places, lambda value: LEFT + (value - low) * per_ms, 286),
    ]  # fmt: skip
    peak = max(range(len(bins)), key=lambda i: sum(bins[i][1:]), default=0)
    most = f"Most of what does not count is at {place(edges[peak], time)}." if rest.highest else "Everything counts."
    words = f"From {place(low, time)} to {place(high, time)}{' UTC' if time else ''}. {most}"
    return Chart("timeline", "Verdicts over time", words, width, 286 + LABELS + 6, Markup("").join(drawn))


def lags(part: ReportPart, width: float) -> Chart:
    """How long after the first its copies came, on a logarithmic axis, with the window."""
    bins = [(b[0].real(), b[1].real(), b[2].count()) for b in (row.row(3) for row in part["bins"].each(BINS_MAX))]
    window = part["window_ms"].real() if part["window_ms"] else None
    marks = [(value.real(), f"{100 * float(q):g} %") for q, value in part["quantiles"].fields() if q in MARKED]
    top = 20.0 + 14 * (len(marks) + (window is not None))
    panel = Panel(LEFT, top, width - LEFT - 12, 150, max((count for _, _, count in bins), default=0))
    highest = max([to for _, to, _ in bins] + [window or 0])
    doublings = math.log2(max(1.0, highest) + 1)

    def at(value: float) -> float:
        return panel.left + math.log2(max(0.0, value) + 1) / doublings * panel.width

    ground = panel.top + panel.height
    pieces = []
    for low, high, count in bins:
        if count:
            tall = max(1.5, count / (panel.highest or 1) * panel.height)
            pieces.append(box(at(low), ground - tall, max(1.0, at(high) - at(low) - 1), tall))
    notes = [(value, f"{words} within {span(value)}", "mark") for value, words in marks]
    notes += [(window, f"window: {span(window)}", "window")] if window is not None else []
    drawn = [panel.frame("", brief), path(pieces, "repeat")]
    drawn += [line(at(value), 5 + 14 * i, at(value), ground, kind) for i, (value, _, kind) in enumerate(notes)]
    for i, (value, words, kind) in enumerate(notes):
        x, strong = at(value), " strong" if kind == "window" else ""
        fits = x + 6 + LETTER * len(words) < width  # else the text goes to the left of the line
        drawn.append(label(x + 5 if fits else x - 5, 14 + 14 * i, words, f"{'start' if fits else 'end'}{strong}"))
    labelled: list[Tick] = []
    for value in SPAN_TICKS:
        if value <= highest and (not labelled or at(value) - at(labelled[-1][0]) >= 52):
            labelled.append((value, span(value)))
    drawn.append(axis(labelled, at, ground))
    words = "; ".join(f"{words} of the copies came within {span(value)}" for value, words in marks)
    return Chart(
        "lags", "Time between a first and its copies", f"{words}.", width, ground + LABELS + 6, Markup("").join(drawn)
    )


def state(document: ReportPart, ledger: VerdictTable, width: float) -> Chart:
    entries, ids = document["state_entries"].count(), ledger["first"]
    kinds = (("onefold remembers", entries, "first"), ("a set of all ids", ids, "repeat"))
    rows = [(words, float(count), f"{count:,}", kind) for words, count, kind in kinds]
    return bars("state", "Memory, in entries", f"{entries:,} entries against {ids:,} ids.", rows, width)


def phases(part: ReportPart, width: float) -> Chart:
    steps = [(row[0].text(28), row[1].real()) for row in (row.row(2) for row in part.each(PHASES_MAX))]
    words = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in steps)
    rows = [(name, seconds, f"{seconds:,.1f} s", "first") for name, seconds in steps]
    return bars("phases", "Time by step", f"{words}.", rows, width)


def batches(part: ReportPart, width: float) -> Chart:
    """A stream, batch by batch: rows by verdict, duration, and size of the memory."""
    rows = [row.row(5) for row in part.each()[-BATCHES_MAX:]]
    stacks = [row[4].counts() for row in rows]
    room = width - LEFT - 4
    first = Panel(LEFT, 24, room, 110, max(map(sum, stacks), default=0))
    drawn = [first.frame("rows, by verdict", brief), first.columns(stacks, VERDICTS)]
    bottom = 134.0
    for i, title, description in ((2, "seconds", brief), (3, "bytes remembered", size)):
        if any(row[i] for row in rows):
            values = [row[i].real() if row[i] else 0.0 for row in rows]
            panel = Panel(LEFT, bottom + 42, room, 70, max(values))
            drawn += [panel.frame(title, description), panel.columns([(value,) for value in values], ("neutral",))]
            bottom = panel.top + panel.height
    numbers = [row[0].whole() for row in rows] or [0]
    drawn.append(label(LEFT, bottom + LABELS, f"batch {numbers[0]:,}"))
    drawn.append(label(width - 4, bottom + LABELS, f"{numbers[-1]:,}", "end"))
    words = f"{many(len(rows), 'batch', 'batches')}, {numbers[0]:,} to {numbers[-1]:,}."
    return Chart("batches", "Batches", words, width, bottom + LABELS + 6, Markup("").join(drawn))


@dataclass(frozen=True, slots=True)
class Strip:
    key: list[tuple[str, str]]
    low: int
    high: int
    ranges: int
    missing: float
    shown: list[tuple[int | None, int, str]]

    @property
    def name(self) -> str:
        return " / ".join(value for _, value in self.key)

    def by_kind(self, time: bool) -> list[tuple[str, list[tuple[str, str]]]]:
        """The ranges by kind, as text: after what, up to what."""
        kinds = {kind: [range_words(a, b, time) for a, b, of in self.shown if of == kind] for kind in KINDS}
        return [(kind, ranges) for kind, ranges in kinds.items() if ranges]

    def ends(self, time: bool) -> str:
        return " to ".join(range_words(self.low, self.high, time))

    def drawn(self, axis: tuple[int, int], width: float, top: float = 0, height: float = 14, left: float = 0) -> Markup:
        low, high = axis
        scale = width / max(1, high - low)

        def piece(start: int, end: int) -> str:
            a, b = (min(max((value - low) * scale, 0), width) for value in (start, end))
            return box(left + min(a, width - HAIR), top, max(HAIR, b - a), height)

        kinds = {"seen": [piece(self.low, self.high)]}
        for kind in KINDS:
            kinds[kind] = [piece(self.low if a is None else a, b) for a, b, of in self.shown if of == kind]
        return Markup("").join(path(pieces, kind) for kind, pieces in kinds.items())


@dataclass(frozen=True, slots=True)
class GapMap:
    """The strips, and their shared axis, if any."""

    strips: list[Strip]
    keys: int
    time: bool
    shared: tuple[int, int] | None

    def axis(self, strip: Strip) -> tuple[int, int]:
        return self.shared or (strip.low, strip.high)

    def ticks(self, most: int) -> list[Tick]:
        return ticks(*self.shared, time=True, most=most) if self.shared else []

    def scale(self) -> Chart:
        """The shared axis alone, about as wide as the strips of a page."""
        low, high = self.shared or (0, 1)
        width = 580.0
        drawn = []
        for value, words in self.ticks(int(width / 110)):
            x = (value - low) * width / max(1, high - low)
            drawn += [line(x, 0, x, 4, "axis"), label(min(max(x, 18), width - 18), LABELS, words, "middle")]
        return Chart("scale", "", "", width, LABELS + 4, Markup("").join(drawn))

    def chart(self, width: float) -> Chart:
        strips = self.strips[:DRAWN_MAX]
        margin = min(width * 0.35, 10 + LETTER * max((len(strip.name) for strip in strips), default=0))
        room, letters = width - margin - 150, int((margin - 10) / LETTER)
        drawn: list[Markup] = []
        for i, strip in enumerate(strips):
            name = strip.name if len(strip.name) <= letters else strip.name[: max(1, letters - 1)] + "…"
            words = f"{many(strip.ranges, 'range')}, {share(strip.missing, 1)}"
            drawn += [label(0, 24 * i + 13, name), strip.drawn(self.axis(strip), room, 24 * i + 2, 14, margin)]
            drawn.append(label(margin + room + 8, 24 * i + 13, words))
        foot = 24 * len(strips)
        if self.shared:
            low, high = self.shared
            scale = room / max(1, high - low)
            drawn.append(axis(self.ticks(int(room / 110)), lambda value: margin + (value - low) * scale, foot))
        words = f"The {len(strips)} worst of {many(self.keys, 'key')}: where messages are missing."
        return Chart("gap_map", "Gap map", words, width, foot + LABELS + 6, Markup("").join(drawn))


def read_gap_map(document: ReportPart) -> GapMap:
    part, timeline = document["figures"]["strips"], document["figures"]["timeline"]
    time = part["time"].value is True
    strips = []
    for row in part["rows"].each(STRIPS_MAX):
        ranges = []
        for entry in row["shown"].each(RANGES_MAX):
            lower, upper, of = entry.row(3)
            if (kind := of.text()) not in KINDS:
                of.wrong(f"one of {', '.join(KINDS)}")
            ranges.append((lower.whole() if lower else None, upper.whole(), kind))
        key = named(row["key"], KEY_CHARS_MAX)[:KEY_COLUMNS_MAX]
        missing = row["missing"].real() if row["missing"] else 0.0
        strips.append(Strip(key, row["from"].whole(), row["to"].whole(), row["ranges"].count(), missing, ranges))
    shared = None
    if time and strips and timeline and timeline["column"].value == part["column"].value:
        shared = timeline["from"].whole(), timeline["to"].whole()  # wrong numbers far away do not stretch it
    elif time and strips:
        shared = min(strip.low for strip in strips), max(strip.high for strip in strips)
    return GapMap(strips, max(len(strips), part["keys"].count()), time, shared)


def range_words(lower: int | None, upper: int, time: bool) -> tuple[str, str]:
    """A range as text: after what, up to what; the day is not repeated.

    >>> range_words(1_700_000_000_000, 1_700_000_000_500, time=True), range_words(None, 7, time=False)
    (('2023-11-14 22:13:20.000', '22:13:20.500'), ('the beginning', '7'))
    """
    after, upto = place(lower, time), place(upper, time)
    day = after[:11]
    return after, upto.removeprefix(day) if time and day.endswith(" ") else upto
