import asyncio
import threading
from dataclasses import dataclass

import pytest

import onefold
from onefold import Endpoint, Message, Out, Outcome
from onefold.errors import BadInput, Misuse, StoreFailed
from onefold.outbox.plans import Create
from onefold.outbox.runner import World
from onefold.outbox.stores.sqlite import MemoryLedger, MemoryQueue

PLANS = ["transactional", "checkpointed", "parented"]


def count(state, message):
    return {"n": (state or {"n": 0})["n"] + message["n"]}, [Out("shipping", {"n": message["n"]})]


def with_token(ledger: MemoryLedger, token: str, body: object, to: str = "orders") -> Message:
    assert ledger.create([Create("", "", ((token, to),), guarded=False)]) == [True]
    return Message(token, to, body)


class Severed(MemoryQueue):
    """A transport that takes nothing until its line is mended."""

    severed = True

    def send(self, parcels):
        if self.severed:
            raise StoreFailed("the line is cut")
        super().send(parcels)


@pytest.fixture(params=PLANS)
def shop(request):
    ledger, queue = MemoryLedger(), MemoryQueue()
    if request.param == "transactional":
        return Endpoint("shop", store=ledger, transport=queue), ledger, ledger, queue
    tokens = MemoryLedger()
    return Endpoint("shop", store=ledger, tokens=tokens, transport=queue, plan=request.param), ledger, tokens, queue


def test_a_message_counts_once_and_what_it_sends_is_sent_with_a_token(shop):
    app, _, tokens, queue = shop
    app.handler("orders", key="order")(count)
    message = with_token(tokens, "t1", {"order": 7, "n": 5})
    assert [app.process(message) for _ in range(3)] == [Outcome.APPLIED, Outcome.DUPLICATE, Outcome.DUPLICATE]
    assert app.state("7") == {"n": 5}
    assert queue.waiting() == {"shipping": 1}
    assert [token.to for token in tokens.listed()] == ["shipping"]


def test_what_a_source_has_at_a_mark_is_sent_once(shop):
    app, ledger, tokens, queue = shop
    outs = [Out(("orders", "audit"), {"n": 1}), Out("orders", {"n": 2})]
    assert [app.take("orders.log", mark, outs) for mark in (3, 3, 1, 4)] == [
        Outcome.APPLIED,
        Outcome.DUPLICATE,
        Outcome.DUPLICATE,
        Outcome.APPLIED,
    ]
    assert queue.waiting() == {"orders": 4, "audit": 2}
    assert tokens.live().tokens == 6
    assert not ledger.stranded(2**62, 10)


def test_many_threads_that_take_one_source_send_each_mark_once(shop):
    app, _, tokens, _queue = shop
    outcomes: list[Outcome] = []

    def take() -> None:
        for mark in range(20):
            outcomes.append(app.take("s", mark, [Out("orders", mark)]))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while app.recover(0).conflicts:
        pass
    bodies = [each.payload for each in app.world.queue.lease(["orders"], 1_000, 60_000)]
    assert tokens.live().tokens == len(set(bodies))
    assert len(outcomes) == 80


def test_what_a_handler_raises_is_raised_and_changes_nothing(shop):
    app, ledger, tokens, queue = shop

    @app.handler("orders", key="order")
    def fail(state, message):
        raise ZeroDivisionError("no sum")

    message = with_token(tokens, "t1", {"order": 7})
    with pytest.raises(ZeroDivisionError, match="no sum"):
        app.process(message)
    assert (app.state("7"), tokens.live().tokens, queue.waiting()) == (None, 1, {})
    assert not ledger.stranded(2**62, 10)


def test_a_late_copy_is_a_duplicate_even_if_the_handler_refuses_it(shop):
    app, _, tokens, _ = shop

    @app.handler("orders", key="order")
    def once(state, message):
        if state is not None:
            raise ValueError("there is such an order")
        return {"placed": True}, []

    message = with_token(tokens, "t1", {"order": 7})
    assert [app.process(message), app.process(message)] == [Outcome.APPLIED, Outcome.DUPLICATE]


@dataclass
class Counting:  # as dataclasses are, it has no hash
    by: int

    def __call__(self, state, message):
        return {"n": (state or {"n": 0})["n"] + self.by}, []


def test_an_object_that_can_be_called_is_a_handler(shop):
    app, _, tokens, _ = shop
    app.handler("orders", key="order")(Counting(2))
    assert app.process(with_token(tokens, "t1", {"order": 7})) is Outcome.APPLIED
    assert app.state("7") == {"n": 2}


def test_an_async_handler_is_a_handler(shop):
    app, _, tokens, _ = shop

    @app.handler("orders", key=lambda message: message["order"])
    async def pay(state, message):
        await asyncio.sleep(0)
        return "paid", None

    assert app.process(with_token(tokens, "t1", {"order": "x"})) == Outcome.APPLIED
    assert app.state("x") == "paid"
    app.close()


def test_a_reply_goes_to_the_one_who_asked(shop):
    app, _, _, queue = shop
    app.handler("orders", key="order")(lambda state, message: (1, [Out.reply("done")]))
    app.take("r1", 1, [Out("orders", {"order": 7})], origin="desk/r1")
    app.consume(until_empty=True)
    (answer,) = queue.lease(["desk"], 10, 60_000)
    assert b'"body":{"answer":"done","request":"r1"}' in answer.payload


