"""The document of a run, a stream or a diff, read with care: it may have been edited, and old ones lack newer keys.

    run.json      of a complete batch run
    diff.json     of a comparison of two tables
    stream.json   of a stream: the books of its batches are added up here
    a file        the output of a command with --json

A `ReportPart` is a value with its path, so that errors read ``figures.lags.count: is "x", must be a whole number``. A
missing value is an empty part, and so is everything below it: a section whose values are missing is left out.

`Tally.from_dict` refuses books that do not add up. Such a run still gets a report, in red: a `VerdictTable` holds what
can be read, and the problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, NoReturn

from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.report.text import FOREIGN_MAX
from onefold.stores.addresses import is_far
from onefold.tally import Tally
from onefold.text import plain
from onefold.verdict import Answer, Verdict
from onefold.wording import ENGINES

ENTRIES_MAX: Final = 100_000
"""How many entries of a list or table are read; a run writes far fewer."""

NUMBER_MAX: Final = 2**63
"""The limit of all numbers; NaN and infinity fail it too."""
COLUMNS_MAX: Final = 40
VERDICTS: Final = tuple(verdict.lower() for verdict in Verdict)
"""In the order of the law; also the names of the colours."""
LINES_MAX: Final = 200
"""How many reasons are shown; every engine has fewer."""
RUN, DIFF, STREAM = "run.json", "diff.json", "stream.json"
BATCHES, TALLY, PROGRESS = "batches", "tally.json", "progress.jsonl"
OF_A_RUN: Final = ("tally", "rows_a", "rows_peer")
NUMBERED: Final = "[0-9]" * 12
"""The pattern of the names of batches."""
BATCHES_SHOWN_MAX: Final = 500
FIGURES: Final = "figures.json"
OF_FIGURES: Final = ("figures", "keys", "missing_ranges", "missing_ranges_shown")
"""The keys of figures.json, which a stream writes when it ends."""
UNCOUNTED: Final = "a stream does not count its files"
BYTES_MAX: Final = 64 << 20
"""The largest document; a run's is below 1 MB."""


