"""How a session is played: the records, the wire and the sizes; the same for both sides of it, and checked once.

``split`` and ``list_below`` are 16 and 32 as in the published implementations: more pieces mean fewer rounds and more
bytes for the same difference. In a small frame lists are as long as fit into it. A range of ours is never fingerprinted
when it is empty: an empty fingerprint would match an empty range elsewhere and say nothing. So every piece must get a
record: ``list_below`` is at least ``split``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from onefold.engines.negentropy.items import Items
from onefold.engines.negentropy.reading import Layout
from onefold.engines.negentropy.wire import Wire
from onefold.engines.negentropy.writing import HEAD_MAX, RANGE_MAX, Writer
from onefold.errors import Misuse

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
