"""What is NATS's own of the queue: restarts under load, processes that are killed, streams that would lose parcels."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import nats
import pytest

from onefold.errors import Misuse, StoreFailed
from onefold.outbox.ports import Delivery, Parcel, open_queue
from onefold.outbox.stores.nats import IN_FLIGHT_MAX, NatsQueue
from tests.lib.commands import lines_after_kill
from tests.lib.local_server import free_ports
from tests.lib.nats_server import NatsServer

LONG_MS = 60_000

WORKER = """
import sys
from onefold.outbox.ports import open_queue

queue = open_queue(sys.argv[1])
print("ready", flush=True)
while found := queue.lease(["orders"], 5, 1_000, wait_ms=1_300):
    queue.acknowledge(found)
    print(*(each.payload.decode() for each in found), flush=True)
"""


def parcels(*payloads: Any, to: str = "orders") -> list[Parcel]:
    return [Parcel(to, str(payload).encode()) for payload in payloads]


def payloads(found: list[Delivery]) -> list[str]:
    return [each.payload.decode() for each in found]


def until_it_works(work: Callable[[], Any], failures: list[StoreFailed]) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            return work()
        except StoreFailed as error:
            failures.append(error)
            assert time.monotonic() < deadline, failures
            time.sleep(0.02)  # a caller backs off: there is nothing to wait for but the server


def told(url: str, work: Callable[[Any], Any]) -> Any:
    """Do something to the server behind the queue's back."""

    async def go() -> Any:
        client = await nats.connect(url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(go())


def test_a_server_that_is_killed_under_load_loses_nothing_and_is_found_again(tmp_path, capfd, caplog):
    many = 600
    server = NatsServer(tmp_path / "n").start()
    sender, taker = NatsQueue(server.url, timeout_s=2), NatsQueue(server.url, timeout_s=2)
    failures: list[StoreFailed] = []
    came: Counter[str] = Counter()
    sent, done = threading.Event(), threading.Event()

    def send() -> None:
        for at in range(0, many, 10):
            until_it_works(partial(sender.send, parcels(*range(at, at + 10))), failures)
        sent.set()

    def take() -> None:
        while not (sent.is_set() and len(came) == many and not until_it_works(taker.waiting, failures)):
            found = until_it_works(lambda: taker.lease(["orders"], 7, 500, wait_ms=100), failures)
            came.update(payloads(found))
            until_it_works(partial(taker.acknowledge, found), failures)
        done.set()

    threads = [threading.Thread(target=send, daemon=True), threading.Thread(target=take, daemon=True)]
    for thread in threads:
        thread.start()
    for limit in (100, 250, 400):
        deadline = time.monotonic() + 60
        while len(came) < limit and time.monotonic() < deadline:
            time.sleep(0.01)
        server.kill()
        server.start()
    assert done.wait(60), (len(came), failures[-3:])
    assert set(came) == {str(n) for n in range(many)}
    assert failures
    sender.close()
    taker.close()
    server.kill()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_processes_share_the_parcels_and_kill_9_of_one_loses_none(nats_url):
    many = 200
    queue = open_queue(nats_url)
    queue.send(parcels(*range(many)))
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, nats_url], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    first = workers[0]
    assert first.stdout is not None
    heard = [first.stdout.readline() for _ in range(4)]
    heard += lines_after_kill(first)
    outs = [*heard, *(worker.communicate(timeout=60)[0] for worker in workers[1:])]
    came = {word for out in outs for word in out.split()}
    while queue.waiting():  # what it held, if the others had gone home before its lease ran out
        found = queue.lease(["orders"], 5, LONG_MS, wait_ms=5_000)
        queue.acknowledge(found)
        came |= set(payloads(found))
    missing = {str(n) for n in range(many)} - came
    assert len(missing) <= 5, "at most what the one who died had acknowledged and not told"
    queue.close()


def test_waits_that_are_given_up_leave_no_parcel_on_loan_to_nobody(nats_url):
    many = 150
    queue, sender = open_queue(nats_url), open_queue(nats_url)
    names = ["a", "b", "c"]
    queue.lease(names, 1, LONG_MS)
    came: list[str] = []

    def send() -> None:
        for n in range(many):
            sender.send(parcels(n, to=names[n % 3]))

    thread = threading.Thread(target=send)
    thread.start()
    deadline = time.monotonic() + 60
    while len(came) < many and time.monotonic() < deadline:
        came += payloads(queue.lease(names, 3, LONG_MS, wait_ms=3))
    thread.join()
    assert sorted(came, key=int) == [str(n) for n in range(many)], "each once: none had to wait for its lease to end"
    queue.close()
    sender.close()


