"""``onefold memory``: inspect the memory of a stream, or of runs with [memory]."""

from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.table import Table

from onefold.chains.rules import unpack
from onefold.cli.output import AsJson, emit_json, people
from onefold.errors import BadInput, Misuse
from onefold.spark.gaps import CHAINS, gaps_of
from onefold.spark.in_order import verify_held
from onefold.spark.memory import MARK, KeyRecords, MemoryFolder, RunFile, Storage, signature

ROLES: Final = ("key", "producer")
"""The names that the key columns can have in the meaning of a memory."""

Path = Annotated[str, typer.Argument(help="Path or URL of a memory folder, or of a checkpoint that holds one.")]


def ls(path: Path, json: AsJson = False) -> None:
    """Show the engine, the version and the size of a memory."""
    memory, signed = _opened(path)
    buckets = {bucket: memory.runs(bucket) for bucket in memory.buckets_there()}
    lines = [{"bucket": bucket, **_line(runs)} for bucket, runs in buckets.items() if runs]
    total = {name: sum(line[name] for line in lines) for name in ("keys", "gaps", "files", "bytes")}
    version = max((line["version"] for line in lines), default=None)
    if json:
        emit_json({"path": memory.path, "meaning": signed["meaning"], "version": version, **total, "buckets": lines})
        return
    people.print(", ".join(f"{name} = {value}" for name, value in signed["meaning"].items()), markup=False)
    table = Table(box=None, pad_edge=False)
    for name in ("bucket", "version", "keys", "gaps", "files", "bytes"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*(f"{line[name]:,}" for name in line))
    people.print(table)
    reached = "no version yet" if version is None else f"version {version}"
    people.print(f"{reached}: {total['keys']:,} keys, {total['gaps']:,} gaps in {total['bytes']:,} bytes")


def show(
    path: Path,
    key: Annotated[list[str], typer.Argument(help="The values of the key columns, in order.")],
    json: AsJson = False,
) -> int:
    """Show what is remembered of one key: its newest number and its gaps. Starts Spark to hash the key."""
    from onefold.spark.host import name_of
    from onefold.spark.session import session

    memory, signed = _opened(path)
    role = next((role for role in ROLES if role in signed["meaning"]), None)
    if role is None:
        raise Misuse(f"{memory.path}: the memory of engine {signed['meaning'].get('engine')} is not kept by key")
    columns = [(name, kind) for name, kind in (c.rsplit(" ", 1) for c in str(signed["meaning"][role]).split(", "))]
    if len(key) != len(columns):
        raise Misuse(f"{len(key)} values, but the key is {signed['meaning'][role]}: {len(columns)} values are needed")
    first, check = (np.array([half], np.int64) for half in name_of(session("local[1]"), columns, key))
    bucket = int(memory.bucket_of(first)[0])
    remembered: dict[str, Any] | None = None
    for run in memory.runs(bucket):
        at = run.find(CHAINS, first, check)
        if at[0] >= 0:
            records = run.records(CHAINS, at)
            lower, upper, *_ = gaps_of(records).columns
            gaps = [[int(a), int(b)] for a, b in zip(lower, upper, strict=True) if a >= 0]
            remembered = {"bucket": bucket, "head": _head(records), "gaps": gaps}
            break
    if json:
        emit_json({"key": key, "remembered": remembered})
    elif remembered is None:
        people.print("nothing is remembered of this key")
    else:
        text = _sequence if role == "producer" else _number
        people.print(f"bucket {bucket}; the newest is {text(remembered['head'])}; {len(remembered['gaps']):,} gaps")
        for lower, upper in remembered["gaps"]:
            people.print(f"  missing: after {text(lower)} up to {text(upper)}", highlight=False)
    return 1 if remembered is None else 0


def verify(path: Path, json: AsJson = False) -> int:
    """Read every file of a memory, and name those that are damaged or missing."""
    memory, _ = _opened(path)
    files, problems = verify_held(memory.storage)
    for bucket in memory.buckets_there():
        try:
            for run in memory.runs(bucket):
                files += 1
                run.verify()
        except (BadInput, OSError) as error:
            problems.append(str(error))
    if json:
        emit_json({"path": memory.path, "files": files, "problems": problems})
    for problem in problems:
        people.print(problem, style="red", markup=False, soft_wrap=True)
    people.print(f"{files:,} files read: {f'{len(problems)} problems' if problems else 'all are whole'}")
    return 1 if problems else 0


def _opened(path: str) -> tuple[MemoryFolder, dict[str, Any]]:
    for folder in (path, f"{path.rstrip('/')}/memory"):
        storage = Storage(folder)
        if MARK in storage.names():
            try:
                signed = signature(storage)
            except Misuse:  # a checkpoint is signed too
                continue
            if signed is not None:
                return MemoryFolder.anywhere(folder), signed
    raise Misuse(f"{path} is neither a memory nor a checkpoint with one", path=path)


def _line(runs: list[RunFile]) -> dict[str, Any]:
    newest = runs[0].header
    figures = {name: int(newest["figures"].get(name, 0)) for name in ("keys", "gaps")}
    return {"version": newest["version"], **figures, "files": len(runs), "bytes": sum(run.size for run in runs)}


def _head(records: KeyRecords) -> int:
    if "runs" in records.lists:  # counters that restart: the newest by its time
        return int(records.lists["runs"].columns[3][-1]) + 1
    return int(records.values["head"][0])


def _number(packed: int) -> str:
    timestamp, sequence = unpack(packed)
    return f"{timestamp}" if not sequence else f"{timestamp}, {sequence}"


def _sequence(packed: int) -> str:
    return str(packed - 1)
