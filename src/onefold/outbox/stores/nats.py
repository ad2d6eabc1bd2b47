"""A queue in NATS JetStream, for endpoints on several machines.

A parcel is a message of a work-queue stream; a queue is a subject of it, with one durable pull consumer that is made at
the first lease. A receipt is the subject to which NATS wants the acknowledgement. The stream ``NAME`` holds the
parcels, ``NAME-dead`` the dead letters. An existing stream is used if it cannot lose parcels: one in memory, with a
maximum age, or with a limit that discards the oldest is `Misuse` that names the setting.

Differences to a queue in a database:

- The lease time is a setting of the consumer (``ack_wait``), the same for all parcels of a queue, also for those that
  are leased already. A lease of another length changes it, so all clients of a queue should ask for the same; `extend`
  restarts this time, whatever length it is asked for.
- A lease of several queues takes a share of each, oldest first within each; the result is sorted.
- A late acknowledgement removes the parcel even if it was delivered again.
- A dead letter is stored first and then acknowledged: a crash in between leaves a copy with the same token.

Durable means that the server wrote the parcel to its file before it answered. By default it syncs the file every two
minutes: parcels survive a crash of the server, and a power cut only with replicas, or with ``sync_interval: always`` in
the server's configuration. A client cannot see which is set.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from onefold.errors import Misuse, OnefoldError, StoreFailed
from onefold.outbox import plans, ports
from onefold.outbox.runner import Loop
from onefold.stores.addresses import check_timeout, masked, options_of


class NatsAddress(NamedTuple):
    """The servers of one cluster, and the credentials, which are never printed."""

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return ",".join(self.servers)


def parse(url: str) -> NatsAddress:
    """The address without its options, parsed; no server is contacted.

    >>> address = parse("nats://app:s3cret@one:4222,two")
    >>> address
    nats://one:4222,nats://two:4222
    >>> address.password
    's3cret'
    """
    scheme, _, rest = url.partition("://")
    where, _, options = rest.partition("?")
    who, _, hosts = where.rstrip("/").rpartition("@")
    if scheme not in ("nats", "tls"):
        raise Misuse(f"no NATS server at {masked(url)}: must be like nats://host:4222")
    if "@" in who or "@" in options:  # part of a password would be taken for a host, and printed
        raise Misuse("this address has an @ too many (not shown); write %40 for an @ and %3F for a ? in a password")
    if not hosts or "/" in hosts:
        raise Misuse(f"no NATS server at {scheme}://{hosts}: must be like nats://host:4222")
    servers = []
    for host in hosts.split(","):
        try:
            name, port = urlsplit(f"//{host}").hostname, urlsplit(f"//{host}").port
        except ValueError:
            name, port = None, None
        if not name:
            raise Misuse(f"no NATS server at {hosts}: {host!r} is not a host with a port")
        servers.append(f"{scheme}://[{name}]:{port or 4222}" if ":" in name else f"{scheme}://{name}:{port or 4222}")
    user, colon, password = (unquote(part) for part in who.partition(":"))
    if colon:
        return NatsAddress(tuple(servers), user, password)
    return NatsAddress(tuple(servers), token=user or None)


def open_nats(url: str) -> NatsQueue:
    """The queue at an address with options: ``stream``, ``replicas``, ``timeout_s``, ``credentials`` (a file)."""
    kinds = {"stream": str, "replicas": int, "timeout_s": float, "credentials": str}
    plain, _, query = url.partition("?")
    return NatsQueue(plain, **options_of(parse(url), query, kinds))


T = TypeVar("T")
Work = Callable[[Client], Coroutine[Any, Any, T]]
# A dead peer that sends no FIN is noticed after two of these; a call that waits for a response notices earlier.
PING_S = 10
_FAILURES = (nats.errors.Error, nats.js.errors.Error, OSError, asyncio.CancelledError)  # a TimeoutError is an OSError


class Link:
    """One connection to NATS, on an event loop of its own, opened at the first call; threads may share it. nats-py's
    reconnection is off: it would send stale requests later, and pending requests would fail only at their timeout. When
    a connection breaks, or does not respond in time, all calls on it fail at once with `StoreFailed`; the next call
    opens a new one."""

    def __init__(
        self, address: NatsAddress, timeout_s: float, *, credentials: str | None,
        prepare: Callable[[Client], Awaitable[None]],
    ) -> None:  # fmt: skip
        """``prepare`` runs on each new connection before anything else."""
        self.address, self._credentials = address, credentials
        self._timeout_s, self._prepare = timeout_s, prepare
        self._loop = Loop("onefold-nats", f"{address}: this queue was closed")
        # From here on: used by the loop's thread only.
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._lost: asyncio.Future[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def run(self, work: Work[T], wait_s: float = 0) -> T:
        """The result of ``work``, which has a timeout of ``timeout_s`` plus ``wait_s``."""
        future = self._loop.begin(self._run(work, wait_s))
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: nobody waits for it any more
            raise

    def close(self) -> None:
        """End the connection and the thread; calls of `run` in other threads raise `Misuse`. May be called twice."""

        async def last() -> None:
            if self._client is not None:
                self._drop(self._client)
            if self._closing:
                await asyncio.wait(self._closing, timeout=self._timeout_s)

        self._loop.close(last)

    async def _run(self, work: Work[T], wait_s: float) -> T:
        limit_s = self._timeout_s + wait_s
        try:
            client, lost = await asyncio.wait_for(self._connected(), self._timeout_s)
            task = asyncio.ensure_future(work(client))
            both: set[asyncio.Future[Any]] = {task, lost}
            try:
                await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if lost.done():
                    raise StoreFailed(f"{self.address}: the connection was lost")
                raise TimeoutError(f"no answer within {limit_s} s")
            except TimeoutError:  # ours or one of nats-py: the server may be gone
                self._drop(client)
                raise
            finally:
                task.cancel()
        except OnefoldError:
            self._loop.check_open()
            raise
        except _FAILURES as error:
            self._loop.check_open()
            is_lost = isinstance(error, asyncio.CancelledError)
            line = "the connection was lost" if is_lost else " ".join(str(error).split()) or type(error).__name__
            raise StoreFailed(f"{self.address}: {line}") from error

    async def _connected(self) -> tuple[Client, asyncio.Future[None]]:
        """A working connection, and a future that is done when it is lost."""
        async with self._connecting:
            if self._client is not None and self._lost is not None:
                if self._client.is_connected and not self._lost.done():
                    return self._client, self._lost
                self._drop(self._client)
            loop = asyncio.get_running_loop()
            # Exceptions that nats-py does not retrieve when a connection breaks: `StoreFailed` has reported them.
            loop.set_exception_handler(lambda loop, context: None)
            client, lost = Client(), loop.create_future()
            try:
                await self._connect(client, lost)
                await self._prepare(client)
            except BaseException:
                self._drop(client)
                raise
            self._client, self._lost = client, lost
            return client, lost

    async def _connect(self, client: Client, lost: asyncio.Future[None]) -> None:
        async def on_close() -> None:
            if not lost.done():
                lost.set_result(None)

        errors: list[Exception] = []

        async def on_error(error: Exception) -> None:
            if not client.is_connected:  # later ones are raised by the calls that cause them
                errors.append(error)

        try:
            await client.connect(
                list(self.address.servers),
                error_cb=on_error,
                disconnected_cb=on_close,
                closed_cb=on_close,
                name="onefold",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=max(1, int(self._timeout_s)),
                ping_interval=PING_S,
                user=self.address.user,
                password=self.address.password,
                token=self.address.token,
                user_credentials=None if self._credentials is None else Path(self._credentials),
            )
        except nats.errors.NoServersError:
            raise errors[-1] if errors else nats.errors.NoServersError from None  # the cause is only in `errors`

    def _drop(self, client: Client) -> None:
        """Close it in the background, because the server may not respond."""

        async def close() -> None:
            with suppress(Exception):  # it is dropped in any case
                await asyncio.wait_for(client.close(), self._timeout_s)

        if client is self._client:
            if self._lost is not None and not self._lost.done():
                self._lost.set_result(None)  # fails the other calls on it
            self._client = self._lost = None
        task = asyncio.ensure_future(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of streams, subjects and consumers.

    >>> names = Names("onefold")
    >>> names.subject("orders.eu"), names.consumer("orders.eu"), names.queue("onefold.queue.orders.eu")
    ('onefold.queue.orders.eu', 'orders=eu', 'orders.eu')
    """

    stream: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.stream):
            raise Misuse(f"stream is {self.stream!r:.200}, must be 1 to 100 letters, digits, '-' and '_'")

    @property
    def dead(self) -> str:
        return f"{self.stream}-dead"

    def subject(self, queue: str) -> str:
        return f"{self.stream}.queue.{queue}"

    def dead_subject(self, queue: str, digest: str = "*") -> str:
        """All copies of one message have one subject, of which the stream keeps the last."""
        return f"{self.stream}.dead.{digest}.{queue}"

    def consumer(self, queue: str) -> str:
        return queue.replace(".", "=")

    def queue(self, subject: str) -> str:
        """The queue of a subject of either stream."""
        _, kind, *rest = subject.split(".")
        return ".".join(rest[1:] if kind == "dead" and _DIGEST.fullmatch(rest[0]) else rest)


