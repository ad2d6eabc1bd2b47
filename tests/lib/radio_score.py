"""Verdicts against the truth: was an uplink counted twice, lost, or something false let in?

Which reception of a frame is the first is for the server to say: stations race, and the one that wins on the day need
not be the one of the truth. So an uplink is looked at as a whole: of all its own receptions exactly one is FIRST.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onefold.testing.radio import FrameKind, TruthLine
from onefold.verdict import Verdict

FALSE = (FrameKind.FORGED, FrameKind.FOREIGN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioScore:
    """How far the verdicts are from the truth."""

    receptions: int
    uplinks: int
    """Frames that were heard, join requests too."""
    counted: int
    """Of these, with one FIRST or more."""
    counted_twice: int
    """FIRSTs beyond the first one of a frame."""
    refused: int
    """Receptions of a true frame, not replayed, that were called REJECT."""
    replays_accepted: int
    false_accepted: int
    """Forged and foreign receptions that were not called REJECT."""
    unsure: int
    unjudged: int
    """Receptions without any verdict."""

    @property
    def lost(self) -> int:
        """Heard, and never counted."""
        return self.uplinks - self.counted

    @property
    def perfect(self) -> bool:
        """Whether nothing is wrong, and nothing was left open."""
        wrong = self.counted_twice + self.refused + self.replays_accepted + self.false_accepted
        return wrong + self.lost + self.unsure + self.unjudged == 0


def score(truth: Sequence[TruthLine], said: Sequence[str]) -> RadioScore:
    """Compare the verdicts of all receptions, in the order of the truth; an empty one: there was none."""
    firsts: Counter[int] = Counter()
    kinds: Counter[tuple[str, FrameKind]] = Counter()
    for line, verdict in zip(truth, said, strict=True):
        kinds[verdict, line.kind] += 1
        if verdict == Verdict.FIRST and line.kind not in (*FALSE, FrameKind.REPLAY):
            firsts[line.frame] += 1
    of_false = sum(n for (verdict, kind), n in kinds.items() if kind in FALSE and verdict not in (Verdict.REJECT, ""))
    true = [kind for kind in FrameKind if kind not in (*FALSE, FrameKind.REPLAY)]
    return RadioScore(
        receptions=len(truth),
        uplinks=sum(line.kind == FrameKind.FIRST for line in truth),
        counted=len(firsts),
        counted_twice=firsts.total() - len(firsts),
        refused=sum(kinds[Verdict.REJECT, kind] for kind in true),
        replays_accepted=kinds[Verdict.FIRST, FrameKind.REPLAY],
        false_accepted=of_false,
        unsure=sum(kinds[Verdict.UNSURE, kind] for kind in FrameKind),
        unjudged=sum(kinds["", kind] for kind in FrameKind),
    )


def verdicts(truth: Sequence[TruthLine], records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The verdict of each line, from a server's records of receptions (``key``, ``station``, ``verdict``).

    A frame that one station sent several times is matched in order.
    """
    said: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)
    for record in records:
        said[record["key"], record["station"]].append(record["verdict"])
    return [mine.popleft() if (mine := said[line.key, line.station]) else "" for line in truth]
