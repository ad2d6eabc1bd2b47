"""The desk: a request is issued, submitted and answered, each however often, and executed once or never."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count

import pytest

from onefold.errors import BadInput, Misuse
from onefold.outbox import Out, mark_of
from onefold.outbox import desk as desk_pages
from onefold.outbox.desk import SLACK_S, Desk, Differs, Gone, Slot, Unknown, new_id, time_of
from onefold.outbox.endpoint import Endpoint
from onefold.outbox.plans import unpack_message
from onefold.outbox.ports import Ledger, Queue
from onefold.outbox.stores.sqlite import MemoryLedger, MemoryQueue, SqliteLedger, SqliteQueue

START_MS = 1_800_000_000_000
WINDOW_S = 600


class Clock:
    def __init__(self):
        self.now_ms = START_MS

    def __call__(self):
        return self.now_ms

    def pass_s(self, seconds):
        self.now_ms += round(seconds * 1_000)


class Counter:
    """A desk, and a shop behind it that answers."""

    def __init__(self, ledger, queue, clock, plan):
        self.ledger, self.queue, self.clock, self.plan = ledger, queue, clock, plan
        self.places = {"store": ledger, "transport": queue, "plan": plan, "clock_ms": clock}
        self.desk = Desk(**self.places, window_s=WINDOW_S)
        self.shop = Endpoint("shop", **self.places)
        self.shop.handler("orders", key="order")(sold)

    def new(self, queue="orders"):
        request = self.desk.issue()
        assert self.desk.put(queue, request)
        return request

    def work(self, until=10):
        """Everybody does what there is to do."""
        for _ in range(until):
            deliveries = self.queue.lease(["orders", "desk"], 100, 60_000)
            if not deliveries:
                return
            for delivery in deliveries:
                app = self.desk.endpoint if delivery.queue == "desk" else self.shop
                app.process(unpack_message(delivery.payload), delivery)

    def left(self):
        return self.ledger.live().tokens, len(self.ledger.stranded(2**62, 100)), self.queue.waiting()


def sold(state, message):
    sold = (state or {"sold": 0})["sold"] + message["sum"]
    return {"sold": sold}, [Out.reply({"sold": sold})]


@pytest.fixture(params=["memory", "sqlite", "parented", "checkpointed"])
def counter(request, tmp_path):
    clock = Clock()
    plan = "transactional" if request.param in ("memory", "sqlite") else request.param
    ledger: Ledger = MemoryLedger(clock)
    queue: Queue = MemoryQueue(clock)
    if request.param == "sqlite":
        ledger, queue = SqliteLedger(tmp_path / "d.db", clock), SqliteQueue(tmp_path / "d.db", clock)
    with closing(ledger), closing(queue):
        yield Counter(ledger, queue, clock, plan)


ORDER = {"order": 7, "sum": 20}


def test_a_request_is_issued_submitted_and_answered(counter):
    desk, request = counter.desk, counter.new()
    assert desk.status(request) == Slot("open", START_MS + WINDOW_S * 1_000)
    assert desk.submit("orders", request, ORDER).status == "submitted"
    assert desk.status(request).status == "submitted"
    counter.work()
    assert desk.status(request) == Slot("answered", START_MS + WINDOW_S * 1_000, {"sold": 20})
    assert counter.left() == (0, 0, {})


def test_every_step_can_be_repeated(counter):
    desk, request = counter.desk, counter.new()
    assert not desk.put("orders", request)
    for _ in range(3):
        assert desk.submit("orders", request, ORDER).status == "submitted"
    counter.work()
    assert desk.submit("orders", request, ORDER) == desk.status(request)
    assert not desk.put("orders", request)
    counter.work()
    assert counter.shop.state("7") == {"sold": 20}
    for _ in range(2):
        desk.forget(request)
    assert counter.left() == (0, 0, {})


def test_another_body_is_refused(counter):
    desk, request = counter.desk, counter.new()
    desk.submit("orders", request, ORDER)
    with pytest.raises(Differs, match="was submitted with another body"):
        desk.submit("orders", request, {**ORDER, "sum": 21})
    assert desk.submit("orders", request, {"sum": 20, "order": 7}).status == "submitted", "the same body"
    counter.work()
    assert counter.shop.state("7") == {"sold": 20}


def test_what_was_never_issued_is_not_executed(counter):
    for ask in (counter.desk.status, counter.desk.forget, lambda it: counter.desk.submit("orders", it, ORDER)):
        with pytest.raises(Unknown, match="was never issued"):
            ask(counter.desk.issue())
    assert counter.left() == (0, 0, {})


def test_what_was_forgotten_is_not_executed_and_cannot_be_made_again(counter):
    desk, request = counter.desk, counter.new()
    desk.forget(request)
    for ask in (desk.status, lambda it: desk.put("orders", it), lambda it: desk.submit("orders", it, ORDER)):
        with pytest.raises(Gone):
            ask(request)
    assert counter.left() == (0, 0, {})


def test_what_was_submitted_goes_on_when_it_is_forgotten_and_its_answer_is_dropped(counter):
    desk, request = counter.desk, counter.new()
    desk.submit("orders", request, ORDER)
    desk.forget(request)
    counter.work()
    assert counter.shop.state("7") == {"sold": 20}
    with pytest.raises(Gone):
        desk.status(request)
    assert counter.left() == (0, 0, {})


def test_an_open_request_expires_and_never_executes(counter):
    desk, request = counter.desk, counter.new()
    counter.clock.pass_s(WINDOW_S)
    for ask in (desk.status, lambda it: desk.put("orders", it), lambda it: desk.submit("orders", it, ORDER)):
        with pytest.raises(Gone, match=r"expired|old"):
            ask(request)
    assert counter.left() == (0, 0, {})


def test_an_id_that_was_used_can_never_be_made_again_even_when_nothing_is_remembered_of_it(counter):
    desk = counter.desk
    forgotten, expired = counter.new(), counter.new()
    desk.forget(forgotten)
    for minutes in (5, 4, 1, 1, 60, 71, 5):
        counter.clock.pass_s(minutes * 60)
        desk.expire()
        desk.endpoint.recover(tombstone_s=desk.tombstone_s)
        with pytest.raises(Gone):
            desk.put("orders", forgotten)
        with pytest.raises(Gone):
            desk.submit("orders", forgotten, ORDER)
    with pytest.raises(Gone):
        desk.put("orders", expired)
    for request in (forgotten, expired):
        assert counter.ledger.load([desk.endpoint.key(request)])[0].version == 0, "nothing is"


def test_expired_requests_and_their_pages_are_removed(counter):
    desk = counter.desk
    requests = []
    for _ in range(40):
        counter.clock.pass_s(7)
        requests.append(counter.new())
    desk.submit("orders", requests[0], ORDER)
    counter.work()
    counter.clock.pass_s(WINDOW_S + SLACK_S - 100)
    removed = desk.expire()
    assert 0 < removed < 40
    assert desk.expire() == 0
    counter.clock.pass_s(200)
    assert desk.expire() == 40 - removed
    counter.clock.pass_s(desk.tombstone_s + 1)
    assert desk.endpoint.recover(tombstone_s=desk.tombstone_s).purged >= 40
    states = [counter.ledger.load([desk.endpoint.key(request)])[0] for request in requests]
    assert all(entity.version == 0 for entity in states)


def test_the_consumer_does_the_chores(counter):
    request = counter.new()
    counter.clock.pass_s(WINDOW_S + SLACK_S + 60)
    for chore in counter.desk.endpoint.chores:
        chore()
    assert counter.ledger.load([counter.desk.endpoint.key(request)])[0].state is None


@pytest.mark.parametrize(("ahead_s", "told"), [(301, "301 s ahead, at most 300 s are allowed"), (-WINDOW_S, "s old")])
def test_an_id_of_another_time_is_refused(counter, ahead_s, told):
    with pytest.raises((BadInput, Gone), match=told):
        counter.desk.put("orders", new_id(START_MS + ahead_s * 1_000))


@pytest.mark.parametrize(
    "named",
    ["7", "", "6f1c2f0e-0000-4000-8000-000000000001", "~cursor", "{018f4e2a-7c00-7000-8000-000000000001}"],
)
def test_an_id_is_a_uuid_of_version_7(counter, named):
    with pytest.raises(BadInput, match="must be a UUID of version 7"):
        counter.desk.put("orders", named)


def test_ids_are_different_and_know_their_time():
    ids = {new_id(START_MS) for _ in range(1_000)}
    assert len(ids) == 1_000
    assert {time_of(each) for each in ids} == {START_MS}


def test_a_request_is_for_one_queue(counter):
    request = counter.new()
    for ask in (counter.desk.put, lambda queue, it: counter.desk.submit(queue, it, ORDER)):
        with pytest.raises(Differs, match="is for the queue orders, not refunds"):
            ask("refunds", request)


def test_only_the_queues_that_are_named_can_be_asked_for(counter):
    desk = Desk(**counter.places, queues=["orders"])
    assert desk.put("orders", desk.issue())
    for queue in ("refunds", "desk"):
        with pytest.raises(Unknown, match="this desk takes no requests for the queue"):
            desk.put(queue, desk.issue())
    with pytest.raises(Unknown, match="this desk takes no requests for the queue 'desk'"):
        counter.desk.put("desk", counter.desk.issue())


def test_a_body_that_cannot_be_sent_does_not_use_the_request_up(counter):
    request = counter.new()
    for body in ({"text": "x" * 300_000}, float("nan")):
        with pytest.raises(BadInput):
            counter.desk.submit("orders", request, body)
    counter.desk.submit("orders", request, ORDER)
    counter.work()
    assert counter.desk.status(request).answer == {"sold": 20}


def test_the_first_answer_counts(counter):
    counter.shop.handler("twice", key="order")(lambda state, message: ({}, [Out.reply(1), Out.reply(2)]))
    request = counter.new("twice")
    counter.desk.submit("twice", request, ORDER)
    for delivery in counter.queue.lease(["twice"], 1, 60_000):
        counter.shop.process(unpack_message(delivery.payload), delivery)
    counter.work()
    assert counter.desk.status(request).answer == 1
    assert counter.left() == (0, 0, {})


def test_an_answer_for_no_request_is_malformed(counter):
    message = unpack_message(b'{"token": "t", "to": "desk", "body": {"request": "~cursor", "answer": 1}}')
    with pytest.raises(BadInput, match="must be a UUID"):
        counter.desk.endpoint.process(message)


def test_many_at_once_make_and_submit_one_request_once(counter):
    request = counter.desk.issue()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: counter.desk.put("orders", request), range(16)))
        slots = list(pool.map(lambda _: counter.desk.submit("orders", request, ORDER), range(16)))
    assert sum(made) == 1
    assert {slot.status for slot in slots} == {"submitted"}
    counter.desk.endpoint.recover(older_than_s=0)
    counter.work()
    assert counter.shop.state("7") == {"sold": 20}
    assert counter.left()[1:] == (0, {})


def test_of_two_bodies_at_once_one_is_executed(counter):
    request = counter.new()

    def submit(sum_of):
        try:
            return counter.desk.submit("orders", request, {"order": 7, "sum": sum_of}).status
        except Differs:
            return "differs"

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(submit, [1, 2] * 8))
    counter.work()
    assert sorted(told) == ["differs"] * 8 + ["submitted"] * 8
    assert counter.shop.state("7") in ({"sold": 1}, {"sold": 2})


class Cut(Exception):
    """The process died here."""


@pytest.mark.parametrize("steps", range(12))
def test_a_desk_that_dies_anywhere_in_a_request_leaves_it_to_the_next(counter, steps):
    left = count()

    def dying(store):
        return Dying(store, lambda: next(left) >= steps)

    ledger = dying(counter.ledger)
    dead = Desk(**{**counter.places, "store": ledger, "transport": dying(counter.queue)})
    request = dead.issue()
    try:
        dead.put("orders", request)
        dead.submit("orders", request, ORDER)
    except Cut:
        pass
    counter.desk.put("orders", request)
    counter.desk.submit("orders", request, ORDER)
    counter.work()
    assert counter.desk.status(request).answer == {"sold": 20}
    assert counter.shop.state("7") == {"sold": 20}
    assert counter.left() == (0, 0, {})


class Dying:
    """A store that is real until the process dies: from then on, each call ends it."""

    def __init__(self, store, is_dead):
        self._store, self._is_dead = store, is_dead

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*values, **named):
            if self._is_dead():
                raise Cut
            return found(*values, **named)

        return call

    def holds(self, tokens):  # an endpoint looks at the type of a store for these two
        return self.__getattr__("holds")(tokens)

    def settle(self, steps):
        return self.__getattr__("settle")(steps)


@pytest.mark.parametrize("meanwhile", [lambda desk, request: desk.forget(request), lambda desk, request: None])
def test_what_was_sent_is_never_said_to_be_gone(meanwhile):
    class Slow(MemoryLedger):
        def settle(self, steps):
            done = super().settle(steps)
            meanwhile(desk, request)
            clock.pass_s(WINDOW_S)
            return done

    clock = Clock()
    queue = MemoryQueue(clock)
    desk = Desk(store=Slow(clock), transport=queue, window_s=WINDOW_S, clock_ms=clock)
    request = desk.issue()
    desk.put("orders", request)
    assert desk.submit("orders", request, ORDER).status == "submitted"
    assert queue.waiting() == {"orders": 1}
    with pytest.raises(Gone):
        desk.submit("orders", request, ORDER)


def test_an_id_stays_too_old_when_the_window_becomes_longer(counter):
    request, young = counter.new(), counter.desk.issue()
    counter.desk.submit("orders", request, ORDER)
    counter.desk.forget(request)
    counter.clock.pass_s(WINDOW_S + 2 * SLACK_S)
    counter.desk.endpoint.recover(tombstone_s=counter.desk.tombstone_s)
    assert counter.ledger.load([counter.desk.endpoint.key(request)])[0].version == 0, "nothing is known of it"
    for _ in range(2):
        longer = Desk(**counter.places, window_s=100 * WINDOW_S)
        for each in (request, young):
            with pytest.raises(Gone, match="was too old when the window was shorter"):
                longer.put("orders", each)
        assert longer.put("orders", longer.issue())
        counter.clock.pass_s(WINDOW_S)


def test_after_a_long_silence_what_is_expired_is_removed_bit_by_bit(counter, monkeypatch):
    monkeypatch.setattr(desk_pages, "PAGES_MAX", 100)
    desk, requests = counter.desk, [counter.new()]
    counter.clock.pass_s(1_000)
    requests.append(counter.new())
    counter.clock.pass_s(SLACK_S + 1_500)
    assert [desk.expire() for _ in range(4)] == [1, 1, 0, 0]
    assert desk.states(requests) == [None, None]
    assert mark_of(desk.endpoint.state("~cursor")) == (counter.clock() - SLACK_S * 1_000) // 10_000 - 1


DAYS_S = 6 * 86_400


def test_after_a_clock_was_ahead_the_desk_is_tended_and_removes_what_ends(counter, monkeypatch):
    hour_ms = 3_600_000
    monkeypatch.setattr(desk_pages, "PAGES_MAX", hour_ms // desk_pages.PAGE_MS)  # an hour at once, not a day
    monkeypatch.setattr(desk_pages, "BACK_MS", 7 * hour_ms)
    desk = counter.desk
    counter.new()
    counter.clock.pass_s(6 * 3_600)
    for _ in range(10):
        desk.endpoint.chores[0]()
        counter.clock.pass_s(60)
    assert mark_of(desk.endpoint.state("~cursor")) > (counter.clock() - 2 * hour_ms) // 10_000
    counter.clock.pass_s(-6 * 3_600)
    request = counter.new()
    counter.clock.pass_s(WINDOW_S + SLACK_S + 20)
    for _ in range(10):
        desk.endpoint.chores[0]()
        counter.clock.pass_s(60)
    assert desk.states([request]) == [None]
    assert desk.endpoint.world.entities.load([desk.endpoint.key(request)])[0].state is None


def test_a_window_that_was_made_longer_by_a_clock_that_was_ahead_does_not_close_the_desk(counter):
    counter.new()
    counter.clock.pass_s(DAYS_S)
    ahead = Desk(**counter.places, window_s=2 * WINDOW_S)
    assert ahead.put("orders", ahead.issue())
    counter.clock.pass_s(-DAYS_S)
    old = ahead.issue()
    for desk in (ahead, Desk(**counter.places, window_s=2 * WINDOW_S)):
        with pytest.raises(Gone, match="make a new one"):
            desk.put("orders", old)
        counter.clock.pass_s(1)
        assert desk.put("orders", desk.issue())


def test_the_window_has_bounds(counter):
    with pytest.raises(Misuse, match="window_s is 700000, must be above 0 and at most"):
        Desk(**counter.places, window_s=700_000)
