"""The reconcile server behind real sockets: who may ask, what ends a session, and who is served meanwhile."""

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.uri import parse_uri

from onefold.errors import Misuse
from onefold.net import http as serving
from onefold.net.websocket import REPLY_BYTES_MAX, WebSocket
from onefold.reconcile import Session, dial, exchange, reconcile, record
from onefold.reconcile.exchange import Opening, Trouble
from onefold.reconcile.peer import ReconcileLimits
from onefold.reconcile.records import MemoryRecords
from onefold.reconcile.server import ReconcileServer, ReconcileSettings
from onefold.tally import BooksDoNotBalance
from onefold.verdict import Verdict
from tests.lib.crowd import crowd
from tests.lib.reconciling import Client, Running, items, running, some, store

TOKEN = "s3cret"  # noqa: S105
MESSAGE = bytes((exchange.MESSAGE,))
OPEN = exchange.write_document(exchange.OPEN, Opening())
FIRST = Session(items(range(50, 150))).initiate()


def ids(numbers):
    return {record.id for record in some(numbers)}


@pytest.fixture(scope="module")
def served():
    """One server for all who leave it as it was."""
    with running(store(range(1_000)), writable=False) as server:
        yield server


def test_a_client_finds_fetches_and_pushes_over_a_socket():
    records = store(range(100, 3_000))
    with running(records) as server, server.connect() as socket:
        client = Client(socket)
        have, need = client.find(items(range(2_900)))
        assert (have, need) == (ids(range(100)), ids(range(2_900, 3_000)))
        client.open()
        socket.send(exchange.write_ids(need))  # several on their way: answered in order
        socket.send(exchange.write_records(exchange.PUSH, some(range(100))))
        assert ids(range(2_900, 3_000)) == {record.id for record in exchange.read_records(bytes(socket.recv(60)), 32)}
        assert exchange.read_outcomes(bytes(socket.recv(60))) == [exchange.STORED] * 100
        assert len(records) == 3_000
        assert server.figure("onefold_reconcile_sessions_total") == 2
        assert server.figure("onefold_reconcile_fetched_total") == 100
        assert server.figure('onefold_reconcile_pushed_total{outcome="stored"}') == 100
        assert server.figure("onefold_reconcile_arrived_total") == 100
        assert server.figure("onefold_reconcile_pending") == 0
        socket.close()
        server.wait_for("onefold_reconcile_open_sessions", 0)
    with pytest.raises(Misuse, match="closed"):
        len(records)


def test_our_websocket_does_not_wait_for_a_greeting(served):
    channel = WebSocket(served.url, greeted=False, answer_s=20)
    with contextlib.closing(channel):
        assert Client(channel).find(items(range(999))) == (set(), ids([999]))


def test_text_on_the_same_connection_is_nip77(served):
    with served.connect() as socket:
        assert Client(socket).open().records == 1_000
        socket.send(json.dumps(["NEG-OPEN", "s", {}, FIRST.hex()]))
        told = json.loads(socket.recv(60))
        assert told[:2] == ["NEG-MSG", "s"]
        assert Client(socket).ask(MESSAGE + FIRST) == MESSAGE + bytes.fromhex(told[2])
        socket.send(json.dumps(["NEG-CLOSE", "s"]))
        socket.send("hello")
        assert json.loads(socket.recv(60))[0] == "NOTICE"


def test_a_browser_and_a_watcher_are_answered(served):
    status, told = served.get("/")
    assert (status, told["onefold"], told["id_size"], told["writable"]) == (200, "reconcile", 32, False)
    assert served.get("/healthz")[1]["status"] == "ok"
    assert served.get("/nowhere")[0] == 404
    assert "onefold_reconcile_open_sessions" in served.get("/metrics")[1]


def test_without_a_token_web_pages_are_kept_out(served):
    assert served.get("/", Origin="http://example.org")[0] == 403
    assert served.get("/", Host="example.org")[0] == 403
    with pytest.raises(InvalidStatus, match="403"):
        served.connect(origin="http://example.org")


def test_a_path_that_is_none_is_refused(served):
    with pytest.raises(Misuse, match="404"):
        WebSocket(served.url + "x", greeted=False)


