import asyncio
import threading
import time
from http.client import HTTPConnection

import pytest

from onefold import Endpoint, Out, Verdict
from onefold.errors import Damaged, Misuse, StoreFailed
from onefold.net.http import exposition
from onefold.outbox import Message
from onefold.outbox.metrics import outbox_metrics, watched
from onefold.outbox.plans import pack_message
from onefold.outbox.ports import Parcel
from onefold.outbox.stores.sqlite import MemoryLedger, MemoryQueue, SqliteLedger, SqliteQueue
from onefold.outbox.worker import Consumer, Consuming
from tests.lib.redis_server import RedisServer


def count(state, message):
    return {"n": (state or {"n": 0})["n"] + 1}, [Out("shipping", {"order": message["order"]})]


def shipped(state, message):
    return {"shipped": True}, []


def ship_key(message):
    return f"ship-{message['order']}"


def orders(app, many, per=50, entities=10):
    for mark, at in enumerate(range(0, many, per)):
        numbers = range(at, min(at + per, many))
        app.take("orders.log", mark, [Out("orders", {"order": n % entities, "number": n}) for n in numbers])


@pytest.fixture
def shop():
    return Endpoint("shop", store=MemoryLedger(), transport=MemoryQueue())


@pytest.mark.parametrize("plan", ["transactional", "checkpointed", "parented"])
def test_every_message_counts_once_with_many_threads_and_few_entities(plan, tmp_path):
    ledger, queue = SqliteLedger(tmp_path / "s.db"), SqliteQueue(tmp_path / "q.db")
    app = Endpoint("shop", store=ledger, transport=queue, plan=plan)
    app.handler("orders", key="order")(count)
    app.handler("shipping", key=ship_key)(shipped)
    orders(app, 200, entities=5)
    tally = app.consume(until_empty=True, concurrency=3, batch=16)
    assert [app.state(str(n)) for n in range(5)] == [{"n": 40}] * 5
    assert tally.balanced
    assert sum(n for answer, n in tally if answer.reason in ("applied", "resumed")) == 400
    assert (ledger.live().tokens, ledger.stranded(2**62, 10), queue.waiting()) == (0, [], {})
    ledger.close()
    queue.close()


