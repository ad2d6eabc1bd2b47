"""``RunReport``: a run, a stream or a diff as a page, as text, as charts and as figures, from its document.

    from onefold.report import RunReport

    report = RunReport.load("out/run")     # the folder of a run or a stream, or a file with the document
    report                                 # in a notebook: the page
    report.charts["timeline"]              # in a notebook: one chart
    Path("report.html").write_text(report.html(), encoding="utf-8")

The page is one self-contained file without scripts, to mail and to print.

Foreign text is cut, made printable and escaped. Should markup still get through, the content security policy of the
page allows no script, no request, and no style but ours, by its hash. Foldable parts are ``<details>``, which keyboards
and screen readers support.

At the top is the banner (`Standing`): was anything lost, was anything counted twice, is anything missing. It
distinguishes what is *wrong* (bad): onefold lost or doubled a message, or source and sink do not agree, so the output
must not be used; what is *open* (warn): messages that never arrived, rows that were rejected: the run is right, and
somebody should look; and what was *not checked* (note), which is never called right. The sections are below it. Each
takes its values from the document and passes them to its template, or one line on why there is nothing to show; a
template decides nothing.

Cost: a page is below 2 MB and takes about a second, whatever the run, because the reading is bounded.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from os import PathLike
from typing import Any, Final, Literal, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.console import Console, RenderableType
from rich.text import Text

from onefold.errors import BadInput
from onefold.report import agreement, charts, documents, text
from onefold.report.charts import NARROW, WIDE, Chart, label, path, read_gap_map
from onefold.report.documents import VERDICTS, ReportPart, VerdictTable, engine_of, key_word, named, read_ledger
from onefold.report.text import FOREIGN_MAX, many, share, size, span, without_secrets
from onefold.tally import Tally
from onefold.text import plain
from onefold.wording import ENGINES

OLD: Final = "This run did not keep the figures for it."
"""Why old runs lack most sections."""
KEYS_MAX: Final = 20
EVERYWHERE: Final = (
    "Every message gets one verdict and one reason; a run whose books do not balance does not complete.",
    "Nothing is deleted: what does not count is set aside, or marked.",
    "The audit compares what can be read in the output with what was read from the source, row by row where their "
    "fingerprints differ.",
)
COMPARISON: Final = (
    "Two tables are called equal if they hold the same rows, as often, in whatever order.",
    "Ranges of rows are compared by fingerprints; where those differ, row by row, and exactly.",
    "If somebody may want to hide a difference, compare with --hash sha256.",
)
SHOWN_MAX: Final = 20
ID_BYTES: Final = 40
"""The size of a record's name: 32 bytes of id, 8 of timestamp."""
DIFFERING, DOUBLED = "differing", "doubled"
SAMPLES_MAX: Final = 20
REASONS_MAX: Final = 50
CELL_CHARS_MAX: Final = 120
SETTINGS_MAX: Final = 200
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
    "orphans_by_rule": "that lie where nothing is remembered",
    "fingerprint_source": "fingerprint of the source",
    "fingerprint_published": "fingerprint of the output",
}
Level: TypeAlias = Literal["ok", "note", "warn", "bad"]
LINE_CHARS_MAX: Final = 300
"""The longest path, error of a file, or sentence with the name of a column."""
WORDS: Final = {"ok": "good", "note": "not known", "warn": "look at this", "bad": "wrong"}
BYTES_MAX: Final = 2_000_000
"""The largest page, which every mail system accepts."""
FRAME = Markup('<iframe srcdoc="{}" sandbox title="onefold report" width="100%" height="720" frameborder="0"></iframe>')


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; its name is also that of its template."""

    name: str
    title: str
    why_not: str = ""
    lead: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def both(draw: Callable[[float], Chart]) -> list[Chart]:
    return [draw(WIDE), draw(NARROW)]


def over_time(document: ReportPart, ledger: VerdictTable) -> Section:
    part = document["figures"]["timeline"]
    if not part:
        why = "No column has the time of a message." if document["figures"] else OLD
        return Section("over_time", "Verdicts over time", why)
    outside = part["outside"].counts() if part["outside"] else (0, 0, 0, 0)
    lead = f"By {part['column'].text()}{', in UTC' if part['time'].value is True else ''}."
    if sum(outside):
        counts = ", ".join(f"{n:,} {name}" for n, name in zip(outside, VERDICTS, strict=True) if n)
        lead += f" {many(sum(outside), 'message')} outside of this axis: {counts}."
    return Section("over_time", "Verdicts over time", "", lead, {"charts": both(lambda w: charts.timeline(part, w))})


def by_reason(document: ReportPart, ledger: VerdictTable) -> Section:
    lines = [(line, share(line.count, ledger.judged)) for line in ledger.lines]
    others = document["others"].count()
    lead = (
        f"{ledger.law}. {many(others, 'more row')} of the source are no messages: in no book." if others else ledger.law
    )
    return Section("by_reason", "By reason", "" if lines else "Nothing was judged.", lead, {"lines": lines})


def by_key(document: ReportPart, ledger: VerdictTable) -> Section:
    word = key_word(document)
    title = f"By {word}"
    part = document["figures"]["worst_keys"]
    if not part:
        return Section("by_key", title, OLD)
    rows = []
    for row in part.each(KEYS_MAX):
        key, counts = " / ".join(value for _, value in named(row["key"])), row["counts"].counts()
        bar = charts.shares("key", "", "", list(zip(counts, VERDICTS, strict=True)), 160, 10)
        rows.append({"key": key, "counts": counts, "bar": bar, "rest": share(sum(counts[1:]), sum(counts))})
    names = " / ".join(name for row in part.each(1) for name, _ in named(row["key"]))
    every = f", of {many(document['keys'].count(), word)}" if document["keys"] and not _goes_on(document) else ""
    lead = f"The {many(len(rows), word)} with the most that does not count{every}."
    if document["path"]:
        command = f"onefold explain {shlex.quote(document['path'].text(200))} {word.upper()}"
        lead += f" `{command}` shows every message of one."
    return Section(
        "by_key", title, "" if rows else f"No {word} has anything but firsts.", lead, {"names": names, "rows": rows}
    )


def gaps(document: ReportPart, ledger: VerdictTable) -> Section:
    title, figures = "Gap map", document["figures"]
    gap_map = read_gap_map(document) if figures["strips"] else None
    if gap_map is None or not gap_map.strips:
        if gap_map is None and not (figures and document["missing_ranges"]):
            why = "A stream counts what is missing while it runs; it may still come." if document["batches"] else OLD
        elif _is_unknown(document, "lost"):
            why = "These columns do not show what never came."
        elif gap_map is None and document["missing_ranges"].count():
            why = "This engine keeps no ranges per key."
        else:
            why = "Nothing is known to be missing."
        return Section("gaps", title, why)
    every = f"{gap_map.keys:,} {key_word(document)}s"
    listed = sum(strip.ranges for strip in gap_map.strips) >= document["missing_ranges"].count()
    count = f"{len(gap_map.strips):,}"
    extent = f"{count} of {every} lack something" if listed else f"Of {every} the {count} worst"
    lead = f"{extent}, the worst first. Open one to see its ranges."
    lead += (
        f" All of them are in {document['path'].text(200)}/gaps, to ask the senders for." if document["path"] else ""
    )
    values = {
        "map": gap_map,
        "kinds": charts.KINDS,
        "units": charts.UNITS,
        "open_max": charts.DRAWN_MAX,
        "scale": gap_map.scale(),
        "column": figures["strips"]["column"].text(),
    }
    return Section("gaps", title, "", lead, values)


def lags(document: ReportPart, ledger: VerdictTable) -> Section:
    title, part = "Lag of repeats", document["figures"]["lags"]
    if not part or part["why_not"]:
        return Section("lags", title, f"Not measured: {part['why_not'].text(200)}." if part else OLD)
    if not part["count"].count():
        return Section("lags", title, "There are no copies whose first is known.")
    copies = many(part["count"].count(), "copy", "copies")
    lead = f"How long after its first a copy came, by {part['column'].text()}: {copies}."
    held = many(document["state_entries"].count(), "entry", "entries")
    entries = f"instead of what this engine remembers ({held}, {many(ledger['unsure'], 'message')} unsure), "
    instead = (
        f"What a window would have done: {'' if part['window_ms'] else entries}it remembers the ids of the last so long"
    )
    # What a memory of this window would have caught, let through, and held.
    count, timeline = part["count"].count(), document["figures"]["timeline"]
    ms = timeline["to"].whole() - timeline["from"].whole() if timeline and timeline["time"].value is True else 0
    windows: list[dict[str, str]] = []
    for quantile, value in part["quantiles"].fields(20):
        try:
            caught = min(1.0, max(0.0, float(quantile)))
        except ValueError:
            ReportPart(quantile, value.where).wrong("a share, such as 0.99")
        ids = "" if ms <= 0 else f"about {min(ledger['first'], round(ledger['first'] * value.real() / ms)):,}"
        leaks = f"{round(count * (1 - caught)):,}"
        if windows and windows[-1]["window"] == span(value.real()):  # keep the larger share of equal windows
            windows.pop()
        windows.append({"window": span(value.real()), "caught": f"{100 * caught:g} %", "leaks": leaks, "held": ids})
    values = {"charts": both(lambda w: charts.lags(part, w)), "windows": windows, "instead": instead}
    return Section("lags", title, "", lead, values)


def work(document: ReportPart, ledger: VerdictTable) -> Section:
    drawn, facts = {}, []
    if document["batches"].each():
        drawn["Batch by batch"] = both(lambda w: charts.batches(document["batches"], w))
    if document["state_entries"]:
        drawn["Memory, in entries"] = both(lambda w: charts.state(document, ledger, w))
        times = ledger["first"] / max(1, document["state_entries"].count())
        facts += [f"{times:,.0f} times fewer entries than a set of all ids"] if times >= 1.5 else []
    if document["figures"]["phases"].each():
        drawn["Time by step"] = both(lambda w: charts.phases(document["figures"]["phases"], w))
    if document["seconds"] and (seconds := document["seconds"].real()):
        facts.append(
            f"{many(ledger.received, 'row')} in {seconds:,.1f} s: {ledger.received / seconds:,.0f} rows a second"
        )
    if document["figures"]["bytes_in"]:
        facts.append(f"{size(document['figures']['bytes_in'].count())} read")
    return Section("work", "Memory and time", "" if drawn or facts else OLD, "", {"charts": drawn, "facts": facts})


@dataclass(frozen=True, slots=True)
class Comparison:
    sides: tuple[str, str]
    """The names of the sides: "in A" and "in B", or "here" and "there"."""
    rows: tuple[int, int]
    only: tuple[int, int]
    differing: int
    doubled: int
    equal: bool
    ranges: int
    ranges_differing: int
    wire: tuple[int, int, int] | None
    """Round trips, bytes up, bytes down; None if both sides were read."""
    copied: int
    shown: list[tuple[str, int, list[str]]]
    """For each kind of difference: its name, its count, and some of its rows."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        a, b = self.sides
        facts = [(f"rows {a}", self.rows[0]), (f"rows {b}", self.rows[1])]
        facts += [(f"only {a}", self.only[0]), (f"only {b}", self.only[1])]
        if self.wire is None:
            facts += [("keys with other content", self.differing), ("keys more often in one", self.doubled)]
            facts += [("appended by the repair", self.copied)]
        else:
            facts += list(zip(("round trips", "bytes up", "bytes down"), self.wire, strict=True))
        return [(name, f"{count:,}") for name, count in facts]

    def chart(self, width: float) -> Chart:
        if self.wire is not None:
            moved, every = self.wire[1] + self.wire[2], ID_BYTES * min(self.rows)
            words = f"{size(moved)} went over the wire; all ids of the smaller side would have been {size(every)}."
            rows = [
                ("over the wire", float(moved), size(moved), "missing"),
                ("a list of all ids", float(every), size(every), "repeat"),
            ]
            return charts.bars("wire", "Bytes to find the differences", words, rows, width)
        # One fingerprint of all rows, then ranges, then the rows of ranges that differ.
        row_count = sum(self.rows)
        looked = round(row_count * self.ranges_differing / self.ranges) if self.ranges else 0
        steps = (
            (1, int(not self.equal), f"1 fingerprint of each, {'the same' if self.equal else 'not the same'}"),
            (self.ranges, self.ranges_differing, f"{many(self.ranges, 'range')}, {self.ranges_differing:,} differ"),
            (row_count, looked, f"{many(row_count, 'row')}, about {looked:,} looked at one by one"),
        )
        drawn = []
        for i, (whole, part, words) in enumerate(steps):
            y, long = i * 46, width * part / (whole or 1)
            drawn += [label(0, y + 13, words), path([charts.box(0, y + 18, width, 14)], "seen")]
            drawn.append(path([charts.box(0, y + 18, max(2.0, long), 14)] if part else [], "missing"))
        words = "; ".join(words for _, _, words in steps)
        return Chart("ranges", "What was compared", f"{words}.", width, 3 * 46 - 10, Markup("").join(drawn))


