from functools import total_ordering

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.intervals import Gaps

TOP = 40


def pairs_of(bounds):
    bounds = sorted(bounds)
    return list(zip(bounds[::2], bounds[1::2], strict=False))


PAIRS = st.sets(st.integers(0, TOP), max_size=20).map(pairs_of)


def numbers(gaps):
    return {n for lower, upper in gaps for n in range(lower + 1, upper + 1)}


def well_formed(gaps):
    bounds = [bound for gap in gaps for bound in gap]
    return bounds == sorted(set(bounds)) and len(gaps.lowers) == len(gaps.uppers)


@given(PAIRS, st.integers(-1, TOP + 1))
def test_locate_finds_the_last_gap_that_begins_below(pairs, number):
    below = [i for i, (lower, _) in enumerate(pairs) if lower < number]
    assert Gaps(pairs).locate(number) == max(below, default=-1)


@given(PAIRS)
def test_gaps_contain_what_the_sets_contain(pairs):
    gaps = Gaps(pairs)
    assert {n for n in range(-1, TOP + 2) if n in gaps} == numbers(pairs)


@given(st.data(), PAIRS.filter(bool))
def test_fill_takes_out_exactly_what_it_is_told(data, pairs):
    gaps = Gaps(pairs)
    i = data.draw(st.integers(0, len(pairs) - 1))
    lower, upper = pairs[i]
    previous = data.draw(st.integers(lower, upper - 1))
    number = data.draw(st.integers(previous + 1, upper))
    gaps.fill(gaps.locate(number), previous, number)
    assert numbers(gaps) == numbers(pairs) - set(range(previous + 1, number + 1))
    assert well_formed(gaps)


@pytest.mark.parametrize(
    ("previous", "number", "left"),
    [(6, 7, "(7, 9]"), (8, 9, "(6, 8]"), (7, 8, "(6, 7] (8, 9]"), (6, 9, "")],
)
def test_a_gap_is_contracted_from_the_left_from_the_right_divided_or_closed(previous, number, left):
    gaps = Gaps([(6, 9)])
    gaps.fill(0, previous, number)
    assert str(gaps) == left


@given(PAIRS, PAIRS)
def test_the_intersection_is_that_of_the_sets(one, other):
    both = Gaps(one).intersection(Gaps(other))
    assert numbers(both) == numbers(one) & numbers(other)
    assert well_formed(both)


@given(PAIRS, PAIRS, PAIRS)
def test_intersection_is_commutative_associative_and_idempotent(a, b, c):
    a, b, c = Gaps(a), Gaps(b), Gaps(c)
    assert list(a.intersection(b)) == list(b.intersection(a))
    assert list(a.intersection(b).intersection(c)) == list(a.intersection(b.intersection(c)))
    assert list(a.intersection(a)) == list(a)


@given(PAIRS.filter(bool))
def test_dropping_the_lowest_says_how_far_it_reached(pairs):
    gaps = Gaps(pairs)
    assert gaps.drop_lowest() == pairs[0][1]
    assert list(gaps) == pairs[1:]


@total_ordering
class Counted:
    """An integer that counts how often it is compared."""

    compared = 0

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        Counted.compared += 1
        return self.value == other.value

    def __lt__(self, other):
        Counted.compared += 1
        return self.value < other.value

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("count", [10, 1_000, 100_000])
def test_finding_a_gap_costs_the_logarithm_of_their_number(count):
    gaps = Gaps((Counted(10 * i), Counted(10 * i + 5)) for i in range(count))
    for number in (-1, 3, 5 * count, 10 * count):
        Counted.compared = 0
        assert gaps.locate(Counted(number)) == min(count - 1, (number - 1) // 10)
        assert Counted.compared <= count.bit_length()