def test_more_than_a_thousand_may_be_under_way_and_on_loan(nats_url):
    many = 2 * IN_FLIGHT_MAX + 50
    queue = open_queue(nats_url)
    queue.send(parcels(*range(many)))
    found = queue.lease(["orders"], many, LONG_MS)
    assert payloads(found) == [str(n) for n in range(many)]
    queue.release(found[:-1], LONG_MS)
    queue.send(parcels("more"))
    assert payloads(queue.lease(["orders"], 5, LONG_MS)) == ["more"], "delays do not stop the others"
    queue.close()


def test_a_late_acknowledgement_removes_what_was_given_out_again(nats_url):
    queue = open_queue(nats_url)
    queue.send(parcels("a"))
    late = queue.lease(["orders"], 1, 200)
    again = queue.lease(["orders"], 1, 200, wait_ms=10_000)
    assert [each.times for each in again] == [2]
    queue.acknowledge(late)
    assert queue.waiting() == {}
    queue.acknowledge(again)
    queue.close()


def test_a_lease_of_another_length_changes_the_consumer(nats_url):
    queue = open_queue(nats_url)
    queue.send(parcels("a"))
    stream = nats_url.partition("=")[2]

    def lease_s() -> float:
        return float(told(nats_url.partition("?")[0], lambda js: js.consumer_info(stream, "orders")).config.ack_wait)

    queue.lease(["orders"], 1, LONG_MS)
    assert lease_s() == 60
    queue.lease(["orders"], 1, 2_000)
    assert lease_s() == 2
    queue.close()


def test_a_server_that_says_nothing_any_more_is_not_waited_for_longer_than_told(tmp_path):
    with NatsServer(tmp_path / "n") as server:
        queue = NatsQueue(server.url, timeout_s=0.5)
        queue.send(parcels("a"))
        server.freeze()
        began = time.monotonic()
        with pytest.raises(StoreFailed, match=r"^nats://127\.0\.0\.1:\d+: (no answer within|nats: timeout)"):
            queue.send(parcels("b"))
        with pytest.raises(StoreFailed, match=r"^nats://127\.0\.0\.1:\d+: "):
            queue.lease(["orders"], 1, LONG_MS, wait_ms=100)
        assert time.monotonic() - began < 30
        server.thaw()
        found = until_it_works(lambda: queue.lease(["orders"], 1, LONG_MS, wait_ms=1_000), [])
        assert payloads(found) == ["a"]
        queue.close()


def test_where_no_server_is_that_is_said_at_once_and_again():
    [port] = free_ports(1)
    queue = NatsQueue(f"nats://me:s3cret@127.0.0.1:{port}")
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(StoreFailed, match=rf"^nats://127\.0\.0\.1:{port}: .*Connect call failed"):
            queue.waiting()
    assert time.monotonic() - began < 30
    queue.close()


def test_a_password_opens_the_server_and_is_never_shown(tmp_path):
    with NatsServer(tmp_path / "n", user="me", password="s3cret@#") as server:  # noqa: S106 - of a server of this test
        plain = f"127.0.0.1:{server.port}"
        queue = open_queue(f"nats://me:s3cret%40%23@{plain}")
        queue.send(parcels("a"))
        assert queue.waiting() == {"orders": 1}
        queue.close()
        for who in ("me:wrong@", "wrong@", ""):
            queue = open_queue(f"nats://{who}{plain}")
            with pytest.raises(StoreFailed, match=rf"^nats://{plain}: .*(?i:authorization)") as caught:
                queue.waiting()
            assert "wrong" not in str(caught.value)
            queue.close()


def test_a_token_opens_the_server(tmp_path):
    with NatsServer(tmp_path / "n", more='authorization { token: "s3cret" }') as server:
        queue = open_queue(f"nats://s3cret@127.0.0.1:{server.port}")
        assert queue.waiting() == {}
        queue.close()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"storage": "memory"}, "storage is memory, must be file"),
        ({"retention": "limits"}, "retention is limits, must be workqueue"),
        ({"max_age": 60}, r"max_age is 60(\.0)? s: parcels would be lost"),
        ({"max_msgs": 10, "discard": "old"}, "max_msgs with discard old: parcels would be lost"),
        ({"no_ack": True}, "it acknowledges before it has written"),
        ({"subjects": ["x{stream}.>"]}, r"subjects is \['xt.*'\], must be \['t.*'\]"),
    ],
)
def test_a_stream_that_would_lose_parcels_is_refused(nats_url, setting, said):
    url, stream = nats_url.partition("?")[0], nats_url.partition("=")[2]
    config = {"name": stream, "subjects": [f"{stream}.queue.>"], "retention": "workqueue", "storage": "file"} | setting
    config["subjects"] = [subject.format(stream=stream) for subject in config["subjects"]]
    told(url, lambda js: js.add_stream(**config))
    queue = open_queue(nats_url)
    for _ in range(2):
        with pytest.raises(Misuse, match=f"^stream {stream}: {said}"):
            queue.send(parcels("a"))
    queue.close()