def is_diff(document: ReportPart) -> bool:
    return not document["tally"] and bool(document["rows_a"] or document["rows_peer"])


def read_comparison(document: ReportPart) -> Comparison:
    peer = bool(document["rows_peer"])
    rows = ("rows", "rows_peer") if peer else ("rows_a", "rows_b")
    only = ("only_here", "only_there") if peer else ("only_a", "only_b")
    sides = ("here", "there") if peer else ("in A", "in B")
    words = dict(zip(only, (f"only {side}" for side in sides), strict=True)) | {
        DIFFERING: "differs",
        DOUBLED: "doubled",
    }
    wire = tuple(document[name].count() for name in ("rounds", "bytes_up", "bytes_down"))
    first, second, differing, doubled = (document[name].count() for name in (*only, DIFFERING, DOUBLED))
    return Comparison(
        sides=sides,
        rows=(document[rows[0]].count(), document[rows[1]].count()),
        only=(first, second),
        differing=differing,
        doubled=doubled,
        equal=document["equal"].value is True and not (first or second or differing or doubled),
        ranges=document["ranges"].count(),
        ranges_differing=document["ranges_differing"].count(),
        wire=(wire[0], wire[1], wire[2]) if peer else None,
        copied=document["copied"].count(),
        shown=[
            (text, document[name].count(), spoken(document["shown"][name]))
            for name, text in words.items()
            if document["shown"][name].each()
        ],
    )