@pytest.mark.parametrize(
    ("body", "to", "line"),
    [
        ({"n": 1}, "orders", "has no 'order'"),
        ({"order": True}, "orders", "must be text or a whole number"),
        ({"order": 7}, "refunds", "no handler for 'refunds'"),
    ],
)
def test_a_message_for_nobody_is_bad_input(body, to, line):
    app = Endpoint("shop", store=MemoryLedger(), transport=MemoryQueue())
    app.handler("orders", key="order")(count)
    with pytest.raises(BadInput, match=line):
        app.process(Message("t1", to, body))


def test_a_token_of_another_store_is_bad_input():
    app = Endpoint("shop", store=MemoryLedger(realm="here"), transport=MemoryQueue())
    app.handler("orders", key="order")(count)
    with pytest.raises(BadInput, match="kept in 'there', not in 'here'"):
        app.process(Message("t1", "orders", {"order": 1}, realm="there"))


def test_what_makes_no_sense_is_misuse(tmp_path):
    ledger, queue = MemoryLedger(), MemoryQueue()
    with pytest.raises(Misuse, match="'tokens' would have no effect"):
        Endpoint("shop", store=ledger, transport=queue, tokens=ledger, plan="transactional")
    with pytest.raises(Misuse, match="plan is 'fast', must be one of checkpointed, parented, transactional"):
        Endpoint("shop", store=ledger, transport=queue, plan="fast")
    with pytest.raises(Misuse, match="MemoryQueue keeps no tokens"):
        Endpoint("shop", store=queue, transport=queue)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="name of a queue"):
        Endpoint("a/b", store=ledger, transport=queue)
    app = Endpoint("shop", store=ledger, transport=queue)
    app.handler("orders", key="order")(count)
    with pytest.raises(Misuse, match="orders has a handler in shop already"):
        app.handler("orders", key="order")(count)
    with pytest.raises(Misuse, match="key is ''"):
        app.handler("refunds", key="")
    with pytest.raises(Misuse, match="mark is -1"):
        app.take("s", -1, [])
    with pytest.raises(Misuse, match="concurrency is 0"):
        app.consume(concurrency=0)
    with pytest.raises(Misuse, match="no handlers"):
        Endpoint("other", store=ledger, transport=queue).consume()


def test_an_address_is_opened_when_it_is_first_needed_and_never_shown(tmp_path):
    app = Endpoint("shop", store=f"sqlite:///{tmp_path}/s.db", transport=f"sqlite:///{tmp_path}/s.db")
    assert not list(tmp_path.iterdir())
    assert repr(app) == "<Endpoint shop: local, handles nothing>"
    with app:
        assert app.take("s", 1, [Out("orders", 1)]) == Outcome.APPLIED
    with Endpoint("shop", store=f"sqlite:///{tmp_path}/s.db", transport=f"sqlite:///{tmp_path}/s.db") as again:
        assert again.take("s", 1, [Out("orders", 1)]) == Outcome.DUPLICATE
    with pytest.raises(Misuse, match="closed"):
        app.take("s", 2, [])


def test_what_was_given_stays_open():
    ledger, queue = MemoryLedger(), MemoryQueue()
    with Endpoint("shop", store=ledger, transport=queue) as app:
        app.take("s", 1, [Out("orders", 1)])
    assert (ledger.live().tokens, queue.waiting()) == (1, {"orders": 1})


@pytest.mark.parametrize("after", PLANS)
@pytest.mark.parametrize("before", PLANS)
@pytest.mark.parametrize("by_the_pump", [False, True])
def test_a_plan_finishes_what_another_plan_was_cut_off_at(before, after, by_the_pump):
    ledger, queue = MemoryLedger(), Severed()

    def endpoint(plan: str) -> Endpoint:
        app = Endpoint("shop", store=ledger, transport=queue, plan=plan)
        app.handler("orders", key="order")(lambda state, message: ((state or 0) + 1, [Out("shipping", 1)]))
        return app

    message = with_token(ledger, "t1", {"order": 7})
    with pytest.raises(StoreFailed):
        endpoint(before).process(message)  # the state is changed, nothing could be sent
    queue.severed = False
    app = endpoint(after)
    if by_the_pump:
        assert app.recover(0).finished == 1
    else:
        assert app.process(message) in (Outcome.RESUMED, Outcome.TIDIED)
    assert app.process(message) == Outcome.DUPLICATE
    assert (app.state("7"), queue.waiting()) == (1, {"shipping": 1})
    assert (ledger.live().tokens, ledger.stranded(2**62, 10)) == (1, [])


@pytest.mark.parametrize("plan", PLANS)
def test_a_handler_that_is_a_coroutine_is_waited_for_under_every_plan(plan):
    ledger, queue = MemoryLedger(), MemoryQueue()

    with Endpoint("shop", store=ledger, transport=queue, plan=plan) as app:

        @app.handler("orders", key="order")
        async def pay(state, message):
            return (state or 0) + message["n"], [Out("shipping", {})]

        message = with_token(ledger, "t1", {"order": 7, "n": 2})
        assert [app.process(message), app.process(message)] == [Outcome.APPLIED, Outcome.DUPLICATE]
    assert queue.waiting() == {"shipping": 1}


def test_what_cannot_be_processed_is_told():
    one, two, queue = MemoryLedger(), MemoryLedger(), MemoryQueue()
    with pytest.raises(Misuse, match="in one database: these are two"):
        _ = World(one, two, queue).ledger
    app = Endpoint("shop", store=one, transport=queue)
    app.handler("orders", key="k")(count)
    with pytest.raises(Misuse, match="belongs to the marks of sources"):
        app.process(Message("t#1", "orders", {"k": 1}))


def test_the_public_names_are_there():
    assert {"Endpoint", "Message", "Out", "Outcome"} <= set(onefold.__all__)
