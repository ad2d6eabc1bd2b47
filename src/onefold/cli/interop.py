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
from typing import Annotated, Final, Literal

from typer import Option

from onefold.errors import BadInput, Misuse
from onefold.reconcile import ItemSet, Session

LINE_MAX: Final = 1 << 28
"""Characters of a line: a message of 128 MB in hex, more than any two sets of a million records need."""


def negentropy(
    wire: Annotated[Literal["v1", "xor"], Option(help="v1: of today. xor: the older one, for trusted peers.")] = "v1",
    id_size: Annotated[
        int | None, Option(min=8, max=32, help="Bytes of an id; longer ids are cut. xor: by default 16. v1: 32.")
    ] = None,
    frame_limit: Annotated[int, Option(min=0, help="Bytes of a message of ours; 0: no limit.")] = 0,
    reply: Annotated[
        Literal["sparse", "full"],
        Option(help="What a list of ids is answered with: what differs, or all as published."),
    ] = "sparse",
) -> None:
    """Reconcile with another implementation, over standard input and output."""
    if wire == "v1" and id_size not in (None, 32):
        raise Misuse(f"--id-size is {id_size}; ids of wire v1 have 32 bytes", id_size=id_size)
    items = ItemSet(id_size or (32 if wire == "v1" else 16))
    session: Session | None = None
    number = 0
    while text := sys.stdin.readline(LINE_MAX + 1):
        if len(text) > LINE_MAX:
            raise BadInput(f"a line of more than {LINE_MAX} characters")
        line = text.strip()
        if not line:
            continue
        number += 1
        verb, _, rest = line.partition(",")
        try:
            if verb == "item":
                if session is not None:
                    raise Misuse("an item after seal")
                items.add(*_item(rest, items.id_size, exact=wire == "v1"))
            elif line == "seal":
                items.seal()
                session = Session(items, wire, frame_size_max=frame_limit, reply=reply)
            elif line != "initiate" and verb != "msg":
                raise BadInput("not one of item, seal, initiate, msg")
            elif session is None:
                raise Misuse("the set is not sealed yet")
            elif line == "initiate":
                print(f"msg,{session.initiate().hex()}")
            else:
                message, have, need = session.reconcile(bytes.fromhex(rest))
                for id in have:
                    print(f"have,{id.hex()}")
                for id in need:
                    print(f"need,{id.hex()}")
                print("done" if message is None else f"msg,{message.hex()}")
        except (BadInput, Misuse, ValueError) as error:
            start = line if len(line) <= 60 else f"{line[:60]}..."
            raise BadInput(f"line {number} ({start}): {error}", line=number) from error
        sys.stdout.flush()


def _item(text: str, id_size: int, *, exact: bool) -> tuple[int, bytes]:
    stamp, _, id = text.partition(",")
    if not (stamp.isascii() and stamp.isdigit()):
        raise BadInput(f"timestamp {stamp!r} is no whole number", timestamp=stamp)
    whole = bytes.fromhex(id)
    cut = whole if exact else whole[:id_size]
    if len(cut) != id_size:
        raise BadInput(f"an id of {len(whole)} bytes, must have {id_size}", size=len(whole))
    return int(stamp), cut
