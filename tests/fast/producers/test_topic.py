import threading
from concurrent.futures import Future
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import Busy, Misuse, StoreFailed
from onefold.producers.log.segments import SegmentLog
from onefold.producers.records import Kind
from onefold.producers.topic import Topic, Topics, TopicSettings
from onefold.tally import BooksDoNotBalance
from onefold.verdict import Verdict
from tests.lib.disk import SimDisk
from tests.lib.examples import proof
from tests.lib.memory_log import MemoryLog
from tests.lib.producer_trials import faults, open_topic, power

FIRST, REPEAT, UNSURE, REJECT = Verdict


def topic(log=None, now=lambda: 0, **settings) -> Topic:
    return Topic(MemoryLog() if log is None else log, TopicSettings(**settings), clock=now)


def messages(*sequences: int) -> list[tuple[int, bytes]]:
    return [(n, b"message %d" % n) for n in sequences]


def stored(topic: Topic, kind: Kind = Kind.MESSAGE) -> list[tuple[str, int]]:
    return [(r.producer, r.sequence) for r in topic.log.read(topic.log.start) if r.kind == kind]


def said(receipts) -> list[str]:
    return [f"{receipt.verdict} {receipt.reason} {receipt.offset}" for receipt in receipts]


def test_a_message_is_stored_once_however_often_it_is_sent():
    t = topic()
    assert said(t.publish("p", messages(0, 1))) == ["FIRST new 0", "FIRST new 1"]
    assert said(t.publish("p", messages(0, 1))) == ["REPEAT behind_highest -1"] * 2
    assert stored(t) == [("p", 0), ("p", 1)]
    assert t.last_sequence_id("p") == 1
    assert str(t.tally) == "4 in = 2 first + 2 repeat + 0 unsure + 0 reject"


@pytest.mark.parametrize(("memory", "known"), [("highest", "behind_highest"), ("gaps", "seen")])
def test_of_a_batch_that_is_stored_in_part_only_the_rest_is_stored(memory, known):
    t = topic(memory=memory)
    t.publish("p", messages(0, 1, 2))
    receipts = said(t.publish("p", messages(0, 1, 2, 3, 4)))
    assert receipts == [f"REPEAT {known} -1"] * 3 + ["FIRST rest_of_batch 3", "FIRST rest_of_batch 4"]
    assert stored(t) == [("p", n) for n in range(5)]


def test_with_gaps_a_batch_fills_the_holes_between_what_is_stored():
    t = topic(memory="gaps")
    for n in (1, 3):
        t.publish("p", messages(n))
    verdicts = [receipt.verdict for receipt in t.publish("p", messages(0, 1, 2, 3, 4))]
    assert verdicts == [FIRST, REPEAT, FIRST, REPEAT, FIRST]
    assert sorted(stored(t)) == [("p", n) for n in range(5)]


def test_a_write_that_fails_is_no_receipt_and_its_retry_is_no_repeat():
    disk = SimDisk()
    t = open_topic(disk)
    t.publish("p", messages(0))
    disk.fail(1)
    with pytest.raises(StoreFailed, match="Input/output error"):
        t.publish("p", messages(1))
    assert t.last_sequence_id("p") == 0
    assert [r.verdict for r in t.publish("p", messages(0, 1))] == [REPEAT, FIRST]
    assert stored(t) == [("p", 0), ("p", 1)]
    assert str(t.tally) == "4 in = 2 first + 1 repeat + 1 unsure + 0 reject"


def test_one_wrong_sequence_does_not_make_honest_ones_repeats():
    log = MemoryLog()
    t = topic(log, jump_max=1 << 40)
    t.publish("p", messages(0, 1))
    assert said(t.publish("p", messages(2**62))) == ["REJECT jump_too_far -1"]
    assert said(t.publish("p", messages(2, 3))) == ["FIRST new 2", "FIRST new 3"]
    assert said(topic(log, jump_max=1 << 40).publish("p", messages(3, 2**62))) == [
        "REPEAT behind_highest -1",
        "REJECT jump_too_far -1",
    ]  # after a restart as before it: the log holds nothing of a jump
    assert stored(t) == [("p", n) for n in range(4)]


