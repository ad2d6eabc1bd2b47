"""An endpoint: handlers for queues, with the stores and the transport behind them.

    app = Endpoint("billing", store="sqlite:///billing.db")

    @app.handler("orders", key="order")
    def pay(state, message):
        return {"paid": message["sum"]}, [Out("shipping", {"order": message["order"]})]

Without a ``transport`` the store is also the queue (plan `local`): a message is a row there, and is processed in one
transaction. With another transport the tokens are in the ``store``, or in a second one named by ``tokens``; all
endpoints that send each other messages share one token store. Connections are opened on first use, so importing a
module that has an endpoint has no side effects.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from random import uniform
from time import sleep
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from onefold.clock import wall_ms
from onefold.errors import BadInput, Misuse
from onefold.outbox import plans
from onefold.outbox.plans import Handler, Handling, Key, KeyOf, Message, Out, Outcome, Retry, Taken, check_queue
from onefold.outbox.ports import (
    Delivery,
    EntityStore,
    Ledger,
    LocalStore,
    LocalTransaction,
    Parcel,
    Queue,
    TokenStore,
    check_parcels,
    open_ledger,
    open_local,
    open_queue,
    open_tokens,
    parcels_of,
)
from onefold.outbox.runner import (
    UNLEASED,
    HandlerCalls,
    Loop,
    Work,
    World,
    attempted,
    fresh_ids,
    raised,
    run_one,
    takes_context,
)
from onefold.outbox.stores.foreign import add_rows
from onefold.outbox.worker import Consumer, Consuming, Recovered, recover
from onefold.stores.addresses import scheme_of
from onefold.tally import Tally

TAKE_TRIES_MAX: Final = 10
"""Two takers of one source are one too many already; after so many lost races `take` returns CONFLICT."""
MARK_MAX: Final = 2**63 - 1
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
Decorated = TypeVar("Decorated", bound=Handler)


def _is_one(store: Any, transport: Any) -> bool:
    """Whether they name one database, or are one object."""
    if isinstance(store, str) and isinstance(transport, str):
        return scheme_of(store) == scheme_of(transport) != ("", "")
    return store is transport


def _arguments(call: Callable[..., Any]) -> int:
    """How many required positional parameters it has, without ``ctx``."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is each.empty and each.name != "ctx" for each in parameters)


