"""How a run stands: was anything lost, was anything counted twice, is anything missing. The banner of the report.

Three things are told apart that look alike in a list of numbers. What is *wrong* (bad): onefold lost or doubled a
message, or source and sink do not agree; nothing of such a run may be used. What is *open* (warn): messages that never
arrived, rows that were refused; the run is right, and somebody should look. What was *not looked at* (note) is never
called right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from onefold.report.comparison import Comparison
from onefold.report.ledger import Ledger
from onefold.report.quantities import many
from onefold.report.reading import Part

Level: TypeAlias = Literal["ok", "note", "warn", "bad"]
PATH_CHARS_MAX: Final = 300
"""How much of a file's path, or of what is wrong with it, is shown."""
WHAT_CHARS_MAX: Final = 300
"""How much is shown of a sentence that has the name of a column in it."""
WORDS: Final = {"ok": "good", "note": "not known", "warn": "look at this", "bad": "wrong"}
"""What a level is called, beside its colour."""


@dataclass(frozen=True, slots=True)
class Check:
    """A question that a reader has, and its answer."""

    level: Level
    question: str
    answer: str

    @property
    def word(self) -> str:
        """Its level in words."""
        return WORDS[self.level]


@dataclass(frozen=True, slots=True)
class Standing:
    """The banner: one sentence, what it rests on, and the exit code with its reason."""

    level: Level
    headline: str
    checks: list[Check]
    exit: str
    but: str = ""
    """What is open all the same."""

    @property
    def word(self) -> str:
        """Its level in words."""
        return WORDS[self.level]


def standing(document: Part, ledger: Ledger) -> Standing:
    """How a run stands, from its books, its audit and its missing ranges."""
    untold = {part["about"].text(): part for part in document["cannot_tell"].each()}
    checks = [
        _lost(document["audit"], ledger),
        _twice(document["audit"], ledger, untold.get("copies")),
        *_orphans(document["audit"]),
        *_files(document["manifest"]),
        _missing(document, untold.get("lost")),
        _refused(ledger),
    ]
    bad = any(check.level == "bad" for check in checks)
    alone = any(check.level == "warn" for check in checks[2:-2])
    unknown = bool(ledger["unsure"])
    proven = checks[0].level == checks[1].level == "ok" and not untold
    level: Level = "bad" if bad else "warn" if alone or unknown else "ok" if proven else "note"
    left = _open_things(document, ledger)
    but = f"{'But look' if level == 'ok' else 'Look'} at {_and(left)}." if left and not bad else ""
    listed = bool(document["missing_ranges"])
    aside = len(document["manifest"]["set_aside"].each())
    headline, code = _headline(ledger, level, alone), _exit(left, level, listed, bool(untold))
    if aside and not bad:
        headline, code = "Some files could not be read", f"Exit code 1: {many(aside, 'file')} could not be read."
    return Standing(level, headline, checks, code, but)


def compared(found: Comparison) -> Standing:
    """How two sides stand to each other."""
    rows = f"{found.rows[0]:,} and {many(found.rows[1], 'row')}"
    if found.equal:
        told = Check("ok", "Do both hold the same rows?", f"Yes: {rows}.")
        return Standing("ok", "The two are equal", [told], "Exit code 0: they are equal.")
    checks = [
        Check("bad" if count else "ok", f"What is only {side}?", f"{many(count, 'row')}." if count else "Nothing.")
        for side, count in zip(found.sides, found.only, strict=True)
    ]
    if found.wire is None:
        keys = f"{many(found.differing, 'key')}." if found.differing else "Nothing."
        checks.append(Check("bad" if found.differing else "ok", "What do both have, differently?", keys))
    return Standing("bad", "The two differ", checks, f"Exit code 1: they differ ({rows}).")


def _lost(audit: Part, ledger: Ledger) -> Check:
    question = "Was anything lost in this run?"
    unjudged = ledger.received - ledger.judged
    if ledger.problem is not None:
        return Check("bad", question, f"Cannot be told: the books cannot be right. {ledger.problem}")
    if unjudged > 0:
        return Check("bad", question, f"Yes: {many(unjudged, 'row')} came in and got no verdict.")
    if audit and (missing := audit["missing"].count()):
        return Check("bad", question, f"Yes: {many(missing, 'row')} of the source cannot be read in the output.")
    if unjudged < 0:
        return Check("bad", question, "The books do not balance: see below.")
    if audit and audit["agrees"].value is False and not audit["surplus"].count() + audit["twice"].count():
        return Check("bad", question, "Cannot be told: source and output do not agree, and the audit does not say why.")
    every = f"{'All' if ledger.received > 1 else 'The'} {many(ledger.received, 'row')} that came in"
    if audit and audit["agrees"].value is True:
        but = (
            f" {many(left_out, 'column')} could not be compared." if (left_out := len(audit["left_out"].each())) else ""
        )
        return Check("ok", question, f"No. {every} got a verdict and can be read in the output.{but}")
    if audit and audit["surplus"].count() + audit["twice"].count():
        return Check("ok", question, f"No. {every} got a verdict, and no row of the source is missing in the output.")
    return Check("note", question, f"{every} got a verdict. Source and output were not compared.")


