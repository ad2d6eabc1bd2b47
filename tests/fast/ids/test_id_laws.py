"""Ids against the sets that they replace: one that keeps everything, and one that forgets."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold import BadInput, IdDetector, Misuse
from onefold.ids.rules import (
    AHEAD_MS_MAX,
    BAD_TIME,
    CHANGED,
    CONFLICT,
    FORGOTTEN,
    NEW,
    NULL_ID,
    SEEN,
    STATE_FULL,
    IdSettings,
    name_of,
)
from tests.lib.examples import examples

IDS = st.integers(0, 30).map(lambda number: f"id-{number}")
TIMES = st.integers(-300, 3_000)
WINDOWS = st.sampled_from([1, 7, 16, 100, 999])
MESSAGES = st.lists(st.tuples(IDS, TIMES), max_size=60)


def shared(messages):
    """The same messages, where copies share the time of the first."""
    times: dict = {}
    return [(id, times.setdefault(id, time)) for id, time in messages]


@given(st.lists(IDS | st.none() | st.tuples(IDS, st.none() | IDS)))
def test_without_a_window_it_is_a_set(ids):
    detector, seen = IdDetector(), set()
    for id in ids:
        if id is None or (isinstance(id, tuple) and None in id):
            assert detector.judge(id) == NULL_ID
        else:
            assert detector.judge(id) == (SEEN if id in seen else NEW)
            seen.add(id)
    assert len(detector) == len(seen)
    assert str(detector) == str(len(seen))


@given(MESSAGES, WINDOWS)
@example([("a", 0), ("b", 100), ("a", 0)], 100)
@settings(max_examples=examples(500))
def test_with_a_window_it_is_a_set_that_forgets(messages, window_ms):
    detector, seen, newest = IdDetector(window_ms), set(), None
    for id, time in shared(messages):
        answer = detector.judge(id, time)
        horizon = IdSettings(window_ms).horizon(newest)
        if horizon is not None and time < horizon:
            assert answer == FORGOTTEN
            assert time < newest - window_ms  # what lies within the window is never forgotten
        else:
            assert answer == (SEEN if id in seen else NEW)
            seen.add(id)
            newest = time if newest is None else max(newest, time)
    live = {
        id for id, time in shared(messages) if id in seen and (detector.horizon is None or time >= detector.horizon)
    }
    assert len(detector) == len(live)


@given(MESSAGES, WINDOWS)
def test_no_copy_is_ever_first_and_no_first_is_ever_a_repeat(messages, window_ms):
    detector, seen = IdDetector(window_ms), set()
    for id, time in shared(messages):
        answer = detector.judge(id, time)
        assert answer != NEW or id not in seen
        assert answer != SEEN or id in seen
        seen |= {id} if answer == NEW else set()


@given(MESSAGES, WINDOWS)
def test_whatever_the_times_say_no_id_is_a_repeat_that_was_not_seen(messages, window_ms):
    detector, seen = IdDetector(window_ms), set()
    for id, time in messages:
        assert detector.judge(id, time) != SEEN or id in seen
        seen.add(id)


@given(st.lists(st.tuples(IDS, st.integers(0, 50)), max_size=60), WINDOWS)
def test_by_the_clock_a_copy_is_known_for_the_window_and_new_after_a_slice_more(steps, window_ms):
    detector, now = IdDetector(window_ms, clock=True), 0
    counted: dict = {}
    for id, step in steps:
        now += step
        answer = detector.judge(id, now)
        age = now - counted[id] if id in counted else None
        if age is None or age > window_ms + detector.settings.slice_ms:
            assert answer == NEW
        elif age <= window_ms:
            assert answer == SEEN
        if answer == NEW:
            counted[id] = now


def test_a_clock_that_is_set_back_stands():
    detector = IdDetector(160, clock=True)
    assert [detector.judge("a", 1000), detector.judge("b", 10), detector.judge("b", 20)] == [NEW, NEW, SEEN]
    assert detector.newest == 1000


def test_content_that_differs_is_a_conflict_or_a_copy_all_the_same():
    strict, kind = IdDetector(), IdDetector(on_conflict="repeat")
    for detector, answer in ((strict, CONFLICT), (kind, CHANGED)):
        judged = [detector.judge("a", content=content) for content in ("x", "x", b"x", "y", None, "x")]
        assert judged == [NEW, SEEN, SEEN, answer, SEEN, SEEN]


def test_a_time_far_ahead_moves_the_horizon_no_further_than_clocks_are_off():
    detector, now = IdDetector(86_400_000), 1_700_000_000_000
    assert detector.judge("poison", now + 80_000_000, now_ms=now) == NEW
    assert detector.newest == now + AHEAD_MS_MAX
    assert detector.judge("poison", now + 80_000_000, now_ms=now) == SEEN
    assert detector.judge("beyond", now + 90_000_000, now_ms=now) == BAD_TIME
    assert detector.judge("of today", now - 80_000_000, now_ms=now) == NEW


@pytest.mark.parametrize("time", [None, 1.5, True, 1 << 62, -(1 << 62)])
def test_what_is_no_time_is_refused_where_there_is_a_window(time):
    assert IdDetector(100).judge("a", time) == BAD_TIME
    assert IdDetector().judge("a", time) == NEW


@given(MESSAGES, WINDOWS, st.integers(1, 5))
def test_beyond_the_bound_new_ids_are_unsure_and_time_makes_room(messages, window_ms, ids_max):
    detector = IdDetector(window_ms, ids_max=ids_max)
    for id, time in shared(messages):
        assert detector.judge(id, time) != STATE_FULL or len(detector) == ids_max
        assert len(detector) <= ids_max
    assert detector.judge("of tomorrow", 1_000_000) == NEW


@given(MESSAGES, MESSAGES, WINDOWS)
def test_two_that_are_united_know_what_either_saw_and_did_not_forget(one, other, window_ms):
    messages = shared([*one, *other])
    a, b = IdDetector(window_ms), IdDetector(window_ms)
    seen = set()
    for i, (id, time) in enumerate(messages):
        if (a if i < len(one) else b).judge(id, time) == NEW:
            seen.add(id)
    a.merge(b)
    for id, time in messages:
        answer = a.judge(id, time)
        assert answer in (SEEN, FORGOTTEN) if id in seen else answer in (NEW, FORGOTTEN)
        seen |= {id} if answer == NEW else set()
    with pytest.raises(Misuse):
        a.merge(IdDetector())


@given(MESSAGES, WINDOWS | st.none(), st.booleans(), st.sampled_from(["reject", "repeat"]), st.booleans())
def test_it_comes_back_as_it_was(messages, window_ms, clock, on_conflict, has_content):
    detector = IdDetector(window_ms, clock=clock, on_conflict=on_conflict, ids_max=20)
    for id, time in messages:
        detector.judge(id, time, content=id if has_content else None)
    data = detector.snapshot()
    restored = IdDetector.restore(data)
    assert (restored.snapshot(), str(restored), restored.newest) == (data, str(detector), detector.newest)
    assert restored.settings == detector.settings
    for id, time in messages:
        assert restored.judge(id, time, content="other") == detector.judge(id, time, content="other")


@given(MESSAGES, st.data())
def test_a_damaged_snapshot_is_bad_input(messages, data):
    detector = IdDetector(100)
    for id, time in messages:
        detector.judge(id, time)
    whole = detector.snapshot()
    with pytest.raises(BadInput):
        IdDetector.restore(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(BadInput):
        IdDetector.restore(whole + b"\0")
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadInput):
        IdDetector.restore(bytes(damaged))


def test_an_id_takes_sixteen_bytes():
    detector = IdDetector(1_000_000)
    for number in range(10_000):
        detector.judge(number, number)
    assert len(detector.snapshot()) < 16 * 10_000 + 100


@pytest.mark.parametrize(
    "wrong", [{"window_ms": 0}, {"window_ms": 1.5}, {"ids_max": 0}, {"on_conflict": "drop"}, {"window_ms": True}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(Misuse):
        IdDetector(**wrong)


def test_parts_of_an_id_do_not_run_together():
    names = [name_of(id) for id in (("ab", "c"), ("a", "bc"), "abc", b"abc", ("abc",), 1, "1", ("a", 1), ("a", "1"))]
    assert len(set(names)) == len(names) - 1  # one part is the part itself
    with pytest.raises(Misuse):
        name_of(1.5)  # type: ignore[arg-type]
