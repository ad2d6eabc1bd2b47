"""The explanation of a message, chain, device or producer as text. Input is the JSON document."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from onefold.report.text import COLOURS, foreign, many, moment, ranges, span, table
from onefold.verdict import Answer, Verdict
from onefold.wording import ENGINES


def with_rules(document: Mapping[str, Any]) -> dict[str, Any]:
    engine = document["engine"]
    timed = engine in ENGINES and ENGINES[engine].arrival_is_time
    first: dict[str, int] = {}
    rows = []
    for row in document["shown"]:
        arrival = row["arrival"]
        if arrival is None:
            when = "not known"
        elif type(arrival) is not int or not timed:
            when = str(arrival)
        else:  # with the time since the first copy of the message
            before = first.setdefault(repr((row["key"], row["message"])), arrival)
            when = moment(arrival) + (f" (+{span(arrival - before)})" if arrival > before else "")
        rows.append({**row, "rule": _rule(engine, row["verdict"], row["reason"]), "arrived": when})
    counts = [{**line, "rule": _rule(engine, line["verdict"], line["reason"])} for line in document["counts"]]
    return {**document, "shown": rows, "counts": counts, "sentence": sentence(document)}


def sentence(document: Mapping[str, Any]) -> str:
    """A one-line summary.

    >>> sentence({"rows": 3, "missing_ranges": 1, "counts": [{"verdict": "FIRST", "count": 1},
    ...     {"verdict": "REPEAT", "count": 2}]})
    '3 rows: 1 FIRST, 2 REPEAT; 1 range is missing'
    """
    sums = {v: sum(line["count"] for line in document["counts"] if line["verdict"] == v) for v in Verdict}
    parts = ", ".join(f"{count:,} {verdict}" for verdict, count in sums.items() if count)
    rows = f"{many(document['rows'], 'row')}: {parts}" if document["rows"] else "no row"
    missing = document["missing_ranges"]
    return f"{rows}; {many(missing, 'range')} {'is' if missing == 1 else 'are'} missing" if missing else rows


def lines(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    if not document["rows"] and not document["missing_ranges"]:
        yield Text("nothing matches")
        columns = ", ".join(document["columns"])
        yield foreign(f"each word must equal a value of {columns}; COLUMN=VALUE names any column", 200)
        return
    if document["shown"]:
        grid = table()
        sourced = any(row["source"] is not None for row in document["shown"])
        for name in ["message", "arrived", *(["through"] if sourced else []), "verdict", "reason", "in"]:
            grid.add_column(name, no_wrap=name in ("verdict", "arrived"))
        for row in document["shown"]:
            cells = {**row["key"], **row["message"]} if row["key"] or row["message"] else row["more"]
            message = foreign(" ".join("null" if value is None else str(value) for value in cells.values()))
            verdict = Text(str(row["verdict"]), style=COLOURS.get(row["verdict"], ""))
            through = [foreign(row["source"])] if sourced else []
            grid.add_row(message, foreign(row["arrived"]), *through, verdict, foreign(row["reason"]),
                          foreign(row["found_in"]))  # fmt: skip
        yield grid
        if document["rows"] > len(document["shown"]):
            yield Text(f"and {document['rows'] - len(document['shown']):,} more rows", style="dim")
        rules = Table(box=None, pad_edge=False, show_header=False)
        for line in document["counts"]:
            verdict = Text(f"{line['verdict']} ", style=COLOURS.get(line["verdict"], ""))
            rules.add_row(verdict.append_text(foreign(line["reason"])), Text(line["rule"], style="dim"))
        yield rules
    if document["missing_ranges"]:
        yield Text("never arrived:")
        yield ranges(document)
    yield Text(sentence(document), style="bold")


def _rule(engine: str | None, verdict: str, reason: str) -> str:
    """The rule of this engine; if it is unknown, of the first engine with such an answer."""
    if verdict not in list(Verdict):
        return ""
    answer = Answer(Verdict(verdict), reason)
    books = [ENGINES[engine]] if engine is not None and engine in ENGINES else list(ENGINES.values())
    return next((words.rules[answer] for words in books if answer in words.rules), "")
