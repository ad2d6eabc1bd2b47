"""The ports of the outbox: entities, tokens and queues; and how to open a store or a transport by its URL.

    port                    addresses
    Ledger                  memory://, sqlite:///file.db, postgresql://user@host/database
    TokenStore              the same, or redis://host:6379/0
    Queue                   memory://, sqlite:///file.db, postgresql://user@host/database, nats://host:4222
    LocalStore              memory://, sqlite:///file.db, postgresql://user@host/database

A `Ledger` is an `EntityStore` that keeps tokens too, and can change both in one transaction. Where they are in two
stores, any `EntityStore` goes with any `TokenStore`. A `LocalStore` is a ledger that is also the queue.
``sqlite:///x.db`` is relative to the working folder, ``sqlite:////srv/x.db`` (four slashes) is absolute; the queue may
be in the same file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from onefold.errors import Misuse
from onefold.outbox import plans
from onefold.stores.addresses import nothing_at, scheme_of

T = TypeVar("T")
FOREVER_MS: Final = 2**62
"""Later than any clock reading."""
STEP_MS: Final = 1_000
"""Leases survive a clock that is set back by up to this much; they just last that much longer. (Time daemons step a
clock that is off by more than 128 ms, ntpd, or 1 s, chrony as most systems configure it, and slew it below that.)"""
REASON_MAX: Final = 2_000
"""Characters kept of a dead letter's reason: the end of a long traceback. NATS stores it in a header."""


class Stranded(NamedTuple):
    """An outbox entry that nobody has finished yet."""

    key: plans.Key
    name: str
    """Its message's token, or its source's mark."""
    at_ms: int
    """When it was first written."""
    entry: plans.Entry

    @classmethod
    def stored(cls, endpoint: str, entity: str, name: str, at_ms: int, text: str) -> Stranded:
        """An entry from its columns in a database; `Damaged` if it cannot be read."""
        key = plans.Key(endpoint, entity)
        return cls(key, name, at_ms, plans.stored_entry(key, name, text))


