import threading
from typing import Any

import pytest

from onefold import Endpoint, Message, Out, Outcome
from onefold.errors import Misuse, StoreFailed
from onefold.outbox import PLANS, Taken, sourced, sourced_at_once
from onefold.outbox.plans import Acknowledge, Create, Entity, Outgoing, Persist, unpack_message
from onefold.outbox.runner import HandlerCalls, Job, World
from onefold.outbox.stores.sqlite import MemoryQueue, SqliteLedger

START_MS = 1_000_000
MONTH_MS = 30 * 86_400_000


class Clock:
    now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class Shop:
    """An endpoint over one file or two, whose workers can die."""

    def __init__(self, plan, folder):
        self.clock = Clock()
        self.ledger = self.tokens = SqliteLedger(folder / "entities.db", self.clock)
        places: dict[str, Any] = {"store": self.ledger, "transport": MemoryQueue(self.clock), "clock_ms": self.clock}
        if plan != "transactional":
            self.tokens = SqliteLedger(folder / "tokens.db", self.clock)
            places |= {"tokens": self.tokens, "plan": plan}
        self.app = Endpoint("shop", **places)
        self.app.handler("orders", key="order")(self.handle)
        self.plan = plan

    def handle(self, state, message):
        return {"n": (state or {"n": 0})["n"] + 1}, [Out("shipping", {"for": message["order"]})]

    def sent(self):
        deliveries = self.app.world.queue.lease(["shipping"], 100, 1)
        self.clock.now_ms += 1
        return [unpack_message(each.payload) for each in deliveries]

    def close(self):
        self.app.close()
        self.ledger.close()
        self.tokens.close()


@pytest.fixture(params=sorted({*PLANS} - {"local"}))  # which leaves nothing to recover
def shop(request, tmp_path):
    found = Shop(request.param, tmp_path)
    yield found
    found.close()


def die_after(world: World, job: Job, steps: int) -> bool:
    """Lead an attempt for so many steps, then forget it; False if it had ended before."""
    job.go_on(None)
    for _ in range(steps):
        if job.pending is None:
            return False
        kind = type(job.pending)
        if kind.__name__ == "Handle":
            job.go_on(job.call(job.works[0], job.pending))  # type: ignore[misc,arg-type]
        else:
            job.go_on(None if kind is Acknowledge else world.perform(kind, [job.pending])[0])
    return job.pending is not None


def test_wherever_a_worker_dies_recovery_and_the_next_delivery_leave_nothing(shop):
    world = shop.app.world
    for steps in range(1, 20):
        token, name = f"t{steps}", f"o{steps}"
        shop.tokens.create([Create("", "", ((token, "orders"),), guarded=False)])
        work = shop.app.work(Message(token, "orders", {"order": name}))
        assert work.key is not None
        job = Job(PLANS[shop.plan](work.key, work.message), [work], HandlerCalls(shop.app.loop))
        if not die_after(world, job, steps):
            break
        shop.clock.now_ms += 60_000
        stranded = len(shop.ledger.stranded(2**62, 10))
        assert shop.app.recover(60).finished == stranded
        assert not shop.ledger.stranded(2**62, 10)
        assert shop.app.process(work.message) in (Outcome.APPLIED, Outcome.DUPLICATE)
        assert shop.app.state(name) == {"n": 1}
        assert len({message.token for message in shop.sent() if message["for"] == name}) == 1
    assert steps > 5
    assert all(token.to == "shipping" for token in shop.tokens.listed())
    assert not shop.tokens.listed(orphans=True)


def strand(shop, mark, to="shipping"):
    """Leave a mark half taken: its entry is written, and nothing was sent."""
    taken = Taken(shop.app.key("log"), mark, (Outgoing(to, {"for": mark, "order": mark}),))
    at_once = shop.plan == "transactional"
    assert die_after(shop.app.world, Job((sourced_at_once if at_once else sourced)(taken)), 3 if at_once else 2)


