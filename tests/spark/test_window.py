"""The window advisor: exact lags and quantiles, peaks that are never too small, and everything odd named."""

import datetime as dt
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from onefold import IdDetector
from onefold.errors import Misuse
from onefold.report.advice import recommendation
from onefold.spark.columns import ChainColumns
from onefold.spark.window import (
    FIRST,
    SHARES,
    Distribution,
    WindowColumns,
    advise_window,
    lags,
    peaks,
    rank_of,
    timed,
    why_unusable,
)
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make

START = 1_700_000_000_000
ROWS = 20_000


def quantile(values, share):
    return int(np.quantile(values, share, method="inverted_cdf"))


def measured(df, columns):
    """When ids came first, and the lags of their copies, sorted: one job, where all of an advice is a dozen."""
    found = [tuple(row) for row in lags(timed(df, columns)).collect()]
    return sorted(found, key=lambda row: (row[0] is not None, row))


def busiest(firsts, window_ms):
    """The most firsts in any stretch of time, both ends included: one by one."""
    firsts = np.sort(firsts)
    return int((np.arange(len(firsts)) + 1 - np.searchsorted(firsts, firsts - window_ms)).max())


@pytest.fixture(scope="module")
def copied(spark):
    """A table, and the truth: all times, when each id came first, the lags of its copies, from nothing to many days."""
    rng = np.random.default_rng(5)
    firsts = START + np.sort(rng.integers(0, 3_600_000, 12_000))
    again = np.concatenate([rng.integers(0, 12_000, ROWS - 17_000), np.full(5_000, 77)])  # one id has 5,000 copies
    lags = np.concatenate([[0, 0, 0], rng.lognormal(9, 2.5, len(again) - 3).astype(np.int64)])
    ids, times = np.concatenate([np.arange(12_000), again]), np.concatenate([firsts, firsts[again] + lags])
    order = rng.permutation(ROWS)
    table = pa.table({"device": [f"d{i % 50}" for i in ids[order]], "counter": ids[order], "arrival": times[order]})
    return spark.createDataFrame(table).repartition(3), times, firsts, lags


def test_windows_are_exactly_the_quantiles_of_the_lags(copied):
    df, times, firsts, lags = copied
    shares = (*SHARES, 0.25, 1)
    advice = advise_window(df, key=["device", "counter"], shares=shares)
    assert (advice.rows, advice.ids, advice.copies, advice.unusable) == (ROWS, 12_000, len(lags), {})
    assert (advice.from_ms, advice.to_ms) == (times.min(), times.max())
    assert [window.share for window in advice.windows] == sorted(shares)
    for window in advice.windows:
        assert window.window_ms == quantile(lags, window.share)
        assert window.caught == (lags <= window.window_ms).sum()
        assert window.caught + window.leaked == len(lags)
        assert window.leaked_share == pytest.approx(window.leaked / len(lags))
        assert busiest(firsts, window.window_ms) <= window.ids
        assert window.ids <= busiest(firsts, window.window_ms + 2 * advice.slot_ms)
        assert (window.bytes, window.watermark_ms) == (24 * window.ids, window.window_ms + 1)
        assert busiest(firsts, 2 * window.watermark_ms) <= window.watermark_ids <= 12_000
    assert advice.recommended == advice.windows[-1]
    assert advice.lags["most_ms"] == lags.max()
    assert advice.lags["quantiles"]["0.5"] == quantile(lags, 0.5)
    assert all(((lags >= low) & (lags < high)).sum() == count for low, high, count in advice.lags["bins"])
    assert sum(count for _, _, count in advice.lags["bins"]) == len(lags)
    assert "why_not" in advice.intervals
    assert advice.to_dict()["recommended_ms"] == lags.max()


@pytest.fixture(scope="module")
def traffic(spark):
    made = make(Traffic(rows=ROWS, chains=100, faults=Faults(copy_delay_ms=60_000, copies=0.2)))
    return spark.createDataFrame(made.messages), made.truth


def test_simulated_traffic_gets_the_window_that_it_was_made_with(traffic):
    df, truth = traffic
    advice = advise_window(df)  # the usual names: an id is a chain and a number
    assert advice.key == ("stream", "partition", "publisher", "chain", "timestamp", "sequence")
    assert advice.copies == truth.rows["verdict"].to_pylist().count("REPEAT")
    for window in advice.windows:
        assert window.window_ms == pytest.approx(60_000 * window.share, rel=0.05)
    inner = sum(lower is not None for lower in truth.missing["lower_timestamp"].to_pylist())
    entries = 100 + inner
    assert advice.intervals == {"chains": 100, "gaps": inner, "entries": entries, "bytes": 2_400 + 16 * inner}


