"""One reconciliation between two sides: bytes in, bytes out; the client learns what each side lacks.

The client *initiates*: it splits its records into ranges and sends a fingerprint of each. A side that receives a
fingerprint that differs from its own splits that range further, until a range has so few records that their ids can be
listed; a list settles its range. After about log16(records) / 2 round trips the client knows every id that only one
side has. The server learns nothing, and keeps no state between messages.

    client = Session(items)                    server = Session(other_items)
    message = client.initiate()
    while message is not None:
        reply, _, _ = server.reconcile(message)
        message, have, need = client.reconcile(reply)

A message that breaks the protocol raises a `Violation`, one over a limit a `SessionLimit`; both leave the session as
it was. A session sees the records as they were when it was created.

With a frame limit each side sends what fits. The client keeps the other ranges for later. The server covers the rest
of the question with one last range, from the last bound that it *wrote*: a fingerprint, or an empty list if it has
nothing there. If the rest agrees the client drops it, else it asks again.

Cost: per message a few dozen numpy operations over all its ranges, the hash of each fingerprint, and a short loop over
the ranges received; nothing per record except for listed ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from operator import add
from typing import Final, Literal, NamedTuple

import numpy as np

from onefold.errors import BadInput, Misuse
from onefold.reconcile import codec, items
from onefold.reconcile.codec import Mode, Ranges, Violation
from onefold.reconcile.items import Bounds, Flags, Ints, Items, Limbs, Rows, Stamps, flagged

SPLIT: Final = 16
"""The number of pieces that a differing range is cut into; as published."""
LIST_BELOW: Final = 32
"""A range of fewer records is sent as a list of ids; as published."""
WIRES: Final = {"v1": codec.V1, "xor": codec.XOR}
NO_MATCH: Final = -1
BEGINNING_BITS_MIN: Final = 16


def frame_size_min(wire: str) -> int:
    """The smallest frame limit of a wire.

    >>> frame_size_min("v1"), frame_size_min("xor")
    (4096, 1024)
    """
    return WIRES[wire].frame_size_min


class SessionLimit(BadInput):
    """The session reached a limit, which is named, and is over."""


@dataclass(frozen=True)
class Limits:
    """What one session may cost, whatever the peer sends. Time is for the caller to limit: an engine has no clock.

    An honest session has few rounds: the logarithm of the records, and those that frame limits force. Two forced rounds
    carry at least one frame, so every quarter of the smallest frame (v1: 1,024 bytes, xor: 256) allows one more round.
    """

    rounds_max: int = 64  # a billion records need 8; the rest is for peers that split differently
    bytes_max: int = 1 << 30  # both directions; a million records that all differ take 64 MB
    needs_max: int = 10_000_000  # a list of 32-byte ids of that length is 320 MB

    def __post_init__(self) -> None:
        for name in ("rounds_max", "bytes_max", "needs_max"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name} is {getattr(self, name)}, must be at least 1", **{name: getattr(self, name)})


@dataclass(frozen=True)
class Spent:
    """What a session has cost so far, to be checked against its `Limits`."""

    rounds: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    needs: int = 0

    def received(self, size: int, limits: Limits, frame_size_min: int = codec.FRAME_SIZE_MIN) -> Spent:
        """After one more message from the peer, whose frame limit is at least this; SessionLimit if it is too much."""
        passed = self.bytes_in + size + self.bytes_out
        if passed > limits.bytes_max:
            raise SessionLimit(f"the session is over: {passed} bytes passed, bytes_max is {limits.bytes_max}")
        forced_bytes = frame_size_min // 4
        rounds_max = limits.rounds_max + passed // forced_bytes
        if self.rounds >= rounds_max:
            most = f"{limits.rounds_max} (and one more for every {forced_bytes} bytes)"
            text = f"the session is over: {self.rounds} rounds, rounds_max is {most}"
            raise SessionLimit(text, rounds=self.rounds)
        return replace(self, rounds=self.rounds + 1, bytes_in=self.bytes_in + size)

    def found(self, needs: int, limits: Limits) -> Spent:
        """After so many more ids that we lack; SessionLimit if there are too many."""
        needs += self.needs
        if needs > limits.needs_max:
            text = f"the session is over: the peer named {needs} ids that we lack, needs_max is {limits.needs_max}"
            raise SessionLimit(text, needs=needs)
        return replace(self, needs=needs)

    def sent(self, size: int) -> Spent:
        return replace(self, bytes_out=self.bytes_out + size)


@dataclass(frozen=True)
class Setting:
    """The records, the wire and the sizes of a session, checked once.

    ``split`` and ``list_below`` are 16 and 32 as in the published implementations: more pieces mean fewer rounds and
    more bytes. The fingerprint of an empty range would match any other empty range, so every piece must get a record:
    ``list_below`` is at least ``split``.
    """

    items: Items
    wire: codec.Wire
    frame_size_max: int
    reply: Literal["sparse", "full"]
    split: int
    list_below: int

    def checked(self) -> Setting:
        """The setting, with lists no longer than a frame has room for; `Misuse` if the values do not fit together."""
        self.wire.check(self.items.id_size)
        if self.reply not in ("sparse", "full"):
            raise Misuse(f"reply is {self.reply!r}, must be 'sparse' or 'full'", reply=self.reply)
        if self.split < 2:
            raise Misuse(f"split is {self.split}, must be at least 2", split=self.split)
        if self.list_below < self.split:
            raise Misuse(f"list_below is {self.list_below}, must be at least split, {self.split}")
        size, least = self.frame_size_max, self.wire.frame_size_min
        if not size:
            return self
        if size < least:
            raise Misuse(f"frame_size_max is {size}, must be 0 or at least {least}", frame_size_max=size)
        most = (self.room - codec.RANGE_MAX) // self.items.id_size + 1
        if self.split > most:
            raise Misuse(f"split is {self.split}, must be at most {most}: a frame of {size} bytes lists fewer ids")
        return replace(self, list_below=min(self.list_below, most))

    @cached_property
    def fingerprint_size(self) -> int:
        return self.wire.fingerprint_size(self.items.id_size)

    @property
    def room(self) -> int:
        """The bytes of a frame for ranges, if a last range for the rest has to fit too; 0: no limit."""
        if not self.frame_size_max:
            return 0
        return self.frame_size_max - len(self.wire.head) - codec.HEAD_MAX - self.fingerprint_size


@dataclass(frozen=True)
class Listed:
    """The ids of many ranges, concatenated, and how many each range has."""

    ids: Rows
    counts: Ints

    @cached_property
    def ranges(self) -> Ints:
        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def starts(self) -> Ints:
        return self.counts.cumsum() - self.counts

    def span(self, number: int) -> tuple[int, int]:
        start = int(self.starts[number])
        return start, start + int(self.counts[number])


def match(ours: Listed, theirs: Listed) -> tuple[Ints, Ints, list[int]]:
    """Pair equal ids of both sides in the same range, for all lists of a message at once.

    Returns, for each of our ids, the position of its equal among theirs, or NO_MATCH; the same for theirs; and the
    positions of ids that they list a second time in one range.

    Each id becomes one number: its range, its first bits, its side, its position. After sorting, equal ids of both
    sides are neighbours; they are then compared whole. Where different ids of one range have equal first bits, by
    chance, by malice or because lists are very long, that range is *crowded* and matched by a dictionary: slower, but
    just as exact. Cost: one sort of numbers; 0.1 microseconds per id.
    """
    of_ours, of_theirs = (np.full(len(listed.ids), NO_MATCH, dtype=np.int64) for listed in (ours, theirs))
    if not len(theirs.ids):
        return of_ours, of_theirs, []
    range_bits = max(1, (len(ours.counts) - 1).bit_length())
    place_bits = max(len(ours.ids), len(theirs.ids)).bit_length()
    if 64 - range_bits - place_bits - 1 < BEGINNING_BITS_MIN:
        twice = _match_by_dictionary(ours, theirs, of_ours, of_theirs, np.arange(len(ours.counts)))
        return of_ours, of_theirs, twice
    ours_at, theirs_at, crowded = _pairs(ours, theirs, range_bits, place_bits)
    limbs = ours.ids.view(np.uint64).take(ours_at, axis=0) == theirs.ids.view(np.uint64).take(theirs_at, axis=0)
    equal = np.logical_and.reduce([limbs[:, k] for k in range(limbs.shape[1])])
    if not equal.all():
        ours_at, theirs_at = ours_at[equal], theirs_at[equal]
    of_ours[ours_at] = theirs_at
    of_theirs[theirs_at] = ours_at
    return of_ours, of_theirs, _match_by_dictionary(ours, theirs, of_ours, of_theirs, crowded)


def _pairs(ours: Listed, theirs: Listed, range_bits: int, place_bits: int) -> tuple[Ints, Ints, Ints]:
    """Positions of our and their ids with equal first bits, and the ranges that are crowded."""
    below = np.uint64(place_bits + 1)

    def keys_of(listed: Listed, side: int) -> Limbs:
        beginning = listed.ids.view(items.BIG)[:, 0].astype(np.uint64) >> np.uint64(range_bits) >> below << below
        key = listed.ranges.astype(np.uint64) << np.uint64(64 - range_bits) | beginning
        return np.asarray(key | np.arange(side, side + len(key), dtype=np.uint64))

    keys = np.concatenate([keys_of(ours, 0), keys_of(theirs, 1 << place_bits)])
    keys.sort()
    same = (keys[1:] ^ keys[:-1]) >> below == 0
    side = (keys >> np.uint64(place_bits)).astype(np.uint8) & 1
    pair = same & (side[:-1] < side[1:])
    ambiguous = same & ~pair
    ambiguous[1:] |= same[1:] & same[:-1]
    crowded = np.unique(keys[:-1][ambiguous] >> np.uint64(64 - range_bits)).astype(np.int64)
    first, mask = flagged(pair), np.uint64((1 << place_bits) - 1)
    return (keys[first] & mask).astype(np.int64), (keys[first + 1] & mask).astype(np.int64), crowded


def _match_by_dictionary(ours: Listed, theirs: Listed, of_ours: Ints, of_theirs: Ints, ranges: Ints) -> list[int]:
    """Match these ranges id by id, replacing earlier pairs; the positions of their ids that are there twice."""
    twice: list[int] = []
    for number in ranges.tolist():
        start, end = ours.span(number)
        of_ours[start:end] = NO_MATCH
        positions: dict[bytes, int] = {}
        for position in range(*theirs.span(number)):
            of_theirs[position] = NO_MATCH
            if positions.setdefault(theirs.ids[position].tobytes(), position) != position:
                twice.append(position)
        beginnings = theirs.ids[slice(*theirs.span(number)), :8].view(np.uint64)[:, 0]
        likely = np.isin(ours.ids[start:end, :8].view(np.uint64)[:, 0], beginnings)
        for mine in (flagged(likely) + start).tolist():
            partner = positions.get(ours.ids[mine].tobytes(), NO_MATCH)
            of_ours[mine] = partner
            if partner != NO_MATCH:
                of_theirs[partner] = mine
    return twice


@dataclass(frozen=True)
class Lists:
    """The lists of a message: our records in their ranges, the peer's ids, and which are equal (`match`)."""

    ranges: Ranges
    stamps: Stamps
    ours: Listed
    theirs: Listed
    of_ours: Ints
    of_theirs: Ints


