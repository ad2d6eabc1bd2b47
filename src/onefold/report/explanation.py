"""What became of a message, a chain, a device or a producer, as a person reads it. Input is the plain form, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from onefold.report.text import COLOURS, foreign, many, moment, ranges, span
from onefold.verdict import Answer, Verdict
from onefold.wording import ENGINES


def with_rules(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same, and in every row the rule behind its verdict, and how its arrival is read."""
    first: dict[str, int] = {}
    shown = []
    for row in found["shown"]:
        rule = _rule(found["engine"], row["verdict"], row["reason"])
        when = _when(found["engine"], row, first)
        shown.append({**row, "rule": rule, "arrived": when})
    counts = [{**line, "rule": _rule(found["engine"], line["verdict"], line["reason"])} for line in found["counts"]]
    return {**found, "shown": shown, "counts": counts, "sentence": sentence(found)}


def sentence(found: Mapping[str, Any]) -> str:
    """All of it in a line.

    >>> sentence({"rows": 3, "missing_ranges": 1, "counts": [{"verdict": "FIRST", "count": 1},
    ...     {"verdict": "REPEAT", "count": 2}]})
    '3 rows: 1 FIRST, 2 REPEAT; 1 range is missing'
    """
    sums = {v: sum(line["count"] for line in found["counts"] if line["verdict"] == v) for v in Verdict}
    parts = ", ".join(f"{count:,} {verdict}" for verdict, count in sums.items() if count)
    rows = f"{many(found['rows'], 'row')}: {parts}" if found["rows"] else "no row"
    missing = found["missing_ranges"]
    return f"{rows}; {many(missing, 'range')} {'is' if missing == 1 else 'are'} missing" if missing else rows


def told(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A line for the whole, every row that is shown, the rules behind them, and what is missing."""
    if not found["rows"] and not found["missing_ranges"]:
        yield Text("nothing matches")
        columns = ", ".join(found["columns"])
        yield foreign(f"each word must equal a value of {columns}; COLUMN=VALUE names any column", 200)
        return
    if found["shown"]:
        yield _table(found)
        if found["rows"] > len(found["shown"]):
            yield Text(f"and {found['rows'] - len(found['shown']):,} more rows", style="dim")
        yield _rules(found)
    if found["missing_ranges"]:
        yield Text("never arrived:")
        yield ranges(found)
    yield Text(sentence(found), style="bold")


def _table(found: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    sourced = any(row["source"] is not None for row in found["shown"])
    names = ["message", "arrived", *(["through"] if sourced else []), "verdict", "reason", "in"]
    for name in names:
        table.add_column(name, no_wrap=name in ("verdict", "arrived"))
    for row in found["shown"]:
        verdict = Text(str(row["verdict"]), style=COLOURS.get(row["verdict"], ""))
        through = [foreign(row["source"])] if sourced else []
        table.add_row(_name(row), foreign(row["arrived"]), *through, verdict, foreign(row["reason"]),
                      foreign(row["found_in"]))  # fmt: skip
    return table


def _name(row: Mapping[str, Any]) -> Text:
    cells = {**row["key"], **row["message"]} if row["key"] or row["message"] else row["more"]
    return foreign(" ".join("null" if value is None else str(value) for value in cells.values()))


def _rules(found: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for line in found["counts"]:
        table.add_row(Text(f"{line['verdict']} ", style=COLOURS.get(line["verdict"], "")).append_text(
            foreign(line["reason"])), Text(line["rule"], style="dim"))  # fmt: skip
    return table


def _rule(engine: str | None, verdict: str, reason: str) -> str:
    """Of the engine; if it is not known, of the first that has such an answer."""
    if verdict not in list(Verdict):
        return ""
    answer = Answer(Verdict(verdict), reason)
    books = [ENGINES[engine]] if engine is not None and engine in ENGINES else list(ENGINES.values())
    return next((words.rules[answer] for words in books if answer in words.rules), "")


def _when(engine: str | None, row: Mapping[str, Any], first: dict[str, int]) -> str:
    """When a row came, and how long after the first of the same message."""
    arrival = row["arrival"]
    if arrival is None:
        return "not known"
    words = None if engine is None else ENGINES.get(engine)
    if type(arrival) is not int or words is None or not words.arrival_is_time:
        return str(arrival)
    before = first.setdefault(repr((row["key"], row["message"])), arrival)
    later = f" (+{span(arrival - before)})" if arrival > before else ""
    return f"{moment(arrival)}{later}"
