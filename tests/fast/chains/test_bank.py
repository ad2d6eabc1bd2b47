"""The laws of a bank: the scalar detector's answers, whatever the batches; less memory never makes a false repeat."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains import ANSWERS
from onefold.chains.columns import NO_PREVIOUS, ChainBank, ChainMessages, PackedDetector, refused
from onefold.chains.rules import ChainSettings
from onefold.verdict import Verdict
from tests.lib.examples import examples

CUTS = st.lists(st.integers(0, 60), max_size=6)
ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(NO_PREVIOUS, 12), st.integers(-16, 14)), min_size=0, max_size=60
)
NAMES = [(7, 1), (7, 2), (-3, 1), (2**62, -5), (7, 0)]  # three share their first half


def batch(rows):
    """These rows sorted by chain, and where each came from."""
    order = sorted(range(len(rows)), key=lambda i: rows[i][0])
    columns = [(*NAMES[rows[i][0]], rows[i][1], rows[i][2]) for i in order]
    return ChainMessages(*(np.array(column, np.int64) for column in zip(*columns, strict=True))), order


def judge(bank, rows, now_ms=0):
    if not rows:
        return []
    messages, order = batch(rows)
    answered = bank.judge(messages, now_ms)
    codes = np.empty(len(rows), int)
    codes[order] = answered
    return codes.tolist()


def split(rows, cuts):
    bounds = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    return [rows[a:b] for a, b in pairwise(bounds)]


def scalar(rows, gap_count_max, floor):
    detectors: dict[int, PackedDetector] = {}
    for chain, previous, number in rows:
        if number < 0:
            yield -1 - number
        else:
            detector = detectors.setdefault(chain, PackedDetector(ChainSettings(gap_count_max, floor)))
            yield detector.judge(previous, number)


@given(
    ROWS,
    st.lists(st.integers(0, 60), max_size=6),
    st.sampled_from([1, 2, 3, 10_000]),
    st.sampled_from(["first", "open"]),
)
@settings(max_examples=examples(400))
def test_any_split_into_batches_answers_as_the_scalar_detector(rows, cuts, gap_count_max, floor):
    bank = ChainBank(ChainSettings(gap_count_max, floor))
    answered = []
    for part in split(rows, cuts):
        answered += judge(bank, part)
        bank = ChainBank(ChainSettings(gap_count_max, floor), chains=bank.chains, gaps=bank.gaps)
    assert answered == list(scalar(rows, gap_count_max, floor))


@given(ROWS, CUTS, st.integers(1, 4))
def test_a_full_bank_is_unsure_of_new_chains_and_right_about_the_known(rows, cuts, chains_max):
    bank, full = ChainBank(), ChainBank(chains_max=chains_max)
    for part in split(rows, cuts):
        for chain, free, bounded in zip([c for c, _, _ in part], judge(bank, part), judge(full, part), strict=True):
            assert bounded == free or ANSWERS[bounded].reason == "state_full", chain
        assert len(full) <= chains_max


@given(ROWS, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=6))
def test_an_idle_chain_never_calls_a_new_message_a_repeat(rows, cuts):
    bank, idle, now = ChainBank(), ChainBank(), 1
    for part, (_, pause) in zip(split(rows, [cut for cut, _ in cuts]), [*cuts, (0, 1)], strict=True):
        for free, bounded in zip(judge(bank, part), judge(idle, part, now), strict=True):
            verdict, bounded_verdict = ANSWERS[free].verdict, ANSWERS[bounded].verdict
            assert verdict == bounded_verdict or bounded_verdict is Verdict.UNSURE
            if ANSWERS[bounded].reason == "forgotten" and verdict is Verdict.FIRST:
                return  # from here on the two know different things
        now += pause
        idle.give_up(now - 10)


def test_an_idle_chain_keeps_its_head_and_gives_up_its_gaps():
    bank = ChainBank()
    judge(bank, [(0, NO_PREVIOUS, 1), (0, 4, 5), (0, 5, 6), (1, NO_PREVIOUS, 1)], now_ms=1)
    assert bank.gap_count == 1
    judge(bank, [(1, 1, 2)], now_ms=12)
    bank.give_up(before_ms=2)
    assert bank.gap_count == 0
    told = [ANSWERS[code] for code in judge(bank, [(0, 1, 2), (0, 5, 6), (0, 6, 7)], now_ms=13)]
    assert [str(answer) for answer in told] == ["UNSURE forgotten", "REPEAT seen", "FIRST in_order"]


def test_memory_does_not_grow_with_history():
    bank, sizes = ChainBank(), []
    for start in range(0, 100_000, 10_000):
        number = np.arange(start, start + 10_000)
        name = np.ones(10_000, np.int64)
        bank.judge(ChainMessages(name, name, number - 1, number))
        sizes.append((len(bank.chains.key), len(bank.gaps.lower)))
    assert set(sizes) == {(1, 1)}


def test_rows_refused_before_leave_no_trace():
    bank = ChainBank()
    assert judge(bank, [(0, NO_PREVIOUS, refused("null_key"))]) == [-1 - refused("null_key")]
    assert len(bank) == 0
