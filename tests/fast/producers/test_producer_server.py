"""The producer against the real server: through cut connections, restarts and refusals, each message once, in order."""

import http.server
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import pytest

from onefold.errors import Busy, Misuse
from onefold.producers.client import Producer, ProducerLimits
from onefold.producers.records import Kind
from onefold.producers.server import IngestLimits, IngestServer, IngestSettings
from onefold.producers.topic import Topics, TopicSettings
from onefold.verdict import Verdict
from tests.lib.cutting_proxy import CuttingProxy
from tests.lib.examples import proof

TAKEN = "another producer took this name"


@contextmanager
def serving(folder, topic_settings=None, **settings):
    server = IngestServer(Topics(folder, topic_settings), IngestSettings(**{"port": 0, **settings}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.ready.wait(60)
        yield server.url
    finally:
        server.stop()
        thread.join()


def port_of(url):
    return urlsplit(url).port


def messages(folder):
    with Topics(folder) as topics:
        log = topics.topic("t").log
        return [(r.producer, r.sequence, r.payload) for r in log.read(log.start) if r.kind == Kind.MESSAGE]


def test_messages_go_over_a_websocket_in_batches(tmp_path):
    with serving(tmp_path) as url, Producer("t", at=url, name="till 1/ä") as producer:
        futures = [producer.send_async(b"%d" % i) for i in range(3_000)]
        producer.flush()
        assert [future.result().verdict for future in futures] == [Verdict.FIRST] * 3_000
        offsets = [future.result().offset for future in futures]
        assert offsets == sorted(offsets)
        assert producer.last_sequence_id == 2_999
        assert producer.send(b"last").offset == offsets[-1] + 1
    found = messages(tmp_path)
    assert found[:-1] == [("till 1/ä", i, b"%d" % i) for i in range(3_000)]


def test_a_restarted_program_goes_on(tmp_path):
    with serving(tmp_path) as url:
        for part in range(3):
            with Producer("t", at=url.replace("http", "ws"), name="p") as producer:
                assert producer.last_sequence_id == 10 * part - 1
                for _ in range(10):
                    producer.send_async(b"x")
    assert [sequence for _, sequence, _ in messages(tmp_path)] == list(range(30))


def until_cut(proxy, cuts):
    """Numbers to send, until the proxy has cut so often."""
    for i in range(50_000):
        if i >= 2_000 and proxy.cuts >= cuts:
            return
        yield i


@pytest.mark.parametrize(("seed", "cuts"), [(0, 6), proof(0, 20), proof(1, 20)])
def test_connections_that_are_cut_anywhere_lose_nothing_and_double_nothing(tmp_path, seed, cuts):
    payloads, futures = [], []
    with (
        serving(tmp_path) as url,
        CuttingProxy(port_of(url), seed, cuts=cuts) as proxy,
        Producer("t", at=proxy.url, name="p", limits=ProducerLimits(unanswered_max=500)) as producer,
    ):
        for i in until_cut(proxy, cuts):
            payloads.append(b"%d %s" % (i, b"x" * (i % 97)))
            futures.append(producer.send_async(payloads[-1]))
    assert proxy.cuts >= cuts
    assert {future.result().verdict for future in futures} <= {Verdict.FIRST, Verdict.REPEAT}
    assert messages(tmp_path) == [("p", i, payload) for i, payload in enumerate(payloads)]


def test_own_ids_with_holes_survive_cuts_too(tmp_path):
    ids = []
    with (
        serving(tmp_path, TopicSettings(memory="gaps")) as url,
        CuttingProxy(port_of(url), 5, cuts=10) as proxy,
        Producer("t", at=proxy.url, name="p", limits=ProducerLimits(unanswered_max=200)) as producer,
    ):
        for i in until_cut(proxy, 10):
            ids.append(i * i)
            producer.send_async(bytes(50), i * i)
    assert [sequence for _, sequence, _ in messages(tmp_path)] == ids


def test_without_deduplication_cuts_make_duplicates(tmp_path):
    sent = 0
    with (
        serving(tmp_path, TopicSettings(deduplicate=False)) as url,
        CuttingProxy(port_of(url), 1, cuts=20) as proxy,
        Producer("t", at=proxy.url, name="p", limits=ProducerLimits(unanswered_max=500)) as producer,
    ):
        for i in until_cut(proxy, 20):
            producer.send_async(b"%d" % i)
            sent += 1
    counts = Counter(sequence for _, sequence, _ in messages(tmp_path))
    assert set(counts) == set(range(sent))
    assert max(counts.values()) > 1


SERVER = """
import sys
from pathlib import Path
from onefold.producers.server import IngestServer, IngestSettings
from onefold.producers.topic import Topics
server = IngestServer(Topics(Path(sys.argv[1])), IngestSettings(port=int(sys.argv[2])))
server.run(lambda url: print(url, flush=True))
"""


@pytest.mark.parametrize("count", [1_500, proof(6_000)])
def test_a_server_that_is_killed_under_load_loses_nothing_and_doubles_nothing(tmp_path, count):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start():
        child = subprocess.Popen([sys.executable, "-c", SERVER, tmp_path, str(port)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline()
        return child

    child = start()
    try:
        with Producer(
            "t", at=f"http://127.0.0.1:{port}", name="p", limits=ProducerLimits(unanswered_max=300)
        ) as producer:
            futures = []
            for i in range(count):
                futures.append(producer.send_async(b"%d" % i))
                if i % 1_500 == 1_000:
                    child.kill()
                    child.communicate()
                    child = start()
            verdicts = {future.result().verdict for future in futures}
    finally:
        child.kill()
        child.communicate()
    assert verdicts <= {Verdict.FIRST, Verdict.REPEAT}
    assert messages(tmp_path) == [("p", i, b"%d" % i) for i in range(count)]


def test_a_zombie_is_shut_out_also_if_its_connection_was_lost_meanwhile(tmp_path):
    with serving(tmp_path) as url, CuttingProxy(port_of(url)) as proxy:
        with Producer("t", at=url, name="p") as zombie:
            zombie.send(b"a")
            with Producer("t", at=url, name="p") as producer:
                with pytest.raises(Misuse, match=TAKEN):
                    zombie.send(b"b")
                producer.send(b"B")
        with Producer("t", at=proxy.url, name="p") as zombie:
            zombie.send(b"c")
            proxy.cut_all()
            with Producer("t", at=url, name="p") as producer:
                producer.send(b"C")
                with pytest.raises(Misuse, match=TAKEN):
                    zombie.send(b"d")
    assert [payload for _, _, payload in messages(tmp_path)] == [b"a", b"B", b"c", b"C"]


def test_a_busy_server_is_tried_again(tmp_path):
    with (
        serving(tmp_path, limits=IngestLimits(in_hand_bytes_max=150_000)) as url,
        Producer("t", at=url, name="p") as producer,
    ):
        for _ in range(4_000):
            producer.send_async(bytes(100))
    assert [sequence for _, sequence, _ in messages(tmp_path)] == list(range(4_000))


def test_when_the_time_is_over_all_that_has_no_answer_gets_the_error_in_order(tmp_path):
    told: list[int] = []
    with serving(tmp_path) as url, CuttingProxy(port_of(url)) as proxy:
        producer = Producer("t", at=proxy.url, name="p", retry_s=0.3)
        producer.send(b"stored")
        proxy.target_port = 1  # nobody is there
        proxy.cut_all()
        futures = [producer.send_async(b"%d" % i) for i in range(50)]
        for i, future in enumerate(futures):
            future.add_done_callback(partial(lambda i, _: told.append(i), i))
        errors = {str(future.exception()) for future in futures}
        assert len(errors) == 1
        assert next(iter(errors)).startswith("gave up after 0.3 s: ws://")
        assert told == list(range(50))
        with pytest.raises(ConnectionError, match="gave up"):
            producer.send(b"later")
        assert producer.last_sequence_id == 0
        with pytest.raises(ConnectionError, match="gave up"):
            producer.close()
    assert messages(tmp_path) == [("p", 0, b"stored")]


def test_nobody_there_is_an_error_after_the_time_to_retry():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=r"gave up after 0.2 s: .*cannot connect: Connection refused"):
            Producer("t", at=url, retry_s=0.2)


def test_a_server_that_never_answers_counts_as_lost():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=r"gave up after 0.1 s"):
            Producer("t", at=url, retry_s=0.1, limits=ProducerLimits(answer_s=0.1))


def test_an_interrupt_does_not_wait_for_a_server_that_hangs(tmp_path):
    with serving(tmp_path) as url, CuttingProxy(port_of(url)) as proxy:
        producer = Producer("t", at=proxy.url)
        proxy.hold()
        future = producer.send_async(b"x")
        producer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert "may or may not be stored" in str(future.exception(timeout=0))


def test_a_wrong_token_and_an_unknown_topic_are_told_at_once(tmp_path):
    with serving(tmp_path, token="right", create=False) as url:  # noqa: S106
        with pytest.raises(Misuse, match="401"):
            Producer("t", at=url, token="wrong")  # noqa: S106
        with pytest.raises(Misuse, match="404"):
            Producer("t", at=url, token="right")  # noqa: S106


def test_another_kind_of_server_is_told_at_once():
    class Other(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_error(404)

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.handle_request).start()
        with pytest.raises(Misuse, match="the server said 404"):
            Producer("t", at=f"http://127.0.0.1:{other.server_port}")
    for wrong in ("ftp://x", "http://"):
        with pytest.raises(Misuse, match="is no address of a server"):
            Producer("t", at=wrong)


def test_too_many_connections_is_trouble_that_may_pass(tmp_path):
    with serving(tmp_path, limits=IngestLimits(connections_max=1)) as url:
        with Producer("t", at=url) as first:
            with pytest.raises((Busy, ConnectionError), match=r"gave up after 0.1 s"):
                Producer("t", at=url, retry_s=0.1)
            first.send(b"x")
        with Producer("t", at=url) as second:
            assert second.send(b"y").verdict == Verdict.FIRST