def test_two_consumers_share_the_work_and_a_copy_counts_for_nothing(shop):
    shop.handler("orders", key="order")(lambda state, message: ((state or 0) + 1, []))
    orders(shop, 300, entities=3)
    copies = shop.world.queue.lease(["orders"], 100, 1)
    shop.world.queue.send([Parcel(each.queue, each.payload) for each in copies])
    other = Endpoint("shop", store=shop.world.ledger, transport=shop.world.queue)
    other.handler("orders", key="order")(lambda state, message: ((state or 0) + 1, []))
    tallies = []
    threads = [
        threading.Thread(target=lambda app=app: tallies.append(app.consume(until_empty=True, concurrency=2, batch=8)))
        for app in (shop, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both = tallies[0] + tallies[1]
    assert [shop.state(str(n)) for n in range(3)] == [100] * 3
    assert sum(n for answer, n in both if answer.reason == "applied") == 300
    assert sum(n for answer, n in both if answer.reason == "duplicate") == 100
    assert shop.world.tokens.live().tokens == 0


def test_async_handlers_of_a_batch_wait_together(shop):
    running, most = 0, 0

    @shop.handler("orders", key="number")
    async def pay(state, message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return 1, []

    orders(shop, 60)
    assert shop.consume(until_empty=True, batch=60).count(Verdict.FIRST) == 60
    assert most == 60
    shop.close()


def test_a_handler_that_fails_is_called_again_and_then_its_message_is_a_dead_letter_with_its_token(shop, caplog):
    calls = []

    @shop.handler("orders", key="order")
    def fail(state, message):
        calls.append(message["order"])
        if message["order"] == 1:
            raise KeyError("price")
        return 1, []

    orders(shop, 3, entities=3)
    consumer = Consumer(shop, Consuming(until_empty=True, attempts_max=3, backoff_s=0.01))
    tally = consumer.run()
    assert {str(answer): n for answer, n in tally} == {"FIRST applied": 2, "UNSURE handler_failed": 3}
    assert (calls.count(1), calls.count(2), consumer.books.buried) == (3, 1, 1)
    (letter,) = shop.world.queue.buried()
    assert letter.reason.splitlines()[0] == "orders: KeyError: 'price' (delivery 3)"
    assert shop.world.tokens.live().tokens == 1
    assert "set aside: orders: KeyError: 'price' (delivery 3)" in caplog.messages
    shop.world.queue.dig_up([letter], deliver=True)
    assert shop.consume(until_empty=True, attempts_max=1).count(Verdict.UNSURE) == 1


@pytest.mark.parametrize(
    "answer", [None, 7, ({}, [("shipping", {})]), ({1, 2}, []), ({}, Out("shipping", 1)), (1, [Out("a b", 1)])]
)
def test_what_cannot_be_kept_is_a_failure_of_the_handler(shop, answer):
    shop.handler("orders", key="order")(lambda state, message: answer)
    orders(shop, 1)
    tally = shop.consume(until_empty=True, attempts_max=1)
    assert [str(each) for each, _ in tally] == ["UNSURE handler_failed"]
    assert shop.state("0") is None


@pytest.mark.parametrize("end", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt(), BaseException("odd")])
def test_a_handler_cannot_end_the_consumer(shop, end):
    @shop.handler("orders", key="order")
    async def leave(state, message):
        raise end

    @shop.handler("refunds", key="order")
    def leave_too(state, message):
        raise end

    shop.take("s", 1, [Out(("orders", "refunds"), {"order": 1})])
    assert shop.consume(until_empty=True, attempts_max=1).count(Verdict.UNSURE) == 2
    shop.close()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff", "malformed: not a message: "),
        (b'{"token": "t", "to": "orders", "body": 1, "realm": "here"}', "malformed: orders: the message has no"),
        (b'{"token": "t#1", "to": "orders", "body": {"order": 1}, "realm": "here"}', "malformed: token is 't#1'"),
        (b'{"token": "t", "to": "odd", "body": {"order": 1}, "realm": "here"}', "malformed: ZeroDivisionError: "),
        (b'{"token": "t", "to": "nobody", "body": {}}', "no_handler: shop has no handler for 'nobody'"),
        (b'{"token": "t", "to": "orders", "body": {"order": 1}}', "foreign_token: its token is kept in '', not"),
    ],
)
def test_what_can_never_be_processed_is_a_dead_letter_at_once(payload, reason):
    shop = Endpoint("shop", store=MemoryLedger(realm="here"), transport=MemoryQueue())
    shop.handler("orders", key="order")(count)
    shop.handler("odd", key=lambda message: 1 // 0)(count)
    shop.world.queue.send([Parcel("odd" if b"odd" in payload else "orders", payload)])
    tally = shop.consume(until_empty=True)
    (letter,) = shop.world.queue.buried()
    assert letter.reason.startswith(reason)
    assert [(str(answer.verdict), answer.reason) for answer, _ in tally] == [("REJECT", reason.partition(":")[0])]


def test_a_message_that_came_by_another_queue_is_malformed():
    shop = Endpoint("shop", store=MemoryLedger(realm="here"), transport=MemoryQueue())
    shop.handler("orders", key="order")(count)
    shop.handler("refunds", key="order")(count)
    payload = pack_message(Message("t", "orders", {"order": 1}, realm="here"))
    shop.world.queue.send([Parcel("refunds", payload)])
    shop.consume(until_empty=True)
    assert shop.world.queue.buried()[0].reason == "malformed: it is for 'orders' and came by 'refunds'"


class Failing(MemoryLedger):
    """A ledger that does not answer for a while."""

    down = 0
    error: type[Exception] = StoreFailed

    def settle(self, steps):
        if self.down:
            self.down -= 1
            raise self.error("the disk is full")
        return super().settle(steps)


def test_while_a_store_fails_nothing_becomes_a_dead_letter(caplog):
    ledger, queue = Failing(), MemoryQueue()
    app = Endpoint("shop", store=ledger, transport=queue)
    app.handler("orders", key="order")(count)
    orders(app, 20)
    ledger.down = 3
    tally = app.consume(until_empty=True, attempts_max=1, backoff_s=0.01)
    reasons = {answer.reason: n for answer, n in tally}
    assert reasons["applied"] == 20
    assert reasons["store_failed"] >= 3
    assert queue.buried() == []
    assert tally.balanced
    assert "StoreFailed: the disk is full: waiting for it" in caplog.messages


def test_however_often_a_store_sent_a_message_back_it_is_no_dead_letter():
    ledger, queue = Failing(), MemoryQueue()
    app = Endpoint("shop", store=ledger, transport=queue)
    app.handler("orders", key="order")(count)
    orders(app, 3, entities=3)
    for _ in range(9):
        queue.release(queue.lease(["orders"], 3, 1_000))
    ledger.down = 2
    tally = app.consume(until_empty=True, attempts_max=1, backoff_s=0)
    # The first time one of them, which is alone; then they count from one again, and are together.
    assert {answer.reason: n for answer, n in tally} == {"store_failed": 4, "applied": 3}
    assert (queue.buried(), queue.waiting()) == ([], {"shipping": 3})


def test_it_is_in_trouble_until_what_failed_got_through():
    ledger, seen = Failing(), []
    app = Endpoint("shop", store=ledger, transport=MemoryQueue())

    @app.handler("orders", key="order")
    def look(state, message):
        seen.append(consumer.trouble)
        return 1, []

    orders(app, 1)
    consumer: Consumer = Consumer(app, Consuming(until_empty=True, backoff_s=0.8))
    ledger.down = 1
    consumer.run()
    assert seen == [None, "StoreFailed: the disk is full"]


def test_a_key_is_asked_for_once_however_often_a_message_is_tried():
    keys = iter(["all"])  # who asks again gets StopIteration
    calls = []

    def meddle(state, message):
        calls.append(state)
        if len(calls) == 1:  # somebody else is faster
            ledger.persist([ledger.load([app.key("all")])[0].changed(7)])
        return 8, []

    ledger = MemoryLedger()
    app = Endpoint("shop", store=ledger, transport=MemoryQueue())
    app.handler("orders", key=lambda message: next(keys))(meddle)
    orders(app, 1)
    assert str(app.consume(until_empty=True)) == "1 in = 1 first + 0 repeat + 0 unsure + 0 reject"
    assert (calls, app.state("all")) == ([None, 7], 8)


def test_a_stop_can_be_set_by_a_signal_at_any_moment(shop):
    class Stop(threading.Event):
        def wait(self, timeout=None):
            raise AssertionError("a signal that comes now and sets it waits for a lock that this thread has")

    shop.handler("orders", key="order")(count)
    stop = Stop()
    shop.consume(stop=stop, on_start=stop.set)


@pytest.mark.parametrize("name", ["lease_s", "recover_s", "backoff_s", "backoff_max_s", "stranded_s", "tombstone_s"])
@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), 1e15])
def test_a_time_that_no_clock_can_tell_is_misuse(name, seconds):
    with pytest.raises(Misuse, match=f"{name} is .*, must be from 0"):
        Consuming(**{name: seconds})