def test_a_token_is_asked_for():
    with running(store(range(3)), token=TOKEN) as server:
        assert server.get("/healthz")[0] == 200
        assert server.get("/metrics")[0] == 401
        assert server.get("/", Authorization=f"Bearer {TOKEN}")[0] == 200
        for wrong in (None, "wrong"):
            with pytest.raises(Misuse, match="401"):
                WebSocket(server.url, token=wrong, greeted=False)
        with contextlib.closing(WebSocket(server.url, token=TOKEN, greeted=False)) as channel:
            assert Client(channel).open().records == 3
        assert TOKEN not in repr(server.server.settings)


def test_to_listen_to_everybody_needs_a_token():
    with pytest.raises(Misuse, match="needs a token"):
        ReconcileServer(store([]), ReconcileSettings(host="0.0.0.0", port=0))  # noqa: S104


def test_a_message_that_is_too_large_closes_the_connection(served):
    with served.connect() as socket:
        socket.send(bytes((1 << 20) + 1))
        with pytest.raises(ConnectionClosed, match="1009"):
            socket.recv(60)


def test_silence_closes_the_connection_and_is_named():
    with running(store(range(3)), limits=ReconcileLimits(idle_s=0.2)) as server, server.connect() as socket:
        Client(socket).open()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(60)
        assert str(closed.value.rcvd) == "1000 (OK) idle for 0.2 s"
        server.wait_for("onefold_reconcile_open_sessions", 0)


class Slow(MemoryRecords):
    """A store that takes its time to open a session."""

    def snapshot(self):
        threading.Event().wait(5)
        return super().snapshot()


def test_the_time_that_the_server_takes_is_no_silence_of_its_peer():
    records = Slow()
    records.add(some(range(300)))
    limits = ReconcileLimits(look_silence_s_max=4, idle_s=4)
    with running(records, limits=limits) as server, server.connect() as socket:
        assert Client(socket).find(items(range(5, 300))) == (set(), ids(range(5)))


def test_a_record_that_was_lost_inside_the_server_shows_on_the_metrics_and_fails_its_stop():
    server = ReconcileServer(store(range(3)), ReconcileSettings(port=0))
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(server.run)
        assert server.ready.wait(60)
        server.books.arrive(1)
        assert Running(server).figure("onefold_reconcile_pending") == 1
        server.stop()
        with pytest.raises(BooksDoNotBalance, match="1 in != 0 first"):
            stopped.result(60)


@pytest.mark.proof
def test_many_clients_at_once_beside_a_busy_processor_all_end_exact(tmp_path):
    """A server process over SQLite and as many client processes; `./run soak reconcile` is the long form."""
    told = crowd(tmp_path, clients=12, records=20_000, differences=50, burners=2)
    assert told["sessions at once"] > 1


def test_clients_at_once_all_end_exact(tmp_path):
    crowd(tmp_path, clients=2, records=2_000, differences=20)


def test_too_many_errors_close_the_connection(served):
    with served.connect() as socket:
        for _ in range(8):
            assert Client(socket).trouble(b"Z").error == "bad_frame"
        with pytest.raises(ConnectionClosed, match="8 errors, troubles_max"):
            socket.recv(60)


def test_who_does_not_read_is_cut_off():
    limits = ReconcileLimits(write_s=0.3)
    records = store(range(8_000))
    with running(records, limits=limits) as server, server.connect() as slow:
        slow.send(OPEN)
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        asked = exchange.write_ids(list(ids(range(8_000))))
        with contextlib.suppress(ConnectionClosed, OSError):
            for _ in range(40):  # 20 MB of answers that nobody reads
                slow.send(asked)
        server.wait_for("onefold_reconcile_open_sessions", 0)
        assert server.figure('onefold_reconcile_errors_total{error="unread"}') == 1


def test_pings_of_who_does_not_read_are_not_piled_up_and_he_is_cut_off_in_the_end(monkeypatch):
    monkeypatch.setattr(serving, "LINGER_S", 0.1)
    with running(store(range(3))) as server:
        hand = ClientProtocol(parse_uri(server.url))
        with contextlib.closing(socket.socket()) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.connect((hand.uri.host, hand.uri.port))
            hand.send_request(hand.connect())
            slow.sendall(b"".join(hand.data_to_send()))
            hand.receive_data(slow.recv(4_096))
            for _ in range(1_000):
                hand.send_ping(b"x" * 125)
            pings = b"".join(hand.data_to_send())
            server.wait_for("onefold_connections", 2)
            for _ in range(60):  # 8 MB: more than the kernel holds
                slow.sendall(pings)
            hand.send_close(1000)
            slow.sendall(b"".join(hand.data_to_send()))
            server.wait_for("onefold_connections", 1)


