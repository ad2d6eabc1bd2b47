import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.spark.host import KeyColumns, chains, concatenate, order

FEW = st.integers(-1, 3)
ROWS = st.lists(st.tuples(FEW, FEW, FEW, FEW, FEW, FEW), max_size=40)
WIDE_ROWS = st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1) | FEW] * 6), max_size=40)


def columns_of(rows):
    return KeyColumns(*np.array(rows, np.int64).reshape(-1, 6).T)


@settings(deadline=None)
@given(ROWS | WIDE_ROWS)
def test_rows_get_the_same_chain_number_if_and_only_if_all_128_bits_are_equal(rows):
    numbers = chains(columns_of(rows)).tolist()
    names = [row[:2] for row in rows]
    assert len(set(zip(numbers, names, strict=True))) == len(set(numbers)) == len(set(names))


def test_chains_that_share_64_bits_of_their_name_are_told_apart():
    columns = columns_of([(7, 1, 0, 0, 0, 0), (7, 2, 0, 0, 0, 0), (7, 1, 0, 0, 0, 0), (8, 2, 0, 0, 0, 0)])
    a, b, again, c = chains(columns)
    assert a == again
    assert len({a, b, c}) == 3


@settings(deadline=None)
@given(ROWS | WIDE_ROWS)
def test_rows_are_ordered_by_chain_arrival_number_previous_and_tie_then_as_they_came(rows):
    columns = columns_of(rows)
    chain = chains(columns)
    wanted = sorted(
        range(len(rows)),
        key=lambda i: (chain[i], columns.arrival[i], columns.number[i], columns.previous[i], columns.tie[i], i),
    )
    assert order(chain, columns).tolist() == wanted


def test_more_chains_than_16_bits_can_number_are_ordered_too():
    rng = np.random.default_rng(1)
    n = 200_000
    columns = KeyColumns.of(rng.integers(-(2**40), 2**40, n) for _ in range(6))
    chain = chains(columns)
    assert chain.max() > 2**16
    rows = order(chain, columns)
    assert np.array_equal(rows, np.lexsort((columns.number, columns.arrival, chain)))


@settings(deadline=None)
@given(ROWS, st.integers(0, 40))
def test_parts_put_together_are_the_whole(rows, cut):
    whole = columns_of(rows)
    parts = [KeyColumns.of(column[:cut] for column in whole.flat), KeyColumns.of(column[cut:] for column in whole.flat)]
    assert all(np.array_equal(a, b) for a, b in zip(concatenate(parts).flat, whole.flat, strict=True))
