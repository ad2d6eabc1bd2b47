"""The rules of the producers engine, one by one."""

from zlib import crc32

import pytest

from onefold import Answer, Sequences, Verdict
from onefold.errors import BadInput, Busy, Misuse
from onefold.producers import ANSWERS, NO_DIGEST, RULES, Kind, SequenceEntry

MEMORIES = pytest.mark.parametrize("memory", ["highest", "gaps"])


def stored(memory="highest", *parts, producer="p", **settings):
    s = Sequences(memory, **settings)
    for low, high in parts:
        s.apply_run(producer, low, high, 0, None, 0)
    return s


@MEMORIES
def test_between_pushed_and_persisted_nobody_knows(memory):
    s = Sequences(memory)
    assert s.push("p", 5) == Answer(Verdict.FIRST, "new")
    assert s.push("p", 5) == ("UNSURE", "in_flight")
    s.persist("p", 5)
    assert s.push("p", 5).verdict == "REPEAT"
    assert s.push("p", 5).parts == ()


@MEMORIES
def test_a_failed_write_falls_back_and_its_retry_is_stored(memory):
    s = Sequences(memory)
    s.push("p", 0)
    s.persist("p", 0)
    s.push("p", 1)
    assert s.pushed == {"p": 1}
    s.fail("p", 1)
    assert s.pushed == s.persisted == {"p": 0}
    assert s.push("p", 1) == ("FIRST", "new")


@MEMORIES
def test_while_others_are_out_a_failure_fences_the_whole_topic(memory):
    s = stored(memory, (0, 0))
    for producer, sequence in [("p", 1), ("p", 2), ("q", 7)]:
        s.push(producer, sequence)
    s.fail("p", 1)
    assert [s.push(*m) for m in [("p", 0), ("p", 1), ("p", 3), ("r", 0)]] == [("UNSURE", "fenced")] * 4
    assert s.push_key("k", 1, 0) == ("UNSURE", "fenced")
    s.fail("p", 2)
    assert s.fenced
    s.persist("q", 7)
    assert not s.fenced
    assert s.pushed == {"p": 0, "q": 7}
    assert s.push("p", 1) == ("FIRST", "new")


def test_highest_calls_a_lower_sequence_a_repeat_and_gaps_does_not():
    assert stored("highest", (5, 5), (9, 9)).push("p", 7) == ("REPEAT", "behind_highest")
    gaps = stored("gaps", (5, 5), (9, 9))
    assert gaps.push("p", 7) == ("FIRST", "fills_gap")
    assert gaps.push("p", 0) == ("FIRST", "fills_gap")
    assert gaps.push("p", 9) == ("REPEAT", "seen")
    assert gaps.push("p", 7) == ("UNSURE", "in_flight")


def test_of_a_batch_that_is_stored_in_part_the_rest_is_new():
    assert stored("highest", (0, 4)).push("p", 3, high=8).parts == ((5, 8),)
    gaps = stored("gaps", (0, 4), (7, 8))
    pushed = gaps.push("p", 3, high=11)
    assert pushed == ("FIRST", "rest_of_batch")
    assert pushed.parts == ((5, 6), (9, 11))
    assert gaps.push("p", 11, high=20) == ("UNSURE", "in_flight")
    assert gaps.push("p", 12, high=20) == ("FIRST", "new")
    for low, _ in pushed.parts:
        gaps.persist("p", low)
    assert gaps.push("p", 0, high=11) == ("REPEAT", "seen")


@MEMORIES
def test_a_batch_of_which_a_part_is_in_flight_is_not_split(memory):
    s = stored(memory, (0, 4))
    s.push("p", 6)
    assert s.push("p", 4, high=6) == ("UNSURE", "in_flight")
    assert s.pending == 1


def test_too_many_gaps_forget_the_lowest_which_is_then_unsure():
    s = stored("gaps", (2, 2), (4, 4), (6, 6), gap_count_max=2)
    assert s.floor("p") == 1
    assert s.push("p", 0) == ("UNSURE", "forgotten")
    assert s.push("p", 1, high=3) == ("UNSURE", "forgotten")
    assert s.push("p", 2, high=3).parts == ((3, 3),)


@MEMORIES
def test_the_same_sequence_with_another_payload_is_a_conflict(memory):
    s = Sequences(memory, digests_max=2)
    s.push("p", 0, high=3, digests=[10, 11, 12, 13])
    s.persist("p", 0, digests=[10, 11, 12, 13])
    assert s.push("p", 3, digests=[13]).verdict == "REPEAT"
    assert s.push("p", 3, digests=[14]) == ("REJECT", "conflict")
    assert s.push("p", 1, digests=[99]).verdict == "REPEAT"  # its digest was given up
    assert s.push("p", 2, high=5, digests=[12, 99, 1, 1]) == ("REJECT", "conflict")
    assert s.push("p", 2, high=5, digests=[12, 13, 1, 1]).parts == ((4, 5),)
    assert s.push("p", 3).verdict == "REPEAT"


