"""./run soak kills: kill -9 of a streaming pipeline at random moments, repeatedly; then count.

With ``--s3`` source, output, checkpoint and memory are in moto's S3 on loopback, and the output is checked after each
kill: every file under a final name must be in a commit, and every file in a commit must exist.

With ``--executors`` the executors of a local cluster are killed, while the driver continues. Speculation is on.

The pipeline is ``onefold run`` with micro-batches of one file. Each start is killed, with all its processes, a random
time after its first sign of life in the output; after enough kills, one start may finish. Then every row must be in the
output exactly once with the right verdict, the books must balance, and no start may have reported otherwise. The right
verdicts are those of a batch run for chains, and those of `IdDetector`, row by row, for ids (``--engine ids``): copies
arrive within the window, and well beyond it, where they must be UNSURE.

With ``--kafka`` the source is a topic of four partitions in librdkafka's mock cluster, which survives the kills. Every
offset of the broker must be in the output once, and every id must have one FIRST.

With ``--format delta`` or ``iceberg`` the output is a table. It is read three times: by deltalake or pyiceberg, by our
own reader, and by Spark as the Parquet files that the newest metadata names.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' broker

WINDOW_H = 6
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.05",
    "spark.speculation.minTaskRuntime": "0ms",
}
"""Second attempts beside the first, as eagerly as Spark makes them; on a local cluster they run at the same time."""
START_S_MAX = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executors", action="store_true", help="kill executors of a local cluster, not the driver")
    parser.add_argument("--files", type=int, default=40, help="a batch each; ten for a kill are enough")
    parser.add_argument("--engine", choices=("chains", "ids"), default="chains")
    parser.add_argument("--s3", action="store_true", help="everything in an object store")
    parser.add_argument("--kafka", action="store_true", help="ids in a topic instead of files")
    parser.add_argument("--format", choices=("parquet", *TABLES), default="parquet", help="of the output")
    options = parser.parse_args()
    if options.format in TABLES and (options.executors or options.s3):
        parser.error("--executors and --s3 are for Parquet")
    with tempfile.TemporaryDirectory(prefix="onefold-kills-") as folder:
        rng = random.Random(options.seed)
        if options.kafka:
            survive_kafka(Path(folder), options.kills, options.rows, options.files, rng, options.format)
        elif options.executors:
            lose_executors(Path(folder), options.kills, options.rows, options.files, rng, options.engine)
        else:
            with store(Path(folder)) if options.s3 else nullcontext():
                settings = (options.rows, options.files, rng, options.engine, options.s3, options.format)
                survive(Path(folder), options.kills, *settings)


def survive(
    folder: Path, kills: int, rows: int, files: int, rng: random.Random, engine: str, is_stored: bool, format: str
) -> None:
    pipeline = prepare(folder, rows, files, engine)
    publish_as(pipeline, format)
    if is_stored:
        to_store(folder, pipeline)
    begun = committed if format in TABLES else signs
    kill_and_finish(pipeline, folder, kills, rng, begun, look=look if is_stored else None)
    verify(folder, rows, engine)
    print(f"{kills} kills, {rows:,} rows of {engine}: every row once, verdicts right, the books balance")


def survive_kafka(folder: Path, kills: int, rows: int, batches: int, rng: random.Random, format: str) -> None:
    from tests.lib.kafka_broker import PARTITIONS, KafkaBroker

    broker, ids = KafkaBroker(), [f"{rng.getrandbits(64):016x}" for _ in range(rows * 4 // 5)]
    ids += rng.choices(ids, k=rows - len(ids))  # copies, some near and some far
    rng.shuffle(ids)
    broker.send("events", ((n % PARTITIONS, id, json.dumps({"event_id": id, "n": n})) for n, id in enumerate(ids)))
    pipeline = folder / "pipeline.toml"
    pipeline.write_text(
        f"""[source]
