"""A run as text for a terminal, and the formats of text and numbers that all reports share.

The books, the missing ranges and the balance, from the document in ``run.json``, so a report can be made again at any
time. Shares are never rounded to 0 or 100 %. Foreign text is cut and escaped (`foreign`); passwords and the like in
options of readers are neither shown nor stored (`without_secrets`).
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onefold.tally import Tally
from onefold.text import plain
from onefold.verdict import Verdict
from onefold.wording import ENGINES

COLOURS = {Verdict.FIRST: "green", Verdict.REPEAT: "cyan", Verdict.UNSURE: "yellow", Verdict.REJECT: "red"}

FOREIGN_MAX: Final = 80
LINE_MAX: Final = 400
"""The longest line with a foreign name in it."""

LOWER, UPPER = ("lower_timestamp", "lower_sequence"), ("upper_timestamp", "upper_sequence")
ENGINE_OPTIONS: Final = "--key SENDER --sequence NUMBER"
"""The options of a command that choose an engine which knows losses."""
SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
MAGNITUDES: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
HIDDEN: Final = "(hidden)"
_WORDS: Final = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|signature|(?:api|access|account|private|shared).?key"
)
_NAMES: Final = re.compile(rf"pass\b|{_WORDS}", re.I)
_LOGIN: Final = re.compile(r"(://[^/@:\s]{0,100}):\S{0,200}@")
MS_MIN, MS_MAX = 10**11, 10**13
"""Numbers outside (before 1973, after 2286) are hardly Unix milliseconds: they are shown as numbers."""
_PAIR: Final = re.compile(rf"""((?:{_WORDS})[\w.-]{{0,40}}\s?=\s?)("[^"]*"|'[^']*'|[^\s&;,"']+)""", re.I)
"""As in the query of a URL, or in Kafka's JAAS configuration."""


def foreign(value: object, most: int = FOREIGN_MAX) -> Text:
    """A foreign value as short text: no markup, no line breaks, no control characters."""
    return Text(plain(value, most))


