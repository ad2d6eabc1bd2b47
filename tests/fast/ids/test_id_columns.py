"""The columnar form answers as the scalar one does, in any split into batches."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold.hashed_names import find
from onefold.ids.columns import (
    CODES,
    IdRows,
    SliceNames,
    SortedIds,
    firsts,
    judge_batch,
    judge_table,
    refused,
)
from onefold.ids.rules import AHEAD_MS_MAX, ANSWERS, IdDetector, IdSettings, digest_of, name_of
from tests.lib.examples import examples

WINDOWS = st.sampled_from([1, 7, 16, 100, 999]) | st.none()
NOW = 10_000_000
ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(-300, 3_000) | st.integers(NOW, NOW + 2 * AHEAD_MS_MAX),
              st.sampled_from(["x", "x", "y"])),
    max_size=40,
)  # fmt: skip


class MemorySlices:
    """Slices in memory."""

    def __init__(self):
        self._slices = {}

    def counts(self):
        return {slice_: len(names.key) for slice_, names in self._slices.items()}

    def find(self, slice_, key, check):
        names = self._slices.get(slice_)
        if names is None:
            return np.zeros(len(key), np.bool_), None
        at = find(names.key, names.check, key, check)
        return at >= 0, None if names.digest is None else names.digest[at[at >= 0]]

    def keep(self, slice_, names):
        own = self._slices.get(slice_)
        if own is not None:
            key, check = np.concatenate((own.key, names.key)), np.concatenate((own.check, names.check))
            order = np.lexsort((check, key))
            digest = None
            if own.digest is not None and names.digest is not None:
                digest = np.concatenate((own.digest, names.digest))[order]
            names = SliceNames(key[order], check[order], digest)
        self._slices[slice_] = names

    def drop(self, slice_):
        self._slices.pop(slice_, None)


def shared(batches):
    times: dict = {}
    return [[(id, times.setdefault(id, time), content) for id, time, content in rows] for rows in batches]


def columns(rows, *, has_content=False, order=None):
    names = [name_of(id) or b"" for id, *_ in rows]
    key, check = (
        np.array([int.from_bytes(n[i : i + 8], "little", signed=True) for n in names], np.int64) for i in (0, 8)
    )
    time = np.array([time for _, time, _ in rows], np.int64)
    digest = np.array([int.from_bytes(digest_of(c), "little", signed=True) for *_, c in rows], np.int64)
    turn = np.arange(len(rows))
    return IdRows(key, check, turn if order is None else order, time, turn * 0, digest if has_content else None)


@given(st.lists(ROWS, max_size=5), WINDOWS, st.booleans(), st.booleans())
@example([[(1, 0, "x")], [(2, 500, "x"), (1, 0, "x"), (3, 390, "y"), (3, 390, "x")]], 100, True, True)
@settings(max_examples=examples(800))
def test_batches_are_judged_as_one_by_one_in_the_order_of_time(batches, window_ms, guarded, has_content):
    scalar, slices, newest = IdDetector(window_ms), MemorySlices(), None
    now_ms = NOW if guarded else None
    for rows in shared(batches):
        by_time = [row for _, row in sorted(enumerate(rows), key=lambda pair: (pair[1][1], pair[0]))]
        content = "yes" if has_content else None
        wanted = [scalar.judge(id, time, content=content and text, now_ms=now_ms) for id, time, text in by_time]
        batch = columns(by_time, has_content=has_content)
        codes, newest = judge_batch(batch, slices, IdSettings(window_ms), newest, now_ms)
        assert [ANSWERS[code] for code in codes] == wanted
        assert newest == scalar.newest
        assert sum(slices.counts().values()) == len(scalar)


@given(st.lists(st.tuples(ROWS, st.integers(-50, 400)), max_size=6), st.sampled_from([1, 16, 100, 999]))
@settings(max_examples=examples(300))
def test_by_the_clock_too(batches, window_ms):
    scalar, slices, newest, now = IdDetector(window_ms, clock=True), MemorySlices(), None, 0
    for rows, step in batches:
        now += step
        wanted = [scalar.judge(id, now) for id, *_ in rows]
        batch = columns([(id, now, text) for id, _, text in rows])
        codes, newest = judge_batch(batch, slices, IdSettings(window_ms, clock=True), newest)
        assert [ANSWERS[code] for code in codes] == wanted
        assert newest == scalar.newest


@given(ROWS, st.booleans(), st.randoms())
def test_the_answers_do_not_depend_on_how_the_rows_of_a_batch_lie(rows, has_content, random):
    rows = shared([rows])[0]
    table = columns(rows, has_content=has_content)
    wanted, _ = judge_batch(table, MemorySlices(), IdSettings(100), None)
    shuffled = random.sample(range(len(rows)), len(rows))
    codes, _ = judge_batch(table.take(np.array(shuffled, np.int64)), MemorySlices(), IdSettings(100), None)
    assert codes.tolist() == wanted[shuffled].tolist()


@given(ROWS, st.booleans(), st.sampled_from(["reject", "repeat"]))
def test_a_table_is_a_set_whatever_the_times_say(rows, has_content, on_conflict):
    table, wanted = columns(rows, has_content=has_content), []
    first: dict = {}
    for id, _, content in rows:
        same = not has_content or first.get(id, content) == content
        wanted.append(
            "new" if id not in first else "seen" if same else {"reject": "conflict"}.get(on_conflict, "changed")
        )
        first.setdefault(id, content)
    codes = judge_table(table, IdSettings(on_conflict=on_conflict))
    assert [ANSWERS[code].reason for code in codes] == wanted


NAMES = st.lists(st.tuples(*(st.integers(0, n) for n in (3, 2, 2, 2, 50)), st.sampled_from([5, 5, 6])), max_size=40)


@given(NAMES, st.data())
@settings(max_examples=examples(500))
def test_names_whose_first_halves_are_equal_are_told_apart_and_so_in_windows(values, data):
    values = [(*value[:4], tie, value[5]) for tie, value in enumerate(values)]
    rows = IdRows(*np.array(values, np.int64).reshape(-1, 6).T)
    order = sorted(range(len(values)), key=lambda i: values[i][:5])
    wanted: dict = {}
    place: dict = {}
    for i in order:
        wanted[i] = place.setdefault(values[i][:2], i)
    assert firsts(rows).tolist() == [wanted[i] for i in range(len(values))]
    codes = judge_table(rows, IdSettings())
    judge, at, judged = SortedIds(IdSettings()), 0, []
    while at < len(order):
        end = at + data.draw(st.integers(1, 10))
        judged += judge.judge(rows.take(np.array(order[at:end], np.int64))).tolist()
        at = end
    assert judged == codes[order].tolist()


def test_refused_rows_are_answered_and_are_nobodys_first():
    key = np.array([1, 1, 1, 2], np.int64)
    time = np.array([refused("malformed"), 50, refused("bad_time"), refused("null_id")], np.int64)
    rows = IdRows(key, key, key * 0, time, key * 0)
    wanted = ["malformed", "new", "bad_time", "null_id"]
    assert [ANSWERS[code].reason for code in judge_table(rows, IdSettings())] == wanted
    assert [ANSWERS[code].reason for code in judge_batch(rows, MemorySlices(), IdSettings(100), None)[0]] == wanted
    order = np.array([0, 2, 1, 3])
    assert SortedIds(IdSettings()).judge(rows.take(order)).tolist() == [CODES[wanted[i]] for i in order]


@given(st.lists(ROWS, max_size=4), st.integers(1, 8), WINDOWS)
def test_no_more_than_the_bound_are_kept_and_what_is_not_kept_is_not_first(batches, ids_max, window_ms):
    slices, newest, counted = MemorySlices(), None, set()
    for rows in shared(batches):
        codes, newest = judge_batch(columns(rows), slices, IdSettings(window_ms, ids_max=ids_max), newest)
        assert sum(slices.counts().values()) <= ids_max
        for (id, *_), code in zip(rows, codes, strict=True):
            assert ANSWERS[code].reason != "new" or id not in counted
            assert ANSWERS[code].reason != "seen" or id in counted or id in {i for i, *_ in rows}
            if ANSWERS[code].reason == "new":
                counted.add(id)
