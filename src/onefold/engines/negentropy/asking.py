"""The client's side: what it asked, what the server said to that, and what there is to ask next.

The client remembers the ranges that it asked about. What the server says of a range inside them is taken in: a list
tells what either side lacks, a fingerprint that differs is split and asked about again, and what is skipped agrees.
What reaches over several of the asked ranges can only be the rest that did not fit into the server's frame. If it
agrees, all in it does. If not, the asked ranges in it were not answered, and are asked again as they were: so a
difference that was found before, in between, is not found a second time. A list of ids for something that was never
asked is refused.

With a frame limit the client sends what fits, and keeps the other ranges for later messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onefold.engines.negentropy import varint
from onefold.engines.negentropy.arrays import Flags, Ints, Rows, flagged, spans
from onefold.engines.negentropy.bound import Bounds
from onefold.engines.negentropy.columns import Columns
from onefold.engines.negentropy.matching import NOBODY, Listed, match
from onefold.engines.negentropy.ranges import Mode, Ranges, split
from onefold.engines.negentropy.received import Received
from onefold.engines.negentropy.violation import Violation


@dataclass(frozen=True)
class Learnt:
    """What a message of the server said: what to ask next, what it lacks, what we lack."""

    ranges: Ranges
    have: list[Rows]
    need: list[Rows]


@dataclass(frozen=True)
class _Over:
    """For each range of the message, which of the asked ones it touches: from, to, and whether it lies inside them."""

    start: Ints
    end: Ints
    inside: Flags


def learn(received: Received, asked: Ranges) -> Learnt:
    """Take in a message of the server."""
    over = _overlaps(received, asked)
    have, need = _lists(received, asked, over)
    more_have, more_need = _responses(received, asked, over)
    setting, differing = received.setting, received.differing()
    one = over.inside[differing] & (over.end[differing] - over.start[differing] == 1)
    pieces, source = split(setting.items, received.ranges.take(differing[one]), setting.split, setting.list_below)
    ranges = pieces
    if not one.all():
        again, again_source = _clipped(received, asked, over, differing[~one])
        order = np.argsort(np.concatenate((differing[one][source], again_source)), kind="stable")
        ranges = Ranges.join([pieces, again]).take(order)
    return Learnt(ranges, have + more_have, need + more_need)


def _overlaps(received: Received, asked: Ranges) -> _Over:
    telling = flagged(received.ranges.modes)  # a Skip tells nothing
    lower, upper = received.ranges.lower.take(telling), received.ranges.upper.take(telling)
    begins, ends = (Columns(bounds.timestamps, bounds.ids) for bounds in (asked.lower, asked.upper))
    start, end = ends.find(lower), begins.find(upper)
    start += asked.upper.take(np.minimum(start, len(asked) - 1)).equal(lower)  # one that ends there is not touched
    first, last = np.minimum(start, len(asked) - 1), np.maximum(end - 1, 0)
    apart = ~asked.lower.take(slice(1, None)).equal(asked.upper.take(slice(0, -1)))
    holes = np.concatenate(([0], apart.cumsum()))
    inside = (end > start) & (holes[first] == holes[last])
    inside &= ~(lower.below(asked.lower.take(first)) | asked.upper.take(last).below(upper))
    rows = np.zeros(len(received.ranges), dtype=np.int64)
    rows[telling] = np.arange(len(telling))  # Skips share the first row, which nobody looks up for them
    return _Over(start[rows], end[rows], inside[rows]) if len(telling) else _Over(rows, rows, rows > 0)


def _clipped(received: Received, asked: Ranges, over: _Over, which: Ints) -> tuple[Ranges, Ints]:
    """The asked ranges that these ranges of the message touch, as far as they do; and which touches which."""
    counts = np.maximum(over.end[which] - over.start[which], 0)
    source = which.repeat(counts)
    number = spans(over.start[which], over.start[which] + counts)
    ours, theirs = asked.take(number), received.ranges.take(source)
    lower = Bounds.choose(ours.lower.below(theirs.lower), theirs.lower, ours.lower)
    upper = Bounds.choose(ours.upper.below(theirs.upper), ours.upper, theirs.upper)
    first, last = np.maximum(ours.first, theirs.first), np.minimum(ours.last, theirs.last)
    modes = np.where(first < last, ours.modes, np.uint8(Mode.ID_LIST))  # an empty fingerprint is never sent
    return Ranges(lower, upper, modes, first, last), source


def _lists(received: Received, asked: Ranges, over: _Over) -> tuple[list[Rows], list[Rows]]:
    """What the server's lists tell."""
    which = received.of_mode(Mode.ID_LIST)
    if not len(which):
        return [], []
    strange = which[~over.inside[which]]
    if len(strange):  # an empty one may be the rest, which reaches over what was not asked
        empty = received.incoming.id_lists(strange)[1] == 0
        if not empty.all():
            offset = int(received.incoming.starts[strange[~empty][0]])
            raise Violation("a list of ids for a range that was not asked about", offset)
    answered = received.listed(which[over.inside[which]])
    have = [received.shown(answered.ours.ids[answered.matched.ours == NOBODY])]
    need = [received.shown(answered.theirs.ids[answered.matched.theirs == NOBODY])]
    if len(strange):
        rest, _ = _clipped(received, asked, over, strange)
        have.append(received.shown(received.setting.items.rows(spans(rest.first, rest.last))[1]))
    return have, need


def _responses(received: Received, asked: Ranges, over: _Over) -> tuple[list[Rows], list[Rows]]:
    """What the server's Responses tell: xor only."""
    which = received.of_mode(Mode.RESPONSE)
    if not len(which):
        return [], []
    number = np.minimum(over.start[which], len(asked) - 1)
    ranges, starts = asked.take(number), received.incoming.starts[which]
    told = received.ranges.take(which)
    exact = ranges.lower.equal(told.lower) & ranges.upper.equal(told.upper) & (ranges.modes == Mode.ID_LIST)
    if not exact.all():
        raise Violation("a Response to something that was not listed", int(starts[~exact][0]))
    need, counts, ends = received.incoming.id_lists(which)
    ours = received.setting.items.rows(spans(ranges.first, ranges.last))[1]
    matched = match(Listed(ours, ranges.sizes()), Listed(need, counts))
    if len(matched.twice) or (matched.theirs != NOBODY).any():
        place = int(matched.twice[0] if len(matched.twice) else flagged(matched.theirs != NOBODY)[0])
        start = starts[np.searchsorted(counts.cumsum(), place, side="right")]
        raise Violation("a Response with an id that was listed, or is in it twice", int(start))
    message, sizes = received.incoming.message, ranges.sizes().tolist()
    lacked = [_lacked(message, end, size) for end, size in zip(ends.tolist(), sizes, strict=True)]
    return [received.shown(ours[np.concatenate(lacked)])], [received.shown(need)]


def _lacked(message: bytes, at: int, count: int) -> Flags:
    """Which of so many listed ids the server lacks, by the bits at this place."""
    size, start = varint.read(message, at)
    if size > -(-count // 8):
        raise Violation(f"{size} bytes of bits for {count} listed ids", at)
    bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8, count=size, offset=start), bitorder="little")
    if bits[count:].any():
        raise Violation(f"a bit for more than the {count} listed ids", start)
    flags = np.zeros(count, dtype=np.bool_)
    flags[: len(bits)] = bits[:count]
    return flags
