"""``onefold simulate``: faulty traffic from one seed, written with the truth beside it.

Some defaults of `onefold.testing.traffic` are repeated here: importing it imports Arrow, which help does not need.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typer import Argument, Option

from onefold.cli.options import refuse
from onefold.cli.output import AsJson, emit_json, people
from onefold.testing.faults import Faults

if TYPE_CHECKING:
    from onefold.testing.traffic import Format, Made

Share: TypeAlias = float
USUAL = Faults()


def simulate(
    out: Annotated[Path, Argument(help="A folder that does not exist or is empty.")],
    ids: Annotated[
        bool, Option("--ids", help="Instead of chains: a day of events with a UUID, as JSON lines.")
    ] = False,
    rows: Annotated[int, Option(help="Rows that arrive, including copies and damaged ones.")] = 10_000,
    chains: Annotated[int, Option(help="Senders that number their messages, such as devices.")] = 100,
    seed: Annotated[int, Option(help="The same seed and settings make the same traffic.")] = 1,
    format: Annotated[
        Literal["parquet", "jsonl"] | None, Option(help="Format of the rows. Default: parquet; with --ids jsonl.")
    ] = None,
    files: Annotated[int, Option(help="Number of files to write.")] = 1,
    copies: Annotated[Share, Option(help="Share of messages that arrive again, from 0 to 1.")] = USUAL.copies,
    reorder: Annotated[Share, Option(help="Share of messages that arrive late.")] = USUAL.reorder,
    losses: Annotated[Share, Option(help="Share of messages that never arrive.")] = USUAL.losses,
    late_heads: Annotated[
        Share, Option(help="Share of chains whose first message arrives after the second.")
    ] = USUAL.late_heads,
    no_previous: Annotated[
        Share, Option(help="Share of chains whose messages do not name the previous one.")
    ] = USUAL.no_previous,
    poisoned: Annotated[Share, Option(help="Share of chains that get a row from the far future.")] = USUAL.poisoned,
    malformed: Annotated[Share, Option(help="Share of rows that are damaged.")] = USUAL.malformed,
    text_numbers: Annotated[bool, Option("--text-numbers", help="Write numbers as text, as CSV does.")] = False,
    skew: Annotated[float, Option(help="Inequality of the chains: 0: equal, 1: a few very long ones.")] = 0.0,
    devices: Annotated[
        int, Option(min=0, help="Instead of chains: readings of this many devices, each with a running number.")
    ] = 0,
    reboots: Annotated[int, Option(min=0, help="With --devices: how often counters restart, in total.")] = 0,
    conflicts: Annotated[Share, Option(help="With --ids: share of copies with other content than the first.")] = 0.01,
    late: Annotated[Share, Option(help="With --ids: share of copies that arrive more than an hour later.")] = 0.02,
    as_json: AsJson = False,
) -> None:
    """Make faulty traffic with known truth: OUT/messages is what arrived, OUT/truth the verdicts and losses."""
    from onefold.testing.traffic import Traffic, make, write

    if ids:
        refuse({
            "--chains": chains != 100, "--losses": losses != USUAL.losses, "--no-previous": no_previous,
            "--late-heads": late_heads != USUAL.late_heads, "--poisoned": poisoned, "--malformed": malformed,
            "--text-numbers": text_numbers, "--skew": skew, "--devices": devices, "--reboots": reboots,
        }, "cannot be combined with --ids")  # fmt: skip
        shares = {"copies": copies, "reorder": reorder, "conflicts": conflicts, "late": late}
        return _simulate_ids(out, seed, rows, shares, format or "jsonl", files, as_json)
    refuse({"--conflicts": conflicts != 0.01, "--late": late != 0.02}, "needs --ids")
    faults = Faults(
        copies=copies, reorder=reorder, losses=losses, no_previous=no_previous, poisoned=poisoned, malformed=malformed,
        late_heads=0 if devices and late_heads == USUAL.late_heads else late_heads,
    )  # fmt: skip
    kind = format or "parquet"
    if devices:
        of_chains = {"--chains": chains != 100, "--text-numbers": text_numbers, "--skew": skew}
        refuse(of_chains, "cannot be combined with --devices")
        result = _readings(seed, rows, devices, reboots, faults)
    else:
        refuse({"--reboots": reboots}, "needs --devices")
        traffic = Traffic(seed=seed, rows=rows, chains=chains, skew=skew, text_numbers=text_numbers, faults=faults)
        with people.status(f"making {rows:,} rows"):
            result = make(traffic)
    write(result, out, kind, files)
    whose = {"devices": devices, "reboots": reboots} if devices else {"chains": chains}
    _show(result, out, kind, files, whose, as_json)


def _readings(seed: int, rows: int, devices: int, reboots: int, faults: Faults) -> "Made":
    from onefold.testing.readings import Readings, make_readings

    with people.status(f"making {rows:,} rows"):
        return make_readings(Readings(seed=seed, rows=rows, devices=devices, reboots=reboots, faults=faults))


def _show(result: "Made", out: Path, format: str, files: int, whose: dict[str, int], as_json: bool) -> None:
    truth, rows = result.truth, result.settings.rows
    verdicts = {entry["values"]: entry["counts"] for entry in truth.rows["verdict"].value_counts().to_pylist()}
    summary: dict[str, Any] = {
        "path": str(out),
        "messages": str(out / "messages"),
        "truth": str(out / "truth"),
        "format": format,
        "files": files,
        "seed": result.settings.seed,
        "rows": rows,
        **whose,
        "originals": verdicts.get("FIRST", 0),
        "copies": verdicts.get("REPEAT", 0),
        "damaged": verdicts.get("REJECT", 0),
        "lost": len(truth.lost),
        "missing_ranges": len(truth.missing),
    }
    around = ""
    if truth.reboots is not None:
        summary["lost_around_reboots"] = truth.lost["can_be_found"].to_pylist().count(False)
        around = f" ({summary['lost_around_reboots']:,} of them around a reboot, where nobody can know)"
    people.lines(
        f"{rows:,} rows of {' with '.join(f'{count:,} {name}' for name, count in whose.items())}"
        f" are in {out / 'messages'} ({format}, files: {files:,})\n"
        f"{summary['originals']:,} originals + {summary['copies']:,} copies + {summary['damaged']:,} damaged;"
        f" {len(truth.lost):,} lost{around}, which leaves {len(truth.missing):,} missing ranges to find\n"
        f"the truth about them is in {out / 'truth'}"
    )
    if as_json:
        emit_json(summary)


def _simulate_ids(
    out: Path, seed: int, rows: int, shares: Mapping[str, float], format: "Format", files: int, as_json: bool
) -> None:
    from onefold.testing.events import Events, make_events
    from onefold.testing.traffic import write

    events = Events(
        seed=seed, rows=rows, copies=shares["copies"], reorder=shares["reorder"], conflicts=shares["conflicts"],
        late=shares["late"],
    )  # fmt: skip
    with people.status(f"making {events.rows:,} rows"):
        result = make_events(events)
        write(result, out, format, files)
    lags, late = result.rows["lag_ms"].to_pylist(), result.rows["late_ms"].to_pylist()
    copies = [(lag, behind) for lag, behind in zip(lags, late, strict=True) if lag is not None]
    conflicts = result.rows["verdict"].to_pylist().count("REJECT")
    beyond = sum(behind > events.window_ms for _, behind in copies)
    summary = {
        "path": str(out), "messages": str(out / "messages"), "truth": str(out / "truth"), "format": format,
        "files": files, "seed": events.seed, "rows": events.rows, "ids": events.rows - len(copies),
        "copies": len(copies), "same_time": sum(lag == 0 for lag, _ in copies), "conflicts": conflicts,
        "beyond_window": beyond, "window_ms": events.window_ms,
    }  # fmt: skip
    people.lines(
        f"{events.rows:,} rows are in {out / 'messages'} ({format}, files: {files:,})\n"
        f"{summary['ids']:,} ids + {len(copies):,} copies: {summary['same_time']:,} with the ingest time of their"
        f" first, {beyond:,} later than a window of an hour, {conflicts:,} with other content\n"
        f"the truth about them is in {out / 'truth'}; look: onefold check {out / 'messages'} --id event_id"
        " --order ingested_at --payload status,amount"
    )
    if as_json:
        emit_json(summary)
