"""The sections on what happened and what it cost: of each, what is shown, or why there is nothing to show.

A section takes what it needs from the document and hands plain values to its template; nothing is decided there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onefold.report import pictures
from onefold.report.charts import shares
from onefold.report.gap_map import DRAWN_MAX, KINDS, UNITS, read_gap_map
from onefold.report.ledger import VERDICTS, Ledger, key_word
from onefold.report.quantities import many, share, size, span
from onefold.report.reading import Part, named
from onefold.report.section import OLD, Section, both

KEYS_MAX: Final = 20


def over_time(document: Part, ledger: Ledger) -> Section:
    """Verdicts over event time."""
    part = document["figures"]["timeline"]
    if not part:
        why = "No column says when a message was sent." if document["figures"] else OLD
        return Section("over_time", "Verdicts over time", why)
    outside = part["outside"].counts() if part["outside"] else (0, 0, 0, 0)
    lead = f"By {part['column'].text()}{', in UTC' if part['time'].value is True else ''}."
    if sum(outside):
        told = ", ".join(f"{n:,} {name}" for n, name in zip(outside, VERDICTS, strict=True) if n)
        lead += f" {many(sum(outside), 'message')} outside of this axis: {told}."
    return Section("over_time", "Verdicts over time", "", lead, {"charts": both(lambda w: pictures.timeline(part, w))})


def by_reason(document: Part, ledger: Ledger) -> Section:
    """The books, line by line."""
    lines = [(line, share(line.count, ledger.judged)) for line in ledger.lines]
    others = document["others"].count()
    lead = (
        f"{ledger.law}. {many(others, 'more row')} of the source are no messages: in no book." if others else ledger.law
    )
    return Section("by_reason", "By reason", "" if lines else "Nothing was judged.", lead, {"lines": lines})


def by_key(document: Part, ledger: Ledger) -> Section:
    """The keys with the most that does not count."""
    word = key_word(document)
    title = f"By {word}"
    part = document["figures"]["worst_keys"]
    if not part:
        return Section("by_key", title, OLD)
    rows = []
    for row in part.each(KEYS_MAX):
        key, counts = " / ".join(value for _, value in named(row["key"])), row["counts"].counts()
        bar = shares("key", "", "", list(zip(counts, VERDICTS, strict=True)), 160, 10)
        rows.append({"key": key, "counts": counts, "bar": bar, "rest": share(sum(counts[1:]), sum(counts))})
    names = " / ".join(name for row in part.each(1) for name, _ in named(row["key"]))
    every = f", of {many(document['keys'].count(), word)}" if document["keys"] else ""
    lead = f"The {many(len(rows), word)} with the most that does not count{every}."
    return Section(
        "by_key", title, "" if rows else f"No {word} has anything but firsts.", lead, {"names": names, "rows": rows}
    )


def gaps(document: Part, ledger: Ledger) -> Section:
    """The gap map."""
    title = "Gap map"
    if not document["figures"]["strips"]:
        if document["figures"] and document["missing_ranges"]:
            why = (
                "Nothing is known to be missing."
                if not document["missing_ranges"].count()
                else "This engine keeps no ranges per key."
            )
        else:
            why = "A stream counts what is missing while it goes; it may come yet." if document["batches"] else OLD
        return Section("gaps", title, why)
    found = read_gap_map(document)
    if not found.strips:
        return Section("gaps", title, "Nothing is known to be missing.")
    every = f"{found.keys:,} {key_word(document)}s"
    listed = sum(strip.ranges for strip in found.strips) >= document["missing_ranges"].count()
    told = (
        f"{len(found.strips):,} of {every} lack something" if listed else f"Of {every} the {len(found.strips):,} worst"
    )
    lead = f"{told}, the worst first. Open one to see its ranges."
    values = {
        "map": found,
        "kinds": KINDS,
        "units": UNITS,
        "open_max": DRAWN_MAX,
        "scale": found.scale(),
        "column": document["figures"]["strips"]["column"].text(),
    }
    return Section("gaps", title, "", lead, values)


def lags(document: Part, ledger: Ledger) -> Section:
    """How late copies come, and what windows would do."""
    title, part = "Lag of repeats", document["figures"]["lags"]
    if not part or part["why_not"]:
        return Section("lags", title, f"Not measured: {part['why_not'].text(200)}." if part else OLD)
    if not part["count"].count():
        return Section("lags", title, "There are no copies whose first is known.")
    copies = many(part["count"].count(), "copy", "copies")
    lead = f"How long after its first a copy came, by {part['column'].text()}: {copies}."
    unsure = f"{many(ledger['unsure'], 'message')} unsure"
    entries = f"instead of gaps ({many(document['state_entries'].count(), 'entry', 'entries')}, {unsure}), "
    instead = (
        f"What a window would have done: {'' if part['window_ms'] else entries}it remembers the ids of the last so long"
    )
    values = {"charts": both(lambda w: pictures.lags(part, w)), "windows": list(_windows(document, ledger, part))}
    return Section("lags", title, "", lead, values | {"instead": instead})


def _windows(document: Part, ledger: Ledger, part: Part) -> Iterator[dict[str, str]]:
    """What a memory of the last so many milliseconds would have caught, let through, and held."""
    count, timeline = part["count"].count(), document["figures"]["timeline"]
    ms = timeline["to"].whole() - timeline["from"].whole() if timeline and timeline["time"].value is True else 0
    for quantile, value in part["quantiles"].fields(20):
        try:
            caught = min(1.0, max(0.0, float(quantile)))
        except ValueError:
            Part(quantile, value.where).wrong("a share, such as 0.99")
        held = "" if ms <= 0 else f"about {min(ledger['first'], round(ledger['first'] * value.real() / ms)):,}"
        leaks = round(count * (1 - caught))
        yield {"window": span(value.real()), "caught": f"{100 * caught:g} %", "leaks": f"{leaks:,}", "held": held}


def work(document: Part, ledger: Ledger) -> Section:
    """What it cost: memory, time, throughput; of a stream, its batches."""
    charts, facts = {}, []
    if document["batches"].each():
        charts["Batch by batch"] = both(lambda w: pictures.batches(document["batches"], w))
    if document["state_entries"]:
        charts["Memory, in entries"] = both(lambda w: pictures.state(document, ledger, w))
        times = ledger["first"] / max(1, document["state_entries"].count())
        facts += [f"{times:,.0f} times fewer entries than a set of all ids"] if times >= 1.5 else []
    if document["figures"]["phases"].each():
        charts["Time by step"] = both(lambda w: pictures.phases(document["figures"]["phases"], w))
    if document["seconds"] and (seconds := document["seconds"].real()):
        facts.append(
            f"{many(ledger.received, 'row')} in {seconds:,.1f} s: {ledger.received / seconds:,.0f} rows a second"
        )
    if document["figures"]["bytes_in"]:
        facts.append(f"{size(document['figures']['bytes_in'].count())} read")
    return Section("work", "Memory and time", "" if charts or facts else OLD, "", {"charts": charts, "facts": facts})