def _twice(audit: Part, ledger: Ledger, untold: Part | None) -> Check:
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
    if untold:
        return Check("note", question, f"No number counts twice, of {ids:,}. {_untold(untold)}")
    return Check("ok", question, f"No. {many(ids, 'message')} {'counts' if ids == 1 else 'count'}, each once.")


def _untold(part: Part) -> str:
    """What cannot be told, and what would tell it."""
    setting = f'{part["option"].text()} = "{part["value"].text()}"'
    return f"Cannot be told: {part['what'].text(WHAT_CHARS_MAX)}. In [judge], {setting} would tell."


def _orphans(audit: Part) -> Iterator[Check]:
    """Only asked where the ids were looked at."""
    if not audit["ids"]:
        return
    question = "Does every copy have its original?"
    repeats, orphans, by_rule = (audit[name].count() for name in ("repeats", "orphans", "orphans_by_rule"))
    if orphans:
        yield Check("warn", question, f"No: {many(orphans, 'repeat')} of {repeats:,} have no first, and count nowhere.")
    elif by_rule:
        answer = (
            f"Not known of {by_rule:,} of {repeats:,}: by the rule of their reason they are repeats without a first."
        )
        yield Check("warn", question, f"{answer} They may be new, and count nowhere.")
    elif repeats:
        yield Check("ok", question, f"Yes: each of {many(repeats, 'repeat')} has its first.")


def _files(manifest: Part) -> Iterator[Check]:
    """Only asked where the files of the source were looked at without its reader."""
    if not manifest:
        return
    question = "Was every file read, to its end?"
    aside, changed = manifest["set_aside"].each(), manifest["changed"].each()
    if aside:
        first = f"{aside[0]['path'].text(PATH_CHARS_MAX)}: {aside[0]['trouble'].text(PATH_CHARS_MAX)}"
        yield Check("warn", question, f"No: {many(len(aside), 'file')} could not be read, such as {first}.")
    elif changed:
        yield Check("note", question, f"Files changed meanwhile, such as: {changed[0].text(PATH_CHARS_MAX)}.")
    elif manifest["not_counted"]:
        why = manifest["not_counted"].text(PATH_CHARS_MAX)
        yield Check("note", question, f"Not known: rows were not counted independently: {why}.")
    elif manifest["files"].count():
        held = f"{many(manifest['rows'].count(), 'row')} in {many(manifest['files'].count(), 'file')}"
        yield Check("ok", question, f"Yes: {held}, by a count that did not go through the reader.")


def _missing(document: Part, untold: Part | None) -> Check:
    question = "Did everything arrive?"
    if untold:
        return Check("note", question, _untold(untold))
    if not document["missing_ranges"]:
        return Check("note", question, "Not listed here: what is missing now may come yet.")
    ranges = document["missing_ranges"].count()
    if ranges:
        return Check("warn", question, f"No: {many(ranges, 'range')} of messages never came. Ask the senders again.")
    return Check("ok", question, "Yes, as far as can be known.")


def _refused(ledger: Ledger) -> Check:
    question = "Was anything refused or left open?"
    parts = [
        f"{many(count, thing)} {what}"
        for count, thing, what in (
            (ledger["reject"], "row", "rejected"),
            (ledger["unsure"], "message", "unsure"),
        )
        if count
    ]
    return Check("warn", question, f"Yes: {' and '.join(parts)}.") if parts else Check("ok", question, "No.")


def _headline(ledger: Ledger, level: Level, alone: bool) -> str:
    if not ledger.balanced:
        return "The books do not balance" if ledger.problem is None else "The books cannot be right"
    if level == "bad":
        return "Source and output do not agree"
    if level == "warn":
        return "Some messages count nowhere" if alone else "Some messages cannot be known"
    return "Nothing lost, nothing counted twice" if level == "ok" else "The books balance"


def _exit(left: list[str], level: Level, listed: bool, untold: bool) -> str:
    """``listed``: whether what is missing is known; a stream counts it while it goes."""
    if level == "bad":
        return "Exit code 3: a run like this is not complete. Do not use its output."
    if left:
        return f"Exit code 0{': the run is complete' if listed else ''}. With --strict it is 1: {_and(left)}."
    if not listed:
        return "Exit code 0. With --strict it is 1 if gaps are open when it ends."
    if untold:
        return "Exit code 0, with --strict too: nothing was found. Not all could be told: see above."
    return "Exit code 0, with --strict too: there is nothing to look at."


def _open_things(document: Part, ledger: Ledger) -> list[str]:
    """What somebody should look at, as ``onefold run --strict`` counts it."""
    return [
        many(count, thing, things)
        for count, thing, things in (
            (document["missing_ranges"].count(), "missing range", None),
            (ledger["reject"], "rejected row", None),
            (ledger["unsure"], "unsure message", None),
            (
                document["audit"]["orphans"].count() + document["audit"]["orphans_by_rule"].count(),
                "repeat without a first",
                "repeats without a first",
            ),
            (
                len(document["manifest"]["set_aside"].each()),
                "file that could not be read",
                "files that could not be read",
            ),
            (
                len(document["manifest"]["changed"].each()),
                "file that changed meanwhile",
                "files that changed meanwhile",
            ),
        )
        if count
    ]


def _and(things: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(things[:-1]), things[-1])))
