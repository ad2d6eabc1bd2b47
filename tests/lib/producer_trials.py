"""Topics that lose power, fail to write and are killed: shared by the suite and by ``./run soak producers``."""

import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from onefold.errors import StoreFailed
from onefold.producers.client import Producer
from onefold.producers.log.reader import LogReader
from onefold.producers.log.segments import SegmentLog
from onefold.producers.publisher import producer_name
from onefold.producers.records import Kind
from onefold.producers.topic import Topic, TopicSettings
from onefold.verdict import Verdict
from tests.lib.disk import SimDisk
from tests.lib.power import ERRORS, Counts

PRODUCERS = 3
SEGMENT_BYTES = 2_000


def open_topic(disk: SimDisk, deduplicate: bool = True) -> Topic:
    log = SegmentLog("/topic", segment_bytes=SEGMENT_BYTES, files=disk)
    return Topic(log, TopicSettings(deduplicate=deduplicate, snapshot_entries=20), clock=lambda: 1)


def payload(producer: str, sequence: int) -> bytes:
    return f"{producer} says {sequence}".encode()


@dataclass
class Senders:
    """What each producer has sent, and how far it has receipts."""

    sent: dict[str, int] = field(default_factory=lambda: {f"p{i}": 0 for i in range(PRODUCERS)})
    receipts: dict[str, int] = field(default_factory=lambda: {f"p{i}": 0 for i in range(PRODUCERS)})

    def publish(self, topic: Topic, producer: str, count: int) -> None:
        """Send all that has no receipt yet, and some more, as one batch."""
        first = self.receipts[producer]
        self.sent[producer] = max(self.sent[producer], first + count)
        last = self.sent[producer]
        receipts = topic.publish(producer, [(n, payload(producer, n)) for n in range(first, last)])
        assert {receipt.verdict for receipt in receipts} <= {Verdict.FIRST, Verdict.REPEAT}, receipts
        self.receipts[producer] = last

    def check(self, topic: Topic, *, done: bool = False) -> int:
        """Hold the topic to its word; how many messages are stored twice."""
        found: dict[str, list[int]] = {name: [] for name in self.sent}
        for record in topic.log.read(topic.log.start):
            if record.kind == Kind.MESSAGE:
                assert record.payload == payload(record.producer, record.sequence)
                found[record.producer].append(record.sequence)
        doubles = 0
        for name, sequences in found.items():
            doubles += len(sequences) - len(set(sequences))
            stored = len(set(sequences))
            assert self.receipts[name] <= stored <= self.sent[name], f"{name}: {stored} stored, {self}"
            assert sorted(set(sequences)) == list(range(stored)), f"{name}: not without holes: {sequences}"
            assert doubles or sequences == sorted(sequences), f"{name}: out of order: {sequences}"
            assert not done or stored == self.sent[name]
        return doubles

    def finish(self, topic: Topic) -> int:
        """Everybody sends what has no receipt, and then something new; how many messages are stored twice."""
        after = Senders(dict(self.sent), dict(self.receipts))
        for name in after.sent:
            after.publish(topic, name, 1)
        return after.check(topic, done=True)


def live(topic: Topic, disk: SimDisk, senders: Senders, rng: random.Random, deduplicate: bool) -> Topic:
    """One thing that happens to a topic."""
    match rng.choices(["publish", "together", "save", "reopen", "kill"], [12, 4, 2, 1, 1])[0]:
        case "publish":
            senders.publish(topic, rng.choice(sorted(senders.sent)), rng.randrange(1, 6))
        case "together":  # several share one group
            futures = {}
            for name, first in senders.receipts.items():
                senders.sent[name] = max(senders.sent[name], first + 2)
                topic.arrive(senders.sent[name] - first)
                futures[name] = topic.submit(name, [(n, payload(name, n)) for n in range(first, senders.sent[name])])
            topic.flush()
            for name, future in futures.items():
                senders.receipts[name] = senders.receipts[name] + len(future.result())
        case "save":
            topic.save()
        case "reopen":
            topic.close()
            topic = open_topic(disk, deduplicate)
        case "kill":
            disk.kill()
            topic = open_topic(disk, deduplicate)
    return topic


