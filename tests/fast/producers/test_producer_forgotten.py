"""A producer that its topic has forgotten: it goes on above the floor, and what is below it is told as it is."""

from pathlib import Path

import pytest

from onefold.producers.client import Producer
from onefold.producers.topic import Topics, TopicSettings
from onefold.verdict import Verdict
from tests.fast.producers.test_producer import stored


class Clock:
    now_ms = 1_000_000

    def __call__(self):
        return self.now_ms


@pytest.mark.parametrize("restarted", [True, False])
def test_a_producer_that_was_forgotten_goes_on_above_the_floor(tmp_path, restarted):
    clock = Clock()
    settings = TopicSettings(idle_ms=10_000, snapshot_entries=1)
    with Topics(Path(tmp_path), settings, clock=clock) as topics:
        with Producer("t", at=topics, name="p") as producer:
            producer.send(b"a")
            producer.send(b"b")
            clock.now_ms += 60_000
            with Producer("t", at=topics, name="other") as other:
                other.send(b"x")
                other.send(b"y")
            assert topics.topic("t").last_sequence_id("p") == -1
            if not restarted:  # its epoch is forgotten too: it asks for another one
                assert producer.send(b"c").verdict == Verdict.FIRST
        if restarted:
            with Producer("t", at=topics, name="p") as producer:
                assert producer.last_sequence_id == -1
                assert producer.send(b"c").verdict == Verdict.FIRST
        assert [(s, p) for name, s, p in stored(topics) if name == "p"] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_what_is_below_the_floor_is_told_as_it_is(tmp_path):
    clock = Clock()
    with Topics(Path(tmp_path), TopicSettings(idle_ms=10_000, snapshot_entries=1), clock=clock) as topics:
        with Producer("t", at=topics, name="p") as producer:
            producer.send(b"a", 100)
        clock.now_ms += 60_000
        with Producer("t", at=topics, name="other") as other:
            other.send(b"x")
            other.send(b"y")
        with Producer("t", at=topics, name="p") as producer:
            assert producer.send(b"b", 50)[:2] == (Verdict.UNSURE, "forgotten")
            assert producer.send(b"c", 101).verdict == Verdict.FIRST
