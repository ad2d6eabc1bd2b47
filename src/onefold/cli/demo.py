"""``onefold demo``: two faulty sources made clean, and the proof.

First web events that have nothing but an id, as most people's do; then chains of numbered messages, of which it is
known, too, what is missing. With ``--serve`` a console shows it, and in the end the chains come as a stream, until
Ctrl-C.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Exit, Option

from onefold.cli.output import emit_json, people
from onefold.cli.run import execute
from onefold.cli.stream import stream
from onefold.errors import Misuse
from onefold.report import agreement, text
from onefold.settings import Settings
from onefold.tally import Tally

if TYPE_CHECKING:
    from onefold.report.console.app import ConsoleServer

FILES = 40
"""The traffic comes in so many files, one of them a batch: a minute or two to look at."""
EVENTS, STREAM = "events", "stream"

_MARK = ".onefold-demo"  # only a folder that holds this is ever cleared
_OWN: Final = {
    **dict.fromkeys(
        (EVENTS, "traffic"),
        re.compile(r"messages/part-\d{5}\.(parquet|jsonl)|truth/(rows|lost|missing)\.parquet|truth/traffic\.json"),
    ),
    STREAM: re.compile(
        r"(stream\.json|progress\.jsonl|report\.html)(\.new)?|_staging/.*"
        r"|batches/\d{12}/(tally\.json|[a-z]+/[._]*(part-|SUCCESS).*)"
    ),
    f"{STREAM}.checkpoint": re.compile(r"\.?(metadata|_onefold)[^/]*|(offsets|commits|state|sources)/.*"),
}
"""The files that a demo makes, which the next one clears away; any other one is kept, and named."""


def demo(
    out: Annotated[Path, Option(help="Where the traffic and the run go.")] = Path("onefold-demo"),
    rows: Annotated[
        int, Option(min=1_000, help="How many rows of chains arrive; of events a tenth as many.")
    ] = 200_000,
    chains: Annotated[int, Option(min=1, help="From how many chains.")] = 500,
    seed: Annotated[int, Option(help="Other seed, other traffic.")] = 1,
    serve: Annotated[
        bool, Option("--serve", help="Show it live in a browser, then the same traffic as a stream, until Ctrl-C.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Make faulty events and a faulty stream whose truth is known, run a pipeline over each, and compare."""
    from onefold.testing.faults import Faults
    from onefold.testing.traffic import Traffic, make, score, write

    started = monotonic()
    _clear(out)
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
    _tell_truth(
        result, mark.counted_twice, mark.lost,
        f", broken rows let in {mark.accepted:,}; missing ranges: {mark.ranges_found:,} found of {mark.ranges:,}, "
        f"{mark.ranges_invented:,} invented",
    )  # fmt: skip
    people.print(f"  {text.memory(result)}")
    people.lines(f"outputs: {(out / 'run').absolute()}   ({monotonic() - started:.0f} s in all)")
    people.print("On your own data: [bold]onefold check FILE --id COLUMN[/]")
    if result["report"]:
        people.lines(f"report: {result['report']}")
    if json:
        emit_json({**result, "truth": asdict(mark), "events": events})
    if console is not None:
        _stream_live(out, messages, rules, console)
    if not (mark.perfect and events["perfect"]):
        raise Exit(1)


def _clean_events(out: Path, rows: int, seed: int) -> dict[str, Any]:
    """The first act: what most people have. Its books, and how it holds against the truth."""
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
    _tell_truth(result, twice, lost)
    people.lines(f"outputs: {clean}")
    perfect = counted.keys() == true and not twice
    return {"tally": result["tally"], "counted_twice": twice, "lost": lost, "perfect": perfect}


def _tell_truth(result: dict[str, Any], twice: int, lost: int, more: str = "") -> None:
    people.print(f"  against the truth, which the demo knows: counted twice {twice:,}, lost {lost:,}{more}")
    people.print(text.banner(Tally.from_dict(result["tally"])))
    people.lines(*agreement.audited(result["audit"]))


def _stream_live(out: Path, messages: str, rules: dict[str, str], console: ConsoleServer) -> None:
    people.print(f"[bold]4[/] The same traffic as a stream, a file at a time: {console.url} shows it. Ctrl-C ends it.")
    source = {"path": messages, "mode": "stream", "trigger": "2 seconds", "options": {"maxFilesPerTrigger": "1"}}
    live = {"source": source, "judge": rules, "publish": {"path": str((out / STREAM).absolute())}}
    try:
        stream(Settings.model_validate({**live, "spark": {"buckets": 8}}), strict=False, json=False, metrics=None)
    finally:
        console.stop()


def _open_console(out: Path) -> ConsoleServer:
    """Show the demo's run and its stream, neither of which is there yet, in a browser."""
    from onefold.cli.serve_console import opened_console

    console = opened_console([out / STREAM, out / "run"], [])
    # It keeps nothing, so it may end with the process: a demo that fails must not wait for it.
    threading.Thread(target=console.run, name="onefold-console", daemon=True).start()
    console.ready.wait()
    people.print(f"[bold]0[/] Open {console.url} in a browser to watch.")
    return console


def _clear(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise Misuse(f"{out} is not empty and not a demo's folder: choose another with --out", path=str(out))
    for name, own in _OWN.items():  # the run replaces its own by itself
        for path in (out / name).rglob("*"):
            way = path.relative_to(out / name).as_posix()
            if path.is_file() and own.fullmatch(way) is None:
                raise Misuse(f"{out} holds '{name}/{way}', which no demo made: move it away, or choose another --out")
    for name in _OWN:
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()
