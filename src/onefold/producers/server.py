"""The ingest server: topics over HTTP and websockets.

    PUT  /topics/{topic}             {"deduplicate": true|false}: make it, or switch it
    GET  /topics, /topics/{topic}    list topics, describe one
    POST /topics/{topic}/producers   {"name": "x"|null}: open a session, get an epoch
    POST /topics/{topic}/messages    publish: JSON, or the binary batch
    POST /topics/{topic}/hooks       publish the raw body, by the header Idempotency-Key
    GET  /topics/{topic}/messages    ?from=0&max=100&kinds=messages|all
    GET  /topics/{topic}/ws          ?name=x: a websocket
    GET  /healthz, /metrics

Every answer is JSON, except those to a binary batch and the metrics. A publish gets 200 and receipts, also for repeats;
409 if everything is rejected as a contradiction, zombie or jump; after 429 and 503 send the same again later.

Judging is quick and runs on the event loop (`Topic.submit`). Storing waits for a disk and runs in a thread
(`Topic.flush`), one at a time per topic, repeated while messages wait. Messages that arrive during a flush are stored
by the next one, so groups grow with the load, and no message waits for a timer.

SIGTERM and SIGINT stop it: no new connections, pending requests are stored and answered, the topics save their memory
and close their logs. A kill skips all that, and loses nothing that was acknowledged.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from onefold.errors import BadInput, Busy, Damaged, OnefoldError, StoreFailed
from onefold.net import http
from onefold.net.limits import HttpLimits
from onefold.producers import documents
from onefold.producers.records import MESSAGES, NAME_BYTES_MAX
from onefold.producers.requests import Message, ProducerSession, Receipt
from onefold.producers.topic import FILE, Topic, Topics, topic_folder
from onefold.producers.wire import CONTENT_TYPE, WireStatus, decode_request, encode_reply, request_number
from onefold.verdict import Verdict

T = TypeVar("T")
log: Final = logging.getLogger("onefold.ingest")

FAILURE_S: Final = 60
"""How long a failed store counts as a problem. Without a limit, a server that is taken out of service because of it
would get no request that could show it healthy again."""


class TopicDesk:
    """A topic, and its commits in a thread."""

    def __init__(self, name: str, topic: Topic, pool: Executor) -> None:
        self.name = name
        self.topic = topic
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._commits: asyncio.Future[None] | None = None
        self._failure: tuple[float, str] | None = None
        self._switching = asyncio.Lock()

    @property
    def problem(self) -> str | None:
        if self._failure is not None and self._loop.time() - self._failure[0] < FAILURE_S:
            return self._failure[1]
        return self.topic.problem

    async def publish(self, producer: str, messages: Sequence[Message], epoch: int | None) -> list[Receipt]:
        self.topic.arrive(len(messages))
        return await self._committed(self.topic.submit(producer, messages, epoch))

    async def publish_keyed(self, key: str, payload: bytes) -> Receipt:
        self.topic.arrive(1)
        return await self._committed(self.topic.submit_keyed(key, payload))

    async def connect(self, name: str | None) -> ProducerSession:
        return await self._in_thread(lambda: self.topic.connect(name))

    async def switch(self, deduplicate: bool) -> None:
        """Switch deduplication, unless it is in that state already: switching on again would forget everything."""
        async with self._switching:
            if deduplicate != self.topic.deduplicates:
                await self._in_thread(lambda: self.topic.switch(deduplicate))

    async def _committed(self, future: Future[T]) -> T:
        if future.done():  # it stores nothing
            return future.result()
        while not future.done():
            await asyncio.wait([self._commit()])
        self._note(future.exception())
        return future.result()

    def _commit(self) -> asyncio.Future[None]:
        """The running commit, or a new one; it is followed by another while messages wait."""
        if self._commits is None:
            self._commits = self._loop.run_in_executor(self._pool, self.topic.flush)
            self._commits.add_done_callback(self._committed_all)
        return self._commits

    def _committed_all(self, commit: asyncio.Future[None]) -> None:
        if (error := commit.exception()) is not None:  # the futures have it too
            log.error("topic %s: %s: %s", self.name, type(error).__name__, error)
        self._commits = None
        if self.topic.waiting:
            self._commit()

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        """Run a call of the topic that commits by itself."""
        try:
            result = await self._loop.run_in_executor(self._pool, ask)
        except StoreFailed as error:
            self._note(error)
            raise
        self._note(None)
        return result

    def _note(self, error: BaseException | None) -> None:
        self._failure = None if error is None else (self._loop.time(), str(error))

    async def drain(self) -> None:
        while self._commits is not None:
            await asyncio.wait([self._commits])


LOOKED_MAX: Final = 100_000
"""Records read for one page, wanted or not."""


def page(topic: Topic, start: int, count_max: int, bytes_max: int, everything: bool) -> dict[str, Any]:
    """Records from an offset on (-1: the first) as one page, and where the next begins. Reads files: use a thread."""
    begin, end = topic.log.start, topic.log.end
    start = begin if start < 0 else start
    if not begin <= start <= end:
        raise BadInput(f"from: is {start}, what is kept goes from {begin} to {end}", start=begin, end=end)
    records: list[dict[str, Any]] = []
    size, at = 0, start
    for record in topic.log.read(start, min(end, start + LOOKED_MAX)):
        if everything or record.kind in MESSAGES:
            size += len(record.payload)
            if len(records) == count_max or (records and size > bytes_max):
                break
            records.append(documents.record_document(record))
        at = record.offset + 1
    return {"records": records, "next": at, "start": begin, "end": end}


THREADS: Final = 16
"""Topics that are written at the same time; more would not make a disk faster."""
PROBLEMS_MAX: Final = 100
TEND_S: Final = 10


class UnknownTopic(OnefoldError):
    pass


STATUSES: Final[http.Statuses] = {UnknownTopic: 404}


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestLimits(HttpLimits):
    messages_max: int = 10_000
    """Messages of one request."""
    outstanding_max: int = 16
    """Unanswered requests on one websocket; beyond, it is not read."""
    read_max: int = 1_000
    """Records that one GET may ask for."""


GAUGES = {
    "producers": "Producers that are remembered.",
    "pending": "Parts, sessions and keys that are judged and not stored yet.",
    "queued_bytes": "Bytes of payload that wait to be stored.",
    "end": "The offset that the next record gets.",
    "start": "The first offset that is kept.",
    "clock_off_ms": "How far the wall clock is ahead of the topic's time; not 0: it was set, and is not believed yet.",
}
NAMES = {"end": "log_end_offset", "start": "log_start_offset"}


def ingest_metrics(server: "IngestServer") -> Iterator[Metric]:
    desks = dict(server.desks)
    yield GaugeMetricFamily("onefold_topics", "Topics that are open.", len(desks))
    yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", server.connections)
    yield GaugeMetricFamily("onefold_in_hand_bytes", "Bytes of bodies in hand.", server.budget.in_hand)
    messages = CounterMetricFamily(
        "onefold_messages", "Messages by what became of them.", labels=["topic", "verdict", "reason"]
    )
    arrived = CounterMetricFamily("onefold_messages_in", "Messages that arrived.", labels=["topic"])
    unjudged = GaugeMetricFamily(
        "onefold_messages_unjudged", "Messages that arrived and have no verdict; at rest 0.", labels=["topic"]
    )
    groups = CounterMetricFamily("onefold_groups", "Commit groups: one write and one sync each.", labels=["topic"])
    gauges = {
        key: GaugeMetricFamily(f"onefold_{NAMES.get(key, key)}", text, labels=["topic"]) for key, text in GAUGES.items()
    }
    for name, desk in desks.items():
        books = desk.topic.books()
        arrived.add_metric([name], books.received)
        unjudged.add_metric([name], books.pending)
        for judged, count in books:
            messages.add_metric([name, str(judged.verdict), judged.reason], count)
        figures = desk.topic.figures()
        groups.add_metric([name], figures["groups"])
        for key, gauge in gauges.items():
            gauge.add_metric([name], figures[key])
    yield from (messages, arrived, unjudged, groups, *gauges.values())


NOT_BINARY: Final = 1003
BEHIND: Final = "not judged: a request before it has to be sent again"


class SocketRequest(NamedTuple):
    """A decoded request: its number, and its messages or why it is refused."""

    number: int
    size: int
    messages: list[Message]
    refusal: tuple[WireStatus, str] | None = None


class _Connection:
    """A websocket: requests are pipelined, and stored in the order in which they came.

    Requests read while a round is being stored make up the next round, which is one submit. No request is judged while
    an earlier one of its connection waits for the disk: if that write failed, the later message would be stored without
    the earlier one, whose retry would then be taken for a repeat and lost.

    After a request without a final answer (unsure, busy, failed) all later ones get "try again", and the connection is
    closed with 1013. The client reconnects and sends again what has no receipt.
    """

    def __init__(
        self, websocket: WebSocket, desk: TopicDesk, session: ProducerSession, limits: IngestLimits, budget: http.Budget
    ) -> None:
        self._websocket = websocket
        self._budget = budget
        self._limits = limits
        self._desk = desk
        self._session = session
        self._read: list[SocketRequest] = []  # not judged yet
        self._round: list[SocketRequest] = []  # judged, not answered yet
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._end: tuple[int, str] | None = None  # why reading ended; requests read before are still answered
        self._reader: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop reading; answer the requests read so far, then close."""
        self._finish(http.RESTART, "the server is shutting down")

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._reading())
        try:
            code, reason = await self._answering()
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass  # how starlette and uvicorn report that the client has gone
        finally:
            self._reader.cancel()
            for request in self._round + self._read:
                self._budget.give(request.size)

    async def _reading(self) -> None:
        limits = self._limits
        try:
            while self._end is None:
                while (in_hand := self._read + self._round) and (
                    len(in_hand) >= limits.outstanding_max or sum(r.size for r in in_hand) > limits.body_bytes_max
                ):
                    self._room.clear()
                    await self._room.wait()
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return self._finish(1000, "")
                if (data := message.get("bytes")) is None:
                    return self._finish(NOT_BINARY, "a request is binary")
                request = self._decode(data)
                self._read.append(request)
                self._news.set()
                if request.refusal is not None:  # the last request
                    return
        finally:
            self._finish(1011, "")  # no effect if the reason is set already

    def _finish(self, code: int, reason: str) -> None:
        self._end = self._end or (code, reason)
        self._news.set()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()

    def _decode(self, data: bytes) -> SocketRequest:
        number = request_number(data)
        try:
            self._budget.take(len(data))
        except Busy as error:
            return SocketRequest(number, 0, [], (WireStatus.BUSY, str(error)))
        limits, (name, epoch, _, _) = self._limits, self._session
        try:
            request = decode_request(data, messages_max=limits.messages_max, bytes_max=limits.body_bytes_max)
            if request.producer != name:
                raise BadInput(f"the producer is {request.producer!r}, this session's is {name!r}")
            if request.epoch != epoch:
                raise BadInput(f"the epoch is {request.epoch or 0}, this session's is {epoch}")
        except BadInput as error:
            return SocketRequest(number, len(data), [], (WireStatus.REFUSED, str(error)))
        return SocketRequest(number, len(data), request.messages)

    async def _answering(self) -> tuple[int, str]:
        """Store and answer round after round; returns the close code and reason."""
        name, epoch, _, _ = self._session
        while True:
            while not self._read:
                if self._end is not None:
                    return self._end
                self._news.clear()
                await self._news.wait()
            self._round, self._read = self._read, []
            good = [request for request in self._round if request.refusal is None]
            messages = [message for request in good for message in request.messages]
            receipts, status, text = [], WireStatus.OK, ""
            try:
                receipts = await self._desk.publish(name, messages, epoch) if good else []
            except Busy as error:
                status, text = WireStatus.BUSY, str(error)
            except Exception as error:
                status, text = WireStatus.FAILED, http.refusal(error, log, STATUSES)[1]
            at = 0
            for request in good:
                begin, at = at, at + len(request.messages)
                await self._reply(request, status, text, receipts[begin:at])
            if status != WireStatus.OK or any(receipt.verdict == Verdict.UNSURE for receipt in receipts):
                self._finish(http.TRY_AGAIN, "try again")
                for request in self._round[len(good) :] + self._read:
                    await self._reply(request, status or WireStatus.BUSY, BEHIND)
                return http.TRY_AGAIN, "try again"
            if (refusal := self._round[-1].refusal) is not None:
                await self._reply(self._round[-1], *refusal)
                return (http.TRY_AGAIN, "try again") if refusal[0] == WireStatus.BUSY else (http.BAD_DATA, "refused")
            for request in self._round:
                self._budget.give(request.size)
            self._round = []
            self._room.set()

    async def _reply(
        self, request: SocketRequest, status: WireStatus, text: str, receipts: Sequence[Receipt] = ()
    ) -> None:
        await self._websocket.send_bytes(encode_reply(request.number, status, receipts, text))


