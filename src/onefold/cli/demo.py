"""``onefold demo``: a faulty stream made clean, and the proof.

With ``--serve`` a console shows it, and in the end the same traffic comes as a stream, until Ctrl-C.
"""

from __future__ import annotations

import re
import shutil
import threading
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

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
STREAM = "stream"


_MARK = ".onefold-demo"  # only a folder that holds this is ever cleared
_OWN: Final = {
    "traffic": re.compile(r"messages/part-\d{5}\.parquet|truth/(rows|lost|missing)\.parquet|truth/traffic\.json"),
    STREAM: re.compile(
        r"(stream\.json|progress\.jsonl|report\.html)(\.new)?|_staging/.*"
        r"|batches/\d{12}/(tally\.json|[a-z]+/[._]*(part-|SUCCESS).*)"
    ),
    f"{STREAM}.checkpoint": re.compile(r"\.?(metadata|_onefold)[^/]*|(offsets|commits|state|sources)/.*"),
}
"""The files that a demo makes, which the next one clears away; any other one is kept, and named."""


def demo(
    out: Annotated[Path, Option(help="Where the traffic and the run go.")] = Path("onefold-demo"),
    rows: Annotated[int, Option(min=1_000, help="How many rows arrive.")] = 200_000,
    chains: Annotated[int, Option(min=1, help="From how many chains.")] = 500,
    seed: Annotated[int, Option(help="Other seed, other traffic.")] = 1,
    serve: Annotated[
        bool, Option("--serve", help="Show it live in a browser, then the same traffic as a stream, until Ctrl-C.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Make a faulty stream whose truth is known, run the pipeline over it, and compare."""
    from onefold.testing.faults import Faults
    from onefold.testing.traffic import Traffic, make, score, write

    started = monotonic()
    _clear(out)
    console = _open_console(out) if serve else None
    faults = Faults(poisoned=0.05, malformed=0.005)
    traffic = make(Traffic(seed=seed, rows=rows, chains=chains, faults=faults))
    write(traffic, out / "traffic", files=FILES if serve else 1)
    people.print(
        f"[bold]1[/] A faulty stream: {rows:,} rows from {chains:,} chains. {faults.copies:.0%} of the messages "
        f"come again, {faults.reorder:.0%} come late, {faults.losses:.1%} never come, {faults.malformed:.1%} of the "
        "rows are broken, and some chains hold a number from the year 2200."
    )
    people.print("[bold]2[/] Every message is judged, on Spark.")
    messages, rules = str((out / "traffic" / "messages").absolute()), {"floor": "open"}
    run = {"source": {"path": messages}, "judge": rules, "publish": {"path": str((out / "run").absolute())}}
    result = execute(Settings.model_validate(run))
    tally = Tally.from_dict(result["tally"])
    people.print(text.books(tally))
    mark = score(out / "run", out / "traffic" / "truth")
    people.print("[bold]3[/] Against the truth, which the demo knows because it made the faults:")
    people.print(
        f"  counted twice {mark.counted_twice:,}, lost {mark.lost:,}, broken rows let in {mark.accepted:,}; missing "
        f"ranges: {mark.ranges_found:,} found of {mark.ranges:,}, {mark.ranges_invented:,} invented"
    )
    people.print(f"  {text.memory(result)}")
    people.print(text.banner(tally))
    people.lines(*agreement.audited(result["audit"]))
    people.lines(f"outputs: {(out / 'run').absolute()}   ({monotonic() - started:.0f} s)")
    if result["report"]:
        people.lines(f"report: {result['report']}")
    if json:
        emit_json({**result, "truth": asdict(mark)})
    if console is not None:
        _stream_live(out, messages, rules, console)
    if not mark.perfect:
        raise Exit(1)


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
