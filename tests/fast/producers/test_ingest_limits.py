"""Clients that are too large, too slow or too many."""

import socket
import threading

from onefold.producers.server import IngestLimits
from onefold.producers.topic import TopicSettings
from onefold.producers.wire import CONTENT_TYPE, WireStatus, decode_reply
from tests.lib.ingesting import running

HEAD = b"POST /topics/t/messages HTTP/1.1\r\nHost: localhost\r\n"


def raw(server, *pieces):
    """Send bytes as they are; all that comes back until the server closes."""
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        for piece in pieces:
            client.sendall(piece)
        answer = b""
        while data := client.recv(65_536):
            answer += data
    return answer


def test_a_large_body_is_refused_whatever_its_head_says(tmp_path):
    with running(tmp_path, limits=IngestLimits(body_bytes_max=10_000)) as server:
        for size in (10_001, 15_000, 300_000):
            refused = server.ask("POST", "/topics/t/hooks", b"x" * size, {"Idempotency-Key": "k"})
            assert (refused.status, refused.body) == (413, {"error": "the body has more than 10,000 bytes, the limit"})
        binary = server.ask("POST", "/topics/t/messages", b"x" * 10_001, {"Content-Type": CONTENT_TYPE})
        assert (binary.status, decode_reply(binary.body).status) == (413, WireStatus.REFUSED)
        chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
        answer = raw(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 4)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer
        assert server.ask("POST", "/topics/t/hooks", b"x" * 10_000, {"Idempotency-Key": "k"}).status == 200
        assert server.figure("onefold_in_hand_bytes") == 0


def test_a_body_that_is_too_slow_is_given_up(tmp_path):
    with running(tmp_path, limits=IngestLimits(body_s=0.2, linger_s=0.1)) as server:
        answer = raw(server, HEAD + b"Content-Length: 100\r\n\r\n", b"{")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the body did not come within 0.2 s" in answer


def test_a_head_that_is_too_slow_or_too_long_is_given_up(tmp_path):
    with running(tmp_path, limits=IngestLimits(head_s=0.2, keep_alive_s=0.1)) as server:
        assert raw(server, HEAD) == b""
        assert raw(server) == b""
        kept = raw(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        assert kept.count(b"HTTP/1.1 200") == 1
        assert raw(server, b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000).startswith(b"HTTP/1.1 400 ")
        assert raw(server, b"\x16\x03\x01 no http\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_the_limit_of_a_head_is_exact_however_it_comes(tmp_path):
    with running(tmp_path, limits=IngestLimits(head_bytes_max=1_000, keep_alive_s=0.1)) as server:
        start = b"GET /healthz?x=1 HTTP/1.1\r\nHost: localhost\r\nX: "
        for size, status in ((1_000, b"200"), (1_001, b"431"), (1_500, b"431")):
            head = start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"
            assert len(head) == size
            answer = raw(server, head)
            assert answer.startswith(b"HTTP/1.1 " + status), (size, answer)
        assert b"the head of the request has 1,500 bytes, the limit is 1,000" in answer


def test_a_body_whose_length_is_told_in_two_ways_is_refused(tmp_path):
    with running(tmp_path) as server:
        smuggled = b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
        answer = raw(server, HEAD + smuggled + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"Transfer-Encoding and Content-Length are both there" in answer
        assert answer.count(b"HTTP/1.1") == 1, "and what follows is not read as a request"


def test_connections_leave_files_to_the_stores(tmp_path, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (8, 8))
    with running(tmp_path, limits=IngestLimits(connections_max=1_000)) as server:
        host, port = server.address.split(":")
        held = [socket.create_connection((host, int(port)), timeout=60) for _ in range(6)]
        assert server.ask("GET", "/healthz").body == {"error": "too many connections"}
        for client in held:
            client.close()


def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path):
    with running(tmp_path) as server:
        host, port = server.address.split(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        server.wait_for("onefold_in_hand_bytes", 0)
        server.wait_for("onefold_connections", 1)  # the one that asks


def test_a_connection_too_many_is_told_so(tmp_path):
    with running(tmp_path, limits=IngestLimits(connections_max=3)) as server:
        with server.socket("t", "p") as first, server.socket("t", "q"):
            assert server.ask("GET", "/healthz").status == 200
            with server.socket("t", "r"):
                full = server.ask("GET", "/healthz")
                assert (full.status, full.body) == (503, {"error": "too many connections"})
            first.send(1, (0, b"x"))
            assert first.reply().status == WireStatus.OK
        server.wait_for("onefold_connections", 1)


def test_bodies_that_are_too_much_together_are_busy(tmp_path):
    with running(tmp_path, limits=IngestLimits(in_hand_bytes_max=1_000)) as server, server.socket("t", "s") as session:
        with server.disk.hold() as disk:
            waiting = threading.Thread(target=server.publish, args=("t", "p", (0, "x" * 700)))
            waiting.start()
            assert disk.held.wait(60)
            busy = server.publish("t", "q", (0, "x" * 700))
            assert (busy.status, busy.headers["retry-after"]) == (429, "1")
            session.send(1, (0, b"x" * 700))
            replies, code = session.rest()
            assert ([reply.status for reply in replies], code) == ([WireStatus.BUSY], 1013)
        waiting.join()
        server.wait_for("onefold_in_hand_bytes", 0)
        assert server.publish("t", "q", (0, "x" * 700)).status == 200


def test_too_many_messages_are_refused(tmp_path):
    with running(tmp_path, limits=IngestLimits(messages_max=3)) as server:
        assert server.publish("t", "p", *[(i, i) for i in range(3)]).status == 200
        many = server.publish("t", "p", *[(i, i) for i in range(4)])
        assert (many.status, many.body) == (400, {"error": "messages: are 4, at most 3 are allowed"})


def test_too_many_topics_and_producers_are_refused(tmp_path):
    with running(tmp_path, TopicSettings(producers_max=1), topics_max=1) as server:
        assert server.publish("t", "p", (0, 0)).status == 200
        assert server.publish("u", "p", (0, 0)).status == 400
        full = server.publish("t", "q", (0, 0))
        assert (full.status, full.body["receipts"][0]["reason"]) == (503, "producers_full")
        assert server.ask("POST", "/topics/t/producers", {"name": "q"}).status == 429
