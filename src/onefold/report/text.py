"""A run as a person reads it on a terminal: the books, what is missing, and whether it all adds up.

Input is the plain form of a run, as it stands in ``run.json``, so a report can be made again at any time.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onefold.engines import chains, lorawan, producers
from onefold.tally import Tally
from onefold.verdict import Verdict

COLOURS = {Verdict.FIRST: "green", Verdict.REPEAT: "cyan", Verdict.UNSURE: "yellow", Verdict.REJECT: "red"}


RULES: Mapping[str, Mapping[Any, str]] = {
    "chains": chains.RULES,
    "producers": producers.RULES,
    "lorawan": lorawan.RULES,
}
"""Of each engine, the rule behind every answer."""


FOREIGN_MAX: Final = 80
"""How many characters of a foreign text are shown."""
LINE_MAX: Final = 400
"""How long a line may be that has a foreign name in it."""

LOWER, UPPER = ("lower_timestamp", "lower_sequence"), ("upper_timestamp", "upper_sequence")


def foreign(value: object, most: int = FOREIGN_MAX) -> Text:
    """A value from the data as nothing but text: no markup, no line breaks, nothing that a terminal obeys, not long."""
    words = str(value)
    words = words if len(words) <= most else words[: most - 3] + "..."
    return Text("".join(sign if sign.isprintable() else "?" for sign in words))


def books(tally: Tally, engine: str = "chains") -> Table:
    """Every verdict and reason with its count, its share and its rule."""
    rules = RULES.get(engine, {})
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (("verdict", "left"), ("reason", "left"), ("messages", "right"), ("share", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("because", style="dim")
    for answer, count in tally:
        verdict = f"[{COLOURS[answer.verdict]}]{answer.verdict}[/]"
        share = f"{100 * count / max(1, tally.judged):.2f} %"
        table.add_row(verdict, foreign(answer.reason), f"{count:,}", share, rules.get(answer, ""))
    return table


def banner(tally: Tally) -> Text:
    """The law, in one line."""
    if tally.balanced:
        return Text(f"the books balance: {tally}", style="bold green")
    return Text(f"THE BOOKS DO NOT BALANCE: {tally}", style="bold red")


def ranges(run: Mapping[str, Any]) -> RenderableType:
    """The missing ranges that the run kept as samples."""
    shown: list[Mapping[str, Any]] = run["missing_ranges_shown"]
    if not shown and any(untold["about"] == "lost" for untold in run.get("cannot_tell", ())):
        return Text("what is missing cannot be told", style="yellow")
    if not shown:
        return Text("nothing is known to be missing", style="green")
    lower, upper = ([name for name in shown[0] if name in ends] for ends in (LOWER, UPPER))
    keys = [name for name in shown[0] if name not in (*lower, *upper)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (*keys, "missing after", "up to"):
        table.add_column(foreign(name), no_wrap=True)
    for row in shown:
        after = "the beginning" if row[lower[0]] is None else "|".join(str(row[name]) for name in lower)
        upto = "|".join(str(row[name]) for name in upper)
        table.add_row(*(foreign(row[key]) for key in keys), foreign(after), foreign(upto))
    more = run["missing_ranges"] - len(shown)
    return Group(table, Text(f"and {more:,} more", style="dim")) if more > 0 else table


def findings(run: Mapping[str, Any]) -> list[str]:
    """What is not as it should be, one line each; nothing if nothing was found."""
    tally = Tally.from_dict(run["tally"])
    files = run.get("manifest", {})  # runs of earlier versions kept none
    found: Iterable[tuple[int, str]] = (
        (tally.count(Verdict.REPEAT), "repeated messages"),
        (tally.count(Verdict.UNSURE), "messages that cannot be known"),
        (tally.count(Verdict.REJECT), "rejected rows"),
        (run["missing_ranges"], "missing ranges"),
        (len(files.get("set_aside", ())), "files that cannot be read"),
        (len(files.get("changed", ())), "files that changed while they were judged"),
    )
    return [f"{count:,} {what}" for count, what in found if count]


def cannot_tell(run: Mapping[str, Any], *, toml: bool = False) -> list[Text]:
    """What nobody may claim of a run, one line each, with the option or the line of TOML that would tell."""
    return [
        foreign(f"cannot be told: {untold['what']}; {_setting(untold, toml)} would tell", LINE_MAX)
        for untold in run.get("cannot_tell", ())
    ]


def absent(run: Mapping[str, Any]) -> list[Text]:
    """Which usual columns the source does not have, in one line, if it lacks any."""
    names = run.get("absent_columns", ())
    if not names:
        return []
    order = "; without an arrival, rows are judged in the order of their numbers" if "arrival" in names else ""
    return [foreign(f"there is no column {', '.join(names)}: judged without{order}", LINE_MAX)]


def _setting(untold: Mapping[str, Any], toml: bool) -> str:
    option, value = untold["option"], untold["value"]
    shared = ", a column that copies share," if option == "timestamp" else ""
    return f'{option} = "{value}" in [judge]{shared}' if toml else f"--{option.replace('_', '-')} {value}{shared}"


def memory(run: Mapping[str, Any]) -> str:
    """What a detector remembers after this run, against a set of all ids."""
    ids = Tally.from_dict(run["tally"]).count(Verdict.FIRST)
    entries = run["state_entries"]
    return (
        f"state: {run['keys']:,} {run['engine']} and {run['missing_ranges']:,} gaps, {entries:,} entries in all; "
        f"a set of all ids would hold {ids:,} ({ids / max(1, entries):,.0f} times as many)"
    )