def test_what_is_younger_is_left_to_those_who_are_at_it(shop):
    strand(shop, 1)
    shop.clock.now_ms += 59_999
    assert shop.app.recover(60).finished == 0
    shop.clock.now_ms += 1
    assert shop.app.recover(60).finished == 1
    assert len(shop.sent()) == 1


def test_several_entries_of_one_entity_are_finished_one_after_the_other(shop):
    for mark in range(3):
        strand(shop, mark)
    recovered = shop.app.recover(0)
    assert (recovered.finished, recovered.conflicts) == (3, 0)
    assert len({message.token for message in shop.sent()}) == 3


def test_tokens_of_a_source_that_came_too_late_are_swept_and_no_others(tmp_path):
    shop = Shop("checkpointed", tmp_path)
    world, taken = shop.app.world, Taken(shop.app.key("a#b/log"), 1, (Outgoing("shipping", {"for": 1}),))
    late = Job(sourced(taken))
    assert die_after(world, late, 3)  # load, persist, fresh: its tokens are still to be made
    assert isinstance(late.pending, Create)
    shop.clock.now_ms += 1
    assert shop.app.recover(0).finished == 1
    late.go_on(*world.perform(Create, [late.pending]))
    late.go_on(*world.perform(Persist, [late.pending]))
    assert late.ended is Outcome.CONFLICT
    under_way = Job(sourced(Taken(shop.app.key("other"), 1, (Outgoing("shipping", {"for": 2}),))))
    assert die_after(world, under_way, 4)
    shop.tokens.create([Create("stranger/log#1", "x", (("foreign", "orders"),), guarded=False)])
    assert len(shop.tokens.listed(orphans=True)) == 3
    assert shop.app.recover(60).swept == 1
    assert {token.parent for token in shop.tokens.listed()} == {"", "shop/other#1", "stranger/log#1"}
    shop.close()


@pytest.mark.parametrize("sweeper", ["transactional", "parented"])
def test_tokens_that_lost_against_a_plan_that_frees_none_are_swept(tmp_path, sweeper):
    shop = Shop("transactional", tmp_path)
    shop.tokens.create([Create("", "", (("t", "orders"),), guarded=False)])
    work = shop.app.work(Message("t", "orders", {"order": "o"}))
    assert work.key is not None
    late = Job(PLANS["parented"](work.key, work.message), [work], HandlerCalls(shop.app.loop))
    assert die_after(shop.app.world, late, 4)  # load, handle, fresh, create
    assert shop.app.process(work.message) is Outcome.APPLIED
    (lost,) = shop.tokens.listed(orphans=True)
    late.go_on(*shop.app.world.perform(Persist, [late.pending]))
    assert (late.ended, lost.parent) == (Outcome.CONFLICT, "t")
    anybody = Endpoint("other", store=shop.ledger, transport=MemoryQueue(), plan=sweeper, clock_ms=shop.clock)
    shop.clock.now_ms += 59_999
    assert anybody.recover(60).swept == 0
    shop.clock.now_ms += 1
    assert anybody.recover(60).swept == 1
    (sent,) = shop.sent()
    assert [token.token for token in shop.tokens.listed()] == [sent.token]
    shop.close()


def test_old_tombstones_go(shop):
    shop.app.handler("closing", key="order")(lambda state, message: (None, []))
    shop.app.take("log", 1, [Out("orders", {"order": 7}), Out("closing", {"order": 7})])
    shop.app.consume(until_empty=True)
    assert shop.app.state("7") is None
    shop.clock.now_ms += 1_000
    assert shop.app.recover(60, tombstone_s=10).purged == 0
    shop.clock.now_ms += 10_000
    assert shop.app.recover(60, tombstone_s=10).purged == 1


