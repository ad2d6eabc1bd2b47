"""What a message may carry, and how a handler says what it takes and how often it is tried."""

import datetime
import logging
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from onefold import Endpoint, Out
from onefold.errors import BadInput, Misuse
from onefold.outbox import MemoryLedger, MemoryQueue, Message, Retry, handled
from onefold.outbox.plans import outgoings, unpack_message
from onefold.outbox.ports import REASON_MAX, Parcel
from onefold.outbox.worker import Consumer, Consuming, Lot
from onefold.testing import explore

NOW_MS = 1_800_000_000_000


@dataclass
class Line:
    raw: bytes


@dataclass
class Order:
    order: int
    sum: Decimal
    at: datetime.datetime
    lines: list[Line]


class Customer(BaseModel):
    name: str
    since: datetime.date
    id: UUID | None = None


class NoDelays(MemoryQueue):
    """As NATS: what is sent is given out."""

    def send(self, parcels):
        super().send([Parcel(parcel.queue, parcel.payload) for parcel in parcels])


class Shop:
    def __init__(self, queue=MemoryQueue):
        self.now_ms = NOW_MS
        self.ledger, self.queue = MemoryLedger(lambda: self.now_ms), queue(lambda: self.now_ms)
        self.app = Endpoint("shop", store=self.ledger, transport=self.queue, clock_ms=lambda: self.now_ms)

    def consume(self, **settings):
        consumer = Consumer(self.app, Consuming(until_empty=True, backoff_s=0, **settings))
        consumer.run()
        return consumer

    def messages(self, queue):
        return [unpack_message(each.payload) for each in self.queue.lease([queue], 100, 1_000)]


@pytest.fixture
def shop():
    return Shop()


ORDERS = st.builds(
    Order,
    st.integers(-(2**53), 2**53),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.lists(st.builds(Line, st.binary(max_size=20)), max_size=2),
)
CUSTOMERS = st.builds(Customer, name=st.text(), since=st.dates(), id=st.none() | st.uuids())


@given(ORDERS | CUSTOMERS)
def test_a_typed_body_arrives_as_it_was_sent(body):
    shop, seen = Shop(), []

    @shop.app.handler("orders", key=lambda message: "one", body=type(body))
    def keep(state, message):
        seen.append(message.body)
        return None, []

    shop.app.take("source", 1, [Out("orders", body)])
    shop.consume()
    assert seen == [body]


def test_the_key_of_a_typed_body_is_a_field_or_made_of_the_object(shop):
    shop.app.handler("orders", key="order", body=Order)(lambda state, message: (1, []))
    shop.app.handler("people", key=lambda message: message.body.name, body=Customer)(lambda state, message: (2, []))
    order = {"order": 7, "sum": "1.10", "at": "2026-01-01T00:00:00Z", "lines": []}
    shop.app.take("source", 1, [Out("orders", order), Out("people", {"name": "ann", "since": "2026-01-01"})])
    shop.consume()
    assert (shop.app.state("7"), shop.app.state("ann")) == (1, 2)
    assert explore(shop.app, [("orders", order)], crashes=0).complete


