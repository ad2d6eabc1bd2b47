import json

import pytest

from onefold.errors import Misuse
from onefold.lorawan import Sightings, Stations, Strategy
from onefold.lorawan.rules import NEW_FRAME
from onefold.spark.receptions.judge import judge_receptions, merge_uplinks
from onefold.spark.receptions.reading import receptions
from onefold.spark.receptions.report import WINDOWS_MS, report, what_if
from tests.lib import reception_files as files

START_MS = files.START_MS
TYPES = (
    "frame string, station string, time_ms long, own_time boolean, device string, fcnt long, snr double, rssi double"
)


def heard(device, fcnt, at_ms, *stations, frame=None, own=True):
    """A row of a table for each (station, lag, snr)."""
    name = frame or f"{device}/{fcnt}"
    return [(name, station, START_MS + at_ms + lag, own, device, fcnt, snr, -100.0) for station, lag, snr in stations]


def table(spark, rows):
    return spark.createDataFrame(rows, TYPES)


A, A2, B, C, Z = ("a", 0, 5.0), ("a", 3, 4.0), ("b", 200, 9.0), ("c", 700, None), ("z", 0, 1.0)


def day(device, counters):
    return [row for n, fcnt in enumerate(counters) for row in heard(device, fcnt, 600_000 * n, Z)]


@pytest.fixture(scope="module")
def found(spark, tmp_path_factory):
    """The report of devices and gateways with a story each."""
    rows = [
        *heard("d", 1, 0, A, A2, B, C),
        *heard("d", 2, 100_000, A, ("a", 5_000, 5.0), B),
        *heard("d", 3, 200_000, A),
        *heard("d", 4, 300_000, ("a", 0, 1.0), ("b", 0, 0.5)),
        *heard("d", 5, 400_000, B, C, own=False),
        *day("loses", [1, 2, 5, 6, 9]),
        *day("restarts", [500, 501, 0, 1, 2]),
        *day("rolls", [65_534, 65_535, 0, 2]),
        *day("replayed", [100, 101, 102, 103, 104]),
        *heard("replayed", 101, 2_450_000, Z),  # after its window
        *day("old", [900, 901, 902, 903, 904]),
        *heard("old", 50, 1_850_000, Z, frame="from before"),
        *day("forged", [30, 31, 9_000, 32, 33]),
        *day("late", [65_532, 65_534, 0, 65_533, 65_535, 1, 3, 2]),
        *day("kept", [1_000, 1_001, 980, 981, 1_002]),
        *day("very old", [2_000, 2_001, 5, 6, 2_002]),
        *day("stranger", [7, 7_000, 9]),
        *day("anew", [5, 6, 7]),
        *[row for n in (5, 6, 7, 8) for row in heard("anew", n, 10_000_000 + 600_000 * n, Z, frame=f"other/{n}")],
    ]
    folder = tmp_path_factory.mktemp("report")
    table(spark, rows).write.parquet(str(folder / "rows"))
    ours = {row[4] for row in rows} - {"stranger"}
    return report(spark, str(folder / "rows"), top=5, devices=ours, say=lambda text: None)