@dataclass(frozen=True)
class Received:
    """A peer's message: its ranges, with the ranks of our own records in them."""

    setting: Setting
    incoming: codec.Incoming
    ranges: Ranges

    @staticmethod
    def of(setting: Setting, message: bytes, at: int, initiator: bool) -> Received:
        layout = codec.Layout(setting.items.id_size, setting.fingerprint_size, setting.wire.xor and initiator)
        incoming = codec.read_ranges(message, at, layout)
        setting.items.expect(incoming.upper, incoming.modes >= Mode.ID_LIST)  # lists, and Responses to ours
        last = setting.items.find(incoming.upper)
        first = np.concatenate((np.zeros(1, dtype=np.int64), last[:-1]))[: len(last)]
        return Received(setting, incoming, Ranges(incoming.lower, incoming.upper, incoming.modes, first, last))

    def of_mode(self, mode: int) -> Ints:
        return flagged(self.ranges.modes == mode)

    def differing(self) -> Ints:
        """The ranges with a fingerprint that differs from ours."""
        which = self.of_mode(Mode.FINGERPRINT)
        if not len(which):
            return which
        ours = self.setting.wire.fingerprints(self.setting.items, self.ranges.first[which], self.ranges.last[which])
        return np.asarray(which[items.texts(ours) != items.texts(self.incoming.fingerprints(which))])

    def lists(self, which: Ints) -> Lists:
        """The lists of these ranges, matched with our ids; Violation if a list has an id twice."""
        ids, counts, ends = self.incoming.id_lists(which)
        ranges = self.ranges.take(which)
        stamps, our_ids = self.setting.items.rows(items.spans(ranges.first, ranges.last))
        ours, theirs = Listed(our_ids, ranges.sizes()), Listed(ids, counts)
        of_ours, of_theirs, twice = match(ours, theirs)
        if twice:
            number = int(theirs.ranges[twice[0]])
            behind = int(counts[: number + 1].sum() - twice[0])
            offset = int(ends[number]) - behind * self.setting.items.id_size
            raise Violation("an id that is in its list twice", offset)
        return Lists(ranges, stamps, ours, theirs, of_ours, of_theirs)

    def ids(self, rows: Rows) -> list[bytes]:
        return items.blobs(rows[:, : self.setting.items.id_size])