def _document(desk: TopicDesk) -> dict[str, Any]:
    topic = desk.topic
    switches = {"name": desk.name, "deduplicate": desk.topic.deduplicates, "memory": topic.settings.memory}
    return {**switches, **topic.figures(), "problem": desk.problem}


def _binary(body: bytes, code: int) -> Response:
    return Response(body, code, {"retry-after": http.RETRY_S[code]} if code in http.RETRY_S else None, CONTENT_TYPE)


PORT: Final = 7654


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    host: str = "127.0.0.1"
    port: int = PORT
    """0: any free port."""
    token: str | None = field(default=None, repr=False)
    create: bool = True
    """Whether a publish to an unknown topic makes it."""
    limits: IngestLimits = field(default_factory=IngestLimits)


class IngestServer(http.HttpServer):
    name = "ingest"
    statuses = STATUSES

    def __init__(self, topics: Topics, settings: IngestSettings | None = None) -> None:
        self.settings = settings = settings or IngestSettings()
        self.desks: dict[str, TopicDesk] = {}
        self._topics, self._limits, self._create = topics, settings.limits, settings.create
        self._sockets: set[http.Stoppable] = set()
        self._unopened: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="onefold-ingest")
        super().__init__(settings.host, settings.port, settings.token, settings.limits)

    async def serve(self) -> None:
        """Serve until stopped; then store what is queued, save the memories and close the logs.

        `BooksDoNotBalance` if the counts of arrived and judged messages differ then.
        """
        try:
            await self.answer(
                [
                    Route("/topics", self.topics, methods=["GET"]),
                    Route("/topics/{topic}", self.topic, methods=["GET"]),
                    Route("/topics/{topic}", self.put, methods=["PUT"]),
                    Route("/topics/{topic}/producers", self.connect, methods=["POST"]),
                    Route("/topics/{topic}/messages", self.publish, methods=["POST"]),
                    Route("/topics/{topic}/messages", self.read, methods=["GET"]),
                    Route("/topics/{topic}/hooks", self.hook, methods=["POST"]),
                    WebSocketRoute("/topics/{topic}/ws", self.websocket),
                ],
                health=self._health,
                metrics=lambda: ingest_metrics(self),
                message_bytes_max=self._limits.body_bytes_max,
                drain=lambda: http.stop_all(self._sockets, self._limits.grace_s),
                beside=[self._tend()],
            )
        finally:
            self.closing = True
            for desk in self.desks.values():
                await desk.drain()
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._topics.close)
            finally:
                self._pool.shutdown(wait=False)

    def _health(self) -> dict[str, Any]:
        problems = {name: desk.problem for name, desk in self.desks.items() if desk.problem is not None}
        problems |= self._unopened
        return {"problems": problems} if problems else {"topics": len(self.desks)}

    async def _tend(self) -> None:
        """Do what is due by the clock alone (snapshots, retention), for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TEND_S)
            for desk in list(self.desks.values()):
                await loop.run_in_executor(self._pool, desk.topic.tend)

    async def _desk(
        self, request: Request | WebSocket, *, create: bool | None = None, deduplicate: bool | None = None
    ) -> TopicDesk:
        """The desk of a request's topic; an unknown topic is made, or is `UnknownTopic`, as the settings say."""
        name = request.path_params["topic"]
        desk = self.desks.get(name)
        if desk is None:
            self._check_open()
            loop = asyncio.get_running_loop()
            create = self._create if create is None else create
            topic = await loop.run_in_executor(self._pool, self._open, name, create, deduplicate)
            desk = self.desks.setdefault(name, TopicDesk(name, topic, self._pool))
        return desk

    def _open(self, name: str, create: bool, deduplicate: bool | None) -> Topic:
        topics = self._topics
        if not create and not (topic_folder(topics.root, name) / FILE).is_file():
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)
        defaults = None if deduplicate is None else replace(topics.defaults, deduplicate=deduplicate)
        try:
            topic = topics.topic(name, create=create, defaults=defaults)
        except Exception as error:
            if len(self._unopened) < PROBLEMS_MAX and (topics.root / name / FILE).is_file():
                self._unopened[name] = str(error)
            if isinstance(error, BadInput):  # not the client's input
                raise Damaged(str(error), topic=name) from error
            raise
        self._unopened.pop(name, None)
        return topic

    def _check_open(self) -> None:
        if self.closing:
            raise http.Closing("the server is shutting down")

    async def topics(self, request: Request) -> Response:
        return http.answer({"topics": await asyncio.to_thread(self._topics.names)})

    async def topic(self, request: Request) -> Response:
        return http.answer(_document(await self._desk(request, create=False)))

    async def put(self, request: Request) -> Response:
        wanted = documents.wanted_switch(await request.body())
        desk = await self._desk(request, create=True, deduplicate=wanted)
        if wanted is not None:
            await desk.switch(wanted)
        return http.answer(_document(desk))

    async def connect(self, request: Request) -> Response:
        name = documents.producer_name(await request.body())
        desk = await self._desk(request)
        return http.answer((await desk.connect(name))._asdict())

    async def publish(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == CONTENT_TYPE:
            return await self._publish_batch(request)
        producer, epoch, messages = documents.publication(await request.body(), self._limits.messages_max)
        desk = await self._desk(request)
        receipts = await desk.publish(producer, messages, epoch)
        document = {"receipts": [documents.receipt_document(receipt) for receipt in receipts]}
        return http.answer(document, documents.http_status(receipts))

    async def _publish_batch(self, request: Request) -> Response:
        number = 0
        try:
            body = await request.body()
            number = request_number(body)
            limits = self._limits
            batch = decode_request(body, messages_max=limits.messages_max, bytes_max=limits.body_bytes_max)
            desk = await self._desk(request)
            receipts = await desk.publish(batch.producer, batch.messages, batch.epoch)
        except ClientDisconnect:
            raise
        except Exception as error:
            code, text = http.refusal(error, log, STATUSES)
            status = WireStatus.FAILED if isinstance(error, StoreFailed) or code == 503 else WireStatus.REFUSED
            if isinstance(error, Busy):
                status = WireStatus.BUSY
            return _binary(encode_reply(number, status, (), text), code)
        return _binary(encode_reply(number, WireStatus.OK, receipts), documents.http_status(receipts))

    async def hook(self, request: Request) -> Response:
        key = request.headers.get("idempotency-key")
        if key is None or not 1 <= len(key) <= NAME_BYTES_MAX or not key.isascii() or not key.isprintable():
            text = "missing" if key is None else documents.shown(key)
            raise BadInput(f"Idempotency-Key: is {text}, must be 1 to {NAME_BYTES_MAX} printable ASCII characters")
        payload = await request.body()
        desk = await self._desk(request)
        receipt = await desk.publish_keyed(key, payload)
        return http.answer(documents.receipt_document(receipt), documents.http_status([receipt]))

    async def read(self, request: Request) -> Response:
        query, limits = request.query_params, self._limits
        start = documents.whole_number("from", query.get("from"), -1, 0, 2**63 - 2)
        count = documents.whole_number("max", query.get("max"), min(100, limits.read_max), 1, limits.read_max)
        kinds = query.get("kinds", "messages")
        if kinds not in ("messages", "all"):
            raise BadInput(f"kinds: is {documents.shown(kinds)}, must be messages or all")
        topic = (await self._desk(request, create=False)).topic
        return http.answer(await asyncio.to_thread(page, topic, start, count, limits.body_bytes_max, kinds == "all"))

    async def websocket(self, websocket: WebSocket) -> None:
        limits = self._limits
        desk = await self._desk(websocket)
        self._check_open()
        session = await desk.connect(websocket.query_params.get("name"))
        await websocket.accept()
        sizes = {"message_bytes_max": desk.topic.settings.message_bytes_max, "batch_messages_max": limits.messages_max,
                 "batch_bytes_max": limits.body_bytes_max}  # fmt: skip
        await websocket.send_text(json.dumps({**session._asdict(), **sizes}))
        connection = _Connection(websocket, desk, session, limits, self.budget)
        self._sockets.add(connection)
        if self.closing:  # since the check above
            connection.stop()
        try:
            await connection.run()
        finally:
            self._sockets.discard(connection)
