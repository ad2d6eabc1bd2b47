"""Level 1: the memory against the naive dictionary that it replaces, and what is said of a hit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.lorawan import Sighting, Sightings, Stations, Strategy

EXPIRY = 10

steps = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(0, 12)), max_size=60)


class Naive:
    """Every sighting ever, and no limit."""

    def __init__(self, sliding):
        self.sliding = sliding
        self.heard = {}

    def see(self, key, station, now):
        before = self.heard.get(key)
        if before is not None and now - (before.last_ms if self.sliding else before.since_ms) >= EXPIRY:
            before = None
        first = before or Sighting(station, now, now, now)
        own = now if station == first.station else first.own_ms
        self.heard[key] = first._replace(last_ms=now, own_ms=own)
        return before


@pytest.mark.parametrize("sliding", [True, False], ids=["sliding", "fixed"])
@given(steps=steps)
def test_sightings_are_the_naive_dictionary_with_expiry(sliding, steps):
    sightings, naive, now = Sightings(expiry_ms=EXPIRY, sliding=sliding), Naive(sliding), 0
    for key, station, pause in steps:
        now += pause
        assert sightings.see(bytes([key]), station, now) == naive.see(bytes([key]), station, now)
        alive = [s for s in naive.heard.values() if now - (s.last_ms if sliding else s.since_ms) < EXPIRY]
        assert len(sightings) == len(alive)
    assert (sightings.evicted, sightings.forgot(now)) == (0, False)


@pytest.mark.parametrize("sliding", [True, False], ids=["sliding", "fixed"])
@given(steps=steps, entries_max=st.integers(1, 4))
def test_a_full_memory_stays_bounded_and_owns_up_to_what_it_may_have_forgotten(sliding, steps, entries_max):
    sightings = Sightings(expiry_ms=EXPIRY, sliding=sliding, entries_max=entries_max)
    now = 0
    gone: dict[int, int] = {}  # key -> when it would have expired, of what was pushed out
    kept: dict[int, int] = {}  # key -> when it expires, in that order
    for key, station, pause in steps:
        now += pause
        kept = {k: end for k, end in kept.items() if end > now}
        forgot = any(end > now for end in gone.values())
        before = sightings.see(bytes([key]), station, now)
        assert (before is not None) == (key in kept)
        if before is None and gone.get(key, 0) > now:
            assert forgot  # a wrong miss is never passed off as a right one
        if before is None and len(kept) == entries_max:
            out = next(iter(kept))
            gone[out] = kept.pop(out)
        if before is None or sliding:
            kept.pop(key, None)
            kept[key] = now + EXPIRY
        assert len(sightings) == len(kept) <= entries_max
        assert sightings.forgot(now) == any(end > now for end in gone.values())
    assert (sightings.evicted > 0) == bool(gone)


def test_the_very_moment_of_expiry_is_a_miss():
    for sliding in (True, False):
        sightings = Sightings(expiry_ms=60_000, sliding=sliding)
        assert sightings.see(b"k", "a", 0) is None
        assert sightings.see(b"k", "b", 59_999) == Sighting("a", 0, 0, 0)
        after = sightings.see(b"k", "b", 60_000)
        assert after == (Sighting("a", 0, 59_999, 0) if sliding else None)


def test_a_clock_that_steps_back_does_not_bring_anything_back_or_let_anything_expire():
    sightings = Sightings(expiry_ms=10)
    sightings.see(b"k", "a", 100)
    assert sightings.see(b"k", "a", 50) is not None
    sightings.see(b"l", "a", 111)  # k is gone
    assert sightings.see(b"k", "b", 105) is None
    found = sightings.see(b"k", "c", 120)
    assert found is not None
    assert found.station == "b"
    stations = Stations(echo_ms=0)
    assert stations.data(b"k", "a", Strategy.NONE, 100)[1].reason == "new_frame"
    assert stations.data(b"k", "a", Strategy.NONE, 99)[1].reason == "resubmitted"


def test_what_is_taken_back_was_never_there():
    sightings = Sightings()
    sightings.see(b"k", "a", 0)
    sightings.forget(b"k")
    sightings.forget(b"unknown")
    assert sightings.see(b"k", "b", 1) is None


@pytest.mark.parametrize("wrong", [{"expiry_ms": 0}, {"entries_max": 0}])
def test_a_bound_that_makes_no_sense_is_misuse(wrong):
    with pytest.raises(Misuse, match=f"{next(iter(wrong))} is 0, must be at least 1"):
        Sightings(**wrong)
    with pytest.raises(Misuse, match="echo_ms is -1, must be 0 or more"):
        Stations(echo_ms=-1)


def heard(stations, *sightings, strategy=Strategy.NONE):
    return [stations.data(b"key", station, strategy, now)[1].reason for station, now in sightings]


def test_an_echo_is_no_resubmission_if_asked_for():
    story = [("a", 0), ("a", 3), ("b", 4), ("a", 2_000), ("a", 2_001)]
    assert heard(Stations(), *story) == ["new_frame", "resubmitted", "other_station", "resubmitted", "resubmitted"]
    expected = ["new_frame", "echoed", "other_station", "resubmitted", "echoed"]
    assert heard(Stations(echo_ms=500), *story) == expected


def test_a_resubmission_is_one_though_another_station_heard_it_a_moment_before():
    # Else the device would wait for its confirmation in vain whenever the other station's line is the faster one.
    assert heard(Stations(echo_ms=500), ("a", 0), ("b", 2_000), ("a", 2_002))[-1] == "resubmitted"


def test_a_resubmission_is_no_echo_though_the_clock_was_set_back():
    # Ten seconds back, then three on: with the time that never falls no time at all would seem to have passed.
    story = [("a", 100_000), ("a", 93_000), ("a", 93_004), ("a", 96_000), ("b", 96_001), ("a", 96_002), ("a", 99_000)]
    expected = ["new_frame", "resubmitted", "echoed", "resubmitted", "other_station", "echoed", "resubmitted"]
    assert heard(Stations(echo_ms=500), *story) == expected


def test_an_echo_has_the_status_of_a_copy_from_another_station():
    for strategy, status in (("drop", "duplicate"), ("mark", "soft_duplicate"), ("none", "soft_duplicate")):
        stations = Stations(echo_ms=500)
        stations.data(b"key", "a", Strategy(strategy), 0)
        assert stations.data(b"key", "a", Strategy(strategy), 499)[0] == status
        assert stations.data(b"key", "a", Strategy(strategy), 999)[0] == "resubmission"


def test_a_miss_is_unsure_while_something_unexpired_was_pushed_out():
    stations = Stations(Sightings(expiry_ms=60_000, entries_max=1))
    assert str(stations.data(b"1", "a", Strategy.NONE, 0)[1]) == "FIRST new_frame"
    assert str(stations.data(b"2", "a", Strategy.NONE, 1)[1]) == "UNSURE forgotten"
    assert str(stations.join(b"3", "a", 2)[1]) == "UNSURE forgotten"
    assert str(stations.join(b"4", "a", 60_002)[1]) == "FIRST new_join"
