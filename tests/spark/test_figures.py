"""The figures of a run: the same as plain Python finds in what was published, bounded, and safe from odd numbers."""

import datetime as dt
import json
from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from onefold.errors import Misuse
from onefold.report.page import RunReport
from onefold.spark import run as jobs
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ChainColumns, ProducerColumns, ReceptionColumns
from onefold.spark.figures import Axis, Figures, Phases
from onefold.spark.ingest import SourceSpec
from onefold.spark.producers import ProducersEngine
from onefold.spark.receptions.judge import LorawanEngine
from onefold.tally import Tally
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, write
from onefold.verdict import Answer, Verdict

VERDICTS = ("FIRST", "REPEAT", "UNSURE", "REJECT")
KEY = ChainColumns().key
OPEN = ChainsEngine(floor="open", gap_count_max=3, partitions=2)
FAULTY = Faults(poisoned=0.3, malformed=0.02, losses=0.02, late_heads=0.2)
FAR = 2**63 - 2


@pytest.fixture(scope="module")
def published(spark, tmp_path_factory):
    """A run with its figures, its document, and all of its rows and ranges for plain Python to look through."""
    folder = tmp_path_factory.mktemp("figures")
    write(make(Traffic(rows=4_000, chains=30, faults=FAULTY)), folder / "t")
    source = SourceSpec(path=str(folder / "t" / "messages"))
    said: list[str] = []
    run = jobs.run(
        spark, source, OPEN, str(folder / "out"), figures=Figures(strips_max=7, ranges_max=2), say=said.append
    )
    document = json.loads((folder / "out" / "run.json").read_text())
    assert document["figures"] == json.loads(json.dumps(run.figures))
    rows = [row for name in ("firsts", "repeats", "unsure", "rejects") for row in table(folder / "out" / name)]
    return document, rows, table(folder / "out" / "gaps"), said, folder


def table(folder):
    return ds.dataset(folder, format="parquet").to_table().to_pylist()


def key_of(row):
    return tuple(row[name] for name in KEY)


def four(rows):
    counts = Counter(row["verdict"] for row in rows)
    return [counts[verdict] for verdict in VERDICTS]


