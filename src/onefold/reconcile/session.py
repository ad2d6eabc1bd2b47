"""One reconciliation between two sides: bytes in, bytes out, and on the client what either side lacks.

The client *initiates*: it splits its records and sends the fingerprints. Each side answers a fingerprint that differs
from its own by splitting that range further, until a range has so few records that their ids can be listed; a list
settles its range. After about log16(records) / 2 round trips the client knows every id that one side has and the other
has not. The server knows nothing, and remembers nothing.

    client = Session(items)                    server = Session(other_items)
    message = client.initiate()
    while message is not None:
        reply, _, _ = server.reconcile(message)
        message, have, need = client.reconcile(reply)

A message that breaks the protocol raises a `Violation`, one too many a `SessionLimit`, and the session is as it was.
Records are seen as they were when the session was made.

Cost: per message a few dozen numpy operations over all its ranges, the hash of each fingerprint, and a short loop over
the ranges that arrive; nothing per record but for ids that are listed.

How a session is played: the records, the wire and the sizes; the same for both sides of it, and checked once.

``split`` and ``list_below`` are 16 and 32 as in the published implementations: more pieces mean fewer rounds and more
bytes for the same difference. In a small frame lists are as long as fit into it. A range of ours is never fingerprinted
when it is empty: an empty fingerprint would match an empty range elsewhere and say nothing. So every piece must get a
record: ``list_below`` is at least ``split``.

A peer's message, held against our own records: which fingerprints differ, and what is in the lists.

Both sides of a session do this first, and go different ways from there: a server answers (`answering`), a client notes
what it found and asks on (`asking`).

The client's side: what it asked, what the server said to that, and what there is to ask next.

The client remembers the ranges that it asked about. What the server says of a range inside them is taken in: a list
tells what either side lacks, a fingerprint that differs is split and asked about again, and what is skipped agrees.
What reaches over several of the asked ranges can only be the rest that did not fit into the server's frame. If it
agrees, all in it does. If not, the asked ranges in it were not answered, and are asked again as they were: so a
difference that was found before, in between, is not found a second time. A list of ids for something that was never
asked is refused.

With a frame limit the client sends what fits, and keeps the other ranges for later messages.

The server's side: a message in, a message out, and nothing remembered in between.

A fingerprint that differs is answered by splitting that range, a list by what differs in it (or by all of ours); what
agrees is skipped. With a frame limit, the ranges that fit are answered, and then the rest of what was asked is put into
one last range, from the last bound that was *written*: its fingerprint, or an empty list if we have nothing there. If
the rest agrees on both sides the client drops it, else it asks again. So nothing is lost, whatever did not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np

from onefold.errors import Misuse
from onefold.reconcile import items as varint
from onefold.reconcile.codec import (
    HEAD_MAX,
    HEAD_MIN,
    NOBODY,
    RANGE_MAX,
    Answered,
    Incoming,
    Layout,
    Limits,
    Listed,
    Mode,
    Ranges,
    Replying,
    Spent,
    Wire,
    WireV1,
    WireXor,
    Writer,
    match,
    no_ranges,
    read_ranges,
    split,
    universe,
)
from onefold.reconcile.items import Bounds, Columns, Flags, Ints, Items, Rows, Violation, blobs, flagged, spans, texts

Reply = Literal["sparse", "full"]


@dataclass(frozen=True)
class Setting:
    """What both sides of a session go by."""

    items: Items
    wire: Wire
    frame_size_max: int
    reply: Reply
    split: int
    list_below: int

    def __post_init__(self) -> None:
        self.wire.check(self.items.id_size)
        if self.reply not in ("sparse", "full"):
            raise Misuse(f"reply is {self.reply!r}, must be 'sparse' or 'full'", reply=self.reply)
        if self.split < 2:
            raise Misuse(f"split is {self.split}, must be at least 2", split=self.split)
        if self.list_below < self.split:
            raise Misuse(f"list_below is {self.list_below}, must be at least split, {self.split}")
        size, least = self.frame_size_max, self.wire.frame_size_min
        if size and size < least:
            raise Misuse(f"frame_size_max is {size}, must be 0 or at least {least}", frame_size_max=size)
        if size and self.split > self._list_below_max():
            most = self._list_below_max()
            raise Misuse(f"split is {self.split}, must be at most {most}: a frame of {size} bytes lists fewer ids")

    def fitted(self) -> Setting:
        """The same, with lists no longer than a frame has room for."""
        if not self.frame_size_max:
            return self
        return replace(self, list_below=min(self.list_below, self._list_below_max()))

    def _list_below_max(self) -> int:
        return (self.room() - RANGE_MAX) // self.items.id_size + 1

    def layout(self, initiator: bool) -> Layout:
        """What this side reads."""
        id_size = self.items.id_size
        return Layout(id_size, self.wire.fingerprint_size(id_size), self.wire.modes(initiator))

    def writer(self) -> Writer:
        """What writes the messages of this side."""
        return Writer(self.items, self.wire.fingerprints, self.wire.fingerprint_size(self.items.id_size))

    def room(self) -> int:
        """How many bytes of a frame are for ranges, if the rest of the universe has to be added; 0: no limit."""
        if not self.frame_size_max:
            return 0
        return self.frame_size_max - len(self.wire.head) - HEAD_MAX - self.wire.fingerprint_size(self.items.id_size)


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


def answer(setting: Setting, message: bytes) -> bytes:
    """The server's reply to a message."""
    start = setting.wire.body(message, initiator=False)
    if start is None:
        return setting.wire.head
    received = Received.of(setting, message, start, initiator=False)
    replies, whole = _replies(received)
    if not len(replies):
        return setting.wire.head
    writer, room = setting.writer(), setting.room()
    if not room:
        return setting.wire.head + writer.write(replies).data
    cut = writer.cut_to_fit(replies, room)
    data, sent = writer.write_some(cut, room)
    if whole and len(sent) == len(replies) and sent.last[-1] == replies.last[-1]:
        return setting.wire.head + data
    rest = _rest(received, sent)
    return setting.wire.head + data + writer.write(rest, after=sent.upper.take(slice(-1, None))).data


