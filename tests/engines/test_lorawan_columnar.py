"""Level 1 over columns answers as the scalar engine does, however the rows are cut, in tables and in streams."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.engines.lorawan import ANSWERS, Sightings, Stations, Strategy
from onefold.engines.lorawan.bank import FrameBank, Receptions
from onefold.engines.lorawan.columnar import EXPIRY_MS_MAX, ColumnarStations, Windows, refused
from onefold.errors import BadInput, Misuse

EXPIRY = 10
ROW = st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 2))  # frame, time, station; few of each
ROWS = st.lists(ROW, max_size=60)
CLOSE = st.lists(st.tuples(st.just(0), st.integers(0, 200), st.integers(0, 1)), max_size=80)  # long stretches
JOINS = st.sets(st.integers(0, 3), max_size=2)  # which frames are join requests
WINDOWS = st.builds(
    Windows, expiry_ms=st.sampled_from([1, EXPIRY, 30]), sliding=st.booleans(), echo_ms=st.sampled_from([0, 2, 10])
)
CUTS = st.lists(st.integers(0, 80), max_size=6)
HOUR = 3_600_000


class Scalar:
    """The truth: each row is shown to `Stations`, a memory for each frame so that time may begin again for the next."""

    def __init__(self, windows, joins=frozenset()):
        self.windows, self.joins, self.frames = windows, joins, {}

    def answer(self, frame, time, station):
        if station < 0:
            return ANSWERS[-1 - station].reason
        fresh = Sightings(expiry_ms=self.windows.expiry_ms, sliding=self.windows.sliding)
        heard = self.frames.setdefault(frame, Stations(fresh, echo_ms=self.windows.echo_ms))
        if frame in self.joins:
            return heard.join(b"key", str(station), time)[1].reason
        return heard.data(b"key", str(station), Strategy.NONE, time)[1].reason

    def answers(self, rows):
        return [self.answer(*row) for row in rows]


def reasons(codes):
    return [ANSWERS[code].reason for code in codes]


def parts_of(rows, cuts):
    return [rows[a:b] for a, b in pairwise([0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)])]


def columns_of(rows, joins):
    frame, time, station = np.array(rows, np.int64).reshape(-1, 3).T
    return frame, time, np.isin(frame, list(joins)).astype(np.int64), station


def columnar(rows, windows, joins=frozenset(), cuts=()):
    stations = ColumnarStations(windows)
    return [word for part in parts_of(rows, cuts) for word in reasons(stations.judge(*columns_of(part, joins)))]


def streamed(rows, windows, joins=frozenset(), cuts=(), **options):
    """Batches in the order of time; between them there is nothing but the blob."""
    found: dict[int, str] = {}
    blob = None
    for batch in parts_of(sorted(enumerate(rows), key=lambda item: item[1][1]), cuts):
        bank = FrameBank(windows, **options)
        bank = bank if blob is None else bank.resume(blob)
        batch = sorted(batch, key=lambda item: item[1][0])
        frame, time, join, station = columns_of([row for _, row in batch], joins)
        codes = bank.judge(Receptions(frame, frame ^ 1, station, time, join != 0))
        found.update(zip([place for place, _ in batch], reasons(codes), strict=True))
        blob = bank.snapshot()
    return [found[place] for place in range(len(rows))]


def in_order(rows):
    return sorted(rows, key=lambda row: row[:2])  # stable: what ties in time keeps its order


@settings(max_examples=400, deadline=None)
@given(ROWS | CLOSE, WINDOWS, JOINS, CUTS)
def test_columns_answer_as_the_scalar_engine_does_however_they_are_cut(rows, windows, joins, cuts):
    rows = in_order(rows)
    truth = Scalar(windows, joins).answers(rows)
    assert columnar(rows, windows, joins) == truth
    assert columnar(rows, windows, joins, cuts) == truth


@settings(max_examples=400, deadline=None)
@given(ROWS | CLOSE, WINDOWS, JOINS, CUTS, st.sampled_from([0, 5, HOUR]))
def test_a_stream_in_the_order_of_time_answers_as_the_scalar_engine_does(rows, windows, joins, cuts, late_ms):
    rows = sorted(rows, key=lambda row: row[1])
    truth = Scalar(windows, joins).answers(rows)
    assert streamed(rows, windows, joins, cuts, late_ms=late_ms) == truth


@settings(max_examples=300, deadline=None)
@given(ROWS, WINDOWS, CUTS, st.sampled_from([0, 20, HOUR]))
def test_of_a_stream_in_any_order_no_two_firsts_of_a_frame_are_closer_than_the_expiry(rows, windows, cuts, late_ms):
    firsts: dict[int, list[int]] = {}
    bank, newest = FrameBank(windows, late_ms=late_ms), -1
    for batch in parts_of(rows, cuts):
        batch = in_order(batch)
        frame, time, join, station = columns_of(batch, ())
        words = reasons(bank.judge(Receptions(frame, frame, station, time, join != 0)))
        for (key, at, _), word in zip(batch, words, strict=True):
            if word == "new_frame":
                assert all(abs(at - other) >= windows.expiry_ms for other in firsts.get(key, []))
                firsts.setdefault(key, []).append(at)
            if word == "late" and key not in firsts:
                assert newest - at > late_ms
        newest = max([newest, *(at for _, at, _ in batch)])


@pytest.mark.parametrize("sliding", [True, False])
def test_the_expiry_is_exact(sliding):
    windows = Windows(sliding=sliding)
    assert columnar([(0, 0, 1), (0, 59_999, 1)], windows) == ["new_frame", "resubmitted"]
    assert columnar([(0, 0, 1), (0, 60_000, 1)], windows) == ["new_frame", "new_frame"]


def test_fixed_windows_end_while_frames_keep_coming_and_sliding_ones_do_not():
    rows = [(0, at, at % 2) for at in range(35)]
    sliding, fixed = (columnar(rows, Windows(expiry_ms=EXPIRY, sliding=s)) for s in (True, False))
    assert [i for i, word in enumerate(sliding) if word == "new_frame"] == [0]
    assert [i for i, word in enumerate(fixed) if word == "new_frame"] == [0, 10, 20, 30]


def test_times_may_be_decades_apart_and_frames_many():
    rows = [(frame, at, 0) for frame in range(2_000) for at in (0, 5, 253_402_300_799_999)]
    wanted = ["new_frame", "resubmitted", "new_frame"] * 2_000
    for sliding in (True, False):
        assert columnar(rows, Windows(expiry_ms=EXPIRY_MS_MAX, sliding=sliding)) == wanted


def test_a_row_refused_before_keeps_its_reason_and_touches_no_frame():
    rows = [(1, 0, 5), (1, 1, refused("null_key")), (1, 2, 5)]
    assert columnar(rows, Windows()) == ["new_frame", "null_key", "resubmitted"]
    assert columnar([], Windows()) == []


def test_late_rows_are_compared_with_the_window_that_is_remembered():
    windows = Windows(expiry_ms=EXPIRY)
    bank = FrameBank(windows, late_ms=100)

    def judged(*rows):
        frame, time, join, station = columns_of(rows, ())
        return reasons(bank.judge(Receptions(frame, frame, station, time, join != 0)))

    assert judged((0, 100, 7), (0, 105, 8)) == ["new_frame", "other_station"]
    assert judged((0, 91, 7), (0, 102, 8), (0, 102, 7)) == ["resubmitted", "other_station", "resubmitted"]
    assert judged((0, 82, 8)) == ["other_station"]  # near to 91, which came since
    assert judged((0, 72, 8)) == ["late"]  # 10 before 82: it may belong to a window of its own, or to this one
    assert judged((1, 50, 7)) == ["new_frame"]  # of this frame nothing was ever given up
    assert judged((2, 214, 7), (1, 161, 7)) == ["new_frame", "new_frame"]
    assert len(bank) == 3  # 0 was heard at 105: 109 ago
    assert judged((2, 215, 7)) == ["resubmitted"]
    assert len(bank) == 2
    assert judged((0, 114, 7), (0, 115, 7)) == ["late", "new_frame"]  # 115: the expiry after the one that was given up


def test_a_late_row_echoes_only_what_its_own_station_heard():
    bank = FrameBank(Windows(echo_ms=50))

    def judged(station, time):
        frame, time, join, station = columns_of([(0, time, station)], ())
        return reasons(bank.judge(Receptions(frame, frame, station, time, join != 0)))

    assert judged(7, 100_000) == ["new_frame"]
    assert judged(8, 70_000) == ["other_station"]  # the window begins with it now
    assert judged(7, 70_010) == ["resubmitted"]
    assert judged(7, 99_960) == ["echoed"]


def test_a_full_bank_is_unsure_of_new_frames_and_remembers_none_of_them():
    bank = FrameBank(Windows(), frames_max=2)
    frame, time, join, station = columns_of([(1, 0, 1), (2, 0, 1), (3, 0, 1), (3, 1, 2)], ())
    words = reasons(bank.judge(Receptions(frame, frame, station, time, join != 0)))
    assert words == ["new_frame", "new_frame", "state_full", "state_full"]
    assert str(bank) == "2 frames"


def test_frames_that_share_the_first_half_of_their_names_are_told_apart():
    bank = FrameBank(Windows())
    same, check, zero = np.zeros(3, np.int64), np.array([1, 2, 3]), np.zeros(3, np.int64)
    assert reasons(bank.judge(Receptions(same, check, zero, zero, zero != 0))) == ["new_frame"] * 3
    check, one = np.array([3, 4, 1]), np.ones(3, np.int64)
    words = reasons(bank.judge(Receptions(same, check, one, one, zero != 0)))
    assert words == ["other_station", "new_frame", "other_station"]


def test_a_damaged_blob_is_bad_input():
    bank = FrameBank(Windows())
    frame, time, join, station = columns_of([(1, 0, 1), (2, 0, 1)], ())
    bank.judge(Receptions(frame, frame, station, time, join != 0))
    blob = bank.snapshot()
    assert FrameBank(Windows()).resume(blob).snapshot() == blob
    for bad in [blob[:n] for n in range(len(blob))] + [blob[:-1] + b"\x01", b"OFFB\x02\x00" + blob[6:]]:
        with pytest.raises(BadInput):
            FrameBank(Windows()).resume(bad)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Windows(expiry_ms=0), "expiry_ms is 0"),
        (lambda: Windows(expiry_ms=EXPIRY_MS_MAX + 1), "expiry_ms is"),
        (lambda: Windows(echo_ms=-1), "echo_ms is -1"),
        (lambda: FrameBank(Windows(), late_ms=-1), "late_ms is -1"),
        (lambda: FrameBank(Windows(), frames_max=0), "state_rows_max is 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_misuse(make, message):
    with pytest.raises(Misuse, match=message):
        make()