def spoken(rows: ReportPart) -> list[str]:
    words = []
    for row in rows.each(SHOWN_MAX):
        is_pair = bool(row["differs_in"] or row["rows_a"])
        cells = ", ".join(f"{name} {value}" for name, value in named(row))
        words.append(plain(agreement.row_text(row.value), agreement.CHANGE_CHARS_MAX) if is_pair else cells)
    return words


def rejects(document: ReportPart, ledger: VerdictTable) -> Section:
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
        cut = documents.COLUMNS_MAX  # a row that could not be read has only its text
        filled = dict.fromkeys(name for row in rows for name, part in row.fields(cut) if part.value is not None)
        names = list(filled or dict.fromkeys(name for row in rows for name, _ in row.fields(cut)))[:cut]
        cells = [[row[name].text(CELL_CHARS_MAX) for name in names] for row in rows]
        reason = group["reason"].text()
        groups.append({"reason": reason, "count": group["count"].count(), "rule": rules.get(reason, ""),
                       "names": [plain(name, FOREIGN_MAX) for name in names], "rows": cells})  # fmt: skip
    folder = f" All of them are in {document['path'].text(200)}/rejects."
    kept = document["path"] and document["settings"]["publish"]["strategy"].value == "drop"
    lead = f"{many(ledger['reject'], 'row')} changed nothing.{folder if kept else ''} Some of each kind:"
    return Section("rejects", title, "", lead, {"groups": groups})