def test_with_an_order_late_rows_and_clocks_that_disagree_are_told(spark):
    rng = np.random.default_rng(2)
    n = 3_000
    ids, order = rng.integers(0, 1_000, n), rng.permutation(n) * 10**15 - 2**60  # an order may be anything
    times = START + rng.integers(0, 100_000, n) + np.argsort(np.argsort(order)) * 30
    advice = advise_window(
        spark.createDataFrame(pa.table({"id": ids, "at": times, "offset": order})).repartition(3),
        key=["id"],
        time="at",
        order="offset",
    )
    sort = np.argsort(order)
    late = np.maximum.accumulate(times[sort]) - times[sort]
    firsts: dict[int, int] = {}
    lags = []
    for i, at in zip(ids[sort].tolist(), times[sort].tolist(), strict=True):
        if i in firsts:
            lags.append(at - firsts[i])
        firsts.setdefault(i, at)
    skewed = [lag for lag in lags if lag < 0]
    assert advice.skewed == {"copies": len(skewed), "most_ms": -min(skewed)}
    assert (advice.copies, advice.ids) == (len(lags), len(firsts))
    assert advice.late is not None
    assert advice.late["most_ms"] == late.max()
    for window in advice.windows:
        assert window.window_ms == quantile(np.maximum(lags, 0), window.share)
        assert window.watermark_ms == 1 + max(window.window_ms, quantile(late, window.share))


def test_quantiles_are_exact_for_any_whole_number(spark):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 63, 4_000)
    values = np.concatenate([rng.integers(0, 2**63 - 1, 4_000) >> (63 - bits), [0, 1, 4_095, 4_096, 2**62, 2**63 - 1]])
    cells = [*values.tolist(), -1, -(2**63), None, None]
    found = Distribution.of(spark.createDataFrame(pa.table({"v": pa.array(cells, pa.int64())})).coalesce(2), "v")
    assert (found.nulls, found.negative, found.least, found.most) == (2, 2, -(2**63), 2**63 - 1)
    counted = np.concatenate([values, [0, 0]])
    shares = (0.0001, 0.1, 0.37, 0.5, 0.75, 0.9, 0.999, 1)
    for share, (value, upto) in found.quantiles(shares).items():
        assert value == np.sort(counted)[rank_of(share, len(counted)) - 1]
        assert upto == (counted <= value).sum()


def test_peaks_are_never_too_small_however_few_slots_there_may_be(spark):
    rng = np.random.default_rng(3)
    times = np.concatenate([START + rng.integers(0, 60_000, 2_000), [-5_000, 0, 4 * START]])  # and from other centuries
    df = spark.createDataFrame(pa.table({FIRST: pa.array([*times.tolist(), None], pa.int64())})).coalesce(1)
    windows = [0, 1, 640, 5_000, 10**9]
    exact = peaks(df, windows)
    assert exact.slot_ms == 1
    assert exact.ids == {window: busiest(times, window) for window in windows}
    coarse = peaks(df, windows, slots_max=50)
    assert coarse.slot_ms > 1
    assert all(exact.ids[window] <= coarse.ids[window] <= len(times) for window in windows)


def test_the_whole_row_is_the_id_if_there_is_no_other_and_null_is_a_value(spark):
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    rows = [
        ("a", None, [1], at),
        ("a", None, [1], at + dt.timedelta(milliseconds=1_500)),
        (None, "a", [1], at),
        ("a", None, [2], at),
        (None, None, None, at),
        (None, None, None, at),
    ]
    df = spark.createDataFrame(rows, "x string, y string, z array<int>, at timestamp").coalesce(1)
    columns = WindowColumns(time="at")
    assert columns.id(df) == ("x", "y", "z")
    start = int(at.timestamp() * 1_000)
    assert measured(df, columns) == [(None, 0), (None, 1_500), *[(start, None)] * 4]


def test_rows_that_cannot_be_used_are_counted_by_why(spark):
    rows = [
        ("a", "1700000000000", 1, None),
        ("a", "1700000000250", 2, None),
        (None, "1700000000000", 3, None),
        ("b", "soon", 4, None),
        ("b", None, 5, None),
        ("b", "1700000000000000", 6, None),
        ("c", "1700000000000", None, None),
        ("c", "1700000000000", 7, "{torn"),
    ]
    df = spark.createDataFrame(rows, "id string, at string, n long, _corrupt_record string").coalesce(1)
    columns = WindowColumns(key=("id",), time="at", order="n")
    why = Counter(row[0] for row in df.select(why_unusable(df, columns)).collect())
    assert why == {"malformed": 1, "no_id": 1, "no_time": 2, "time_out_of_range": 1, "no_order": 1, None: 2}
    assert measured(df, columns) == [(None, 250), (START, None)]
    with pytest.raises(Misuse, match=r"none of 1 rows can be used: 1 time_out_of_range; 'at' holds '1700000000000000'"):
        advise_window(df.where("n = 6"), key=["id"], time="at")


