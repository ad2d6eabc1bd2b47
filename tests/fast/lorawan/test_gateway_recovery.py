"""What one run leaves to the next: found, stored once, not trusted blindly, and not in the way."""

import asyncio
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.clock import wall_ms
from onefold.errors import StoreFailed
from onefold.lorawan.claims import ClaimDesk, Reply
from onefold.lorawan.flow import MARGIN_MS, Recovery, Upstream
from onefold.lorawan.rules import Claim
from onefold.producers.topic import Topics
from tests.lib.gatewaying import FaultyCounters, answered, device, reception, service, stored, uplink

BAD = [
    '{"v":2,"key":"%s","station":"s","received_ms":1}' % ("00" * 32),
    "{",
    "[]",
    '{"v":1,"key":"zz","station":"s","received_ms":1}',
    '{"v":1}',
    "[" * 100_000,
]


def left_by(counters, frame, *, number, station=1, received_ms=None, **more):
    """An earlier run won this frame, and no more."""
    row = {"v": 1, "kind": "data", "key": frame.key.hex(), "station": f"{station:016x}",
           "received_ms": wall_ms() if received_ms is None else received_ms, "fcnt": frame.fcnt, **more}  # fmt: skip
    body = json.dumps(row, separators=(",", ":"))
    assert counters.claim([Claim("d", "a", frame.fcnt, body=body, number=number)])[0].won
    return body


def test_a_body_that_cannot_be_read_stays_and_blocks_nobody(tmp_path, caplog):
    async def main():
        counters = FaultyCounters()
        for number, body in enumerate(BAD, 1):
            counters.claim([Claim("0000000000000009/x", "a", number, body=body, number=number)])
        left_by(counters, uplink(99), number=50)
        async with service(tmp_path, device(1), device(2), shared=counters) as made:
            for fcnt in (5, 6):
                made.hear(reception(uplink(fcnt, 1)))
                made.hear(reception(uplink(fcnt, 2)))
            await made.idle()
            assert answered(made) == {"new_frame": 4}
            assert (made.figures()["unreadable"], made.figures()["recovered"]) == (len(BAD), 1)
        assert [each.body for each in counters.unfinished("a")] == BAD

    asyncio.run(main())
    assert sorted(row["fcnt"] for row in stored(tmp_path)) == [5, 5, 6, 6, 99]
    (line,) = [each.getMessage() for each in caplog.records]
    assert line == "store shared: 6 messages of an earlier run cannot be read, and stay there; the first is number 1"


@pytest.mark.parametrize("body", [b"hello", b"\xff", b"[1]", b'{"v":1}', b'{"v":1,"key":5}'])
def test_a_message_of_somebody_else_in_the_topic_does_not_stop_the_start(tmp_path, body):
    topics = Topics(tmp_path)
    topics.topic("uplinks").publish("other", [(0, body)])
    topics.close()

    async def main():
        counters = FaultyCounters()
        left_by(counters, uplink(4), number=1)
        async with service(tmp_path, shared=counters) as made:
            made.hear(reception(uplink(5)))
            await made.idle()
            assert answered(made) == {"new_frame": 1}
            assert made.figures()["recovered"] == 1

    asyncio.run(main())


