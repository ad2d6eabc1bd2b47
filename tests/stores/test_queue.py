"""What every `Queue` promises, whatever stands behind it: nothing is lost, and what is on loan is nobody else's."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from onefold.errors import BadInput, Misuse
from onefold.outbox.ports import REASON_MAX, STEP_MS, Buried, Delivery, Parcel, Queue, Strayed, open_queue
from onefold.outbox.stores.nats import NatsQueue
from onefold.outbox.stores.postgres_local import PostgresLocal
from onefold.outbox.stores.sqlite import MemoryQueue, SqliteQueue
from tests.lib.examples import examples

LONG_MS = 60_000


class Place(NamedTuple):
    """A queue, and what the tests have to do with it besides."""

    queue: Queue
    again: Callable[[], Queue]
    """Another one that shares what is stored, as a second process would have."""
    pass_ms: Callable[[int], None]
    """Let time go by."""
    short_ms: int
    """A lease to be outlived: long enough for what a test does meanwhile."""


class Clock:
    def __init__(self):
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms


@contextmanager
def in_memory(_folder, _url) -> Iterator[Place]:
    queue = MemoryQueue(clock := Clock())
    yield Place(queue, lambda: queue, clock.pass_ms, 30_000)


@contextmanager
def in_sqlite(folder, _url) -> Iterator[Place]:
    clock = Clock()
    queues: list[SqliteQueue] = []

    def again() -> Queue:
        queues.append(SqliteQueue(folder / "q.db", clock))
        return queues[-1]

    yield Place(again(), again, clock.pass_ms, 30_000)
    for queue in queues:
        queue.close()


@contextmanager
def in_nats(_folder, url) -> Iterator[Place]:
    queues: list[NatsQueue] = []
    stream = f"t{uuid4().hex}"

    def again() -> Queue:
        queues.append(NatsQueue(url, stream=stream))
        return queues[-1]

    def pass_ms(ms: int) -> None:
        """Its clock is not ours to set."""
        time.sleep(ms / 1000)

    yield Place(again(), again, pass_ms, 1_000)
    for queue in queues:
        queue.close()


@contextmanager
def in_postgres(_folder, url) -> Iterator[Place]:
    clock = Clock()
    queues: list[PostgresLocal] = []

    def again() -> Queue:
        queues.append(PostgresLocal(url, clock))
        return queues[-1]

    yield Place(again(), again, clock.pass_ms, 30_000)
    for queue in queues:
        queue.close()


PLACES = {"memory": in_memory, "sqlite": in_sqlite, "nats": in_nats, "postgres": in_postgres}


def url_of(request, kind: str) -> str:
    """Where a place of this kind is; a schema of its own for each test on PostgreSQL."""
    if kind == "nats":
        return str(request.getfixturevalue("nats_server").url)
    return str(request.getfixturevalue("postgres_url")) if kind == "postgres" else ""


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    with PLACES[request.param](tmp_path, url_of(request, request.param)) as place:
        yield place


@pytest.fixture
def queue(place):
    return place.queue


def parcels(*payloads: str, to: str = "orders") -> list[Parcel]:
    return [Parcel(to, payload.encode()) for payload in payloads]


def payloads(found: list[Delivery] | list[Buried]) -> list[str]:
    return [each.payload.decode() for each in found]


def lease(queue: Queue, *names: str, limit: int = 10, lease_ms: int = LONG_MS, wait_ms: int = 0) -> list[Delivery]:
    return queue.lease(names or ["orders"], limit, lease_ms, wait_ms)


def test_what_was_sent_is_given_out_oldest_first_and_as_it_was(queue):
    queue.send(parcels("a", "b"))
    queue.send([Parcel("orders", b""), Parcel("orders", bytes(range(256)))])
    found = lease(queue)
    assert [each.payload for each in found] == [b"a", b"b", b"", bytes(range(256))]
    assert {each.queue for each in found} == {"orders"}
    assert {each.times for each in found} == {1}
    assert len({each.receipt for each in found}) == 4


def test_a_new_queue_is_empty(queue):
    assert lease(queue) == []
    assert queue.waiting() == {}
    assert queue.buried() == []


def test_what_is_on_loan_is_given_to_nobody_else(place):
    place.queue.send(parcels("a", "b", "c"))
    other = place.again()
    assert payloads(lease(place.queue, limit=2)) == ["a", "b"]
    assert payloads(lease(other)) == ["c"]
    assert lease(other) == []
    assert other.waiting() == {"orders": 3}


def test_no_more_than_the_limit_is_given_out(queue):
    queue.send(parcels(*(f"{n:03}" for n in range(30))))
    sizes = [len(lease(queue, limit=7)) for _ in range(6)]
    assert sizes == [7, 7, 7, 7, 2, 0]


def test_only_the_queues_that_were_asked_for_are_looked_into(queue):
    queue.send([*parcels("a"), *parcels("b", to="orders.eu"), *parcels("c", to="shipping")])
    assert payloads(lease(queue, "shipping", "orders")) == ["a", "c"]
    assert lease(queue, "shipping", "orders", "orders") == []
    assert [(each.queue, each.payload) for each in lease(queue, "orders.eu")] == [("orders.eu", b"b")]


def test_a_full_queue_does_not_keep_another_one_from_being_served(queue):
    queue.send([*parcels("a", to="other"), *parcels(*"bcdefghijk")])
    found = [each for _ in range(6) for each in lease(queue, "orders", "other", limit=2)]
    assert sorted(payloads(found)) == list("abcdefghijk")
    assert payloads([each for each in found if each.queue == "orders"]) == list("bcdefghijk")


def test_several_queues_share_the_limit_whatever_each_holds(queue):
    queue.send([*parcels(*"abcde", to="q1"), *parcels("f", to="q2"), *parcels("g", to="q4")])
    names = ["q1", "q2", "q3", "q4"]
    assert len(lease(queue, *names, limit=3)) == 3
    assert len(lease(queue, *names, limit=1)) == 1
    assert len(lease(queue, *names, limit=100)) == 3


def test_a_lease_that_runs_out_gives_the_parcel_to_the_next_under_another_receipt(place):
    place.queue.send(parcels("a", "b"))
    first = lease(place.queue, lease_ms=place.short_ms)
    place.pass_ms(place.short_ms + 50)
    second = lease(place.again(), lease_ms=place.short_ms, wait_ms=1_000)
    assert payloads(second) == ["a", "b"]
    assert [each.times for each in second] == [2, 2]
    assert not {each.receipt for each in first} & {each.receipt for each in second}


def test_what_is_acknowledged_does_not_come_again(place):
    place.queue.send(parcels("a", "b", "c"))
    found = lease(place.queue, lease_ms=place.short_ms)
    place.queue.acknowledge(found[1:])
    assert place.queue.waiting() == {"orders": 1}
    place.pass_ms(place.short_ms + 50)
    assert payloads(lease(place.queue, lease_ms=place.short_ms, wait_ms=1_000)) == ["a"]


def test_an_acknowledgement_may_come_late_and_twice_and_for_what_another_one_has(place):
    place.queue.send(parcels("a", "b"))
    late = lease(place.queue, lease_ms=place.short_ms)
    place.pass_ms(place.short_ms + 50)
    place.queue.acknowledge(late[:1])  # nobody has it
    assert place.queue.waiting() == {"orders": 1}
    other = lease(place.queue, lease_ms=place.short_ms, wait_ms=1_000)
    assert payloads(other) == ["b"]
    place.queue.acknowledge(late)
    place.queue.acknowledge([*other, *other])
    place.queue.acknowledge(other)
    assert place.queue.waiting() == {}
    place.queue.send(parcels("c"))
    place.queue.acknowledge([*late, *other])
    assert payloads(lease(place.queue)) == ["c"], "an old receipt never hits a new parcel"


def test_while_it_is_extended_a_lease_does_not_run_out(place):
    place.queue.send(parcels("a"))
    found = lease(place.queue, lease_ms=place.short_ms)
    for _ in range(3):
        place.pass_ms(place.short_ms // 2)
        place.queue.extend(found, place.short_ms)
        assert lease(place.queue, lease_ms=place.short_ms) == []
    place.pass_ms(place.short_ms + 50)
    assert [each.times for each in lease(place.queue, lease_ms=place.short_ms, wait_ms=1_000)] == [2]


def test_a_lease_that_ran_out_is_not_extended(place):
    place.queue.send(parcels("a"))
    late = lease(place.queue, lease_ms=place.short_ms)
    place.pass_ms(place.short_ms + 50)
    place.queue.extend(late, place.short_ms)
    assert payloads(lease(place.again(), lease_ms=place.short_ms, wait_ms=1_000)) == ["a"]


def test_what_is_given_back_is_given_out_again_at_once(queue):
    queue.send(parcels("a", "b"))
    found = lease(queue)
    queue.release(found[:1])
    assert [(each.payload, each.times) for each in lease(queue)] == [(b"a", 2)]


def test_what_is_given_back_with_a_delay_is_given_out_after_it(place):
    place.queue.send(parcels("a"))
    place.queue.release(lease(place.queue), place.short_ms)
    assert lease(place.queue) == []
    assert place.queue.waiting() == {"orders": 1}
    place.pass_ms(place.short_ms + 50)
    assert [(each.payload, each.times) for each in lease(place.queue, wait_ms=1_000)] == [(b"a", 2)]


MONTH_MS = 30 * 86_400_000


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stepping(request, tmp_path):
    """Queues whose clock is ours to set. (NATS goes by the clock of its server.)"""
    with PLACES[request.param](tmp_path, url_of(request, request.param)) as place:
        yield place


def test_after_a_clock_was_a_month_ahead_leases_and_delays_end_at_once(stepping):
    queue = stepping.queue
    queue.send(parcels("leased", "extended", "delayed"))
    stepping.pass_ms(MONTH_MS)
    leased, extended, delayed = lease(queue)
    queue.extend([extended], LONG_MS)
    queue.release([delayed], 300_000)
    stepping.pass_ms(-MONTH_MS)
    assert payloads(lease(stepping.again())) == ["leased", "extended", "delayed"]
    queue.acknowledge([leased])
    assert queue.waiting() == {"orders": 3}, "the lease of a month ago is no lease any more"


def test_a_clock_that_is_set_back_by_a_moment_ends_no_lease(stepping):
    stepping.queue.send(parcels("a"))
    [held] = lease(stepping.queue)
    stepping.pass_ms(-STEP_MS)
    assert lease(stepping.queue) == []
    stepping.pass_ms(-1)
    assert [each.times for each in lease(stepping.queue)] == [2]
    stepping.queue.acknowledge([held])


def test_who_is_at_it_while_the_clock_comes_back_keeps_the_lease_by_extending_it(stepping):
    stepping.queue.send(parcels("a"))
    stepping.pass_ms(MONTH_MS)
    held = lease(stepping.queue)
    stepping.pass_ms(-MONTH_MS)
    stepping.queue.extend(held, LONG_MS)
    assert lease(stepping.again()) == []
    stepping.queue.acknowledge(held)
    assert stepping.queue.waiting() == {}


def test_who_waits_while_the_clock_comes_back_is_given_what_it_frees(stepping):
    stepping.queue.send(parcels("a"))
    stepping.pass_ms(MONTH_MS)
    lease(stepping.queue)
    found: list[Delivery] = []
    waiter = threading.Thread(target=lambda: found.extend(lease(stepping.queue, wait_ms=60_000)))
    waiter.start()
    stepping.pass_ms(-MONTH_MS)
    waiter.join(60)
    assert [(each.payload, each.times) for each in found] == [(b"a", 2)]


def test_what_a_clock_that_was_ahead_left_is_counted_and_mended(stepping):
    queue = stepping.queue
    queue.send([*parcels("a", "b"), *parcels("c", to="other"), *parcels("d", to="third")])
    lease(queue, "third")
    stepping.pass_ms(MONTH_MS)
    lease(queue, lease_ms=30_000)
    lease(queue, "other")
    assert queue.strayed() == []
    stepping.pass_ms(-MONTH_MS)
    expected = [Strayed("orders", 2, MONTH_MS + 30_000), Strayed("other", 1, MONTH_MS + LONG_MS)]
    assert stepping.again().strayed() == expected
    assert stepping.again().strayed(mend=True) == expected
    assert queue.strayed() == []
    stepping.pass_ms(MONTH_MS + 20_000)  # back where it was: what was mended stays so, what was honest ran out
    assert payloads(lease(queue, "orders", "other", "third")) == ["a", "b", "c", "d"]


def test_a_queue_with_an_honest_clock_has_nothing_that_strayed(place):
    place.queue.send(parcels("a", "b"))
    place.queue.release(lease(place.queue, limit=1), LONG_MS)
    lease(place.queue)
    assert place.queue.strayed() == place.queue.strayed(mend=True) == []
    assert lease(place.queue) == []


class EverythingIsDueInTheEnd(RuleBasedStateMachine):
    """Whatever a clock does: from when it is honest on, nothing waits longer than the longest lease or delay."""

    SPAN_MS = st.sampled_from([1, 1_000, 30_000, 300_000])
    LONGEST_MS = 300_000 + STEP_MS

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory()
        self.clock = Clock()
        self.sqlite = SqliteQueue(Path(self.folder.name) / "q.db", self.clock)
        with self.sqlite._database.reading() as db:
            db.execute("pragma synchronous=off")  # the power stays on here
        self.queues = (MemoryQueue(self.clock), self.sqlite)
        self.held: dict[str, list[Delivery]] = {"memory": [], "sqlite": []}

    def each(self):
        return zip(self.queues, self.held.values(), strict=True)

    @rule(name=st.sampled_from("ab"), many=st.integers(1, 3))
    def send(self, name, many):
        for queue in self.queues:
            queue.send([Parcel(name, b"x")] * many)

    @rule(names=st.sampled_from(["a", "b", "ab"]), limit=st.integers(1, 3), span_ms=SPAN_MS)
    def lease(self, names, limit, span_ms):
        for queue, held in self.each():
            held += queue.lease(list(names), limit, span_ms)

    @rule(which=st.integers(0, 5), span_ms=SPAN_MS)
    def extend(self, which, span_ms):
        for queue, held in self.each():
            queue.extend(held[which : which + 2], span_ms)

    @rule(which=st.integers(0, 5), span_ms=SPAN_MS)
    def release(self, which, span_ms):
        for queue, held in self.each():
            queue.release(held[which : which + 2], span_ms)

    @rule(which=st.integers(0, 5))
    def acknowledge(self, which):
        for queue, held in self.each():
            queue.acknowledge(held[which : which + 1])

    @rule(ms=st.one_of(st.integers(-5_000, 5_000), st.sampled_from([-MONTH_MS, MONTH_MS, -7 * MONTH_MS, 400_000])))
    def step(self, ms):
        self.clock.pass_ms(ms)

    def teardown(self):
        # A reader of the clock looks now, as consumers do four times a second; then time passes as it should.
        for queue in self.queues:
            wanted = sum(queue.waiting().values())
            found = queue.lease(["a", "b"], 1_000, 1)
            began_ms = self.clock.now_ms
            self.clock.pass_ms(self.LONGEST_MS)
            found += queue.lease(["a", "b"], 1_000, 1_000_000)
            assert len({each.receipt.partition("-")[0] for each in found}) == wanted
            self.clock.now_ms = began_ms
        self.sqlite.close()
        self.folder.cleanup()


EverythingIsDueInTheEnd.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
test_whatever_the_clock_does_everything_is_due_in_the_end = EverythingIsDueInTheEnd.TestCase


def test_a_dead_letter_is_given_to_nobody_and_keeps_what_it_was(place):
    place.queue.send([*parcels("a", "b"), *parcels("c", to="other")])
    for each in lease(place.queue, "orders", "other"):
        place.queue.bury([each], f"because of {each.payload!r}:\n\ttröuble \N{SNOWMAN}")
    assert place.queue.waiting() == {}
    letters = place.again().buried()
    assert payloads(letters) == ["a", "b", "c"]
    assert [letter.queue for letter in letters] == ["orders", "orders", "other"]
    assert letters[0].reason == "because of b'a':\n\ttröuble \N{SNOWMAN}"
    assert letters[0].at_ms > 1_600_000_000_000
    assert payloads(place.queue.buried(limit=2)) == ["a", "b"]
    assert payloads(place.queue.buried(queue="other")) == ["c"]
    assert place.queue.buried(queue="nobody") == []


def test_the_reason_of_a_dead_letter_has_an_end(queue):
    queue.send(parcels("a"))
    queue.bury(lease(queue), "\N{SNOWMAN}" * 100_000)
    assert [letter.reason for letter in queue.buried()] == ["\N{SNOWMAN}" * REASON_MAX]


def test_a_dead_letter_that_is_dug_up_is_as_good_as_new(queue):
    queue.send(parcels("a", "b"))
    queue.bury(lease(queue), "why not")
    letters = queue.buried()
    queue.dig_up([letters[1], letters[1]], deliver=True)
    queue.dig_up(letters[1:], deliver=True)  # a second time: it is there no more
    assert [(each.payload, each.times) for each in lease(queue)] == [(b"b", 1)]
    assert payloads(queue.buried()) == ["a"]


def test_copies_of_a_message_are_one_dead_letter_also_after_it_was_dug_up(queue):
    for _ in range(2):
        queue.send([*parcels("a", "b", "a"), *parcels("a", to="other")])
        for delivery in lease(queue, "orders", "other"):
            queue.bury([delivery], "why not")
    letters = queue.buried()
    assert sorted((each.queue, each.payload) for each in letters) == [
        ("orders", b"a"),
        ("orders", b"b"),
        ("other", b"a"),
    ]
    queue.dig_up(letters, deliver=True)
    assert queue.buried() == []
    queue.bury(lease(queue, "orders", "other"), "again")
    assert len(queue.buried()) == 3
    assert queue.waiting() == {}


def test_a_dead_letter_may_be_removed_for_good(queue):
    queue.send(parcels("a", "b"))
    queue.bury(lease(queue), "why not")
    queue.dig_up(queue.buried(limit=1), deliver=False)
    assert payloads(queue.buried()) == ["b"]
    assert queue.waiting() == {}


def test_who_waits_is_given_what_is_sent_meanwhile(place):
    found: list[Delivery] = []
    waiter = threading.Thread(target=lambda: found.extend(lease(place.queue, "other", "orders", wait_ms=60_000)))
    began = time.monotonic()
    waiter.start()
    place.again().send(parcels("a"))
    waiter.join(60)
    assert payloads(found) == ["a"]
    assert time.monotonic() - began < 30


def test_who_waits_for_more_queues_than_parcels_sees_them_all(place):
    found: list[Delivery] = []
    names = ["q1", "q2", "q3", "orders"]
    waiter = threading.Thread(target=lambda: found.extend(lease(place.queue, *names, limit=1, wait_ms=60_000)))
    waiter.start()
    place.again().send(parcels("a"))
    waiter.join(60)
    assert payloads(found) == ["a"]


def test_who_waits_is_given_what_another_one_gives_back(place):
    place.queue.send(parcels("a"))
    held = lease(place.queue)
    found: list[Delivery] = []
    waiter = threading.Thread(target=lambda: found.extend(lease(place.queue, wait_ms=60_000)))
    waiter.start()
    place.queue.release(held)
    waiter.join(60)
    assert [(each.payload, each.times) for each in found] == [(b"a", 2)]


def test_nobody_waits_longer_than_asked_for(queue):
    began = time.monotonic()
    assert lease(queue, wait_ms=200) == []
    assert 0.19 < time.monotonic() - began < 30


def test_what_there_is_is_not_waited_for(queue):
    queue.send(parcels("a"))
    began = time.monotonic()
    assert payloads(lease(queue, limit=5, wait_ms=60_000)) == ["a"]
    assert time.monotonic() - began < 30


def test_threads_that_lease_at_once_never_share_a_parcel(place):
    many = 120
    place.queue.send(parcels(*(str(n) for n in range(many))))
    taken: list[str] = []

    def take(queue: Queue) -> None:
        while found := lease(queue, limit=7):
            taken.extend(payloads(found))
            queue.acknowledge(found)

    threads = [threading.Thread(target=take, args=(queue,)) for queue in (place.queue, place.queue, place.again())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken, key=int) == [str(n) for n in range(many)]
    assert place.queue.waiting() == {}


def test_nothing_to_do_is_done_at_once(queue):
    queue.send([])
    queue.acknowledge([])
    queue.extend([], 1_000)
    queue.release([])
    queue.bury([], "why")
    queue.dig_up([], deliver=True)
    assert queue.waiting() == {}


def test_what_makes_no_sense_is_refused_by_name(queue):
    with pytest.raises(BadInput, match="the name of a queue is 'a b'"):
        queue.send([Parcel("orders", b"a"), Parcel("a b", b"b")])
    with pytest.raises(BadInput, match=r"the name of a queue is 'orders\.>'"):
        lease(queue, "orders.>")
    for name, words in (("limit", {"limit": 0}), ("lease_ms", {"lease_ms": 0}), ("wait_ms", {"wait_ms": -1})):
        with pytest.raises(Misuse, match=f"^{name} is {words[name]}, must be at least"):
            lease(queue, **words)
    with pytest.raises(Misuse, match="no queue to lease from"):
        queue.lease([], 1, 1)
    with pytest.raises(Misuse, match="delay_ms is -1"):
        queue.release([], -1)
    with pytest.raises(Misuse, match="lease_ms is 0"):
        queue.extend([], 0)
    with pytest.raises(Misuse, match="limit is 0"):
        queue.buried(0)
    assert queue.waiting() == {}, "nothing of what was refused"


@pytest.mark.parametrize(
    "receipt", ["", "1", "1-0", "-1-1", "1-x", "$JS.ACK", "$JS.ACK.x.o.1.1.x.1.1", "9" * 30 + "-1"]
)
def test_a_receipt_of_another_queue_is_refused(queue, receipt):
    foreign = Delivery("orders", b"", receipt, 1)
    for verb in (queue.acknowledge, queue.release, lambda it: queue.extend(it, 1), lambda it: queue.bury(it, "")):
        with pytest.raises(Misuse, match="not a receipt of "):
            verb([foreign])
    with pytest.raises(Misuse, match="not a dead letter of this queue"):
        queue.dig_up([Buried("orders", b"", "x", "", 0)], deliver=False)


def test_a_closed_queue_does_nothing_more(queue):
    queue.send(parcels("a"))
    [held] = lease(queue)
    queue.close()
    queue.close()
    for verb in (
        lambda: queue.send(parcels("a")),
        lambda: lease(queue),
        lambda: queue.acknowledge([held]),
        lambda: queue.extend([held], 1_000),
        lambda: queue.release([held]),
        lambda: queue.bury([held], ""),
        queue.buried,
        queue.strayed,
        lambda: queue.dig_up([], deliver=True),
        queue.waiting,
    ):
        with pytest.raises(Misuse, match="closed"):
            verb()


def test_who_waits_is_told_that_the_queue_was_closed(queue):
    queue.waiting()
    told: list[Exception] = []

    def wait() -> None:
        try:
            lease(queue, wait_ms=60_000)
        except Misuse as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    queue.close()
    waiter.join(60)
    assert [str(error).endswith(" was closed") for error in told] == [True]


def test_an_address_opens_the_queue_that_it_names(tmp_path, nats_url):
    for url, kind in (
        ("memory://", MemoryQueue),
        (f"sqlite:///{tmp_path}/q.db", SqliteQueue),
        (f"{nats_url}&timeout_s=9&replicas=1", NatsQueue),
    ):
        queue = open_queue(url)
        assert type(queue) is kind
        queue.send(parcels("a"))
        assert queue.waiting() == {"orders": 1}
        queue.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("memory://x", "no queue at memory://...; there are some at memory://, sqlite:///file.db"),
        ("sqlite://q.db", "no queue at sqlite://...; there are some at"),
        ("q.db", "no queue at 'q.db'; there are some at"),
        ("amqp://me:s3cret@host", "no queue at amqp://...; there are some at"),
        ("nats:/me:s3cret@host", "no queue at 'nats:...'; there are some at"),
        ("s3cret@host:4222", "no queue at an address that is not shown; there are some at"),
        ("sqlite:///q.db?busy_s=1", "sqlite:///q.db?busy_s=1: sqlite:/// takes no options; a ? in the name"),
        ("nats://", "no NATS server at nats://: must be like nats://host:4222"),
        ("nats://me:s3cret@host/x", "no NATS server at nats://host/x: must be like"),
        ("nats://me:s3cret?@host", "this address has an @ too many (not shown); write %40 for an @ and %3F for a ?"),
        ("nats://me:s3cret@one,me:s3cret@two", "this address has an @ too many (not shown)"),
        ("nats://me:s3cret@host:port", "no NATS server at host:port: 'host:port' is not a host with a port"),
        ("nats://me:s3cret@host?streem=x", "nats://host:4222: no option 'streem'; there are stream, replicas,"),
        ("nats://me:s3cret@host?stream=a.b", "stream is 'a.b', must be 1 to 100 letters, digits, '-' and '_'"),
        ("nats://me:s3cret@host?timeout_s=soon", "nats://host:4222: timeout_s=soon: this must be a number"),
        ("nats://me:s3cret@host?timeout_s=0", "nats://host:4222: timeout_s is 0.0, must be more than 0"),
        ("nats://me:s3cret@host?timeout_s=inf", "nats://host:4222: timeout_s is inf, must be more than 0 and at most"),
        ("nats://me:s3cret@host?replicas=0", "replicas is 0, must be at least 1"),
        ("nats://me:s3cret@host?credentials=", "nats://host:4222: credentials is '': name a file"),
    ],
)
def test_an_address_that_names_none_is_refused_without_its_secrets(url, told):
    with pytest.raises(Misuse) as caught:
        open_queue(url)
    assert str(caught.value).startswith(told)
    assert "s3cret" not in str(caught.value)