def test_what_waiting_cannot_mend_ends_the_consumer():
    ledger, queue = Failing(), MemoryQueue()
    ledger.error = Damaged
    app = Endpoint("shop", store=ledger, transport=queue)
    app.handler("orders", key="order")(count)
    orders(app, 3)
    ledger.down = 10
    with pytest.raises(Damaged, match="the disk is full"):
        app.consume(backoff_s=0)
    assert queue.waiting() == {"orders": 3}


def test_a_stop_finishes_what_is_in_hand_and_gives_the_rest_back(shop):
    stop, begun = threading.Event(), threading.Event()
    going_on = threading.Event()

    @shop.handler("orders", key=lambda message: "all")
    def slow(state, message):
        begun.set()
        going_on.wait(60)
        return (state or 0) + 1, []

    orders(shop, 10)
    tallies = []
    consumer = Consumer(shop, Consuming(batch=10), stop=stop)
    consuming = threading.Thread(target=lambda: tallies.append(consumer.run()))
    consuming.start()
    assert begun.wait(60)
    stop.set()
    assert consumer.ending.wait(60)
    going_on.set()
    consuming.join(60)
    assert str(tallies[0]) == "1 in = 1 first + 0 repeat + 0 unsure + 0 reject"
    assert shop.state("all") == 1
    assert len(shop.world.queue.lease(["orders"], 100, 1_000)) == 9


