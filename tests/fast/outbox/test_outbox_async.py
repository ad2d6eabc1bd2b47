"""The verbs of endpoint and desk on an event loop, and the desk inside another app."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from onefold import Endpoint, Out, Outcome
from onefold.outbox import MemoryLedger, MemoryQueue
from onefold.outbox.desk import Desk, DeskApp
from onefold.outbox.plans import BODY_BYTES_MAX, unpack_message


def count(state, message):
    return (state or 0) + message["n"], []


def test_an_endpoint_is_awaited():
    async def work():
        app = Endpoint("shop", store=MemoryLedger(), transport=MemoryQueue())
        app.handler("orders", key="key")(count)
        outs = [Out("orders", {"key": "a", "n": 2}), Out("orders", {"key": "a", "n": 3})]
        assert await app.aio.take("source", 1, outs, after=-1) is Outcome.APPLIED
        tally = await app.aio.consume(until_empty=True)
        assert (str(tally), await app.aio.state("a")) == ("2 in = 2 first + 0 repeat + 0 unsure + 0 reject", 5)
        assert (await app.aio.recover(0)).finished == 0
        await app.aio.close()

    asyncio.run(work())


def test_consuming_ends_in_good_order_when_it_is_cancelled():
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def work():
        app = Endpoint("shop", store=MemoryLedger(), transport=MemoryQueue())
        loop = asyncio.get_running_loop()

        @app.handler("orders", key="key")
        def slow(state, message):
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result(60)
            return count(state, message)

        app.take("source", 1, [Out("orders", {"key": "a", "n": 2})])
        consuming = asyncio.create_task(app.aio.consume())
        await begun.wait()
        consuming.cancel()
        await asyncio.sleep(0)
        going_on.set()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        assert app.state("a") == 2
        app.close()

    asyncio.run(work())


@asynccontextmanager
async def served(app):
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def ask(port, method, path, body=None, **headers):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = b"" if body is None else json.dumps(body).encode()
    lines = {"host": "here", "connection": "close", "content-length": str(len(payload)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + payload)
    answer = await reader.read()
    writer.close()
    top, _, content = answer.partition(b"\r\n\r\n")
    status, *fields = top.decode().split("\r\n")
    return int(status.split()[1]), dict(field.lower().split(": ", 1) for field in fields), content


def test_a_desk_is_mounted_into_another_app(tmp_path):
    place = f"sqlite:///{tmp_path}/shop.db"
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    seen = []

    async def work():
        desk = Desk(store=place, transport=place)
        shop = Endpoint("shop", store=place, transport=place)

        @shop.handler("orders", key="order")
        def sell(state, message):
            seen.append(message.headers)
            return message["order"], [Out.reply({"sold": message["order"]})]

        @asynccontextmanager
        async def lifespan(app):
            with desk.answering():
                yield

        async def home(request):
            return PlainTextResponse("home")

        requests = DeskApp(desk)
        app = Starlette(routes=[Route("/", home), Mount("/requests", requests)], lifespan=lifespan)
        async with served(app) as port:
            assert (await ask(port, "GET", "/"))[2] == b"home"
            status, headers, content = await ask(port, "POST", "/requests/orders")
            assert (status, json.loads(content)["status"]) == (201, "open")
            where = headers["location"]
            assert where == f"/requests/orders/{json.loads(content)['id']}"
            consuming = asyncio.create_task(shop.aio.consume())
            status, _, _ = await ask(port, "POST", where, {"order": 7}, **trace)
            assert status == 202
            status, _, content = await ask(port, "GET", where, prefer="wait=30")
            assert (status, json.loads(content)["answer"]) == (200, {"sold": 7})
            assert (await ask(port, "POST", where, {"order": 8}))[0] == 409
            assert (await ask(port, "GET", "/requests/orders/no-id"))[0] == 400
            assert (await ask(port, "GET", "/requests/a/b/c"))[0] == 404
            assert (await ask(port, "PATCH", where))[0] == 405
            assert (await ask(port, "POST", where, "x" * BODY_BYTES_MAX))[0] == 413
            consuming.cancel()
            await asyncio.wait([consuming])
        requests.close()
        desk.close()
        shop.close()

    asyncio.run(work())
    assert seen == [trace]


def test_a_desk_is_awaited(tmp_path):
    async def work():
        queue = MemoryQueue()
        desk = Desk(store=MemoryLedger(), transport=queue)
        new = desk.issue()
        assert await desk.aio.put("orders", new)
        assert (await desk.aio.submit("orders", new, {"order": 7}, {"traceparent": "t"})).status == "submitted"
        assert (await desk.aio.status(new)).status == "submitted"
        (delivery,) = queue.lease(["orders"], 9, 1_000)
        assert unpack_message(delivery.payload).headers == {"traceparent": "t"}
        await desk.aio.forget(new)
        desk.close()

    asyncio.run(work())