@MEMORIES
def test_a_payload_that_nobody_looked_at_is_no_conflict(memory):
    s = Sequences(memory)
    s.push("p", 0, high=2, digests=[10, NO_DIGEST, 12])
    s.persist("p", 0, digests=[10, NO_DIGEST, 12])
    assert s.push("p", 0, high=2, digests=[NO_DIGEST, 11, 12]).verdict == "REPEAT"
    assert s.push("p", 0, high=2, digests=[NO_DIGEST, 11, 13]) == ("REJECT", "conflict")


def test_digests_may_be_switched_off():
    s = Sequences(digests_max=0)
    s.push("p", 0)
    s.persist("p", 0, digests=[7])
    assert s.push("p", 0, digests=[8]).verdict == "REPEAT"


@pytest.mark.parametrize(
    ("low", "high"), [(-1, None), (2**63 - 1, None), (3, 2), (True, None), ("1", None), (1.0, None), (0, 2**63 - 1)]
)
def test_a_sequence_that_is_none_is_rejected(low, high):
    assert Sequences().push("p", low, high=high) == ("REJECT", "bad_sequence")


@pytest.mark.parametrize("name", ["", "x" * 201, "é" * 101, "\ud800", None, 7, ["p"]])
def test_a_name_that_is_none_is_rejected(name):
    s = Sequences()
    assert s.push(name, 1) == s.push_key(name, 1, 0) == ("REJECT", "bad_name")
    with pytest.raises(Misuse):
        s.push_open(name)


def test_the_largest_sequence_and_the_longest_name_count():
    s = Sequences("gaps")
    assert s.push("é" * 100, 2**63 - 2).verdict == "FIRST"
    s.persist("é" * 100, 2**63 - 2)
    assert Sequences.restore(s.snapshot()) == s


def test_an_epoch_fences_off_the_ones_before_it():
    s = stored("highest", (0, 0))
    assert s.push_open("p") == 1
    assert s.push("p", 1) == ("UNSURE", "in_flight")
    s.persist_open("p", 1, 10)
    assert s.push("p", 1) == ("REJECT", "epoch_missing")
    assert s.push("p", 1, epoch=2) == ("REJECT", "unknown_epoch")
    assert s.push("p", 1, epoch=1) == ("FIRST", "new")
    assert (s.push_open("p"), s.push_open("p")) == (2, 3)
    s.fail_open("p", 2)
    s.persist_open("p", 3, 11)
    assert s.push("p", 2, epoch=1) == s.push("p", 0, epoch=2) == ("REJECT", "stale_epoch")
    assert s.push("p", 0, epoch=3) == ("REPEAT", "behind_highest")
    assert s.push("q", 2, epoch=1) == ("REJECT", "unknown_epoch")
    assert s.push("p", 2, epoch=-1) == s.push("p", 2, epoch="3") == ("REJECT", "unknown_epoch")


@MEMORIES
def test_a_sequence_too_far_ahead_is_rejected_and_leaves_no_trace(memory):
    s = stored(memory, (0, 7), jump_max=100)
    before = s.snapshot()
    assert s.push("p", 2**62) == s.push("p", 108) == ("REJECT", "jump_too_far")
    assert (s.snapshot(), s.pending) == (before, 0)
    assert s.push("p", 8) == ("FIRST", "new")
    assert s.push("p", 108, high=500).parts == ((108, 500),)  # measured from what is pushed; a batch from its beginning
    assert s.push("p", 601) == ("REJECT", "jump_too_far")


@MEMORIES
def test_the_first_sequence_of_a_producer_may_be_any_and_by_default_every_other_too(memory):
    s = Sequences(memory, jump_max=1)
    assert s.push("p", 2**62) == ("FIRST", "new")
    assert stored(memory, (0, 0)).push("p", 2**62) == ("FIRST", "new")


@MEMORIES
def test_after_a_reset_the_next_sequence_is_new_and_zombies_stay_shut_out(memory):
    s = stored(memory, (2**62, 2**62))
    s.apply(SequenceEntry(Kind.OPEN, "p", epoch=2))
    s.apply(SequenceEntry(Kind.RESET, "p", time_ms=9))
    assert (s.last_sequence_id("p"), s.floor("p"), s.epoch("p")) == (-1, -1, 2)
    assert s.push("p", 0, epoch=1) == ("REJECT", "stale_epoch")
    assert s.push("p", 0, epoch=2) == ("FIRST", "new")
    assert Sequences.restore(s.snapshot()) == s


