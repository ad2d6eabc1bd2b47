"""The desk over HTTP: a real server, in a thread or in a process that is killed."""

import contextlib
import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import pytest

from onefold.outbox import Out
from onefold.outbox.desk import Desk, DeskServer, DeskSettings, new_id
from onefold.outbox.endpoint import Endpoint

ORDER = {"order": 7, "sum": 20}


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Client:
    def __init__(self, url, token=None):
        self.address, self.token = url.removeprefix("http://"), token

    def ask(self, method, path, body=None, **headers):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with contextlib.closing(http.client.HTTPConnection(self.address, timeout=60)) as client:
            client.request(method, path, data, {**sent, **headers})
            reply = client.getresponse()
            told = reply.read()
        found = {name.lower(): value for name, value in reply.getheaders()}
        is_json = found.get("content-type") == "application/json"
        return Reply(reply.status, json.loads(told) if is_json else told, found)

    def new(self):
        return self.ask("POST", "/orders").headers["location"]


def sold(state, message):
    sold = (state or {"sold": 0})["sold"] + message["sum"]
    return {"sold": sold}, [Out.reply({"sold": sold})]


def places(folder):
    return {"store": f"sqlite:///{folder}/d.db", "transport": f"sqlite:///{folder}/q.db"}


@contextlib.contextmanager
def running(folder, *, window_s=86_400, queues=None, **settings):
    """A desk in a thread."""
    desk = Desk(**places(folder), window_s=window_s, queues=queues)
    server = DeskServer(desk, DeskSettings(port=0, **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.ready.wait(60)
        yield Client(server.url, settings.get("token"))
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def shop(tmp_path):
    """Who handles the orders, when told to."""
    with Endpoint("shop", **places(tmp_path)) as app:
        app.handler("orders", key="order")(sold)
        yield app


@pytest.fixture
def working(shop):
    """The shop is open."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: shop.consume(stop=stop))
    thread.start()
    yield shop
    stop.set()
    thread.join(60)


def test_a_request_goes_its_way(tmp_path, working):
    with running(tmp_path) as client:
        where = f"/orders/{new_id(time.time_ns() // 1_000_000)}"
        assert client.ask("PUT", where).status == 201
        again = client.ask("PUT", where)
        assert (again.status, again.body["status"]) == (200, "open")
        submitted = client.ask("POST", where, ORDER)
        assert submitted.status in (200, 202)
        answered = client.ask("GET", where, Prefer="wait=20")
        assert (answered.status, answered.body["status"], answered.body["answer"]) == (200, "answered", {"sold": 20})
        assert client.ask("POST", where, ORDER).body == answered.body
        assert client.ask("DELETE", where).status == 204
        assert client.ask("DELETE", where).status == 204
        assert client.ask("GET", where).status == 410
        assert client.ask("POST", where, ORDER).status == 410
        assert client.ask("PUT", where).status == 410
    assert working.state("7") == {"sold": 20}


def test_the_server_can_make_the_id_and_a_post_can_wait_for_its_answer(tmp_path, working):
    with running(tmp_path) as client:
        made = client.ask("POST", "/orders")
        assert made.status == 201
        assert made.headers["location"] == f"/orders/{made.body['id']}"
        reply = client.ask("POST", made.headers["location"], ORDER, Prefer="respond-async, wait=20")
        assert (reply.status, reply.body["answer"]) == (200, {"sold": 20})


def test_many_wait_at_once(tmp_path, working):
    replies = []
    with running(tmp_path) as client:

        def order(number):
            replies.append(client.ask("POST", client.new(), {"order": number, "sum": number}, Prefer="wait=20"))

        threads = [threading.Thread(target=order, args=[number]) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(reply.body["answer"]["sold"] for reply in replies) == list(range(12))


def test_a_post_that_is_repeated_sends_nothing_again_and_another_body_is_a_conflict(tmp_path, shop):
    with running(tmp_path) as client:
        where = client.new()
        for _ in range(3):
            assert client.ask("POST", where, ORDER).status == 202
        other = client.ask("POST", where, {**ORDER, "sum": 21})
        assert (other.status, "another body" in other.body["error"]) == (409, True)
        assert client.ask("POST", where.replace("orders", "refunds"), ORDER).status == 409
        assert shop.consume(until_empty=True).received == 1
    assert shop.state("7") == {"sold": 20}


def test_what_was_never_issued_is_not_there(tmp_path, shop):
    with running(tmp_path) as client:
        where = f"/orders/{new_id(time.time_ns() // 1_000_000)}"
        assert [client.ask(method, where).status for method in ("GET", "DELETE")] == [404, 404]
        assert client.ask("POST", where, ORDER).status == 404
    assert shop.world.queue.waiting() == {}


def test_an_expired_request_is_gone(tmp_path, shop):
    with running(tmp_path, window_s=0.4) as client:
        now = time.time_ns() // 1_000_000
        assert client.ask("PUT", f"/orders/{new_id(now - 1_000)}").status == 410
        assert client.ask("PUT", f"/orders/{new_id(now + 400_000)}").status == 400
        where = client.new()
        until = time.monotonic() + 60
        while (status := client.ask("GET", where).status) == 200 and time.monotonic() < until:
            pass
        assert status == 410
        assert client.ask("POST", where, ORDER).status == 410
        assert client.ask("PUT", where).status == 410
    assert shop.world.queue.waiting() == {}


def test_who_asks_for_a_websocket_is_answered_as_anybody_else(tmp_path, shop):
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    with running(tmp_path) as client:
        assert client.ask("GET", "/orders", **upgrade).status == 405
        assert client.ask("GET", client.new(), **upgrade).status == 200


def test_bad_requests_are_told_what_is_wrong(tmp_path, shop):
    with running(tmp_path, queues=["orders"]) as client:
        where = client.new()
        for body, told in [
            (b"{", "the body is not JSON"), (b"", "the body is not JSON"), (b"NaN", "NaN is not a number"),
            (b'{"sum": 20, "sum": 200}', 'the name "sum" is there twice in one object'),
        ]:  # fmt: skip
            reply = client.ask("POST", where, body)
            assert (reply.status, told in reply.body["error"]) == (400, True)
        assert client.ask("POST", where, b'"' + b"x" * 300_000 + b'"').status == 413
        assert client.ask("POST", "/orders", ORDER).status == 400
        assert client.ask("PUT", "/orders/7").status == 400
        assert client.ask("POST", "/refunds").status == 404
        assert client.ask("POST", "/desk").status == 404
        assert client.ask("GET", "/").status == 404
        assert client.ask("PATCH", where).status == 405
        assert client.ask("POST", where, ORDER).status == 202


def test_only_who_has_the_token_may_ask(tmp_path, shop):
    with running(tmp_path, token="secret") as client:  # noqa: S106
        assert client.ask("POST", "/orders").status == 201
        client.token = "other"  # noqa: S105
        assert client.ask("POST", "/orders").status == 401
        assert client.ask("GET", "/healthz").body == {"status": "ok"}
        assert client.ask("POST", "/healthz").status == 401, "there might be a queue of this name"


def test_there_is_something_to_watch(tmp_path, working):
    wanted = {
        'onefold_desk_requests_total{method="POST",status="201"} 1.0',
        'onefold_outbox_deliveries_total{endpoint="desk",reason="applied",verdict="FIRST"} 1.0',
    }
    with running(tmp_path) as client:
        assert client.ask("POST", client.new(), ORDER, Prefer="wait=20").status == 200
        until = time.monotonic() + 60  # an answer can be seen a moment before it is in the books
        while not wanted <= set(client.ask("GET", "/metrics").body.decode().splitlines()):
            assert time.monotonic() < until


def test_a_web_page_may_not_ask_without_a_token(tmp_path, shop):
    with running(tmp_path) as client:
        assert client.ask("POST", "/orders", Origin="http://evil.example").status == 403


def test_a_stop_answers_whoever_waits(tmp_path, shop):
    replies = []
    with running(tmp_path) as client:
        where = client.new()
        client.ask("POST", where, ORDER)
        thread = threading.Thread(target=lambda: replies.append(client.ask("GET", where, Prefer="wait=20")))
        thread.start()
        client.ask("GET", "/healthz")
        begun = time.monotonic()
    thread.join(60)
    assert time.monotonic() - begun < 10
    assert replies[0].body["status"] == "submitted"


class Process:
    """A desk in a process of its own."""

    def __init__(self, folder, *words, port=0):
        named = [f"--{name}={url}" for name, url in places(folder).items()]
        command = [sys.executable, "-m", "onefold.cli.main", "serve", "desk", *named, f"--port={port}", "--json"]
        self.process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=60)
        self.told = json.loads(line)
        self.client = Client(self.told["url"])

    def end(self, number):
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def stall(file, table):
    """From now on the database refuses to write to a table: whoever tries has died before it, as far as that goes."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            f"create trigger stalled before insert on {table} begin select raise(abort, 'no room'); end;"
        )


def go_on(file):
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript("drop trigger stalled;")


def test_a_desk_that_is_killed_between_the_steps_goes_on_where_it_was(tmp_path, shop):
    first = Process(tmp_path, "--queues=orders")
    where = first.client.new()
    stall(tmp_path / "q.db", "outbox_queue")
    reply = first.client.ask("POST", where, ORDER)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    first.end(signal.SIGKILL)
    go_on(tmp_path / "q.db")
    second = Process(tmp_path)
    assert second.client.ask("GET", where).body["status"] == "submitted"
    assert shop.world.queue.waiting() == {}
    assert second.client.ask("POST", where, ORDER).status == 202
    second.client.ask("POST", where, ORDER)
    shop.consume(until_empty=True)
    assert second.client.ask("GET", where, Prefer="wait=20").body["answer"] == {"sold": 20}
    code, said = second.end(signal.SIGTERM)
    assert (code, "taking requests for all queues at http://127.0.0.1:" in said) == (0, True)
    assert shop.state("7") == {"sold": 20}
    assert shop.world.tokens.live().tokens == 0
    assert shop.world.entities.stranded(2**62, 10) == []


def test_a_wrong_address_is_one_line_without_its_password(tmp_path):
    command = [sys.executable, "-m", "onefold.cli.main", "serve", "desk", f"--transport=sqlite:///{tmp_path}/q.db"]
    environ = {**os.environ, "ONEFOLD_STORE": "http://user:hush@h/"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert done.returncode == 2
    assert done.stderr.startswith("onefold: ")
    assert "http://..." in done.stderr
    assert "hush" not in done.stderr
