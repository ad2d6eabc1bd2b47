import os
import resource
import tempfile
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains.columns import NO_PREVIOUS, ColumnarDetector, TableDetector, refused
from onefold.chains.rules import ChainSettings
from onefold.spark.host import KeyColumns, judge_partition
from tests.lib.examples import examples, proof

# Few keys and fewer checks: names that share their first 64 bits, ties in every column, chains that span windows.
NUMBERS = st.integers(0, 12) | st.just(refused("bad_number"))
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 3),
        st.integers(NO_PREVIOUS, 11),
        NUMBERS,
        st.integers(0, 2),
    ),
    max_size=60,
)
ONE_CHAIN = ROWS.map(lambda rows: [(0, 0, *row[2:]) for row in rows])


def columns_of(rows):
    return KeyColumns(*np.array(rows, np.int64).reshape(-1, 6).T)


def split(columns, cuts):
    edges = [0, *sorted(cuts), len(columns.key)]
    return [KeyColumns(*(c[a:b] for c in columns)) for a, b in pairwise(edges)]


def judged(parts, rows_in_memory_max, windows=None, floor="open"):
    table = TableDetector(ChainSettings(floor=floor))

    def judge(chain, previous, number):
        if windows is not None:
            windows.append(len(number))
        return table.judge(chain, previous, number)

    codes = list(
        judge_partition(iter(parts), judge, rows_in_memory_max, review=table.review, review_due=lambda: table.due)
    )
    return np.concatenate(codes).tolist() if codes else []


@settings(max_examples=examples(300), deadline=None)
@given(ROWS | ONE_CHAIN, st.data())
def test_spilled_rows_are_judged_as_those_in_memory_however_they_come_in(rows, data):
    columns = columns_of(rows)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=12))
    rows_in_memory_max = data.draw(st.integers(1, 20))
    floor = data.draw(st.sampled_from(["first", "open"]))
    in_memory = judged([columns], len(rows) + 1, floor=floor)
    assert len(in_memory) == len(rows)
    assert judged(split(columns, cuts), rows_in_memory_max, floor=floor) == in_memory


@settings(max_examples=examples(200), deadline=None)
@given(ROWS | ONE_CHAIN, st.integers(1, 8), st.integers(1, 20))
def test_no_more_rows_are_judged_at_once_than_the_memory_may_hold(rows, part, rows_in_memory_max):
    columns = columns_of(rows)
    windows: list[int] = []
    parts = split(columns, range(part, len(rows), part))
    judged(parts, max(part, rows_in_memory_max), windows)
    assert sum(windows) == len(rows)
    assert all(0 < window <= max(part, rows_in_memory_max) for window in windows)


def test_the_order_in_which_rows_come_does_not_change_the_answer_to_any():
    rng = np.random.default_rng(3)
    n = 5_000
    rows = KeyColumns.of(rng.permutation(n) % size for size in (3, 2, 50, 400, 400, n))
    shuffled = rng.permutation(n)
    straight = judged(split(rows, range(100, n, 100)), 700)
    mixed = judged(split(rows.take(shuffled), range(100, n, 100)), 900)
    assert [straight[i] for i in shuffled] == mixed


def test_nothing_in_gives_nothing_out():
    assert judged([], 10) == []
    assert judged([columns_of([])], 10) == []


def one_chain(rows, batch=10_000):
    """A chain with every 20th message twice, in batches as Spark sends them."""
    for start in range(0, rows, batch):
        row = np.arange(start, min(start + batch, rows))
        number = row - row // 20 + 1
        zero = np.zeros(len(number), np.int64)
        yield KeyColumns(zero, zero, number, number - 1, number, zero)


def peak_bytes(rows, rows_in_memory_max):
    tracemalloc.start()
    try:
        firsts = sum(
            int((codes < 2).sum())
            for codes in judge_partition(one_chain(rows), ColumnarDetector().judge, rows_in_memory_max)
        )
        return firsts, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("rows", "buffer"), [(400_000, 50_000), proof(2_000_000, 100_000)])
def test_memory_is_bounded_by_the_buffer_and_not_by_the_partition(rows, buffer):
    firsts, peak = peak_bytes(rows, buffer)
    assert firsts == rows * 19 // 20 + 1
    assert peak < 400 * buffer  # all rows alone are 48 bytes each
    assert peak < peak_bytes(rows, 2 * rows)[1] / 4


def test_many_runs_need_few_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        assert len(judged(one_chain(500, 10), 10)) == 500  # 50 runs
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(monkeypatch):
    class Full:
        def __init__(self):
            self.file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115  # closed by the code under test

        def __enter__(self):
            return self.file

        def __exit__(self, *_):
            self.file.close()

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(OSError, match="No space left"):
        judged(one_chain(100, 10), 10)


def test_no_file_is_left_open_after_the_last_row():
    before = len(os.listdir("/proc/self/fd"))
    judged(one_chain(1_000, 10), 50)
    assert len(os.listdir("/proc/self/fd")) == before
