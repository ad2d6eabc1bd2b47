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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from onefold.engines.negentropy.answering import answer
from onefold.engines.negentropy.arrays import Rows, blobs
from onefold.engines.negentropy.asking import learn
from onefold.engines.negentropy.items import Items
from onefold.engines.negentropy.limits import Limits, Spent
from onefold.engines.negentropy.ranges import Ranges, split, universe
from onefold.engines.negentropy.received import Received
from onefold.engines.negentropy.setting import Reply, Setting
from onefold.engines.negentropy.wire import Wire
from onefold.engines.negentropy.wire_v1 import WireV1
from onefold.engines.negentropy.wire_xor import WireXor
from onefold.errors import Misuse

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

    >>> from onefold.engines.negentropy import ItemSet
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
