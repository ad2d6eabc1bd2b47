"""Recovery equals never having crashed; a snapshot is whole or refused."""

import struct
import time
import tracemalloc
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import BadInput, Misuse
from onefold.producers import Cadence, Kind, SequenceEntry, Sequences, SequencesSnapshot, recover
from tests.lib.examples import examples, proof

MEMORIES = pytest.mark.parametrize("memory", ["highest", "gaps"])
NAMES = st.sampled_from(["p", "q", "ü", "r" * 200])
LIMITS = {"gap_count_max": 3, "digests_max": 3, "floors_count": 4, "keys_max": 5, "keys_ms": 20}
TIMES = st.integers(0, 60)
MESSAGE = st.builds(
    SequenceEntry, st.just(Kind.MESSAGE), NAMES, st.integers(0, 30), st.integers(0, 3), st.integers(-1, 9), TIMES
)
ENTRIES = st.one_of(
    MESSAGE,
    MESSAGE,
    MESSAGE,
    st.builds(
        SequenceEntry, st.just(Kind.CONFLICT), NAMES, st.integers(0, 30), st.integers(0, 3), st.integers(0, 9), TIMES
    ),
    st.builds(SequenceEntry, st.just(Kind.OPEN), NAMES, st.just(0), st.integers(1, 4), st.just(-1), TIMES),
    st.builds(SequenceEntry, st.just(Kind.PURGE), st.just(""), TIMES),
    st.builds(SequenceEntry, st.just(Kind.SWITCH), st.just(""), st.sampled_from([0, 1, 1])),
    st.builds(SequenceEntry, st.just(Kind.RESET), NAMES, st.just(0), st.just(0), st.just(-1), TIMES),
    st.builds(SequenceEntry, st.just(Kind.CLOCK), st.just(""), TIMES, st.just(0), st.just(-1), TIMES),
    st.builds(SequenceEntry, st.just(Kind.KEYED), NAMES, st.just(0), st.just(0), st.integers(0, 9), TIMES),
)


def folded(memory, entries):
    s = Sequences(memory, **LIMITS)
    for entry in entries:
        s.apply(entry)
    return s


def answers(s):
    """What it would say next, of everything in reach."""
    pushes = [
        s.push(name, sequence, epoch=epoch, digests=[5])
        for name in ["p", "q", "ü", "r" * 200]
        for epoch in (None, 1, 2, 3, 4)
        for sequence in range(0, 32, 3)
    ]
    keys = [s.push_key(name, 5, 70) for name in ["p", "q", "ü"]]
    return [(*pushed, pushed.parts) for pushed in pushes + keys]


@MEMORIES
@settings(max_examples=examples(60), deadline=None)
@given(log=st.lists(ENTRIES, max_size=18))
def test_recovery_equals_never_having_crashed_at_every_cut(memory, log):
    numbered = list(enumerate(log))
    live = Sequences(memory, **LIMITS)
    snapshots = [SequencesSnapshot(0, live.snapshot())]
    for cut in range(len(log) + 1):
        if cut:
            live.apply(log[cut - 1])
            snapshots.append(SequencesSnapshot(cut, live.snapshot()))
        for snapshot in [None, *snapshots]:
            start = snapshot.position if snapshot else 0
            recovered = recover(snapshot, numbered[start:cut], memory=memory, **LIMITS)
            assert recovered.sequences == live
            assert recovered.sequences.snapshot() == snapshots[-1].state
            assert (recovered.position, recovered.since_snapshot) == (cut, cut - start)


@MEMORIES
@settings(max_examples=examples(60), deadline=None)
@given(log=st.lists(ENTRIES, max_size=25), later=st.lists(ENTRIES, max_size=10))
def test_a_restored_memory_has_the_same_future(memory, log, later):
    live = folded(memory, log)
    restored = Sequences.restore(live.snapshot())
    for entry in later:
        live.apply(entry)
        restored.apply(entry)
    assert restored == live
    assert answers(restored) == answers(live)


@MEMORIES
@settings(max_examples=examples(200), deadline=None)
@given(
    before=st.lists(MESSAGE, max_size=20),
    low=st.integers(0, 30),
    extra=st.integers(0, 12),
    known=st.booleans(),
    epoch=st.integers(0, 4),
    gap_count_max=st.integers(1, 4),
)
def test_a_run_equals_its_messages_one_by_one(memory, before, low, extra, known, epoch, gap_count_max):
    limits = {**LIMITS, "gap_count_max": gap_count_max}
    at_once, one_by_one = Sequences(memory, **limits), Sequences(memory, **limits)
    for entry in before:
        at_once.apply(entry)
        one_by_one.apply(entry)
    digests = list(range(100, 101 + extra)) if known else None
    at_once.apply_run("p", low, low + extra, epoch, digests, 7)
    for sequence in range(low, low + extra + 1):
        digest = digests[sequence - low] if digests else -1
        one_by_one.apply(SequenceEntry(Kind.MESSAGE, "p", sequence, epoch, digest, 7))
    assert at_once == one_by_one


