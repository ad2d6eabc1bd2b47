"""Counters that restart: the scalar form against a naive set, and the columns against both."""

from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.producers import ANSWERS
from onefold.producers.restarts import NEVER, Counters, RestartingCounter, SortedCounters
from onefold.spark.columns import ProducerColumns
from onefold.spark.host import KeyColumns, MemoryOptions
from onefold.spark.producers import ProducersEngine, refused
from onefold.testing import Faults, Readings, make_readings
from tests.lib.examples import examples
from tests.lib.remembering import Remembered

MANY = 1_000
FIRST = ("FIRST new", "FIRST fills_gap", "FIRST restarted")


@st.composite
def histories(draw):
    """What a device sent: epochs of rising sequences at rising times, of which some were lost; as (time, sequence)."""
    time, messages = 0, []
    for _ in range(draw(st.integers(1, 5))):
        sequence = draw(st.integers(0, 3))
        for _ in range(draw(st.integers(1, 8))):
            time += draw(st.integers(1, 3))
            messages.append((time, sequence))
            sequence += draw(st.sampled_from([1, 1, 1, 2, 4]))
    return messages


HISTORIES = histories()
ANYTHING = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), max_size=40)
"""Also what no device sends: clocks that step, numbers out of any order."""


@st.composite
def deliveries(draw):
    """A history with copies, in any order of arrival."""
    history = draw(HISTORIES)
    copies = draw(st.lists(st.sampled_from(history), max_size=10))
    return history, draw(st.permutations(history + copies))


def epochs(points):
    """The naive rule: sort by time, split where the sequence does not rise."""
    split: list[list[tuple[int, int]]] = []
    for point in sorted(points):
        if split and split[-1][-1][1] < point[1]:
            split[-1].append(point)
        else:
            split.append([point])
    return split


def naive_missing(points):
    """(time and number of the one before, last missing) of each epoch; the first one begins at 0."""
    start, *_ = [[(NEVER, -1), *epoch] if i == 0 else epoch for i, epoch in enumerate(epochs(points))] or [[]]
    every = [start, *epochs(points)[1:]]
    return [(*a, b[1] - 1) for epoch in every for a, b in pairwise(epoch) if b[1] > a[1] + 1]


def words(codes):
    return [str(ANSWERS[code]) for code in codes]


def fold(rows, runs_max=MANY):
    counter = RestartingCounter(runs_max)
    return counter, [str(counter.judge(*row)) for row in rows]


def columns(rows, width=3):
    return np.array(rows, np.int64).reshape(-1, width).T


def table(rows):
    """The answers to (owner, time, sequence) rows, sorted."""
    return words(SortedCounters().judge(*columns(sorted(rows))))


@settings(max_examples=examples(600))
@given(HISTORIES)
def test_in_the_order_of_time_the_scalar_form_is_the_naive_rule(history):
    counter, answers = fold(history)
    starts = {epoch[0] for epoch in epochs(history)[1:]}
    assert answers == ["FIRST restarted" if row in starts else "FIRST new" for row in history]
    assert counter.missing() == naive_missing(history)
    assert counter.restarts == len(epochs(history)) - 1
    assert fold(history + history[::-1])[1][len(history) :] == ["REPEAT seen"] * len(history)


@settings(max_examples=examples(600))
@given(ANYTHING)
def test_no_message_is_first_twice_whatever_comes(rows):
    _, answers = fold(rows)
    assert set(Counter(row for row, answer in zip(rows, answers, strict=True) if answer in FIRST).values()) <= {1}


@settings(max_examples=examples(600))
@given(ANYTHING)
def test_a_copy_is_a_repeat_in_any_order_and_a_message_is_unsure_only_among_consecutive_ones(rows):
    counter, stored = RestartingCounter(MANY), set[tuple[int, int]]()
    for time, sequence in rows:
        answer = str(counter.judge(time, sequence))
        around = [run for run in consecutive(stored) if run[0] < (time, sequence) < run[-1]]
        if (time, sequence) in stored:
            assert answer == "REPEAT seen"
        elif around:
            inside = around[0][0][1] <= sequence <= around[0][-1][1]
            assert answer == ("REPEAT seen" if inside else "UNSURE time_contradicts")
        else:
            assert answer in FIRST
            stored.add((time, sequence))
        assert counter.missing() == naive_missing(stored)
        assert counter.restarts == max(0, len(epochs(stored)) - 1)


