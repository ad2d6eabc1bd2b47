"""The ports of the outbox: entities, tokens and queues; and how a store or a transport is opened by its address.

    port                    addresses
    Ledger                  memory://, sqlite:///file.db, postgresql://user@host/database
    TokenStore              the same, or redis://host:6379/0
    Queue                   memory://, sqlite:///file.db, postgresql://user@host/database, nats://host:4222
    LocalStore              memory://, sqlite:///file.db, postgresql://user@host/database

An `EntityStore` with its own tokens is a `Ledger`: it can change both in one transaction. Where entities are in one
store and tokens in another, any `EntityStore` and any `TokenStore` go together. A ledger that is the queue as well is a
`LocalStore`. ``sqlite:///x.db`` is a file of the
working folder, ``sqlite:////srv/x.db`` (four strokes) one by its full path; a queue may be in the same file.
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
"""A time that no clock reaches."""
STEP_MS: Final = 1_000
"""A clock that is set back by no more leaves leases alone: they last that much longer. (Time daemons step a clock that
is off by more than 128 ms, ntpd, or 1 s, chrony as most systems set it up, and slew it below that.)"""
REASON_MAX: Final = 2_000
"""Characters of the reason of a dead letter: the end of a long traceback; NATS keeps it in a header."""


class Stranded(NamedTuple):
    """An outbox entry that waits for somebody to finish it."""

    key: plans.Key
    name: str
    """The token of the message, or the name of the mark, that it belongs to."""
    at_ms: int
    """When it was first written."""
    entry: plans.Entry

    @classmethod
    def stored(cls, endpoint: str, entity: str, name: str, at_ms: int, text: str) -> Stranded:
        """An entry as databases keep it; `Damaged` if it is none."""
        key = plans.Key(endpoint, entity)
        return cls(key, name, at_ms, plans.stored_entry(key, name, text))


class EntityStore(Protocol):
    """Entities with their outboxes, each written whole or not at all; shared by threads, processes or machines. Every
    verb takes many at once, so that a batch is one round trip; each is judged alone. Whatever raises `StoreFailed` may
    have been done or not: begin the attempt anew."""

    def load(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        """The entities, in this order; version 0 for those that never were."""

    def persist(self, entities: Sequence[plans.Entity]) -> list[bool]:
        """Write each whose version is still the stored one, which grows by one; False for the others. Durable when it
        returns. In this order: of two writes of one entity the second is stale. An entity without state and outbox
        stays as a tombstone."""

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before this time, oldest first; of one endpoint or of all. Those written after
        ``after_ms`` come too: what is dated later than now has a wrong date, and may be old."""

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones that were written before this time; how many there were. No attempt may be under way
        that began before that: it could write what it made of the deleted entity."""

    def close(self) -> None:
        """Every other call is `Misuse` from then on. May be called twice."""


class Token(NamedTuple):
    token: str
    to: str
    parent: str
    """For which message it was made; empty once that is done, and for those that had none."""
    attempt: str
    at_ms: int


class Live(NamedTuple):
    tokens: int
    oldest_ms: int | None


class TokenStore(Protocol):
    """The tokens of messages that are in flight: there are as many as those, and no more. All endpoints that send each
    other messages share one. Verbs take many at once; each is atomic, a batch need not be."""

    @property
    def realm(self) -> str:
        """The name of this store, made when it was: messages carry it."""

    def holds(self, tokens: Sequence[str]) -> list[bool]: ...

    def create(self, births: Sequence[plans.Create]) -> list[bool]:
        """Make the tokens of each birth, all or none; False where it is guarded and the parent does not exist. Durable
        when it returns. A token that exists already is left as it is."""

    def remove(self, removals: Sequence[plans.Remove]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt, which have no parent then, and remove
        the others. A token that is not there does no harm, its children are still seen to."""

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token."""

    def live(self) -> Live:
        """How many there are, and when the oldest was made."""

    def warnings(self) -> list[str]:
        """Settings by which it can lose what it has confirmed, one sentence each; to be said at the start."""

    def close(self) -> None:
        """Every other call is `Misuse` from then on. May be called twice."""


class Ledger(EntityStore, TokenStore, Protocol):
    """Entities and tokens in one database, which can change both in one transaction."""

    def open(self, steps: Sequence[plans.Open]) -> list[tuple[plans.Entity, bool]]:
        """Entities, each with whether its token exists at the same moment."""

    def settle(self, steps: Sequence[plans.Settle]) -> list[plans.Settled]:
        """Do each or change nothing for it, in this order, all in one transaction that is durable when it returns. The
        tokens of the new entry have no parent: there is no attempt that could lose."""

    def finish(self, steps: Sequence[plans.Finish]) -> None:
        """Remove these outbox entries; the versions stay. One that is not there does no harm."""


class Parcel(NamedTuple):
    queue: str
    payload: bytes
    delay_ms: int = 0
    """It is given out no earlier than that."""
    priority: int = 0
    """Within its queue, the highest that are due are given out first; queues without priorities take no notice."""


def place_of(realm: str) -> str:
    """The realm of messages whose row is their token, in the store of this realm: who looks for a token of theirs, by
    another plan or elsewhere, shall not take its absence for a sign."""
    return f"{realm}:rows"


def parcels_of(messages: Iterable[plans.Message], realm: str) -> list[Parcel]:
    """Messages as they are sent; ``realm`` is where their tokens are."""
    return [
        Parcel(message.to, plans.pack_message(message, realm), message.delay_ms, message.priority)
        for message in messages
    ]


class Delivery(NamedTuple):
    """A parcel that is leased."""

    queue: str
    payload: bytes
    receipt: str
    """Of this delivery; the next one of the same parcel has another."""
    times: int
    """How often it was given out, this time included."""

    @property
    def numbers(self) -> tuple[int, int]:
        return numbers_of(self.receipt)


def numbers_of(receipt: str) -> tuple[int, int]:
    """The position and the loan that a receipt like ``17-2`` names; `Misuse` for one of another kind of queue.

    >>> numbers_of("17-2")
    (17, 2)
    """
    if _RECEIPT.fullmatch(receipt) is None:
        raise Misuse(f"no receipt of this queue: {receipt!r}", receipt=receipt)
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
        """What its receipt says; `Misuse` for one of another kind of queue."""
        if not _is_number(self.receipt):
            raise Misuse(f"no dead letter of this queue: {self.receipt!r}", receipt=self.receipt)
        return int(self.receipt)


def _is_number(text: str) -> bool:
    """A number from 1 on, as a receipt has it, and short enough for every store."""
    return text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0


class Strayed(NamedTuple):
    """Parcels of a queue that wait for a time that only a wrong clock can have set."""

    queue: str
    parcels: int
    ahead_ms: int
    """How far ahead of now the last of them is due."""


class Queue(Protocol):
    """A transport that delivers at least once. A parcel is given out under a lease. If it is not acknowledged until
    that runs out it is given out again, to anybody, while the first may still work on it. Copies, late acknowledgements
    and any order are normal. A clock may step: a lease or delay that began later than it is now (by more than
    `STEP_MS`) is over, so no parcel waits longer than the longest lease or delay that was asked for."""

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Take them all; durable when it returns. After `StoreFailed` some may have been taken."""

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[Delivery]:
        """At most so many parcels of these queues; waits so long for the first one, not for more. Within a queue the
        oldest come first, roughly: one that comes again may come later than its turn."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """They need not come again. A lease that ran out: no harm, but the parcel may."""

    def extend(self, deliveries: Sequence[Delivery], lease_ms: int) -> None:
        """Work on them goes on: the lease runs from now. One that ran out stays so."""

    def release(self, deliveries: Sequence[Delivery], delay_ms: int = 0, *, anew: bool = False) -> None:
        """Give them out again, after so long; these receipts are worth nothing any more. ``anew``: and count how often
        from one again."""

    def count(self, deliveries: Sequence[Delivery], by: int) -> None:
        """Count them as given out so many times more, or fewer; nothing where a queue cannot."""

    def bury(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Set them aside as dead letters, which nobody is given: one for all equal parcels of a queue. One that was
        given out again is left to its holder."""

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[Buried]:
        """Dead letters, oldest first."""

    def dig_up(self, letters: Sequence[Buried], *, deliver: bool) -> None:
        """Put dead letters back into their queue, as if new, or remove them for good; a missing one does no harm."""

    def waiting(self) -> dict[str, int]:
        """How many parcels each queue holds, on loan or not; dead letters are not counted."""

    def strayed(self, *, mend: bool = False) -> list[Strayed]:
        """Parcels whose lease or delay began later than it is now, by queue; ``mend``: they are due from now on."""

    def close(self) -> None:
        """Every other call is `Misuse` from then on. May be called twice."""


