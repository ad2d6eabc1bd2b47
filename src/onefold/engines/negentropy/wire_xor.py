"""The wire of the source document: no version, ids of 8 to 32 bytes, fingerprints that are exclusive ors.

    Message      := <Range>*
    Range        := <upper bound> <mode: varint> <payload>
    Skip         := mode 0
    Fingerprint  := mode 1, the exclusive or of the ids
    IdList       := mode 2, <count: varint> <id>*
    Response     := mode 3, <count: varint> <id>*, <size: varint> <bits>

A server answers a list with a Response: the ids that only the server has, and a bit for each listed id, from the lowest
of the first byte on, that says whether the server lacks it. Bytes behind the last set bit are left out.

For trusted peers only. Exclusive or is linear: among 264 records of his choice an attacker finds some whose exclusive
or is whatever he likes, in milliseconds, and so hides a difference behind an equal fingerprint. v1 does not have this
flaw.

The published implementation counts a record that equals a bound as below it, against its own text. That matters where
ids differ in their last byte alone: it has such a record on one side of the bound and we on the other, and it is named
in both directions, as one that it lacks and as one that we do. Both have it then, so a session takes both back; that is
why it tells what it found only with its last message. Of such ids it may also name one in a single direction, or miss
one: ids should be hashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from onefold.engines.negentropy import varint
from onefold.engines.negentropy.arrays import Ints, Rows, flagged
from onefold.engines.negentropy.items import ID_SIZES, Items
from onefold.engines.negentropy.limits import FRAME_SIZE_MIN_XOR
from onefold.engines.negentropy.matching import NOBODY
from onefold.engines.negentropy.ranges import Mode, Ranges, split
from onefold.engines.negentropy.sparse import Answered
from onefold.engines.negentropy.wire import Replying
from onefold.engines.negentropy.writing import RANGE_MAX
from onefold.errors import Misuse


class WireXor:
    """The unversioned protocol of the source document."""

    head: Final = b""
    frame_size_min: Final = FRAME_SIZE_MIN_XOR
    both_ways: Final = True

    def check(self, id_size: int) -> None:
        """Misuse, if ids have a size that this wire does not know."""
        if id_size not in ID_SIZES:
            raise Misuse(f"ids have {id_size} bytes; those of wire xor have 8 to 32", id_size=id_size)

    def fingerprint_size(self, id_size: int) -> int:
        """How many bytes a fingerprint has: those of an id."""
        return id_size

    def fingerprints(self, items: Items, lower: Ints, upper: Ints) -> Rows:
        """One for each of these ranges of ranks. Cost: O(1) each, whatever the range."""
        return items.xors(lower, upper)[:, : items.id_size]

    def body(self, message: bytes, initiator: bool) -> int | None:
        """Where the ranges begin: at once."""
        return 0

    def modes(self, initiator: bool) -> frozenset[int]:
        """What a range may say; a Response comes from a server."""
        both = {Mode.SKIP, Mode.FINGERPRINT, Mode.ID_LIST}
        return frozenset(both | {Mode.RESPONSE} if initiator else both)

    def replies(self, items: Items, answered: Answered, how: Replying) -> tuple[Ranges, Ints]:
        """A Response to each list. One that is too long for a frame becomes a list of ours, or is split."""
        responses = Responses.to(answered, items.id_size)
        ranges = answered.ranges
        numbers = np.arange(len(ranges))
        modes = np.full(len(ranges), Mode.RESPONSE, dtype=np.uint8)
        told = Ranges(ranges.lower, ranges.upper, modes, ranges.first, ranges.last, responses.payloads)
        if how.sparse:
            numbers = flagged(responses.tells)
            told = told.take(numbers)
        sizes = np.array([len(payload) for payload in told.payloads], dtype=np.int64)
        long = sizes + RANGE_MAX > how.room if how.room else np.zeros(len(sizes), dtype=np.bool_)
        if not long.any():
            return told, numbers
        pieces, source = split(items, ranges.take(numbers[long]), how.split, how.list_below)
        told, numbers = Ranges.join([told.take(~long), pieces]), np.concatenate((numbers[~long], numbers[long][source]))
        order = numbers.argsort(kind="stable")
        return told.take(order), numbers[order]


@dataclass(frozen=True)
class Responses:
    """What a server says to lists, and whether it says anything at all."""

    payloads: list[bytes]
    tells: Ints

    @staticmethod
    def to(answered: Answered, id_size: int) -> Responses:
        """Of each list what only the server has, and which of the listed ids it lacks."""
        ours = flagged(answered.matched.ours == NOBODY)
        theirs = flagged(answered.matched.theirs == NOBODY)
        count = len(answered.ranges)
        haves = np.bincount(answered.ours.ranges[ours], minlength=count)
        ids = answered.ours.ids[ours, :id_size].tobytes()
        number = answered.theirs.ranges[theirs]
        place = theirs - answered.theirs.starts[number]
        sizes = np.zeros(count, dtype=np.int64)
        sizes[number] = place // 8 + 1  # of several assignments to one place the last one stays
        starts = sizes.cumsum() - sizes
        bits = np.zeros(int(sizes.sum()), dtype=np.uint8)
        np.bitwise_or.at(bits, starts[number] + place // 8, np.left_shift(1, place % 8).astype(np.uint8))
        field = bits.tobytes()
        payloads, at, bit = [], 0, 0
        for have, size in zip(haves.tolist(), sizes.tolist(), strict=True):
            end = at + have * id_size
            payloads.append(b"".join((varint.write(have), ids[at:end], varint.write(size), field[bit : bit + size])))
            at, bit = end, bit + size
        return Responses(payloads, haves + sizes)
