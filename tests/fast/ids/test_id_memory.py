"""Ids in a memory folder: as one by one, in any split, when a batch is tried again, when it is larger than memory."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.ids.rules import ANSWERS, IdDetector
from onefold.spark.host import MemoryOptions
from onefold.spark.ids import IdColumns, IdsEngine
from tests.lib.examples import examples
from tests.lib.remembering import Remembered

NOW = 1_700_000_000_000
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3_000)), min_size=1, max_size=30), max_size=6)


def names(ids):
    """A name for each id, spread over all buckets."""
    mixed = np.array(ids, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mixed.view(np.int64), (mixed ^ np.uint64(0xFF51AFD7ED558CCD)).view(np.int64)


def integers(rows, clock=False):
    key, check = names([id for id, _ in rows])
    zero = np.zeros(len(rows), np.int64)
    time = zero if clock else np.array([time for _, time in rows], np.int64)
    return key, check, zero, zero, time, np.arange(len(rows))


def shared(batches):
    times: dict = {}
    return [[(id, times.setdefault(id, time)) for id, time in rows] for rows in batches]


@given(BATCHES, st.sampled_from([None, 16, 100, 999]), st.sampled_from([1, 3]), st.sampled_from([4, 1_000]), st.data())
@settings(max_examples=examples(300))
def test_a_stream_in_any_split_is_the_set_that_forgets_bucket_by_bucket(batches, window_ms, buckets, in_memory, data):
    engine = IdsEngine(columns=IdColumns(time="t"), window_ms=window_ms, rows_in_memory_max=in_memory)
    memory = Remembered(engine, MemoryOptions(buckets=buckets))
    scalars = [IdDetector(window_ms) for _ in range(buckets)]
    for rows in shared(batches):
        own = memory.memory.bucket_of(names([id for id, _ in rows])[0])
        wanted: dict = {}
        for i in sorted(range(len(rows)), key=lambda i: (rows[i][1], i)):
            wanted[i] = scalars[own[i]].judge(*rows[i], now_ms=NOW)
        codes = memory.judge(integers(rows), NOW)
        assert [ANSWERS[code] for code in codes] == [wanted[i] for i in range(len(rows))]
        if data.draw(st.booleans()):  # a batch that is tried again answers the same
            assert memory.judge(integers(rows), NOW, version=memory.version).tolist() == codes.tolist()
    if in_memory == 1_000:
        assert memory.figures() == {"keys": sum(map(len, scalars)), "gaps": 0}


@given(BATCHES, st.lists(st.integers(0, 400), min_size=6, max_size=6), st.sampled_from([16, 100, 999]))
@settings(max_examples=examples(100))
def test_by_the_clock_of_the_batches_too(batches, steps, window_ms):
    memory = Remembered(IdsEngine(window_ms=window_ms), MemoryOptions(buckets=1))
    scalar, now = IdDetector(window_ms, clock=True), NOW
    for rows, step in zip(batches, steps, strict=False):
        now += step
        wanted = [scalar.judge(id, now) for id, _ in rows]
        assert [ANSWERS[code] for code in memory.judge(integers(rows, clock=True), now)] == wanted


def test_slices_that_are_older_than_the_window_leave_the_folder_and_an_id_takes_sixteen_bytes():
    memory = Remembered(IdsEngine(columns=IdColumns(time="t"), window_ms=1_600), MemoryOptions(buckets=2))
    sizes, each = [], 2_000
    for batch in range(60):
        rows = [(batch * each + n, batch * 100 + n % 100) for n in range(each)]
        assert set(memory.judge(integers(rows), NOW)) == {0}
        runs = [run for bucket in (0, 1) for run in memory.memory.runs(bucket)]
        sizes.append(sum(run.size for run in runs))
        assert all(len(memory.memory.files(bucket)) < 12 for bucket in (0, 1))
    remembered = 17 * each
    assert max(sizes[20:]) < 1.4 * 16 * remembered  # slices that are forgotten, and not rewritten yet, are the rest
    assert memory.figures()["keys"] <= 18 * each


def test_only_the_slices_that_a_batch_touches_are_looked_at():
    engine = IdsEngine(columns=IdColumns(time="t"), window_ms=1_600)
    memory = Remembered(engine, MemoryOptions(buckets=1))
    memory.judge(integers([(n, n) for n in range(1_600)]), NOW)
    asked = []
    run = memory.memory.runs(0)[0]
    tables = set(run.header["tables"])
    assert len(tables) == 16
    find = type(run).find
    try:
        type(run).find = lambda self, table, key, check: asked.append(table) or find(self, table, key, check)  # type: ignore[method-assign,func-returns-value]
        codes = memory.judge(integers([(n, n) for n in range(1_500, 1_650)]), NOW)
    finally:
        type(run).find = find  # type: ignore[method-assign]
    assert set(asked) == {"15"}
    assert (codes == 1).sum() == 100
