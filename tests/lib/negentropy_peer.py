"""A peer written as plainly as can be, one record after another: the truth that the engine's columns are held to.

It says what the published implementations say, byte for byte, when there is no frame limit. With a limit it does
as they do: it stops when the frame is full, and fingerprints the whole rest of the universe, from the last bound it
wrote.
"""

from bisect import bisect_left
from functools import reduce
from hashlib import sha256
from itertools import pairwise

INFINITY = 2**64 - 1
SKIP, FINGERPRINT, ID_LIST, RESPONSE = range(4)
END = (INFINITY, b"")


def number(value):
    digits = [value % 128]
    while value := value // 128:
        digits.append(value % 128 + 128)
    return bytes(reversed(digits))


class Reader:
    def __init__(self, message, at):
        self.message, self.at, self.stamp = message, at, 0

    def take(self, count):
        self.at += count
        return self.message[self.at - count : self.at]

    def number(self):
        value = 0
        while (digit := self.take(1)[0]) > 127:
            value = value * 128 + digit - 128
        return value * 128 + digit

    def bound(self):
        step = self.number()
        self.stamp = INFINITY if step == 0 else self.stamp + step - 1
        return self.stamp, self.take(self.number())


class Writer:
    def __init__(self):
        self.parts, self.stamp, self.size = [], 0, 0

    def range(self, bound, mode, payload=b""):
        stamp, prefix = bound
        step = 0 if stamp == INFINITY else stamp - self.stamp + 1
        self.stamp = stamp
        self.parts.append(number(step) + number(len(prefix)) + prefix + number(mode) + payload)
        self.size += len(self.parts[-1])


class PlainPeer:
    """One side; ``records`` are pairs of timestamp and id.

    ``search`` counts the records below a bound: with `bisect_right` one that equals it, as the published xor wire does.
    """

    def __init__(self, records, wire="v1", id_size=32, frame_size_max=0, search=bisect_left):
        self.search = search
        self.records, self.wire, self.id_size = sorted(records), wire, id_size
        self.head = b"\x61" if wire == "v1" else b""
        self.room = frame_size_max - 100 if frame_size_max else INFINITY
        self.client = False

    def fingerprint(self, low, high):
        ids = [id for _, id in self.records[low:high]]
        if self.wire == "xor":
            return reduce(lambda a, b: bytes(x ^ y for x, y in zip(a, b, strict=True)), ids, bytes(self.id_size))
        total = sum(int.from_bytes(id, "little") for id in ids) % 2**256
        return sha256(total.to_bytes(32, "little") + number(len(ids))).digest()[:16]

    def separator(self, at):
        (before, left), (stamp, right) = self.records[at - 1 : at + 1]
        if before != stamp:
            return stamp, b""
        same = next(i for i in range(self.id_size) if left[i] != right[i])
        return stamp, right[: same + 1]

    def ids(self, low, high):
        return number(high - low) + b"".join(id for _, id in self.records[low:high])

    def pieces(self, low, high, upper):
        count = high - low
        if count < 32:
            return [(upper, ID_LIST, self.ids(low, high))]
        each, left = divmod(count, 16)
        cuts = [low]
        for i in range(16):
            cuts.append(cuts[-1] + each + (i < left))
        bounds = [*map(self.separator, cuts[1:-1]), upper]
        prints = [self.fingerprint(a, b) for a, b in pairwise(cuts)]
        return [(bound, FINGERPRINT, one) for bound, one in zip(bounds, prints, strict=True)]

    def initiate(self):
        self.client, writer = True, Writer()
        for piece in self.pieces(0, len(self.records), END):
            writer.range(*piece)
        return self.head + b"".join(writer.parts)

    def reconcile(self, message):
        have: list[bytes] = []
        need: list[bytes] = []
        reader, writer = Reader(message, len(self.head)), Writer()
        low, lower, written, full = 0, (0, b""), (0, b""), False
        while reader.at < len(message) and not full:
            upper = reader.bound()
            high = self.search(self.records, upper)
            pieces = self.answers(reader, low, high, upper, have, need)
            if pieces and written != lower:
                writer.range(lower, SKIP)
                written = lower
            for piece in pieces:
                if full := writer.size + len(piece[2]) > self.room:
                    break
                writer.range(*piece)
                written = piece[0]
            low, lower = high, upper
        if full and (count := len(self.records) - (start := bisect_left(self.records, written))):
            writer.range(END, FINGERPRINT, self.fingerprint(start, start + count))
        elif full:
            writer.range(END, ID_LIST, number(0))
        reply = self.head + b"".join(writer.parts)
        return (None if self.client and not writer.parts else reply), have, need

    def answers(self, reader, low, high, upper, have, need):
        mode, ours = reader.number(), [id for _, id in self.records[low:high]]
        if mode == FINGERPRINT:
            same = reader.take(16 if self.wire == "v1" else self.id_size) == self.fingerprint(low, high)
            return [] if same else self.pieces(low, high, upper)
        if mode == SKIP:
            return []
        theirs = [reader.take(self.id_size) for _ in range(reader.number())]
        if mode == RESPONSE:
            bits = int.from_bytes(reader.take(reader.number()), "little")
            have += [id for place, id in enumerate(ours) if bits >> place & 1]
            need += theirs
            return []
        if self.client:
            have += [id for id in ours if id not in set(theirs)]
            need += [id for id in theirs if id not in set(ours)]
            return []
        if self.wire == "v1":
            cuts = list(range(low, high, 50))[1:] if self.room < INFINITY else []
            bounds = [*map(self.separator, cuts), upper]
            lists = [self.ids(a, b) for a, b in pairwise([low, *cuts, high])]
            return [(bound, ID_LIST, one) for bound, one in zip(bounds, lists, strict=True)]
        mine = [id for id in ours if id not in set(theirs)]
        lacked = sum(1 << place for place, id in enumerate(theirs) if id not in set(ours))
        field = lacked.to_bytes(-(-lacked.bit_length() // 8), "little")
        return [(upper, RESPONSE, number(len(mine)) + b"".join(mine) + number(len(field)) + field)]