def consecutive(points):
    """The points in the order of time, in runs of consecutive sequences."""
    numbered = [(point, point[1] - i) for i, point in enumerate(sorted(points))]
    return [[point for point, _ in run] for _, run in groupby(numbered, key=lambda pair: pair[1])]


@settings(max_examples=examples(600))
@given(deliveries(), st.data())
def test_there_are_as_many_restarts_as_epochs_in_any_order_of_arrival(delivery, data):
    history, rows = delivery
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    counters, answers = Counters.none(1, MANY), list[tuple[tuple[int, ...], str]]()
    for start, end in pairwise([0, *cuts, len(rows)]):
        batch = sorted(rows[start:end])
        answers += zip(batch, words(counters.judge(*columns([(0, *row) for row in batch]))), strict=True)
    stored = {row for row, answer in answers if answer in FIRST}
    assert Counter(answer for _, answer in answers)["FIRST restarted"] == len(epochs(stored)) - 1
    assert [gap[1:] for gap in missing(counters)] == naive_missing(stored)
    assert stored <= set(history)


def missing(counters):
    owner, lower, upper, since = (column.tolist() for column in counters.missing())
    return list(zip(owner, since, lower, upper, strict=True))


@settings(max_examples=examples(600))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=50), st.data())
def test_batches_of_one_row_answer_as_the_scalar_form(rows, data):
    runs_max = data.draw(st.sampled_from([1, 2, 3, MANY]))
    counters, scalar = Counters.none(3, runs_max), [RestartingCounter(runs_max) for _ in range(3)]
    for owner, time, sequence in rows:
        code = counters.judge(*columns([(owner, time, sequence)]))
        assert words(code) == [str(scalar[owner].judge(time, sequence))]
    for owner, counter in enumerate(scalar):
        own = counters.runs.take(counters.runs.owner == owner)
        assert [tuple(run) for run in counter.runs] == list(zip(*(c.tolist() for c in own[1:]), strict=True))
        assert [gap[1:] for gap in missing(counters) if gap[0] == owner] == counter.missing()
        assert counters.forgotten[owner] == counter.forgotten


@settings(max_examples=examples(600))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=50), st.data())
def test_a_table_answers_as_one_batch_whatever_its_windows(rows, data):
    rows = sorted(rows)
    at_once = words(Counters.none(3).judge(*columns(rows)))
    assert table(rows) == at_once
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    windows = SortedCounters()
    parts = [words(windows.judge(*columns(rows[a:b]))) for a, b in pairwise([0, *cuts, len(rows)])]
    assert [answer for part in parts for answer in part] == at_once
    for owner in {row[0] for row in rows}:
        points = {row[1:] for row in rows if row[0] == owner}
        starts = {epoch[0] for epoch in epochs(points)[1:]}
        own = [(row[1:], answer) for row, answer in zip(rows, at_once, strict=True) if row[0] == owner]
        assert {row for row, answer in own if answer == "FIRST restarted"} == starts
        assert Counter(row for row, answer in own if answer in FIRST) == Counter(points)


@settings(max_examples=examples(300))
@given(deliveries(), st.integers(1, 4))
def test_beyond_its_bound_a_counter_is_unsure_and_counts_nothing_twice(delivery, runs_max):
    _, rows = delivery
    counter, counted = RestartingCounter(runs_max), Counter[tuple[int, int]]()
    for row in [*rows, *rows]:
        answer = counter.judge(*row)
        counted[row] += answer.verdict == "FIRST"
        assert len(counter.runs) <= runs_max
        if answer.reason == "forgotten":
            assert row[0] <= counter.forgotten
    assert max(counted.values()) == 1


