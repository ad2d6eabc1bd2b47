"""Counters that restart: the scalar form against a naive set, and the columns against both."""

from collections import Counter
from itertools import groupby, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.producers import ANSWERS
from onefold.producers.restarts import NEVER, Counters, RestartingCounter, SortedCounters
from tests.lib.examples import examples

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
