"""``onefold demo``: clean two faulty sources, and prove it.

First web events that have only an id; then chains of numbered messages, where missing ones are known too. With
``--serve`` a console shows it, and at the end the chains come as a stream, until Ctrl-C.

``--lite`` needs neither Spark nor Java: the engines judge one small file three times, by its id, by its running number,
and by a number and the previous one.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from typer import Exit, Option

from onefold.chains import ChainDetector
from onefold.chains import rules as chain_rules
from onefold.cli.output import emit_json, people
from onefold.cli.run import execute
from onefold.cli.stream import stream
from onefold.errors import Misuse
from onefold.ids import IdDetector
from onefold.ids import rules as id_rules
from onefold.producers import Sequences, records
from onefold.report import agreement, text
from onefold.settings import Settings
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

if TYPE_CHECKING:
    from onefold.report.console.app import ConsoleServer

FILES = 40
"""Files of the stream, one per batch: enough for a minute or two."""
EVENTS, STREAM, LITE = "events", "stream", "lite"
SALES = "sales.jsonl"
CHAINS: Final = 500
TILLS: Final = 40
BEGIN_MS: Final = 1_772_352_000_000
MISSING_SHOWN: Final = 3

_MARK = ".onefold-demo"  # only a folder with this file is ever cleared
_OWN: Final = {
    **dict.fromkeys(
        (EVENTS, "traffic"),
        re.compile(r"messages/part-\d{5}\.(parquet|jsonl)|truth/(rows|lost|missing)\.parquet|truth/traffic\.json"),
    ),
    STREAM: re.compile(
        r"(stream\.json|progress\.jsonl|figures\.json|report\.html)(\.new)?|_staging/.*"
        r"|batches/\d{12}/(tally\.json|[a-z]+/[._]*(part-|SUCCESS).*)"
    ),
    f"{STREAM}.checkpoint": re.compile(r"\.?(metadata|_onefold)[^/]*|(offsets|commits|state|sources|memory)/.*"),
    LITE: re.compile(re.escape(SALES)),
}
"""The files of a demo, which the next one removes; any other file is an error."""

_Line: TypeAlias = dict[str, Any] | None
"""A line of the file; None if it is not JSON."""
_Sale: TypeAlias = tuple[str, int]
"""The true name of a sale: its till, and its number there."""


def demo(
    out: Annotated[Path, Option(help="Folder for the traffic and the runs.")] = Path("onefold-demo"),
    rows: Annotated[int, Option(min=1_000, help="Rows of chains; the events are a tenth as many.")] = 200_000,
    chains: Annotated[int, Option(min=1, help="Number of chains.")] = CHAINS,
    seed: Annotated[int, Option(help="The same seed makes the same traffic.")] = 1,
    serve: Annotated[
        bool,
        Option("--serve", help="Show the demo live in a browser, then the same traffic as a stream, until Ctrl-C."),
    ] = False,
    lite: Annotated[
        bool, Option("--lite", help="Run the engines alone on a small file: no Spark, no Java, a few seconds.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Make faulty data, clean it, and compare with the truth."""
    if lite:
        if serve:
            raise Misuse("--serve has no effect with --lite: there is no stream to watch")
        if chains != CHAINS:
            raise Misuse(f"--chains has no effect with --lite: its file is of {TILLS} tills")
        return _judge_file(out, rows // 10, seed, as_json)
    from onefold.testing.faults import Faults
    from onefold.testing.traffic import Traffic, make, score, write

    started = monotonic()
    _clear(out, (EVENTS, "traffic", STREAM, f"{STREAM}.checkpoint"))
    console = _open_console(out) if serve else None
    events = _clean_events(out, rows // 10, seed)
    faults = Faults(poisoned=0.05, malformed=0.005)
    traffic = make(Traffic(seed=seed, rows=rows, chains=chains, faults=faults))
    write(traffic, out / "traffic", files=FILES if serve else 1)
    people.print(
        f"[bold]2[/] Messages that name the one before: {rows:,} rows from {chains:,} chains. {faults.copies:.0%} come "
        f"again, {faults.reorder:.0%} late, {faults.losses:.1%} never, {faults.malformed:.1%} of the rows are broken, "
        "and some chains hold a number from the year 2200. Now no id is remembered, only the gaps; and what is missing "
        "is known, too."
    )
    messages, rules = str((out / "traffic" / "messages").absolute()), {"floor": "open"}
    run = {"source": {"path": messages}, "judge": rules, "publish": {"path": str((out / "run").absolute())}}
    result = execute(Settings.model_validate(run))
    mark = score(out / "run", out / "traffic" / "truth")
    people.print(text.books(Tally.from_dict(result["tally"])))
    _show_truth(
        result, mark.counted_twice, mark.lost,
        f", broken rows let in {mark.accepted:,}; missing ranges: {mark.ranges_found:,} found of {mark.ranges:,}, "
        f"{mark.ranges_invented:,} invented",
    )  # fmt: skip
    people.print(f"  {text.memory(result)}")
    people.lines(f"outputs: {(out / 'run').absolute()}   ({monotonic() - started:.0f} s in all)")
    people.print("On your own data: [bold]onefold check FILE --id COLUMN[/]")
    if result["report"]:
        people.lines(f"report: {result['report']}")
    if as_json:
        emit_json({**result, "truth": asdict(mark), "events": events})
    if console is not None:
        _stream_live(out, messages, rules, console)
    if not (mark.perfect and events["perfect"]):
        raise Exit(1)


def _clean_events(out: Path, rows: int, seed: int) -> dict[str, Any]:
    """The first part: events with an id. Its books, and its score against the truth."""
    import pyarrow.parquet as pq

    from onefold.testing.events import Events, make_events
    from onefold.testing.traffic import write

    source, clean = (out / EVENTS / "messages").absolute(), (out / "clean").absolute()
    events = make_events(Events(seed=seed, rows=rows))
    write(events, out / EVENTS, "jsonl")
    people.print(
        f"[bold]1[/] Web events with an id: {rows:,} lines of JSON. A tenth came again, because a sender heard no "
        "answer; some of these say something else. Spark takes a few seconds to start."
    )
    judge = {"engine": "ids", "id": ["event_id"], "order": "ingested_at", "payload": ["status", "amount"]}
    places = {"source": {"path": str(source), "format": "json"}, "publish": {"path": str(clean)}}
    result = execute(Settings.model_validate({**places, "judge": judge, "report": {"page": "off"}}))
    people.print(text.books(Tally.from_dict(result["tally"]), "ids"))
    counted = Counter(pq.read_table(clean / "firsts", columns=["event_id"])["event_id"].to_pylist())
    true = set(events.messages["event_id"].to_pylist())
    twice, lost = counted.total() - len(counted), len(true - counted.keys())
    _show_truth(result, twice, lost)
    people.lines(f"outputs: {clean}")
    perfect = counted.keys() == true and not twice
    return {"tally": result["tally"], "counted_twice": twice, "lost": lost, "perfect": perfect}


def _show_truth(result: dict[str, Any], twice: int, lost: int, more: str = "") -> None:
    people.print(f"  against the truth, which the demo knows: counted twice {twice:,}, lost {lost:,}{more}")
    people.print(text.banner(Tally.from_dict(result["tally"])))
    people.lines(*agreement.audited(result["audit"]))


def _stream_live(out: Path, messages: str, rules: dict[str, str], console: ConsoleServer) -> None:
    people.print(f"[bold]3[/] The same traffic as a stream, a file at a time: {console.url} shows it. Ctrl-C ends it.")
    source = {"path": messages, "mode": "stream", "trigger": "2 seconds", "options": {"maxFilesPerTrigger": "1"}}
    live = {"source": source, "judge": rules, "publish": {"path": str((out / STREAM).absolute())}}
    try:
        stream(Settings.model_validate({**live, "spark": {"buckets": 8}}), strict=False, json=False, metrics=None)
    finally:
        console.stop()


def _open_console(out: Path) -> ConsoleServer:
    """Show the demo's run and stream, which do not exist yet, in a browser."""
    from onefold.cli.serve_console import opened_console

    console = opened_console([out / STREAM, out / "run"], [])
    # A daemon: a demo that fails must not wait for it, and it has no state to lose.
    threading.Thread(target=console.run, name="onefold-console", daemon=True).start()
    console.ready.wait()
    people.print(f"[bold]0[/] Open {console.url} in a browser to watch.")
    return console


def _clear(out: Path, names: tuple[str, ...]) -> None:
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise Misuse(f"{out} is not empty and not a demo's folder: choose another with --out", path=str(out))
    for name in names:  # a run replaces its own output
        for path in (out / name).rglob("*"):
            way = path.relative_to(out / name).as_posix()
            if path.is_file() and _OWN[name].fullmatch(way) is None:
                raise Misuse(f"{out} holds '{name}/{way}', which is not from a demo: move it, or choose another --out")
    for name in names:
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()


class _Judged(NamedTuple):
    """The answers of an engine for the file, and what it found to be missing."""

    answers: list[Answer]
    missing: list[str]
    """Each missing range in words."""
    lost: set[_Sale]
    """The truly lost sales that are in one of these ranges."""
    invented: int
    """How many ranges hold nothing that was lost."""


def _judge_file(out: Path, rows: int, seed: int, as_json: bool) -> None:
    """Judge one file with three engines, and compare with the truth."""
    started = monotonic()
    _clear(out, (LITE,))
    file = out / LITE / SALES
    file.parent.mkdir()
    lost = _make_sales(file, rows, seed)
    lines = [_read(line) for line in file.read_text().splitlines()]
    true = {(line["till"], line["n"]) for line in lines if line is not None}
    people.print(
        f"The sales of {TILLS} tills: {len(lines):,} lines of JSON, of {len(true):,} sales. A tenth came again, some "
        f"of them torn or with another amount; a twentieth came late; {len(lost):,} never came."
    )
    engines: tuple[tuple[str, str, str, Callable[[list[_Line], dict[_Sale, int]], _Judged]], ...] = (
        ("An id, and no more", "ids", "--id event_id --payload amount --order arrival", _by_id),
        ("A source and its running number", "producers", "--key till --sequence n", _by_sequence),
        ("A time and that of the one before", "chains", "--key till --number ts --previous previous_ts", _by_previous),
    )
    figures: dict[str, Any] = {}
    for number, (columns, engine, options, judge) in enumerate(engines, 1):
        people.print(f"\n[bold]{number}[/] {columns}: [bold]{engine}[/]")
        judged = judge(lines, lost)
        tally = Tally(len(lines), Counter(judged.answers))
        firsts = Counter(
            (line["till"], line["n"])
            for line, answer in zip(lines, judged.answers, strict=True)
            if line is not None and answer.verdict is Verdict.FIRST
        )
        twice, missing = firsts.total() - len(firsts), len(true - firsts.keys())
        people.print(text.books(tally, engine))
        people.print(text.banner(tally))
        people.print(f"  against the truth: counted twice {twice:,}, lost here {missing:,}")
        if engine == "ids":
            people.print(f"  of the {len(lost):,} that never came, ids leave no trace: the next engine finds them")
        else:
            ranges = text.many(len(judged.missing), "range")
            people.print(f"  never came: {len(judged.lost):,} of {len(lost):,} found, in {ranges}")
            more = ["    ..."] if len(judged.missing) > MISSING_SHOWN else []
            people.lines(*(f"    {words}" for words in judged.missing[:MISSING_SHOWN]), *more)
        figures[engine] = {
            "tally": tally.to_dict(), "counted_twice": twice, "lost": missing, "missing_ranges": len(judged.missing),
            "missing_found": len(judged.lost), "missing_invented": judged.invented, "check": options,
        }  # fmt: skip
    people.print(f"\nThe file, and the truth compared: {monotonic() - started:.1f} s. Now on Spark, of any size:")
    if find_spec("pyspark") is None:
        people.lines("  pip install 'onefold[spark,java]'   (without java, where there is a Java 17 or 21)")
    people.lines(*(f"  onefold check {shlex.quote(str(file))} {options}" for _, _, options, _ in engines))
    if as_json:
        emit_json({"file": str(file), "lines": len(lines), "sales": len(true), "never_came": len(lost), **figures})
    if any(each["counted_twice"] or each["lost"] or each["missing_invented"] for each in figures.values()) or any(
        figures[engine]["missing_found"] != len(lost) for engine in ("producers", "chains")
    ):
        raise Exit(1)


def _make_sales(file: Path, rows: int, seed: int) -> dict[_Sale, int]:
    """Write about this many lines in the order of arrival; return the lost sales with their times."""
    rng = Random(seed)
    arrived: list[tuple[int, str]] = []
    lost: dict[_Sale, int] = {}
    count = max(2, round(rows / 1.1 / TILLS))
    for till in (f"till-{number:02}" for number in range(1, TILLS + 1)):
        time, previous = BEGIN_MS, None
        for n in range(count):
            time += rng.randrange(1, 120_000)
            row: dict[str, Any] = {
                "event_id": str(UUID(int=rng.getrandbits(128), version=4)), "till": till, "n": n, "ts": _iso(time),
                "previous_ts": previous and _iso(previous), "amount": rng.randrange(100, 20_000),
            }  # fmt: skip
            previous = time
            if 0 < n < count - 1 and rng.random() < 0.002:
                lost[till, n] = time  # never the last one, whose loss leaves no trace
                continue
            arrival = time + rng.randrange(1, 600_000 if rng.random() < 0.05 else 2_000)
            arrived.append((arrival, json.dumps({**row, "arrival": _iso(arrival)})))
            while rng.random() < 0.09:
                arrival += rng.randrange(1, 600_000)
                amount = row["amount"] + (rng.random() < 0.01)
                line = json.dumps({**row, "amount": amount, "arrival": _iso(arrival)})
                arrived.append((arrival, line if rng.random() > 0.01 else line[: rng.randrange(1, len(line))]))
    arrived.sort(key=lambda each: each[0])
    file.write_text("".join(f"{line}\n" for _, line in arrived))
    return lost


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000)


def _read(line: str) -> _Line:
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _by_id(lines: list[_Line], lost: dict[_Sale, int]) -> _Judged:
    ids = IdDetector()
    answers = [
        id_rules.MALFORMED if line is None else ids.judge(line["event_id"], content=str(line["amount"]))
        for line in lines
    ]
    return _Judged(answers, [], set(), 0)


def _by_sequence(lines: list[_Line], lost: dict[_Sale, int]) -> _Judged:
    sequences = Sequences(memory="gaps")

    def answers() -> Iterator[Answer]:
        for line in lines:
            if line is None:
                yield records.MALFORMED
                continue
            answer = sequences.push(line["till"], line["n"])
            if answer.verdict is Verdict.FIRST:
                sequences.persist(line["till"], line["n"])
            yield Answer(answer.verdict, answer.reason)

    judged = list(answers())
    ranges = [
        (till, range(lower + 1, upper + 1))
        for till, state in sequences.producers.items()
        for lower, upper in state.gaps()
    ]
    words = [f"{till}: {numbers[0]:,}" + f" to {numbers[-1]:,}" * (len(numbers) > 1) for till, numbers in ranges]
    named = {(till, number) for till, numbers in ranges for number in numbers}
    return _Judged(judged, words, named & lost.keys(), len(named - lost.keys()))


def _by_previous(lines: list[_Line], lost: dict[_Sale, int]) -> _Judged:
    chains: dict[str, ChainDetector] = {}

    def answers() -> Iterator[Answer]:
        for line in lines:
            if line is None:
                yield chain_rules.MALFORMED
                continue
            chain = chains.setdefault(line["till"], ChainDetector(floor="open"))
            previous = None if line["previous_ts"] is None else (_ms(line["previous_ts"]), 0)
            yield chain.judge(previous, (_ms(line["ts"]), 0))

    judged = list(answers())
    ranges = [(till, low[0], high[0]) for till, chain in chains.items() for low, high in chain.missing()]
    words = [f"{till}: after {text.moment(low)}, up to {text.moment(high)}" for till, low, high in ranges]
    inside = [
        {sale for sale, time in lost.items() if sale[0] == till and low <= time <= high} for till, low, high in ranges
    ]
    return _Judged(judged, words, set().union(*inside), inside.count(set()))