class NatsReceipt(NamedTuple):
    """The parts of a parcel's reply subject, to which acknowledgements are sent.

    >>> NatsReceipt.parse("$JS.ACK.onefold.orders=eu.2.17.20.1763283600000000000.0")
    NatsReceipt(stream='onefold', consumer='orders=eu', times=2, sequence=17)
    """

    stream: str
    consumer: str
    times: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> NatsReceipt:
        """`Misuse` for a receipt of another kind of queue."""
        parts = text.split(".")
        # Servers with domains put two more names in front, and a random token at the end.
        named = parts[2:] if len(parts) == 9 else parts[4:]
        whole = parts[:2] == ["$JS", "ACK"] and len(parts) in (9, 11, 12) and text.isprintable() and " " not in text
        if not (whole and named[2].isdecimal() and named[3].isdecimal()):
            raise Misuse(f"not a receipt of this queue: {text!r:.200}", receipt=text)
        return cls(named[0], named[1], int(named[2]), int(named[3]))


async def make_streams(js: JetStreamContext, names: Names, replicas: int | None) -> None:
    """Create the streams if they do not exist; `Misuse` if an existing one can lose parcels."""
    config = api.StreamConfig(storage=api.StorageType.FILE, discard=api.DiscardPolicy.NEW, num_replicas=replicas or 1)
    work = config.evolve(
        name=names.stream, subjects=[names.subject(">")], retention=api.RetentionPolicy.WORK_QUEUE, duplicate_window=0
    )
    dead = config.evolve(
        name=names.dead,
        subjects=[f"{names.stream}.dead.>"],
        retention=api.RetentionPolicy.LIMITS,
        max_msgs_per_subject=1,
    )
    for wanted in (work, dead):
        try:
            stream = (await js.stream_info(str(wanted.name))).config
        except NotFoundError:
            stream = (await js.add_stream(wanted)).config
        for name in ("subjects", "retention", "storage", *(["num_replicas"] if replicas else [])):
            is_, must = getattr(stream, name), getattr(wanted, name)
            if is_ != must:
                is_, must = getattr(is_, "value", is_), getattr(must, "value", must)
                raise Misuse(f"stream {wanted.name}: {name} is {is_}, must be {must}")
        if stream.max_age:
            raise Misuse(f"stream {wanted.name}: max_age is {stream.max_age} s: parcels would be lost")
        if stream.no_ack or stream.persist_mode == api.PersistMode.ASYNC:
            raise Misuse(f"stream {wanted.name}: it acknowledges before it has written (no_ack or persist_mode)")
        limits = [name for name in _LIMITS if (getattr(stream, name) or -1) > 0]
        if limits and stream.discard != api.DiscardPolicy.NEW:
            raise Misuse(f"stream {wanted.name}: {limits[0]} with discard old: parcels would be lost")


