"""Queues by address: ``memory://``, ``sqlite:///q.db``, ``nats://host:4222``; and what all ask of their callers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox.plans import check_queue
from onefold.outbox.ports import Buried, Delivery, Parcel, Queue
from onefold.stores.addresses import masked, sqlite_file

KINDS = "memory://, sqlite:///file.db, sqlite:////folder/file.db, nats://host:4222, tls://host:4222"
STEP_MS = 1_000
"""A clock that is set back by no more leaves leases alone: they last that much longer. (Time daemons step a clock that
is off by more than 128 ms, ntpd, or 1 s, chrony as most systems set it up, and slew it below that.)"""
REASON_MAX = 2_000
"""Characters of the reason of a dead letter: the end of a long traceback; NATS keeps it in a header."""


def open_queue(url: str) -> Queue:
    """The queue at an address; whether a NATS server is there shows at the first call.

    ``sqlite:///q.db`` is a file of the working folder, ``sqlite:////srv/q.db`` (four strokes) one by its full path; it
    may be the file that the entities and tokens are in. ``nats://`` takes options behind a ``?``: those of `NatsQueue`.

    >>> open_queue("memory://").waiting()
    {}
    >>> open_queue("amqp://guest:guest@broker")
    Traceback (most recent call last):
    onefold.errors.Misuse: no queue at amqp://...; there are some at memory://, sqlite:///file.db, ...
    """
    scheme, found, rest = url.partition("://")
    if scheme == "memory" and found and not rest:
        from onefold.outbox.stores.memory import MemoryQueue

        return MemoryQueue(wall_ms)
    if (path := sqlite_file(url)) is not None:
        from onefold.outbox.stores.sqlite_queue import SqliteQueue

        return SqliteQueue(path, wall_ms)
    if scheme in ("nats", "tls") and found:
        from onefold.outbox.stores.nats import open_nats

        return open_nats(url)
    raise Misuse(f"no queue at {masked(url)}; there are some at {KINDS}")


def check_parcels(parcels: Iterable[Parcel]) -> None:
    """Refuse names that no queue can have, before anything is sent."""
    for name in {parcel.queue for parcel in parcels}:
        check_queue(name)


def check_lease(queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int) -> list[str]:
    """The queues, each once; `Misuse` for what cannot be leased."""
    if not queues:
        raise Misuse("a lease of no queue: name at least one")
    for name, value, least in (("limit", limit, 1), ("lease_ms", lease_ms, 1), ("wait_ms", wait_ms, 0)):
        check_least(name, value, least)
    return [check_queue(name) for name in dict.fromkeys(queues)]


def check_least(name: str, value: int, least: int) -> None:
    """`Misuse` naming the value if it is too low."""
    if value < least:
        raise Misuse(f"{name} is {value}, must be at least {least}", **{name: value})


def numbered(delivery: Delivery) -> tuple[int, int]:
    """The position and the loan that a receipt like ``17-2`` names; `Misuse` for a receipt of another kind of queue.

    >>> numbered(Delivery("orders", b"", "17-2", 2))
    (17, 2)
    """
    position, _, loan = delivery.receipt.partition("-")
    if not (_is_number(position) and _is_number(loan)):
        raise Misuse(f"no receipt of this queue: {delivery.receipt!r}", receipt=delivery.receipt)
    return int(position), int(loan)


def letter_number(letter: Buried) -> int:
    """The number that the receipt of a dead letter is; `Misuse` for one of another kind of queue."""
    if not _is_number(letter.receipt):
        raise Misuse(f"no dead letter of this queue: {letter.receipt!r}", receipt=letter.receipt)
    return int(letter.receipt)


def _is_number(text: str) -> bool:
    """A number from 1 on, as a receipt has it, and short enough for every store."""
    return text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0