class Slots:
    """The slots that hold ids of one side only; a slot lies between two ids that both sides have, or at a range's end.

    The sparse reply lists our ids in these slots alone. The wire has no mode for that, but a range may be answered in
    pieces: lists where the sides differ, and a Skip where they agree. So the reply grows with the differences, not
    with the records.

    The difficulty: a listed id comes without its timestamp. The server knows the timestamps of the ids that both have,
    and that the list is sorted. Say C is listed, unknown to the server, between P and Q that both have; C's timestamp
    is then somewhere from P's to Q's. Two short bounds still enclose it:

        above P, not above C:   C's id > P's id: P's timestamp and C's id up to the first byte that differs from P's;
                                else C is later than P: P's timestamp + 1
        above C, not above Q:   C's id < Q's id: Q's timestamp and Q's id up to the first byte that differs from C's;
                                else C is earlier than Q: Q's timestamp

    The server's own records between P and Q have timestamps, and ordinary bounds. The lower of the two lower bounds
    and the higher of the two upper bounds enclose both kinds.
    """

    def __init__(self, lists: Lists) -> None:
        count = len(lists.ranges)
        ours, theirs = flagged(lists.of_ours == NO_MATCH), flagged(lists.of_theirs == NO_MATCH)
        self.lists = lists
        self.common = flagged(lists.of_ours != NO_MATCH)
        """Our positions of the ids that both sides have."""
        # Slot s of range r has s - r common ids before it, as every range has one slot more than common ids.
        our_slots = np.cumsum(lists.of_ours != NO_MATCH)[ours] + lists.ours.ranges[ours]
        their_slots = np.cumsum(lists.of_theirs != NO_MATCH)[theirs] + lists.theirs.ranges[theirs]
        used = np.zeros(len(self.common) + count, dtype=np.bool_)
        used[our_slots] = used[their_slots] = True
        slots = flagged(used)
        commons = np.bincount(lists.ours.ranges[self.common], minlength=count)
        self.number = np.cumsum(commons + 1).searchsorted(slots, side="right")
        """The range of each slot."""
        self.before = slots - self.number
        """How many common ids lie before each slot: its neighbours are common ids number before - 1 and before."""
        common_ends = commons.cumsum()
        self.bounded_below = self.before > (common_ends - commons)[self.number]
        self.bounded_above = self.before < common_ends[self.number]
        self.theirs_first, self.theirs_last = (np.full(len(slots), NO_MATCH, dtype=np.int64) for _ in range(2))
        where = slots.searchsorted(their_slots)
        self.theirs_last[where] = theirs  # of several assignments to one position, numpy keeps the last
        self.theirs_first[where[::-1]] = theirs[::-1]
        # The ranks of our records in each slot.
        self.first, self.last = lists.ranges.first[self.number].copy(), lists.ranges.last[self.number].copy()
        shift = self.first - lists.ours.starts[self.number]
        below, above = self.bounded_below, self.bounded_above
        self.first[below] = self.common[self.before[below] - 1] + 1 + shift[below]
        self.last[above] = self.common[self.before[above]] + shift[above]

    def bounds(self, lower: bool) -> Bounds:
        """The lower (or upper) bound of each slot: between its neighbour and its ids, or the bound of its range."""
        lists, slots = self.lists, flagged(self.bounded_below if lower else self.bounded_above)
        neighbour = self.common[self.before[slots] - (1 if lower else 0)]
        bounds = (lists.ranges.lower if lower else lists.ranges.upper).take(self.number)
        chosen = bounds.take(slots)
        ours = self.last[slots] > self.first[slots]  # slots that hold our records
        if ours.any():
            at = neighbour[ours] + (0 if lower else -1)
            below, above = ((lists.stamps[i], lists.ours.ids.take(i, axis=0)) for i in (at, at + 1))
            chosen.put(ours, Bounds.between(below, above))
        theirs_at = (self.theirs_first if lower else self.theirs_last)[slots]
        listed = theirs_at != NO_MATCH
        ids = lists.theirs.ids.take(theirs_at[listed], axis=0)
        stamps, neighbours = lists.stamps[neighbour[listed]], lists.ours.ids.take(neighbour[listed], axis=0)
        same_time = items.texts(ids) > items.texts(neighbours) if lower else items.texts(ids) < items.texts(neighbours)
        lengths = np.where(same_time, items.firsts_differ(neighbours, ids) + 1, 0)
        stamps, ids = (stamps + ~same_time, ids) if lower else (stamps, neighbours)
        theirs = Bounds.prefixes(stamps, ids, lengths)
        mine = chosen.take(listed)
        better = mine.below(theirs) if lower else theirs.below(mine)
        chosen.put(listed, Bounds.choose(ours[listed] & better, mine, theirs))
        bounds.put(slots, chosen)
        return bounds