_NO_MORE = ("404", "408")
_UNLIMITED = 0  # the size of an inbox, which is bounded by the size of the requests


class ConsumerGone(StoreFailed):
    """The consumer, or the stream, was deleted; the next call creates it again."""


async def pull(client: Client, stream: str, wanted: Mapping[str, int], wait_s: float = 0) -> tuple[list[Msg], set[str]]:
    """Up to ``wanted`` parcels of each consumer, and the consumers that had no more; all pulls share one inbox. Without
    ``wait_s``: what is there now. With it: until the first parcel comes or the time is up. A pull is answered with
    parcels, and at its end a status (404: no more, 408: the time is up). After the first parcel the other pulls are not
    needed any more, but a pull cannot be cancelled: the server may send a parcel before it learns that the inbox is
    gone. So the inbox stays until every pull has ended, and returns late parcels at once; else they would stay leased
    without a holder."""
    parcels: list[Msg] = []
    emptied: set[str] = set()
    missing = dict(wanted)
    consumers = list(wanted)
    enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answered = False
    inbox = client.new_inbox()

    async def take(msg: Msg) -> None:
        if msg.subject.startswith(inbox):
            consumer = consumers[int(msg.subject.rpartition(".")[2])]
            status = (msg.headers or {}).get("Status", "")
            if status in _NO_MORE:
                emptied.add(consumer)
            elif not enough.done():
                words = (msg.headers or {}).get("Description", "")
                problem = f"consumer {consumer}: {status} {' '.join(words.split())}"
                error = StoreFailed(f"stream {stream}: {problem}")
                if status == "503" or "Deleted" in words:
                    error = ConsumerGone(f"stream {stream}: the consumer {consumer} is not there")
                enough.set_exception(error)
            missing.pop(consumer, None)
        else:
            if answered:
                await client.publish(msg.reply, b"-NAK")
            else:
                parcels.append(msg)
            consumer = NatsReceipt.parse(msg.reply).consumer
            missing[consumer] -= 1
            if missing[consumer] == 0:
                del missing[consumer]
        if not enough.done() and (not missing or (wait_s and parcels)):
            enough.set_result(None)
        if not over.done() and not missing:
            over.set_result(None)

    async def leave() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(over, wait_s + TIMEOUT_S)
        await subscription.unsubscribe()

    subscription = await client.subscribe(
        f"{inbox}.*", cb=take, pending_msgs_limit=_UNLIMITED, pending_bytes_limit=_UNLIMITED
    )
    try:
        how = {"expires": int(wait_s * 1e9)} if wait_s else {"no_wait": True}
        for number, (consumer, batch) in enumerate(wanted.items()):
            request = json.dumps({"batch": batch, **how}).encode()
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
            await client.publish(subject, request, reply=f"{inbox}.{number}")
        await enough
    finally:
        answered = True
        leaving = asyncio.ensure_future(leave())
        _LEAVING.add(leaving)
        leaving.add_done_callback(_LEAVING.discard)
    return parcels, emptied