format = "kafka"
bootstrap_servers = "{broker.servers}"
topic = "events"
mode = "stream"
max_offsets_per_trigger = {-(-rows // batches)}
[source.value]
schema = "event_id string, n long"
[judge]
engine = "ids"
id = "event_id"
[publish]
path = "out"
[spark]
master = "local[2]"
memory = "1g"
buckets = 4
"""
    )
    publish_as(pipeline, format)
    kill_and_finish(pipeline, folder, kills, rng, committed, 8.0)  # of a start that published something already
    offsets = {(n % PARTITIONS, n // PARTITIONS) for n in range(rows)}
    for reader, lines in published(folder, ["kafka_partition", "kafka_offset", "event_id", "n", "verdict"]):
        seen: Counter[tuple[int, int]] = Counter()
        firsts: Counter[str] = Counter()
        for partition, offset, id, n, verdict in lines:
            assert ids[n] == id, "a value of another message"
            seen[partition, offset] += 1
            firsts[id] += verdict == "FIRST"
        assert seen == Counter(dict.fromkeys(offsets, 1)), "messages are missing or twice"
        assert firsts == Counter(dict.fromkeys(ids, 1)), "an id has no first, or several"
        print(f"read by {reader}: every message once, each of {len(firsts):,} ids has one FIRST")
    assert books(folder).check().received == rows
    print(f"{kills} kills, {rows:,} messages of Kafka: every message once, and the books balance")


def kill_and_finish(
    pipeline: Path, folder: Path, kills: int, rng: random.Random, begun: Callable[[Path], object], upto_s: float = 15.0,
    look: Callable[[Path], None] | None = None,
) -> None:  # fmt: skip
    moments: list[float] = []
    while len(moments) < kills:
        code, moment = start(pipeline, folder, rng.uniform(0.0, upto_s), begun)
        if code == 0:
            raise SystemExit(f"the stream was done after {len(moments)} kills: give it more files")
        moments.append(moment)
        if look is not None:
            look(folder)
        print(f"kill {len(moments)} after {moment:.1f} s, {committed(folder)} batches committed", flush=True)
    code, _ = start(pipeline, folder, None, begun)
    if code != 0:
        raise SystemExit(f"the last start ended with {code}: {(folder / 'log').read_text()[-500:]}")
    if look is not None:
        look(folder)


@contextmanager
def store(folder: Path) -> Iterator[None]:
    """An S3 server, and an environment that knows of it."""
    from tests.lib.s3_server import BUCKET, S3Server

    with S3Server(folder / "s3") as server:
        server.client().create_bucket(Bucket=BUCKET)
        os.environ.update(server.environ)
        yield


def to_store(folder: Path, pipeline: Path) -> None:
    """Move the source there, and let the pipeline read and publish there."""
    from onefold.spark.objects import file_system

    for file in sorted((folder / "in" / "messages").glob("*.parquet")):
        files, path = file_system(f"s3://messages/in/{file.name}")
        with files.open_output_stream(path) as stream:
            stream.write(file.read_bytes())
    text = pipeline.read_text().replace('"in/messages"', '"s3://messages/in"').replace('"out"', '"s3://messages/out"')
    pipeline.write_text(text)


def look(folder: Path) -> None:
    """What is published in the store: as a whole, and nothing else under a final name; then a copy of it here."""
    from onefold.spark.objects import files_below, opened

    out = "s3://messages/out"
    names = {file.url.removeprefix(f"{out}/") for file in files_below(f"{out}/batches")}
    named: set[str] = set()
    for file in files_below(f"{out}/_commits"):
        with opened(file.url) as raw:
            commit = json.loads(raw.read())
        counts = []
        for final, staged in commit["files"].items():
            with opened(f"{out}/{final if final in names else staged}") as raw:
                counts.append(pq.ParquetFile(raw).metadata.num_rows if "/gaps/" not in final else 0)
        (tally,) = (each for name, each in commit["documents"].items() if name.endswith("tally.json"))
        assert sum(counts) == tally["in"], f"{file.url} is not whole"
        named |= {*commit["files"], *commit["documents"]}
    assert names <= named, f"never committed: {sorted(names - named)[:3]}"
    for name in names:
        copy = folder / "out" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with opened(f"{out}/{name}") as raw:
            copy.write_bytes(raw.read())


def lose_executors(folder: Path, kills: int, rows: int, files: int, rng: random.Random, engine: str) -> None:
    """One start on a local cluster, whose executors are killed while it goes on."""
    pipeline = prepare(folder, rows, files, engine, "local-cluster[2,1,700]")
    with (folder / "log").open("ab") as log:
        command = [str(Path(sys.executable).parent / "onefold"), "run", str(pipeline)]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    killed = 0
    while process.poll() is None:
        sleep(rng.uniform(2.0, 8.0))
        victims = executors(process.pid)
        if killed < kills and committed(folder) and victims:
            os.kill(rng.choice(victims), signal.SIGKILL)
            killed += 1
            print(f"executor {killed} killed, {committed(folder)} batches committed", flush=True)
    if process.returncode != 0 or killed < kills:
        raise SystemExit(f"ended with {process.returncode} after {killed} kills: {(folder / 'log').read_text()[-500:]}")
    verify(folder, rows, engine)
    print(f"{killed} executors killed, {rows:,} rows of {engine}: every row once, verdicts right, the books balance")


def executors(session_id: int) -> list[int]:
    """The executors that belong to this start."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
            if "CoarseGrainedExecutorBackend" in words and os.getsid(int(entry.name)) == session_id:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def prepare(folder: Path, rows: int, files: int, engine: str, master: str = "local[2]") -> Path:
    from onefold.testing.traffic import Traffic, make, write

    if engine == "ids":
        write_events(folder / "in" / "messages", rows, files)
        text = (
            f'[judge]\nengine = "ids"\nid = ["event_id"]\ntime = "ts"\norder = "offset"\nwindow = "{WINDOW_H} hours"\n'
        )
    else:
        write(make(Traffic(rows=rows, chains=200)), folder / "in", files=files)
        text = '[judge]\nfloor = "open"\n'
    for i, file in enumerate(sorted((folder / "in" / "messages").glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))  # Spark takes files by their age
    text += '[source]\npath = "in/messages"\nmode = "stream"\noptions = { maxFilesPerTrigger = 1 }\n'
    pipeline = folder / "pipeline.toml"
    pipeline.write_text(text + '[publish]\npath = "out"\n[spark]\n')
    with pipeline.open("a") as more:
        more.write(f'master = "{master}"\nmemory = "1g"\nbuckets = 4\nconfig."spark.executor.memory" = "700m"\n')
        for name, value in SPECULATION.items():
            more.write(f'config."{name}" = "{value}"\n')
    return pipeline


def write_events(folder: Path, rows: int, files: int) -> None:
    """A file for each hour. A fifth of the rows are copies: up to two hours old, or eleven hours and more."""
    folder.mkdir(parents=True)
    rng, size, hour = random.Random(1), rows // files, 3_600_000
    hours: list[list[tuple[str, int]]] = []
    for at in range(files):
        events = [(f"{rng.getrandbits(128):032x}", (at * size + n) * hour // size) for n in range(size * 4 // 5)]
        near, far = [*hours[-2:], events], hours[: max(0, at - WINDOW_H - 5)]
        copies = [rng.choice(rng.choice(far if far and n % 2 else near)) for n in range(size - len(events))]
        hours.append(events)
        ids, times = zip(*rng.sample([*events, *copies], size), strict=True)
        columns = {"event_id": ids, "ts": times, "offset": range(at * size, (at + 1) * size)}
        pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), folder / f"{at:05}.parquet")


def start(
    pipeline: Path, folder: Path, after_s: float | None, begun: Callable[[Path], object]
) -> tuple[int | None, float]:
    """Run the pipeline; kill it so long after it has ``begun``, unless it is None."""
    command = [str(Path(sys.executable).parent / "onefold"), "run", str(pipeline)]
    before = begun(folder)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    began = monotonic()
    if after_s is None:
        return process.wait(600), monotonic() - began
    while begun(folder) == before and process.poll() is None and monotonic() - began < START_S_MAX:
        sleep(0.05)
    try:
        return process.wait(after_s), monotonic() - began
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None, monotonic() - began


TABLES = {"delta": "out", "iceberg": "lake/catalog.db#db.out"}
"""Where a table is, by its format."""


def publish_as(pipeline: Path, format: str) -> None:
    """Let the pipeline publish to a table."""
    if format in TABLES:
        to = f'path = "{TABLES[format]}"\nformat = "{format}"\ncheckpoint = "out.checkpoint"'
        pipeline.write_text(pipeline.read_text().replace('path = "out"', to))


def signs(folder: Path) -> set[str]:
    if (folder / "s3").exists():
        from pyarrow import fs

        from onefold.spark.objects import file_system

        places = (f"s3://messages/out/{name}" for name in ("_staging", "_commits"))
        found = (file_system(url) for url in (*places, "s3://messages/out.checkpoint/offsets"))
        selectors = ((files, fs.FileSelector(path, recursive=True, allow_not_found=True)) for files, path in found)
        return {info.path for files, selector in selectors for info in files.get_file_info(selector)}
    tables = ("out/data", "out/_onefold", "out/_delta_log", "lake/db/out/data", "lake/db/out/metadata")
    places = (folder / name for name in ("out/_staging", "out/batches", "out.checkpoint/offsets", *tables))
    return {f"{place}/{name}" for place in places if place.exists() for name in os.listdir(place)}


def committed(folder: Path) -> int:
    if (catalog := folder / "lake" / "catalog.db").exists():
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(catalog)) as connection:
            query = "select metadata_location from iceberg_tables where table_name = 'out'"
            (location,) = connection.execute(query).fetchone() or ("00000",)
            return int(Path(location).name[:5])  # the table without rows is 0
        return 0
    batches, log = folder / "out" / "batches", folder / "out" / "_delta_log"
    return len(os.listdir(batches)) if batches.exists() else len([*log.glob("*.json")])


def published(folder: Path, names: list[str]) -> Iterator[tuple[str, Iterator[tuple[Any, ...]]]]:
    """All rows of the output, by each of its readers."""
    if (folder / "out" / "batches").exists():
        files = [each for each in (folder / "out" / "batches").glob("*/*/*.parquet") if each.parts[-2] != "gaps"]
        yield "Arrow", chain.from_iterable(lines(pq.ParquetFile(file).read(names), names) for file in sorted(files))
        return
    from pyspark.sql.functions import lit

    from onefold.spark.lakes import open_snapshot
    from onefold.spark.session import session

    is_delta = (folder / "out" / "_delta_log").exists()
    if is_delta:
        yield "deltalake", lines(DeltaTable(folder / "out").to_pyarrow_table(columns=names), names)
    else:
        yield "pyiceberg", lines(iceberg(folder).scan(selected_fields=tuple(names)).to_arrow(), names)
    format, spark = "delta" if is_delta else "iceberg", session("local[2]", memory="1g")
    snapshot = open_snapshot(f"{folder}/{TABLES[format]}", format, {})
    yield "our own reader", (tuple(row) for row in snapshot.read(spark).select(*names).toLocalIterator())
    root, verdicts = folder / "out" if is_delta else Path("/"), {file.values["verdict"] for file in snapshot.files}
    tables = []
    for verdict in sorted(verdicts):  # of Delta it stands in the log, and in no file
        files = [str(root / file.path) for file in snapshot.files if file.rows and file.values["verdict"] == verdict]
        tables.append(spark.read.parquet(*files).withColumn("verdict", lit(verdict)).select(*names))
    rows = chain.from_iterable(table.toLocalIterator() for table in tables)
    yield f"Spark's Parquet reader, of {len(snapshot.files)} files", (tuple(row) for row in rows)


def lines(table: pa.Table, names: list[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def iceberg(folder: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", type="sql", uri=f"sqlite:///{folder}/lake/catalog.db").load_table("db.out")


def verify(folder: Path, rows: int, engine: str) -> None:
    right = verdicts_of_ids(folder) if engine == "ids" else verdicts_of_chains(folder)
    for reader, every in published(folder, ["offset", "verdict"]):
        assert Counter(every) == Counter(right), f"read by {reader}: rows or their verdicts differ"
        print(f"read by {reader}: every row once, with its verdict")
    counts = Counter(verdict for _, verdict in right)
    print(", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counts.items())))
    tally = books(folder)
    assert tally.check().received == rows, tally


def books(folder: Path) -> Any:
    from onefold.tally import Tally

    if (folder / "lake").exists():
        return Tally.from_dict(json.loads(iceberg(folder).properties["onefold.total"]))
    if (folder / "out" / "_delta_log").exists():
        return Tally.from_dict(DeltaTable(folder / "out").history(1)[0]["onefold"]["total"])
    tally = Tally()
    for file in sorted((folder / "out" / "batches").glob("*/tally.json")):
        document = json.loads(file.read_text())
        tally = tally + Tally.from_dict({key: value for key, value in document.items() if key != "batch"})
    return tally


def verdicts_of_chains(folder: Path) -> list[tuple[Any, ...]]:
    from onefold.spark import judge_chains
    from onefold.spark.session import session

    table = session("local[2]", memory="1g").read.parquet(str(folder / "in" / "messages"))
    return [tuple(row) for row in table.transform(judge_chains(floor="open")).select("offset", "verdict").collect()]


def verdicts_of_ids(folder: Path) -> list[tuple[Any, ...]]:
    from onefold import IdDetector

    judge = IdDetector(WINDOW_H * 3_600_000).judge
    rows: list[dict[str, Any]] = []
    for file in sorted((folder / "in" / "messages").glob("*.parquet")):
        rows += pq.ParquetFile(file).read().to_pylist()
    return [(row["offset"], str(judge(row["event_id"], row["ts"]).verdict)) for row in rows]


if __name__ == "__main__":
    main()