def sparse_reply(lists: Lists) -> tuple[Ranges, Ints]:
    """Our ids where the two sides differ; and for each result the list that it answers. See `Slots`."""
    slots = Slots(lists)
    lower, upper, source = slots.bounds(lower=True), slots.bounds(lower=False), slots.number
    wrong = np.zeros(len(lists.ranges), dtype=np.bool_)  # lists that cannot be sorted; these are answered in full
    wrong[lists.ours.ranges[slots.common[1:]][np.diff(lists.of_ours[slots.common]) < 0]] = True
    wrong[source[~lower.below(upper)]] = True
    replies = Ranges(lower, upper, np.zeros(len(source), np.uint8), slots.first, slots.last).as_lists()
    if not wrong.any():
        return replies, source
    right, whole = flagged(~wrong[source]), flagged(wrong)
    replies = Ranges.join([replies.take(right), lists.ranges.take(whole).as_lists()])
    source = np.concatenate((source[right], whole))
    order = source.argsort(kind="stable")
    return replies.take(order), source[order]


def xor_reply(setting: Setting, lists: Lists) -> tuple[Ranges, Ints]:
    """A Response to each list: the ids that only we have, and a bit for each listed id that we lack.

    The bits begin with the lowest of the first byte; bytes after the last set bit are left out. A Response that is too
    long for a frame becomes a list of our ids, or fingerprints of its pieces.
    """
    ranges, count, id_size = lists.ranges, len(lists.ranges), setting.items.id_size
    ours, theirs = flagged(lists.of_ours == NO_MATCH), flagged(lists.of_theirs == NO_MATCH)
    haves = np.bincount(lists.ours.ranges[ours], minlength=count)
    ids = lists.ours.ids[ours, :id_size].tobytes()
    number = lists.theirs.ranges[theirs]
    position = theirs - lists.theirs.starts[number]
    sizes = np.zeros(count, dtype=np.int64)
    sizes[number] = position // 8 + 1  # of several assignments to one position, numpy keeps the last
    starts = sizes.cumsum() - sizes
    bits = np.zeros(int(sizes.sum()), dtype=np.uint8)
    np.bitwise_or.at(bits, starts[number] + position // 8, np.left_shift(1, position % 8).astype(np.uint8))
    field = bits.tobytes()
    payloads, at, bit = [], 0, 0
    for have, size in zip(haves.tolist(), sizes.tolist(), strict=True):
        end = at + have * id_size
        parts = codec.write_number(have), ids[at:end], codec.write_number(size), field[bit : bit + size]
        payloads.append(b"".join(parts))
        at, bit = end, bit + size

    replies = replace(ranges, modes=np.full(count, Mode.RESPONSE, dtype=np.uint8), payloads=payloads)
    source = flagged(haves + sizes) if setting.reply == "sparse" else np.arange(count)
    replies = replies.take(source)
    lengths = np.array([len(payload) for payload in replies.payloads], dtype=np.int64)
    long = lengths + codec.RANGE_MAX > (setting.room or np.inf)
    if not long.any():
        return replies, source
    pieces, owner = codec.split(setting.items, ranges.take(source[long]), setting.split, setting.list_below)
    replies, source = Ranges.join([replies.take(~long), pieces]), np.concatenate((source[~long], source[long][owner]))
    order = source.argsort(kind="stable")
    return replies.take(order), source[order]


def answer(setting: Setting, message: bytes) -> bytes:
    """The server's reply to a message; stateless."""
    head, start = setting.wire.head, setting.wire.body(message, initiator=False)
    if start is None:
        return head
    received = Received.of(setting, message, start, initiator=False)
    replies, complete = _replies(received)
    if not len(replies):
        return head
    writer, room = codec.Writer(setting.items, setting.wire), setting.room
    if not room:
        return head + writer.write(replies)[0]
    data, written = writer.write_some(writer.cut_to_fit(replies, room), room)
    if complete and len(written) == len(replies) and written.last[-1] == replies.last[-1]:
        return head + data
    final = written.take(slice(-1, None))
    final_asked = received.ranges.take(flagged(received.ranges.modes != Mode.SKIP)[-1:])
    if final.upper.equal(final_asked.upper).all():
        return head + data
    mode = Mode.FINGERPRINT if final_asked.last[0] > final.last[0] else Mode.ID_LIST
    rest = Ranges(final.upper, final_asked.upper, np.array([mode], dtype=np.uint8), final.last, final_asked.last)
    return head + data + writer.write(rest, after=final.upper)[0]


def _replies(received: Received) -> tuple[Ranges, bool]:
    """The ranges of the reply, in order, and whether they are complete; if not, they are more than a frame takes."""
    setting, room, id_size = received.setting, received.setting.room, received.setting.items.id_size
    differing, which, complete = received.differing(), received.of_mode(Mode.ID_LIST), True
    if room:
        # Little more than a frame can take, so that a short message cannot make us read all our records: a list that
        # lacks more of our ids than a frame takes is split like a fingerprint that differs.
        sizes = received.ranges.sizes()
        lacking = np.maximum(sizes[which] - received.incoming.counts(which), 0) * id_size
        huge = lacking > room
        differing, which = np.sort(np.concatenate((differing, which[huge]))), which[~huge]
        least = np.zeros(len(sizes), dtype=np.int64)
        pieces_size = setting.split * (codec.HEAD_MIN + setting.fingerprint_size)
        few = sizes[differing] < setting.list_below
        least[differing] = np.where(few, codec.HEAD_MIN + 1 + sizes[differing] * id_size, pieces_size)
        least[which] = lacking[~huge]
        end = np.searchsorted(least.cumsum(), room)
        complete = bool((differing <= end).all() and (which <= end).all())
        differing, which = differing[differing <= end], which[which <= end]
    pieces, source = codec.split(setting.items, received.ranges.take(differing), setting.split, setting.list_below)
    if not len(which):
        return pieces, complete
    lists = received.lists(which)
    if setting.wire.xor:
        replies, owner = xor_reply(setting, lists)
    elif setting.reply == "sparse":
        replies, owner = sparse_reply(lists)
    else:
        replies, owner = lists.ranges.as_lists(), np.arange(len(lists.ranges))
    order = np.argsort(np.concatenate((differing[source], which[owner])), kind="stable")
    return Ranges.join([pieces, replies]).take(order), complete


@dataclass(frozen=True)
class Answers:
    """A message of the server, as the answer to the ranges that the client asked about.

    Inside an asked range, a list says what each side lacks, a fingerprint that differs is split and asked about again,
    and what is skipped agrees. A range that covers several asked ones can only be the rest that did not fit into the
    server's frame: if it differs, the client asks for them again unchanged, so nothing is reported twice. A list for
    a range that was not asked about is refused.
    """

    received: Received
    questions: Ranges
    start: Ints
    end: Ints
    inside: Flags
    """For each range of the message: the asked ranges from ``start`` to ``end`` overlap it, and does it lie inside?"""

    @staticmethod
    def of(received: Received, questions: Ranges) -> Answers:
        rows = np.zeros(len(received.ranges), dtype=np.int64)
        which = flagged(received.ranges.modes)  # all but Skips
        if not len(which):
            return Answers(received, questions, rows, rows, rows > 0)
        lower, upper = received.ranges.lower.take(which), received.ranges.upper.take(which)
        begins, ends = (items.Columns(bounds.timestamps, bounds.ids) for bounds in (questions.lower, questions.upper))
        start, end = ends.find(lower), begins.find(upper)
        # A question that ends where the range begins does not overlap it.
        start += questions.upper.take(np.minimum(start, len(questions) - 1)).equal(lower)
        first, last = np.minimum(start, len(questions) - 1), np.maximum(end - 1, 0)
        apart = ~questions.lower.take(slice(1, None)).equal(questions.upper.take(slice(0, -1)))
        holes = np.concatenate(([0], apart.cumsum()))
        inside = (end > start) & (holes[first] == holes[last])
        inside &= ~(lower.below(questions.lower.take(first)) | questions.upper.take(last).below(upper))
        rows[which] = np.arange(len(which))  # Skips share the first row, which is never used for them
        return Answers(received, questions, start[rows], end[rows], inside[rows])

    def next(self) -> Ranges:
        """The ranges to ask about next; empty if all is settled."""
        setting, differing = self.received.setting, self.received.differing()
        one = self.inside[differing] & (self.end[differing] - self.start[differing] == 1)
        ranges = self.received.ranges.take(differing[one])
        pieces, source = codec.split(setting.items, ranges, setting.split, setting.list_below)
        if one.all():
            return pieces
        again, again_source = self._clipped(differing[~one])
        order = np.argsort(np.concatenate((differing[one][source], again_source)), kind="stable")
        return Ranges.join([pieces, again]).take(order)

    def _clipped(self, which: Ints) -> tuple[Ranges, Ints]:
        """The asked ranges that overlap these ranges of the message, clipped to them; and the range of each."""
        counts = np.maximum(self.end[which] - self.start[which], 0)
        source = which.repeat(counts)
        ours = self.questions.take(items.spans(self.start[which], self.start[which] + counts))
        theirs = self.received.ranges.take(source)
        lower = Bounds.choose(ours.lower.below(theirs.lower), theirs.lower, ours.lower)
        upper = Bounds.choose(ours.upper.below(theirs.upper), ours.upper, theirs.upper)
        first, last = np.maximum(ours.first, theirs.first), np.minimum(ours.last, theirs.last)
        modes = np.where(first < last, ours.modes, np.uint8(Mode.ID_LIST))  # an empty fingerprint is never sent
        return Ranges(lower, upper, modes, first, last), source

    def from_lists(self) -> tuple[list[bytes], list[bytes]]:
        received, which = self.received, self.received.of_mode(Mode.ID_LIST)
        if not len(which):
            return [], []
        outside = which[~self.inside[which]]
        if len(outside):  # an empty list may be the rest, which may cover ranges that were not asked about
            empty = received.incoming.id_lists(outside)[1] == 0
            if not empty.all():
                offset = int(received.incoming.starts[outside[~empty][0]])
                raise Violation("a list of ids for a range that was not asked about", offset)
        lists = received.lists(which[self.inside[which]])
        have = received.ids(lists.ours.ids[lists.of_ours == NO_MATCH])
        need = received.ids(lists.theirs.ids[lists.of_theirs == NO_MATCH])
        if len(outside):
            rest, _ = self._clipped(outside)
            have += received.ids(received.setting.items.rows(items.spans(rest.first, rest.last))[1])
        return have, need

    def from_responses(self) -> tuple[list[bytes], list[bytes]]:
        """The same from the server's Responses: xor only."""
        received, which = self.received, self.received.of_mode(Mode.RESPONSE)
        if not len(which):
            return [], []
        message, starts = received.incoming.message, received.incoming.starts[which]
        replies = received.ranges.take(which)
        asked = self.questions.take(np.minimum(self.start[which], len(self.questions) - 1))
        exact = asked.lower.equal(replies.lower) & asked.upper.equal(replies.upper) & (asked.modes == Mode.ID_LIST)
        if not exact.all():
            raise Violation("a Response to something that was not listed", int(starts[~exact][0]))
        need, counts, ends = received.incoming.id_lists(which)
        ours = received.setting.items.rows(items.spans(asked.first, asked.last))[1]
        _, of_theirs, twice = match(Listed(ours, asked.sizes()), Listed(need, counts))
        if twice or (of_theirs != NO_MATCH).any():
            position = int(twice[0] if twice else flagged(of_theirs != NO_MATCH)[0])
            start = starts[np.searchsorted(counts.cumsum(), position, side="right")]
            raise Violation("a Response with an id that was listed, or is in it twice", int(start))
        lacking = []  # for each listed id whether the server lacks it
        for at, count in zip(ends.tolist(), asked.sizes().tolist(), strict=True):
            size, start = codec.read_number(message, at)
            if size > -(-count // 8):
                raise Violation(f"{size} bytes of bits for {count} listed ids", at)
            bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8, count=size, offset=start), bitorder="little")
            if bits[count:].any():
                raise Violation(f"a bit for more than the {count} listed ids", start)
            flags = np.zeros(count, dtype=np.bool_)
            flags[: len(bits)] = bits[:count]
            lacking.append(flags)
        return received.ids(ours[np.concatenate(lacking)]), received.ids(need)


