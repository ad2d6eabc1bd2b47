"""A topic whose clock is set, wildly and for any time, and what it must not do because of that."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.producers import topic as topic_module
from onefold.producers.log.segments import SegmentLog
from onefold.producers.ports import Draft
from onefold.producers.records import Kind
from onefold.producers.topic import STEP_MAX_MS, STEPOUT_MS, Topic, TopicSettings, TopicTime
from onefold.verdict import Verdict
from tests.lib.disk import SimDisk
from tests.lib.examples import examples
from tests.lib.memory_log import MemoryLog

HOUR, DAY, YEAR = 3_600_000, 86_400_000, 365 * 86_400_000
NOW = 56 * YEAR
WINDOW = DAY


class Clocks:
    """The true time, and a wall clock that is off by something."""

    def __init__(self):
        self.true_ms, self.off_ms = NOW, 0

    def wall(self):
        return self.true_ms + self.off_ms

    def elapsed(self):
        return self.true_ms


class World:
    """A topic, its clocks, and what was FIRST when, by the true time."""

    def __init__(self, **limits):
        self.clocks, self.log = Clocks(), MemoryLog()
        self.limits = limits
        self.open()

    def open(self):
        settings = TopicSettings(keys_ms=WINDOW, **self.limits)
        self.topic = Topic(self.log, settings, clock=self.clocks.wall, elapsed=self.clocks.elapsed)

    def publish(self, key):
        return self.topic.publish_keyed(key, b"x")

    def wait(self, ms):
        """Time passes, and a server tends its topics meanwhile."""
        for _ in range(min(12, max(1, ms // 60_000))):
            self.clocks.true_ms += ms // min(12, max(1, ms // 60_000))
            self.topic.tend()


def test_one_publish_by_a_clock_seventy_years_ahead_fills_no_keys_and_stamps_no_records(monkeypatch):
    wall_ms, elapsed_ms = [NOW], [0]
    monkeypatch.setattr(time, "time_ns", lambda: wall_ms[0] * 1_000_000)
    monkeypatch.setattr(topic_module, "elapsed_ms", lambda: elapsed_ms[0], raising=False)
    topic = Topic(MemoryLog(), TopicSettings(keys_max=2, keys_ms=WINDOW))
    wall_ms[0] = NOW + 70 * YEAR
    topic.publish_keyed("wild", b"x")
    wall_ms[0] = NOW
    topic.publish_keyed("honest", b"x")
    assert topic.publish_keyed("one too many", b"x").reason == "keys_full"
    wall_ms[0], elapsed_ms[0] = NOW + WINDOW, WINDOW
    assert topic.publish_keyed("new", b"x").verdict == Verdict.FIRST
    assert max(record.time_ms for record in topic.log.read(0)) == NOW + WINDOW


def test_a_clock_two_days_ahead_and_back_makes_no_key_new_again():
    world = World()
    assert world.publish("k").verdict == Verdict.FIRST
    world.clocks.off_ms = 2 * DAY
    world.wait(60_000)
    assert world.publish("k").verdict == Verdict.REPEAT
    world.publish("other")
    world.clocks.off_ms = 0
    world.wait(60_000)
    assert world.publish("k").verdict == Verdict.REPEAT
    assert world.topic.figures()["clock_steps"] == 1


def test_a_log_that_was_stamped_seventy_years_ahead_gets_over_it():
    world = World(keys_max=1, idle_ms=10 * DAY, snapshot_entries=1)
    world.log.append([Draft(Kind.KEYED, "wild", 0, 0, 0, b"")], NOW + 70 * YEAR)  # as an older version would
    world.log.append([Draft(Kind.MESSAGE, "p", 5, 0, 0, b"")], NOW + 70 * YEAR)
    world.open()
    assert world.publish("a").reason == "keys_full"
    assert world.topic.figures()["clock_off_ms"] < -69 * YEAR
    world.wait(STEPOUT_MS + 60_000)
    assert world.topic.figures()["clock_off_ms"] == 0
    world.wait(WINDOW)
    assert world.publish("a").verdict == Verdict.FIRST
    assert [r.time_ms == world.clocks.true_ms for r in world.log.read(world.log.end - 2) if r.kind == Kind.KEYED] == [
        True
    ]
    world.wait(11 * DAY)
    world.publish("b")
    world.topic.publish("q", [(0, b"")])
    assert world.topic.figures()["producers"] == 1  # p is forgotten as any idle one


@pytest.mark.parametrize("make", [MemoryLog, lambda: SegmentLog("/t", files=SimDisk(), segment_bytes=300)])
def test_retention_gets_over_records_of_a_clock_that_was_ahead(make):
    log, clocks = make(), Clocks()
    log.append([Draft(Kind.MESSAGE, "p", n, 0, 0, b"") for n in range(10)], NOW + 70 * YEAR)
    log.append([Draft(Kind.MESSAGE, "p", n, 0, 0, b"") for n in range(10, 20)], NOW + 70 * YEAR)
    topic = Topic(log, TopicSettings(retain_ms=DAY, snapshot_entries=1), clock=clocks.wall, elapsed=clocks.elapsed)
    for n in range(20, 40):
        clocks.true_ms += HOUR
        topic.publish("p", [(n, b"")])
        topic.tend()
    clocks.true_ms += 2 * DAY
    topic.tend()
    topic.publish("p", [(40, b"")])
    topic.tend()
    assert log.start >= 20


OFFS = st.sampled_from([0, HOUR, -HOUR, 2 * DAY, -2 * DAY, 70 * YEAR, -40 * YEAR])
KEYS = st.sampled_from("klm")
WAIT = st.tuples(st.just("wait"), st.sampled_from([1_000, 60_000, STEPOUT_MS, HOUR, 5 * HOUR, DAY]))
SET = st.tuples(st.just("set"), OFFS)
PUBLISH = st.tuples(st.just("publish"), KEYS)
RESTART = st.tuples(st.just("restart"), st.just(0))
OPS = st.lists(st.one_of(WAIT, WAIT, SET, PUBLISH, PUBLISH), max_size=40)
MORE_OPS = st.lists(st.one_of(WAIT, SET, PUBLISH, PUBLISH, RESTART), max_size=40)


def play(world, op, argument):
    if op == "wait":
        world.wait(argument)
    elif op == "set":
        world.clocks.off_ms = argument
    elif op == "restart":
        world.topic.save()
        world.open()


@settings(max_examples=examples(300), deadline=None)
@given(OPS)
def test_while_a_topic_is_open_no_key_is_first_twice_within_its_window_whatever_the_clock_does(ops):
    world = World()
    first: dict[str, int] = {}
    for op, argument in ops:
        play(world, op, argument)
        if op == "publish" and world.publish(argument).verdict == Verdict.FIRST:
            assert world.clocks.true_ms - first.get(argument, -WINDOW) >= WINDOW
            first[argument] = world.clocks.true_ms


@settings(max_examples=examples(300), deadline=None)
@given(MORE_OPS, st.lists(st.one_of(WAIT, PUBLISH, RESTART), max_size=20))
def test_after_a_window_of_an_honest_clock_all_is_as_if_it_had_never_been_wrong(ops, later):
    world = World(keys_max=3)
    for op, argument in ops:
        play(world, op, argument)
        if op == "publish":
            world.publish(argument)
    world.clocks.off_ms = 0
    world.wait(STEPOUT_MS + 120_000)
    world.wait(WINDOW)
    table: dict[str, int] = {}
    for op, argument in later:
        play(world, op, argument)
        if op == "publish":
            known = argument in table and world.clocks.true_ms - table[argument] < WINDOW
            receipt = world.publish(argument)
            assert receipt.verdict == (Verdict.REPEAT if known else Verdict.FIRST)
            if not known:
                table[argument] = world.clocks.true_ms
                (record,) = world.log.read(receipt.offset, receipt.offset + 1)
                assert abs(record.time_ms - world.clocks.true_ms) <= STEP_MAX_MS
    assert world.topic.figures()["clock_off_ms"] == 0


@settings(max_examples=examples(200), deadline=None)
@given(OPS)
def test_recovery_from_the_log_equals_having_been_there_also_when_clocks_were_set(ops):
    world = World()
    for op, argument in ops:
        play(world, op, argument)
        if op == "publish":
            world.publish(argument)
    again = Topic(world.log, world.topic.settings, clock=world.clocks.wall, elapsed=world.clocks.elapsed)
    assert again._memory == world.topic._memory


@given(st.lists(st.tuples(st.integers(0, HOUR), OFFS), max_size=30))
def test_until_it_follows_a_set_clock_the_time_passes_as_it_does_and_never_falls(readings):
    passed = 0
    time = TopicTime(0, NOW, 0)
    for step, off in readings:
        passed += step
        before = time.time_ms
        assert time.read(NOW + passed + off, passed) >= before
        assert time.time_ms - before <= step + STEP_MAX_MS