def test_a_body_of_another_type_is_a_dead_letter_at_once(shop):
    shop.app.handler("orders", key="order", body=Order)(lambda state, message: (1, []))
    shop.app.take("source", 1, [Out("orders", {"order": 7, "sum": "much", "at": 5, "lines": []})])
    shop.consume()
    (letter,) = shop.queue.buried()
    assert letter.reason.startswith(
        "malformed: orders: the body is not a valid Order: sum: Input should be a valid decimal"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\xff\x00", "/wA="),
        (Decimal("1.10"), "1.10"),
        (UUID(int=7), str(UUID(int=7))),
        (datetime.date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_what_json_has_no_word_for_becomes_text(value, text):
    assert outgoings([Out("x", {"value": value})], "here")[0].body.value == {"value": text}


@pytest.mark.parametrize("value", [{1, 2}, object(), Decimal, float("nan"), iter([1])])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(BadInput, match="not a JSON value"):
        outgoings([Out("x", value)], "here")


def test_the_trace_goes_on_and_other_headers_do_not():
    trace = {"traceparent": "00-1-2-01", "tracestate": "a=b"}
    message = Message("t1", "orders", 1, headers={**trace, "colour": "red"})
    own = {"TraceParent": "00-1-3-01", "Who": "me"}
    passed, other = handled((None, [Out("a", 1), Out("b", 1, headers=own)]), message).outgoing
    assert (passed.headers, other.headers) == (trace, {"traceparent": "00-1-3-01", "who": "me"})


def test_headers_are_sent_and_come_back_from_an_outbox(shop):
    shop.app.handler("orders", key="order")(lambda state, message: (None, [Out("mail", dict(message.headers))]))
    shop.app.take("source", 1, [Out("orders", {"order": 7}, headers={"traceparent": "00-1-2-01"})])
    shop.consume()
    (mail,) = shop.messages("mail")
    assert (mail.body, mail.headers) == ({"traceparent": "00-1-2-01"},) * 2


@pytest.mark.parametrize(
    ("out", "told"),
    [
        (Out("x", 1, headers={"a": 5}), "header 'a' is 5"),  # type: ignore[dict-item]
        (Out("x", 1, headers={"": "5"}), "header '' is '5'"),
        (Out("x", 1, headers={"a": "b" * 8_192}), "have 8193 bytes"),
        (Out("x", 1, delay_s=-1), "delay_s of a message to 'x' is -1, must be from 0"),
        (Out("x", 1, delay_s=float("inf")), "delay_s of a message to 'x' is inf"),
        (Out("x", 1, at_s="now"), "at_s of a message to 'x' is 'now'"),  # type: ignore[arg-type]
        (Out("x", 1, delay_s=1, at_s=1), "both delay_s and at_s"),
        (Out("x", 1, priority=5_000), "priority of a message to 'x' is 5000"),
    ],
)
def test_what_cannot_be_sent_is_named(out, told):
    with pytest.raises(BadInput, match=told):
        outgoings([out], "here")


@pytest.mark.parametrize("queue", [MemoryQueue, NoDelays])
@pytest.mark.parametrize("when", [{"delay_s": 60}, {"at_s": NOW_MS / 1000 + 60}])
def test_a_message_is_not_processed_before_it_is_due_and_counts_no_attempt_for_that(queue, when):
    shop = Shop(queue)
    shop.app.handler("later", key="n", retry=Retry(attempts_max=1))(lambda state, message: (message["n"], []))
    shop.app.take("source", 1, [Out("later", {"n": 1}, **when)])
    consumer = Consumer(shop.app)
    for after_s, state in [(0, None), (59, None), (60, 1)]:
        shop.now_ms = NOW_MS + after_s * 1000
        consumer._process(shop.queue.lease(["later"], 1, 1_000), Lot())
        assert shop.app.state("1") == state
    assert str(consumer.books.tally()) == "1 in = 1 first + 0 repeat + 0 unsure + 0 reject"


@pytest.mark.parametrize("queue", [MemoryQueue, NoDelays])
def test_a_delay_that_began_later_than_it_is_now_is_over(queue):
    shop = Shop(queue)
    shop.app.handler("later", key="n")(lambda state, message: (message["n"], []))
    shop.now_ms = NOW_MS + 30 * 86_400_000
    shop.app.take("source", 1, [Out("later", {"n": 1}, delay_s=60)])
    shop.now_ms = NOW_MS
    shop.consume()
    assert shop.app.state("1") == 1


def test_a_policy_of_a_handler_goes_before_that_of_the_consumer(shop):
    calls = {"often": 0, "never": 0, "fatal": 0}

    def failing(queue):
        def call(state, message):
            calls[queue] += 1
            raise ValueError(f"no {queue}")

        return call

    shop.app.handler("often", key="n", retry=Retry(attempts_max=5, backoff_s=0))(failing("often"))
    shop.app.handler("never", key="n")(failing("never"))
    shop.app.handler("fatal", key="n", fatal=(KeyError, ValueError))(failing("fatal"))
    shop.app.take("source", 1, [Out(("often", "never", "fatal"), {"n": 1})])
    assert shop.consume(attempts_max=2).books.buried == 3
    assert calls == {"often": 5, "never": 2, "fatal": 1}
    reasons = {each.queue: each.reason.splitlines() for each in shop.queue.buried()}
    assert reasons["fatal"][0] == "fatal: ValueError: no fatal (delivery 1, fatal)"
    assert reasons["never"][0] == "never: ValueError: no never (delivery 2)"
    assert reasons["often"][-1] == "ValueError: no often"
    assert any("test_outbox_contract.py" in line and "in call" in line for line in reasons["often"])


def test_the_traceback_is_in_the_log_and_its_end_in_the_dead_letter(shop, caplog):
    def deep(n):
        if n:
            deep(n - 1)
        raise ValueError("x" * 700)

    shop.app.handler("orders", key="n")(lambda state, message: deep(40))
    shop.app.take("source", 1, [Out("orders", {"n": 1})])
    with caplog.at_level(logging.WARNING, "onefold.outbox"):
        shop.consume(attempts_max=2)
    (letter,) = shop.queue.buried()
    assert len(letter.reason) <= REASON_MAX
    assert letter.reason.endswith(f"ValueError: {'x' * 700}\n")
    assert [record.exc_info[0] for record in caplog.records] == [ValueError, ValueError]


def test_of_a_queue_the_highest_priority_comes_first(shop):
    order = []

    def note(state, message):
        order.append(message["n"])
        return state, []

    shop.app.handler("orders", key="n")(note)
    shop.app.take("source", 1, [Out("orders", {"n": n}, priority=n) for n in (0, -1, 7, 1)])
    shop.consume(batch=1)
    assert order == [7, 1, 0, -1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"fatal": ["ValueError"]}, "fatal is"),
        ({"fatal": KeyboardInterrupt}, "fatal is"),
        ({"retry": 5}, "retry is 5"),
        ({"body": 5}, "body is 5"),
    ],
)
def test_what_a_handler_cannot_say_of_itself_is_misuse(shop, words, told):
    with pytest.raises(Misuse, match=told):
        shop.app.handler("orders", key="order", **words)


@pytest.mark.parametrize("retry", [{"attempts_max": 0}, {"backoff_s": -1}, {"backoff_max_s": float("nan")}])
def test_a_policy_that_cannot_be_is_misuse(retry):
    with pytest.raises(Misuse, match=next(iter(retry))):
        Retry(**retry)


def test_a_message_of_a_later_form_is_set_aside(shop):
    with pytest.raises(BadInput, match="v is 2, known is up to 1"):
        unpack_message(b'{"v": 2, "token": "t", "to": "orders", "body": 1}')