def test_the_pump_of_a_consumer_recovers_and_does_the_chores(shop):
    strand(shop, 1, to="orders")
    shop.clock.now_ms += 3_600_000  # so that the pump leaves alone what the consumer is at
    stop, runs = threading.Event(), []

    def chore() -> None:
        runs.append(shop.app.state("1"))
        if runs[-1] is not None:
            stop.set()

    shop.app.chores.append(chore)
    tally = shop.app.consume(stop=stop, stranded_s=60, recover_s=0.01)
    assert str(tally) == "1 in = 1 first + 0 repeat + 0 unsure + 0 reject"
    assert runs[-1] == {"n": 1}


def test_a_chore_that_fails_keeps_nobody_from_the_others(tmp_path, caplog):
    class Stuck(SqliteLedger):
        def stranded(self, *_, **__):
            raise StoreFailed("it does not answer")

    stop, ledger = threading.Event(), Stuck(tmp_path / "s.db")
    app = Endpoint("shop", store=ledger, transport=MemoryQueue())
    app.handler("orders", key="order")(lambda state, message: (1, []))
    app.chores += [lambda: 1 // 0, stop.set]
    app.consume(stop=stop)
    assert {"the pump: StoreFailed: it does not answer"} < set(caplog.messages)
    assert "ZeroDivisionError" in caplog.text
    ledger.close()


@pytest.mark.parametrize("age_s", [-1, float("inf"), float("nan")])
def test_an_age_that_cannot_be_is_misuse(shop, age_s):
    with pytest.raises(Misuse, match=f"older_than_s is {age_s}"):
        shop.app.recover(age_s)


def test_what_a_clock_that_was_ahead_left_is_finished_when_it_is_back(shop):
    shop.clock.now_ms += MONTH_MS
    strand(shop, 1)
    shop.clock.now_ms -= MONTH_MS
    assert shop.app.recover(60).finished == 1
    assert len(shop.sent()) == 1


def test_orphans_of_a_clock_that_was_ahead_are_swept_when_it_is_back(shop):
    shop.clock.now_ms += MONTH_MS
    shop.tokens.create([Create("gone", "a", (("orphan", "orders"),), guarded=False)])
    shop.clock.now_ms -= MONTH_MS
    assert shop.app.recover(60).swept == 1
    assert shop.tokens.listed() == []


def test_a_consumer_looks_for_tombstones_at_its_start_and_then_seldom(shop):
    looks: list[int] = []
    stop, pumped = threading.Event(), list[int]()
    purge = shop.ledger.purge

    def counted(before_ms, endpoint=None):
        looks.append(before_ms)
        return purge(before_ms, endpoint)

    def note():
        pumped.append(1)
        if len(pumped) == 3:
            stop.set()

    shop.ledger.purge = counted
    shop.app.chores.append(note)
    shop.app.consume(stop=stop, recover_s=0.01)
    assert len(looks) == 1


def test_a_clock_that_jumps_ahead_while_a_consumer_runs_does_not_make_its_tombstones_old(shop, monkeypatch):
    monkeypatch.setattr("onefold.outbox.worker.PURGE_S", 0)
    key = shop.app.key("o1")
    shop.ledger.persist([Entity(key, 0, {"n": 1})])
    shop.ledger.persist([Entity(key, 1, None)])
    stop = threading.Event()

    def jump():
        shop.clock.now_ms += MONTH_MS

    pumped: list[int] = []

    def note():
        """Called by the pump after each recovery: let it recover once before the jump and once after."""
        pumped.append(1)
        if len(pumped) == 1:
            jump()
        elif len(pumped) == 3:
            stop.set()

    shop.app.chores.append(note)
    shop.app.consume(stop=stop, recover_s=0.01)
    assert len(pumped) >= 3
    assert shop.ledger.load([key])[0].version == 2, "it is remembered"
    shop.app.consume(stop=stop, recover_s=0.01)  # what begins now has no other clock to believe
    assert shop.ledger.load([key])[0].version == 0
