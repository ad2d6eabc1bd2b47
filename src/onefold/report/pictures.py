"""The charts of a run, each from its part of the document: what is drawn, over which axis, and said in which words.

Of the gap map each key is a strip of what was seen and what was not, the worst first. Strips over time share one axis,
so that an outage that hit many keys stands out as a column. Numbers that only mean something within a key (sequences,
counters) have an axis of their own per key. A range is drawn at least a hair wide: one lost message among millions is
still there to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from onefold.report.charts import (
    LABELS,
    LETTER,
    Chart,
    Panel,
    Tick,
    bars,
    box,
    label,
    line,
    logarithmic,
    path,
    shares,
    span_ticks,
    ticks,
)
from onefold.report.documents import VERDICTS, ReportPart, VerdictTable, named
from onefold.report.text import brief, many, place, share, size, span

BINS_MAX: Final = 240
BATCHES_MAX: Final = 500
PHASES_MAX: Final = 30
MARKED: Final = ("0.5", "0.99", "0.999")
"""Quantiles of the lags that are marked."""
LEFT: Final = 54
"""Where the plots begin: there is room for a number before them."""


def law(ledger: VerdictTable, width: float) -> Chart:
    words = ", ".join(
        f"{n:,} {name} ({share(n, ledger.judged)})" for n, name in zip(ledger.totals, VERDICTS, strict=True)
    )
    return shares("law", "All messages by verdict", words, list(zip(ledger.totals, VERDICTS, strict=True)), width)


def timeline(part: ReportPart, width: float) -> Chart:
    """Verdicts over time: all of them, and below, on a scale of its own, what does not count."""
    bins = [counts.counts() for counts in part["bins"].each(BINS_MAX)]
    low, high, time = part["from"].whole(), part["to"].whole(), part["time"].value is True
    room = width - LEFT - 4
    every = Panel(LEFT, 24, room, 140, max(map(sum, bins), default=0))
    rest = Panel(LEFT, 206, room, 80, max((sum(counts[1:]) for counts in bins), default=0))
    edges = [low + (high - low) * i // max(1, len(bins)) for i in range(len(bins) + 1)]
    words = [
        f"{place(edges[i], time)}: " + ", ".join(f"{n:,} {name}" for n, name in zip(counts, VERDICTS, strict=True) if n)
        for i, counts in enumerate(bins)
    ]
    per_ms = room / max(1, high - low)
    drawn = [
        every.frame("all messages", brief), every.columns(bins, VERDICTS), every.hints(words),
        rest.frame("only what does not count", brief), rest.columns([b[1:] for b in bins], VERDICTS[1:]),
        rest.hints(words),
    ]  # fmt: skip
    for value, text in ticks(low, high, time, int(width / 110)):
        x = LEFT + (value - low) * per_ms
        drawn += [line(x, 286, x, 290, "axis"), label(x, 286 + LABELS, text, "middle")]
    peak = max(range(len(bins)), key=lambda i: sum(bins[i][1:]), default=0)
    summary = f"From {place(low, time)} to {place(high, time)}{' UTC' if time else ''}. "
    summary += (
        f"Most of what does not count is at {place(edges[peak], time)}." if rest.highest else "Everything counts."
    )
    return Chart("timeline", "Verdicts over time", summary, width, 286 + LABELS + 6, Markup("").join(drawn))


def lags(part: ReportPart, width: float) -> Chart:
    """How long after the first its copies came, on a logarithmic axis, with the window drawn in."""
    bins = [(b[0].real(), b[1].real(), b[2].count()) for b in (row.row(3) for row in part["bins"].each(BINS_MAX))]
    window = part["window_ms"].real() if part["window_ms"] else None
    marks = [(value.real(), f"{100 * float(q):g} %") for q, value in part["quantiles"].fields() if q in MARKED]
    top = 20.0 + 14 * (len(marks) + (window is not None))
    panel = Panel(LEFT, top, width - LEFT - 12, 150, max((count for _, _, count in bins), default=0))
    highest = max([to for _, to, _ in bins] + [window or 0])
    at = logarithmic(highest, panel.left, panel.width)
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
        fits = x + 6 + LETTER * len(words) < width  # else the words stand on the other side of the line
        drawn.append(label(x + 5 if fits else x - 5, 14 + 14 * i, words, f"{'start' if fits else 'end'}{strong}"))
    for tick, words in span_ticks(highest, at, 52):
        drawn += [
            line(at(tick), ground, at(tick), ground + 4, "axis"),
            label(at(tick), ground + LABELS, words, "middle"),
        ]
    words = "; ".join(f"{words} of the copies came within {span(value)}" for value, words in marks)
    return Chart(
        "lags", "Time between a first and its copies", f"{words}.", width, ground + LABELS + 6, Markup("").join(drawn)
    )


def state(document: ReportPart, ledger: VerdictTable, width: float) -> Chart:
    entries, ids = document["state_entries"].count(), ledger["first"]
    rows = [
        ("onefold remembers", float(entries), f"{entries:,}", "first"),
        ("a set of all ids", float(ids), f"{ids:,}", "repeat"),
    ]
    return bars("state", "Memory, in entries", f"{entries:,} entries against {ids:,} ids.", rows, width)


def phases(part: ReportPart, width: float) -> Chart:
    steps = [(row[0].text(28), row[1].real()) for row in (row.row(2) for row in part.each(PHASES_MAX))]
    words = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in steps)
    rows = [(name, seconds, f"{seconds:,.1f} s", "first") for name, seconds in steps]
    return bars("phases", "Time by step", f"{words}.", rows, width)


def batches(part: ReportPart, width: float) -> Chart:
    """A stream, batch by batch: rows by verdict, how long it took, and what is remembered."""
    rows = [row.row(5) for row in part.each()[-BATCHES_MAX:]]
    stacks = [row[4].counts() for row in rows]
    panels: list[tuple[str, list[float]]] = []
    for i, title in ((2, "seconds"), (3, "bytes remembered")):
        if any(row[i] for row in rows):
            panels.append((title, [row[i].real() if row[i] else 0.0 for row in rows]))
    room = width - LEFT - 4
    first = Panel(LEFT, 24, room, 110, max(map(sum, stacks), default=0))
    drawn = [first.frame("rows, by verdict", brief), first.columns(stacks, VERDICTS)]
    bottom = 134.0
    for title, values in panels:
        panel = Panel(LEFT, bottom + 42, room, 70, max(values, default=0))
        drawn += [panel.frame(title, size if title.startswith("bytes") else brief)]
        drawn += [panel.columns([(value,) for value in values], ("neutral",))]
        bottom = panel.top + panel.height
    numbers = [row[0].whole() for row in rows] or [0]
    drawn += [
        label(LEFT, bottom + LABELS, f"batch {numbers[0]:,}"),
        label(width - 4, bottom + LABELS, f"{numbers[-1]:,}", "end"),
    ]
    words = f"{many(len(rows), 'batch', 'batches')}, {numbers[0]:,} to {numbers[-1]:,}."
    return Chart("batches", "Batches", words, width, bottom + LABELS + 6, Markup("").join(drawn))


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
        """The ranges in words, those of a kind together: after what, up to what."""
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
        return self.shared or (strip.low, strip.high)

    def ticks(self, most: int) -> list[Tick]:
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
        strips = self.strips[:DRAWN_MAX]
        left = min(width * 0.35, 10 + LETTER * max((len(strip.name) for strip in strips), default=0))
        room, letters = width - left - 150, int((left - 10) / LETTER)
        drawn: list[Markup] = []
        for i, strip in enumerate(strips):
            name = strip.name if len(strip.name) <= letters else strip.name[: max(1, letters - 1)] + "…"
            words = f"{many(strip.ranges, 'range')}, {share(strip.missing, 1)}"
            drawn += [label(0, 24 * i + 13, name), strip.drawn(self.axis(strip), room, 24 * i + 2, 14, left)]
            drawn.append(label(left + room + 8, 24 * i + 13, words))
        foot = 24 * len(strips)
        if self.shared:
            scale = room / max(1, self.shared[1] - self.shared[0])
            for value, words in self.ticks(int(room / 110)):
                x = left + (value - self.shared[0]) * scale
                drawn += [line(x, foot, x, foot + 4, "axis"), label(x, foot + LABELS, words, "middle")]
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
    if time and strips:
        same = timeline and timeline["column"].value == part["column"].value
        shared = (
            (timeline["from"].whole(), timeline["to"].whole())  # which no poisoned number has stretched
            if same
            else (min(strip.low for strip in strips), max(strip.high for strip in strips))
        )
    return GapMap(strips, max(len(strips), part["keys"].count()), time, shared)


def range_words(lower: int | None, upper: int, time: bool) -> tuple[str, str]:
    """A range in words: after what, up to what; a day is not said twice.

    >>> range_words(1_700_000_000_000, 1_700_000_000_500, time=True), range_words(None, 7, time=False)
    (('2023-11-14 22:13:20.000', '22:13:20.500'), ('the beginning', '7'))
    """
    after, upto = place(lower, time), place(upper, time)
    day = after[:11]
    return after, upto.removeprefix(day) if time and day.endswith(" ") else upto
