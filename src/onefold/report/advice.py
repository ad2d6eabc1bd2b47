"""The advice on a window as text: how late copies come, what each window costs and misses, which one to take.

Input is the document of ``onefold window --json``. Spans are rounded up, so a window that is taken from the text
catches no less.
"""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from onefold.clock import SECONDS_BELOW
from onefold.report.agreement import row_text
from onefold.report.text import SPANS, foreign, many, size, table

WHY: Final = {
    "malformed": "could not be read",
    "no_id": "a null in the key",
    "no_time": "no time",
    "time_out_of_range": "a time outside of the years 1 to 9999, in milliseconds",
    "no_order": "no place in the order",
}

TAIL_TIMES: Final = 10
"""From this ratio of windows on, a line says how much the last copies cost."""
COLUMNS_CHARS_MAX: Final = 200
WORST_SHOWN: Final = 5


def report(advice: Mapping[str, Any]) -> Group:
    parts: list[Text | Table] = [*summary(advice)]
    if advice["windows"]:
        parts += [Text(), windows(advice), *notes(advice), Text()]
    return Group(*parts, Text(recommendation(advice), style="bold"))


def summary(advice: Mapping[str, Any]) -> Iterator[Text]:
    copies, usable = advice["copies"], advice["ids"] + advice["copies"]
    share = f" ({100 * copies / usable:.1f} %)" if copies else ""
    counts = f"{many(advice['ids'], 'id')}, {many(copies, 'copy', 'copies')}{share}"
    yield Text(f"{many(advice['rows'], 'row')}: {counts}")
    order = "" if advice["order"] is None else f"; the order: {advice['order']}"
    yield foreign(f"an id: {', '.join(advice['key'])}; the time: {advice['time']}{order}", COLUMNS_CHARS_MAX)
    for reason, count in advice["unusable"].items():
        yield Text(f"not used: {many(count, 'row')}: {WHY[reason]}", style="yellow")
    if advice["rows"] and advice["from_ms"] >= 0 and advice["to_ms"] < SECONDS_BELOW:
        yield Text("all times are before 1973: if they are in seconds, all spans here are too short", style="yellow")
    if advice["skewed"]["copies"]:
        most = span(advice["skewed"]["most_ms"])
        yield Text(
            f"copies with a time before that of their first: {advice['skewed']['copies']:,}, by up to {most}: "
            "clocks do not agree; their lag counts as 0",
            style="yellow",
        )
    if copies:
        what = "is behind the newest time before it" if by_shared_time(advice) else "comes after its first"
        yield Text(f"a copy {what}: {_spread(advice['lags'])}")
    if advice.get("apart"):
        yield Text(
            f"{many(advice['apart'], 'copy has', 'copies have')} another time than the first: by {advice['time']} they "
            "count again, unless they fall into the same sixteenth of the window; leave the time out",
            style="yellow",
        )
    if advice["late"] is not None:
        yield Text(f"a row is behind the latest time before it: {_spread(advice['late'])}")


def by_shared_time(advice: Mapping[str, Any]) -> bool:
    return advice.get("engine") == "ids" and advice["order"] is not None


def windows(advice: Mapping[str, Any]) -> Table:
    is_shared = by_shared_time(advice)
    leaks = (">unsure", ">late") if is_shared else (">leaks",)
    names = (">to catch", ">window", *leaks, ">ids at once", ">state", ">watermark", ">state")
    rows = []
    for row in advice["windows"]:
        leaked = (f"{row['leaked']:,}", *([f"{row['unsure']:,}"] if is_shared else []))
        window = (span(row["window_ms"]), *leaked, f"{row['ids']:,}", size(row["bytes"]))
        rows.append([_percent(row["share"]), *window, span(row["watermark_ms"]), size(row["watermark_bytes"])])
    return table(*names, rows=rows, no_wrap=True)


def notes(advice: Mapping[str, Any]) -> Iterator[Text]:
    intervals = advice["intervals"]
    is_shared, is_ids = by_shared_time(advice), advice.get("engine") == "ids"
    if is_ids:
        pass
    elif "why_not" in intervals:
        yield Text(f"interval memory: {intervals['why_not']}")
    else:
        entries = f"{many(intervals['chains'], 'chain')} and {many(intervals['gaps'], 'gap')}"
        yield Text(f"interval memory: {entries}, {size(intervals['bytes'])}; nothing leaks, however late")
    yield Text(f"a set of all ids: {advice['ids']:,} ids, {size(advice['all_ids_bytes'])} and growing")
    low, high = (edge(advice["windows"], key=lambda row: row["share"]) for edge in (min, max))
    times = high["window_ms"] / max(1, low["window_ms"])
    if times >= TAIL_TIMES:
        shares = f"from {_percent(low['share'])} to {_percent(high['share'])}"
        more = high["ids"] / max(1, low["ids"])
        yield Text(f"the tail is long: {shares} the window grows {times:,.0f} times, its state {more:,.1f} times")
    if is_shared:
        yield Text(
            "unsure: copies older than the window; late: new events older than the window, also unsure", style="dim"
        )
    else:
        yield Text("leaks: copies that come after the window and count again, at most", style="dim")
    if is_ids:
        yield Text("state: at the peak, 16 bytes an id, 24 with content", style="dim")
    else:
        yield Text("state: at the peak, 24 bytes an id; a store adds to it, Spark's about 70 bytes an id", style="dim")
    yield Text("watermark: the delay for dropDuplicatesWithinWatermark, which keeps ids twice as long", style="dim")
    if advice["order"] is None:
        yield Text("  if rows come in the order of their time; if not, name the order with --order", style="dim")


