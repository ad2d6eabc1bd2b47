"""The report on receptions for a terminal: the tally, losses, gateways and windows.

Input is the document of ``onefold lorawan report --json``. Text from the data is shown by `text.foreign`, since a
device may have any name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onefold.report import text
from onefold.tally import Tally
from onefold.verdict import Verdict

Cells: TypeAlias = Sequence[str | Text]

WHY: Final = {
    "frame_again": "the same frame came again after its window",
    "counter_again": "another frame with a counter that was there already",
    "counter_jumped": "its counter is far ahead, and those after it went on as before",
    "counter_fell_back": "its counter fell back, and those after it went on as before",
}

NAME_MAX: Final = 20
"""An EUI has 16 digits; longer names are cut."""


def report(document: Mapping[str, Any]) -> Group:
    tally = Tally.from_dict(document["tally"])
    return Group(
        summary(document),
        Text(),
        text.books(tally, document["engine"]),
        text.banner(tally),
        *_part("devices that lost most", devices(document)),
        *_part("gateways", gateways(document)),
        *_part("suspects of a replay", suspects(document)),
        *_part("what another window would have caught", windows(document)),
    )


def findings(document: Mapping[str, Any]) -> list[str]:
    tally = Tally.from_dict(document["tally"])
    what: Iterable[tuple[int, str]] = (
        (document["lost"], "lost uplinks"),
        (document["suspects"]["count"], "suspects of a replay"),
        (tally.count(Verdict.REJECT), "receptions that cannot be used"),
    )
    return [f"{count:,} {name}" for count, name in what if count]


def summary(document: Mapping[str, Any]) -> Text:
    n = {name: f"{value:,}" for name, value in document.items() if isinstance(value, int)}
    losses = document["losses"]
    lines = [
        f"{n['rows']} rows: {n['receptions']} receptions, {n['not_receptions']} rows that are none",
        f"{n['uplinks']} uplinks, {n['devices']} devices, {n['gateways']} gateways; {n['joins']} join requests of "
        f"{n['joining_devices']} devices",
        f"{n['shared_uplinks']} heard by more than one gateway, {n['doubled_uplinks']} in which one gateway appears "
        "more than once",
        f"{n['lost']} lost by their counters ({_percent(document['loss_share'])}), in {losses['gaps']:,} gaps; "
        f"{losses['resets']:,} resets and {losses['roll_overs']:,} roll-overs are no losses",
    ]
    if document["foreign_devices"]:
        lines.append(
            f"{n['foreign_uplinks']} uplinks are of {n['foreign_devices']} devices that are not ours: what they lost "
            "is not counted, nor are they suspects"
        )
    return Text("\n".join(lines))


def devices(document: Mapping[str, Any]) -> RenderableType:
    rows = [row for row in document["losses"]["shown"] if row["lost"] or row["resets"] or row["suspects"]]
    if not rows:
        return Text("none lost anything", style="green")
    names = ("device", "uplinks", "lost", "share", "gaps", "longest", "resets", "roll-overs", "suspects")
    cells: list[Cells] = [
        (
            text.foreign(row["device"]), *_whole(row, "uplinks", "lost"), _percent(row["loss_share"]),
            *_whole(row, "gaps", "longest_gap", "resets", "roll_overs", "suspects"),
        )
        for row in rows
    ]  # fmt: skip
    return _table(names, cells)


def gateways(document: Mapping[str, Any]) -> RenderableType:
    rows = document["gateways_shown"]
    heard = _table(
        ("gateway", "receptions", "uplinks", "shared", "best", "first", "p50 ms", "p95 ms", "p99 ms"),
        (
            (text.foreign(row["station"], NAME_MAX), *_whole(row, "receptions", "uplinks"),
             *(_percent(row[name]) for name in ("overlap_share", "best_share", "first_share")),
             *_whole(row["behind_first_ms"], "p50", "p95", "p99"))
            for row in rows
        ),
    )  # fmt: skip
    twice = _table(
        ("gateway", "heard twice", "within 1 s", "later", "by its own clock", "clock not believed", "off by at most"),
        (
            (text.foreign(row["station"], NAME_MAX), *_whole(row, "repeated_uplinks", "echoes", "resubmissions"),
             *_whole(row, "own_clock", "clock_not_believed"), 
             "-" if row["clock_off_max_ms"] is None else text.span(row["clock_off_max_ms"]))
            for row in rows
        ),
    )  # fmt: skip
    return Group(
        heard,
        *_more(document["gateways"] - len(rows)),
        _note("shared: of its uplinks, how many others heard too; best: in how many its signal was the best"),
        _note("first: how often none was sooner, then how far behind the first it was; only among those with a clock"),
        Text(),
        twice,
        _note("within 1 s: a second antenna or a mirror frequency; later: the device sent it again"),
    )


def suspects(document: Mapping[str, Any]) -> RenderableType:
    about = document["suspects"]
    if not about["count"]:
        return Text("none", style="green")
    cells: list[Cells] = [
        (
            text.foreign(row["device"]), *_whole(row, "fcnt"),
            "-" if row["first_ms"] is None else text.moment(row["first_ms"]),
            *_whole(row, "receptions", "stations"), text.foreign(WHY.get(row["why"], row["why"])),
        )
        for row in about["shown"]
    ]  # fmt: skip
    names = ("device", "counter", "time", "receptions", "gateways", "because")
    return Group(_table(names, cells), *_more(about["count"] - len(cells)))


def windows(document: Mapping[str, Any]) -> RenderableType:
    chosen = document["settings"]["expiry_ms"]
    cells: list[Cells] = [
        (
            Text(f"{row['window_ms'] / 1000:g} s", style="bold" if row["window_ms"] == chosen else ""),
            *_whole(row, "uplinks", "repeats", "uplinks_own_clock"),
        )
        for row in document["windows"]
    ]  # fmt: skip
    return Group(
        _table(("window", "uplinks", "repeats caught", "uplinks, own clock"), cells),
        _note("a reception without a clock bears the time at which it was stored, which is a little later:"),
        _note("short windows are best read in the last column, where only those with a clock are counted"),
    )


def _part(title: str, content: RenderableType) -> tuple[RenderableType, ...]:
    return Text(), Text(title, style="bold"), content


def _table(names: Sequence[str], rows: Iterable[Cells]) -> Table:
    is_text = (names[0], "time", "because")
    return text.table(*(name if name in is_text else f">{name}" for name in names), rows=rows, no_wrap=True)


def _more(count: int) -> list[Text]:
    return [Text(f"and {count:,} more", style="dim")] if count > 0 else []


def _whole(row: Mapping[str, Any], *names: str) -> list[str]:
    return ["-" if row[name] is None else f"{row[name]:,}" for name in names]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _note(words: str) -> Text:
    return Text(words, style="dim")