@MEMORIES
@settings(max_examples=examples(60), deadline=None)
@given(log=st.lists(MESSAGE, min_size=1, max_size=20), pushes=st.lists(st.integers(0, 40), max_size=8))
def test_a_snapshot_holds_nothing_of_what_is_pending(memory, log, pushes):
    s = folded(memory, log)
    before = s.snapshot()
    for sequence in pushes:
        s.push("p", sequence, epoch=s.epoch("p"))
    s.push_open("q")
    assert s.snapshot() == before


def test_a_tail_that_does_not_fit_the_snapshot_is_refused():
    log = [(n, SequenceEntry(Kind.MESSAGE, "p", n)) for n in range(6)]
    snapshot = SequencesSnapshot(3, recover(None, log[:3]).sequences.snapshot())
    assert recover(snapshot, log[3:]).sequences == recover(None, log).sequences
    for wrong in (log[2:], log[4:], [log[3], log[5]], [log[3], log[3]]):
        with pytest.raises(BadInput, match="goes on at offset"):
            recover(snapshot, wrong)
    with pytest.raises(BadInput):
        recover(None, log[1:])
    assert recover(snapshot, []).position == 3


RICH = [
    SequenceEntry(Kind.MESSAGE, "gone", 40, 0, 1, 1),
    SequenceEntry(Kind.OPEN, "gone", epoch=2, time_ms=1),
    SequenceEntry(Kind.PURGE, sequence=2),
    *(SequenceEntry(Kind.MESSAGE, "p", n, 0, n, 10 + n) for n in (3, 4, 9, 12)),
    SequenceEntry(Kind.OPEN, "q", epoch=1, time_ms=11),
    SequenceEntry(Kind.MESSAGE, "ü", 7, 0, 8, 12),
    SequenceEntry(Kind.KEYED, "k", digest=3, time_ms=13),
]


@MEMORIES
def test_a_snapshot_cut_or_flipped_anywhere_is_refused(memory):
    good = folded(memory, RICH).snapshot()
    for cut in range(len(good)):
        with pytest.raises(BadInput):
            Sequences.restore(good[:cut])
    for at in range(len(good)):
        for flip in (1, 0x10, 0x80, 0xFF):
            with pytest.raises(BadInput):
                Sequences.restore(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
    with pytest.raises(BadInput):
        Sequences.restore(good + b"\0")


@MEMORIES
def test_bytes_that_contradict_themselves_raise_nothing_but_bad_input_even_with_a_right_crc(memory):
    good = folded(memory, RICH).snapshot()
    refused = 0
    for at in range(8, len(good)):
        for flip in (1, 0x80, 0xFF):
            body = good[8:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
            try:
                forged = Sequences.restore(good[:4] + struct.pack("<I", crc32(body)) + body)
            except BadInput:
                refused += 1
            else:
                answers(forged)
    assert refused > 100


def test_settings_that_are_given_replace_those_of_the_snapshot():
    highest, gaps = folded("highest", RICH), folded("gaps", RICH)
    assert Sequences.restore(gaps.snapshot()).push("p", 7) == ("FIRST", "fills_gap")
    assert Sequences.restore(gaps.snapshot(), memory="highest").push("p", 7) == ("REPEAT", "behind_highest")
    turned = Sequences.restore(highest.snapshot(), memory="gaps")
    assert turned.push("p", 7) == turned.push("p", 12) == ("UNSURE", "forgotten")
    assert turned.push("p", 13) == ("FIRST", "new")
    assert Sequences.restore(highest.snapshot(), digests_max=0).push("p", 12, digests=[99]).verdict == "REPEAT"
    with pytest.raises(Misuse, match="floors_count"):
        Sequences.restore(highest.snapshot(), floors_count=5)
    assert Sequences.restore(Sequences().snapshot(), floors_count=5).push("p", 0).verdict == "FIRST"


def test_a_snapshot_is_due_after_so_many_entries_or_so_long():
    cadence = Cadence(entries=3, ms=1000)
    assert not cadence.due(10**9)
    cadence.note(2, 0)  # replayed entries count
    assert [cadence.due(now) for now in (0, 999, 1000)] == [False, False, True]
    cadence.note(1, 5)
    assert cadence.due(5)
    cadence.done(6)
    assert not cadence.due(10**9)  # nothing new, nothing to take
    cadence.note(1, 900)
    assert [cadence.due(now) for now in (1005, 1006)] == [False, True]
    with pytest.raises(Misuse):
        Cadence(0, 1)


@pytest.mark.parametrize("count", [10_000, proof(100_000)])
def test_a_hundred_thousand_producers_fit_into_100_mb_and_come_back_fast(count):
    s = Sequences()
    for n in range(count):
        s.apply_run(f"producer-{n:08d}", 1000 + n, 1015 + n, 3, list(range(n, n + 16)), 1_700_000_000_000 + n)
    began = time.process_time()
    state = s.snapshot()
    restored = Sequences.restore(state)
    took = time.process_time() - began
    assert restored == s
    assert took < 5  # of the processor
    del s, restored
    tracemalloc.start()
    restored = Sequences.restore(state)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(restored) == count
    assert used < 1_000 * count
    print(f"{used / 1e6:.0f} MB, snapshot and restore of {len(state) / 1e6:.1f} MB in {took:.2f} s")
