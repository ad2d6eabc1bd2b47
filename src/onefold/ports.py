"""Every door between what is decided and what keeps it: a few verbs each, no code.

What stands behind a door is chosen by the one who opens it. Whatever stands there passes the one contract suite of its
port, so that the suite, not the adapter, is what a caller may rely on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from onefold.engines.lorawan.server import Claim, Claimed, Counters, Finished, Unfinished
from onefold.engines.producers.recovery import Snapshot


class Draft(NamedTuple):
    """A record to be stored: what it is and whose. The log adds its place and its time."""

    kind: int
    producer: str
    sequence: int
    epoch: int
    digest: int
    """``zlib.crc32(payload)``, made where the payload came in; a log refuses a draft whose two do not agree."""
    payload: bytes


class Record(NamedTuple):
    """A draft that was stored."""

    offset: int
    time_ms: int
    kind: int
    producer: str
    sequence: int
    epoch: int
    digest: int
    payload: bytes


class AppendLog(Protocol):
    """An append-only log: offsets 0, 1, 2, ... without holes.

    One writer. Besides records it keeps snapshots of what was made of them; retention may remove records from the
    front, but never one that the older of the kept snapshots still needs.
    """

    @property
    def start(self) -> int:
        """The first offset that is still kept."""
        ...

    @property
    def end(self) -> int:
        """The offset that the next record gets: all below it are durable."""
        ...

    def append(self, drafts: Sequence[Draft], time_ms: int) -> int:
        """Store all drafts, in order, as one commit group; return the offset of the first.

        All are durable when it returns. If it raises `StoreFailed` none is kept, and it may be called again.
        """
        ...

    def read(self, start: int, end: int | None = None) -> Iterator[Record]:
        """The durable records from ``start`` up to, not including, ``end`` (None: all that there are now).

        An offset that was removed or is not written yet is `Misuse`.
        """
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of what the records below its position made; durable when it returns."""
        ...

    def load(self) -> Snapshot | None:
        """The newest snapshot that is whole; None if there never was one."""
        ...

    def retain(self, *, bytes: int | None = None, before_ms: int | None = None) -> int:
        """Remove old records: while all together have more than ``bytes``, or older than ``before_ms``.

        What the kept snapshots need stays, and more may stay (a log on disk removes whole files). Returns the new
        ``start``.
        """
        ...

    def close(self) -> None:
        """Let go of the log; it can be opened again by anybody."""
        ...


class CounterStore(Protocol):
    """What all network servers know of each device: its last counters, and whose its last frame was (lorawan).

    Shared by threads, processes or machines. `decide` is the rule; a claim is one step that nothing can come between,
    and there is no lock that could run out under a slow owner. One entry per device, however many frames it sends.

    Beside the counters stands an outbox: the messages of claims that were won and are not yet stored upstream. It holds
    what is in flight and no more, if each server finishes what it has stored.
    """

    def claim(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        """Judge the claims in this order, each against what those before it left; the answers, in the same order.

        What was won is kept when it returns, as durably as the store can, for ``keep_ms`` from then on (0: for ever); a
        lost claim changes nothing. A won claim's body is kept in the same step, for ever, under its server and number
        (0 to 2^63 - 1), so two receptions of one frame keep both. The same claim made again keeps one: it has the same
        number.

        ``finished`` are messages whose bodies are let go, before any of the claims is judged; one that is not there
        does no harm, and the claims may be none.

        If it raises `StoreFailed` nothing is known of these claims and of what was finished: make the same call again.
        Who had won, with a body, wins again, whatever was counted since; only a downlink's number may then be skipped,
        or not be given. Whoever gives a claim up instead does not know whether its body is kept, and
        finishes it like the others.
        """
        ...

    def unfinished(self, server: str) -> list[Unfinished]:
        """What this server won, with a body, and has not finished; by number.

        To be stored upstream at the start after a crash, before anything new is claimed.
        """
        ...

    def known(self, device: str) -> Counters | None:
        """What is kept of a device; None if it was never heard, forgotten, or kept long enough."""
        ...

    def forget(self, device: str) -> None:
        """As if it had never been heard; but what is unfinished of it stays."""
        ...

    def close(self) -> None:
        """Let go of the store; every other call is `Misuse` from then on. May be called twice."""
        ...
