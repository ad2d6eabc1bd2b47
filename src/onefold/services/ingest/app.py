"""The routes.

    PUT  /topics/{topic}             {"deduplicate": true|false}: make it, or switch it
    GET  /topics, /topics/{topic}    what there is
    POST /topics/{topic}/producers   {"name": "x"|null}: open a session, get an epoch
    POST /topics/{topic}/messages    publish: JSON, or the binary batch
    POST /topics/{topic}/hooks       publish the raw body, by the header Idempotency-Key
    GET  /topics/{topic}/messages    ?from=0&max=100&kinds=messages|all
    GET  /topics/{topic}/ws          ?name=x: a websocket
    GET  /healthz, /metrics

Every answer is JSON, but those to a binary batch and the metrics. Who publishes gets 200 and receipts also for what was
there already; 409 if all is rejected as contradiction, zombie or jump; 429 and 503 mean: the same again, later.
"""

import asyncio
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from onefold.engines.producers.names import NAME_BYTES_MAX
from onefold.errors import BadInput, Busy, StoreFailed
from onefold.links.batch import (
    CONTENT_TYPE,
    Status,
    decode_request,
    encode_reply,
    request_number,
)
from onefold.services.ingest import documents, sockets
from onefold.services.ingest.committing import Desk
from onefold.services.ingest.guard import RETRY_S, Guard, answer, refusal
from onefold.services.ingest.metrics import Metrics
from onefold.services.ingest.reading import page
from onefold.services.ingest.service import Service


def application(service: Service, metrics: Metrics, token: str | None, host: str) -> ASGIApp:
    """The whole of it, as an ASGI app."""
    routes = _Routes(service, metrics, told=token is None)
    router = Router(
        [
            Route("/topics", routes.topics, methods=["GET"]),
            Route("/topics/{topic}", routes.topic, methods=["GET"]),
            Route("/topics/{topic}", routes.put, methods=["PUT"]),
            Route("/topics/{topic}/producers", routes.connect, methods=["POST"]),
            Route("/topics/{topic}/messages", routes.publish, methods=["POST"]),
            Route("/topics/{topic}/messages", routes.read, methods=["GET"]),
            Route("/topics/{topic}/hooks", routes.hook, methods=["POST"]),
            WebSocketRoute("/topics/{topic}/ws", routes.websocket),
            Route("/healthz", routes.healthz, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
        ],
        redirect_slashes=False,
    )
    return Guard(router, service, token, host)


class _Routes:
    def __init__(self, service: Service, metrics: Metrics, *, told: bool) -> None:
        self._service = service
        self._told = told  # /healthz asks for no token: where there is one, it does not say what is wrong
        self._metrics = metrics
        self._limits = service.limits

    async def _desk(self, request: Request | WebSocket, *, create: bool) -> Desk:
        return await self._service.desk(request.path_params["topic"], create=create)

    async def topics(self, request: Request) -> Response:
        return answer({"topics": await self._service.names()})

    async def topic(self, request: Request) -> Response:
        return answer(_told(await self._desk(request, create=False)))

    async def put(self, request: Request) -> Response:
        wanted = documents.wanted_switch(await request.body())
        desk = await self._service.desk(request.path_params["topic"], create=True, deduplicate=wanted)
        if wanted is not None:
            await desk.switch(wanted)
        return answer(_told(desk))

    async def connect(self, request: Request) -> Response:
        name = documents.producer_name(await request.body())
        desk = await self._desk(request, create=self._service.create)
        return answer((await desk.connect(name))._asdict())

    async def publish(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == CONTENT_TYPE:
            return await self._publish_batch(request)
        producer, epoch, messages = documents.publication(await request.body(), self._limits.messages_max)
        desk = await self._desk(request, create=self._service.create)
        desk.topic.arrive(len(messages))
        receipts = await desk.publish(producer, messages, epoch)
        document = {"receipts": [documents.receipt_document(receipt) for receipt in receipts]}
        return answer(document, documents.http_status(receipts))

    async def _publish_batch(self, request: Request) -> Response:
        number = 0
        try:
            body = await request.body()
            number = request_number(body)
            limits = self._limits
            asked = decode_request(body, messages_max=limits.messages_max, bytes_max=limits.body_bytes_max)
            desk = await self._desk(request, create=self._service.create)
            desk.topic.arrive(len(asked.messages))
            receipts = await desk.publish(asked.producer, asked.messages, asked.epoch)
        except ClientDisconnect:
            raise
        except Exception as error:
            code, told = refusal(error)
            return _binary(encode_reply(number, _status(error, code), (), told), code)
        return _binary(encode_reply(number, Status.OK, receipts), documents.http_status(receipts))

    async def hook(self, request: Request) -> Response:
        key = request.headers.get("idempotency-key")
        if key is None or not 1 <= len(key) <= NAME_BYTES_MAX or not key.isascii() or not key.isprintable():
            found = "missing" if key is None else documents.shown(key)
            raise BadInput(f"Idempotency-Key: is {found}, must be 1 to {NAME_BYTES_MAX} printable ASCII characters")
        payload = await request.body()
        desk = await self._desk(request, create=self._service.create)
        desk.topic.arrive(1)
        receipt = await desk.publish_keyed(key, payload)
        return answer(documents.receipt_document(receipt), documents.http_status([receipt]))

    async def read(self, request: Request) -> Response:
        query, limits = request.query_params, self._limits
        start = documents.whole_number("from", query.get("from"), -1, 0, 2**63 - 2)
        count = documents.whole_number("max", query.get("max"), min(100, limits.read_max), 1, limits.read_max)
        kinds = query.get("kinds", "messages")
        if kinds not in ("messages", "all"):
            raise BadInput(f"kinds: is {documents.shown(kinds)}, must be messages or all")
        topic = (await self._desk(request, create=False)).topic
        found = await asyncio.to_thread(
            page, topic, start, count_max=count, bytes_max=limits.body_bytes_max, everything=kinds == "all"
        )
        return answer(found)

    async def websocket(self, websocket: WebSocket) -> None:
        desk = await self._desk(websocket, create=self._service.create)
        await sockets.serve(websocket, self._service, desk, websocket.query_params.get("name"))

    async def healthz(self, request: Request) -> Response:
        problems = self._service.problems()
        if self._service.closing:
            return answer({"status": "closing"}, 503)
        if problems:
            return answer({"status": "trouble", **({"problems": problems} if self._told else {})}, 503)
        return answer({"status": "ok", "topics": len(self._service.desks)})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _told(desk: Desk) -> dict[str, Any]:
    topic = desk.topic
    switches = {"name": desk.name, "deduplicate": desk.topic.deduplicates, "memory": topic.settings.memory}
    return {**switches, **topic.figures(), "problem": desk.problem}


def _status(error: Exception, code: int) -> Status:
    if isinstance(error, Busy):
        return Status.BUSY
    return Status.FAILED if isinstance(error, StoreFailed) or code == 503 else Status.REFUSED


def _binary(body: bytes, code: int) -> Response:
    return Response(body, code, {"retry-after": RETRY_S[code]} if code in RETRY_S else None, CONTENT_TYPE)
