"""Where the row of a message is its token, it keeps what was answered outside."""

import pytest

from onefold import Endpoint, Out
from onefold.outbox import Retry
from onefold.outbox.plans import Keep
from onefold.outbox.ports import Parcel, open_local
from tests.fast.outbox.test_outbox_once import Provider


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    return f"sqlite:///{tmp_path}/o.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def test_a_row_keeps_answers_for_whoever_has_it_and_for_nobody_else(place):
    store = open_local(place)
    store.send([Parcel("orders", b"a"), Parcel("orders", b"b")])
    deliveries = store.lease(["orders"], 2, 60_000)
    first, other = (each.receipt for each in deliveries)
    assert store.keep([Keep(other, {"b": 1}), Keep(first, {}), Keep(first, {"a": [1]})]) == [{"b": 1}, {}, {"a": [1]}]
    assert store.keep([Keep(first, {"c": None})]) == [{"a": [1], "c": None}]
    store.release(deliveries)
    again = store.lease(["orders"], 2, 60_000)
    assert store.keep([Keep(each.receipt, {}) for each in again]) == [{"a": [1], "c": None}, {"b": 1}]
    assert store.keep([Keep(first, {"a": 2}), Keep(other, {})]) == [None, None]
    store.acknowledge(again)
    assert store.keep([Keep(again[0].receipt, {"a": 2})]) == [None]
    store.close()


def test_under_the_plan_local_the_row_keeps_the_answer(place):
    provider, crashes = Provider(), [False]
    with Endpoint("shop", store=place) as app:

        @app.handler("orders", key="order", retry=Retry(backoff_s=0))
        def pay(state, message, ctx):
            receipt = ctx.once("charge", provider.charge)["receipt"]
            if crashes.pop():
                raise ValueError("not yet")
            return [*(state or []), receipt], []

        app.take("source", 1, [Out("orders", {"order": 7})])
        crashes[:] = [False, True]
        assert app.consume(until_empty=True).balanced
        crashes[:] = [False, False]
        app.take("source", 2, [Out("orders", {"order": 7}), Out("orders", {"order": 7})])
        assert app.consume(until_empty=True).balanced
        assert (app.state("7"), len(provider.calls)) == ([1, 2, 3], 3)