def _replies(received: Received) -> tuple[Ranges, bool]:
    """What there is to answer, in order, and whether that is all; if not, it is more than fits into a frame."""
    setting = received.setting
    differing, lists, whole = _within_frame(received, received.differing(), received.of_mode(Mode.ID_LIST))
    pieces, source = split(setting.items, received.ranges.take(differing), setting.split, setting.list_below)
    if not len(lists):
        return pieces, whole
    how = Replying(setting.reply == "sparse", setting.room(), setting.split, setting.list_below)
    told, told_source = setting.wire.replies(setting.items, received.listed(lists), how)
    order = np.argsort(np.concatenate((differing[source], lists[told_source])), kind="stable")
    return Ranges.join([pieces, told]).take(order), whole


def _within_frame(received: Received, differing: Ints, lists: Ints) -> tuple[Ints, Ints, bool]:
    """The first ranges to split and the first lists to answer, hardly more than a frame can take; are these all?

    So that a short message cannot make us look at all our records: a list that lacks more of ours than fit into a frame
    is split like a fingerprint that differs.
    """
    setting, sizes, room = received.setting, received.ranges.sizes(), received.setting.room()
    if not room:
        return differing, lists, True
    id_size = setting.items.id_size
    lacking = np.maximum(sizes[lists] - received.incoming.counts(lists), 0) * id_size
    huge = lacking > room
    differing = np.sort(np.concatenate((differing, lists[huge])))
    lists, lacking = lists[~huge], lacking[~huge]
    least = np.zeros(len(sizes), dtype=np.int64)
    few = sizes[differing] < setting.list_below
    pieces = setting.split * (HEAD_MIN + setting.wire.fingerprint_size(id_size))
    least[differing] = np.where(few, HEAD_MIN + 1 + sizes[differing] * id_size, pieces)
    least[lists] = lacking
    end = np.searchsorted(least.cumsum(), room)
    kept = differing[differing <= end], lists[lists <= end]
    return *kept, len(kept[0]) == len(differing) and len(kept[1]) == len(lists)


def _rest(received: Received, sent: Ranges) -> Ranges:
    """One range from what was written to the end of what was asked."""
    asked = flagged(received.ranges.modes != Mode.SKIP)[-1:]
    end = received.ranges.take(asked)
    start = sent.tail(len(sent) - 1)
    if start.upper.equal(end.upper).all():
        return no_ranges(received.setting.items.id_size)
    mode = Mode.FINGERPRINT if end.last[0] > start.last[0] else Mode.ID_LIST
    return Ranges(start.upper, end.upper, np.array([mode], dtype=np.uint8), start.last, end.last)


WIRES: Final[Mapping[str, Wire]] = {"v1": WireV1(), "xor": WireXor()}
SPLIT: Final = 16
LIST_BELOW: Final = 32


def frame_size_min(wire: str) -> int:
    """The smallest frame limit of a wire.

    >>> frame_size_min("v1"), frame_size_min("xor")
    (4096, 1024)
    """
    return WIRES[wire].frame_size_min


class Reconciled(NamedTuple):
    """What came of a message: the reply (None: the client is done), ids that only we have, ids that only they have.

    In wire xor the ids are told with the last message, all at once.
    """

    reply: bytes | None
    have: list[bytes]
    need: list[bytes]