class Endpoint:
    """Handlers, a store for what they change, and the queue that their messages come from.

        app = Endpoint("billing", store="postgresql://shop@db/shop")

    ``store``: the URL of a SQLite file, PostgreSQL, or "memory://"; or an open store, which the caller closes.
    ``transport``: the URL of the queue, or an open queue; None: the store is also the queue. ``tokens``: a separate
    store for tokens, such as Redis. ``plan``: the steps by which a message is processed; None: chosen by the above.
    """

    def __init__(
        self, name: str, *, store: str | Ledger | EntityStore, transport: str | Queue | None = None,
        tokens: str | TokenStore | None = None, plan: str | None = None, clock_ms: Callable[[], int] = wall_ms,
    ) -> None:  # fmt: skip
        self.name = check_queue(name)  # so the names of marks, which contain it, can be parsed again
        self.is_one = transport is None or _is_one(store, transport)
        """The store is also the queue."""
        self.plan = plan or ("parented" if tokens is not None else "local" if self.is_one else "transactional")
        if self.plan not in plans.PLANS:
            raise Misuse(f"plan is {plan!r}, must be one of {', '.join(plans.PLANS)}", plan=plan)
        if self.plan in ("transactional", "local") and tokens is not None:
            raise Misuse(f"the plan {self.plan!r} keeps tokens in the store: 'tokens' would have no effect")
        if self.plan == "local" and not self.is_one:
            raise Misuse("the plan 'local' needs the queue in the store: leave 'transport' out")
        needed = {"transactional": "settle", "local": "commit"}.get(self.plan, "holds")
        if transport is None and not isinstance(store, str) and not hasattr(type(store), "commit"):
            raise Misuse(f"{type(store).__name__} is no queue: name one by 'transport'")
        if tokens is None and not isinstance(store, str) and not hasattr(type(store), needed):
            raise Misuse(f"{type(store).__name__} keeps no tokens: name a token store by 'tokens'")
        self.clock_ms = clock_ms
        self.chores: list[Callable[[], object]] = []
        """Called by the consumer's pump at each run."""
        self.loop = Loop()
        self._named = (store, transport, tokens)
        self._handlers: dict[str, Handling] = {}
        self._opening = threading.Lock()
        self._opened = ExitStack()
        self._world: World | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Endpoint {self.name}: {self.plan}, handles {', '.join(self._handlers) or 'nothing'}>"

    @property
    def handlers(self) -> Mapping[str, Handling]:
        return MappingProxyType(self._handlers)

    def handler(
        self, queue: str, *, key: KeyOf | None = None, body: Any = None, retry: Retry | None = None,
        fatal: type[Exception] | tuple[type[Exception], ...] = (), ordered: bool = False,
    ) -> Callable[[Decorated], Decorated]:  # fmt: skip
        """Decorator that makes a function ``(state, message) -> (state, outgoing)`` the handler of a queue; it may be
        a coroutine function.

        ``key``: the field of the body, or a function of the message, that names the entity. Without it the handler
        keeps no state here: ``(message) -> outgoing``. A handler with one more argument, ``db``, gets the connection
        in the transaction that settles the message, to write tables of your own. Both need the plan `local`. A handler
        with a parameter ``ctx`` can call external services once: see `onefold.outbox.plans.Context`.

        ``body``: the type of the body, a dataclass, a pydantic model or any other that pydantic knows; ``message.body``
        is an instance, and a body that cannot be converted makes the message a dead letter at once. ``retry``: for this
        queue, instead of the consumer's. ``fatal``: exceptions that are not retried. ``ordered``: messages of one key
        are handled in the order in which they were sent, whoever consumes them; one that fails holds back the next.
        """
        check_queue(queue)
        if key is not None and not (isinstance(key, str) and key) and not callable(key):
            raise Misuse(f"key is {key!r}, must be the name of a field or a function", key=key)
        fatals = fatal if isinstance(fatal, tuple) else (fatal,)
        if not all(isinstance(each, type) and issubclass(each, Exception) for each in fatals):
            raise Misuse(f"{queue}: fatal is {fatal!r}, must be an exception class, or a tuple of them")
        if not isinstance(retry, Retry | None):
            raise Misuse(f"{queue}: retry is {retry!r}, must be a Retry")
        decode = None if body is None else decoder(queue, body)

        def register(call: Decorated) -> Decorated:
            if not callable(call):
                raise Misuse(f"{queue}: the handler is {call!r}, must be a function")
            if queue in self._handlers:
                raise Misuse(f"{queue} has a handler in {self.name} already: {self._handlers[queue].call!r}")
            if ordered and (key is None or self.plan != "local"):
                raise Misuse(f"{queue}: ordered needs a key, and the plan 'local'")
            takes_db = _arguments(call) == (2 if key is None else 3)
            if self.plan != "local" and (key is None or takes_db):
                what = "has no key" if key is None else "takes the connection"
                raise Misuse(f"{queue}: a handler that {what} needs the plan 'local', this endpoint has {self.plan!r}")
            if takes_db and inspect.iscoroutinefunction(call):
                raise Misuse(f"{queue}: a handler that takes the connection cannot be a coroutine")
            if takes_context(call) and takes_db:
                raise Misuse(f"{queue}: a handler takes ctx or db, not both: an external call cannot be rolled back")
            self._handlers[queue] = Handling(queue, call, key, takes_db, decode, retry, fatals, ordered)
            return call

        return register

    @property
    def world(self) -> World:
        """The stores and the transport, opened on first use."""

        def ours(store: Any, opener: Callable[[str], Any]) -> Any:
            return opened.enter_context(closing(opener(store))) if isinstance(store, str) else store

        with self._opening:
            if self._closed:
                raise Misuse(f"the endpoint {self.name} is closed")
            if self._world is None:
                store, transport, tokens = self._named
                with ExitStack() as opened:
                    entities = ours(store, open_local if self.is_one else open_ledger)
                    token_store = entities if tokens is None else ours(tokens, open_tokens)
                    self._world = World(entities, token_store, entities if self.is_one else ours(transport, open_queue))
                    self._opened = opened.pop_all()
            return self._world

    @property
    def aio(self) -> AsyncEndpoint:
        """This endpoint's methods, to be awaited on an event loop."""
        return AsyncEndpoint(self)

    def key(self, name: str) -> Key:
        return Key(self.name, plans.check_name(name, "key"))

    def state(self, name: str) -> Any:
        """The state of an entity; None if there is no such entity."""
        return self.world.entities.load([self.key(name)])[0].state

    def work(self, message: Message, delivery: Delivery = UNLEASED, plan: str = "") -> Work:
        """A message with its handler and its entity; `BadInput` if the message has no handler or no valid key."""
        handling = self._handlers.get(message.to)
        if handling is None:
            raise BadInput(f"{self.name} has no handler for {message.to!r:.300}", queue=message.to)
        plans.check_token(message.token)
        name, message = handling.read(message)
        return Work(message, None if name is None else Key(self.name, name), handling, delivery, plan)

    def plan_of(self, message: Message) -> str:
        """The plan to process this message with: ours, unless an endpoint with another plan on the same database sent
        it. `BadInput` if its token is in another store."""
        world = self.world
        local = world.local.place if self.plan == "local" else None
        if message.realm == local:
            return self.plan
        if message.realm == world.tokens.realm:
            return "transactional" if local else self.plan
        ours = local or world.tokens.realm
        raise BadInput(f"its token is kept in {message.realm!r:.300}, not in {ours!r}")

    def process(self, message: Message, delivery: Delivery | None = None) -> Outcome:
        """Attempt one message once, and acknowledge its delivery, which the plan `local` requires. After CONFLICT or
        an exception the message must be delivered again."""
        plan = self.plan_of(message) if message.realm else self.plan
        work = self.work(message, delivery or UNLEASED, plan)
        return raised(attempted(self.world, work, HandlerCalls(self.loop, self.clock_ms())))

    def send(self, connection: Any, *outs: Out) -> Any:
        """Send messages in your own transaction: they are committed with your rows, or not at all. ``connection`` is a
        connection to the store by sqlite3, psycopg, asyncpg or SQLAlchemy (also a session). Await the result if it is
        asynchronous. Nothing is committed or rolled back here. Needs the plan `local`.
        """
        store = self._sending()
        parcels = self._parcels(store, outs)
        return add_rows(connection, parcels, store.realm, store.quoted_schema, self.clock_ms())

    def relay(self, take: Callable[[Any], Iterable[Out]]) -> int:
        """Send the rows of your own outbox table, and return how many messages that were. ``take`` gets the connection
        of a transaction, deletes rows there and returns what to send for them; it may be called more than once.

        Rows that are deleted when they are taken need no mark, so serial ids may commit out of order.
        """
        store = self._sending()

        def work(transaction: LocalTransaction) -> int:
            parcels = self._parcels(store, tuple(take(transaction.connection)))
            if parcels:
                add_rows(transaction.connection, parcels, store.realm, store.quoted_schema, self.clock_ms())
            return len(parcels)

        return store.transact(work)

    def _sending(self) -> LocalStore:
        if self.plan != "local":
            raise Misuse(f"sending in your own transaction needs the plan 'local', this endpoint has {self.plan!r}")
        return self.world.local

    def _parcels(self, store: LocalStore, outs: tuple[Out, ...]) -> list[Parcel]:
        outgoing = plans.outgoings(outs, f"{self.name}.send", now_ms=self.clock_ms())
        _, *tokens = fresh_ids(1 + len(outgoing))
        parcels = parcels_of(plans.Entry(outgoing).checkpointed("", tuple(tokens)).messages(""), store.place)
        check_parcels(parcels)
        return parcels

    def take(
        self, source: str, mark: int, outs: Iterable[Out], *, origin: str = "", known: bool = False,
        after: int | None = None, also: Mapping[str, Any] = NOTHING,
    ) -> Outcome:  # fmt: skip
        """Send what a source has at a mark, once, however often this is called; marks of a source only grow.

        DUPLICATE: it was taken before. CONFLICT: another process takes it too, or the source's mark is not ``after``.
        The options are those of `onefold.outbox.Taken`.
        """
        if type(mark) is not int or not 0 <= mark <= MARK_MAX:
            raise Misuse(f"mark is {mark!r}, must be a whole number from 0 to 2**63 - 1", mark=mark)
        outgoing = plans.outgoings(outs, f"{source}#{mark}", origin, self.clock_ms())
        taken = Taken(self.key(source), mark, outgoing, origin, known, after, also)
        outcome = Outcome.CONFLICT
        for tries in range(TAKE_TRIES_MAX):
            outcome = run_one(self.world, plans.SOURCED[self.plan](taken))
            if outcome is not Outcome.CONFLICT or after is not None:  # a caller that passes ``after`` reads it again
                break
            sleep(uniform(0, 0.002 * 2**tries))
        return outcome

    def consume(
        self, *, concurrency: int = 1, batch: int = 64, lease_s: float = 30, attempts_max: int = 10,
        backoff_s: float = 1.0, backoff_max_s: float = 300, recover_s: float = 30, stranded_s: float = 60,
        tombstone_s: float = 7 * 86_400, until_empty: bool = False, stop: threading.Event | None = None,
        on_start: Callable[[], object] | None = None,
    ) -> Tally:  # fmt: skip
        """Process messages until ``stop`` is set, or until the queues are empty; blocks. See `Consuming`."""
        settings = Consuming(
            concurrency=concurrency, batch=batch, lease_s=lease_s, attempts_max=attempts_max, backoff_s=backoff_s,
            backoff_max_s=backoff_max_s, recover_s=recover_s, stranded_s=stranded_s, tombstone_s=tombstone_s,
            until_empty=until_empty,
        )  # fmt: skip
        return Consumer(self, settings, stop=stop).run(on_start)

    def recover(self, older_than_s: float = 60, *, tombstone_s: float = 7 * 86_400) -> Recovered:
        """Finish outbox entries older than this, and remove useless tokens and old tombstones. Safe at any time."""
        return recover(self, older_than_s, tombstone_s)

    def close(self) -> None:
        """Close what was opened here; after this, every other call is `Misuse`. May be called twice."""
        with self._opening:
            self._closed, self._world = True, None
            self._opened.close()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncEndpoint:
    """The methods of an endpoint, to be awaited; each runs in a thread, because the stores block."""

    def __init__(self, app: Endpoint) -> None:
        self.app = app

    async def state(self, name: str) -> Any:
        return await asyncio.to_thread(self.app.state, name)

    async def process(self, message: Message, delivery: Delivery | None = None) -> Outcome:
        return await asyncio.to_thread(self.app.process, message, delivery)

    async def take(self, source: str, mark: int, outs: Iterable[Out], **options: Any) -> Outcome:
        return await asyncio.to_thread(self.app.take, source, mark, outs, **options)

    async def recover(self, older_than_s: float = 60, **options: Any) -> Recovered:
        return await asyncio.to_thread(self.app.recover, older_than_s, **options)

    async def consume(self, **settings: Any) -> Tally:
        """Process messages until cancelled, or until the queues are empty. Messages in hand are finished first."""
        stop = threading.Event()
        consuming = asyncio.create_task(asyncio.to_thread(self.app.consume, stop=stop, **settings))
        try:
            return await asyncio.shield(consuming)
        finally:
            stop.set()
            await asyncio.wait([consuming])

    async def close(self) -> None:
        await asyncio.to_thread(self.app.close)