def audit(document: ReportPart, ledger: VerdictTable) -> Section:
    part, title = document["audit"], "Audit"
    if not part:
        why = "Not compared with the source: this was a check or a stream; `onefold audit` does it for a stream."
        return Section("audit", title, why if "audit" in document.value or document["batches"] else OLD)
    facts = [(words, part[name]) for name, words in AUDITED.items() if part[name]]
    kinds = [(name, words) for name, words in agreement.KINDS.items() if part["shown"][name].each()]
    samples = [(words, part[name].count(), spoken(part["shown"][name])) for name, words in kinds]
    agrees = part["agrees"].value is True
    lead = f"What the source sent and what can be read in the output {'agree' if agrees else 'do not agree'}."
    lines = [(words, f"{fact.count():,}" if type(fact.value) is int else fact.text()) for words, fact in facts]
    if columns := [name.text() for name in part["left_out"].each(documents.COLUMNS_MAX)]:
        lines.append(("columns not compared, by their types", ", ".join(columns)))
    counted = document["manifest"]
    lines += [(words, f"{counted[name].count():,}") for name, words in COUNTED.items() if counted[name].value]
    if counted["not_counted"]:
        lines.append(("rows were not counted independently", counted["not_counted"].text(CELL_CHARS_MAX * 2)))
    if aside := counted["set_aside"].each():
        unread = [
            f"{file['path'].text(300)}, {file['size'].count():,} bytes: {file['trouble'].text(300)}" for file in aside
        ]
        samples.append(("files that could not be read, their rows unknown", len(unread), unread[:SAMPLES_MAX]))
    if changed := [line.text(LINE_CHARS_MAX) for line in counted["changed"].each()]:
        samples.append(("files that changed while they were judged", len(changed), changed[:SAMPLES_MAX]))
    return Section("audit", title, "", lead, {"facts": lines, "shown": samples})


def comparison(document: ReportPart) -> Section:
    diff = read_comparison(document)
    equal = share(diff.ranges - diff.ranges_differing, diff.ranges)
    lead = (
        f"{equal} of the ranges were equal by their fingerprints, and never looked at row by row."
        if diff.ranges
        else ""
    )
    values = {"charts": both(diff.chart), "facts": diff.facts, "shown": diff.shown}
    return Section("comparison", "What was compared", "", lead, values)


def about(document: ReportPart) -> Section:
    settings = [(table, list(_flat(part, ""))) for table, part in document["settings"].fields(20)]
    versions = [(plain(name, FOREIGN_MAX), part.text()) for name, part in document["figures"]["versions"].fields(20)]
    engine = engine_of(document)
    of_engine = ENGINES[engine].promises if engine in ENGINES else ()
    promises = COMPARISON if is_diff(document) else (*of_engine, *EVERYWHERE)
    tables = [(plain(table, FOREIGN_MAX), keys[:SETTINGS_MAX]) for table, keys in settings if keys]
    values = {"settings": tables, "versions": versions, "promises": promises}
    return Section("about", "About", "", "", values)


def _flat(part: ReportPart, name: str) -> Iterator[tuple[str, str]]:
    """The keys of a table of settings; nested keys are joined by dots, lists by commas."""
    if isinstance(part.value, dict):
        for key, inner in part.fields(SETTINGS_MAX):
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(part.value, list):
        yield (
            plain(name, FOREIGN_MAX),
            plain(", ".join(str(entry.value) for entry in part.each(SETTINGS_MAX)), CELL_CHARS_MAX),
        )
    elif name:
        yield plain(name, FOREIGN_MAX), "none" if part.value is None else part.text(CELL_CHARS_MAX)