def recommendation(advice: Mapping[str, Any]) -> str:
    if not advice["windows"]:
        return "there are no copies: this data needs no window"
    best, intervals = max(advice["windows"], key=lambda row: row["share"]), advice["intervals"]
    if advice.get("engine") == "ids" and advice["order"] is None and not advice["lags"]["most_ms"]:
        return (
            f"every copy has the {advice['time']} of its first, so it is when the event happened: name the column with "
            "when a row came in, --order COLUMN"
        )
    ids = f"{many(best['ids'], 'id')} at once"
    catches = f"catches {best['caught']:,} of {many(advice['copies'], 'copy', 'copies')}"
    leaks = f"leaks {best['leaked']:,}"
    if advice.get("engine") == "ids":
        if by_shared_time(advice):
            late = f" and {many(best['unsure'], 'late event')}" if best["unsure"] else ""
            leaks = f"leaves {best['leaked']:,}{late} unsure"
        return f'take window = "{setting(best["window_ms"])}": it {catches}, {leaks}, and remembers {ids}'
    costs = f"{catches}, {leaks}, and remembers {ids}"
    window = f"a window of {span(best['window_ms'])} ({best['window_ms']:,} ms)"
    if "why_not" not in intervals and intervals["entries"] < best["ids"]:
        remember = many(intervals["entries"], "entry remembers", "entries remember")
        return f"judge by numbers: {remember} everything and nothing leaks; {window} {costs}"
    return f"take {window}: it {costs}"


def copies(answers: Mapping[str, Any]) -> Iterator[Text | Table]:
    """The copies that a check of ids found: how many, from where, how late, which ids, which conflicts."""
    if not answers["copies"]:
        return
    worst = answers["worst"]
    yield Text(f"{many(answers['copies'], 'copy', 'copies')} of {many(answers['ids'], 'id')}", style="bold")
    named = [f"{row_text(each['id'])}: {each['copies']:,}" for each in worst[:WORST_SHOWN] if each["copies"] > 1]
    what = "most copies" if named else "ids with copies"
    named = named or [row_text(each["id"]) for each in worst[:WORST_SHOWN]]
    more = "; ... (onefold run keeps all copies, in repeats/)" if answers["ids"] > len(named) else ""
    yield foreign(f"{what}: {'; '.join(named)}", 2 * COLUMNS_CHARS_MAX).append(more)
    through, places = answers["through"], answers["from"]
    if len(places) > 1 or places[0]["first"] != places[0]["copy"]:
        rows = [(foreign(each["first"]), foreign(each["copy"]), f"{each['copies']:,}") for each in places]
        yield table(f"first in {through}", f"again in {through}", ">copies", rows=rows)
    elif places[0]["first"]:
        yield foreign(f"all within {through} {places[0]['first']}", COLUMNS_CHARS_MAX)
    lags = answers["lags"]
    if "why_not" in lags:
        yield foreign(f"how long after their firsts: {lags['why_not']}", COLUMNS_CHARS_MAX)
    else:
        yield table("after its first", ">copies", ">share", rows=_within(lags))
        caught = (f"{_percent(each['share'])} by {span(each['window_ms'])}" for each in lags["windows"])
        yield Text(f"a window would have caught: {', '.join(caught)}")
    conflicts = answers["conflicts"]
    if not conflicts["columns"]:
        yield Text("content was not compared; --payload COLUMN,... compares it")
    if conflicts["copies"]:
        columns = ", ".join(f"{name} ({count:,})" for name, count in conflicts["columns"].items() if count)
        text = f"{many(conflicts['copies'], 'copy', 'copies')} with other content than the first, in: {columns}"
        yield Text(foreign(text, COLUMNS_CHARS_MAX).plain, style="red")
        yield from (foreign(f"  {row_text(row)}", 2 * COLUMNS_CHARS_MAX) for row in conflicts["shown"][:WORST_SHOWN])


def _within(lags: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The rows of the table of lags, up to the last that adds copies."""
    before, total = 0, lags["count"]
    for ms, count in [*lags["within"], (lags["most_ms"], total)]:
        if count > before:
            words = "at once" if ms == 0 else f"within {span(min(ms, lags['most_ms']))}"
            yield words, f"{count:,}", f"{100 * count / total:.2f} %"
        before = count


def span(ms: int) -> str:
    """A duration in its best unit, rounded up.

    >>> span(950), span(59_983), span(60_000), span(5_400_001), span(0)
    ('950 ms', '59.99 s', '1 min', '1.51 h', '0 ms')
    """
    unit, length = next((each for each in SPANS if ms >= each[1]), SPANS[-1])
    return f"{ceil(100 * ms / length) / 100:g} {unit}" if ms < 10_000 * length else f"{ms // length + 1:,} {unit}"


def setting(ms: int) -> str:
    """A window as a setting, rounded up by a tenth at most.

    >>> setting(0), setting(7_200_000), setting(1_634_000), setting(12_345)
    ('1 second', '2 hours', '28 minutes', '13 seconds')
    """
    for unit, length in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if ms >= 10 * length or (ms and ms % length == 0):
            return many(-(-ms // length), unit).replace(",", "")
    return many(max(1, -(-ms // 1_000)), "second")


def _spread(lags: Mapping[str, Any]) -> str:
    half, most = span(lags["quantiles"]["0.5"]), span(lags["most_ms"])
    return f"half within {half}, 90 % within {span(lags['quantiles']['0.9'])}, all within {most}"


def _percent(share: float) -> str:
    """A share in percent, without rounding.

    >>> _percent(0.9999), _percent(0.29), _percent(1)
    ('99.99 %', '29 %', '100 %')
    """
    return f"{100 * share:.10g} %"
