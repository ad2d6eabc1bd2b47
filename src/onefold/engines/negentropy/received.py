"""A peer's message, held against our own records: which fingerprints differ, and what is in the lists.

Both sides of a session do this first, and go different ways from there: a server answers (`answering`), a client notes
what it found and asks on (`asking`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onefold.engines.negentropy.arrays import Ints, Rows, flagged, spans, texts
from onefold.engines.negentropy.matching import Listed, match
from onefold.engines.negentropy.ranges import Mode, Ranges
from onefold.engines.negentropy.reading import Incoming, read_ranges
from onefold.engines.negentropy.setting import Setting
from onefold.engines.negentropy.sparse import Answered
from onefold.engines.negentropy.violation import Violation


@dataclass(frozen=True)
class Received:
    """The ranges of a message, with our ranks."""

    setting: Setting
    incoming: Incoming
    ranges: Ranges

    @staticmethod
    def of(setting: Setting, message: bytes, at: int, initiator: bool) -> Received:
        """Read a message, from this byte on."""
        incoming = read_ranges(message, at, setting.layout(initiator))
        setting.items.expect(incoming.upper, incoming.modes >= Mode.ID_LIST)  # lists, and Responses to ours
        last = setting.items.find(incoming.upper)
        first = np.concatenate((np.zeros(1, dtype=np.int64), last[:-1]))[: len(last)]
        return Received(setting, incoming, Ranges(incoming.lower, incoming.upper, incoming.modes, first, last))

    def of_mode(self, mode: int) -> Ints:
        """Which ranges have this mode."""
        return flagged(self.ranges.modes == mode)

    def differing(self) -> Ints:
        """Which ranges have a fingerprint that is not ours."""
        which = self.of_mode(Mode.FINGERPRINT)
        if not len(which):
            return which
        ours = self.setting.wire.fingerprints(self.setting.items, self.ranges.first[which], self.ranges.last[which])
        return np.asarray(which[texts(ours) != texts(self.incoming.fingerprints(which))])

    def listed(self, which: Ints) -> Answered:
        """The lists of these ranges, held against our ids in them; Violation if one has an id twice."""
        theirs, counts, ends = self.incoming.id_lists(which)
        ranges = self.ranges.take(which)
        stamps, ids = self.setting.items.rows(spans(ranges.first, ranges.last))
        ours, listed = Listed(ids, ranges.sizes()), Listed(theirs, counts)
        matched = match(ours, listed)
        if len(matched.twice):
            number = int(listed.ranges[matched.twice[0]])
            behind = int(counts[: number + 1].sum() - matched.twice[0])
            offset = int(ends[number]) - behind * self.setting.items.id_size
            raise Violation("a list with an id that is in it already", offset)
        return Answered(ranges, stamps, ours, listed, matched)

    def shown(self, rows: Rows) -> Rows:
        """Ids without the zeros behind them."""
        return rows[:, : self.setting.items.id_size]
