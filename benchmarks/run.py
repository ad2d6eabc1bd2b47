"""./run bench run: the whole ``onefold run`` against ``dropDuplicates`` and a Parquet write of the same rows.

Each is a separate process, timed from the start of Python to its end, including the JVM's start. ``onefold run``
judges, publishes, finds missing ranges, audits its output and draws its page; the peer reads the same files with the
same session, drops rows with the key and number of another row, and writes the rest. They take turns; each keeps its
best time. One more turn, not timed, writes Spark's event log, to count the executions, those that read more than a
hundredth of the rows, how often a row was read, and the CPU time of all tasks in the JVM.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

ROWS = 10_000_000
ROWS_PER_CHAIN = 1_000
ROWS_PER_FILE = 1_250_000
NUMBER = ["stream", "partition", "publisher", "chain", "timestamp", "sequence"]
PEER = "--drop-duplicates"


def drop_duplicates(source: str, out: str, *config: str) -> None:
    """The peer, in its own process."""
    from onefold.spark.session import session

    spark = session(config=dict(line.split("=", 1) for line in config))
    spark.read.parquet(source).dropDuplicates(NUMBER).write.mode("overwrite").parquet(out)


def commands(folder: Path, config: dict[str, str]) -> dict[str, list[str]]:
    source, pipeline = folder / "t" / "messages", folder / "run.toml"
    lines = ["[source]", f'path = "{source}"', "[judge]", 'floor = "open"', "[publish]", f'path = "{folder}/out"']
    pipeline.write_text("\n".join([*lines, "[spark.config]", *(f'"{k}" = "{v}"' for k, v in config.items()), ""]))
    pairs = [f"{name}={value}" for name, value in config.items()]
    return {
        "dropDuplicates": [sys.executable, __file__, PEER, str(source), f"{folder}/peer", *pairs],
        "onefold run": [f"{Path(sys.executable).parent}/onefold", "run", str(pipeline)],
    }


def seconds(command: list[str]) -> float:
    started = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2_000:]}")
    return perf_counter() - started


def counted(log: Path) -> dict[str, Any]:
    """What an event log tells: executions and jobs, those that read rows, rows read, CPU seconds of the tasks."""
    executions, read, cpu, ran = dict[int, str](), Counter[int](), Counter[int](), set[int]()
    jobs = 0
    for file in sorted(log.rglob("events*")) or [path for path in log.iterdir() if path.is_file()]:
        for event in map(json.loads, file.read_text().splitlines()):
            if event["Event"] == "SparkListenerJobStart":
                jobs += 1
                execution = event.get("Properties", {}).get("spark.sql.execution.id")
                executions |= dict.fromkeys(event["Stage IDs"], execution or f"job {event['Job ID']}")
            elif event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
                stage, metrics = event["Stage ID"], event["Task Metrics"]
                read[stage] += metrics["Input Metrics"]["Records Read"]
                cpu[stage] += metrics["Executor CPU Time"]
                ran.add(stage)
    return {
        "executions": len(set(executions.values())),
        "jobs": jobs,
        "rows": sum(read.values()),
        "cpu": sum(cpu.values()) / 1e9,
        "by_execution": {
            name: (
                sum(read[s] for s in ran if executions[s] == name),
                sum(cpu[s] for s in ran if executions[s] == name),
            )
            for name in dict.fromkeys(executions.values())
        },
    }


def main() -> None:
    from onefold.testing.traffic import Traffic, make, write

    if sys.argv[1:2] == [PEER]:
        return drop_duplicates(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="tell rows read and CPU seconds of each execution")
    options = parser.parse_args()
    rows, chains = options.rows, max(1, options.rows // ROWS_PER_CHAIN)
    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as name:
        folder = Path(name)
        write(make(Traffic(rows=rows, chains=chains)), folder / "t", files=max(2, rows // ROWS_PER_FILE))
        times: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for way, command in commands(folder, {}).items():
                times.setdefault(way, []).append(seconds(command))
        phases = json.loads((folder / "out" / "run.json").read_text())["figures"]["phases"]
        print(f"\n## {rows:,} rows, {chains:,} chains, best of {options.rounds}\n")
        names = ["way", "seconds", "all rounds", "ratio", "executions", "jobs", "that read rows"]
        names += ["reads of a row", "CPU s of tasks"]
        print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
        peer, logs = min(times["dropDuplicates"]), {}
        for way in times:
            log = folder / "log"
            log.mkdir()
            config = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri()}
            seconds(commands(folder, {**config, "spark.eventLog.compress": "false"})[way])
            logs[way] = counts = counted(log)
            shutil.rmtree(log)
            best, every = min(times[way]), " ".join(f"{turn:.1f}" for turn in times[way])
            reading = sum(read > rows // 100 for read, _ in counts["by_execution"].values())
            cells = f"{counts['executions']} | {counts['jobs']} | {reading}"
            cells = f"{cells} | {counts['rows'] / rows:.2f} | {counts['cpu']:.1f}"
            print(f"| {way} | {best:.1f} | {every} | {best / peer:.2f} | {cells} |", flush=True)
        print("\n" + ", ".join(f"{step} {lasted:.1f} s" for step, lasted in phases))
        for execution, (read, cpu) in logs["onefold run"]["by_execution"].items() if options.verbose else ():
            print(f"{execution}: {read:,} rows read, {cpu / 1e9:.1f} s")


if __name__ == "__main__":
    main()