def power(seed: int, steps: int = 30, states: int = 4, deduplicate: bool = True) -> tuple[Counts, int]:
    """Cut the power at every operation of a life; how much was looked at, and how many messages are there twice."""
    counts, doubles = Counts(), 0
    disk, senders, rng = SimDisk(), Senders(), random.Random(seed)

    def look(_: str) -> None:
        nonlocal doubles
        counts.points += 1
        for _state in range(states):
            counts.states += 1
            state = seed * 1_000_003 + counts.states
            try:
                topic = open_topic(disk.crash(random.Random(state)), deduplicate)
                senders.check(topic)
                found = senders.finish(topic)
                assert not deduplicate or not found, f"{found} messages are stored twice"
                doubles += found
            except Exception as error:
                raise AssertionError(f"seed {seed}, before operation {disk.operations + 1}, state {state}") from error

    topic = open_topic(disk, deduplicate)
    disk.before = look
    for _ in range(steps):
        topic = live(topic, disk, senders, rng, deduplicate)
    return counts, doubles


def faults(seed: int, steps: int = 30) -> Counts:
    """Let each operation of a life fail, once or several in a row; nothing may be lost or doubled."""
    counts, operation = Counts(), 0
    while True:
        operation += 1
        for lasting in (1, 3, 8):
            if not _with_fault(seed, steps, operation, lasting):
                return counts
            counts.states += 1
        counts.points += 1


def _with_fault(seed: int, steps: int, operation: int, lasting: int) -> bool:
    disk, senders, rng = SimDisk(), Senders(), random.Random(seed)
    topic = open_topic(disk)
    before = disk.operations
    disk.fail(operation, lasting, ERRORS[operation % len(ERRORS)])
    for _ in range(steps):
        for _ in range(lasting + 1):  # the cause goes away at some time
            try:
                topic = live(topic, disk, senders, rng, True)
                break
            except StoreFailed:
                topic = _opened_again(topic, disk)
    reached = disk.operations - before >= operation
    disk.heal()
    topic = _opened_again(topic, disk)
    senders.check(topic)
    assert senders.finish(topic) == 0, f"seed {seed}, operation {operation}, {lasting} failures"
    return reached


def _opened_again(topic: Topic, disk: SimDisk) -> Topic:
    """The topic if it still goes; one that was closed by a failed reopening is opened, however often that takes."""
    try:
        topic.last_sequence_id("p0")
        list(topic.log.read(topic.log.start, topic.log.start))
        return topic
    except Exception:
        while True:
            try:
                disk.kill()
                return open_topic(disk)
            except StoreFailed:
                continue


# --- kill -9 of a real server -----------------------------------------------------------------------------------------