class EndedTransaction(Misuse):
    """A handler ended the transaction that it was given."""


class LocalTransaction(Protocol):
    """One that is open, for handlers that write tables of their own; ended by `LocalStore.transact`."""

    @property
    def connection(self) -> Any: ...

    def peek(self, keys: Sequence[plans.Key]) -> list[plans.Entity]: ...

    def commit(self, steps: Sequence[plans.Commit]) -> bool:
        """False: a row is gone or a version stale; what else was done must be undone then."""

    def savepoint(self) -> AbstractContextManager[object]:
        """What is done in it is undone if anything is raised. `EndedTransaction` if that is what somebody did."""


@dataclass(slots=True)
class Ahead:
    """A lease that is asked for with a commit, to be part of its transaction."""

    queues: Sequence[str]
    limit: int
    lease_ms: int
    deliveries: Sequence[Delivery] = ()
    """What was leased; nothing says nothing: a store need not do it."""


class LocalStore(Ledger, Queue, Protocol):
    """Entities, tokens and the queue in one database, which can change all in one transaction. Then the row of a parcel
    is the token of its message, for the plan `local`; beside it the ledger's own tokens serve the other plans."""

    @property
    def place(self) -> str:
        """The realm of messages whose row here is their token."""

    @property
    def quoted_schema(self) -> str | None:
        """Where its tables are, ready for a statement; None where there are no schemas."""

    def peek(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        """The entities without their outboxes, in this order."""

    def keep(self, steps: Sequence[plans.Keep]) -> list[dict[str, Any] | None]:
        """Add answers to those that rows keep: all that each has now; None for a row that is gone or leased again."""

    def transact(self, work: Callable[[LocalTransaction], T]) -> T:
        """What this makes of a transaction, durable when it returns; undone if it raises. It may be called again."""

    def lease_in_turn(self, queue: str, turn_of: Callable[[bytes], str], limit: int, lease_ms: int) -> list[Delivery]:
        """The oldest parcels of this queue whose turn it is: of one turn none that is behind one which is on loan, or
        waits after it was given out; who waits for its time from the beginning holds nobody. ``turn_of`` a payload is
        asked once, for each parcel."""

    def holds_row(self, delivery: Delivery) -> bool:
        """Whether its row is there, leased to whomever."""

    def commit(self, steps: Sequence[plans.Commit], ahead: Ahead | None = None) -> list[plans.Settled]:
        """Do each or change nothing for it, all in one transaction that is durable when it returns."""


SCHEMA_VERSION: Final = 1
"""Of the tables in both databases. Each statement of a schema can be run again, so all of them lead from any version to
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
    """The statements that make the tables at an address, or bring them up to date; nothing is opened."""
    match scheme_of(url):
        case "sqlite", _:
            from onefold.outbox.stores.sqlite import LOCAL_SCHEMA, QUEUE_INDEXES

            return LOCAL_SCHEMA + QUEUE_INDEXES
        case (("postgresql" | "postgres"), _):
            from onefold.outbox.stores.postgres_local import PostgresLocal

            return PostgresLocal.schema
    raise nothing_at(url, "database with tables", "sqlite:///file.db, postgresql://user@host/database")


def open_local(url: str) -> LocalStore:
    """The store at an address that is the queue, too.

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
    """The ledger at an address.

    >>> open_ledger("memory://").live()
    Live(tokens=0, oldest_ms=None)
    >>> open_ledger("http://me:secret@db.example")
    Traceback (most recent call last):
    onefold.errors.Misuse: no ledger at http://...; there are some at memory://, sqlite:///file.db, ...
    """
    return _open_ledger(url, "ledger", _LEDGERS)


def open_tokens(url: str) -> TokenStore:
    """The token store at an address: any ledger, or a Redis, which is asked nothing before the first call. It takes
    ``prefix``, ``timeout_s`` and ``replicas_min`` of `RedisTokens` behind a ``?``, and redis-py's own for TLS, whose
    names begin with ``ssl_``."""
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
    """The queue at an address; whether a NATS server is there shows at the first call, and it takes the options of
    `NatsQueue` behind a ``?``.

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
    """Refuse queue names, delays and priorities that cannot be, before anything is sent."""
    for name, delay_ms, priority in {(parcel.queue, *parcel[2:]) for parcel in parcels}:
        plans.check_queue(name)
        check_least("delay_ms", delay_ms, 0)
        if abs(priority) > plans.PRIORITY_MAX:
            raise Misuse(f"priority is {priority}, must be from -{plans.PRIORITY_MAX} to {plans.PRIORITY_MAX}")


def check_lease(queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int) -> list[str]:
    """The queues, each once; `Misuse` for what cannot be leased."""
    if not queues:
        raise Misuse("a lease of no queue: name at least one")
    for name, value, least in (("limit", limit, 1), ("lease_ms", lease_ms, 1), ("wait_ms", wait_ms, 0)):
        check_least(name, value, least)
    return [plans.check_queue(name) for name in dict.fromkeys(queues)]


def check_least(name: str, value: int, least: int) -> None:
    """`Misuse` naming the value if it is too low."""
    if value < least:
        raise Misuse(f"{name} is {value}, must be at least {least}", **{name: value})