def test_a_failed_write_takes_what_was_judged_after_it_along():
    disk = SimDisk()
    t = open_topic(disk)
    early: Future[list] = t.submit("p", messages(0))
    seen: list[Future[list]] = []

    def while_writing(operation: str) -> None:
        if operation == "write" and not seen:
            seen.append(t.submit("p", messages(1)))  # comes while the group before it is being written

    disk.before = while_writing
    disk.fail(1, count=9, error=28)
    t.flush()
    for future in (early, *seen):
        with pytest.raises(StoreFailed, match="No space left"):
            future.result(0)
    disk.before = None
    disk.heal()
    t.flush()
    assert stored(t) == []
    assert [r.verdict for r in t.publish("p", messages(0, 1))] == [FIRST, FIRST]


def test_what_was_sent_ahead_of_a_failure_waits_for_its_retry():
    disk = SimDisk()
    t = open_topic(disk)
    disk.fail(1)
    with pytest.raises(StoreFailed):
        t.publish("p", messages(0, 1))
    assert said(t.publish("p", messages(2))) == ["UNSURE fenced -1"]  # sent before the news of the failure came
    assert said(t.publish("q", messages(7))) == ["FIRST new 0"]  # is nobody else's trouble
    assert [r.verdict for r in t.publish("p", messages(0, 1, 2))] == [FIRST, FIRST, FIRST]
    disk.fail(1)
    with pytest.raises(StoreFailed):
        t.publish("p", messages(3))
    session = t.connect("p")
    assert t.publish("p", messages(5), session.epoch)[0].verdict == FIRST  # it knows what is stored, and left 3 out


def test_a_switch_lifts_every_fence():
    disk = SimDisk()
    t = open_topic(disk)
    disk.fail(1)
    with pytest.raises(StoreFailed):
        t.publish("p", messages(0))
    t.switch(False)
    assert said(t.publish("p", messages(1)))[0].startswith("FIRST switched_off")


def test_only_its_own_retry_lifts_the_fence_after_a_failure():
    disk = SimDisk()
    t = open_topic(disk)
    old, new = t.connect("p"), t.connect("p")
    disk.fail(1)
    with pytest.raises(StoreFailed):
        t.publish("p", messages(5), new.epoch)
    assert said(t.publish("p", messages(5), old.epoch)) == ["REJECT stale_epoch -1"]  # a zombie
    disk.fail(1)
    with pytest.raises(StoreFailed):
        t.connect("p")
    assert said(t.publish("p", messages(6), new.epoch)) == ["UNSURE fenced -1"]
    assert [r.verdict for r in t.publish("p", messages(5, 6), new.epoch)] == [FIRST, FIRST]


def test_a_future_cannot_be_cancelled_and_its_callback_may_publish():
    t = topic()
    first, second = t.submit("p", messages(0)), t.submit("p", messages(1))
    assert not first.cancel()
    later: list = []
    first.add_done_callback(lambda future: later.extend(t.publish("p", messages(2))))
    t.flush()
    assert said([*first.result(0), *second.result(0), *later]) == ["FIRST new 0", "FIRST new 1", "FIRST new 2"]


def test_an_interrupt_behind_the_sync_does_not_make_a_message_new_again():
    class Late(MemoryLog):
        def append(self, drafts, time_ms):
            super().append(drafts, time_ms)
            raise KeyboardInterrupt

    log = Late()
    t = topic(log)
    with pytest.raises(KeyboardInterrupt):
        t.publish("p", messages(0))
    assert t.last_sequence_id("p") == 0
    assert [r.verdict for r in t.publish("p", messages(0))] == [REPEAT]


def test_what_is_no_message_is_refused_before_anything_is_judged():
    t = topic()
    with pytest.raises(Misuse, match=r"not \(5, str\)"):
        t.publish("p", [(0, b"x"), (5, "text")])  # type: ignore[list-item]
    assert t.publish("p", messages(0))[0].verdict == FIRST


def test_a_snapshot_that_fails_is_tried_again_when_the_next_is_due_and_not_with_every_group():
    class Forgetful(MemoryLog):
        def save(self, snapshot):
            raise StoreFailed("no room", cause="no room", path="")

    t = topic(Forgetful(), snapshot_entries=10, idle_ms=1_000)
    for n in range(50):
        t.publish("p", messages(n))
    assert t.problem == "no room"
    assert len(stored(t, Kind.PURGE)) <= 5