@dataclass(frozen=True, slots=True)
class Check:
    level: Level
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The banner: a headline, the checks behind it, and the exit code with its reason."""

    level: Level
    headline: str
    checks: list[Check]
    exit: str
    but: str = ""
    """What somebody should still look at."""


def standing(document: ReportPart, ledger: VerdictTable) -> Standing:
    unknown = {part["about"].text(): part for part in document["cannot_tell"].each()}
    audit, manifest, ranges = document["audit"], document["manifest"], document["missing_ranges"]
    restarts = unknown.get("restarts")
    refused = " and ".join(
        f"{many(count, thing)} {what}"
        for count, thing, what in ((ledger["reject"], "row", "rejected"), (ledger["unsure"], "message", "unsure"))
        if count
    )
    lost, twice = _lost(audit, ledger), _twice(audit, ledger, unknown.get("copies"))
    between = [*_orphans(audit), *_files(manifest)]
    question = "Was anything refused or left open?"
    checks = [
        lost, twice, *between, _missing(ranges, unknown.get("lost")),
        *([Check("note", "What was lost around restarts?", _unknown(restarts))] if restarts else []),
        Check("warn", question, f"Yes: {refused}.") if refused else Check("ok", question, "No."),
    ]  # fmt: skip
    bad = any(check.level == "bad" for check in checks)
    alone = any(check.level == "warn" for check in between)
    proven = lost.level == twice.level == "ok" and not unknown
    half = lost.level == twice.level == "ok" and unknown.keys() <= {"lost", "restarts"}
    level: Level = "bad" if bad else "warn" if alone or ledger["unsure"] else "ok" if proven else "note"
    if not ledger.balanced:
        headline = "The books do not balance" if ledger.problem is None else "The books cannot be right"
    else:
        headline = {
            "bad": "Source and output do not agree",
            "warn": "Some messages count nowhere" if alone else "Some messages cannot be known",
            "ok": "Nothing lost, nothing counted twice",
            "note": "Nothing counted twice" if half else "The books balance",
        }[level]
    things = _open_things(document, ledger)
    open_things = " and ".join(filter(None, (", ".join(things[:-1]), *things[-1:])))
    but = f"{'But look' if level == 'ok' else 'Look'} at {open_things}." if things and not bad else ""
    if level == "note" and half:
        what = (
            "These columns do not show what never came."
            if "lost" in unknown
            else "What was lost around restarts is not known."
        )
        but = f"{what} {but}".strip()
    unread = len(manifest["set_aside"].each())
    if bad:
        code = "Exit code 3: a run like this is not complete. Do not use its output."
    elif unread:
        headline, code = "Some files could not be read", f"Exit code 1: {many(unread, 'file')} could not be read."
    elif things:  # a stream counts what is missing while it goes
        code = f"Exit code 0{': the run is complete' if ranges else ''}. With --strict it is 1: {open_things}."
    elif not ranges:
        code = "Exit code 0. With --strict it is 1 if gaps are open when it ends."
    elif unknown:
        code = "Exit code 0, with --strict too: nothing was found. Some things are not known: see above."
    else:
        code = "Exit code 0, with --strict too: there is nothing to look at."
    return Standing(level, headline, checks, code, but)


def compared(diff: Comparison) -> Standing:
    rows = f"{diff.rows[0]:,} and {many(diff.rows[1], 'row')}"
    if diff.equal:
        same = Check("ok", "Do both hold the same rows?", f"Yes: {rows}.")
        return Standing("ok", "The two are equal", [same], "Exit code 0: they are equal.")
    checks = [
        Check("bad" if count else "ok", f"What is only {side}?", f"{many(count, 'row')}." if count else "Nothing.")
        for side, count in zip(diff.sides, diff.only, strict=True)
    ]
    if diff.wire is None:
        keys = f"{many(diff.differing, 'key')}." if diff.differing else "Nothing."
        checks.append(Check("bad" if diff.differing else "ok", "What do both have, differently?", keys))
        keys = f"{many(diff.doubled, 'key')}." if diff.doubled else "Nothing."
        checks.append(Check("bad" if diff.doubled else "ok", "What does one have more often?", keys))
    return Standing("bad", "The two differ", checks, f"Exit code 1: they differ ({rows}).")


def _lost(audit: ReportPart, ledger: VerdictTable) -> Check:
    question = "Was anything lost in this run?"
    unjudged = ledger.received - ledger.judged
    if ledger.problem is not None:
        return Check("bad", question, f"Not known: the books cannot be right. {ledger.problem}")
    if unjudged > 0:
        return Check("bad", question, f"Yes: {many(unjudged, 'row')} came in and got no verdict.")
    if audit and (missing := audit["missing"].count()):
        return Check("bad", question, f"Yes: {many(missing, 'row')} of the source cannot be read in the output.")
    if unjudged < 0:
        return Check("bad", question, "The books do not balance: see below.")
    if audit and audit["agrees"].value is False and not audit["surplus"].count() + audit["twice"].count():
        return Check("bad", question, "Not known: source and output do not agree, and the audit does not say why.")
    every = f"{'All' if ledger.received > 1 else 'The'} {many(ledger.received, 'row')} that came in"
    if audit and audit["agrees"].value is True:
        but = (
            f" {many(left_out, 'column')} could not be compared." if (left_out := len(audit["left_out"].each())) else ""
        )
        return Check("ok", question, f"No. {every} got a verdict and can be read in the output.{but}")
    if audit and audit["surplus"].count() + audit["twice"].count():
        return Check("ok", question, f"No. {every} got a verdict, and no row of the source is missing in the output.")
    return Check("note", question, f"{every} got a verdict. Source and output were not compared.")


def _twice(audit: ReportPart, ledger: VerdictTable, unknown: ReportPart | None) -> Check:
    question = "Was anything counted twice?"
    if ledger.judged > ledger.received and ledger.problem is None:
        more = ledger.judged - ledger.received
        return Check("bad", question, f"There {'is' if more == 1 else 'are'} {many(more, 'verdict')} more than rows.")
    if not audit:
        return Check("note", question, "The copies that were found do not count. The output was not audited.")
    wrong = [
        f"{many(count, thing)} {what}"
        for count, thing, what in (
            (audit["twice"].count(), "message", "counted more than once"),
            (audit["surplus"].count(), "row", "in the output that the source does not have"),
        )
        if count
    ]
    if wrong:
        return Check("bad", question, f"Yes: {' and '.join(wrong)}.")
    if not audit["ids"]:
        return Check("note", question, "The output carries no verdicts, so its ids were not looked at.")
    ids = audit["ids"].count()
    if again := audit["again"].count():
        answer = (
            f"{again:,} of {ids + again:,} that count came again after their expiry, and count again: perhaps replays."
        )
        return Check("warn", question, f"{answer} `onefold lorawan report` names them.")
    if unknown:
        return Check("note", question, f"No number counts twice, of {ids:,}. {_unknown(unknown)}")
    return Check("ok", question, f"No. {many(ids, 'message')} {'counts' if ids == 1 else 'count'}, each once.")


def _unknown(part: ReportPart) -> str:
    what = f"Not known: {part['what'].text(LINE_CHARS_MAX)}."
    setting = f'{part["option"].text()} = "{part["value"].text()}"'
    return f"{what} In [judge], {setting} would show it." if part["option"].text() else what


def _orphans(audit: ReportPart) -> Iterator[Check]:
    """Only where the audit compared ids."""
    if not audit["ids"]:
        return
    question = "Does every copy have its original?"
    repeats, orphans, by_rule = (audit[name].count() for name in ("repeats", "orphans", "orphans_by_rule"))
    if orphans:
        yield Check("warn", question, f"No: {many(orphans, 'repeat')} of {repeats:,} have no first, and count nowhere.")
    elif by_rule:
        answer = (
            f"Not known of {by_rule:,} of {repeats:,}: they lie where nothing is remembered, and are called repeats."
        )
        yield Check("warn", question, f"{answer} They may be new, and count nowhere.")
    elif elsewhere := audit["elsewhere"].count():
        known = f"{repeats - elsewhere:,} of {many(repeats, 'repeat')} have their first in this version"
        yield Check("ok", question, f"{known}, the others in earlier ones; `onefold audit` looks through all of them.")
    elif repeats:
        yield Check("ok", question, f"Yes: each of {many(repeats, 'repeat')} has its first.")


def _files(manifest: ReportPart) -> Iterator[Check]:
    """Only where the rows of the source were counted without its reader."""
    if not manifest:
        return
    question = "Was every file read, to its end?"
    aside, changed = manifest["set_aside"].each(), manifest["changed"].each()
    if aside:
        first = f"{aside[0]['path'].text(LINE_CHARS_MAX)}: {aside[0]['trouble'].text(LINE_CHARS_MAX)}"
        yield Check("warn", question, f"No: {many(len(aside), 'file')} could not be read, such as {first}.")
    elif changed:
        yield Check("note", question, f"Files changed meanwhile, such as: {changed[0].text(LINE_CHARS_MAX)}.")
    elif manifest["not_counted"]:
        why = manifest["not_counted"].text(LINE_CHARS_MAX)
        yield Check("note", question, f"Not known: rows were not counted independently: {why}.")
    elif partitions := manifest["partitions"].count():
        rows = f"{many(manifest['rows'].count(), 'message')} in {many(partitions, 'partition')}"
        yield Check("ok", "Was every message read?", f"Yes: {rows}, by a count that did not go through the reader.")
    elif manifest["files"].count():
        rows = f"{many(manifest['rows'].count(), 'row')} in {many(manifest['files'].count(), 'file')}"
        yield Check("ok", question, f"Yes: {rows}, by a count that did not go through the reader.")


def _missing(ranges: ReportPart, unknown: ReportPart | None) -> Check:
    question = "Did everything arrive?"
    if unknown:
        return Check("note", question, _unknown(unknown))
    if not ranges:
        return Check("note", question, "Not listed here: what is missing now may still come.")
    if count := ranges.count():
        return Check("warn", question, f"No: {many(count, 'range')} of messages never came. Ask the senders again.")
    return Check("ok", question, "Yes, as far as can be known.")


def _open_things(document: ReportPart, ledger: VerdictTable) -> list[str]:
    """What somebody should look at: the findings of ``onefold run --strict``."""
    audit, manifest = document["audit"], document["manifest"]
    alone = audit["orphans"].count() + audit["orphans_by_rule"].count()
    unread, changed = (len(manifest[name].each()) for name in ("set_aside", "changed"))
    things = (
        (document["missing_ranges"].count(), "missing range", None),
        (ledger["reject"], "rejected row", None),
        (ledger["unsure"], "unsure message", None),
        (alone, "repeat without a first", "repeats without a first"),
        (unread, "file that could not be read", "files that could not be read"),
        (changed, "file that changed meanwhile", "files that changed meanwhile"),
    )
    return [many(count, thing, plural) for count, thing, plural in things if count]


RUN: Final = (over_time, by_reason, by_key, gaps, lags, work, rejects, audit)


def html(document: dict[str, Any]) -> str:
    """The page of a run, a stream or a diff, with fewer keys and samples if it would be too large."""
    templates, style, style_hash = _look()
    for divisor in (1, 4, 16, 64):
        part = ReportPart(_smaller(document, divisor))
        source = part["settings"]["source"]["path"]
        values: dict[str, Any] = {"tiles": [], "law": []}
        facts = [("source", source.text(200))] if source else []
        facts += [("folder", part["path"].text(200))] if part["path"] else []
        facts += [("engine", engine)] if (engine := engine_of(part)) else []
        facts += [("took", f"{part['seconds'].real():,.1f}\u00a0s")] if part["seconds"] else []
        if is_diff(part):
            banner = compared(read_comparison(part))
            values |= {"kind": "diff", "standing": banner, "sections": [comparison(part), about(part)]}
        else:
            values |= _run_values(part, read_ledger(part))
        page = templates.get_template("page.html.j2").render(style=style, hash=style_hash, facts=facts, **values)
        if len(page.encode()) <= BYTES_MAX:
            break
    return page


def _smaller(document: dict[str, Any], divisor: int) -> dict[str, Any]:
    """The document with fewer strips and samples; it is well formed, because it was read before."""
    figures = document.get("figures")
    if divisor == 1 or not isinstance(figures, dict):
        return document
    strips, rejects = figures.get("strips"), figures.get("rejects") or []
    if strips:
        strips = {**strips, "rows": (strips.get("rows") or [])[: charts.STRIPS_MAX // divisor]}
    rejects = [{**group, "rows": (group.get("rows") or [])[: SAMPLES_MAX // divisor]} for group in rejects]
    return {**document, "figures": {**figures, "strips": strips, "rejects": rejects}}


def _run_values(part: ReportPart, ledger: VerdictTable) -> dict[str, Any]:
    words = {"first": "these count", "repeat": "copies", "unsure": "cannot be known", "reject": "refused"}
    keys = many(part["keys"].count(), key_word(part)) if part["keys"] else ""
    keys = (f"{keys} remembered" if _goes_on(part) else f"in {keys}") if keys else ""
    tiles = [{"kind": "in", "name": "in", "count": f"{ledger.received:,}", "more": keys, "link": "over_time"}]
    links = {"first": "by_reason", "repeat": "lags", "unsure": "by_reason", "reject": "rejects"}
    for name, count in zip(VERDICTS, ledger.totals, strict=True):
        more = f"{share(count, ledger.judged)} {words[name]}"
        tiles.append({"kind": name, "name": name, "count": f"{count:,}", "more": more, "link": links[name]})
    if part["missing_ranges"] and not _is_unknown(part, "lost"):
        ranges = f"{part['missing_ranges'].count():,}"
        words = {"kind": "missing", "name": "missing ranges", "more": "never arrived", "link": "gaps"}
        tiles.append({**words, "count": ranges})
    sections = [*(section(part, ledger) for section in RUN), about(part)]
    shown = {section.name for section in sections if not section.why_not}
    return {
        "kind": many(part["versions"].count(), "run") if part["versions"] else "stream" if part["batches"] else "run",
        "standing": standing(part, ledger),
        "shown": shown,
        "tiles": tiles,
        "law": both(lambda width: charts.law(ledger, width)),
        "sections": sections,
    }


def _goes_on(document: ReportPart) -> bool:
    """Whether ``keys`` counts those in the memory, not those of the rows."""
    return bool(document["version"] or document["batches"])


def _is_unknown(document: ReportPart, about: str) -> bool:
    return any(part["about"].text() == about for part in document["cannot_tell"].each())


@cache
def _look() -> tuple[Environment, Markup, str]:
    templates = environment("onefold.report")
    templates.filters["thousands"] = "{:,}".format
    templates.filters["coded"] = _coded
    templates.globals |= {"share": share, "many": many, "words": WORDS}
    style = Markup(charts.palette()) + template_file("onefold.report", "page.css")  # noqa: S704  # our own file
    return templates, style, digest(style)


def _coded(words: str) -> Markup:
    """Commands between backquotes as code."""
    return Markup(re.sub("`(onefold [^`]+)`", r"<code>\1</code>", str(escape(words))))  # noqa: S704  # escaped before


def environment(package: str) -> Environment:
    """The templates of a package, with escaping."""
    return Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def template_file(package: str, name: str) -> Markup:
    return Markup((files(package) / "templates" / name).read_text(encoding="utf-8"))  # noqa: S704  # our own files


def digest(text: str) -> str:
    """The hash of a style or script for a content security policy."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class RunReport:
    """The report of a run; in a notebook it displays itself. Secrets in settings are hidden.

    RunReport.load("out").charts["gap_map"].svg
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document: dict[str, Any] = dict(document)
        for name in ("settings", "path"):
            if name in self.document:
                self.document[name] = without_secrets(self.document[name])
        self._part = ReportPart(self.document)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> RunReport:
        """The report of the folder of a run, a stream or a diff, or of a file with its document."""
        return cls(documents.read_document(path))

    def html(self) -> str:
        return html(self.document)

    @property
    def charts(self) -> dict[str, Chart]:
        """The charts by name, as far as the document has figures."""
        part, figures = self._part, self._part["figures"]
        if is_diff(part):
            drawn = [read_comparison(part).chart(WIDE)]
        else:
            ledger = read_ledger(part)
            drawn = [charts.law(ledger, WIDE)]
            drawn += [charts.timeline(figures["timeline"], WIDE)] if figures["timeline"] else []
            drawn += [read_gap_map(part).chart(WIDE)] if figures["strips"] else []
            drawn += [charts.lags(figures["lags"], WIDE)] if figures["lags"]["count"] else []
            drawn += [charts.state(part, ledger, WIDE)] if part["state_entries"] else []
            drawn += [charts.phases(figures["phases"], WIDE)] if figures["phases"].each() else []
            drawn += [charts.batches(part["batches"], WIDE)] if part["batches"].each() else []
        return {chart.name: chart for chart in drawn}

    def text(self, width: int = 100) -> str:
        """The report as plain text."""
        out = io.StringIO()
        console = Console(file=out, width=width, color_system=None, highlight=False, emoji=False)
        for thing in self.lines():
            console.print(thing, soft_wrap=isinstance(thing, Text))
        return "".join(f"{line.rstrip()}\n" for line in out.getvalue().split("\n")).rstrip("\n") + "\n"

    def lines(self) -> Iterator[RenderableType]:
        """The report for a console of rich."""
        try:
            yield from self._diff_lines() if is_diff(self._part) else self._run_lines()
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise BadInput(f"not the document of a run: {plain(repr(error), FOREIGN_MAX)}") from error

    def _run_lines(self) -> Iterator[RenderableType]:
        ledger = read_ledger(self._part)
        if ledger.problem is None:
            tally = Tally.from_dict(self.document["tally"])
            yield text.books(tally, engine_of(self._part))
            if "missing_ranges_shown" in self.document:
                yield text.ranges(self.document)
            yield text.banner(tally)
        if self._part["audit"]:
            yield from agreement.audited({"left_out": [], **self.document["audit"]})
        if self._part["manifest"]:
            yield from agreement.files_read(self.document["manifest"])
        yield from _banner(standing(self._part, ledger))

    def _diff_lines(self) -> Iterator[Text]:
        diff = read_comparison(self._part)
        yield from _banner(compared(diff))
        for words, count, rows in diff.shown:
            yield from (text.foreign(f"  {words}: {row}", agreement.ROW_CHARS_MAX) for row in rows)
            if count > len(rows):
                yield Text(f"  {words}: and {count - len(rows):,} more", style="dim")

    def _repr_html_(self) -> str:
        return str(FRAME.format(self.html()))

    def __repr__(self) -> str:
        return f"<RunReport {read_ledger(self._part).law if not is_diff(self._part) else 'of a diff'}>"


def _banner(banner: Standing) -> Iterator[Text]:
    colours = {"ok": "green", "note": "blue", "warn": "yellow", "bad": "red"}
    yield Text(f"{banner.headline}.", style=f"bold {colours[banner.level]}")
    for check in banner.checks:
        yield Text(f"  {check.question} {check.answer} [{WORDS[check.level]}]", style=colours[check.level])
    yield Text(banner.exit)
