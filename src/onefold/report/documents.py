"""Where the document of a report is: beside the rows that it is about.

run.json      of a batch run, complete
diff.json     of two tables that were compared
stream.json   of a stream: its books are those of its batches, and are added up here
a file        whatever a command printed with --json
"""

from __future__ import annotations

import json
import re
from os import PathLike
from pathlib import Path
from typing import Any, Final

from onefold.errors import BadInput, Misuse
from onefold.report.ledger import VERDICTS
from onefold.report.text import foreign
from onefold.tally import Tally

RUN, DIFF, STREAM = "run.json", "diff.json", "stream.json"
BATCHES, TALLY, PROGRESS = "batches", "tally.json", "progress.jsonl"
OF_A_RUN: Final = ("tally", "rows_a", "rows_peer")
NUMBERED: Final = "[0-9]" * 12
"""What a batch is called; nothing else in its folder is one."""
BATCHES_SHOWN_MAX: Final = 500
UNCOUNTED: Final = "a stream does not count its files"
FAR: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.I)
BYTES_MAX: Final = 64 << 20
"""Of a document: a run's is below one megabyte."""


def read_document(path: str | PathLike[str]) -> dict[str, Any]:
    """The document of a run, a stream or a diff."""
    place = Path(path)
    if FAR.match(str(path)):  # of two slashes a Path keeps one
        raise Misuse(
            f"{path}: a report is made from files of this machine; copy {RUN} here and name it", path=str(path)
        )
    if not place.exists():
        raise Misuse(f"{place}: no such file or folder", path=str(place))
    if not place.is_dir():
        return _object(place, *OF_A_RUN)
    for name in (RUN, DIFF):
        if (place / name).exists():
            return {"path": str(place), **_object(place / name, *OF_A_RUN)}
    if (place / STREAM).exists():
        return _stream(place)
    raise Misuse(f"{place} holds no {RUN}, {STREAM} or {DIFF}: it is not a complete run", path=str(place))


def _object(path: Path, *needs: str) -> dict[str, Any]:
    """A JSON object that has one of these."""
    if path.stat().st_size > BYTES_MAX:
        raise BadInput(f"{path}: has {path.stat().st_size:,} bytes, at most {BYTES_MAX:,} are read", path=str(path))
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadInput(f"{path}: not JSON: {foreign(error).plain}", path=str(path)) from error
    if not isinstance(document, dict) or document.keys().isdisjoint(needs):
        raise BadInput(f"{path}: not the document of a run: it has no {needs[0]}", path=str(path))
    return document


def _stream(place: Path) -> dict[str, Any]:
    """The books of all batches, and the last of them one by one."""
    total, batches, told = Tally(), [], _progress(place / PROGRESS)
    for folder in sorted((place / BATCHES).glob(NUMBERED)):
        tally = Tally.from_dict(_object(folder / TALLY, "reasons"))
        total += tally
        counts = tally.to_dict()
        line = told.get(int(folder.name)) or {}
        seconds, state = line.get("seconds"), line.get("state_bytes")
        batches.append([int(folder.name), tally.received, seconds, state, [counts[name] for name in VERDICTS]])
    document: dict[str, Any] = {"tally": total.to_dict(), "batches": batches[-BATCHES_SHOWN_MAX:], "path": str(place)}
    last = told[max(told)] if told else {}
    if last.get("set_aside") or last.get("changed"):
        files: dict[str, Any] = {"set_aside": last.get("set_aside") or [], "changed": last.get("changed") or []}
        document["manifest"] = {"files": 0, "rows": None, "blank": 0, "header": 0, "not_counted": UNCOUNTED, **files}
    return document


def _progress(path: Path) -> dict[int, dict[str, Any]]:
    """What a stream told of its batches while it went, the newest word of each; a torn last line is passed over."""
    told = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            word = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(word, dict) and type(word.get("batch")) is int:
            told[word["batch"]] = word
    return told