class EntityStore(Protocol):
    """Entities with their outboxes, each written atomically; shared by threads, processes or machines. Every method
    takes many at once, so that a batch is one round trip; each item succeeds or fails alone. After `StoreFailed` the
    write may or may not have happened: restart the attempt."""

    def load(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        """The entities, in this order; version 0 for one that was never written."""

    def persist(self, entities: Sequence[plans.Entity]) -> list[bool]:
        """Write each entity whose version still equals the stored one, and increment that; False for the others.
        Durable on return. Writes happen in this order: of two writes of one entity the second is stale. An entity
        without state and outbox stays as a tombstone."""

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before ``before_ms`` or after ``after_ms``, oldest first; of one endpoint or of
        all. Set ``after_ms`` to now: an entry dated in the future has a wrong date, and may be old."""

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones written before this time, and return how many. No attempt that began before this time
        may still run: it could write back the entity as it was before the deletion."""

    def close(self) -> None:
        """After this, every other call is `Misuse`. May be called twice."""


class Token(NamedTuple):
    token: str
    to: str
    parent: str
    """The token of the message that sends this one; empty once that message is done, or if there is none."""
    attempt: str
    at_ms: int


class Live(NamedTuple):
    tokens: int
    oldest_ms: int | None


class TokenStore(Protocol):
    """The tokens of the messages in flight, one for each. All endpoints that send each other messages share one store.
    Methods take many at once; each item is atomic, a batch need not be."""

    @property
    def realm(self) -> str:
        """The store's own name, generated when the store was created. Messages carry it."""

    def holds(self, tokens: Sequence[str]) -> list[bool]: ...

    def create(self, births: Sequence[plans.Create]) -> list[bool]:
        """Make the tokens of each birth, all or none; False if it is guarded and its parent does not exist. Durable on
        return. A token that exists already stays as it is."""

    def remove(self, removals: Sequence[plans.Remove]) -> None:
        """Remove each token. Of its children, clear the parent of those that this attempt made, and remove the others.
        A missing token is no error; its children are handled all the same."""

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token but not its children, if it has this parent (None: any); whether it was removed."""

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens in order of name, after ``after``; ``orphans``: only those whose parent has no token any more."""

    def live(self) -> Live:
        """How many there are, and when the oldest was made."""

    def warnings(self) -> list[str]:
        """Settings with which the store can lose confirmed writes, one sentence each, to be logged at startup."""

    def close(self) -> None:
        """After this, every other call is `Misuse`. May be called twice."""


class Ledger(EntityStore, TokenStore, Protocol):
    """Entities and tokens in one database, changed in one transaction."""

    def open(self, steps: Sequence[plans.Open]) -> list[tuple[plans.Entity, bool]]:
        """Entities, each with whether its token exists, read in one snapshot."""

    def settle(self, steps: Sequence[plans.Settle]) -> list[plans.Settled]:
        """Do each step or change nothing for it, in this order, in one transaction that is durable on return. The
        tokens of the new entry have no parent, because no other attempt can have made any."""

    def finish(self, steps: Sequence[plans.Finish]) -> None:
        """Remove these outbox entries and keep the versions. A missing entry is no error."""


class Parcel(NamedTuple):
    queue: str
    payload: bytes
    delay_ms: int = 0
    """It is not delivered before this delay is over."""
    priority: int = 0
    """Of the parcels that are due in a queue, the highest come first; queues without priorities ignore it."""


def place_of(realm: str) -> str:
    """The realm of messages whose row is their token, in the store of this realm. It differs from the store's own, so
    that another plan, which finds no token of theirs, does not take them for duplicates."""
    return f"{realm}:rows"


def parcels_of(messages: Iterable[plans.Message], realm: str) -> list[Parcel]:
    """Messages packed for the queue; ``realm`` is where their tokens are."""
    return [
        Parcel(message.to, plans.pack_message(message, realm), message.delay_ms, message.priority)
        for message in messages
    ]


class Delivery(NamedTuple):
    """A leased parcel."""

    queue: str
    payload: bytes
    receipt: str
    """Names this delivery; the next delivery of the same parcel has another one."""
    times: int
    """How often the parcel was delivered, this time included."""

    @property
    def numbers(self) -> tuple[int, int]:
        return numbers_of(self.receipt)


def numbers_of(receipt: str) -> tuple[int, int]:
    """The position and the loan in a receipt like ``17-2``; `Misuse` for a receipt of another kind of queue.

    >>> numbers_of("17-2")
    (17, 2)
    """
    if _RECEIPT.fullmatch(receipt) is None:
        raise Misuse(f"not a receipt of this queue: {receipt!r}", receipt=receipt)
    position, _, loan = receipt.partition("-")
    return int(position), int(loan)


_RECEIPT: Final = re.compile("[1-9][0-9]{0,17}-[1-9][0-9]{0,17}")


class Buried(NamedTuple):
    queue: str
    payload: bytes
    receipt: str
    reason: str
    at_ms: int

    @property
    def head(self) -> str:
        """The reason without the traceback."""
        return self.reason.partition("\n")[0]

    @property
    def number(self) -> int:
        """The number that is its receipt; `Misuse` for a dead letter of another kind of queue."""
        text = self.receipt
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0):  # fits every store
            raise Misuse(f"not a dead letter of this queue: {text!r}", receipt=text)
        return int(text)


class Strayed(NamedTuple):
    """Parcels of a queue that are due at a time that only a wrong clock can have set."""

    queue: str
    parcels: int
    ahead_ms: int
    """How far in the future the last of them is due."""


