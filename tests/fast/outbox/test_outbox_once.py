"""`ctx.once`: what is done outside has one key per message, and its answer is kept."""

import asyncio
from dataclasses import replace

import pytest

from onefold import Endpoint, Out, Outcome
from onefold.outbox import MemoryLedger, MemoryQueue, Message
from onefold.outbox.explore import SHIPPED, Convicted, Topology, Wrong, explored
from onefold.outbox.explore.topology import Stage
from onefold.outbox.plans import ONCE, Call, Create, Finish, Fresh, Handle, Handling, Persist, Settle
from onefold.outbox.runner import HandlerCalls, Job
from onefold.testing import explore

PLANS = ["transactional", "checkpointed", "parented"]


class Provider:
    """Honours keys: what comes again under one is answered as before, and done once."""

    def __init__(self):
        self.done, self.calls = {}, []

    def charge(self, key):
        self.calls.append(key)
        return self.done.setdefault(key, {"receipt": len(self.done) + 1})


class Shop:
    def __init__(self, plan):
        self.ledger, self.provider = MemoryLedger(), Provider()
        tokens = None if plan == "transactional" else MemoryLedger()
        self.app = Endpoint("shop", store=self.ledger, transport=MemoryQueue(), plan=plan, tokens=tokens)
        self.app.handler("orders", key="order")(self.pay)
        self.app.world.tokens.create([Create("", "", (("t1", "orders"),), guarded=False)])
        self.message = Message("t1", "orders", {"order": 7})

    def pay(self, state, message, ctx):
        paid = ctx.once("charge", self.provider.charge)
        mailed = ctx.once("mail", lambda key: {"for": paid["receipt"], "key": key})
        return {"paid": paid["receipt"], "mail": mailed}, [Out("shipping", {"order": message["order"]})]

    def cut_off(self, behind):
        """An attempt that dies when this many steps of these kinds are done."""
        work = self.app.work(self.message)
        assert work.key is not None
        call = HandlerCalls(self.app.loop)
        job = Job(SHIPPED[self.app.plan].plan(work.key, work.message), [work], call)
        job.go_on(None)
        kinds, many = behind
        while job.pending is not None and many:
            step = job.pending
            many -= isinstance(step, kinds)
            if isinstance(step, Handle | Call):
                job.go_on(call(work, step))
            else:
                job.go_on(self.app.world.perform(type(step), [step])[0])


@pytest.fixture(params=PLANS)
def shop(request):
    return Shop(request.param)


def test_a_call_is_made_once_and_its_answer_is_used(shop):
    assert shop.app.process(shop.message) is Outcome.APPLIED
    assert shop.app.process(shop.message) is Outcome.DUPLICATE
    assert shop.app.state("7") == {"paid": 1, "mail": {"for": 1, "key": "t1:mail"}}
    assert shop.provider.calls == ["t1:charge"]
    assert shop.app.world.entities.load([shop.app.key("7")])[0].outbox == {}


def test_a_crash_before_the_answer_is_kept_calls_again_under_the_same_key(shop):
    shop.cut_off((Call, 1))
    assert shop.app.process(shop.message) is Outcome.APPLIED
    assert shop.provider.calls == ["t1:charge"] * 2
    assert shop.app.state("7")["paid"] == 1


def test_a_crash_after_that_does_not(shop):
    shop.cut_off(((Settle, Persist), 1))
    assert "t1" + ONCE in shop.app.world.entities.load([shop.app.key("7")])[0].outbox
    assert shop.app.process(shop.message) is Outcome.APPLIED
    assert shop.provider.calls == ["t1:charge"]


def test_a_failure_of_the_provider_is_one_of_the_handler(shop):
    shop.provider.charge = None
    with pytest.raises(TypeError):
        shop.app.process(shop.message)
    assert shop.app.world.tokens.holds(["t1"]) == [True]


def test_answers_that_are_still_needed_are_kept_by_the_pump_and_others_removed(shop):
    shop.cut_off(((Settle, Persist), 1))
    assert shop.app.recover(0).conflicts == 1
    shop.app.world.tokens.discard("t1")
    assert (shop.app.recover(0).finished, shop.app.recover(0).finished) == (1, 0)
    assert shop.app.world.entities.load([shop.app.key("7")])[0].outbox == {}


def test_a_copy_that_comes_too_late_does_nothing_outside(shop):
    shop.app.world.tokens.discard("t1")
    assert shop.app.process(shop.message) is Outcome.DUPLICATE
    assert shop.provider.calls == []


def test_coroutines_are_awaited():
    app = Endpoint("shop", store=MemoryLedger(), transport=MemoryQueue())

    async def charge(key):
        await asyncio.sleep(0)
        return key

    @app.handler("orders", key="n")
    async def pay(state, message, ctx):
        await asyncio.sleep(0)
        return ctx.once("charge", charge), []

    app.take("source", 1, [Out("orders", {"n": 1}), Out("orders", {"n": 2})])
    assert str(app.consume(until_empty=True)).startswith("2 in = 2 first")
    assert app.state("1").endswith(":charge")


def test_a_handler_that_does_not_let_go_has_failed():
    app = Endpoint("shop", store=(ledger := MemoryLedger()), transport=MemoryQueue())

    @app.handler("orders", key="n")
    def stubborn(state, message, ctx):
        try:
            ctx.once("charge", lambda key: 1)
        except BaseException:
            return 1, []
        return 2, []

    ledger.create([Create("", "", (("t1", "orders"),), guarded=False)])
    with pytest.raises(Exception, match="must not catch BaseException"):
        app.process(Message("t1", "orders", {"n": 1}))


def buy(state, message, ctx):
    receipt = ctx.once("charge", lambda key: {"n": message["n"]})
    return [*(state or []), receipt["n"]], [Out("told", receipt)]


@pytest.mark.parametrize("plan", [*PLANS, "local"])
def test_every_crash_and_every_order_of_a_call_is_explored(plan):
    found = explore(buy, [{"n": 1}], plan=plan, copies=int(plan != "local"))
    assert found.complete
    assert found.findings == ()


@pytest.mark.parametrize("plan", ["transactional", "local"])
def test_two_messages_of_one_entity_that_call_outside_are_explored(plan):
    assert explore(buy, crashes=0, plan=plan).complete


WORLD = Topology(
    "once", "", (Stage("shop", (Handling("orders", buy, lambda message: "one"),), 2),), (("orders", {"n": 1}),)
)


def fresh_key(steps):
    """A key of the attempt, not of the message."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Call):
            (key,) = yield Fresh(1)
            step = step._replace(key=key)
        answer = yield step


def answers_left(steps):
    """Who finds a message done does not clear its answers."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Finish) and step.name.endswith(ONCE):
            answer = None
            continue
        answer = yield step


@pytest.mark.parametrize(
    ("plan", "rewriter", "wrong"),
    [
        *((plan, fresh_key, Wrong.TWO_KEYS) for plan in [*PLANS, "local"]),
        ("transactional", answers_left, Wrong.ENTRY_LEFT),
    ],
)
def test_a_mistake_in_it_is_convicted(plan, rewriter, wrong):
    shipped = SHIPPED[plan]
    mutant = replace(shipped, name="mutant", plan=lambda key, message: rewriter(shipped.plan(key, message)))
    with pytest.raises(Convicted) as convicted:
        explored(WORLD, mutant)
    assert convicted.value.offence.wrong is wrong
