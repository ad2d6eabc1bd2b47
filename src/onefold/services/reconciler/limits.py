"""Every bound of the reconcile server on one page: what a peer may cost, whatever it sends.

A session ends by what its peer does: by silence, one or all together, and by work: rounds, bytes, records, seconds of
CPU. It never ends by the time that the server takes, or that it waits for its turn: on a busy machine all peers are
slow, and none of them is to blame.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from onefold.engines.negentropy import FRAME_SIZE_MIN, Limits
from onefold.errors import Misuse
from onefold.links.exchange import HEAD

ID_BYTES_MAX: Final = 32
ENVELOPE_BYTES: Final = 1_024
"""Of a message in NIP-77, around its hex digits; a subscription's name has at most 64 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileLimits:
    """What peers may ask of the server; a limit that is reached is an error that names it."""

    connections_max: int = 256
    """At the same time. Each may hold a message of ``message_bytes_max``, and most of them wait."""
    sessions_max: int = 64
    """At the same time, of all connections. Each has a snapshot of the records, which a store may pay for."""
    subscriptions_max: int = 20
    """Sessions of one connection in NIP-77; strfry's relays allow as many."""
    message_bytes_max: int = 1 << 20
    """Of any message that comes in, and of records that go out; websockets has the same default."""
    frame_size_max: int = 500_000
    """Of a message of the protocol that goes out; strfry's relays have the same. In NIP-77 its hex still is < 1 MiB."""
    rounds_max: int = 64
    """Messages of a session, and what frame limits force; a billion records need 8."""
    bytes_max: int = 1 << 30
    """Of a session's messages, both ways; a million records that all differ take 64 MB."""
    needs_max: int = 10_000_000
    """Records that are fetched in a session; who needs more opens another one."""
    pushes_max: int = 10_000_000
    """Records that are pushed in a session."""
    record_bytes_max: int = 512 << 10
    """Of the body of a record that is pushed; strfry's events have at most 64 KiB."""
    work_s_max: float = 60
    """CPU of the server for the messages of a session: a million records that all differ take three seconds."""
    look_silence_s_max: float = 600
    """Of all silences of a session up to its last message: ten times ``idle_s``. A snapshot should not live long."""
    transfer_silence_s_max: float = 3_600
    """Of all silences up to the last record: 10 GB at 3 MB/s. Who needs longer opens another session, and goes on
    there."""
    idle_s: float = 60
    """Of one silence on a connection; nginx gives a proxied one as long."""
    write_s: float = 20
    """For one answer to leave; beyond, it is a peer that does not read, and it is cut off."""
    troubles_max: int = 8
    """Errors of one connection; with the last one it is closed."""
    head_bytes_max: int = 16 << 10
    """Request line and headers; nginx allows 4 x 8 KiB."""
    head_s: float = 20
    """From the connection to the end of the first head."""
    keep_alive_s: float = 60
    """Of silence between two requests over HTTP."""
    grace_s: float = 20
    """What is in hand at a shutdown may take so long."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                value = getattr(self, field.name)
                raise Misuse(f"{field.name} is {value}, must be above 0", **{field.name: value})
        if self.frame_size_max < FRAME_SIZE_MIN:
            raise Misuse(f"frame_size_max is {self.frame_size_max}, must be at least {FRAME_SIZE_MIN}")
        head = HEAD.size + ID_BYTES_MAX + 1
        for name, most in (
            ("record_bytes_max", self.message_bytes_max - head),
            ("frame_size_max", (self.message_bytes_max - ENVELOPE_BYTES) // 2),
        ):
            if getattr(self, name) > most:
                raise Misuse(
                    f"{name} is {getattr(self, name)}, must be at most {most}: "
                    f"else it does not fit into message_bytes_max, {self.message_bytes_max}"
                )

    @property
    def engine(self) -> Limits:
        """Those of them that the engine keeps."""
        return Limits(rounds_max=self.rounds_max, bytes_max=self.bytes_max, needs_max=self.needs_max)
