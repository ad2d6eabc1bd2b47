import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.chains.rules import (
    INFINITY,
    SEQUENCE_MAX,
    START,
    TIMESTAMP_MAX,
    just_above,
    just_below,
    pack,
    text,
    unpack,
    valid,
)

FITTING = st.tuples(st.integers(0, TIMESTAMP_MAX), st.integers(0, SEQUENCE_MAX))
NUMBERS = st.tuples(st.integers(0), st.integers(0))


@given(FITTING)
def test_what_is_packed_is_unpacked_again(number):
    packed = pack(number)
    assert packed is not None
    assert unpack(packed) == number


@given(FITTING, FITTING)
def test_packing_keeps_the_order(one, other):
    assert sorted([one, other], key=pack) == sorted([one, other])  # type: ignore[arg-type]  # they fit


@given(st.tuples(st.integers(), st.integers()))
def test_a_number_packs_into_63_bits_or_not_at_all(number):
    fits = 0 <= number[0] <= TIMESTAMP_MAX and 0 <= number[1] <= SEQUENCE_MAX
    packed = pack(number)
    assert (packed is not None) == fits
    assert packed is None or 0 <= packed < 2**63


@given(NUMBERS, NUMBERS)
def test_nothing_lies_between_a_number_and_its_neighbours(number, other):
    assert just_below(number) < number < just_above(number)
    assert other >= number or other <= just_below(number)
    assert other <= number or other >= just_above(number)


@given(NUMBERS)
def test_every_number_lies_between_start_and_infinity(number):
    assert START < just_below(number) < number < INFINITY


@given(NUMBERS)
def test_a_number_is_valid_as_a_tuple_and_as_a_list(number):
    assert valid(number) == valid(list(number)) == number


@pytest.mark.parametrize(
    "value",
    [None, 5, "5|0", b"50", (), (5,), (5, 0, 0), (-1, 0), (0, -1), (5.0, 0), (5, 0.0), (True, 0), (5, None), ("5", 0)],
)
def test_what_is_not_two_natural_numbers_is_none(value):
    assert valid(value) is None


def test_numbers_print_with_a_bar():
    assert text((10, 3)) == "10|3"
    assert text(START) == "-inf"
