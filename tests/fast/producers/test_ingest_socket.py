"""The websocket: pipelined, in order, and nothing is judged behind a failure."""

import threading

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from onefold.producers.server import IngestLimits
from onefold.producers.topic import TopicSettings
from onefold.producers.wire import WireStatus, decode_reply, encode_request
from onefold.verdict import Verdict
from tests.lib.ingesting import Running, running, stored

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
TOKEN = "s3cret"  # noqa: S105


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("topics")
    with running(folder) as server:
        yield server


def test_a_session_opens_with_what_the_client_must_know(server):
    with server.socket("hello", "p") as socket:
        assert socket.hello == {
            "name": "p",
            "epoch": 1,
            "last_sequence_id": -1,
            "floor": -1,
            "message_bytes_max": 1 << 20,
            "batch_messages_max": 10_000,
            "batch_bytes_max": 4 << 20,
        }
        socket.send(1, (7, b"x"))
        assert socket.reply().receipts == [(Verdict.FIRST, "new", 1)]
        with server.socket("hello", "p") as second:
            assert (second.epoch, second.hello["last_sequence_id"]) == (2, 7)
            socket.send(2, (8, b"x"))
            assert socket.reply().receipts == [(Verdict.REJECT, "stale_epoch", -1)]  # an answer for good: it stays open
            socket.send(3, (8, b"x"))
            assert socket.reply().request == 3
    with server.socket("hello") as nameless, server.socket("hello") as another:
        assert nameless.name != another.name


def test_requests_are_answered_in_order_however_many_are_outstanding(server):
    with server.socket("order", "p") as socket:
        for i in range(100):
            socket.send(i, (2 * i, b"a"), (2 * i + 1, b"b"))
        replies = [socket.reply() for _ in range(100)]
        assert [reply.request for reply in replies] == list(range(100))
        assert all(reply.status == WireStatus.OK for reply in replies)
        offsets = [offset for reply in replies for _, _, offset in reply.receipts]
        assert offsets == list(range(1, 201))
        socket.send(5, (199, b"b"), (200, b"c"))
        assert [str(verdict) for verdict, _, _ in socket.reply().receipts] == ["REPEAT", "FIRST"]
        socket.send(6)
        assert socket.reply().receipts == []
    assert [record.sequence for record in stored(server.folder, "order")] == list(range(201))


def test_sequences_need_not_be_neighbours(server):
    with server.socket("offsets", "p") as socket:
        for i in range(50):
            socket.send(i, (100 * i, b"line"))
        assert [socket.reply().receipts[0][0] for _ in range(50)] == [Verdict.FIRST] * 50


def test_after_a_failed_store_nothing_behind_it_is_judged(tmp_path):
    with running(tmp_path) as server:
        with server.socket("t", "p") as socket:
            socket.send(0, (0, b"stored"))
            assert socket.reply().status == WireStatus.OK
            with server.disk.hold() as disk:
                socket.send(1, (1, b"fails"))
                assert disk.held.wait(60)
                in_hand = server.figure("onefold_in_hand_bytes")
                socket.send(2, (2, b"fails"))
                socket.send(3, (3, b"fails"))
                server.wait_for("onefold_in_hand_bytes", 3 * in_hand)
                disk.broken = True
            replies, code = socket.rest()
            assert ([(reply.request, reply.status) for reply in replies], code) == (
                [(1, WireStatus.FAILED), (2, WireStatus.FAILED), (3, WireStatus.FAILED)],
                1013,
            )
            assert "No space left" in replies[0].text
            assert replies[1].text == "not judged: a request before it has to be sent again"
        server.disk.broken = False
        with server.socket("t", "p") as socket:
            assert (socket.epoch, socket.hello["last_sequence_id"]) == (2, 0)
            for i in (1, 2, 3):
                socket.send(i, (i, b"fails"))
            assert [socket.reply().receipts[0][0] for _ in range(3)] == [Verdict.FIRST] * 3
        assert server.figure("onefold_in_hand_bytes") == 0
    assert [record.sequence for record in stored(tmp_path)] == [0, 1, 2, 3]


def publish_all(server: Running, name: str, count: int) -> None:
    """A client that keeps to the rules: in order, many outstanding, and again from the first without a receipt."""
    acknowledged = 0
    while acknowledged < count:
        try:
            with server.socket("t", name) as socket:
                acknowledged = max(acknowledged, socket.hello["last_sequence_id"] + 1)
                sent = acknowledged
                while acknowledged < count:
                    while sent < count and sent - acknowledged < 12:
                        socket.send(sent, (sent, str(sent).encode()))
                        sent += 1
                    reply = socket.reply()
                    if reply.status != WireStatus.OK or reply.receipts[0][0] == Verdict.UNSURE:
                        break
                    assert reply.request == acknowledged
                    acknowledged += 1
        except (ConnectionClosed, InvalidStatus):
            continue