def test_the_content_of_a_copy_is_compared_with_the_row_that_counts_also_across_windows():
    rows = [(0, 10, 0), (0, 10, 0), (0, 20, 0), (0, 20, 0), (0, 20, 0)]
    digest = np.array([1, 2, 3, 3, 1])
    windows = SortedCounters()
    every = (*columns(rows), digest)
    answers = [words(windows.judge(*(column[a:b] for column in every))) for a, b in ((0, 3), (3, 4), (4, 5))]
    assert answers == [["FIRST new", "REJECT conflict", "FIRST restarted"], ["REPEAT seen"], ["REJECT conflict"]]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 1), st.integers(0, 12), st.integers(0, 2),
        st.integers(0, 8) | st.sampled_from([refused("bad_time"), refused("null_key")]), st.integers(0, 2),
        st.integers(0, 1),
    ),
    max_size=50,
)  # fmt: skip
"""(producer, its check, time, order, sequence, tie, digest) as Spark hands them over."""
CUTS = st.lists(st.integers(0, 50), max_size=5)


def engine(**options):
    columns = ProducerColumns(time="ts", order="came", payload=("digest",))
    return ProducersEngine(columns=columns, memory="gaps", **options)


def handed_over(rows):
    return KeyColumns.of(np.array(rows, np.int64).reshape(-1, 7).T)


def batches_of(rows, cuts):
    return [rows[a:b] for a, b in pairwise([0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)])]


def by_the_columns(rows, counters):
    """Each batch as `Counters` judge it, producer by producer, then every copy held to the content that counts."""
    answers = [str(ANSWERS[-1 - row[4]]) if row[4] < 0 else "" for row in rows]
    for name in {row[:2] for row in rows}:
        own = [i for i, row in enumerate(rows) if row[:2] == name and row[4] >= 0]
        own.sort(key=lambda i: (rows[i][2], rows[i][4], rows[i][3], rows[i][5], i))
        counter, contents = counters.setdefault(name, (Counters.none(1, 3), {}))
        codes = counter.judge(*columns([(0, rows[i][2], rows[i][4]) for i in own]))
        for i, answer in zip(own, words(codes), strict=True):
            message, content = (rows[i][2], rows[i][4]), rows[i][6]
            stored = contents.setdefault(message, content) if answer in FIRST else contents.get(message, content)
            behind = answer in ("REPEAT seen", "UNSURE forgotten")
            answers[i] = "REJECT conflict" if behind and stored != content else answer
    return answers


@settings(max_examples=examples(300), deadline=None)
@given(ROWS, CUTS, st.integers(1, 20))
def test_a_table_on_spark_is_judged_by_these_rules_however_it_comes_in(rows, cuts, rows_in_memory_max):
    unbounded = {row[:2]: (Counters.none(1, MANY), dict[tuple[int, int], int]()) for row in rows}
    truth = by_the_columns(rows, unbounded)
    parts = batches_of(rows, cuts) if rows else []
    for engine_ in (engine(), engine(rows_in_memory_max=rows_in_memory_max)):
        codes = list(engine_.judge_partition(handed_over(part) for part in parts))
        assert words(np.concatenate(codes) if codes else []) == truth


@settings(max_examples=examples(300), deadline=None)
@given(ROWS, CUTS)
def test_what_a_memory_knows_of_runs_and_contents_goes_on_from_batch_to_batch(rows, cuts):
    remembered = Remembered(engine(gap_count_max=3, digests_max=MANY), MemoryOptions(buckets=1))
    counters: dict[tuple[int, ...], tuple[Counters, dict[tuple[int, int], int]]] = {}
    for batch in batches_of(rows, cuts) if rows else []:
        assert words(remembered.judge(handed_over(batch).flat)) == by_the_columns(batch, counters)
    gaps = sum(len(counter.missing().owner) for counter, _ in counters.values())
    own = {name for name in counters if any(row[:2] == name and row[4] >= 0 for row in rows)}
    assert remembered.figures() == {"keys": len(own), "gaps": gaps} if rows else {"keys": 0, "gaps": 0}


def one(points, producer=7, digest=0):
    return [(producer, 0, time, 0, sequence, 0, digest) for time, sequence in points]


def answered(remembered, rows, now_ms=0):
    return words(remembered.judge(np.array(rows, np.int64).T, now_ms))


