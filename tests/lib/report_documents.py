"""Documents of runs as `onefold run` leaves them, made by hand: realistic, always the same, and of any size."""

import random
from bisect import bisect_left
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any

from onefold.tally import Tally
from onefold.verdict import Answer, Verdict
from onefold.wording import ENGINES

START, HOUR = 1_700_000_000_000, 3_600_000
CHAINS = ENGINES["chains"].rules


def run(*, chains: int = 500, strips: int = 60, ranges: int = 12, bins: int = 60, seed: int = 1) -> dict[str, Any]:
    """A batch run over an hour of traffic: copies, an outage in the middle, some broken rows; audited, and right."""
    return deepcopy(_run(chains, strips, ranges, bins, seed))


@cache
def _run(chains: int, strips: int, ranges: int, bins: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    columns = [_column(chance, i, bins) for i in range(bins)]
    first, repeat, _, reject = (sum(column) for column in zip(*columns, strict=True))
    tally = Tally(
        first + repeat + reject,
        {
            Answer(Verdict.FIRST, "in_order"): first - 3 * chains,
            Answer(Verdict.FIRST, "new_chain"): chains,
            Answer(Verdict.FIRST, "opens_gap"): chains,
            Answer(Verdict.FIRST, "fills_gap"): chains,
            Answer(Verdict.REPEAT, "seen"): repeat,
            Answer(Verdict.REJECT, "bad_number"): reject - reject // 3,
            Answer(Verdict.REJECT, "jump_too_far"): reject // 3,
        },
    )
    rows = [_strip(chance, i, ranges) for i in range(strips)]
    missing = sum(row["ranges"] for row in rows)
    return {
        "format": 1,
        "complete": True,
        "tally": tally.to_dict(),
        "engine": "chains",
        "keys": chains,
        "missing_ranges": missing,
        "missing_ranges_shown": [
            {**row["key"], "lower_timestamp": low, "lower_sequence": 0, "upper_timestamp": up, "upper_sequence": 0}
            for row in rows[:5]
            for low, up, _ in row["shown"][:2]
        ],
        "state_entries": chains + missing,
        "others": 0,
        "seconds": 24.613,
        "path": "/data/out/run",
        "audit": audit(first, repeat, reject),
        "settings": {
            "source": {"path": "/data/traffic/messages", "format": "parquet", "options": {"password": "open sesame"}},
            "judge": {"engine": "chains", "key": ["stream", "partition"], "floor": "open", "gap_count_max": 10_000},
            "publish": {"path": "/data/out/run", "strategy": "drop"},
        },
        "figures": {
            "timeline": {"column": "timestamp", "time": True, "from": START, "to": START + HOUR, "bins": columns,
                         "outside": [0, 0, 0, 25]},
            "worst_keys": [
                {"key": _key(i), "counts": [400 - 9 * i, 320 - 14 * i, 0, 9 - i // 3]} for i in range(min(20, strips))
            ],
            "strips": {"keys": chains, "column": "timestamp", "time": True, "rows": rows},
            "lags": _lags(chance, repeat),
            "rejects": [
                {"reason": "bad_number", "count": reject - reject // 3, "rows": [_row(i, "twelve") for i in range(5)]},
                {"reason": "jump_too_far", "count": reject // 3, "rows": [_row(i, 2**43) for i in range(3)]},
            ],
            "phases": [["starting Spark", 5.2], ["judging", 9.4], ["keeping the books", 1.1],
                       ["finding what is missing", 2.9], ["publishing", 0.4], ["auditing", 4.1]],
            "bytes_in": 18_400_000,
            "versions": {"onefold": "0.2.0", "python": "3.11.2", "spark": "4.3.0", "java": "21.0.8"},
        },
    }  # fmt: skip


def audit(first: int, repeat: int, reject: int, **other: Any) -> dict[str, Any]:
    rows, same = first + repeat + reject, "9f2c41d07be85a63d6a40b1c"
    return {
        "agrees": True, "source": rows, "published": rows, "fingerprint_source": same, "fingerprint_published": same,
        "missing": 0, "surplus": 0, "ids": first, "twice": 0, "repeats": repeat, "orphans": 0, "orphans_by_rule": 0,
        "left_out": [], "shown": {}, **other,
    }  # fmt: skip


def clean() -> dict[str, Any]:
    """A run with nothing to look at."""
    document = run(strips=0)
    tally = Tally(4_000, {Answer(Verdict.FIRST, "in_order"): 4_000})
    figures = {**document["figures"], "rejects": [], "worst_keys": [], "strips": None}
    figures["lags"] = {"why_not": "no arrival column: set judge.arrival"}
    document |= {"tally": tally.to_dict(), "missing_ranges": 0, "missing_ranges_shown": [], "figures": figures}
    return document | {"audit": audit(4_000, 0, 0)}


def broken() -> dict[str, Any]:
    """A run that lost seven rows, which no run may."""
    document = run()
    tally = Tally.from_dict(document["tally"])
    document["tally"] = Tally(tally.received + 7, dict(tally)).to_dict()
    return document


def torn() -> dict[str, Any]:
    """A run whose output was changed after it."""
    document = run()
    ids = [{**_key(i), "timestamp": START + i, "sequence": 0} for i in range(3)]
    wrong = {
        "agrees": False,
        "missing": 3,
        "twice": 1,
        "orphans": 2,
        "fingerprint_published": "00aa41d07be85a63d6a40b1c",
    }
    document["audit"] |= wrong | {"shown": {"missing": ids, "twice": ids[:1], "orphans": ids[:2]}}
    return document


def old() -> dict[str, Any]:
    """A run as the first versions left it."""
    document = run()
    return {name: value for name, value in document.items() if name not in ("figures", "audit", "settings")}


def stream(batches: int = 80) -> dict[str, Any]:
    """A stream, batch by batch."""
    chance = random.Random(3)
    rows: list[Any] = []
    for i in range(batches):
        counts = [2_000 + chance.randrange(300), 200 + chance.randrange(60), 0, chance.randrange(4)]
        rows.append([i, sum(counts), 0.8 + chance.random() / 4, 40_000 + 300 * i, counts])
    first, repeat, _, reject = (sum(row[4][k] for row in rows) for k in range(4))
    answers = {Answer(Verdict.FIRST, "in_order"): first, Answer(Verdict.REPEAT, "seen"): repeat}
    tally = Tally(first + repeat + reject, {**answers, Answer(Verdict.REJECT, "bad_number"): reject})
    return {"tally": tally.to_dict(), "engine": "chains", "batches": rows, "path": "/data/out/stream"}


def diff() -> dict[str, Any]:
    """Two tables of a million rows with a few differences."""
    return {
        "equal": False, "rows_a": 1_000_000, "rows_b": 999_990, "fingerprint_a": "a1" * 12, "fingerprint_b": "b2" * 12,
        "ranges": 4_096, "ranges_differing": 17, "only_a": 12, "only_b": 2, "differing": 3, "doubled": 1,
        "repeated_a": 0, "repeated_b": 1, "copied": 0,
        "shown": {"only_a": [{"id": i} for i in range(10)], "only_b": [{"id": 77}, {"id": 78}], "differing": [
            {"id": 5, "differs_in": ["body"], "row_a": {"body": "x", "n": 1}, "row_b": {"body": "y", "n": 1}}],
            "doubled": [{"id": 6, "rows_a": 1, "rows_b": 3}]},
    }  # fmt: skip


def peer() -> dict[str, Any]:
    """A table against a peer, which was asked over a wire."""
    return {
        "equal": False, "rows": 1_000_005, "rows_peer": 1_000_007, "only_here": 5, "only_there": 7, "rounds": 3,
        "bytes_up": 1_159, "bytes_down": 717,
        "shown": {"only_here": [{"id": 1}, {"id": 2}], "only_there": [{"id": "ab" * 32}]},
    }  # fmt: skip


def _key(i: int) -> dict[str, Any]:
    return {"stream": f"plant-{i % 7}", "partition": i % 3, "publisher": f"sensor-{i:04}", "chain": f"c{i % 2}"}


def _column(chance: random.Random, i: int, bins: int) -> list[int]:
    outage = 0.25 if 0.45 < i / bins < 0.52 else 1
    storm = 4 if 0.52 <= i / bins < 0.58 else 1
    first = int((2_400 + chance.randrange(200)) * outage)
    return [first, int(first * 0.16 * storm) + chance.randrange(40), 0, 6 + chance.randrange(8)]


def _strip(chance: random.Random, i: int, ranges: int) -> dict[str, Any]:
    low, high = START + chance.randrange(60_000), START + HOUR - chance.randrange(60_000)
    shown: list[Any] = []
    at = low
    for _ in range(max(1, ranges - i // 8)):
        at += chance.randrange(2 * HOUR // (ranges + 1)) + 1
        if at >= high:
            break
        shown.append([at, min(high, at + chance.randrange(20_000) + 500), "missing"])
        at = shown[-1][1]
    outage = START + HOUR * 45 // 100
    shown = sorted([entry for entry in shown if not outage <= entry[0] < outage + 200_000] + [
        [outage + chance.randrange(20_000), outage + 190_000 + chance.randrange(20_000), "missing"]])[:40]  # fmt: skip
    if i % 9 == 0:
        shown[0][2] = "forgotten"
    lost = sum(up - lower for lower, up, _ in shown)
    return {"key": _key(i), "from": low, "to": high, "ranges": len(shown) + (i % 4 == 0) * 7, "shown": shown,
            "missing": round(min(1.0, lost / (high - low)), 4)}  # fmt: skip


def _lags(chance: random.Random, count: int) -> dict[str, Any]:
    lags = sorted(min(int(chance.lognormvariate(7.0, 1.6)), 900_000) for _ in range(count))
    edges = [0, *(2**i for i in range(21))]
    bins = [[a, b, bisect_left(lags, b) - bisect_left(lags, a)] for a, b in pairwise(edges)]
    quantiles = {q: lags[min(count - 1, int(float(q) * count))] for q in ("0.5", "0.9", "0.99", "0.999", "0.9999", "1")}
    return {"column": "arrival", "count": count, "bins": bins, "quantiles": quantiles, "window_ms": None}


def _row(i: int, number: Any) -> dict[str, Any]:
    return {**{name: str(value) for name, value in _key(i).items()}, "timestamp": str(number), "sequence": str(i),
            "previous_timestamp": None, "payload": '{"t": 21.5, "unit": "C"}'}  # fmt: skip