def test_every_row_is_on_the_timeline_or_outside_of_it(published):
    document, rows, *_ = published
    found = document["figures"]["timeline"]
    assert (found["column"], found["time"]) == ("timestamp", True)
    width = (found["to"] - found["from"]) // len(found["bins"])
    places = defaultdict(list)
    for row in rows:
        at = row["timestamp"]
        inside = at is not None and found["from"] <= at < found["to"]
        places[(at - found["from"]) // width if inside else None].append(row)
    assert found["bins"] == [four(places[i]) for i in range(len(found["bins"]))]
    assert found["outside"] == four(places[None])
    firsts = [row["timestamp"] for row in rows if row["verdict"] == "FIRST"]
    assert found["from"] >= min(firsts)
    assert found["outside"][0] <= len(firsts) // 250
    assert 40 < len(found["bins"]) <= 60
    assert max(row["timestamp"] or 0 for row in rows) > 2 * found["to"]  # a poisoned one, which did not stretch it


def test_the_worst_keys_are_those_with_the_most_that_is_not_first(published):
    document, rows, *_ = published
    by_key = defaultdict(list)
    for row in rows:
        by_key[key_of(row)].append(row)
    found = document["figures"]["worst_keys"]
    rest = sorted((sum(four(some)[1:]) for some in by_key.values()), reverse=True)
    assert [sum(line["counts"][1:]) for line in found] == [count for count in rest if count][:20]
    assert all(line["counts"] == four(by_key[key_of(line["key"])]) for line in found)


def test_strips_show_the_widest_ranges_of_the_keys_that_miss_most(published):
    document, rows, gaps, *_ = published
    seen, forgotten, missing = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in rows:
        if row["verdict"] == "FIRST":
            seen[key_of(row)].append(row["timestamp"])
        if row["reason"] == "forgotten":
            forgotten[key_of(row)].append(row["timestamp"])
    for gap in gaps:
        missing[key_of(gap)].append((gap["lower_timestamp"], gap["upper_timestamp"]))
    found = document["figures"]["strips"]
    assert (found["column"], found["time"], found["keys"]) == ("timestamp", True, document["keys"])
    shares = {}
    for key, ranges in missing.items():
        lost = sum(0 if lower is None else upper - lower for lower, upper in ranges)
        shares[key] = round(lost / (max(seen[key]) - min(seen[key])), 4)
    assert [row["missing"] for row in found["rows"]] == sorted(shares.values(), reverse=True)[:7]
    kinds: Counter[str] = Counter()
    for row in found["rows"]:
        key = key_of(row["key"])
        widest = sorted(missing[key], key=lambda ends: (0 if ends[0] is None else ends[0] - ends[1], -ends[1]))[:2]
        marked = max(forgotten[key], default=-1)
        shown = [
            [a, b, "forgotten" if (a or -1) < marked else "missing"] for a, b in sorted(widest, key=lambda r: r[1])
        ]
        assert (row["ranges"], row["missing"], row["shown"]) == (len(missing[key]), shares[key], shown)
        assert (row["from"], row["to"]) == (min([*seen[key], *(b for _, b in widest)]), max(seen[key]))
        kinds.update(kind for *_, kind in shown)
    assert set(kinds) == {"missing", "forgotten"}


def test_lags_are_those_between_a_first_and_each_of_its_copies(published):
    document, rows, *_ = published
    firsts = {(*key_of(r), r["timestamp"], r["sequence"]): r["arrival"] for r in rows if r["verdict"] == "FIRST"}
    copies = [(r["arrival"], (*key_of(r), r["timestamp"], r["sequence"])) for r in rows if r["verdict"] == "REPEAT"]
    lags = sorted(at - firsts[name] for at, name in copies if name in firsts)
    found = document["figures"]["lags"]
    assert (found["column"], found["count"], found["window_ms"]) == ("arrival", len(lags), None)
    powers = Counter(lag.bit_length() for lag in lags)
    assert found["bins"] == [[1 << bits >> 1, 1 << bits, count] for bits, count in sorted(powers.items())]
    for share, value in found["quantiles"].items():
        true = lags[max(0, -(-int(float(share) * 10_000) * len(lags) // 10_000) - 1)]
        assert true <= value <= true * 1.0005
    assert found["quantiles"]["1"] == lags[-1]


def test_rejects_come_with_rows_that_were_rejected_for_that_reason(published):
    document, rows, *_ = published
    by_reason = defaultdict(list)
    for row in rows:
        if row["verdict"] == "REJECT":
            told = {name: None if value is None else str(value) for name, value in row.items()}
            by_reason[row["reason"]].append({n: v for n, v in told.items() if n not in ("verdict", "reason")})
    found = document["figures"]["rejects"]
    assert {group["reason"]: group["count"] for group in found} == {r: len(some) for r, some in by_reason.items()}
    assert [group["count"] for group in found] == sorted((group["count"] for group in found), reverse=True)
    for group in found:
        assert len(group["rows"]) == min(5, group["count"])
        assert all(row in by_reason[group["reason"]] for row in group["rows"])


def test_a_run_tells_its_steps_its_size_and_its_versions(published):
    document, _, _, said, folder = published
    figures = document["figures"]
    assert [step for step, _ in figures["phases"]] == ["opening the source", *said]
    assert "taking figures" in said
    assert sum(seconds for _, seconds in figures["phases"]) == pytest.approx(document["seconds"], abs=0.05)
    assert figures["bytes_in"] == sum(file.stat().st_size for file in (folder / "t" / "messages").glob("*.parquet"))
    assert list(figures["versions"]) == ["onefold", "python", "spark", "java"]
    assert RunReport(document).charts.keys() == {"law", "timeline", "gap_map", "lags", "state", "phases"}


def taken(spark, judging, rows, gaps, *, keys=1, **bounds):
    """The figures of rows that were judged by hand: columns, then verdict and reason."""
    df = spark.createDataFrame(pa.table(rows))
    answers = Counter(Answer(Verdict(v), r) for v, r in zip(rows["verdict"], rows["reason"], strict=True))
    tally = Tally(len(rows["verdict"]), answers)
    found = Figures(**bounds).take(df, lambda: spark.createDataFrame(gaps), judging, tally, keys)
    assert RunReport({"tally": tally.to_dict(), "figures": json.loads(json.dumps(found))}).html()
    return found


def gap_table(lower, upper, **key):
    return pa.table(
        {**key, "lower_sequence": pa.array(lower, pa.int64()), "upper_sequence": pa.array(upper, pa.int64())}
    )


def test_producers_are_shown_by_sequence_and_their_order_is_no_time(spark):
    rows = {
        "producer": [b"\x00\xff"] * 3 + [None],
        "sequence": ["4", "9", "9", "x"],
        "order": [4, 5, -FAR, None],
        "verdict": ["FIRST", "FIRST", "REPEAT", "REJECT"],
        "reason": ["in_order", "in_order", "seen", "bad_sequence"],
    }
    judging = ProducersEngine(columns=ProducerColumns(order="order"), memory="gaps")
    gaps = gap_table([None, 4], [3, 8], producer=[b"\x00\xff"] * 2)
    found = taken(spark, judging, rows, gaps, samples_max=0)
    assert found["lags"] == {"why_not": "no time of arrival: judge.order must be a column of timestamps"}
    assert found["timeline"]["time"] is False
    assert [sum(counts) for counts in zip(*found["timeline"]["bins"], strict=True)] == [2, 0, 0, 0]
    assert found["timeline"]["outside"] == [0, 1, 0, 1]
    strip = {"from": 0, "to": 9, "ranges": 2, "shown": [[None, 3, "missing"], [4, 8, "missing"]], "missing": 0.8}
    rest = {"keys": 1, "column": "sequence", "time": False}
    assert found["strips"] == {**rest, "rows": [{"key": {"producer": "00ff"}, **strip}]}
    assert [line["key"] for line in found["worst_keys"]] == [{"producer": "00ff"}, {"producer": None}]
    assert found["rejects"] == [{"reason": "bad_sequence", "count": 1, "rows": []}]


def test_a_frame_that_expired_is_a_first_again_and_its_copies_are_measured_from_there(spark):
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    seconds = [0, 2, 100, 103, 50]
    rows = {
        "frame": ["f"] * 4 + ["no first"],
        "station": ["s"] * 5,
        "heard": [start + dt.timedelta(seconds=s) for s in seconds],
        "verdict": ["FIRST", "REPEAT", "FIRST", "REPEAT", "REPEAT"],
        "reason": ["new", "copy", "new", "copy", "copy"],
    }
    columns = ReceptionColumns(time="heard", kind=None, device=(), fcnt=None)
    found = taken(spark, LorawanEngine(columns=columns, shape="flat"), rows, gap_table([], []))
    assert found["lags"]["bins"] == [[1024, 2048, 1], [2048, 4096, 1]]
    assert (found["lags"]["count"], found["lags"]["window_ms"]) == (2, 60_000)
    assert found["lags"]["quantiles"]["0.5"] == 2_000
    assert (found["worst_keys"], found["strips"], found["rejects"]) == (None, None, [])


def test_times_as_far_apart_as_no_number_can_tell_are_left_out(spark):
    columns = ChainColumns(key=("k",), timestamp="t", sequence=None, previous_timestamp=None, previous_sequence=None)
    rows = {
        "k": ["a", "a", "a"],
        "t": [1, 1, 1],
        "arrival": pa.array([-FAR, FAR, None], pa.int64()),
        "verdict": ["FIRST", "REPEAT", "REPEAT"],
        "reason": ["new_chain", "seen", "seen"],
    }
    none = pa.array([], pa.int64())
    ends = ("lower_timestamp", "upper_timestamp")
    gaps = pa.table({"k": pa.array([], pa.string()), **dict.fromkeys(ends, none)})
    found = taken(spark, ChainsEngine(columns=columns), rows, gaps)
    assert (found["lags"]["count"], found["lags"]["quantiles"]) == (0, {})
    assert found["timeline"]["bins"] == [[1, 2, 0, 0]]
    assert found["strips"] is None


def test_the_figures_of_a_run_with_much_of_everything_stay_below_a_megabyte(spark):
    keys, ranges = 310, 60
    names = {f"k{i}": [f"{i}-{n:04}" + "é" * 500 for n in range(keys)] for i in range(4)}
    many = {name: [value for value in values for _ in range(ranges)] for name, values in names.items()}
    lower = [10**15 + 10 * i for _ in range(keys) for i in range(ranges)]
    answers = {"verdict": ["FIRST", "REJECT"] * keys, "reason": ["in_order", "bad_sequence"] * keys}
    rows = {name: [value for value in values for _ in range(2)] for name, values in names.items()}
    rows |= answers | {"sequence": ["0"] * (2 * keys)}
    judging = ProducersEngine(columns=ProducerColumns(producer=tuple(names)), memory="gaps")
    found = taken(spark, judging, rows, gap_table(lower, [n + 5 for n in lower], **many), keys=keys)
    assert (found["timeline"], len(found["worst_keys"]), len(found["strips"]["rows"])) == (None, 20, 300)
    assert {len(row["shown"]) for row in found["strips"]["rows"]} == {20}
    assert {row["ranges"] for row in found["strips"]["rows"]} == {60}
    assert len(json.dumps(found, indent=2, ensure_ascii=False).encode()) < 1_000_000


def test_an_axis_has_whole_stretches_and_ends_at_the_last_value():
    assert Axis.around(7, 7, 7, 7, 60) == Axis(low=7, width=1, bins=1)
    assert Axis.around(0, 59, 0, 59, 60) == Axis(low=0, width=1, bins=60)
    assert Axis.around(0, 60, 0, 60, 60) == Axis(low=0, width=2, bins=31)
    assert Axis.around(-FAR, FAR, -FAR, FAR, 60).bins == 60
    assert Axis.around(0, 10**15, 500, 1_500, 10).high == 1_710


def test_phases_say_each_step_and_how_long_it_took():
    said: list[str] = []
    times = iter([1.0, 3.0, 7.5, 8.0])
    phases = Phases("reading", said.append, clock=lambda: next(times))
    phases.begin("judging")
    phases.begin("publishing")
    assert phases.lasted() == [("reading", 2.0), ("judging", 4.5), ("publishing", 0.5)]
    assert said == ["judging", "publishing"]


def test_bounds_that_cannot_be_are_refused():
    with pytest.raises(Misuse, match="bins_max is 0, must be at least 1"):
        Figures(bins_max=0)
    assert Figures(samples_max=0).samples_max == 0


def test_a_run_whose_tasks_noted_nothing_tells_the_same(spark, published):
    document, _, gaps, _, folder = published
    source = SourceSpec(path=str(folder / "t" / "messages"))
    sorted_on_disk = replace(OPEN, rows_in_memory_max=100)
    again = jobs.run(
        spark, source, sorted_on_disk, str(folder / "again"), figures=Figures(strips_max=7, ranges_max=2),
        say=lambda step: None,
    )  # fmt: skip
    names = ("keys", "missing_ranges", "missing_ranges_shown")
    assert {name: again.to_dict()[name] for name in names} == {name: document[name] for name in names}
    assert sorted(map(str, table(folder / "again" / "gaps"))) == sorted(map(str, gaps))
    figures = json.loads(json.dumps(again.figures))
    for name in ("timeline", "lags", "rejects"):
        assert figures[name] == document["figures"][name]
    # Of keys that are equally bad, a task decides by their hashes and Spark by their names.
    rank = {"worst_keys": lambda line: sum(line["counts"][1:]), "strips": lambda strip: strip["missing"]}
    for name, badness in rank.items():
        lines = [of["rows"] if name == "strips" else of for of in (figures[name], document["figures"][name])]
        assert [badness(line) for line in lines[0]] == [badness(line) for line in lines[1]]