def test_old_messages_go_also_from_a_topic_that_nobody_publishes_to():
    now = [0]
    disk = SimDisk()
    settings = TopicSettings(snapshot_entries=2, retain_ms=1_000)
    t = Topic(SegmentLog("/t", files=disk), settings, clock=lambda: now[0])
    for n in range(6):
        t.publish("p", messages(n))
        now[0] += 10
    now[0] = 10_000
    t.tend()
    t.publish("p", messages(6, 7))
    assert t.log.start > 0
    assert [r.verdict for r in t.publish("p", messages(0, 7))] == [REPEAT, REPEAT]


def test_a_floor_that_was_forgotten_is_unsure_also_above_which_something_is_stored():
    now = [0]
    t = topic(now=lambda: now[0], idle_ms=1_000, snapshot_entries=3, snapshot_ms=1 << 40)
    t.publish("p", messages(*range(51)))
    now[0] = 5_000
    t.publish("q", messages(0, 1, 2))  # p is forgotten
    assert t.publish("p", messages(60))[0].verdict == FIRST
    assert said(t.publish("p", messages(10))) == ["UNSURE forgotten -1"]  # may have been left out: nobody knows
    assert said(t.publish("p", messages(55))) == ["REPEAT behind_highest -1"]


def test_a_flush_that_is_interrupted_answers_those_who_wait():
    class Interrupted(MemoryLog):
        def append(self, drafts, time_ms):
            raise KeyboardInterrupt

    t = topic(Interrupted())
    future = t.submit("p", messages(0))
    with pytest.raises(KeyboardInterrupt):
        t.flush()
    assert isinstance(future.exception(0), StoreFailed)  # an interrupt would end a thread that it was not meant for
    assert t.figures()["pending"] == 0


def test_housekeeping_that_fails_once_is_no_problem_any_more_when_it_works_again():
    class Full(MemoryLog):
        full = False

        def retain(self, **limits):
            if self.full:
                raise StoreFailed("no room")
            return super().retain(**limits)

    now, log = [0], Full()
    t = topic(log, now=lambda: now[0], retain_ms=1_000)
    t.publish("p", messages(0))
    now[0] = 70_000
    t.tend()
    log.full = True
    t.tend()
    assert t.problem == "no room"
    log.full = False
    t.tend()
    assert t.problem is None


def test_arguments_of_the_wrong_type_leave_the_books_balanced():
    t = topic()
    with pytest.raises(Misuse, match="a payload is bytes, not str"):
        t.publish_keyed("k", "text")  # type: ignore[arg-type]
    assert said(t.publish(None, messages(0))) == ["REJECT bad_name -1"]  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="5 cannot be opened"):
        t.connect(5)  # type: ignore[arg-type]
    t.close()
    assert str(t.tally) == "1 in = 0 first + 0 repeat + 0 unsure + 1 reject"


@pytest.mark.parametrize("epoch", [-1, 2**32, "1"])
def test_an_epoch_that_no_log_can_hold_is_refused_also_without_deduplication(tmp_path, epoch):
    with Topics(tmp_path, TopicSettings(deduplicate=False)) as topics:
        t = topics.topic("t")
        t.arrive(1)
        other = t.submit("q", messages(0))
        assert said(t.publish("p", messages(0), epoch)) == ["REJECT unknown_epoch -1"]
        t.flush()
        assert other.result(0)[0].verdict == FIRST


def test_while_a_message_is_being_written_its_copy_is_unsure():
    t = topic()
    future = t.submit("p", messages(0))
    assert said(t.publish("p", messages(0))) == ["UNSURE in_flight -1"]
    t.flush()
    assert said(future.result(0)) == ["FIRST new 0"]
    assert said(t.publish("p", messages(0))) == ["REPEAT behind_highest -1"]


def test_whoever_comes_first_commits_for_all_who_wait():
    t = topic()
    futures = [t.submit(f"p{i}", messages(0)) for i in range(50)]
    assert not any(future.done() for future in futures)
    t.flush()
    assert all(future.done() for future in futures)
    assert t.figures()["groups"] == 1


def test_threads_publish_at_once_and_each_message_is_stored_once():
    t = topic()
    barrier = threading.Barrier(8)

    def work(i: int) -> None:
        barrier.wait()
        for n in range(40):
            for _ in range(2):
                while t.publish(f"p{i % 4}", messages(n))[0].verdict == UNSURE:  # two threads share a name
                    pass

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stored(t)) == sorted((f"p{i}", n) for i in range(4) for n in range(40))
    assert t.tally.balanced


