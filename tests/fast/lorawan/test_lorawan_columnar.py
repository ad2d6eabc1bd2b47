"""Level 1 over columns answers as the scalar engine does, however the rows are cut, in tables and in streams."""

import struct
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import BadInput, Misuse
from onefold.lorawan import ANSWERS, Sightings, Stations, Strategy
from onefold.lorawan.columns import EXPIRY_MS_MAX, ColumnarStations, FrameBank, ReceptionArrays, Windows, refused
from tests.lib.examples import examples

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

    def __init__(self, windows, joins=frozenset(), *, strict_adr=False):
        self.windows, self.joins, self.frames, self.strict_adr = windows, joins, {}, strict_adr
        self.last, self.used = {}, set()

    def answer(self, frame, time, station):
        if station < 0:
            return ANSWERS[-1 - station].reason
        fresh = Sightings(expiry_ms=self.windows.expiry_ms, sliding=self.windows.sliding)
        heard = self.frames.setdefault(frame, Stations(fresh, echo_ms=self.windows.echo_ms))
        key, device = b"%d" % frame, frame // 2
        if frame in self.joins:
            answer = heard.join(key, str(station), time, used=frame in self.used)[1]
            self.used |= set() if self.strict_adr else {frame}
            return answer.reason
        answer = heard.data(key, str(station), Strategy.NONE, time, self.last.get(device))[1]
        if answer.verdict == "FIRST" and not self.strict_adr:
            self.last[device] = key
        return answer.reason

    def answers(self, rows):
        return [self.answer(*row) for row in rows]


def reasons(codes):
    return [ANSWERS[code].reason for code in codes]


def parts_of(rows, cuts):
    return [rows[a:b] for a, b in pairwise([0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)])]


def chain_of(frame, joins=()):
    """Two frames are of one device; a join request is alone."""
    return 1_000 + frame if frame in joins else frame // 2


def columns_of(rows, joins):
    frame, time, station = np.array(rows, np.int64).reshape(-1, 3).T
    chain = np.array([chain_of(int(each), joins) for each in frame], np.int64)
    return chain, time, np.isin(frame, list(joins)).astype(np.int64), station, frame


def columnar(rows, windows, joins=frozenset(), cuts=(), *, strict_adr=False):
    stations = ColumnarStations(windows, strict_adr=strict_adr)
    words = []
    for part in parts_of(rows, cuts):
        chain, time, join, station, frame = columns_of(part, joins)
        words += reasons(stations.judge(chain, time, join, station, frame, frame ^ 1))
    return words


def received(rows, joins=()):
    """Rows that are contiguous by frame, as a bank takes them; those of one time have their turns in this order."""
    chain, time, join, station, frame = columns_of(rows, joins)
    turn = np.empty(len(rows), np.int64)
    turn[np.lexsort((np.arange(len(rows)), time, chain))] = np.arange(len(rows))
    return ReceptionArrays(frame, frame ^ 1, station, time, join != 0, chain, chain ^ 1, turn)


def streamed(rows, windows, joins=frozenset(), cuts=(), **options):
    """Batches in the order of time; between them there is nothing but the blob."""
    found: dict[int, str] = {}
    blob = None
    for batch in parts_of(sorted(enumerate(rows), key=lambda item: item[1][1]), cuts):
        bank = FrameBank(windows, **options)
        bank = bank if blob is None else bank.resume(blob)
        batch = sorted(batch, key=lambda item: item[1][0])
        codes = bank.judge(received([row for _, row in batch], joins))
        found.update(zip([place for place, _ in batch], reasons(codes), strict=True))
        blob = bank.snapshot()
    return [found[place] for place in range(len(rows))]


def in_order(rows, joins=()):
    return sorted(rows, key=lambda row: (chain_of(row[0], joins), row[1]))  # stable: what ties in time keeps its order


