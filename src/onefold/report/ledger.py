"""The books of a document, read so that nothing is hidden: if they break the law or contradict themselves, that shows.

`Tally.from_dict` refuses books that lie. A report of such a run must still be made, in red: so what can be read is
kept, and the trouble stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onefold.errors import BadInput
from onefold.report.reading import Part, plain
from onefold.report.text import RULES
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

VERDICTS: Final = tuple(verdict.lower() for verdict in Verdict)
"""In the order of the law; the names of the colours too."""
KEY_WORDS: Final = {"chains": "chain", "producers": "producer", "lorawan": "device"}
LINES_MAX: Final = 200
"""How many reasons are shown; no engine has as many."""


@dataclass(frozen=True, slots=True)
class Line:
    """A reason with its count and its rule."""

    verdict: str
    """In lower case: one of `VERDICTS`."""
    reason: str
    count: int
    rule: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """What came in, and what became of it."""

    received: int
    totals: tuple[int, int, int, int]
    lines: list[Line]
    problem: str | None = None
    """Why these are no books at all; None: they can be believed, whether they balance or not."""

    @property
    def judged(self) -> int:
        """How many messages have a verdict."""
        return sum(self.totals)

    @property
    def balanced(self) -> bool:
        """Whether the law holds."""
        return self.problem is None and self.received == self.judged

    @property
    def law(self) -> str:
        """The law with its numbers, broken or not."""
        sides = " + ".join(f"{count:,} {name}" for count, name in zip(self.totals, VERDICTS, strict=True))
        return f"{self.received:,} in {'=' if self.received == self.judged else '≠'} {sides}"

    def __getitem__(self, verdict: str) -> int:
        return self.totals[VERDICTS.index(verdict)]


def read_ledger(document: Part) -> Ledger:
    """The books of a run's document."""
    books, engine = document["tally"], engine_of(document)
    if not books:
        return Ledger(0, (0, 0, 0, 0), [], "the document has no books")
    try:
        tally = Tally.from_dict(books.value)
    except BadInput as error:
        return _believed(books, engine, plain(error, 200))
    lines = [Line(a.verdict.lower(), plain(a.reason), n, _rule(engine, a)) for a, n in tally]
    first, repeat, unsure, reject = (tally.count(verdict) for verdict in Verdict)
    return Ledger(tally.received, (first, repeat, unsure, reject), lines[:LINES_MAX])


def _believed(books: Part, engine: str, problem: str) -> Ledger:
    """What stands in books that cannot be right: the sums as they are claimed, the lines that can be read."""
    first, repeat, unsure, reject = (books[name].count() for name in VERDICTS)
    lines = []
    for line in books["reasons"].each(LINES_MAX):
        verdict = line["verdict"].text().lower()
        if verdict in VERDICTS:
            answer = Answer(Verdict(verdict.upper()), str(line["reason"].value))
            lines.append(Line(verdict, line["reason"].text(), line["count"].count(), _rule(engine, answer)))
    return Ledger(books["in"].count(), (first, repeat, unsure, reject), lines, problem)


def _rule(engine: str, answer: Answer) -> str:
    return RULES.get(engine, {}).get(answer, "")


def key_word(document: Part) -> str:
    """What a key is the name of."""
    return KEY_WORDS.get(engine_of(document), "key")


def engine_of(document: Part) -> str:
    """The engine that judged: as the document says, else the one engine that knows all of its reasons, else ""."""
    if document["engine"]:
        return document["engine"].text()
    reasons = {(line["verdict"].text(), line["reason"].text()) for line in document["tally"]["reasons"].each(LINES_MAX)}
    fitting = [name for name, rules in RULES.items() if reasons and reasons <= {tuple(answer[:2]) for answer in rules}]
    return fitting[0] if len(fitting) == 1 else ""