class Server:
    """``onefold serve ingest`` as a process, on one port for all its lives."""

    def __init__(self, folder: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        words = ["serve", "ingest", str(folder), "--port", str(self.port), "--snapshot-entries", "500", *flags]
        self._command = [sys.executable, "-m", "onefold.cli.main", *words]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = monotonic() + 60
        while monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, f"the server ended with {self._process.poll()}"
            sleep(0.02)
        raise AssertionError("the server does not come up")

    def stop(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self._process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)


def kills(count: int, seed: int = 1, clients: int = 4, say: Callable[[str], None] = print) -> str:
    """Kill a server under load again and again; what was published, or an AssertionError."""
    rng, done = random.Random(seed), threading.Event()
    with tempfile.TemporaryDirectory(prefix="onefold-kills-") as root:
        server = Server(Path(root))
        acknowledged: dict[str, list[int]] = {}
        problems: list[BaseException] = []

        def publish(name: str) -> None:
            try:
                with Producer("load", at=f"http://127.0.0.1:{server.port}", name=name, retry_s=120) as producer:
                    mine = acknowledged.setdefault(name, [])
                    while not done.is_set():
                        first = len(mine)
                        futures = [producer.send_async(payload(name, first + n)) for n in range(50)]
                        for n, future in enumerate(futures):
                            assert future.result().verdict in (Verdict.FIRST, Verdict.REPEAT), future.result()
                            mine.append(first + n)
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=publish, args=(f"client-{i}",)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for n in range(1, count + 1):
            sleep(rng.uniform(0.05, 0.6))
            server.stop(signal.SIGKILL)
            server.start()
            if n % 20 == 0:
                say(f"kill {n}: {sum(map(len, acknowledged.values())):,} messages have receipts")
        done.set()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        assert server.stop(signal.SIGTERM) == 0
        records = [r for r in _messages(Path(root) / "load") if r[0] in acknowledged]
        found = Counter(records)
        doubles = [key for key, times in found.items() if times > 1]
        assert not doubles, f"stored twice: {doubles[:5]}"
        for name, mine in acknowledged.items():
            stored = [sequence for producer, sequence in records if producer == name]
            assert stored == sorted(stored), f"{name}: out of order"
            assert set(mine) <= set(stored), f"{name}: receipts without messages"
            assert len(stored) == len(mine), f"{name}: {len(stored)} stored, {len(mine)} sent"
        return f"{count} kills, {len(records):,} messages of {clients} clients: each stored once, in order"


def _messages(folder: Path) -> list[tuple[str, int]]:
    log = LogReader(folder)
    return [(r.producer, r.sequence) for r in log.read(log.start, log.end) if r.kind == Kind.MESSAGE]


# --- a Spark stream that reads meanwhile ------------------------------------------------------------------------------


def reading(spark: Any, folder: Path, kills: int, lines: int, files: int = 3, seed: int = 1) -> str:
    """Read a topic as a stream while its publishers and its server die; what came of it, or an AssertionError."""
    from onefold.spark.columns import ProducerColumns
    from onefold.spark.ingest import SourceSpec
    from onefold.spark.producers import ProducersEngine
    from onefold.spark.stream import Streaming, run_stream

    rng, stop, problems = random.Random(seed), threading.Event(), list[BaseException]()
    paths = [folder / f"file-{i}.txt" for i in range(files)]
    wanted: set[tuple[str, int]] = set()
    for path in paths:
        path.write_text("".join(f"line {n} of {path.name}\n" for n in range(lines)))
        text = path.read_bytes()
        wanted |= {(producer_name(path), 0)} | {
            (producer_name(path), i + 1) for i in range(len(text) - 1) if text[i] == 10
        }
    server = Server(folder / "log")
    with Producer("lines", at=f"http://127.0.0.1:{server.port}"):
        pass  # the topic is there before the stream begins

    def publish() -> None:
        try:
            _publish(paths, server, rng, kills)
        except BaseException as error:
            problems.append(error)
        published.set()

    def tell(progress: Any) -> None:
        if published.is_set() and (problems or progress.tally.received >= len(wanted)):
            stop.set()

    published = threading.Event()
    thread = threading.Thread(target=publish)
    thread.start()
    source = SourceSpec(path=str(folder / "log" / "lines"), format="onefold-log")
    judging = ProducersEngine(columns=ProducerColumns(order="offset", payload=("payload",)), partitions=2)
    streaming = Streaming(checkpoint=str(folder / "checkpoint"), trigger="200 milliseconds", buckets=2)
    try:
        run_stream(spark, source, judging, streaming, str(folder / "out"), tell=tell, stop=stop)
    finally:
        thread.join()
        server.stop(signal.SIGTERM)
    if problems:
        raise problems[0]
    rows = spark.read.parquet(str(folder / "out" / "batches" / "*" / "firsts")).select("producer", "sequence").collect()
    found = Counter((row.producer, row.sequence) for row in rows)
    assert set(found) == wanted, (
        f"{len(wanted - set(found))} lines are missing, {len(set(found) - wanted)} are invented"
    )
    assert max(found.values()) == 1, "a line is there twice"
    return f"{kills} kills, {len(wanted):,} lines of {files} files: each exactly once in the output of the stream"


def _publish(paths: list[Path], server: Server, rng: random.Random, kills: int) -> None:
    """Publish the files, each by a process of its own; kill one of them or the server, again and again."""
    words = [sys.executable, "-m", "onefold.cli.main", "publish"]
    to = ["--topic", "lines", "--to", f"http://127.0.0.1:{server.port}"]

    def start(path: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*words, str(path), *to], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    running = {path: start(path) for path in paths}
    for n in range(kills):
        sleep(rng.uniform(0.1, 0.8))
        if n % 2:
            server.stop(signal.SIGKILL)
            server.start()
        else:
            path = rng.choice(paths)
            running[path].kill()
            running[path].wait()
            running[path] = start(path)
    for path, process in running.items():
        assert process.wait(120) == 0, f"the publisher of {path.name} ended with {process.returncode}"