_LEAVING: set[asyncio.Future[None]] = set()  # the event loop has only weak references to its tasks
TURN_S = 0.1
"""How long a pull of several queues waits, and so how long one that is not needed any more stays open."""


def _shares(consumers: Sequence[str], limit: int) -> dict[str, int]:
    """Equal shares of the limit; the first consumers get the remainder.

    >>> _shares(["a", "b", "c"], 7), _shares(["a", "b", "c"], 2)
    ({'a': 3, 'b': 2, 'c': 2}, {'a': 1, 'b': 1})
    """
    share, over = divmod(limit, len(consumers))
    shares = {consumer: share + (at < over) for at, consumer in enumerate(consumers)}
    return {consumer: many for consumer, many in shares.items() if many}


IN_FLIGHT_MAX = 500
"""Parcels published before the server's confirmations are awaited."""
ANSWER_S = 1.0
"""Timeout for the response to an acknowledgement. It comes in milliseconds, or never."""
_NO_ANSWER = (nats.errors.NoRespondersError, nats.errors.TimeoutError)


STREAM = "onefold"
TIMEOUT_S = 5.0
"""For each response; nats-py's default for JetStream."""
_REASON = "Onefold-Reason"


class NatsQueue:
    """A `Queue` in two streams of a JetStream server or cluster. Threads may share it. It connects at the first call,
    and reconnects by itself."""

    def __init__(
        self, url: str, *, stream: str = STREAM, replicas: int | None = None, timeout_s: float = TIMEOUT_S,
        credentials: str | None = None,
    ) -> None:  # fmt: skip
        """``url``: ``nats://[user:password@ | token@]host[:port]``, or ``tls://``; several hosts separated by commas.

        ``credentials``: a NATS credentials file. ``replicas``: how many servers keep each parcel; an existing stream
        must have as many (None: any number). ``timeout_s``: for each response.
        """
        address = parse(url)
        if "?" in url:
            raise Misuse(f"{address}: options after a '?' are for open_queue")
        check_timeout(address, timeout_s)
        if credentials == "":
            raise Misuse(f"{address}: credentials is '': name a file")
        if credentials and find_spec("nkeys") is None:  # an optional dependency of nats-py
            raise Misuse(f"{address}: credentials need the package nkeys: pip install nkeys", credentials=credentials)
        if replicas is not None:
            ports.check_least("replicas", replicas, 1)
        self.url = str(address)
        self._names, self._replicas, self._timeout_s = Names(stream), replicas, timeout_s
        self._link = Link(address, timeout_s, credentials=credentials, prepare=self._prepare)
        # Leases: used by the link's thread only.
        self._leases_ms: dict[str, int] = {}  # the lease time of each consumer
        self._until: dict[str, float] = {}  # by receipt: when the lease expires, in this order
        self._turn = 0

    def send(self, parcels: Sequence[ports.Parcel]) -> None:
        ports.check_parcels(parcels)

        async def work(client: Client) -> None:
            for queue, payload, *_ in parcels:
                if len(payload) > client.max_payload:
                    size = f"{len(payload)} bytes, more than the {client.max_payload} that the server accepts"
                    raise Misuse(f"{self.url}: a parcel for {queue} has {size}", queue=queue)
            await self._publish(client, [(self._names.subject(queue), payload, None) for queue, payload, *_ in parcels])

        self._link.run(work, self._more_s(len(parcels)))

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[ports.Delivery]:
        queues = ports.check_lease(queues, limit, lease_ms, wait_ms)
        wait_s = wait_ms / 1000

        async def work(client: Client) -> list[ports.Delivery]:
            deadline = monotonic() + wait_s
            try:
                consumers = [await self._consumer(client, queue, lease_ms) for queue in queues]
                parcels = await self._pull_now(client, consumers, limit)
                while not parcels and (rest_s := deadline - monotonic()) > 0:
                    first = dict.fromkeys(self._in_turn(consumers)[:limit], 1)  # one each: not more than the limit
                    round_s = rest_s if len(consumers) == 1 else min(rest_s, TURN_S)
                    parcels, _ = await pull(client, self._names.stream, first, round_s)
                    if parcels and len(parcels) < limit:  # there are usually more
                        parcels += await self._pull_now(client, consumers, limit - len(parcels))
            except ConsumerGone:
                self._leases_ms.clear()
                raise
            now = monotonic()
            while self._until and next(iter(self._until.values())) <= now:
                del self._until[next(iter(self._until))]
            self._until |= {msg.reply: now + lease_ms / 1000 for msg in parcels}
            receipts = {msg.reply: NatsReceipt.parse(msg.reply) for msg in parcels}
            parcels.sort(key=lambda msg: (receipts[msg.reply].sequence, msg.reply))
            return [
                ports.Delivery(self._names.queue(msg.subject), msg.data, msg.reply, receipts[msg.reply].times)
                for msg in parcels
            ]

        return self._link.run(work, wait_s)

    def acknowledge(self, deliveries: Sequence[ports.Delivery]) -> None:
        self._settle(deliveries, b"+ACK")

    def extend(self, deliveries: Sequence[ports.Delivery], lease_ms: int) -> None:
        """Restart the leases that have not expired, with the consumer's lease time."""
        ports.check_least("lease_ms", lease_ms, 1)
        receipts = self._receipts(deliveries)

        async def work(client: Client) -> None:
            now = monotonic()
            running = [receipt for receipt in dict.fromkeys(receipts) if self._until.get(receipt, 0) > now]
            for receipt in running:
                del self._until[receipt]
                self._until[receipt] = now + self._leases_ms.get(NatsReceipt.parse(receipt).consumer, lease_ms) / 1000
            await self._tell(client, running, b"+WPI")

        self._link.run(work)

    def release(self, deliveries: Sequence[ports.Delivery], delay_ms: int = 0, *, anew: bool = False) -> None:
        """``anew``: send a new parcel, then acknowledge the old one; a crash in between leaves a copy. With a delay the
        count continues, because only a delivered parcel can have one."""
        ports.check_least("delay_ms", delay_ms, 0)
        if anew and not delay_ms:
            self.send([ports.Parcel(delivery.queue, delivery.payload) for delivery in deliveries])
            return self.acknowledge(deliveries)
        self._settle(deliveries, f'-NAK {{"delay": {delay_ms * 1_000_000}}}'.encode() if delay_ms else b"-NAK")

    def count(self, deliveries: Sequence[ports.Delivery], by: int) -> None:
        """Does nothing: only the server can count."""

    def bury(self, deliveries: Sequence[ports.Delivery], reason: str) -> None:
        """Store them as dead letters, then acknowledge them."""
        self._settle(deliveries, b"+ACK", reason[: ports.REASON_MAX])

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[ports.Buried]:
        """Dead letters, oldest first. Cost: a round trip each."""
        ports.check_least("limit", limit, 1)
        names = self._names
        subject = f"{names.stream}.dead.>" if queue is None else names.dead_subject(plans.check_queue(queue))

        async def work(client: Client) -> list[ports.Buried]:
            js = client.jetstream(timeout=self._timeout_s)
            letters: list[ports.Buried] = []
            after = 0
            with suppress(NotFoundError):
                while len(letters) < limit:
                    stored = await js.get_msg(self._names.dead, seq=after + 1, subject=subject, next=True)
                    after = stored.seq or 0
                    reason = _reason((stored.headers or {}).get(_REASON, '""'))
                    at_ms = round(stored.time.timestamp() * 1000) if stored.time else 0
                    queue = self._names.queue(stored.subject or "")
                    letters.append(ports.Buried(queue, stored.data or b"", str(stored.seq), reason, at_ms))
            return letters

        return self._link.run(work, self._more_s(limit))

    def dig_up(self, letters: Sequence[ports.Buried], *, deliver: bool) -> None:
        numbers = [letter.number for letter in dict.fromkeys(letters)]

        async def work(client: Client) -> None:
            js = client.jetstream(timeout=self._timeout_s)
            for number in numbers:
                with suppress(NotFoundError):
                    letter = await js.get_msg(self._names.dead, seq=number)
                    if deliver:
                        queue = self._names.queue(letter.subject or "")
                        await js.publish(self._names.subject(queue), letter.data or b"")
                    await js.delete_msg(self._names.dead, number)

        self._link.run(work, self._more_s(len(numbers)))

    def waiting(self) -> dict[str, int]:
        async def work(client: Client) -> dict[str, int]:
            js = client.jetstream(timeout=self._timeout_s)
            info = await js.stream_info(self._names.stream, subjects_filter=">")
            return {self._names.queue(subject): many for subject, many in (info.state.subjects or {}).items()}

        return self._link.run(work)

    def strayed(self, *, mend: bool = False) -> list[ports.Strayed]:
        """Always empty: the server's clock counts, and the server does not say when leases and delays end."""

        async def connect(client: Client) -> None:
            """Only checks that the server responds."""

        self._link.run(connect)
        return []

    def close(self) -> None:
        """Close the connection; leased parcels are delivered again when their leases expire."""
        self._link.close()

    async def _prepare(self, client: Client) -> None:
        self._leases_ms.clear()  # another client may have deleted or changed the consumers
        await make_streams(client.jetstream(timeout=self._timeout_s), self._names, self._replicas)

    async def _consumer(self, client: Client, queue: str, lease_ms: int) -> str:
        """The consumer of a queue, created or changed to have leases of this length."""
        consumer = self._names.consumer(queue)
        if self._leases_ms.get(consumer) != lease_ms:
            config = api.ConsumerConfig(
                durable_name=consumer,
                filter_subject=self._names.subject(queue),
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=lease_ms / 1000,
                max_ack_pending=-1,  # delayed parcels count as pending, and would block the others
                max_deliver=-1,
            )
            await client.jetstream(timeout=self._timeout_s).add_consumer(self._names.stream, config)
            self._leases_ms[consumer] = lease_ms
        return consumer

    async def _pull_now(self, client: Client, consumers: Sequence[str], limit: int) -> list[Msg]:
        """The parcels that are there now: each round pulls equal shares from the consumers that may have more."""
        parcels: list[Msg] = []
        rest = self._in_turn(consumers)
        while rest and len(parcels) < limit:
            more, emptied = await pull(client, self._names.stream, _shares(rest, limit - len(parcels)))
            parcels += more
            rest = [consumer for consumer in rest if consumer not in emptied]
        return parcels

    def _in_turn(self, consumers: Sequence[str]) -> list[str]:
        """The consumers, rotated by one more at each call."""
        self._turn += 1
        first = self._turn % len(consumers)
        return [*consumers[first:], *consumers[:first]]

    async def _publish(self, client: Client, letters: Sequence[tuple[str, bytes, dict[str, str] | None]]) -> None:
        """Store them all, and wait for the server's confirmation of each."""
        js = client.jetstream(timeout=self._timeout_s)
        for at in range(0, len(letters), IN_FLIGHT_MAX):
            part = letters[at : at + IN_FLIGHT_MAX]
            calls = [js.publish(subject, payload, headers=headers) for subject, payload, headers in part]
            # All are awaited before the first error is raised, so that none is still in progress then.
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer

    async def _tell(self, client: Client, receipts: Iterable[str], word: bytes) -> None:
        """Publish an acknowledgement word for each delivery; the server has processed them on return. A consumer
        processes them in order, so only the last one for each requests a response. There is none if the server does not
        know the delivery (the consumer was deleted, or the server crashed); then the parcel is delivered again."""
        by_consumer: dict[str, list[str]] = {}
        for receipt in receipts:
            by_consumer.setdefault(NatsReceipt.parse(receipt).consumer, []).append(receipt)
        for *others, _ in by_consumer.values():
            for receipt in others:
                await client.publish(receipt, word)
        patience_s = min(self._timeout_s / 2, ANSWER_S)
        lasts = [client.request(last, word, timeout=patience_s) for *_, last in by_consumer.values()]
        answers = await asyncio.gather(*lasts, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, _NO_ANSWER):
                raise answer
        if any(isinstance(answer, nats.errors.TimeoutError) for answer in answers):
            await client.flush(ceil(self._timeout_s))  # raises if the server does not respond

    def _settle(self, deliveries: Sequence[ports.Delivery], word: bytes, reason: str | None = None) -> None:
        """Publish this word for each delivery; with a ``reason``, store them as dead letters first."""
        receipts = self._receipts(deliveries)

        async def work(client: Client) -> None:
            if reason is not None:
                header = json.dumps(reason)  # ASCII on one line
                # The server closes the connection on a message that is too large: then the reason is left out.
                room = client.max_payload - len(f"NATS/1.0\r\n{_REASON}: {header}\r\n\r\n")
                dead = [
                    (self._names.dead_subject(each.queue, _digest(each.payload)), each.payload) for each in deliveries
                ]
                letters = [(*letter, {_REASON: header} if len(letter[1]) <= room else None) for letter in dead]
                await self._publish(client, letters)
            await self._tell(client, receipts, word)
            for receipt in receipts:
                self._until.pop(receipt, None)

        self._link.run(work, 0 if reason is None else self._more_s(len(deliveries)))

    def _receipts(self, deliveries: Sequence[ports.Delivery]) -> list[str]:
        for delivery in deliveries:
            if NatsReceipt.parse(delivery.receipt).stream != self._names.stream:
                raise Misuse(
                    f"not a receipt of stream {self._names.stream}: {delivery.receipt}", receipt=delivery.receipt
                )
        return [delivery.receipt for delivery in deliveries]

    def _more_s(self, many: int) -> float:
        return many / IN_FLIGHT_MAX * self._timeout_s


def _digest(payload: bytes) -> str:
    return sha256(payload).hexdigest()[:32]


def _reason(header: str) -> str:
    """The reason of a dead letter; a header that is not ours is returned as it is."""
    try:
        reason = json.loads(header)
    except (ValueError, RecursionError):
        return header
    return reason if isinstance(reason, str) else header