def test_a_retry_with_another_payload_is_refused_and_both_are_kept():
    t = topic()
    t.publish("p", [(0, b"5 euros"), (1, b"rest")])
    receipts = said(t.publish("p", [(0, b"500 euros"), (1, b"rest"), (2, b"more")]))
    assert receipts == ["REJECT conflict -1", "REPEAT behind_highest -1", "FIRST new 3"]
    records = [(Kind(r.kind), r.payload) for r in t.log.read(0)]
    assert records == [
        (Kind.MESSAGE, b"5 euros"), (Kind.MESSAGE, b"rest"), (Kind.CONFLICT, b"500 euros"), (Kind.MESSAGE, b"more"),
    ]  # fmt: skip


def test_who_connects_again_fences_off_the_one_before():
    t = topic()
    old = t.connect("p")
    t.publish("p", messages(0), old.epoch)
    new = t.connect("p")
    assert (new.epoch, new.last_sequence_id) == (old.epoch + 1, 0)
    assert said(t.publish("p", messages(1), old.epoch)) == ["REJECT stale_epoch -1"]
    assert said(t.publish("p", messages(1))) == ["REJECT epoch_missing -1"]
    assert [r.verdict for r in t.publish("p", messages(1), new.epoch)] == [FIRST]


def test_a_zombie_stays_fenced_off_after_a_crash():
    log = MemoryLog()
    t = topic(log)
    old, new = t.connect("p"), t.connect("p")
    after = topic(log)
    assert said(after.publish("p", messages(0), old.epoch)) == ["REJECT stale_epoch -1"]
    assert after.publish("p", messages(0), new.epoch)[0].verdict == FIRST


def test_a_name_that_is_given_out_is_nobody_elses():
    t = topic()
    names = {t.connect().name for _ in range(20)}
    assert len(names) == 20


def test_a_message_with_a_key_is_stored_once_for_as_long_as_the_key_is_remembered():
    now = [0]
    t = topic(now=lambda: now[0], keys_ms=1_000)
    assert said([t.publish_keyed("order-1", b"x")]) == ["FIRST new 0"]
    assert said([t.publish_keyed("order-1", b"x")]) == ["REPEAT known_key -1"]
    assert said([t.publish_keyed("order-1", b"y")]) == ["REJECT conflict -1"]
    now[0] = 1_000
    assert t.publish_keyed("order-1", b"x").verdict == FIRST


def test_off_stores_everything_and_on_begins_with_nothing():
    t = topic()
    t.publish("p", messages(0))
    t.switch(False)
    assert said(t.publish("p", messages(0))) == ["FIRST switched_off 2"]
    t.switch(True)
    assert [r.verdict for r in t.publish("p", messages(0))] == [FIRST]
    assert [r.verdict for r in t.publish("p", messages(0))] == [REPEAT]
    assert stored(t) == [("p", 0)] * 3


def test_a_switch_outlives_a_crash_and_the_settings_of_a_later_start():
    log = MemoryLog()
    topic(log, deduplicate=False)
    after = topic(log)
    assert said(after.publish("p", messages(0)))[0].startswith("FIRST switched_off")


def test_what_waits_is_bounded():
    t = topic(pending_bytes_max=600)
    t.arrive(2)
    t.submit("p", [(0, bytes(99)), (1, b"")])
    with pytest.raises(Busy, match="499 bytes wait"):
        t.publish("p", [(2, b"")])
    assert str(t.books()) == "3 in != 0 first + 0 repeat + 1 unsure + 0 reject"
    t.flush()
    assert t.publish("p", [(2, b"")])[0].verdict == FIRST
    t.close()
    assert str(t.tally) == "4 in = 3 first + 0 repeat + 1 unsure + 0 reject"


def test_a_message_that_arrived_and_is_lost_inside_shows_at_rest_and_at_the_end(tmp_path):
    topics = Topics(tmp_path)
    t = topics.topic("t")
    t.publish("p", messages(0, 1))
    t.arrive(1)
    t.submit("p", messages(2))
    t._queue.clear()  # what a mistake of ours would do
    t.flush()
    assert t.books().pending == 1
    with pytest.raises(BooksDoNotBalance, match="3 in != 2 first"):
        topics.close()
    with Topics(tmp_path) as topics:  # the rest was closed in good order
        assert topics.topic("t").last_sequence_id("p") == 1