@MEMORIES
def test_a_reset_lifts_the_floor_of_a_producer_that_was_forgotten(memory):
    s = stored(memory, (0, 50), floors_count=1)
    s.apply(SequenceEntry(Kind.PURGE, sequence=1))
    assert s.push("p", 3) == s.push("q", 3) == ("UNSURE", "forgotten")
    s.apply(SequenceEntry(Kind.RESET, "p"))
    assert s.push("p", 3) == ("FIRST", "new")
    assert s.push("q", 3) == ("UNSURE", "forgotten")


def test_a_clock_that_is_set_ahead_ages_no_key_and_one_set_back_keeps_none_for_longer_than_its_time():
    s = Sequences(keys_ms=100)
    s.apply(SequenceEntry(Kind.KEYED, "a", digest=1, time_ms=1_000))
    s.apply(SequenceEntry(Kind.CLOCK, sequence=1_040, time_ms=9_040))
    assert s.push_key("a", 1, 9_099).verdict == "REPEAT"
    s.apply(SequenceEntry(Kind.CLOCK, sequence=9_050, time_ms=50))
    assert s.push_key("a", 1, 149).verdict == "REPEAT"
    assert s.push_key("a", 1, 150).verdict == "FIRST"


def test_an_expired_key_is_known_again_when_the_clock_comes_back_unless_its_room_was_needed():
    s = Sequences(keys_ms=100, keys_max=2)
    for key, time_ms in (("a", 0), ("b", 10), ("c", 5_000)):
        s.apply(SequenceEntry(Kind.KEYED, key, digest=1, time_ms=time_ms))
    s.apply(SequenceEntry(Kind.CLOCK, sequence=5_000, time_ms=20))
    assert [s.push_key(key, 1, 20).reason for key in "abc"] == ["keys_full", "known_key", "known_key"]


def test_a_snapshot_keeps_the_guard_and_one_of_before_there_was_a_guard_has_none():
    s = stored("gaps", (0, 3), (9, 9), jump_max=100)
    s.apply(SequenceEntry(Kind.KEYED, "k", digest=5, time_ms=7))
    assert Sequences.restore(s.snapshot()).push("p", 110) == ("REJECT", "jump_too_far")
    assert Sequences.restore(s.snapshot(), jump_max=None).push("p", 110) == ("FIRST", "new")
    body = s.snapshot()[8:]
    body = body[:50] + body[58:]  # the header of the first format has no jump_max
    old = b"OFP1" + crc32(body).to_bytes(4, "little") + body
    restored = Sequences.restore(old)
    assert restored == s
    assert restored.push("p", 110) == ("FIRST", "new")


@MEMORIES
def test_a_purged_producer_keeps_its_floor_and_its_epochs(memory):
    s = stored(memory, (0, 9))
    s.apply(SequenceEntry(Kind.OPEN, "p", epoch=4, time_ms=50))
    s.apply(SequenceEntry(Kind.PURGE, sequence=50))
    assert len(s) == 1
    s.apply(SequenceEntry(Kind.PURGE, sequence=51))
    assert len(s) == 0
    assert s.floor("p") == 9
    assert s.push("p", 9) == s.push("p", 9, high=12) == s.push("p", 12, epoch=4) == ("UNSURE", "forgotten")
    assert s.push("p", 12, epoch=5) == ("REJECT", "unknown_epoch")
    assert s.push_open("p") == 5
    s.fail_open("p", 5)
    assert s.push("p", 10) == ("FIRST", "new")
    s.persist("p", 10)
    assert s.push("p", 10).verdict == "REPEAT"
    assert s.push("p", 9).verdict != "FIRST"


@MEMORIES
def test_what_is_pending_when_its_producer_is_purged_still_lands(memory):
    s = stored(memory, (0, 9))
    s.push("p", 11)
    s.apply(SequenceEntry(Kind.PURGE, sequence=100))
    assert s.push("p", 11) == ("UNSURE", "in_flight")
    s.persist("p", 11)
    assert s.push("p", 11).verdict == "REPEAT"
    assert s.push("p", 9).verdict != "FIRST"


def test_the_room_for_producers_is_counted_with_those_on_their_way():
    s = Sequences(producers_max=3)
    s.push("a", 0)
    s.push("a", 1)
    assert s.push_open("b") == 1
    s.push("c", 0)
    assert s.push("d", 0) == ("UNSURE", "producers_full")
    with pytest.raises(Busy, match="producers_max"):
        s.push_open("d")
    assert s.push("a", 2).verdict == "FIRST"
    s.fail_open("b", 1)
    assert s.push("d", 0).verdict == "FIRST"


