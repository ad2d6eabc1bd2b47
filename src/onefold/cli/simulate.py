"""``onefold simulate``: faulty traffic from one seed, written with the truth beside it.

Those defaults of `onefold.testing.traffic` that are said again here: to import it would import Arrow, for a help text.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typer import Argument, Option

from onefold.cli.check import refuse_without
from onefold.cli.output import AsJson, emit_json, people
from onefold.testing.faults import Faults

if TYPE_CHECKING:
    from onefold.testing.traffic import Made

Share: TypeAlias = float
USUAL = Faults()


def simulate(
    out: Annotated[Path, Argument(help="A folder that does not exist or is empty.")],
    rows: Annotated[int, Option(help="How many rows arrive, all kinds together.")] = 10_000,
    chains: Annotated[int, Option(help="How many chains they belong to.")] = 100,
    seed: Annotated[int, Option(help="The same seed and settings make the same traffic.")] = 1,
    format: Annotated[Literal["parquet", "jsonl"], Option(help="How the messages are written.")] = "parquet",
    files: Annotated[int, Option(help="How many files they are spread over.")] = 1,
    copies: Annotated[Share, Option(help="Share of messages that are delivered again.")] = USUAL.copies,
    reorder: Annotated[Share, Option(help="Share of messages that come late.")] = USUAL.reorder,
    losses: Annotated[Share, Option(help="Share of messages that never arrive.")] = USUAL.losses,
    late_heads: Annotated[
        Share, Option(help="Share of chains whose first message comes after its successor.")
    ] = USUAL.late_heads,
    no_previous: Annotated[
        Share, Option(help="Share of chains whose messages never name the one before.")
    ] = USUAL.no_previous,
    poisoned: Annotated[Share, Option(help="Share of chains that get a row from the far future.")] = USUAL.poisoned,
    malformed: Annotated[Share, Option(help="Share of rows that are damaged.")] = USUAL.malformed,
    text_numbers: Annotated[bool, Option("--text-numbers", help="Write numbers as text, as CSV does.")] = False,
    skew: Annotated[float, Option(help="How unequal the chains are: 0 equal, 1 as words are in a text.")] = 0.0,
    devices: Annotated[
        int, Option(min=0, help="Instead of chains: readings of so many devices, which count them.")
    ] = 0,
    reboots: Annotated[int, Option(min=0, help="Of devices: how often their counters begin anew, all together.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make faulty traffic of which the truth is known: OUT/messages is what arrived, OUT/truth what is so."""
    from onefold.testing.traffic import Traffic, make, write

    faults = Faults(
        copies=copies, reorder=reorder, losses=losses, no_previous=no_previous, poisoned=poisoned, malformed=malformed,
        late_heads=0 if devices and late_heads == USUAL.late_heads else late_heads,
    )  # fmt: skip
    if devices:
        of_chains = {"--chains": (chains, 100), "--text-numbers": (text_numbers, False), "--skew": (skew, 0.0)}
        refuse_without(of_chains, "no --devices")
        made = _readings(seed, rows, devices, reboots, faults)
    else:
        refuse_without({"--reboots": (reboots, 0)}, "--devices")
        traffic = Traffic(seed=seed, rows=rows, chains=chains, skew=skew, text_numbers=text_numbers, faults=faults)
        with people.status(f"making {rows:,} rows"):
            made = make(traffic)
    write(made, out, format, files)
    whose = {"devices": devices, "reboots": reboots} if devices else {"chains": chains}
    _show(made, out, format, files, whose, as_json)


def _readings(seed: int, rows: int, devices: int, reboots: int, faults: Faults) -> "Made":
    from onefold.testing.readings import Readings, make_readings

    with people.status(f"making {rows:,} rows"):
        return make_readings(Readings(seed=seed, rows=rows, devices=devices, reboots=reboots, faults=faults))


def _show(made: "Made", out: Path, format: str, files: int, whose: dict[str, int], as_json: bool) -> None:
    truth, rows = made.truth, made.traffic.rows
    verdicts = {entry["values"]: entry["counts"] for entry in truth.rows["verdict"].value_counts().to_pylist()}
    summary: dict[str, Any] = {
        "path": str(out),
        "messages": str(out / "messages"),
        "truth": str(out / "truth"),
        "format": format,
        "files": files,
        "seed": made.traffic.seed,
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