def table(*columns: str, rows: Iterable[Iterable[RenderableType]] = (), no_wrap: bool = False) -> Table:
    """A table; columns whose names begin with ``>`` are aligned to the right."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if no_wrap else "fold"
        grid.add_column(column.lstrip(">"), justify=justify, no_wrap=no_wrap, overflow=overflow)
    for row in rows:
        grid.add_row(*row)
    return grid


def books(tally: Tally, engine: str = "chains") -> Table:
    rules = ENGINES[engine].rules if engine in ENGINES else {}
    rows = table("verdict", "reason", ">messages", ">share", no_wrap=True)
    rows.add_column("because", style="dim")
    for answer, count in tally:
        verdict = f"[{COLOURS[answer.verdict]}]{answer.verdict}[/]"
        share = f"{100 * count / max(1, tally.judged):.2f} %"
        rows.add_row(verdict, foreign(answer.reason), f"{count:,}", share, rules.get(answer, ""))
    return rows


def banner(tally: Tally) -> Text:
    if tally.balanced:
        return Text(f"the books balance: {tally}", style="bold green")
    return Text(f"THE BOOKS DO NOT BALANCE: {tally}", style="bold red")


def ranges(run: Mapping[str, Any], all_of_them: str = "") -> RenderableType:
    """The missing ranges that are shown; ``all_of_them``: where the others are."""
    samples: list[Mapping[str, Any]] = run["missing_ranges_shown"]
    if not samples and any(unknown["about"] == "lost" for unknown in run.get("cannot_tell", ())):
        return Text("what is missing is not known", style="yellow")
    if not samples:
        return Text("nothing is known to be missing", style="green")
    lower, upper = ([name for name in samples[0] if name in ends] for ends in (LOWER, UPPER))
    keys = [name for name in samples[0] if name not in (*lower, *upper)]
    rows = table()
    for name in (*keys, "missing after", "up to"):
        rows.add_column(foreign(name), no_wrap=True)
    timed = lower[0].endswith("timestamp") and upper[0].endswith("timestamp")
    numbers = [row[name] for row in samples for name in (lower[0], upper[0])] if timed else []
    is_time = timed and all(ms is None or (type(ms) is int and MS_MIN <= ms < MS_MAX) for ms in numbers)

    def end(parts: list[Any]) -> str:
        if is_time:
            parts = [moment(parts[0]), *filter(None, parts[1:])]  # a sequence of 0 adds nothing to the time
        return "|".join(map(str, parts))

    for row in samples:
        ends = [row[name] for name in lower]
        if len(upper) < len(lower) and isinstance(ends[0], int):  # a sequence of a counter that restarts, and its time
            ends = [f"{ends[1]} at {moment(ends[0]) if ends[0] >= MS_MIN else ends[0]}"]
        after = "the beginning" if ends[0] is None else end(ends)
        upto = end([row[name] for name in upper])
        rows.add_row(*(foreign(row[key]) for key in keys), foreign(after), foreign(upto))
    more = run["missing_ranges"] - len(samples)
    notes = [f"and {more:,} more{all_of_them}"] if more > 0 else []
    if any(row[lower[-1]] is None and row[upper[0]] == 0 for row in samples if len(upper) == 1):
        notes.append("numbers are taken to begin at 0: where yours begin at 1, nothing is missing up to 0")
    return Group(rows, *(Text(note, style="dim") for note in notes)) if notes else rows


def findings(run: Mapping[str, Any]) -> list[str]:
    """The findings of a run, one line each."""
    tally = Tally.from_dict(run["tally"])
    files, missing = run.get("manifest", {}), run.get("missing_messages")  # runs of earlier versions kept none
    lost = f" of {many(missing, 'message')}" if missing else ""
    counts: Iterable[tuple[int, str, str]] = (
        (tally.count(Verdict.REPEAT), "repeated message", ""),
        (tally.count(Verdict.UNSURE), "message", " that cannot be known"),
        (tally.count(Verdict.REJECT), "rejected row", ""),
        (run["missing_ranges"], "missing range", lost),
        (len(files.get("set_aside", ())), "file", " that cannot be read"),
        (len(files.get("changed", ())), "file", " that changed during the run"),
    )
    return [f"{many(count, what)}{more}" for count, what, more in counts if count]


def cannot_tell(run: Mapping[str, Any], *, toml: bool = False) -> list[Text]:
    """What the columns cannot show, one line each, with the option or the TOML line that would show it."""
    lines = []
    for unknown in run.get("cannot_tell", ()):
        option, value = unknown["option"], unknown["value"]
        if not option:
            lines.append(foreign(f"not known: {unknown['what']}", LINE_MAX))
            continue
        shared = ", a column that copies share," if option == "timestamp" else ""
        words = ENGINE_OPTIONS if option == "engine" else f"--{option.replace('_', '-')} {value}"
        setting = f'{option} = "{value}" in [judge]' if toml else words
        lines.append(foreign(f"not known: {unknown['what']}; {setting}{shared} would show it", LINE_MAX))
    return lines


def absent(run: Mapping[str, Any]) -> list[Text]:
    """One line with the default columns that the source lacks, if any."""
    names = run.get("absent_columns", ())
    if not names:
        return []
    order = "; without an arrival, rows are judged in the order of their numbers" if "arrival" in names else ""
    return [foreign(f"there is no column {', '.join(names)}: judged without{order}", LINE_MAX)]


def memory(run: Mapping[str, Any]) -> str:
    ids = Tally.from_dict(run["tally"]).count(Verdict.FIRST)
    entries = run["state_entries"]
    return (
        f"state: {run['keys']:,} {run['engine']} and {run['missing_ranges']:,} gaps, {entries:,} entries in all; "
        f"a set of all ids would hold {ids:,} ({ids / max(1, entries):,.0f} times as many)"
    )


def share(part: float, whole: float) -> str:
    """A part of a whole in percent.

    >>> share(1, 3), share(0, 5), share(1, 10**6), share(10**6 - 1, 10**6)
    ('33.3 %', '0 %', '< 0.01 %', '> 99.99 %')
    """
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.01:
        return "< 0.01 %"
    if 99.99 < percent < 100:
        return "> 99.99 %"
    return f"{percent:.{1 if 0.1 <= percent <= 99.9 else 2}f} %".replace("100.00", "100")


def brief(number: float) -> str:
    """A number for an axis.

    >>> brief(1_250_000), brief(900), brief(2_000), brief(0), brief(999_900), brief(-1_500)
    ('1.25 M', '900', '2 k', '0', '1 M', '-1.5 k')
    """
    rounded = float(f"{number:.3g}")  # before its unit is chosen: 999,900 is 1 M, not 1000 k
    for size, letter in MAGNITUDES:
        if abs(rounded) >= size:
            return f"{rounded / size:.3g} {letter}"
    return f"{rounded:.3g}"


def size(count: float) -> str:
    """Bytes.

    >>> size(512), size(1_400_000), size(999.9)
    ('512 B', '1.4 MB', '1 kB')
    """
    number = brief(count)
    return number + ("B" if number[-1].isalpha() else " B")


def span(ms: float) -> str:
    """A length of time, in its largest unit.

    >>> span(0), span(340), span(1_500), span(90_000), span(7_200_000), span(86_400_000 * 3), span(86_400_000 * 999.7)
    ('0 ms', '340 ms', '1.5 s', '1.5 min', '2 h', '3 d', '1,000 d')
    """
    unit, length = next(((unit, length) for unit, length in SPANS if ms >= length), ("ms", 1))
    return f"{ms / length:,.3g} {unit}" if ms / length < 999.5 else f"{ms / length:,.0f} {unit}"


def moment(ms: int) -> str:
    """Unix milliseconds as a time in UTC; a number that is out of range stays a number.

    >>> moment(1_700_000_000_000), moment(10**17)
    ('2023-11-14 22:13:20.000', '100,000,000,000,000,000')
    """
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return f"{ms:,}"


def place(value: int | None, time: bool) -> str:
    """An end of a range: a time, or a number.

    >>> place(5, time=False), place(None, time=True)
    ('5', 'the beginning')
    """
    if value is None:
        return "the beginning"
    return moment(value) if time else f"{value:,}"


def many(count: int, thing: str, things: str | None = None) -> str:
    """A count with its noun.

    >>> many(1, "row"), many(1_200, "row"), many(2, "chain key", "chain keys")
    ('1 row', '1,200 rows', '2 chain keys')
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def without_secrets(value: Any, name: str = "") -> Any:
    """The value without secrets: keys that are named like one, and passwords in addresses and configurations.

    >>> without_secrets({"options": {"password": "x", "url": "jdbc://me:x@db/t"}, "key": ["a"]})
    {'options': {'password': '(hidden)', 'url': 'jdbc://me:(hidden)@db/t'}, 'key': ['a']}
    >>> without_secrets(["jdbc:postgresql://db/t?user=me&password=x&ssl=true", 'Plain username="me" password="x y";'])
    ['jdbc:postgresql://db/t?user=me&password=(hidden)&ssl=true', 'Plain username="me" password=(hidden);']
    """
    if isinstance(value, Mapping):
        return {key: without_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner, name) for inner in value]
    if value is not None and not isinstance(value, bool) and _NAMES.search(name):
        return HIDDEN
    return _PAIR.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", value)) if isinstance(value, str) else value


def hidden_in(value: Any, name: str = "") -> list[str]:
    """The dotted names of hidden secrets.

    >>> hidden_in({"source": {"path": "t", "options": {"password": "(hidden)", "url": "jdbc://me:(hidden)@db/t"}}})
    ['source.options.password', 'source.options.url']
    """
    if isinstance(value, dict):
        inner = ((f"{name}.{key}" if name else str(key), each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        inner = ((name, each) for each in value)
    else:
        return [name] if isinstance(value, str) and HIDDEN in value else []
    return [path for key, each in inner for path in hidden_in(each, key)]
