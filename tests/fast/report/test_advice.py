"""The advice on a window, word by word."""

import io

from rich.console import Console

from onefold.report import advice

WINDOW = {"share": 0.99, "window_ms": 4_200, "caught": 990, "leaked": 10, "leaked_share": 0.01, "ids": 8_000,
          "bytes": 192_000, "watermark_ms": 4_201, "watermark_ids": 15_000, "watermark_bytes": 360_000}  # fmt: skip
LONG = {**WINDOW, "share": 0.9999, "window_ms": 90_061_001, "caught": 1_000, "leaked": 0, "ids": 90_000,
        "bytes": 2_160_000, "watermark_ms": 90_061_002, "watermark_bytes": 2_400_000}  # fmt: skip
NUMBERS = {"why_not": "it needs numbered messages"}


def found(*windows, **more):
    spread = {"count": 1_000, "most_ms": 90_061_001, "quantiles": {"0.5": 40, "0.9": 900}, "bins": []}
    return {
        "rows": 101_000, "ids": 100_000, "copies": 1_000 if windows else 0, "unusable": {}, "key": ["id"],
        "time": "arrival", "order": None, "from_ms": 1_700_000_000_000, "to_ms": 1_700_000_900_000, "late": None,
        "skewed": {"copies": 0, "most_ms": 0}, "lags": spread, "windows": list(windows), "intervals": NUMBERS,
        "all_ids_bytes": 2_400_000, **more,
    }  # fmt: skip


def lines(told) -> list[str]:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(advice.report(told), soft_wrap=True)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_windows_their_cost_and_the_recommendation():
    assert lines(found(WINDOW, LONG)) == [
        "101,000 rows: 100,000 ids, 1,000 copies (1.0 %)",
        "an id: id; the time: arrival",
        "a copy comes after its first: half within 40 ms, 90 % within 900 ms, all within 1.05 d",
        "",
        "to catch  window  leaks  ids at once    state  watermark   state",
        "    99 %   4.2 s     10        8,000   192 kB     4.21 s  360 kB",
        " 99.99 %  1.05 d      0       90,000  2.16 MB     1.05 d  2.4 MB",
        "interval memory: it needs numbered messages",
        "a set of all ids: 100,000 ids, 2.4 MB and growing",
        "the tail is long: from 99 % to 99.99 % the window grows 21,443 times, its state 11.2 times",
        "leaks: copies that come after the window and count again, at most",
        "state: at the peak, 24 bytes an id; a store adds to it, Spark's about 70 bytes an id",
        "watermark: the delay for dropDuplicatesWithinWatermark, which keeps ids twice as long",
        "  if rows come in the order of their time; if not, name the order with --order",
        "",
        "take a window of 1.05 d (90,061,001 ms): it catches 1,000 of 1,000 copies, leaks 0, and remembers 90,000 ids"
        " at once",
    ]


def test_interval_memory_is_recommended_where_it_is_smaller():
    kept = {"chains": 40, "gaps": 2, "entries": 42, "bytes": 992}
    told = lines(found(WINDOW, intervals=kept))
    assert "interval memory: 40 chains and 2 gaps, 992 B; nothing leaks, however late" in told
    assert told[-1].startswith("judge by numbers: 42 entries remember everything and nothing leaks; a window of 4.2 s ")
    many = {**kept, "entries": 9_000}
    assert advice.recommendation(found(WINDOW, intervals=many)).startswith("take a window of 4.2 s (4,200 ms): it ")


def test_what_is_odd_is_told():
    late = {"count": 5, "most_ms": 10, "quantiles": {"0.5": 0, "0.9": 3}, "bins": []}
    odd = found(WINDOW, unusable={"no_time": 3, "no_id": 1}, order="offset", late=late, to_ms=1_700_000_000, from_ms=5,
                skewed={"copies": 7, "most_ms": 61_000})  # fmt: skip
    assert lines(odd)[1:8] == [
        "an id: id; the time: arrival; the order: offset",
        "not used: 3 rows: no time",
        "not used: 1 row: a null in the key",
        "all times are before 1973: if they are in seconds, all spans here are too short",
        "copies with a time before that of their first: 7, by up to 1.02 min: clocks do not agree; their lag"
        " counts as 0",
        "a copy comes after its first: half within 40 ms, 90 % within 900 ms, all within 1.05 d",
        "a row is behind the latest time before it: half within 0 ms, 90 % within 3 ms, all within 10 ms",
    ]