def test_uplinks_are_merged_with_all_who_heard_them_and_the_best(spark):
    rows = [
        *heard("d", 1, 0, A, A2, B, C),
        *heard("d", 1, 90_000, A),  # again, after the expiry
        *heard("d", 2, 200_000, C),
        *heard("d", 1, 290_000, A),  # again, when another one was counted since
        *heard("d", 3, 300_000, ("a", 0, 5.0), ("b", 1, 5.0)),
        *heard("d", 4, 400_000, *((station, 0, 5.0) for station in "vwxyz")),
    ]
    judged = receptions(table(spark, rows)).transform(judge_receptions(partitions=2))
    found = {(row.fcnt, row.window): row for row in merge_uplinks(judged).collect()}
    assert sorted(found) == [(1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
    first = found[1, 1]
    assert [(one.station, one.time_ms - START_MS, one.reason) for one in first.receptions] == [
        ("a", 0, "new_frame"), ("a", 3, "resubmitted"), ("b", 200, "other_station"), ("c", 700, "other_station"),
        ("a", 90_000, "counted_before"),
    ]  # fmt: skip
    # Of those in one millisecond any may be the one that counts: it stands before the others.
    assert [one.reason for one in found[4, 1].receptions] == ["new_frame", *["other_station"] * 4]
    assert (first.stations, first.best_station, first.best_snr, first.first_ms) == (3, "b", 9.0, START_MS)
    assert (found[1, 2].stations, found[1, 2].first_ms) == (1, START_MS + 290_000)
    assert (found[2, 1].best_station, found[2, 1].best_snr) == ("c", None)
    assert found[3, 1].best_station == "a"  # as well as b, and sooner
    assert found[1, 1].device == "d"


def test_gateways_are_told_by_overlap_first_arrival_delay_and_repeats(found):
    assert (found["shared_uplinks"], found["doubled_uplinks"], found["gateways"]) == (4, 2, 4)
    a, b, c = sorted(found["gateways_shown"], key=lambda row: row["station"])[:3]
    assert [row["station"] for row in (a, b, c)] == ["a", "b", "c"]
    assert (a["receptions"], a["uplinks"], a["shared"], a["best"]) == (6, 4, 3, 2)
    assert (a["repeated_uplinks"], a["echoes"], a["resubmissions"]) == (2, 1, 1)
    assert (a["timed"], a["first"], a["first_share"]) == (3, 3, 1.0)  # nobody else heard the third
    assert (b["timed"], b["first"], b["own_clock"]) == (3, 1, 3)
    assert b["behind_first_ms"] == {"p50": 200, "p95": 200, "p99": 200}
    assert (c["timed"], c["behind_first_ms"]["p50"], c["best"]) == (1, 700, 0)


def test_losses_are_told_from_resets_and_roll_overs_and_the_worst_come_first(found):
    by_device = {row["device"]: row for row in found["losses"]["shown"]}
    assert list(by_device)[:4] == ["loses", "rolls", "anew", "restarts"]
    assert (len(by_device), found["devices"]) == (5, 12)
    lost = by_device["loses"]
    assert (lost["lost"], lost["gaps"], lost["longest_gap"], lost["loss_share"]) == (4, 2, 2, 0.4444)
    assert (by_device["restarts"]["resets"], by_device["restarts"]["lost"]) == (1, 0)
    assert (by_device["rolls"]["roll_overs"], by_device["rolls"]["lost"]) == (1, 1)


def test_replays_are_suspected_and_cost_no_losses(found):
    assert found["suspects"]["why"] == {"counter_fell_back": 3, "counter_jumped": 1, "frame_again": 1}
    assert [(row["device"], row["fcnt"]) for row in found["suspects"]["shown"]] == [
        ("forged", 9_000),
        ("very old", 5),
        ("very old", 6),
        ("old", 50),
        ("replayed", 101),
    ]
    assert (found["lost"], found["losses"]["gaps"]) == (5, 3)


def test_what_strangers_lost_is_not_told(found):
    assert (found["foreign_devices"], found["foreign_uplinks"]) == (1, 3)
    assert found["loss_share"] == round(5 / (found["uplinks"] - 3 + 5), 4)


def test_the_report_is_plain_and_its_books_balance(found):
    assert json.loads(json.dumps(found)) == found
    assert found["tally"]["first"] == found["uplinks"]
    assert found["tally"]["balanced"]
    chosen = next(row for row in found["windows"] if row["window_ms"] == found["settings"]["expiry_ms"])
    assert (chosen["uplinks"], chosen["repeats"]) == (found["uplinks"], found["tally"]["repeat"])


@pytest.mark.parametrize("sliding", [True, False])
def test_what_another_window_would_have_caught_is_what_the_engine_says_with_it(spark, sliding):
    lags = [0, 90, 100, 250, 1_200, 1_900, 6_000, 15_999, 16_000, 61_000, 125_000, 700_000, 4_300_000]
    rows = [row for n in (1, 2) for lag in lags[n:] for row in heard("d", n, n * 10_000_000 + lag, A)]
    others = heard("d", 1, 10_000_050, A, own=False)  # without a clock: only among all of them
    receptions, found = what_if(table(spark, rows + others), WINDOWS_MS, sliding=sliding)
    assert receptions == len(rows) + 1
    for window, (every, uplinks) in zip(WINDOWS_MS, found, strict=True):
        assert every >= uplinks
        stations = Stations(Sightings(expiry_ms=window, sliding=sliding))
        said = [stations.data(row[0].encode(), row[1], Strategy.NONE, row[2])[1] for row in rows]
        assert uplinks == said.count(NEW_FRAME)


def test_a_file_without_receptions_is_refused(spark, tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}\n')
    with pytest.raises(Misuse, match="1 rows, none of a shape that is known"):
        report(spark, str(tmp_path / "x.json"), say=lambda text: None)
