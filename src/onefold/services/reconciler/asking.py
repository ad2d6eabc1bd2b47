"""What a client gets for a frame: the answer to it, or an error that says whether it is worth trying again.

ConnectionError, Busy   the session is over, and another one may go better
Misuse                  the peer will say the same again: fix the call, or the settings of the peer
BadInput                the peer does not speak the protocol
"""

from typing import Final

from onefold.errors import BadInput, Busy, Misuse
from onefold.links.exchange import ERROR, Trouble, told
from onefold.links.plain import plain
from onefold.ports.records import Channel

LATER: Final = frozenset({"store_failed", "time", "needs", "pushes", "not_open"})
"""Troubles that a new session does not have, or not at once: it takes up where this one ended."""


def answer(channel: Channel, kind: int) -> bytes:
    """The peer's next frame, which must be of this kind."""
    frame = channel.receive()
    if frame[:1] == bytes((kind,)):
        return frame
    if frame[:1] != bytes((ERROR,)):
        raise BadInput(f"the peer answers with a frame of kind {frame[:1]!r}, expected {chr(kind)!r}")
    trouble = told(Trouble, frame)
    text = "the peer says " + plain(f"{trouble.error}: {trouble.text}")
    if trouble.error == "busy":
        raise Busy(text)
    if trouble.error in LATER:
        raise ConnectionAbortedError(text)
    raise Misuse(text, error=trouble.error, offset=trouble.offset)
