"""The sections to look things up in: rejected rows, the audit with its ids, a comparison, settings and promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onefold.report import agreement
from onefold.report.comparison import is_diff, read_comparison, spoken
from onefold.report.guarantees import COMPARISON, promised
from onefold.report.ledger import Ledger, engine_of
from onefold.report.quantities import many, share
from onefold.report.reading import COLUMNS_MAX, Part, plain
from onefold.report.section import OLD, Section, both

SAMPLES_MAX: Final = 20
REASONS_MAX: Final = 50
CELL_CHARS_MAX: Final = 120
SETTINGS_MAX: Final = 200


def rejects(document: Part, ledger: Ledger) -> Section:
    """What was refused, and some of it."""
    title = "Rejects"
    if not ledger["reject"]:
        return Section("rejects", title, "No row was rejected.")
    part = document["figures"]["rejects"]
    if not part:
        return Section("rejects", title, OLD)
    rules = {line.reason: line.rule for line in ledger.lines if line.verdict == "reject"}
    groups = []
    for group in part.each(REASONS_MAX):
        rows = group["rows"].each(SAMPLES_MAX)
        names = list(dict.fromkeys(name for row in rows for name, _ in row.fields(COLUMNS_MAX)))[:COLUMNS_MAX]
        cells = [[row[name].text(CELL_CHARS_MAX) for name in names] for row in rows]
        reason = group["reason"].text()
        groups.append({"reason": reason, "count": group["count"].count(), "rule": rules.get(reason, ""),
                       "names": [plain(name) for name in names], "rows": cells})  # fmt: skip
    return Section(
        "rejects", title, "", f"{many(ledger['reject'], 'row')} changed nothing. Some of each kind:", {"groups": groups}
    )


def audit(document: Part, ledger: Ledger) -> Section:
    """Source against sink."""
    part, title = document["audit"], "Audit"
    if not part:
        why = "Not compared with the source: this was a check or a stream; `onefold audit` does it for a stream."
        return Section("audit", title, why if "audit" in document.value or document["batches"] else OLD)
    facts = [(words, part[name]) for name, words in AUDITED.items() if part[name]]
    kinds = [(name, words) for name, words in agreement.KINDS.items() if part["shown"][name].each()]
    shown = [(words, part[name].count(), spoken(part["shown"][name])) for name, words in kinds]
    agrees = part["agrees"].value is True
    lead = f"What the source sent and what can be read in the output {'agree' if agrees else 'do not agree'}."
    told = [(words, f"{fact.count():,}" if type(fact.value) is int else fact.text()) for words, fact in facts]
    if left_out := [name.text() for name in part["left_out"].each(COLUMNS_MAX)]:
        told.append(("columns not compared, by their types", ", ".join(left_out)))
    counted = document["manifest"]
    told += [(words, f"{counted[name].count():,}") for name, words in COUNTED.items() if counted[name].value]
    if counted["not_counted"]:
        told.append(("rows were not counted independently", counted["not_counted"].text(CELL_CHARS_MAX * 2)))
    if aside := counted["set_aside"].each():
        lines = [
            f"{file['path'].text(300)}, {file['size'].count():,} bytes: {file['trouble'].text(300)}" for file in aside
        ]
        shown.append(("files that could not be read, their rows unknown", len(lines), lines[:SAMPLES_MAX]))
    if changed := [line.text(300) for line in counted["changed"].each()]:
        shown.append(("files that changed while they were judged", len(changed), changed[:SAMPLES_MAX]))
    return Section("audit", title, "", lead, {"facts": told, "shown": shown})


COUNTED: Final = {
    "files": "files of the source",
    "rows": "rows in them, counted without the reader",
    "blank": "blank lines",
    "header": "header lines",
}


AUDITED: Final = {
    "source": "rows of the source",
    "published": "rows in the output",
    "missing": "missing in the output",
    "surplus": "not in the source",
    "ids": "messages that count",
    "twice": "of them more than once",
    "repeats": "repeats",
    "orphans": "of them without a first",
    "orphans_by_rule": "without a first by the rule of their reason",
    "fingerprint_source": "fingerprint of the source",
    "fingerprint_published": "fingerprint of the output",
}


def comparison(document: Part) -> Section:
    """Of a diff: how far it had to look, and what it found."""
    found = read_comparison(document)
    equal = share(found.ranges - found.ranges_differing, found.ranges)
    lead = (
        f"{equal} of the ranges were equal by their fingerprints, and never looked at row by row."
        if found.ranges
        else ""
    )
    values = {"charts": both(found.chart), "facts": found.facts, "shown": found.shown}
    return Section("comparison", "What was compared", "", lead, values)


def about(document: Part) -> Section:
    """Settings, versions, promises."""
    settings = [(table, list(_flat(part, ""))) for table, part in document["settings"].fields(20)]
    versions = [(plain(name), part.text()) for name, part in document["figures"]["versions"].fields(20)]
    promises = COMPARISON if is_diff(document) else promised(engine_of(document))
    tables = [(plain(table), keys[:SETTINGS_MAX]) for table, keys in settings if keys]
    values = {"settings": tables, "versions": versions, "promises": promises}
    return Section("about", "About", "", "", values)


def _flat(part: Part, name: str) -> Iterator[tuple[str, str]]:
    """The keys of a table of settings, tables in it joined by dots; lists with commas."""
    if isinstance(part.value, dict):
        for key, inner in part.fields(SETTINGS_MAX):
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(part.value, list):
        yield plain(name), plain(", ".join(str(entry.value) for entry in part.each(SETTINGS_MAX)), CELL_CHARS_MAX)
    elif name:
        yield plain(name), "none" if part.value is None else part.text(CELL_CHARS_MAX)