def no_ties(rows):
    """Of one time and device one frame alone: which of two came first, tables and streams say by a hash."""
    taken: dict[tuple[int, int], int] = {}
    return [row for row in rows if taken.setdefault((row[0] // 2, row[1]), row[0]) == row[0]]


@settings(max_examples=examples(400), deadline=None)
@given(ROWS | CLOSE, WINDOWS, JOINS, CUTS, st.booleans())
def test_columns_answer_as_the_scalar_engine_does_however_they_are_cut(rows, windows, joins, cuts, strict_adr):
    rows = in_order(rows, joins)
    truth = Scalar(windows, joins, strict_adr=strict_adr).answers(rows)
    assert columnar(rows, windows, joins, strict_adr=strict_adr) == truth
    assert columnar(rows, windows, joins, cuts, strict_adr=strict_adr) == truth


@settings(max_examples=examples(400), deadline=None)
@given(ROWS | CLOSE, WINDOWS, JOINS, CUTS, st.sampled_from([0, 5, HOUR]), st.booleans())
def test_a_stream_in_the_order_of_time_answers_as_the_scalar_engine_does(
    rows, windows, joins, cuts, late_ms, strict_adr
):
    rows = no_ties(sorted(rows, key=lambda row: row[1]))
    truth = Scalar(windows, joins, strict_adr=strict_adr).answers(rows)
    assert streamed(rows, windows, joins, cuts, late_ms=late_ms, strict_adr=strict_adr) == truth


@settings(max_examples=examples(300), deadline=None)
@given(ROWS, WINDOWS, JOINS)
def test_each_frame_counts_once_unless_another_one_of_its_device_was_counted_in_between(rows, windows, joins):
    rows = in_order(rows, joins)
    words = columnar(rows, windows, joins)
    counted: dict[int, list[int]] = {}
    for (frame, _, _), word in zip(rows, words, strict=True):
        if word in ("new_frame", "new_join"):
            counted.setdefault(chain_of(frame, joins), []).append(frame)
    assert all(one != other for frames in counted.values() for one, other in pairwise(frames))
    assert all(len(frames) == 1 for chain, frames in counted.items() if chain >= 1_000)


def test_the_last_frame_of_a_device_is_known_again_however_late_and_an_older_one_is_not():
    rows = [(0, 0, 7), (0, 197_000, 7), (0, 197_001, 8), (0, 9 * HOUR, 8), (1, 10 * HOUR, 7), (0, 11 * HOUR, 7)]
    words = ["new_frame", "counted_before", "other_station", "counted_before", "new_frame", "new_frame"]
    for cuts in (range(0), range(7)):
        assert columnar(rows, Windows(), cuts=cuts) == streamed(rows, Windows(), cuts=cuts) == words
    strict = ["new_frame", "new_frame", "other_station", "new_frame", "new_frame", "new_frame"]
    assert columnar(rows, Windows(), strict_adr=True) == streamed(rows, Windows(), strict_adr=True) == strict


def test_a_nonce_is_used_once_though_other_joins_of_its_device_come_in_between():
    rows = [(2, 0, 7), (3, HOUR, 7), (2, 2 * HOUR, 8), (2, 2 * HOUR + 1, 7)]
    words = streamed(rows, Windows(), {2, 3}, cuts=range(5))
    assert words == ["new_join", "new_join", "nonce_used", "join_repeated"]
    assert columnar([rows[0], *rows[2:], rows[1]], Windows(), {2, 3}) == [words[0], *words[2:], words[1]]


def test_in_a_stream_a_frame_that_comes_late_is_not_taken_for_what_came_after_it():
    bank = FrameBank(Windows(expiry_ms=EXPIRY), late_ms=HOUR)
    assert reasons(bank.judge(received([(0, 100, 7)]))) == ["new_frame"]
    assert reasons(bank.judge(received([(0, 150, 7), (1, 50, 7)]))) == ["counted_before", "new_frame"]
    assert reasons(bank.judge(received([(0, 300, 7)]))) == ["counted_before"]


def test_a_full_bank_is_unsure_of_devices_that_it_cannot_remember():
    bank = FrameBank(Windows(), frames_max=2)
    assert reasons(bank.judge(received([(0, 0, 1), (2, 0, 1)]))) == ["new_frame", "new_frame"]
    later = 2 * HOUR
    assert reasons(bank.judge(received([(2, later, 1)]))) == ["counted_before"]
    assert len(bank) == 1  # frames are given up, devices are not
    assert reasons(bank.judge(received([(3, later, 1), (4, later, 1)]))) == ["new_frame", "state_full"]


def test_a_memory_of_the_other_kind_is_refused_and_says_how_to_go_on():
    for strict_adr, said in ((True, "true"), (False, "false")):
        blob = FrameBank(Windows(), strict_adr=strict_adr).snapshot()
        with pytest.raises(BadInput, match=f"kept with strict_adr = {said} .*: go on with that, or begin a new"):
            FrameBank(Windows(), strict_adr=not strict_adr).resume(blob)


def test_a_memory_of_before_the_last_frames_were_kept_goes_on_by_strict_adr():
    columns = np.array([5, 4, 7, 900, 1_000, 1_000], "<i8").tobytes()
    head = struct.pack("<4sHqqQI", b"OFFB", 1, 1_000, -(1 << 62), 1, zlib.crc32(columns))
    bank = FrameBank(Windows(), strict_adr=True).resume(head + columns)
    assert reasons(bank.judge(received([(5, 1_001, 8)]))) == ["other_station"]


@settings(max_examples=examples(300), deadline=None)
@given(ROWS, WINDOWS, CUTS, st.sampled_from([0, 20, HOUR]))
def test_of_a_stream_in_any_order_no_two_firsts_of_a_frame_are_closer_than_the_expiry(rows, windows, cuts, late_ms):
    firsts: dict[int, list[int]] = {}
    bank, newest = FrameBank(windows, late_ms=late_ms), -1
    for batch in parts_of(rows, cuts):
        batch = sorted(batch, key=lambda row: row[:2])
        words = reasons(bank.judge(received(batch)))
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
    assert columnar([(0, 0, 1), (0, 60_000, 1)], windows) == ["new_frame", "counted_before"]
    assert columnar([(0, 0, 1), (0, 60_000, 1)], windows, strict_adr=True) == ["new_frame", "new_frame"]


def test_fixed_windows_end_while_frames_keep_coming_and_sliding_ones_do_not():
    rows = [(0, at, at % 2) for at in range(35)]
    sliding, fixed = (columnar(rows, Windows(expiry_ms=EXPIRY, sliding=s), strict_adr=True) for s in (True, False))
    assert [i for i, word in enumerate(sliding) if word == "new_frame"] == [0]
    assert [i for i, word in enumerate(fixed) if word == "new_frame"] == [0, 10, 20, 30]


def test_times_may_be_decades_apart_and_frames_many():
    rows = [(frame, at, 0) for frame in range(2_000) for at in (0, 5, 253_402_300_799_999)]
    wanted = ["new_frame", "resubmitted", "new_frame"] * 2_000
    for sliding in (True, False):
        assert columnar(rows, Windows(expiry_ms=EXPIRY_MS_MAX, sliding=sliding), strict_adr=True) == wanted


def test_a_row_refused_before_keeps_its_reason_and_touches_no_frame():
    rows = [(1, 0, 5), (1, 1, refused("null_key")), (1, 2, 5)]
    assert columnar(rows, Windows()) == ["new_frame", "null_key", "resubmitted"]
    assert columnar([], Windows()) == []


def test_late_rows_are_compared_with_the_window_that_is_remembered():
    windows = Windows(expiry_ms=EXPIRY)
    bank = FrameBank(windows, late_ms=100, strict_adr=True)

    def judged(*rows):
        return reasons(bank.judge(received(rows)))

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
        return reasons(bank.judge(received([(0, time, station)])))

    assert judged(7, 100_000) == ["new_frame"]
    assert judged(8, 70_000) == ["other_station"]  # the window begins with it now
    assert judged(7, 70_010) == ["resubmitted"]
    assert judged(7, 99_960) == ["echoed"]


def test_a_full_bank_is_unsure_of_new_frames_and_remembers_none_of_them():
    bank = FrameBank(Windows(), frames_max=2)
    words = reasons(bank.judge(received([(1, 0, 1), (2, 0, 1), (3, 0, 1), (3, 1, 2)])))
    assert words == ["new_frame", "new_frame", "state_full", "state_full"]
    assert len(bank) == 2


def test_frames_that_share_the_first_half_of_their_names_are_told_apart():
    bank = FrameBank(Windows())
    same, check, zero, turn = np.zeros(3, np.int64), np.array([1, 2, 3]), np.zeros(3, np.int64), np.arange(3)
    assert (
        reasons(bank.judge(ReceptionArrays(same, check, zero, zero, zero != 0, same, check, turn))) == ["new_frame"] * 3
    )
    check, one = np.array([3, 4, 1]), np.ones(3, np.int64)
    words = reasons(bank.judge(ReceptionArrays(same, check, one, one, zero != 0, same, check, turn)))
    assert words == ["other_station", "new_frame", "other_station"]
    late = np.full(3, HOUR)
    words = reasons(bank.judge(ReceptionArrays(same, check, one, late, zero != 0, same, check, turn)))
    assert words == ["counted_before"] * 3
    stations = ColumnarStations(Windows())
    codes = stations.judge(same, np.arange(3), zero, zero, same, np.array([1, 2, 1]))
    assert reasons(codes) == ["new_frame", "new_frame", "resubmitted"]


def test_a_damaged_blob_is_bad_input():
    bank = FrameBank(Windows())
    bank.judge(received([(1, 0, 1), (2, 0, 1)]))
    blob = bank.snapshot()
    assert FrameBank(Windows()).resume(blob).snapshot() == blob
    for bad in [blob[:n] for n in range(len(blob))] + [blob[:-1] + b"\x01", b"OFFB\x03\x00" + blob[6:]]:
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