class Reconciled(NamedTuple):
    """The reply (None: the client is done), and ids that one side lacks; in wire xor all come with the last message."""

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
        self, items: Items, wire: Literal["v1", "xor"] = "v1", id_size: int | None = None, *, frame_size_max: int = 0,
        reply: Literal["sparse", "full"] = "sparse", split: int = SPLIT, list_below: int = LIST_BELOW,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        if wire not in WIRES:
            raise Misuse(f"wire is {wire!r}, must be 'v1' or 'xor'", wire=wire)
        if id_size is not None and id_size != items.id_size:
            raise Misuse(f"id_size is {id_size}, and the ids have {items.id_size} bytes", id_size=id_size)
        self._setting = Setting(items.snapshot(), WIRES[wire], frame_size_max, reply, split, list_below).checked()
        self._limits = limits or Limits()
        self.spent = Spent()
        self._questions: Ranges | None = None
        self._waiting: list[Ranges] = []  # a stack: the lowest ranges are in the last element
        self._initiator = False
        self._have: list[bytes] = []  # wire xor: reported at the end
        self._need: list[bytes] = []
        self.both_ways = 0
        """How many ids an xor peer named in both directions; known at the end of the session, and reported in neither.

        The published xor implementation counts a record equal to a bound as below it, contrary to its own text. So
        where ids differ in their last byte alone, it may name an id that both have, in one or both directions, or miss
        one: ids should be hashes.
        """

    def initiate(self) -> bytes:
        """The client's first message; the side that calls this is the client."""
        if self._initiator or self.spent.rounds:
            raise Misuse("the session is under way already")
        setting = self._setting
        first, _ = codec.split(setting.items, codec.universe(setting.items), setting.split, setting.list_below)
        message = self._ask([first])
        self._initiator = True
        self.spent = self.spent.sent(len(message))
        return message

    def reconcile(self, message: bytes) -> Reconciled:
        """Process a message of the peer: the reply to it, and on the client the ids that one side lacks."""
        spent = self.spent.received(len(message), self._limits, self._setting.wire.frame_size_min)
        if not self._initiator:
            reply = answer(self._setting, message)
            self.spent = spent.sent(len(reply))
            return Reconciled(reply, [], [])
        if self._questions is None:
            raise Misuse("the session is done")
        start = self._setting.wire.body(message, initiator=True)
        answers = Answers.of(Received.of(self._setting, message, start or 0, initiator=True), self._questions)
        have, need = map(add, answers.from_lists(), answers.from_responses())
        ranges = answers.next()
        spent = spent.found(len(need), self._limits)
        waiting = [*self._waiting, ranges] if len(ranges) else self._waiting
        if waiting:
            reply = self._ask(waiting)
            self.spent = spent.sent(len(reply))
            if not self._setting.wire.xor:
                return Reconciled(reply, have, need)
            self._have += have
            self._need += need
            return Reconciled(reply, [], [])
        self.spent, self._questions = spent, None
        have, need, self._have, self._need = self._have + have, self._need + need, [], []
        both = set(have).intersection(need) if self._setting.wire.xor else set()
        self.both_ways = len(both)
        if both:
            have, need = [id for id in have if id not in both], [id for id in need if id not in both]
        return Reconciled(None, have, need)

    def _ask(self, waiting: list[Ranges]) -> bytes:
        """A message with as many of the waiting ranges as fit; the others keep waiting."""
        writer, head = codec.Writer(self._setting.items, self._setting.wire), self._setting.wire.head
        if not self._setting.frame_size_max:
            ranges = Ranges.join(waiting[::-1])
            message = head + writer.write(ranges)[0]
            self._questions, self._waiting = ranges, []
            return message
        room = self._setting.frame_size_max - len(head)
        waiting, parts, question, after = list(waiting), [head], [], None
        while waiting:
            ranges = waiting.pop()
            data, written = writer.write_some(ranges, room, after)
            room -= len(data)
            parts.append(data)
            question.append(written)
            if len(written) < len(ranges):
                waiting.append(ranges.take(slice(len(written), None)))
                break
            after = written.upper.take(slice(-1, None))
        self._questions, self._waiting = Ranges.join(question), waiting
        return b"".join(parts)
