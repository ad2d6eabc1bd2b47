import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold import ChainDetector
from onefold.chains import ANSWERS
from onefold.chains.columns import NO_PREVIOUS, ColumnarDetector, TableDetector, refused
from onefold.chains.rules import ChainSettings, pack, unpack
from onefold.verdict import Verdict
from tests.lib.examples import examples

SMALL = st.integers(0, 40).map(lambda n: pack((n // 3, n % 3)))
WIDE = st.integers(0, 2**63 - 1)
MESSAGE = st.tuples(st.integers(0, 3), st.one_of(st.just(NO_PREVIOUS), SMALL, SMALL), SMALL)
WIDE_MESSAGE = st.tuples(st.integers(0, 3), st.one_of(st.just(NO_PREVIOUS), WIDE), WIDE)
LONG = st.tuples(st.integers(0, 2**43 - 1), st.integers(0, 2)).map(pack)
LONG_MESSAGE = st.tuples(st.integers(0, 3), st.one_of(st.just(NO_PREVIOUS), LONG), LONG)
SETTINGS = st.fixed_dictionaries(
    {
        "gap_count_max": st.sampled_from([1, 2, 3, 10_000]),
        "floor": st.sampled_from(["first", "open"]),
        "jump_max_ms": st.sampled_from([None, 0, 3]),
    }
)


def scalar(rows, options):
    detectors: dict[int, ChainDetector] = {}
    for chain, previous, number in rows:
        detector = detectors.setdefault(chain, ChainDetector(**options))
        yield detector.judge(None if previous == NO_PREVIOUS else unpack(previous), unpack(number))


def columnar(rows, options, cuts=()):
    detector = ColumnarDetector(ChainSettings(**options))
    columns = np.array(rows, np.int64).reshape(-1, 3)
    codes = [detector.judge(*part.T) for part in np.split(columns, sorted(cuts))]
    return [ANSWERS[code] for part in codes for code in part]


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), st.lists(MESSAGE, max_size=60), SETTINGS)
def test_columns_answer_as_the_scalar_detector_does_however_they_are_cut(data, messages, options):
    rows = sorted(messages, key=lambda row: row[0])  # stable: a chain's rows keep their order
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=5))
    assert columnar(rows, options, cuts) == list(scalar(rows, options))


@settings(deadline=None)
@given(st.lists(WIDE_MESSAGE, max_size=30), SETTINGS)
def test_numbers_may_span_all_63_bits(messages, options):
    rows = sorted(messages, key=lambda row: row[0])
    assert columnar(rows, options) == list(scalar(rows, options))


@settings(deadline=None)
@given(st.lists(LONG_MESSAGE, max_size=30), SETTINGS)
def test_timestamps_may_span_centuries(messages, options):
    rows = sorted(messages, key=lambda row: row[0])
    assert columnar(rows, options) == list(scalar(rows, options))


def test_a_copy_is_a_repeat_until_what_it_copies_is_forgotten():
    head, copy, opens_gap, opens_another = (0, NO_PREVIOUS, 5), (0, 5, 6), (0, 8, 9), (0, 12, 13)
    rows = [
        head,
        copy,
        copy,
        opens_gap,
        copy,
        opens_another,
        copy,
        (0, 8, 9),
        (0, 12, 13),
        (1, NO_PREVIOUS, 5),
        (1, 5, 6),
    ]
    answers = columnar([*rows, (1, 5, 6)], {"gap_count_max": 2})
    assert [answer.reason for answer in answers] == [
        *("new_chain", "in_order", "seen", "opens_gap", "seen", "opens_gap", "forgotten", "seen", "seen"),
        *("new_chain", "in_order", "seen"),
    ]
    assert answers == list(scalar([*rows, (1, 5, 6)], {"gap_count_max": 2}))


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(2, 40), SETTINGS)
def test_disordered_chains_with_copies_answer_as_the_scalar_detector_does(data, chains, length, options):
    rows = []
    for chain in range(chains):
        numbers = sorted(data.draw(st.sets(SMALL, min_size=2, max_size=length)))
        messages = list(zip([NO_PREVIOUS, *numbers], numbers, strict=False))
        chosen = data.draw(st.lists(st.sampled_from(messages), max_size=2 * length))
        rows += [(chain, previous, number) for previous, number in chosen]
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=3))
    assert columnar(rows, options, cuts) == list(scalar(rows, options))


def test_a_row_refused_before_keeps_its_reason_and_touches_no_chain():
    rows = [(1, NO_PREVIOUS, 5), (1, NO_PREVIOUS, refused("null_key")), (1, 5, 6)]
    assert [answer.reason for answer in columnar(rows, {})] == ["new_chain", "null_key", "in_order"]


def test_nothing_in_gives_nothing_out():
    assert columnar([], {}) == []


def table(rows, options):
    """The answers of a table, and beside each row whether its number counted before it in its chain."""
    detector = TableDetector(ChainSettings(**options))
    columns = np.array(rows, np.int64).reshape(-1, 3)
    codes = detector.judge(*columns.T)
    chain, previous, number = columns.T
    codes = detector.review(chain, previous, number, codes) if detector.due else codes
    answers, counted, before = [ANSWERS[code] for code in codes], set(), []
    for (chain, _, number), answer in zip(rows, answers, strict=True):
        before.append((chain, number) in counted)
        counted |= {(chain, number)} if answer.verdict is Verdict.FIRST else set()
    return list(zip(rows, answers, before, strict=True))


TABLES = st.fixed_dictionaries(
    {"gap_count_max": st.sampled_from([1, 2, 10_000]), "floor": st.sampled_from(["first", "open"])}
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(MESSAGE, max_size=60), TABLES)
def test_in_a_table_every_number_without_a_previous_one_counts_exactly_once(messages, options):
    for (_, previous, _), answer, before in table(sorted(messages, key=lambda row: row[0]), options):
        if previous == NO_PREVIOUS:
            assert answer.verdict is (Verdict.REPEAT if before else Verdict.FIRST)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(MESSAGE, max_size=60), TABLES)
def test_in_a_table_a_previous_number_is_judged_by_the_gaps_and_nothing_counts_twice(messages, options):
    rows = sorted(messages, key=lambda row: row[0])
    for ((_, previous, _), answer, before), by_gaps in zip(table(rows, options), scalar(rows, options), strict=True):
        assert not (before and answer.verdict is Verdict.FIRST)
        if previous != NO_PREVIOUS:
            assert str(answer) == ("REPEAT seen" if before and by_gaps.verdict is Verdict.FIRST else str(by_gaps))


def test_a_late_row_without_previous_counts_wherever_it_lies():
    rows = [(0, 10, 20), (0, NO_PREVIOUS, 40), (0, 50, 60), *((0, NO_PREVIOUS, n) for n in (5, 30, 45, 45, 20, 60))]
    reasons = [str(answer) for _, answer, _ in table(rows, {})]
    assert reasons[3:] == ["FIRST late"] * 3 + ["REPEAT seen"] * 3


def test_a_copy_that_names_its_previous_one_does_not_count_after_one_that_does_not():
    rows = [(0, NO_PREVIOUS, 6), (0, 9, 10), (0, NO_PREVIOUS, 8), (0, 6, 8)]
    assert [str(answer) for _, answer, _ in table(rows, {})][2:] == ["FIRST late", "REPEAT seen"]