def test_a_lease_lasts_as_long_as_the_work(shop):
    calls = []

    @shop.handler("orders", key="order")
    def slow(state, message):
        calls.append(message["number"])
        time.sleep(2.2)
        return 1, []

    orders(shop, 2, entities=2)
    tally = shop.consume(until_empty=True, lease_s=1, concurrency=2)  # a busy machine renews in time
    assert sorted(calls) == [0, 1]
    assert tally.received == 2


def test_the_handler_may_change_what_it_is_given(shop):
    ledger = shop.world.ledger

    @shop.handler("orders", key="order")
    def greedy(state, message):
        message.body["seen"] = message.body.get("seen", 0) + 1
        if message.body["number"] == 0 and state is None and not rivals:
            rivals.append(1)  # somebody else writes in between: a conflict, and the handler is called again
            (entity,) = ledger.load([shop.key("0")])
            ledger.persist([entity.changed({"rival": True})])
        return {"seen": message.body["seen"], "rival": bool(state)}, []

    rivals: list[int] = []
    orders(shop, 1)
    tally = shop.consume(until_empty=True)
    assert shop.state("0") == {"seen": 1, "rival": True}
    assert str(tally) == "1 in = 1 first + 0 repeat + 0 unsure + 0 reject"


def test_the_figures_are_those_of_the_books_and_the_stores(shop):
    shop.handler("orders", key="order")(count)
    orders(shop, 3)
    shop.world.queue.send([Parcel("orders", b"?")])
    consumer = Consumer(shop, Consuming(until_empty=True))
    consumer.run()
    text = exposition(lambda: outbox_metrics(consumer)).decode()
    for line in [
        'onefold_outbox_deliveries_total{endpoint="shop",reason="applied",verdict="FIRST"} 3.0',
        'onefold_outbox_deliveries_total{endpoint="shop",reason="malformed",verdict="REJECT"} 1.0',
        "onefold_outbox_live_tokens 3.0",
        'onefold_outbox_entries{endpoint="shop"} 0.0',
        'onefold_outbox_buried{queue="orders"} 1.0',
        'onefold_outbox_waiting{queue="orders"} 0.0',
        "onefold_outbox_oldest_token_seconds ",
    ]:
        assert line in text
    shop.world.ledger.close()
    assert "deliveries_total" in exposition(lambda: outbox_metrics(consumer)).decode()


def test_figures_and_health_are_answered_on_loopback(shop):
    shop.handler("orders", key="order")(count)
    consumer = Consumer(shop)

    def get(path, **headers):
        connection = HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    with watched(consumer, 0) as url:
        assert get("/healthz") == (200, b'{"status":"ok","endpoint":"shop","queues":["orders"]}')
        assert b"onefold_outbox_live_tokens 0.0" in get("/metrics")[1]
        consumer.trouble = "StoreFailed: away"
        assert get("/healthz") == (503, b'{"status":"trouble","problem":"StoreFailed: away"}')
        assert get("/x")[0] == 404
        assert get("/metrics", Origin="http://page.example")[0] == 403


def test_a_message_that_kills_whoever_takes_it_is_set_aside_at_last(shop):
    shop.handler("orders", key="order")(count)
    orders(shop, 1)
    queue = shop.world.queue
    for _ in range(20):  # processes that died with it
        queue.release(queue.lease(["orders"], 1, 1_000))
    tally = shop.consume(until_empty=True, attempts_max=1)
    (letter,) = queue.buried()
    assert "given out 21 times and came to no end" in letter.reason
    assert (tally.count(Verdict.UNSURE, "handler_failed"), shop.state("0"), shop.world.tokens.live().tokens) == (
        1,
        None,
        1,
    )


def test_a_token_store_that_can_lose_what_it_confirmed_is_named_at_the_start(tmp_path, caplog):
    with RedisServer(tmp_path / "redis", "--appendonly", "no", "--save", "") as server:
        app = Endpoint("shop", store=MemoryLedger(), tokens=server.url, transport=MemoryQueue())
        app.handler("orders", key="order")(count)
        with app, caplog.at_level("WARNING", "onefold.outbox"):
            app.consume(until_empty=True)
    assert any("appendonly" in record.getMessage() for record in caplog.records)