def test_a_message_that_is_judged_twice_shows_too():
    t = topic()
    t.publish("p", messages(0))
    t.submit("p", messages(0))  # which never arrived a second time
    with pytest.raises(BooksDoNotBalance, match=r"1 in != 1 first \+ 1 repeat"):
        t.close()


def test_a_message_that_is_too_large_is_refused_and_its_neighbours_are_not():
    t = topic(message_bytes_max=10)
    receipts = t.publish("p", [(0, b"short"), (1, bytes(11)), (2, b"short")])
    assert said(receipts) == ["FIRST new 0", "REJECT too_large -1", "FIRST new 1"]


def test_a_snapshot_is_taken_every_so_many_entries_and_agrees_with_its_position():
    log = MemoryLog()
    t = topic(log, snapshot_entries=10)
    for n in range(25):
        t.publish("p", messages(n))
    snapshot = log.load()
    assert snapshot is not None
    assert snapshot.position == 20
    assert topic(log).last_sequence_id("p") == 24


def test_a_snapshot_that_cannot_be_saved_stops_nobody_and_is_told():
    disk = SimDisk()
    t = open_topic(disk)
    for n in range(19):
        t.publish("p", messages(n))
    disk.fail(4, count=20)  # behind write, sync and mark of the group
    t.publish("p", messages(19))
    assert t.problem is not None
    disk.heal()
    for n in range(20, 45):
        t.publish("p", messages(n))
    assert t.problem is None


def test_idle_producers_are_forgotten_and_not_taken_for_new_ones():
    now = [0]
    t = topic(now=lambda: now[0], idle_ms=1_000, snapshot_entries=5, snapshot_ms=1 << 40)
    t.publish("old", messages(0, 1, 2))
    now[0] = 5_000
    t.publish("young", messages(0, 1, 2))
    assert t.figures()["producers"] == 1
    assert said(t.publish("old", messages(2))) == ["UNSURE forgotten -1"]
    session = t.connect("old")
    assert (session.last_sequence_id, session.floor) == (-1, 2)
    assert t.publish("old", messages(3), session.epoch)[0].verdict == FIRST


def test_a_closed_topic_says_so():
    t = topic()
    t.close()
    t.close()
    with pytest.raises(Misuse, match="closed"):
        t.publish("p", messages(0))


def test_a_clock_that_is_set_back_does_not_unsort_the_log():
    now = [1_000]
    t = topic(now=lambda: now[0])
    t.publish("p", messages(0))
    now[0] = 5
    t.publish("p", messages(1))
    assert [record.time_ms for record in t.log.read(0)] == [1_000, 1_000]


@given(st.integers(0, 2**32), st.sampled_from(["highest", "gaps"]))
def test_a_topic_that_is_opened_again_at_any_time_is_as_if_it_never_had_been(seed, memory):
    rng = Random(seed)
    log, kept = MemoryLog(), topic(memory=memory, digests_max=2, gap_count_max=3)
    again = topic(log, memory=memory, digests_max=2, gap_count_max=3, snapshot_entries=7)
    for _ in range(30):
        first, count = rng.randrange(20), rng.randrange(1, 4)
        batch = [(n, b"%d" % (n if rng.random() < 0.9 else -1)) for n in range(first, first + count)]
        name = f"p{rng.randrange(2)}"
        assert kept.publish(name, batch) == again.publish(name, batch)
        if rng.random() < 0.3:
            again = topic(log, memory=memory, digests_max=2, gap_count_max=3, snapshot_entries=7)


@pytest.mark.parametrize("seeds", [2, proof(8)])
def test_power_cuts_at_every_operation_lose_and_double_nothing(seeds):
    points = states = 0
    for seed in range(seeds):
        counts, _ = power(seed, steps=15)
        points, states = points + counts.points, states + counts.states
    assert points >= 60 * seeds
    assert states >= 240 * seeds


def test_without_deduplication_the_same_cuts_double_messages():
    _, doubles = power(1, steps=10, deduplicate=False)
    assert doubles > 0


def test_failing_operations_lose_and_double_nothing():
    assert faults(1, steps=8).points >= 20