def test_without_rows_no_window_is_named(spark):
    advice = advise_window(spark.createDataFrame([], "id long, arrival long"), key=["id"])
    assert (advice.ids, advice.copies, advice.windows, advice.recommended) == (0, 0, [], None)
    assert advice.to_dict()["recommended_ms"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ["nope"]}, r"no column 'nope' \(key\)"),
        ({"time": "when"}, r"no column 'when' \(time\)"),
        ({"time": "ratio"}, r"column 'ratio' \(time\) is double, must be whole numbers or times"),
        ({"order": "ratio"}, r"column 'ratio' \(order\) is double"),
        ({"key": ["tags"]}, r"column 'tags' \(key\) is array<int>, must be a plain value"),
        ({"key": ["arrival"]}, r"column 'arrival' is the time, it cannot be the key too"),
        ({"order": "arrival"}, r"column 'arrival' is the time, it cannot be the order too"),
        ({"key": "nope"}, r"no column 'nope'"),
        ({"key": []}, r"key is empty"),
        ({"shares": [0.5, 0]}, r"share is 0, must be above 0 and at most 1"),
        ({"shares": []}, r"there are 0 shares"),
        ({"chains": ChainColumns(key=("id",), arrival=None)}, r"no column 'timestamp'"),
    ],
)
def test_misuse_is_named_before_a_row_is_read(spark, options, said):
    df = spark.createDataFrame([], "id long, arrival long, ratio double, tags array<int>")
    with pytest.raises(Misuse, match=said):
        advise_window(df, **options)


def test_a_table_without_rows_needs_no_window(spark):
    df = spark.createDataFrame([], "id string, ts long, came long")
    advice = advise_window(df, key="id", time="ts", order="came", engine="ids")
    assert (advice.rows, advice.recommended, advice.late) == (0, None, None)


def test_a_table_of_nothing_but_times_has_no_ids(spark):
    with pytest.raises(Misuse, match="no column beside 'arrival'"):
        WindowColumns().id(spark.createDataFrame([], "arrival long"))


def test_a_window_of_ids_by_a_shared_time_is_what_each_copy_is_behind(spark):
    """Against rows that are judged one by one: how far behind the newest time, and what that makes of late events."""
    rng = np.random.default_rng(7)
    shared = START + rng.integers(0, 3_600_000, 2_000)
    ids = np.concatenate([np.arange(2_000), rng.integers(0, 2_000, 500)])
    ts = shared[ids]
    came = ts + rng.exponential(60_000, len(ids)).astype(np.int64)
    came[2_000:] += rng.exponential(600_000, 500).astype(np.int64)
    turn = np.lexsort((ids, ts, came))
    table = pa.table({"id": ids[turn], "ts": ts[turn], "at": np.arange(len(ids))})
    advice = advise_window(spark.createDataFrame(table).repartition(3), key=["id"], time="ts", order="at", engine="ids")
    newest, known = 0, set[int]()
    copies: list[int] = []
    firsts: list[int] = []
    for id, time in zip(ids[turn].tolist(), ts[turn].tolist(), strict=True):
        newest = max(newest, time)
        (copies if id in known else firsts).append(newest - time)
        known.add(id)
    assert (advice.ids, advice.copies, advice.apart) == (2_000, 500, 0)
    for window in advice.windows:
        assert window.window_ms == quantile(copies, window.share)
        assert window.caught == sum(late <= window.window_ms for late in copies)
        assert window.unsure == sum(late > window.window_ms for late in firsts)
        assert window.bytes == 16 * window.ids
        ids_seen = IdDetector(window_ms=window.window_ms)
        judged = [ids_seen.judge(id, time) for id, time in zip(ids[turn].tolist(), ts[turn].tolist(), strict=True)]
        answers = Counter(map(str, judged))
        assert answers["FIRST new"] <= 2_000
        assert answers["REPEAT seen"] >= window.caught
        assert answers["UNSURE forgotten"] <= window.leaked + window.unsure
        assert window.ids >= busiest(shared, window.window_ms)


def test_copies_with_another_time_are_named_and_a_shared_time_alone_is_not_enough(spark):
    rows = spark.createDataFrame([("a", 5, 1), ("a", 6, 2), ("b", 7, 3), ("b", 7, 4)], "id string, ts long, at long")
    assert advise_window(rows, key=["id"], time="ts", order="at", engine="ids").apart == 1
    alone = advise_window(rows.where("id = 'b'"), key=["id"], time="ts", engine="ids").to_dict()
    assert "name the column with when a row came in, --order COLUMN" in recommendation(alone)