def test_without_copies_nothing_is_recommended():
    assert lines(found())[-1] == "there are no copies: this data needs no window"


def test_names_from_the_data_cannot_act_on_the_terminal():
    told = lines(found(WINDOW, key=["\x1b[2J[red]x[/red]\nnew line\u202e"], time="\x07t"))
    assert told[1] == "an id: ?[2J[red]x[/red]?new line?; the time: ?t"


def test_spans_are_rounded_up():
    assert [advice.span(ms) for ms in (0, 999, 1_000, 1_001, 60_001, 86_400_000 * 20_000 + 1)] == [
        "0 ms", "999 ms", "1 s", "1.01 s", "1.01 min", "20,001 d",
    ]  # fmt: skip


def of_ids(**more):
    late = {"count": 101_000, "most_ms": 9_000_000, "quantiles": {"0.5": 0, "0.9": 30}, "bins": []}
    row = {**WINDOW, "window_ms": 8_856_000, "unsure": 3}
    return found(row, engine="ids", order="at", late=late, apart=2, **more)


def test_windows_of_ids_are_those_of_the_engine():
    told = lines(of_ids())
    assert (
        "a copy is behind the newest time before it: half within 40 ms, 90 % within 900 ms, all within 1.05 d" in told
    )
    assert any(
        line.startswith("2 copies have another time than the first: by arrival they count again") for line in told
    )
    assert "to catch  window  unsure  late  ids at once   state  watermark   state" in told
    assert "state: at the peak, 16 bytes an id, 24 with content" in told
    assert not any("interval memory" in line for line in told)
    assert told[-1] == (
        'take window = "148 minutes": it catches 990 of 1,000 copies, leaves 10 and 3 late events unsure,'
        " and remembers 8,000 ids at once"
    )


COPIES = {
    "copies": 30, "ids": 20, "through": "file", "worst": [{"id": {"id": "a\x1b[2J"}, "copies": 9}],
    "from": [{"first": "1.json", "copy": "2.json", "copies": 30}],
    "lags": {"column": "at", "count": 30, "most_ms": 90_000, "within": [[0, 0], [1_000, 6], [60_000, 6], [600_000, 30]],
             "windows": [{"share": 0.99, "window_ms": 90_000, "caught": 30, "leaked": 0}]},
    "conflicts": {"copies": 2, "columns": {"sum": 2, "note": 0}, "shown": [
        {"id": "a", "differs_in": ["sum"], "row_a": {"sum": "1"}, "row_b": {"sum": None}}]},
}  # fmt: skip


def test_what_a_check_says_of_copies():
    console = Console(file=io.StringIO(), width=80, highlight=False)
    for part in advice.copies(COPIES):
        console.print(part, soft_wrap=True)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [  # type: ignore[attr-defined]
        "30 copies of 20 ids",
        "most copies: id a?[2J: 9; ... (onefold run keeps all copies, in repeats/)",
        "first in file  again in file  copies",
        "1.json         2.json             30",
        "after its first  copies     share",
        "within 1 s            6   20.00 %",
        "within 1.5 min       30  100.00 %",
        "a window would have caught: 99 % by 1.5 min",
        "2 copies with other content than the first, in: sum (2)",
        "  id a: sum: 1 -> null",
    ]
    assert list(advice.copies({"copies": 0, "ids": 0})) == []
    once = {**COPIES, "ids": 1, "worst": [{"id": {"id": "a"}, "copies": 1}]}
    assert str(list(advice.copies(once))[1]) == "ids with copies: id a"
    only = {**COPIES, "from": [{"first": "1.json", "copy": "1.json", "copies": 30}], "lags": {"why_not": "no time"}}
    words = [str(part) for part in advice.copies(only)]
    assert "all within file 1.json" in words
    bare = {**COPIES, "conflicts": {"copies": 0, "columns": {}, "shown": []}}
    assert str(list(advice.copies(bare))[-1]).startswith("content was not compared; --payload")
    assert "how long after their firsts: no time" in words