def test_beyond_state_rows_max_new_producers_are_unsure_and_leave_nothing_behind():
    remembered = Remembered(engine(), MemoryOptions(buckets=1, state_rows_max=2))
    assert answered(remembered, one([(10, 0)], 1) + one([(10, 0)], 2)) == ["FIRST new"] * 2
    answers = answered(remembered, one([(10, 0)], 0) + one([(9, 0), (10, 0)], 2))
    assert answers == ["UNSURE state_full", "FIRST restarted", "REPEAT seen"]
    assert remembered.figures()["keys"] == 2


def test_an_idle_producer_gives_up_all_but_its_newest_run():
    remembered = Remembered(engine(), MemoryOptions(buckets=1, idle_ms=1_000))
    answered(remembered, one([(10, 0), (13, 3), (20, 0), (21, 1)]), 1)
    assert remembered.figures() == {"keys": 1, "gaps": 1}
    answers = answered(remembered, one([(12, 2), (20, 0), (22, 2), (15, 4)]), 1_002)
    assert answers == ["UNSURE forgotten", "REPEAT seen", "FIRST new", "FIRST restarted"]


@pytest.mark.parametrize(
    ("options", "name"),
    [({"memory": "highest"}, "memory"), ({"memory": "gaps", "jump_max": 5}, "jump_max")],
)
def test_what_a_time_makes_needless_is_refused(options, name):
    with pytest.raises(Misuse, match=name):
        ProducersEngine(columns=ProducerColumns(time="ts"), **options)
    with pytest.raises(Misuse, match="epoch"):
        ProducersEngine(columns=ProducerColumns(time="ts", epoch="boot"), memory="gaps")


def test_readings_of_devices_that_reboot_are_judged_exactly_and_what_is_lost_around_a_reboot_is_not_found():
    made = make_readings(
        Readings(rows=40_336, reboots=83, faults=Faults(copies=0.01522, losses=0.010425, late_heads=0))
    )
    lost, reboots = made.truth.lost, made.truth.reboots
    rows = made.messages.select(["device", "ts", "seq"]).to_pylist()
    devices = {name: i for i, name in enumerate(sorted({row["device"] for row in rows}))}
    by_time = sorted((devices[row["device"]], row["ts"], row["seq"]) for row in rows)
    counts = Counter(table(by_time))
    assert reboots is not None
    assert (len(rows), len(devices), reboots.num_rows, lost.num_rows) == (40_336, 40, 83, 417)
    assert counts == {"FIRST new": 39_583 - 83, "FIRST restarted": 83, "REPEAT seen": 753}
    counters = Counters.none(len(devices))
    for start in range(0, len(rows), 5_000):  # as they arrived
        counters.judge(*columns(sorted(
            (devices[row["device"]], row["ts"], row["seq"]) for row in rows[start : start + 5_000]
        )))  # fmt: skip
    found = counters.missing()
    assert int((found.upper - found.lower).sum()) == sum(lost["can_be_found"].to_pylist()) == 417
    assert len(found.owner) == made.truth.missing.num_rows


def test_what_is_lost_around_a_reboot_is_in_the_truth_and_nowhere_else():
    made = make_readings(Readings(rows=4_000, devices=4, reboots=60, faults=Faults(losses=0.2, late_heads=0)))
    lost, can_be_found = made.truth.lost.num_rows, sum(made.truth.lost["can_be_found"].to_pylist())
    rows = [(int(row["device"][-3:]), row["ts"], row["seq"]) for row in made.messages.to_pylist()]
    counters = Counters.none(4)
    counters.judge(*columns(sorted(rows)))
    assert 10 < lost - can_be_found < 60
    owner, lower, upper, since = counters.missing()
    truth = made.truth.missing.to_pylist()
    assert sorted(zip(owner.tolist(), since.tolist(), lower.tolist(), upper.tolist(), strict=True)) == sorted(
        (int(row["device"][-3:]), *((NEVER, -1) if row["lower_sequence"] is None else
                                    (row["lower_timestamp"], row["lower_sequence"])), row["upper_sequence"])
        for row in truth
    )  # fmt: skip