def decoder(queue: str, body: Any) -> Callable[[Any], Any]:
    """A function that converts a JSON value to this type; `BadInput` names the fields that are wrong.

    >>> from dataclasses import make_dataclass
    >>> from decimal import Decimal
    >>> Order = make_dataclass("Order", [("sum", Decimal)])
    >>> decoder("orders", Order)({"sum": "2.50"}).sum
    Decimal('2.50')
    >>> decoder("orders", Order)({})
    Traceback (most recent call last):
    onefold.errors.BadInput: orders: the body is not a valid Order: sum: Field required
    """
    from pydantic import ConfigDict, PydanticUserError, ValidationError, create_model

    try:  # a wrapper model: dataclasses, which have no pydantic settings of their own, take over its settings
        model: Any = create_model("Body", value=(body, ...), __config__=ConfigDict(val_json_bytes="base64"))
        if not model.__pydantic_complete__:
            model.model_rebuild()  # raises, with the name that is not defined
    except (PydanticUserError, NameError, TypeError) as error:
        raise Misuse(
            f"{queue}: body is {body!r:.100}, which pydantic cannot read: {str(error).splitlines()[0]}"
        ) from error

    def decode(value: Any) -> Any:
        try:
            return model.model_validate_json(plans.pack({"value": value})).value
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, each['loc'][1:])) or 'it'}: {each['msg']}" for each in error.errors()[:3]]
            name = getattr(body, "__name__", str(body))
            raise BadInput(f"{queue}: the body is not a valid {name}: {'; '.join(wrong)}") from error

    return decode
