"""The columnar producers engine, without Spark: it answers as the scalar one, in tables and in streams."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.producers import ANSWERS, Kind, SequenceEntry, Sequences
from onefold.spark.columns import ProducerColumns
from onefold.spark.host import KeyColumns, MemoryOptions
from onefold.spark.producers import NO_EPOCH, Digests, ProducersEngine, contradictions, refused
from tests.lib.examples import examples
from tests.lib.remembering import Remembered

MEMORIES = st.sampled_from(["highest", "gaps"])
BIG = 2**63 - 2
ALL = 1_000  # more digests than any of these tests stores
SEQUENCES = st.integers(0, 12) | st.sampled_from([refused("bad_sequence"), refused("null_key"), BIG, BIG - 1])
EPOCHS = st.just(NO_EPOCH) | st.integers(1, 3)


def rows_of(sequences=SEQUENCES, epochs=EPOCHS):
    """(producer, its check, order, epoch, sequence, tie, digest): few of each, so that all of it meets."""
    few = st.integers(0, 2)
    return st.lists(st.tuples(few, st.integers(0, 1), st.integers(0, 4), epochs, sequences, few, few), max_size=50)


# Without refusals and epochs the memory itself is what is tested: many small gaps, and repeats of all of it.
ROWS = rows_of() | rows_of(st.integers(0, 12), st.just(NO_EPOCH))
ONE_PRODUCER = ROWS.map(lambda rows: [(0, 0, *row[2:]) for row in rows])


def columns_of(rows):
    return KeyColumns.of(np.array(rows, np.int64).reshape(-1, 7).T)


def words(codes):
    return [str(ANSWERS[code]) for code in codes]


class Scalar:
    """The truth: each row is pushed, and persisted at once, in the order of judgement."""

    def __init__(self, memory, **options):
        self.sequences = Sequences(memory, **options)

    def judge(self, rows):
        answers = [""] * len(rows)
        for i in sorted(range(len(rows)), key=lambda i: (*rows[i][:3], rows[i][4], rows[i][3], rows[i][5], i)):
            answers[i] = str(self.answer(*rows[i]))
        return answers

    def answer(self, key, check, _order, epoch, sequence, _tie, digest):
        if sequence < 0:
            return ANSWERS[-1 - sequence]
        producer, epoch = f"{key}.{check}", max(epoch, 0)
        if epoch > self.sequences.epoch(producer):
            self.sequences.apply(SequenceEntry(Kind.OPEN, producer, 0, epoch, 0, 0))
        answer = self.sequences.push(producer, sequence, epoch=epoch, digests=[digest])
        if answer.parts:
            self.sequences.persist(producer, sequence, epoch=epoch, digests=[digest])
        return answer


def judged(rows, memory, gap_count_max, cuts=(), rows_in_memory_max=ALL, jump_max=None):
    engine = ProducersEngine(
        columns=ProducerColumns(payload=("digest",)),
        memory=memory,
        gap_count_max=gap_count_max,
        rows_in_memory_max=rows_in_memory_max,
        jump_max=jump_max,
    )
    edges = [0, *sorted(cuts), len(rows)]
    codes = list(engine.judge_partition(columns_of(rows[a:b]) for a, b in pairwise(edges)))
    return words(np.concatenate(codes)) if codes else []


def resuming(memory, gap_count_max, digests_max, idle_ms=None, state_rows_max=None, jump_max=None):
    """What opens an empty memory."""
    engine = ProducersEngine(memory=memory, gap_count_max=gap_count_max, digests_max=digests_max, jump_max=jump_max)
    return lambda: Remembered(engine, MemoryOptions(idle_ms=idle_ms, state_rows_max=state_rows_max, buckets=1))


def streamed(batches, resume):
    """The answers to each batch; between batches there is nothing but the memory."""
    remembered = resume()
    return [words(remembered.judge(np.array(batch, np.int64).reshape(-1, 7).T)) for batch in batches]


def batches_of(rows, cuts):
    return [rows[a:b] for a, b in pairwise([0, *sorted(cuts), len(rows)])]


CUTS = st.lists(st.integers(0, 50), max_size=6)
JUMPS = st.none() | st.integers(1, 6) | st.sampled_from([BIG // 2, BIG])


@settings(max_examples=examples(300), deadline=None)
@given(ROWS | ONE_PRODUCER, MEMORIES, st.integers(1, 5), CUTS, st.integers(1, 20), JUMPS)
def test_a_table_is_answered_as_by_the_scalar_engine_however_it_comes_in(
    rows, memory, gaps, cuts, rows_in_memory_max, jump_max
):
    truth = Scalar(memory, gap_count_max=gaps, digests_max=ALL, jump_max=jump_max).judge(rows)
    assert judged(rows, memory, gaps, jump_max=jump_max) == truth
    cuts = [cut for cut in cuts if cut < len(rows)]
    assert judged(rows, memory, gaps, cuts, rows_in_memory_max, jump_max) == truth


@settings(max_examples=examples(300), deadline=None)
@given(ROWS | ONE_PRODUCER, MEMORIES, st.integers(1, 5), CUTS, JUMPS)
def test_a_stream_is_answered_as_by_the_scalar_engine_whatever_its_batches(rows, memory, gaps, cuts, jump_max):
    batches = batches_of(rows, [cut for cut in cuts if cut < len(rows)])
    scalar = Scalar(memory, gap_count_max=gaps, digests_max=ALL, jump_max=jump_max)
    resume = resuming(memory, gaps, ALL, None, None, jump_max)
    assert streamed(batches, resume) == [scalar.judge(batch) for batch in batches]


@settings(max_examples=examples(200), deadline=None)
@given(ROWS | ONE_PRODUCER, MEMORIES, st.integers(1, 4))
def test_from_batch_to_batch_the_same_digests_are_remembered_as_by_the_scalar_engine(rows, memory, digests_max):
    batches = [[row] for row in rows]
    scalar = Scalar(memory, digests_max=digests_max)
    answers = streamed(batches, resuming(memory, 10_000, digests_max, None, None))
    assert answers == [scalar.judge(batch) for batch in batches]


@settings(max_examples=examples(200), deadline=None)
@given(ROWS | ONE_PRODUCER, MEMORIES, st.integers(1, 4), CUTS)
def test_a_stream_finds_the_conflicts_of_the_scalar_engine_and_none_that_is_none(rows, memory, digests_max, cuts):
    batches = batches_of(rows, [cut for cut in cuts if cut < len(rows)])
    least, most = Scalar(memory, digests_max=digests_max), Scalar(memory, digests_max=ALL)
    answers = streamed(batches, resuming(memory, 10_000, digests_max, None, None))
    for batch, got in zip(batches, answers, strict=True):
        for answer, low, high in zip(got, least.judge(batch), most.judge(batch), strict=True):
            assert answer in (low, high)
            assert answer == high or low != "REJECT conflict"


def one(sequences, digest=0, producer=7, start=0):
    return [(producer, 0, i, NO_EPOCH, sequence, 0, digest) for i, sequence in enumerate(sequences, start)]


def test_without_digests_a_stream_compares_within_a_batch_only():
    batches = [one([1, 2]) + one([2], digest=1, start=2), one([2], digest=1)]
    answers = streamed(batches, resuming("highest", 10, 0, None, None))
    assert answers == [["FIRST new", "FIRST new", "REJECT conflict"], ["REPEAT behind_highest"]]


def test_beyond_state_rows_max_new_producers_are_unsure_and_leave_nothing_behind():
    resume = resuming("gaps", 10, 4, None, 2)
    batches = [one([1], producer=1) + one([1], producer=2), one([3], producer=0) + one([1, 0], producer=2)]
    answers = streamed(batches, resume)
    assert answers[1] == ["UNSURE state_full", "REPEAT seen", "FIRST fills_gap"]
    remembered = resume()
    for batch in batches:
        remembered.judge(np.array(batch, np.int64).T)
    assert remembered.figures() == {"keys": 2, "gaps": 1}


def test_a_producer_that_there_is_no_room_for_has_no_sequence_to_jump_from():
    answers = streamed([one([1], producer=1), one([3, 99], producer=0)], resuming("highest", 10, 4, None, 1, 10))
    assert answers == [["FIRST new"], ["UNSURE state_full"] * 2]


def test_an_idle_producer_gives_up_its_gaps_and_nothing_else():
    remembered = resuming("gaps", 10, 4, 1_000, None)()
    remembered.judge(np.array(one([0, 5]), np.int64).T, 1)
    remembered.judge(np.array(one([1], producer=8), np.int64).T, 1_002)
    answers = words(remembered.judge(np.array([*one([3, 6, 6]), *one([0], digest=1, start=3)], np.int64).T, 1_003))
    assert answers == ["UNSURE forgotten", "FIRST new", "REPEAT seen", "REJECT conflict"]


def test_what_was_stored_is_found_among_a_great_many():
    rng = np.random.default_rng(1)
    n = 50_000
    owner, sequence = rng.permutation(n) % 300, rng.integers(0, 2**62, n)
    rows = Digests(np.tile(owner, 2), np.tile(sequence, 2), np.concatenate((sequence, sequence + (sequence % 3 == 0))))
    new, seen = (next(i for i, a in enumerate(ANSWERS) if a.reason == reason) for reason in ("new", "seen"))
    found, stored = contradictions(rows, np.repeat([new, seen], n).astype(np.int8), Digests.none())
    assert np.array_equal(found, n + np.flatnonzero(sequence % 3 == 0))
    assert len(stored.owner) == n
