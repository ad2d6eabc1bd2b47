"""How a client reaches its peer: a server, by its address, or a store of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from onefold.errors import Misuse
from onefold.links.pipe import Pipe
from onefold.ports.records import Channel, Records
from onefold.stores.addresses import masked

SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
ANSWER_S: Final = 600.0
"""For an answer: a server may have to read much for it, and other peers wait for their turn too. A server that is gone
is noticed by its missing pongs, in less than a minute."""


def is_server(address: str) -> bool:
    """Whether this is the address of a server, and not of a store.

    >>> is_server("ws://127.0.0.1:7657"), is_server("notes.db")
    (True, False)
    """
    return address.partition("://")[0].lower() in SCHEMES and "://" in address


def dial(address: str, token: str | None = None, *, answer_s: float = ANSWER_S) -> Callable[[], Channel]:
    """What connects to the server at an address: ws://, wss://, http:// or https://. Nothing is opened yet.

    >>> dial("ws://me:secret@example.org")
    Traceback (most recent call last):
    onefold.errors.Misuse: an address with a user or a password: a server is given a token
    """
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 # it is checked when it is asked for
    except ValueError:  # what is wrong may be a password
        raise Misuse(f"{masked(address)} is no address of a server: HOST:PORT, a port up to 65535") from None
    if parts.username is not None or parts.password is not None:
        raise Misuse("an address with a user or a password: a server is given a token")
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise Misuse(f"{address!r} is no address of a server: ws://HOST:PORT, or wss, http, https", address=address)
    if parts.query or parts.fragment:
        raise Misuse(f"{address!r}: the address of a reconcile server has nothing behind its path", address=address)
    url = urlunsplit((SCHEMES[parts.scheme], parts.netloc, parts.path or "/", "", ""))

    def connect() -> Channel:
        from onefold.links.websocket import WebSocket  # an extra: who has both stores here does without

        return WebSocket(url, token=token, answer_s=answer_s, greeted=False)

    return connect


def beside(records: Records) -> Callable[[], Channel]:
    """What connects to a store of this process, as if it were served."""
    from onefold.services.reconciler.peer import Peer

    def connect() -> Channel:
        peer = Peer(records)
        return Pipe(peer.answer, peer.close)

    return connect