def test_a_disk_that_fails_now_and_then_costs_no_message_and_no_order(tmp_path):
    with running(tmp_path) as server:
        server.publish("t", "x", (0, 0))
        server.disk.fail_every = 5
        clients = [threading.Thread(target=publish_all, args=(server, f"p{i}", 100)) for i in range(3)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
        server.disk.fail_every = 0
    for i in range(3):
        kept = [record.sequence for record in stored(tmp_path) if record.producer == f"p{i}"]
        assert kept == list(range(100))


def test_after_an_unsure_message_the_session_ends(tmp_path):
    with running(tmp_path) as server, server.socket("t", "p") as socket:
        with server.disk.hold() as disk:
            other = threading.Thread(target=server.publish, args=("t", "p", (5, 5)), kwargs={"epoch": 1})
            other.start()
            assert disk.held.wait(60)
            socket.send(1, (5, b"5"))
            reply = socket.reply()
            assert (reply.status, reply.receipts) == (WireStatus.OK, [(Verdict.UNSURE, "in_flight", -1)])
            assert socket.rest() == ([], 1013)
        other.join()


def test_a_full_queue_is_busy_and_ends_the_session(tmp_path):
    with running(tmp_path, TopicSettings(pending_bytes_max=1_000)) as server, server.socket("t", "p") as socket:
        with server.disk.hold() as disk:
            others = [threading.Thread(target=server.publish, args=("t", "q", (0, "x"))),
                      threading.Thread(target=server.publish, args=("t", "r", (0, "x" * 900)))]  # fmt: skip
            others[0].start()
            assert disk.held.wait(60)
            others[1].start()
            server.wait_for("onefold_queued_bytes", 1_102)
            busy = server.publish("t", "s", (0, "x" * 900))
            assert (busy.status, busy.headers["retry-after"]) == (429, "1")
            socket.send(1, (0, b"x" * 900))
            replies, code = socket.rest()
            assert ([(reply.request, reply.status) for reply in replies], code) == ([(1, WireStatus.BUSY)], 1013)
        for other in others:
            other.join()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "byte 0: a head has 18 bytes, there are 0"),
        (b"x" * 40, "byte 0: begins with b'xxxx', must begin with b'OFB1'"),
        (encode_request(9, "p", 1, [(1, b"abc")])[:-1], "byte 31: 3 bytes of payload must follow, there are 2"),
        (encode_request(9, "q", 1, []), "the producer is 'q', this session's is 'p'"),
        (encode_request(9, "p", 3, []), "the epoch is 3, this session's is 1"),
        (encode_request(9, "p", None, []), "the epoch is 0, this session's is 1"),
    ],
)
def test_a_wrong_request_is_refused_and_what_came_before_it_is_stored(tmp_path, data, told):
    with running(tmp_path) as server, server.socket("t", "p") as socket:
        socket.send(8, (0, b"before"))
        socket.websocket.send(data)
        replies, code = socket.rest()
        assert code == 1007
        assert [(reply.status, reply.text) for reply in replies] == [(WireStatus.OK, ""), (WireStatus.REFUSED, told)]
        assert replies[1].request == (9 if data.startswith(b"OFB1") else 0)
    assert len(stored(tmp_path)) == 1


def test_text_is_no_request(server):
    with server.socket("text", "p") as socket:
        socket.send(1, (0, b"before"))
        socket.websocket.send("hello")
        replies, code = socket.rest()
        assert ([reply.status for reply in replies], code) == ([WireStatus.OK], 1003)


def test_an_upgrade_that_is_refused_says_why(tmp_path):
    with running(tmp_path, create=False, token=TOKEN) as server:

        def refused(topic: str, name: str, token: str | None = TOKEN) -> tuple[int, bytes]:
            client = Running(server.url, token)
            with pytest.raises(InvalidStatus) as caught, client.socket(topic, name):
                pass
            response = caught.value.response
            return response.status_code, bytes(response.body)

        assert refused("t", "p") == (404, b'{"error":"there is no topic \'t\'"}')
        server.ask("PUT", "/topics/t")
        assert refused("t", "p", None)[0] == refused("t", "p", "wrong")[0] == 401
        assert refused("t", "x" * 201)[0] == 400
        assert refused("%2e", "p")[0] == 400
        server.disk.broken = True
        assert refused("t", "p")[0] == 503
        server.disk.broken = False
        with server.socket("t", "p") as socket:
            socket.send(1, (0, b"x"))
            assert socket.reply().status == WireStatus.OK


def test_at_most_so_many_requests_are_read_ahead(tmp_path):
    with running(tmp_path, limits=IngestLimits(outstanding_max=4)) as server, server.socket("t", "p") as socket:
        with server.disk.hold() as disk:
            socket.send(0, (0, b"x"))
            assert disk.held.wait(60)
            one = server.figure("onefold_in_hand_bytes")
            for i in range(1, 20):
                socket.send(i, (i, b"x"))
            server.wait_for("onefold_in_hand_bytes", 4 * one)
            for _ in range(20):
                assert server.figure("onefold_in_hand_bytes") == 4 * one
        assert [socket.reply().request for _ in range(20)] == list(range(20))


def test_a_message_over_the_limit_ends_the_connection(tmp_path):
    with running(tmp_path, limits=IngestLimits(body_bytes_max=1_000)) as server, server.socket("t", "p") as socket:
        assert socket.hello["batch_bytes_max"] == 1_000
        socket.send(1, (0, b"x" * 2_000))
        assert socket.rest() == ([], 1009)


def test_shutting_down_answers_what_was_read(tmp_path):
    with running(tmp_path) as server, server.socket("t", "p") as socket:
        for i in range(10):
            socket.send(i, (i, b"x"))
        assert socket.reply().request == 0
        server.stop()
        replies, code = socket.rest()
        assert code == 1012
        answered = [reply.request for reply in replies]
        assert answered == list(range(1, len(answered) + 1))
    assert len(stored(tmp_path)) == 1 + len(answered)


def test_a_reply_is_what_the_contract_says(server):
    with server.socket("wire", "p") as socket:
        socket.send(258, (0, b""))
        data = socket.websocket.recv(timeout=60)
        assert isinstance(data, bytes)
        assert data[:13] == b"OFR1\x02\x01\x00\x00\x00\x01\x00\x00\x00"
        assert decode_reply(data).receipts == [(Verdict.FIRST, "new", 1)]
