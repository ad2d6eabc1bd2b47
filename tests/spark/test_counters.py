"""What was lost of a device's frames, by its counters."""

from collections import Counter
from collections.abc import Sequence

from onefold.spark import ReceptionColumns
from onefold.spark.receptions.counters import counter_steps, missing_counters

LINES: dict[str, tuple[Sequence[int | None], Sequence[str | None] | None, int]] = {
    "a gap": ([5, 6, 9], ["next", "gap"], 2),
    "late ones fill it": ([105, 108, 106, 107, 109], ["next"] * 4, 0),
    "late ones fill a part of it": ([100, 105, 103, 106], ["gap", "gap", "next"], 3),
    "a restart": ([900, 901, 0, 1, 3], ["next", "reset", "next", "gap"], 1),
    "two restarts at once": ([0, 1, 0, 1, 0], ["next", "reset", "next", "reset"], 0),
    "16 bits roll over": ([65_533, 65_535, 0, 3, 4], ["gap", "roll_over", "gap", "next"], 3),
    "16 bits roll over with a loss": ([65_534, 1], ["roll_over"], 2),
    "16 bits roll over with a great loss": ([65_000, 300], ["roll_over"], 835),
    "a restart not far below the edge": ([60_000, 60_001, 0, 1], ["next", "reset", "next"], 0),
    "late around a roll-over": ([65_534, 0, 65_535, 1], ["next", "roll_over", "next"], 0),
    "32 bits go on": ([65_534, 65_535, 65_536, 65_538], ["next", "next", "gap"], 1),
    "32 bits roll over": ([2**32 - 2, 2**32 - 1, 1], ["next", "roll_over"], 1),
    "one replay": ([50, 51, 100, 101, 50, 102], ["next", "gap", "next", "again", "next"], 48),
    "a jump too far is a new line": ([5, 6, 30_000, 30_001], ["next", "reset", "next"], 0),
    "late around a roll-over, of more": ([65_532, 65_534, 0, 65_533, 65_535, 2, 0, 1, 3], None, 0),
    "late right behind the edge": ([65_534, 65_535, 1, 0, 2], ["next", "roll_over", "next", "next"], 0),
    "an old one": ([1_000, 1_001, 5, 1_002, 1_003], ["next", "stray", "next", "next"], 0),
    "old ones": ([1_000, 1_001, 5, 6, 1_002, 1_003], ["next", "stray", "stray", "next", "next"], 0),
    "old ones here and there": ([1_000, 1_001, 500, 5, 501, 1_002], ["next", *["stray"] * 3, "next"], 0),
    "old ones again and again": ([40_000, 5, 3, 40_001, 6, 40_002], ["stray"] * 3 + ["next"] * 2, 0),
    "kept from before": ([1_000, 1_001, 1_002, 980, 981, 1_003, 1_004], ["next"] * 4 + ["stray"] * 2, 0),
    "kept ones fill their gap": ([100, 150, 151, 120, 121, 152], ["gap", "next", "gap", "next", "next"], 47),
    "kept ones come last": ([10, 71, *range(11, 20), 72], ["next"] * 10 + ["gap"], 51),
    "forged ones": ([30, 31, 9_000, 20_000, 32, 33], ["next", "stray", "stray", "next", "next"], 0),
    "a forged one that goes round": ([6, 40_000, 7, 8], ["stray", "next", "next"], 0),
    "a restart that goes on": ([10, 11, 12, *range(12), 14], ["next"] * 13 + ["reset", "gap"], 2),
    "a restart far above zero": ([40, 41, 42, 43, 20, 21, 22], ["next"] * 5 + ["reset"], 0),
    "a restart with a loss": ([30, 31, 0, 1, 50, 51], ["next", "reset", "next", "gap", "next"], 48),
    "a long excursion is a line": ([1_000, *range(20), 1_001], ["reset"] + ["next"] * 19 + ["gap"], 981),
    "no counter": ([5, None, 6], [None, "next"], 0),
}


def test_lost_frames_are_told_from_roll_overs_restarts_and_late_ones(spark):
    rows = [(name, n, at) for name, (numbers, _, _) in LINES.items() for at, n in enumerate(numbers)]
    df = spark.createDataFrame(rows, "device string, fcnt long, at long").repartition(3)
    found = counter_steps(df, ["device"], "fcnt", "at").collect()
    for name, (numbers, steps, lost) in LINES.items():
        mine = [row for row in found if row.device == name]
        assert len(mine) == len(numbers)
        assert steps is None or Counter(row.step for row in mine) == Counter([None, *steps]), name
        assert sum(row.lost for row in mine) == lost, name
    late = {(row.fcnt, row.previous, row.lost) for row in found if row.device == "late ones fill a part of it"}
    assert late == {(100, None, 0), (103, 100, 2), (105, 103, 1), (106, 105, 0)}


def test_a_burst_of_replays_loses_nothing_if_frames_are_known_by_name(spark):
    numbers = [50, 51, 52, 53, 50, 51, 52, 54, 56]
    rows = [("d", n, at, f"frame {n}", "data") for at, n in enumerate(numbers)] + [("d", 9, 0, "join", "join")]
    firsts = spark.createDataFrame(rows, "device string, fcnt int, time_ms long, frame string, kind string")
    steps = counter_steps(firsts.where("kind = 'data'"), ["device"], "fcnt", "time_ms", frame=["frame"])
    assert Counter(row.step for row in steps.collect()) == {None: 1, "next": 4, "again": 3, "gap": 1}
    assert [tuple(row) for row in missing_counters(firsts).collect()] == [("d", 54, 55)]
    assert missing_counters(firsts, ReceptionColumns(fcnt=None)).collect() == []