def test_the_room_for_producers_is_what_the_stored_ones_leave():
    s = Sequences(producers_max=3)
    for producer in "ab":
        s.apply(SequenceEntry(Kind.MESSAGE, producer, 0))
    s.push("a", 1)  # known: it takes no room
    assert s.push("c", 0).verdict == "FIRST"
    assert s.push("d", 0) == ("UNSURE", "producers_full")
    s.persist("c", 0)
    s.persist("a", 1)
    assert s.push("d", 0) == ("UNSURE", "producers_full")
    s.apply(SequenceEntry(Kind.MESSAGE, "d", 0))  # what the log holds is known, whatever the limit
    assert len(s) == 4
    assert s.push("d", 0).verdict == "REPEAT"


def test_two_memories_are_equal_if_they_know_the_same():
    assert Sequences() == Sequences(producers_max=5)
    assert Sequences() != Sequences("gaps")
    assert stored("gaps", (0, 3)) == stored("gaps", (2, 3), (0, 1)) != stored("gaps", (0, 2))
    assert stored("highest", (0, 3)) != "0..3"
    assert bool(Sequences())


def test_switched_off_everything_is_first_and_nothing_is_remembered():
    s = stored("gaps", (0, 9))
    s.apply(SequenceEntry(Kind.OPEN, "o", epoch=2))
    s.apply(SequenceEntry(Kind.SWITCH, sequence=0))
    assert s.persisted == {}
    for _ in range(2):
        assert s.push("p", 5) == s.push_key("k", 1, 0) == ("FIRST", "switched_off")
    assert s.push("", 5).verdict == "REJECT"
    for _ in range(2):
        s.persist("p", 5)
        s.persist_key("k", 1, 0)
    s.push("p", 6)
    s.apply(SequenceEntry(Kind.SWITCH, sequence=1))
    assert s.persisted == {}
    assert s.push("p", 6) == ("UNSURE", "in_flight")  # pushed while it was off, and still on its way
    s.persist("p", 6)
    assert s.persisted == {"p": 6}
    assert s.push("o", 1, epoch=1) == ("REJECT", "stale_epoch")  # zombies stay zombies


def test_a_key_is_known_for_its_time():
    s = Sequences(keys_ms=100, keys_max=2)
    assert s.push_key("k", 1, 0) == ("FIRST", "new")
    assert s.push_key("k", 1, 0) == ("UNSURE", "in_flight")
    s.persist_key("k", 1, 10)
    assert s.push_key("k", 1, 109) == ("REPEAT", "known_key")
    assert s.push_key("k", 2, 109) == ("REJECT", "conflict")
    s.push_key("l", 1, 109)
    assert s.push_key("m", 1, 109) == ("UNSURE", "keys_full")
    s.fail_key("l")
    assert s.push_key("m", 1, 109) == ("FIRST", "new")
    assert s.push_key("k", 2, 110) == ("FIRST", "new")  # expired, which also makes room


def test_a_whole_group_can_be_given_up_at_once():
    s = Sequences()
    s.push("p", 1)
    s.push("q", 1)
    s.fail("p", 1)
    s.push_open("r")
    assert str(s) == "fenced, 0 producers, 0 keys, 2 pending"
    s.forget_overlay()
    assert s.pending == 0
    assert s.push("p", 1).verdict == "FIRST"


def test_what_was_never_pushed_cannot_come_back():
    s = stored("highest", (0, 3))
    s.push("r", 5)
    for call in (
        lambda: s.persist("p", 4),
        lambda: s.persist("r", 4),
        lambda: s.fail("q", 0),
        lambda: s.persist_open("p", 1, 0),
        lambda: s.fail_key("k"),
        lambda: s.apply_run("p", 4, 6, 0, [1], 0),
        lambda: s.push("p", 4, digests=[1, 2]),
    ):
        with pytest.raises(Misuse):
            call()
    assert not s.fenced
    with pytest.raises(BadInput, match="unknown kind 9"):
        s.apply(SequenceEntry(9))


@pytest.mark.parametrize(
    "settings", [{"memory": "all"}, {"producers_max": 0}, {"gap_count_max": 0}, {"keys_ms": 1.5}, {"digests_max": -1}]
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(Misuse, match=next(iter(settings))):
        Sequences(**settings)


def test_every_answer_has_a_rule_and_no_two_are_the_same():
    assert len(ANSWERS) == len(RULES) == len(set(ANSWERS)) >= 21
    assert all(rule.endswith(".") for rule in RULES.values())
    assert not any(answer.parts for answer in ANSWERS)