@pytest.mark.parametrize("off_ms", [5_000, -5_000, MARGIN_MS // 2, 86_400_000, -86_400_000])
def test_what_is_in_the_log_is_not_stored_again_though_the_clock_was_set_in_between(tmp_path, monkeypatch, off_ms):
    monkeypatch.setattr("onefold.lorawan.flow.TAIL_STEP", 1)  # no more of the log is read than need be

    async def main():
        counters = FaultyCounters()
        async with service(tmp_path, shared=counters, kill=True) as made:
            for fcnt in (4, 5):
                made.hear(reception(uplink(fcnt), received_ms=wall_ms() + off_ms))
            await made.idle()
        assert len(counters.unfinished("a")) == 2  # killed between the log and the word that it is there
        async with service(tmp_path, shared=counters) as made:
            made.hear(reception(uplink(6)))
            await made.idle()
            assert made.figures()["recovered"] == 0
        assert counters.unfinished("a") == []

    asyncio.run(main())
    assert [row["fcnt"] for row in stored(tmp_path)] == [4, 5, 6]


def test_of_two_receptions_in_one_millisecond_the_one_that_is_missing_is_stored(tmp_path):
    async def main():
        counters, now = FaultyCounters(), wall_ms()
        bodies = [left_by(counters, uplink(5), number=n, received_ms=now, reason=reason)
                  for n, reason in ((1, "new_frame"), (2, "resubmitted"))]  # fmt: skip
        topics = Topics(tmp_path)
        topics.topic("uplinks").publish("a", [(0, bodies[1].encode())])
        topics.close()
        async with service(tmp_path, shared=counters) as made:
            made.hear(reception(uplink(6)))
            await made.idle()
            assert made.figures()["recovered"] == 1
        assert counters.unfinished("a") == []

    asyncio.run(main())
    assert [row["reason"] for row in stored(tmp_path)] == ["resubmitted", "new_frame", "new_frame"]


def test_the_log_is_read_in_a_thread_and_stations_are_served_meanwhile(tmp_path, monkeypatch):
    begun, go_on, threads = threading.Event(), threading.Event(), []
    sort_out = Recovery.sort_out

    def slow(self, unfinished):
        threads.append(threading.current_thread().name)
        if unfinished:
            begun.set()
            assert go_on.wait(60)
        return sort_out(self, unfinished)

    monkeypatch.setattr(Recovery, "sort_out", slow)

    async def main():
        counters = FaultyCounters()
        left_by(counters, uplink(4), number=1)
        async with service(tmp_path, device(1), device(2, gateway="b"), shared=counters) as made:
            made.hear(reception(uplink(5)))
            assert await asyncio.to_thread(begun.wait, 60)
            began = time.monotonic()
            made.hear(reception(uplink(5, 2)))
            assert answered(made) == {"other_gateway": 1}
            assert time.monotonic() - began < 30
            go_on.set()
            await made.idle()
            assert answered(made) == {"other_gateway": 1, "new_frame": 1}

    asyncio.run(main())
    assert all(name.startswith(("onefold-local", "onefold-shared")) for name in threads)
    assert len(threads) == 2


def test_level_1_goes_by_a_clock_that_nobody_sets(tmp_path):
    async def main():
        ticks = [1_000]
        made_of = device(strategy="mark")
        async with service(tmp_path, made_of, ticks=lambda: ticks[0]) as made:
            made.hear(reception(uplink(1), 1, received_ms=wall_ms() + 86_400_000))  # the wall clock is a day ahead
            made.hear(reception(uplink(1), 2))
            await made.idle()
            assert answered(made) == {"new_frame": 1, "other_station": 1}
            ticks[0] += 60_000
            made.hear(reception(uplink(2), 1))
            await made.idle()
            assert made.figures()["sightings"] == 1  # the first one is expired
            ticks[0] += 59_999
        # The next run remembers from the log what is not expired, and nothing for longer than from now on.
        async with service(tmp_path, made_of, ticks=lambda: ticks[0]) as made:
            assert made.figures()["sightings"] == 2
            ticks[0] += 60_000
            made.hear(reception(uplink(3), 1))
            await made.idle()
            assert made.figures()["sightings"] == 1

    asyncio.run(main())


def test_what_was_not_recovered_yet_is_not_forgotten_when_the_server_ends(tmp_path):
    async def main():
        counters = FaultyCounters()
        left_by(counters, uplink(4), number=1)
        counters.down = True
        async with service(tmp_path, shared=counters) as made:
            assert isinstance(made._shared, ClaimDesk)
        counters.down = False
        assert len(counters.unfinished("a")) == 1

    asyncio.run(main())


def test_a_record_that_was_given_up_lends_its_number_to_no_other():
    """The log stored it and its answer was lost: the next record under this number would be a repeat, and be lost."""
    records: dict[int, bytes] = {}

    class Topic:
        log = SimpleNamespace(start=0, end=0)

        def last_sequence_id(self, producer):
            return -1

        def publish(self, producer, messages):
            receipts = [SimpleNamespace(verdict="REPEAT" if n in records else "FIRST") for n, _ in messages]
            for number, record in messages:
                records.setdefault(number, record)
            if len(records) == 1:
                raise StoreFailed("the answer was lost")
            return receipts

    async def main():
        topic: Any = Topic()
        upstream = Upstream(topic, "a", batch_max=1)
        upstream._closing.set()  # the server ends: nothing is tried twice

        outcomes = []

        async def note(record):
            outcomes.append((record, await upstream.put(record)))

        for record in (b"one", b"two"):
            Reply.advance(note(record))
        await upstream.close(60)
        assert outcomes == [(b"one", False), (b"two", True)]
        assert list(records.values()) == [b"one", b"two"]

    asyncio.run(main())