def test_a_stream_with_other_replicas_than_asked_for_is_refused(nats_url):
    queue = open_queue(nats_url)
    queue.send(parcels("a"))
    queue.close()
    queue = open_queue(f"{nats_url}&replicas=3")
    with pytest.raises(Misuse, match="num_replicas is 1, must be 3"):
        queue.waiting()
    queue.close()


def test_a_consumer_that_somebody_removed_is_made_again(nats_url):
    url, stream = nats_url.partition("?")[0], nats_url.partition("=")[2]
    queue = open_queue(nats_url)
    queue.send(parcels("a"))
    held = queue.lease(["orders"], 1, LONG_MS)
    told(url, lambda js: js.delete_consumer(stream, "orders"))
    queue.acknowledge(held)  # to nobody: the parcel comes again
    with pytest.raises(StoreFailed, match="the consumer orders is not there"):
        queue.lease(["orders"], 1, LONG_MS)
    assert payloads(queue.lease(["orders"], 1, LONG_MS)) == ["a"]
    queue.close()


def test_a_parcel_that_the_server_does_not_take_is_named_and_none_is_sent(nats_url):
    queue = open_queue(nats_url)
    with pytest.raises(
        Misuse, match="a parcel for big has 1048577 bytes, more than the 1048576 that the server accepts"
    ):
        queue.send([*parcels("a"), Parcel("big", b"x" * (1024 * 1024 + 1))])
    assert queue.waiting() == {}
    queue.close()


def test_the_largest_parcel_can_be_buried_without_a_word_why(nats_url):
    queue = open_queue(nats_url)
    largest = Parcel("big", b"x" * (1024 * 1024))
    queue.send([largest, *parcels("a", to="big")])
    queue.bury(queue.lease(["big"], 2, LONG_MS), "too large to be understood")
    assert queue.waiting() == {}
    told = [(len(letter.payload), letter.reason) for letter in queue.buried()]
    assert told == [(1024 * 1024, ""), (1, "too large to be understood")]
    queue.dig_up(queue.buried(), deliver=True)
    assert [len(found.payload) for found in queue.lease(["big"], 2, LONG_MS)] == [1024 * 1024, 1]
    queue.close()


def test_who_calls_while_the_queue_is_closed_is_answered_or_told(nats_url, monkeypatch):
    queue = open_queue(nats_url)
    queue.waiting()
    begin, closers = asyncio.run_coroutine_threadsafe, [threading.Thread(target=queue.close)]

    def late(*given: Any) -> Any:
        if closers and threading.current_thread() is threading.main_thread():
            closers[0].start()
            closers.pop().join(0.2)  # it would have ended by then, if it did not have to wait for us
        return begin(*given)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    answers: list[Any] = []
    while not answers or answers[-1] == {}:
        try:
            answers.append(queue.waiting())
        except Misuse as error:
            answers.append(str(error).split(": ")[-1])
    assert answers[-1] == "this queue was closed"


def test_credentials_need_a_package_that_not_everybody_has(nats_url, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(Misuse, match="credentials need the package nkeys"):
        open_queue(f"{nats_url}&credentials={tmp_path}/me.creds")


def test_a_server_without_jetstream_is_no_queue(tmp_path):
    server = NatsServer(tmp_path / "n", jetstream=False)
    with server:
        queue = open_queue(server.url)
        with pytest.raises(StoreFailed, match=r"^nats://127\.0\.0\.1:\d+: "):
            queue.send(parcels("a"))
        queue.close()


def test_a_receipt_of_another_stream_is_refused(nats_server):
    one, two = NatsQueue(nats_server.url, stream="one"), NatsQueue(nats_server.url, stream="two")
    one.send(parcels("a"))
    with pytest.raises(Misuse, match="not a receipt of stream two"):
        two.acknowledge(one.lease(["orders"], 1, LONG_MS))
    one.close()
    two.close()


def test_options_belong_to_open_queue(nats_url):
    with pytest.raises(Misuse, match=r"options after a '\?' are for open_queue"):
        NatsQueue(nats_url)
