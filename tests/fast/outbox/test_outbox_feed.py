"""The feed: each message of a log goes to a queue once, whatever is cut off, killed or started twice."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from time import sleep

import pytest

from onefold.cli.outbox import TopicLog
from onefold.errors import BadInput, Misuse, StoreFailed
from onefold.outbox.endpoint import Endpoint
from onefold.outbox.feed import Feed
from onefold.outbox.plans import unpack_message
from onefold.producers.topic import Topics
from tests.lib.commands import here


class Bench:
    def __init__(self, folder, plan):
        self.folder, self.plan = folder, plan
        self.ledger_file, self.queue_file = folder / "d.db", folder / "q.db"
        self.places = {"store": f"sqlite:///{self.ledger_file}", "transport": f"sqlite:///{self.queue_file}"}
        self.endpoint = self.open()
        self.topics = Topics(folder / "log")
        self.topic = self.topics.topic("orders")
        self.sequence = 0

    def open(self):
        return Endpoint("feed", store=self.places["store"], transport=self.places["transport"], plan=self.plan)

    def publish(self, *payloads):
        messages = [(self.sequence + i, payload) for i, payload in enumerate(payloads)]
        self.sequence += len(payloads)
        self.topic.publish("till", messages)

    def publish_numbers(self, *numbers):
        self.publish(*(json.dumps({"n": n}).encode() for n in numbers))

    def feed(self, endpoint=None, *, whole=False, **options):
        log = TopicLog(self.folder / "log", "orders", whole=whole)
        return Feed(log, "payments", endpoint or self.endpoint, **options)

    def messages(self):
        """What went out, by token: a copy is no message of its own."""
        queue = self.endpoint.world.queue
        deliveries = queue.lease(["payments"], 100_000, 60_000)
        queue.acknowledge(deliveries)
        return {message.token: message for message in (unpack_message(each.payload) for each in deliveries)}

    def numbers(self):
        found = self.messages()
        assert set(found) <= {token.token for token in self.endpoint.world.tokens.listed(limit=100_000)}
        return sorted(message["n"] for message in found.values())

    def left(self):
        return self.endpoint.world.entities.stranded(2**62, 100)


@pytest.fixture(params=["transactional", "parented"])
def bench(tmp_path, request):
    made = Bench(tmp_path, request.param)
    with made.endpoint, made.topics:
        yield made


def test_each_message_is_sent_once_however_often_it_is_fed(bench):
    bench.publish_numbers(*range(25))
    fed = bench.feed(chunk_max=10).run()
    assert (fed.sent, fed.mark) == (25, 24)
    assert bench.feed().run().sent == 0
    bench.publish_numbers(25, 26)
    assert bench.feed(chunk_max=7).run().sent == 2
    assert bench.numbers() == list(range(27))
    assert bench.left() == []


def test_what_is_no_message_is_passed_over(bench):
    bench.topic.connect("till-1")
    bench.publish_numbers(1)
    bench.topic.connect("till-2")
    fed = bench.feed().run()
    assert (fed.sent, fed.mark) == (1, 2)
    assert bench.feed().run().mark == 2


def test_two_queues_are_fed_for_themselves(bench):
    bench.publish_numbers(1, 2)
    bench.feed().run()
    other = Feed(TopicLog(bench.folder / "log", "orders"), "shipping", bench.endpoint)
    assert other.run().sent == 2
    assert bench.endpoint.world.queue.waiting() == {"payments": 2, "shipping": 2}


@pytest.mark.parametrize(("file", "table"), [("q.db", "outbox_queue"), ("d.db", "outbox_entries")])
def test_a_feed_that_is_cut_off_is_finished_by_the_next(bench, file, table):
    bench.publish_numbers(*range(30))
    bench.feed(chunk_max=10).run(stop=_after(1))
    with closing(sqlite3.connect(bench.folder / file)) as connection:
        connection.executescript(
            f"create trigger full before insert on {table} begin select raise(abort, 'no room'); end;"
        )
        with pytest.raises(StoreFailed, match="no room"):
            bench.feed(chunk_max=10).run()
        connection.executescript("drop trigger full;")
    bench.publish_numbers(30)
    fed = bench.feed(chunk_max=10).run()
    assert (fed.sent + fed.resumed, fed.mark) == (21, 30)
    assert bench.numbers() == list(range(31))
    assert bench.left() == []


def _after(chunks):
    """Set when it was asked so often."""

    class Stop(threading.Event):
        asked = 0

        def is_set(self):
            self.asked += 1
            return self.asked > chunks

    return Stop()


def test_two_feeds_at_once_send_nothing_twice(bench):
    bench.publish_numbers(*range(120))
    with bench.open() as other:
        threads = [
            threading.Thread(target=bench.feed(app, chunk_max=size).run)
            for app, size in [(bench.endpoint, 7), (other, 3)]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bench.numbers() == list(range(120))
    assert bench.left() == []


def test_a_feed_that_was_held_up_takes_nothing_that_another_took(bench):
    bench.publish_numbers(*range(5))
    late = bench.feed()
    late._resume()
    assert bench.feed(chunk_max=3).run(stop=_after(1)).mark == 2
    assert late.run(stop=_after(3)).sent == 2
    assert bench.numbers() == list(range(5))


def test_it_follows_the_log(bench):
    stop, seen = threading.Event(), threading.Event()

    def tell(fed):
        if fed.mark == 3:
            seen.set()

    thread = threading.Thread(target=lambda: bench.feed().run(follow=True, stop=stop, tell=tell))
    thread.start()
    bench.publish_numbers(0, 1)
    bench.publish_numbers(2, 3)
    assert seen.wait(60)
    stop.set()
    thread.join(60)
    assert bench.numbers() == [0, 1, 2, 3]


def test_a_stop_can_be_set_by_a_signal_while_it_waits(bench):
    class Stop(threading.Event):
        looks = 0

        def is_set(self):
            self.looks += 1
            return self.looks > 2

        def wait(self, timeout=None):
            raise AssertionError("a signal that comes now and sets it waits for a lock that this thread has")

    bench.publish_numbers(1)
    assert bench.feed().run(follow=True, stop=Stop()).sent == 1


def test_a_payload_that_is_no_json_stops_it_and_whole_records_do_not_mind(bench):
    bench.publish(b'{"n": 1}', b"1 coffee")
    with pytest.raises(BadInput, match="orders>payments: the payload of record 1 is not JSON"):
        bench.feed().run()
    assert bench.messages() == {}, "the chunk went as a whole or not at all"
    bench.feed(whole=True).run()
    found = sorted(bench.messages().values(), key=lambda message: message["offset"])
    assert [message["producer"] for message in found] == ["till", "till"]
    assert found[1]["payload_base64"] == "MSBjb2ZmZWU="


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b'{"n": 1, "n": 2}', 'the payload of record 1 is not JSON that can be read: the name "n" is there twice'),
        (b"1e999", "record 1 cannot be sent: .*Out of range float"),
        (b'"' + b"x" * 262_144 + b'"', "record 1 cannot be sent: .* a message to 'payments' has 262146 bytes"),
    ],
)
def test_a_record_that_cannot_be_sent_is_named(bench, payload, problem):
    bench.publish(b"0", payload, b"2")
    with pytest.raises(BadInput, match=f"orders>payments: {problem}"):
        bench.feed().run()


def test_a_log_that_is_not_the_same_is_noticed(bench, tmp_path):
    bench.publish_numbers(*range(5))
    bench.feed().run()
    with Topics(tmp_path / "other") as topics:
        topics.topic("orders").publish("till", [(0, b"{}")])
        with pytest.raises(Misuse, match="5 records were taken, the log has 1: it is not the same log"):
            Feed(TopicLog(tmp_path / "other", "orders"), "payments", bench.endpoint).run()


def test_a_topic_that_is_not_there_is_named(bench):
    with pytest.raises(Misuse, match="there is no log in"):
        TopicLog(bench.folder / "log", "refunds")


def words(bench, *more):
    places = [f"--{name}={url}" for name, url in bench.places.items()]
    return ["outbox", "feed", bench.folder / "log", "orders", "--to=payments", *places, f"--plan={bench.plan}", *more]


def test_the_command_feeds_and_tells(bench):
    bench.publish_numbers(*range(3))
    done = here(*words(bench, "--json"), cwd=bench.folder)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"topic": "orders", "to": "payments", "mark": 2, "sent": 3, "resumed": 0}
    assert bench.numbers() == [0, 1, 2]


def test_a_feed_that_follows_can_be_killed_and_ends_well_on_a_signal(bench):
    command = [sys.executable, "-m", "onefold.cli.main", *map(str, words(bench, "--follow", "--json"))]
    sent = 0
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        bench.publish_numbers(*range(sent, sent + 40))
        sent += 40
        while (bench.endpoint.state("orders>payments") or {"mark": -1})["mark"] < sent - 1:
            assert process.poll() is None, process.communicate()
            sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == (-number if number == signal.SIGKILL else 0), err
    assert json.loads(out)["mark"] == 79
    assert bench.feed().run().sent == 0
    assert bench.numbers() == list(range(80))
    assert bench.left() == []