class Session:
    """One side of a reconciliation: a client if it initiates, else a server.

    >>> from onefold.reconcile import ItemSet
    >>> sides = []
    >>> for ids in ([b"a" * 32, b"b" * 32], [b"b" * 32, b"c" * 32]):
    ...     items = ItemSet.from_arrays([1] * 2, ids)
    ...     items.seal()
    ...     sides.append(Session(items))
    >>> client, server = sides
    >>> reply, have, need = client.reconcile(server.reconcile(client.initiate()).reply)
    >>> reply, have[0][:1], need[0][:1]
    (None, b'a', b'c')
    """

    def __init__(
        self,
        items: Items,
        wire: Literal["v1", "xor"] = "v1",
        id_size: int | None = None,
        *,
        frame_size_max: int = 0,
        reply: Reply = "sparse",
        split: int = SPLIT,
        list_below: int = LIST_BELOW,
        limits: Limits | None = None,
    ) -> None:
        if wire not in WIRES:
            raise Misuse(f"wire is {wire!r}, must be 'v1' or 'xor'", wire=wire)
        if id_size is not None and id_size != items.id_size:
            raise Misuse(f"id_size is {id_size}, and the ids have {items.id_size} bytes", id_size=id_size)
        self._setting = Setting(items.snapshot(), WIRES[wire], frame_size_max, reply, split, list_below).fitted()
        self._limits = limits or Limits()
        self.spent = Spent()
        self._asked: Ranges | None = None
        self._waiting: list[Ranges] = []  # the first ranges of the universe are in the last of them
        self._initiator = False
        self._held: tuple[list[bytes], list[bytes]] = [], []
        self.both_ways = 0
        """Ids that the peer named in both directions; known at the end of the session. See `wire_xor`."""

    def initiate(self) -> bytes:
        """The client's first message; with it this side is the client."""
        if self._initiator or self.spent.rounds:
            raise Misuse("the session is under way already")
        setting = self._setting
        first, _ = split(setting.items, universe(setting.items), setting.split, setting.list_below)
        message, self._asked, self._waiting = self._ask([first])
        self._initiator = True
        self.spent = self.spent.sent(len(message))
        return message

    def reconcile(self, message: bytes) -> Reconciled:
        """Take in a message of the peer; the reply to it, and on the client the ids that were found."""
        spent = self.spent.received(len(message), self._limits, self._setting.wire.frame_size_min)
        if not self._initiator:
            reply = answer(self._setting, message)
            self.spent = spent.sent(len(reply))
            return Reconciled(reply, [], [])
        if self._asked is None:
            raise Misuse("the session is done")
        start = self._setting.wire.body(message, initiator=True)
        received = Received.of(self._setting, message, start or 0, initiator=True)
        learnt = learn(received, self._asked)
        spent = spent.found(sum(map(len, learnt.need)), self._limits)
        waiting = [*self._waiting, learnt.ranges] if len(learnt.ranges) else self._waiting
        have, need = _ids(learnt.have), _ids(learnt.need)
        question: bytes | None = None
        if waiting:
            question, self._asked, self._waiting = self._ask(waiting)
            self.spent = spent.sent(len(question))
        else:
            self.spent, self._asked = spent, None
        return Reconciled(question, *self._once(have, need, last=question is None))

    def _once(self, have: list[bytes], need: list[bytes], last: bool) -> tuple[list[bytes], list[bytes]]:
        """What may be told now: at once, or with the last message, less the ids that were named in both directions."""
        if not self._setting.wire.both_ways:
            return have, need
        held_have, held_need = self._held
        held_have += have
        held_need += need
        if not last:
            return [], []
        self._held = [], []
        both = set(held_have).intersection(held_need)
        self.both_ways = len(both)
        if not both:
            return held_have, held_need
        return [id for id in held_have if id not in both], [id for id in held_need if id not in both]

    def _ask(self, waiting: list[Ranges]) -> tuple[bytes, Ranges, list[Ranges]]:
        """A message with as many of the waiting ranges as fit, these ranges, and those that still wait."""
        writer, head = self._setting.writer(), self._setting.wire.head
        if not self._setting.frame_size_max:
            ranges = Ranges.join(waiting[::-1])
            return head + writer.write(ranges).data, ranges, []
        room = self._setting.frame_size_max - len(head)
        waiting, parts, asked, after = list(waiting), [head], [], None
        while waiting:
            ranges = waiting.pop()
            data, sent = writer.write_some(ranges, room, after)
            room -= len(data)
            parts.append(data)
            asked.append(sent)
            if len(sent) < len(ranges):
                waiting.append(ranges.tail(len(sent)))
                break
            after = sent.upper.take(slice(-1, None))
        return b"".join(parts), Ranges.join(asked), waiting


def _ids(parts: list[Rows]) -> list[bytes]:
    return [id for rows in parts for id in blobs(rows)]
