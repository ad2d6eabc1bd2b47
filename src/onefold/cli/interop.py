"""``onefold interop``: speaks with other implementations, line by line, in the way of their published test harness.

item,<timestamp>,<id in hex>     one record; before seal
seal                             that is all
initiate                         this side is the client: answered with msg
msg,<message in hex>             what the peer said: answered with have and need, then msg or done

have,<id in hex>                 only this side has it
need,<id in hex>                 only the peer has it
msg,<message in hex>             to be handed to the peer
done                             the client knows all
"""

import sys
from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias

from typer import Option

from onefold.errors import BadInput, Misuse
from onefold.reconcile import ItemSet, Session

LINE_MAX: Final = 1 << 28
"""Characters of a line: a message of 128 MB in hex, more than any two sets of a million records need."""


WireName: TypeAlias = Literal["v1", "xor"]
ReplyName: TypeAlias = Literal["sparse", "full"]


def negentropy(
    wire: Annotated[WireName, Option(help="v1: as spoken today. xor: the older one, for trusted peers.")] = "v1",
    id_size: Annotated[
        int | None, Option(min=8, max=32, help="Bytes of an id; longer ids are cut. xor: by default 16. v1: 32.")
    ] = None,
    frame_limit: Annotated[int, Option(min=0, help="Bytes of a message of ours; 0: no limit.")] = 0,
    reply: Annotated[
        ReplyName, Option(help="What a list of ids is answered with: what differs, or all as published.")
    ] = "sparse",
) -> None:
    """Reconcile with another implementation, over standard input and output."""
    if wire == "v1" and id_size not in (None, 32):
        raise Misuse(f"--id-size is {id_size}; ids of wire v1 have 32 bytes", id_size=id_size)
    talk = Talk(wire, id_size or (32 if wire == "v1" else 16), frame_limit, reply)
    number = 0
    while text := sys.stdin.readline(LINE_MAX + 1):
        if len(text) > LINE_MAX:
            raise BadInput(f"a line of more than {LINE_MAX} characters")
        if line := text.strip():
            number += 1
            for answer in talk.answers(number, line):
                print(answer)
            sys.stdout.flush()


class Talk:
    def __init__(self, wire: WireName, id_size: int, frame_limit: int, reply: ReplyName) -> None:
        self._wire, self._reply, self._frame_limit = wire, reply, frame_limit
        self._items = ItemSet(id_size)
        self._session: Session | None = None

    def answers(self, number: int, line: str) -> Iterator[str]:
        """What a line is answered with; BadInput that names the line, if it is none of the harness."""
        verb, _, rest = line.partition(",")
        try:
            if verb == "item":
                self._item(rest)
            elif line == "seal":
                self._items.seal()
                self._session = Session(self._items, self._wire, frame_size_max=self._frame_limit, reply=self._reply)
            elif line == "initiate":
                yield f"msg,{self._under_way().initiate().hex()}"
            elif verb == "msg":
                reply, have, need = self._under_way().reconcile(bytes.fromhex(rest))
                yield from (f"have,{id.hex()}" for id in have)
                yield from (f"need,{id.hex()}" for id in need)
                yield "done" if reply is None else f"msg,{reply.hex()}"
            else:
                raise BadInput("not one of item, seal, initiate, msg")
        except (BadInput, Misuse, ValueError) as error:
            start = line if len(line) <= 60 else f"{line[:60]}..."
            raise BadInput(f"line {number} ({start}): {error}", line=number) from error

    def _item(self, rest: str) -> None:
        stamp, _, id = rest.partition(",")
        if self._session is not None:
            raise Misuse("an item after seal")
        if not (stamp.isascii() and stamp.isdigit()):
            raise BadInput(f"timestamp {stamp!r} is no whole number", timestamp=stamp)
        whole = bytes.fromhex(id)
        cut = whole if self._wire == "v1" else whole[: self._items.id_size]
        if len(cut) != self._items.id_size:
            raise BadInput(f"an id of {len(whole)} bytes, must have {self._items.id_size}", size=len(whole))
        self._items.add(int(stamp), cut)

    def _under_way(self) -> Session:
        if self._session is None:
            raise Misuse("the set is not sealed yet")
        return self._session