def test_a_shutdown_tells_every_peer():
    with running(store(range(3))) as server, server.connect() as socket:
        Client(socket).open()
        server.server.stop()
        with pytest.raises(ConnectionClosed, match="1012"):
            socket.recv(60)


def varint(number: int) -> bytes:
    digits = [number & 127]
    while number := number >> 7:
        digits.append(number & 127 | 128)
    return bytes(reversed(digits))


STEP = varint(2) + b"\0"
COSTLY = MESSAGE + b"\x61" + (STEP + b"\1" + b"x" * 16) * 6_000  # fingerprints that match nothing: each is to be split
HOSTILE = {  # how it ends, and what it sends again and again
    "rounds": MESSAGE + b"\x61",
    "bytes": COSTLY,
    "bad_message": MESSAGE + b"\x61" + bytes(range(256)) * 512,
    "bad_frame": b"P" + b"\xff" * (128 << 10),
    "frame": bytes((1 << 20) + 1),
    "needs": exchange.write_ids([b"n" * 32] * 2_000),
    "pushes": b"P",
}


def attack(server, name: str, ended: dict[str, str]) -> None:
    with server.connect() as socket:
        client = Client(socket)
        client.open()
        try:
            while True:
                answer = client.ask(HOSTILE[name])
                if answer[0] == exchange.ERROR:
                    ended[name] = exchange.read_document(Trouble, answer).error
                    return
        except ConnectionClosed as error:
            ended[name] = "frame" if error.rcvd is not None and error.rcvd.code == 1009 else str(error)


def test_every_hostile_session_ends_by_a_named_limit_while_an_honest_peer_is_served():
    limits = ReconcileLimits(bytes_max=6 << 20, needs_max=5_000, pushes_max=5_000)
    with running(store(range(20_000)), limits=limits) as server:
        ended: dict[str, str] = {}
        threads = [threading.Thread(target=attack, args=(server, name, ended)) for name in HOSTILE]
        for thread in threads:
            thread.start()
        slowest, served = 0.0, 0
        mine = items(range(5, 20_005))
        while served < 3 or any(thread.is_alive() for thread in threads):
            began = time.perf_counter()
            with server.connect() as socket:
                assert Client(socket).find(mine) == (ids(range(20_000, 20_005)), ids(range(5)))
            slowest = max(slowest, time.perf_counter() - began)
            served += 1
        for thread in threads:
            thread.join()
        assert ended == {name: name for name in HOSTILE}
        assert slowest < 10  # of some four messages, on a machine that does other things too
        server.wait_for("onefold_reconcile_open_sessions", 0)


def test_sessions_have_seats_and_a_seat_is_free_again_when_a_peer_goes():
    with running(store(range(3)), limits=ReconcileLimits(sessions_max=1)) as server, server.connect() as first:
        Client(first).open()
        with server.connect() as second:
            assert Client(second).trouble(OPEN).error == "busy"
            first.close()
            server.wait_for("onefold_reconcile_open_sessions", 0)
            assert Client(second).open().records == 3


def test_a_server_that_is_stopped_before_it_answers_ends():
    server = ReconcileServer(MemoryRecords(), ReconcileSettings(port=0))
    server.stop()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_record_that_no_client_can_receive_is_named_and_the_others_are_pulled():
    here, there = MemoryRecords(), MemoryRecords()
    large = record(2, bytes(REPLY_BYTES_MAX))
    there.add([record(1, b"before"), large, record(3, b"behind")])
    there.add([record(4 + n, bytes(6 << 20)) for n in range(3)])  # each can be received, all in one frame cannot
    limits = ReconcileLimits(message_bytes_max=64 << 20, record_bytes_max=32 << 20)
    with running(there, limits=limits) as server:
        done = reconcile(here, dial(server.url))
    assert (len(here), done.connections, done.unpulled) == (5, 1, 1)
    assert done.pulled.count(Verdict.REJECT, "not_there") == 1