class Queue(Protocol):
    """A transport that delivers at least once. A parcel is delivered under a lease. If it is not acknowledged before
    the lease expires it is delivered again, to anybody, while the first worker may still be working on it. Copies, late
    acknowledgements and any order are normal. The clock may step: a lease or delay that began in the future (by more
    than `STEP_MS`) is over, so no parcel waits longer than the longest lease or delay that was asked for."""

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Store them all; durable on return. After `StoreFailed` some of them may be stored."""

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[Delivery]:
        """Up to ``limit`` parcels of these queues; waits up to ``wait_ms`` for the first one, not for more. Oldest
        first within a queue, roughly: a redelivered parcel may come later than its turn."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Do not deliver them again. After the lease expired this is no error, but the parcel may come again."""

    def extend(self, deliveries: Sequence[Delivery], lease_ms: int) -> None:
        """Restart the leases from now. An expired lease stays expired."""

    def release(self, deliveries: Sequence[Delivery], delay_ms: int = 0, *, anew: bool = False) -> None:
        """Deliver them again after this delay; these receipts become invalid. ``anew``: count deliveries from one
        again."""

    def count(self, deliveries: Sequence[Delivery], by: int) -> None:
        """Add ``by`` to how often they were delivered; does nothing where the queue cannot."""

    def bury(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Turn them into dead letters, which are not delivered: one for all equal parcels of a queue. A parcel that was
        leased again meanwhile is left to its holder."""

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[Buried]:
        """Dead letters, oldest first."""

    def dig_up(self, letters: Sequence[Buried], *, deliver: bool) -> None:
        """Put dead letters back into their queue, as if new, or delete them; a missing one is no error."""

    def waiting(self) -> dict[str, int]:
        """How many parcels each queue holds, leased or not, without dead letters."""

    def strayed(self, *, mend: bool = False) -> list[Strayed]:
        """Parcels whose lease or delay began in the future, by queue; ``mend``: make them due now."""

    def close(self) -> None:
        """After this, every other call is `Misuse`. May be called twice."""


class EndedTransaction(Misuse):
    """A handler committed or rolled back the transaction that it was given."""


class LocalTransaction(Protocol):
    """An open transaction, for handlers that write tables of their own; `LocalStore.transact` ends it."""

    @property
    def connection(self) -> Any: ...

    def peek(self, keys: Sequence[plans.Key]) -> list[plans.Entity]: ...

    def commit(self, steps: Sequence[plans.Commit]) -> bool:
        """False: a row is gone or a version is stale, and the caller must roll back."""

    def savepoint(self) -> AbstractContextManager[object]:
        """Roll back to here if anything is raised. `EndedTransaction` if the handler ended the transaction."""


@dataclass(slots=True)
class Ahead:
    """A request to lease the next batch in the transaction of a commit."""

    queues: Sequence[str]
    limit: int
    lease_ms: int
    deliveries: Sequence[Delivery] = ()
    """What was leased. Empty does not mean that the queue is: a store need not support this."""


class LocalStore(Ledger, Queue, Protocol):
    """Entities, tokens and the queue in one database, changed in one transaction. Under the plan `local` the row of a
    parcel is the token of its message; the ledger's own tokens serve the other plans."""

    @property
    def place(self) -> str:
        """The realm of messages whose row here is their token."""

    @property
    def quoted_schema(self) -> str | None:
        """The schema of its tables, quoted for a statement; None where there are no schemas."""

    def peek(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        """The entities without their outboxes, in this order."""

    def keep(self, steps: Sequence[plans.Keep]) -> list[dict[str, Any] | None]:
        """Add answers to those that rows keep. Returns all answers of each row; None for a row that is gone or leased
        to somebody else."""

    def transact(self, work: Callable[[LocalTransaction], T]) -> T:
        """Run ``work`` in a transaction and return its result, durably; roll back if it raises. It may be called more
        than once."""

    def lease_in_turn(self, queue: str, turn_of: Callable[[bytes], str], limit: int, lease_ms: int) -> list[Delivery]:
        """The oldest parcels of this queue that may go now. A parcel is held back while an earlier one with the same
        turn is leased, or waits for its next delivery; one that was sent with a delay holds back nobody. ``turn_of`` is
        called once per parcel, with the payload."""

    def holds_row(self, delivery: Delivery) -> bool:
        """Whether its row exists, whoever has leased it."""

    def commit(self, steps: Sequence[plans.Commit], ahead: Ahead | None = None) -> list[plans.Settled]:
        """Do each step or change nothing for it, all in one transaction that is durable on return."""


SCHEMA_VERSION: Final = 1
"""Of the tables in both databases. Every statement of a schema is idempotent, so together they lead from any version to
this one."""
SCHEMA_TABLE: Final = (
    "create table if not exists outbox_schema (version integer primary key)",
    f"insert into outbox_schema select {SCHEMA_VERSION} where not exists (select 1 from outbox_schema)",  # noqa: S608
    f"update outbox_schema set version = {SCHEMA_VERSION} where version < {SCHEMA_VERSION}",  # noqa: S608
)
SCHEMA_ASKED: Final = "select max(version) from outbox_schema"


def check_schema(where: str, version: int | None) -> None:
    if version is not None and version > SCHEMA_VERSION:
        raise Misuse(f"{where}: a later onefold has its tables at version {version}; this one knows {SCHEMA_VERSION}")


def schema_at(url: str) -> tuple[str, ...]:
    """The statements that create or upgrade the tables at a URL, without connecting to it."""
    match scheme_of(url):
        case "sqlite", _:
            from onefold.outbox.stores.sqlite import LOCAL_SCHEMA, QUEUE_INDEXES

            return LOCAL_SCHEMA + QUEUE_INDEXES
        case (("postgresql" | "postgres"), _):
            from onefold.outbox.stores.postgres_local import PostgresLocal

            return PostgresLocal.schema
    raise nothing_at(url, "database with tables", "sqlite:///file.db, postgresql://user@host/database")


def open_local(url: str) -> LocalStore:
    """The store at a URL that is also the queue.

    >>> open_local("memory://").waiting()
    {}
    >>> open_local("redis://db.example")
    Traceback (most recent call last):
    onefold.errors.Misuse: no store with a queue at redis://...; there are some at memory://, sqlite:///file.db, ...
    """
    from onefold.outbox.stores.sqlite import MemoryLocal, SqliteLocal

    match scheme_of(url):
        case "memory", _:
            return MemoryLocal()
        case "sqlite", path:
            return SqliteLocal(path)
        case (("postgresql" | "postgres"), _):
            from onefold.outbox.stores.postgres_local import PostgresLocal

            return PostgresLocal(url)
    raise nothing_at(url, "store with a queue", _LEDGERS)


def open_ledger(url: str) -> Ledger:
    """The ledger at a URL.

    >>> open_ledger("memory://").live()
    Live(tokens=0, oldest_ms=None)
    >>> open_ledger("http://me:secret@db.example")
    Traceback (most recent call last):
    onefold.errors.Misuse: no ledger at http://...; there are some at memory://, sqlite:///file.db, ...
    """
    return _open_ledger(url, "ledger", _LEDGERS)


def open_tokens(url: str) -> TokenStore:
    """The token store at a URL: any ledger, or Redis, which connects at the first call. The query of a Redis URL may
    have ``prefix``, ``timeout_s`` and ``replicas_min`` of `RedisTokens`, and redis-py's TLS options, named ``ssl_...``.
    """
    if scheme_of(url)[0] not in ("redis", "rediss"):
        return _open_ledger(url, "token store", f"{_LEDGERS}, redis://host:6379/0, rediss://host:6379/0")
    from onefold.outbox.stores.redis import RedisTokens
    from onefold.stores.redis import split_options

    address, options = split_options(url)
    return RedisTokens(address, **options)


_LEDGERS: Final = "memory://, sqlite:///file.db, sqlite:////folder/file.db, postgresql://user@host/database"


def _open_ledger(url: str, what: str, kinds: str) -> Ledger:
    from onefold.outbox.stores.sqlite import MemoryLedger, SqliteLedger

    match scheme_of(url):
        case "memory", _:
            return MemoryLedger()
        case "sqlite", path:
            return SqliteLedger(path)
        case (("postgresql" | "postgres"), _):
            from onefold.outbox.stores.postgres import PostgresLedger

            return PostgresLedger(url)
    raise nothing_at(url, what, kinds)


def open_queue(url: str) -> Queue:
    """The queue at a URL. NATS connects at the first call, and takes the options of `NatsQueue` in the query.

    >>> open_queue("memory://").waiting()
    {}
    >>> open_queue("amqp://guest:guest@broker")
    Traceback (most recent call last):
    onefold.errors.Misuse: no queue at amqp://...; there are some at memory://, sqlite:///file.db, ...
    """
    from onefold.outbox.stores.sqlite import MemoryQueue, SqliteQueue

    match scheme_of(url):
        case "memory", _:
            return MemoryQueue()
        case "sqlite", path:
            return SqliteQueue(path)
        case (("nats" | "tls"), _):
            from onefold.outbox.stores.nats import open_nats

            return open_nats(url)
        case (("postgresql" | "postgres"), _):
            return open_local(url)
    raise nothing_at(url, "queue", f"{_LEDGERS}, nats://host:4222, tls://host:4222")


def check_parcels(parcels: Iterable[Parcel]) -> None:
    """`Misuse` or `BadInput` for invalid queue names, delays and priorities, before anything is sent."""
    for name, delay_ms, priority in {(parcel.queue, *parcel[2:]) for parcel in parcels}:
        plans.check_queue(name)
        check_least("delay_ms", delay_ms, 0)
        if abs(priority) > plans.PRIORITY_MAX:
            raise Misuse(f"priority is {priority}, must be from -{plans.PRIORITY_MAX} to {plans.PRIORITY_MAX}")


def check_lease(queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int) -> list[str]:
    """The queues without duplicates; `Misuse` for invalid arguments of a lease."""
    if not queues:
        raise Misuse("no queue to lease from: name at least one")
    for name, value, least in (("limit", limit, 1), ("lease_ms", lease_ms, 1), ("wait_ms", wait_ms, 0)):
        check_least(name, value, least)
    return [plans.check_queue(name) for name in dict.fromkeys(queues)]


def check_least(name: str, value: int, least: int) -> None:
    """`Misuse` naming the value if it is too low."""
    if value < least:
        raise Misuse(f"{name} is {value}, must be at least {least}", **{name: value})
