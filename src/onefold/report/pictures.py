"""The charts of a run, each from its part of the document: what is drawn, over which axis, and said in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from onefold.report.charts import LABELS, LETTER, Chart, Panel, bars, box, label, line, path, shares
from onefold.report.ledger import VERDICTS, Ledger
from onefold.report.quantities import brief, many, place, share, size, span
from onefold.report.reading import Part
from onefold.report.scales import logarithmic, span_ticks, ticks

BINS_MAX: Final = 240
BATCHES_MAX: Final = 500
PHASES_MAX: Final = 30
LEFT: Final = 54
"""Where the plots begin: there is room for a number before them."""


def law(ledger: Ledger, width: float) -> Chart:
    """What came in, cut into the four verdicts."""
    told = ", ".join(
        f"{n:,} {name} ({share(n, ledger.judged)})" for n, name in zip(ledger.totals, VERDICTS, strict=True)
    )
    return shares("law", "All messages by verdict", told, list(zip(ledger.totals, VERDICTS, strict=True)), width)


def timeline(part: Part, width: float) -> Chart:
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
        rest.hints(words), *_axis(ticks(low, high, time, int(width / 110)), LEFT, per_ms, low, 286),
    ]  # fmt: skip
    peak = max(range(len(bins)), key=lambda i: sum(bins[i][1:]), default=0)
    told = f"From {place(low, time)} to {place(high, time)}{' UTC' if time else ''}. "
    told += f"Most of what does not count is at {place(edges[peak], time)}." if rest.highest else "Everything counts."
    return Chart("timeline", "Verdicts over time", told, width, 286 + LABELS + 6, Markup("").join(drawn))


def _axis(places: Sequence[tuple[float, str]], left: float, scale: float, low: float, y: float) -> list[Markup]:
    drawn = []
    for value, words in places:
        x = left + (value - low) * scale
        drawn += [line(x, y, x, y + 4, "axis"), label(x, y + LABELS, words, "middle")]
    return drawn


def lags(part: Part, width: float) -> Chart:
    """How long after the first its copies came, on a logarithmic axis, with the window drawn in."""
    bins = [(b[0].real(), b[1].real(), b[2].count()) for b in (row.row(3) for row in part["bins"].each(BINS_MAX))]
    window = part["window_ms"].real() if part["window_ms"] else None
    marks = [(value.real(), f"{100 * float(q):g} %") for q, value in part["quantiles"].fields() if _marked(q)]
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
    drawn += [_beside(at(value), 14 + 14 * i, words, kind, width) for i, (value, words, kind) in enumerate(notes)]
    for tick, words in span_ticks(highest, at, 52):
        drawn += [
            line(at(tick), ground, at(tick), ground + 4, "axis"),
            label(at(tick), ground + LABELS, words, "middle"),
        ]
    told = "; ".join(f"{words} of the copies came within {span(value)}" for value, words in marks)
    return Chart(
        "lags", "Time between a first and its copies", f"{told}.", width, ground + LABELS + 6, Markup("").join(drawn)
    )


def _marked(quantile: str) -> bool:
    return quantile in ("0.5", "0.99", "0.999")


def _beside(x: float, y: float, words: str, kind: str, width: float) -> Markup:
    """What a line means, on the side of it where there is room."""
    fits = x + 6 + LETTER * len(words) < width
    return label(
        x + 5 if fits else x - 5, y, words, f"{'start' if fits else 'end'}{' strong' if kind == 'window' else ''}"
    )


def state(document: Part, ledger: Ledger, width: float) -> Chart:
    """What is remembered, against a set of all ids."""
    entries, ids = document["state_entries"].count(), ledger["first"]
    rows = [
        ("onefold remembers", float(entries), f"{entries:,}", "first"),
        ("a set of all ids", float(ids), f"{ids:,}", "repeat"),
    ]
    return bars("state", "Memory, in entries", f"{entries:,} entries against {ids:,} ids.", rows, width)


def phases(part: Part, width: float) -> Chart:
    """Where the time went."""
    found = [(row[0].text(28), row[1].real()) for row in (row.row(2) for row in part.each(PHASES_MAX))]
    told = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in found)
    rows = [(name, seconds, f"{seconds:,.1f} s", "first") for name, seconds in found]
    return bars("phases", "Time by step", f"{told}.", rows, width)


def batches(part: Part, width: float) -> Chart:
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
    told = f"{many(len(rows), 'batch', 'batches')}, {numbers[0]:,} to {numbers[-1]:,}."
    return Chart("batches", "Batches", told, width, bottom + LABELS + 6, Markup("").join(drawn))