@dataclass(frozen=True, slots=True)
class ReportPart:
    """A value of a document, and its path.

    >>> document = ReportPart({"figures": {"lags": {"count": 5}}})
    >>> document["figures"]["lags"]["count"].whole()
    5
    >>> bool(document["figures"]["timeline"]["bins"])
    False
    >>> document["figures"]["lags"].whole()
    Traceback (most recent call last):
    onefold.errors.BadInput: figures.lags: is {'count': 5}, must be a whole number
    """

    value: Any
    where: str = ""

    def __bool__(self) -> bool:
        """Whether the value is there, even if it is an empty list."""
        return self.value is not None

    def __getitem__(self, name: str) -> ReportPart:
        if self.value is None:
            return self
        return ReportPart(self._table().get(name), f"{self.where}.{name}" if self.where else name)

    def fields(self, most: int = ENTRIES_MAX) -> Iterator[tuple[str, ReportPart]]:
        for name in list(self._table() if self else {})[:most]:
            yield str(name), self[name]

    def each(self, most: int = ENTRIES_MAX) -> list[ReportPart]:
        if not self:
            return []
        if not isinstance(self.value, list | tuple):
            self.wrong("a list")
        return [ReportPart(value, f"{self.where}[{i}]") for i, value in enumerate(self.value[:most])]

    def row(self, length: int) -> list[ReportPart]:
        entries = self.each()
        return entries if len(entries) == length else self.wrong(f"a list of {length}")

    def whole(self) -> int:
        if type(self.value) is not int or abs(self.value) >= NUMBER_MAX:
            self.wrong("a whole number")
        return int(self.value)

    def count(self) -> int:
        """A whole number that is not negative; 0 if it is missing."""
        if not self:
            return 0
        return number if (number := self.whole()) >= 0 else self.wrong("0 or more")

    def real(self) -> float:
        if type(self.value) not in (int, float) or not 0 <= self.value < NUMBER_MAX:
            self.wrong("a number, 0 or more")
        return float(self.value)

    def counts(self) -> tuple[int, int, int, int]:
        """Four counts, in the order of the law."""
        if len(parts := self.each()) != 4:
            self.wrong("four counts: first, repeat, unsure, reject")
        first, repeat, unsure, reject = (part.count() for part in parts)
        return first, repeat, unsure, reject

    def text(self, most: int = FOREIGN_MAX) -> str:
        """A short line of printable text; other values as JSON."""
        text = isinstance(self.value, str)
        return plain(self.value if text else json.dumps(self.value, ensure_ascii=False, default=str), most)

    def wrong(self, wanted: str) -> NoReturn:
        where, value = plain(self.where or "the document", FOREIGN_MAX), plain(repr(self.value), FOREIGN_MAX)
        raise BadInput(f"{where}: is {value}, must be {wanted}", where=self.where)

    def _table(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else self.wrong("a table")


def named(key: ReportPart, most: int = FOREIGN_MAX) -> list[tuple[str, str]]:
    """The columns of a row and their values, as printable text."""
    return [(plain(name, most), part.text(most)) for name, part in key.fields(COLUMNS_MAX)]


@dataclass(frozen=True, slots=True)
class Line:
    verdict: str
    """In lower case: one of `VERDICTS`."""
    reason: str
    count: int
    rule: str


@dataclass(frozen=True, slots=True)
class VerdictTable:
    received: int
    totals: tuple[int, int, int, int]
    lines: list[Line]
    problem: str | None = None
    """Why the books contradict themselves; None if they do not, whether they balance or not."""

    @property
    def judged(self) -> int:
        return sum(self.totals)

    @property
    def balanced(self) -> bool:
        return self.problem is None and self.received == self.judged

    @property
    def law(self) -> str:
        sides = " + ".join(f"{count:,} {name}" for count, name in zip(self.totals, VERDICTS, strict=True))
        return f"{self.received:,} in {'=' if self.received == self.judged else '≠'} {sides}"

    def __getitem__(self, verdict: str) -> int:
        return self.totals[VERDICTS.index(verdict)]


def read_ledger(document: ReportPart) -> VerdictTable:
    books, engine = document["tally"], engine_of(document)
    if not books:
        return VerdictTable(0, (0, 0, 0, 0), [], "the document has no books")
    try:
        tally = Tally.from_dict(books.value)
    except BadInput as error:  # keep the claimed sums, and the lines that can be read
        first, repeat, unsure, reject = (books[name].count() for name in VERDICTS)
        lines = []
        for line in books["reasons"].each(LINES_MAX):
            verdict = line["verdict"].text().lower()
            if verdict in VERDICTS:
                answer = Answer(Verdict(verdict.upper()), str(line["reason"].value))
                lines.append(Line(verdict, line["reason"].text(), line["count"].count(), _rule(engine, answer)))
        return VerdictTable(books["in"].count(), (first, repeat, unsure, reject), lines, plain(error, 200))
    lines = [Line(a.verdict.lower(), plain(a.reason, FOREIGN_MAX), n, _rule(engine, a)) for a, n in tally]
    first, repeat, unsure, reject = (tally.count(verdict) for verdict in Verdict)
    return VerdictTable(tally.received, (first, repeat, unsure, reject), lines[:LINES_MAX])


def _rule(engine: str, answer: Answer) -> str:
    return ENGINES[engine].rules.get(answer, "") if engine in ENGINES else ""


def key_word(document: ReportPart) -> str:
    return ENGINES[engine].key if (engine := engine_of(document)) in ENGINES else "key"


def engine_of(document: ReportPart) -> str:
    """The engine in the document, else the one engine that has all of its reasons, else ""."""
    if document["engine"]:
        return document["engine"].text()
    reasons = {(line["verdict"].text(), line["reason"].text()) for line in document["tally"]["reasons"].each(LINES_MAX)}
    fitting = [
        name for name, own in ENGINES.items() if reasons and reasons <= {tuple(answer[:2]) for answer in own.rules}
    ]
    return fitting[0] if len(fitting) == 1 else ""


def read_document(path: str | PathLike[str]) -> dict[str, Any]:
    source = Path(path)
    if is_far(str(path)):  # a Path would drop one of the two slashes
        raise Misuse(
            f"{path}: a report is made from files of this machine; copy {RUN} here and name it", path=str(path)
        )
    if not source.exists():
        raise Misuse(f"{source}: no such file or folder", path=str(source))
    if not source.is_dir():
        return read_object(source, *OF_A_RUN)
    for name in (RUN, DIFF):
        if (source / name).exists():
            return {"path": str(source), **read_object(source / name, *OF_A_RUN)}
    if (source / STREAM).exists():
        return _stream(source)
    raise Misuse(f"{source} holds no {RUN}, {STREAM} or {DIFF}: it is not a complete run", path=str(source))


def read_object(path: Path, *needs: str, bytes_max: int = BYTES_MAX) -> dict[str, Any]:
    """The JSON object in a file of onefold, with one of these keys. NaN is allowed, as old runs wrote it."""
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise BadInput(f"{path}: has more than the {bytes_max:,} bytes that are read", path=str(path))
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadInput(f"{path}: not JSON: {plain(error, FOREIGN_MAX)}", path=str(path)) from error
    if not isinstance(document, dict) or document.keys().isdisjoint(needs):
        raise BadInput(f"{path}: not the document of a run: it has no {needs[0]}", path=str(path))
    return document


def json_objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects in lines of JSON; torn lines and other values are skipped."""
    for line in lines:
        with suppress(BadInput):
            if isinstance(document := read_json(line, "the line"), dict):
                yield document


def _stream(path: Path) -> dict[str, Any]:
    progress = path / PROGRESS
    objects = json_objects(progress.read_bytes().splitlines() if progress.exists() else [])
    lines = {line["batch"]: line for line in objects if type(line.get("batch")) is int}  # the newest of each batch
    total, batches = Tally(), []
    for folder in sorted((path / BATCHES).glob(NUMBERED)):
        tally = Tally.from_dict(read_object(folder / TALLY, "reasons"))
        total += tally
        counts, line = tally.to_dict(), lines.get(int(folder.name)) or {}
        seconds, state = line.get("seconds"), line.get("state_bytes")
        batches.append([int(folder.name), tally.received, seconds, state, [counts[name] for name in VERDICTS]])
    document: dict[str, Any] = {"tally": total.to_dict(), "batches": batches[-BATCHES_SHOWN_MAX:], "path": str(path)}
    with suppress(BadInput, KeyError, TypeError):  # streams of earlier versions lack it
        document["engine"] = read_object(path / STREAM, "meaning")["meaning"]["engine"]
    if batches and (path / BATCHES / f"{batches[-1][0]:012}" / RUN).exists():
        document["versions"] = len(batches)
    if (path / FIGURES).exists():
        figures = read_object(path / FIGURES, "figures")
        if figures.get("batch") == (batches[-1][0] if batches else None):  # else they cover fewer batches
            document |= {name: figures.get(name) for name in ("engine", *OF_FIGURES)}
    last = lines[max(lines)] if lines else {}
    if last.get("set_aside") or last.get("changed"):
        files: dict[str, Any] = {"set_aside": last.get("set_aside") or [], "changed": last.get("changed") or []}
        document["manifest"] = {"files": 0, "rows": None, "blank": 0, "header": 0, "not_counted": UNCOUNTED, **files}
    return document
