from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains.columns import NO_PREVIOUS, START, TableDetector, refused
from onefold.chains.rules import ANSWERS, ChainSettings
from onefold.spark.host import KeyColumns, judge_partition
from onefold.spark.memory import Storage
from onefold.spark.notes import NoteRules, Notes, NoteTaker, noted
from onefold.tally import Tally
from onefold.verdict import Verdict
from tests.lib.examples import examples

VERDICTS = list(Verdict)
NUMBERS = st.integers(0, 30) | st.just(refused("bad_number"))
ROW = st.tuples(
    st.integers(0, 3), st.integers(0, 1), st.integers(0, 40), st.integers(NO_PREVIOUS, 29), NUMBERS, st.integers(0, 9)
)


def rules(**changes):
    usual = NoteRules(answers=ANSWERS, claims="previous", is_floor_open=False, ms_bits=0, is_time=True, arrival="ms")
    return replace(usual, **changes)


def judged(rows, floor="first", gap_count_max=3):
    columns = KeyColumns(*np.array(rows, np.int64).reshape(-1, 6).T)
    table = TableDetector(ChainSettings(gap_count_max, floor))
    codes = judge_partition(iter([columns]), table.judge, 1_000, review=table.review, review_due=lambda: table.due)
    return columns.flat, np.concatenate(list(codes))


def naive(rows, codes, is_floor_open, one_below):
    """Missing ranges, counts by key and lags, row by row."""
    firsts: dict[Any, Any] = defaultdict(dict)
    arrivals: dict[Any, int] = {}
    counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    lags = Counter[int]()
    for (key, check, arrival, previous, number, _), code in zip(rows, codes, strict=True):
        verdict = VERDICTS.index(ANSWERS[code].verdict)
        counts[key, check][verdict] += 1
        if verdict == 0:
            firsts[key, check][number] = number - 1 if one_below else previous
            arrivals[key, check, number] = arrival
    for (key, check, arrival, _, number, _), code in zip(rows, codes, strict=True):
        if ANSWERS[code].verdict is Verdict.REPEAT and (key, check, number) in arrivals:
            lags[max(0, arrival - arrivals[key, check, number])] += 1
    gaps = set()
    for name, claims in firsts.items():
        before = None
        for number in sorted(claims):
            claim, base = claims[number], int(one_below)
            if claim != NO_PREVIOUS and (is_floor_open if before is None else claim > before):
                gaps.add((*name, (START if before is None else before) + base, claim + base))
            before = number
    return gaps, counts, lags


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(ROW, min_size=1, max_size=60), st.booleans(), st.booleans())
def test_notes_say_what_a_look_at_every_row_says(rows, is_floor_open, one_below):
    columns, codes = judged(rows, "open" if is_floor_open else "first")
    given_rules = rules(is_floor_open=is_floor_open, claims="one_below" if one_below else "previous")
    gaps, summary = noted(given_rules, columns[:5], codes)
    missing, counts, lags = naive(rows, codes.tolist(), is_floor_open, one_below)
    assert set(zip(*(column.tolist() for column in gaps), strict=True)) == missing
    assert len(gaps[0]) == len(missing)
    assert summary["codes"] == np.bincount(codes, minlength=len(ANSWERS)).tolist()
    assert summary["keys"] == sum(count[0] > 0 for count in counts.values())
    assert {tuple(entry["name"]): entry["counts"] for entry in summary["worst"]} == {
        name: count for name, count in counts.items() if sum(count[1:])
    }
    rest = [sum(entry["counts"][1:]) for entry in summary["worst"]]
    assert rest == sorted(rest, reverse=True)
    assert dict(zip(summary["lags"]["lower"], summary["lags"]["count"], strict=True)) == lags
    strips = {tuple(strip["name"]): strip["ranges"] for strip in summary["strips"]}
    assert strips == Counter((key, check) for key, check, _, _ in missing)


def test_a_strip_lists_its_widest_ranges_and_how_far_the_key_was_forgotten():
    rows = [
        (1, 0, i, previous, number, 0) for i, (previous, number) in enumerate([(-1, 1), (4, 5), (10, 11), (19, 20)])
    ]
    columns, codes = judged([*rows, (1, 0, 9, 6, 7, 0)], gap_count_max=2)
    (strip,) = noted(rules(ranges_max=2), columns[:5], codes)[1]["strips"]
    assert (strip["from"], strip["to"], strip["ranges"]) == (1, 20, 3)
    assert strip["shown"] == [[8, 11, 19], [5, 5, 10]]
    assert strip["share"] == (3 + 5 + 8) / 19
    assert strip["forgotten"] == 7


def test_lags_are_counted_in_milliseconds_whatever_the_unit_and_a_copy_without_a_time_has_none():
    unknown = np.iinfo(np.int64).min
    rows = [(1, 0, 0, -1, 5, 0), (1, 0, 7_300, -1, 5, 1), (2, 0, unknown, -1, 5, 0), (2, 0, 9_000, -1, 5, 1)]
    columns, codes = judged(rows)
    for unit, lag in (("ms", [7_300 >> 1 << 1]), ("us", [7]), ("text", [7])):
        assert noted(rules(arrival=unit), columns[:5], codes)[1]["lags"]["lower"] == lag
    assert noted(rules(arrival=None), columns[:5], codes)[1]["lags"]["lower"] == []


def test_tasks_that_saw_less_than_the_books_have_noted_nothing(tmp_path):
    rows = [(1, 0, i, i - 1, i, 0) for i in range(10)]
    columns, codes = judged(rows)
    books = Tally(10, {answer: int(np.count_nonzero(codes == i)) for i, answer in enumerate(ANSWERS)})

    def task(rows_max):
        watcher = NoteTaker(rules(), Storage(str(tmp_path)), rows_max)
        halves = [[column[:5] for column in columns], [column[5:] for column in columns]]
        list(watcher.watch_rows(iter(halves)))
        return np.concatenate(list(watcher.watch_codes(iter([codes]))))

    assert np.array_equal(task(rows_max=9), codes)  # too many for it: they are sorted on disk
    assert Notes.read(str(tmp_path), rules(), books) is None
    assert np.array_equal(task(rows_max=10), codes)
    notes = Notes.read(str(tmp_path), rules(), books)
    assert notes is not None
    assert (notes.keys, notes.worst, notes.gaps) == (1, [], [])
