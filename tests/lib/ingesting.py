"""A real ingest server for tests, in a thread or in a process, on a disk that can be held up or made to fail."""

import contextlib
import errno
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from onefold.producers.log.disk import File, Files
from onefold.producers.log.reader import LogReader
from onefold.producers.log.segments import SegmentLog
from onefold.producers.ports import LogRecord
from onefold.producers.server import IngestServer, IngestSettings
from onefold.producers.topic import Topic, Topics, TopicSettings
from onefold.producers.wire import BatchReply, decode_reply, encode_request


class Disk(Files):
    """The real one; its syncs wait while it is held, and fail when told to."""

    def __init__(self):
        self.let_go = threading.Event()
        self.let_go.set()
        self.held = threading.Event()
        self.broken = False
        self.fail_every = 0
        self.syncs = 0

    def open(self, path: str, *, new: bool = False) -> File:
        return _DiskFile(super().open(path, new=new), self)

    @contextlib.contextmanager
    def hold(self):
        """While inside, no sync ends."""
        self.held.clear()
        self.let_go.clear()
        try:
            yield self
        finally:
            self.let_go.set()


class _DiskFile(File):
    def __init__(self, file: File, disk: Disk):
        super().__init__(file._fd)
        self._disk = disk

    def sync(self) -> None:
        disk = self._disk
        disk.held.set()
        assert disk.let_go.wait(60)
        disk.syncs += 1
        if disk.broken or (disk.fail_every and disk.syncs % disk.fail_every == 0):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().sync()


class DiskTopics(Topics):
    """The topics of a folder on such a disk."""

    disk: Disk

    def _load(self, name: str, create: bool, settings: TopicSettings) -> Topic:
        topic = super()._load(name, create, settings)
        topic.close()
        return Topic(SegmentLog(self.root / name, files=self.disk), replace(settings, memory=topic.settings.memory))


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Running:
    """A server that answers, and its client."""

    folder: Path

    def __init__(self, url: str, token: str | None = None, disk: Disk | None = None, stop=lambda: None):
        self.url, self.token, self.disk, self.stop = url, token, disk or Disk(), stop
        self.address = url.removeprefix("http://")

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        client = http.client.HTTPConnection(self.address, timeout=60)
        with contextlib.closing(client):
            client.request(method, path, data, {**sent, **(headers or {})})
            reply = client.getresponse()
            told = reply.read()
        found = {name.lower(): value for name, value in reply.getheaders()}
        is_json = found.get("content-type") == "application/json"
        return Reply(reply.status, json.loads(told) if is_json else told, found)

    def publish(self, topic: str, producer: str, *messages: tuple[int, Any], epoch: int | None = None) -> Reply:
        items = [{"sequence": sequence, "payload": payload} for sequence, payload in messages]
        document = {"producer": producer, "epoch": epoch, "messages": items}
        return self.ask("POST", f"/topics/{topic}/messages", document)

    def figure(self, name: str) -> float:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return float(
            next(line.split()[-1] for line in lines if line.startswith(f"{name} ") or line.startswith(f"{name}{{"))
        )

    def wait_for(self, name: str, value: float) -> None:
        """Ask until a figure is reached; each ask is a round trip through the server's event loop."""
        for _ in range(2_000):
            if self.figure(name) == value:
                return
        raise AssertionError(f"{name} is {self.figure(name)}, not {value}")

    @contextlib.contextmanager
    def socket(self, topic: str, name: str | None = None) -> Iterator["Socket"]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        query = f"?name={name}" if name is not None else ""
        url = f"ws://{self.address}/topics/{topic}/ws{query}"
        with connect(url, additional_headers=headers, compression=None, close_timeout=2) as websocket:
            yield Socket(websocket)


class Socket:
    """A producer's session."""

    def __init__(self, websocket: ClientConnection):
        self.websocket = websocket
        self.hello = json.loads(websocket.recv(timeout=60))
        self.name, self.epoch = self.hello["name"], self.hello["epoch"]

    def send(self, number: int, *messages: tuple[int, bytes]) -> None:
        self.websocket.send(encode_request(number, self.name, self.epoch, messages))

    def reply(self) -> BatchReply:
        data = self.websocket.recv(timeout=60)
        assert isinstance(data, bytes)
        return decode_reply(data)

    def rest(self) -> tuple[list[BatchReply], int]:
        """All replies up to the end, and the code of the end."""
        replies = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                replies.append(self.reply())
        return replies, self.websocket.close_code or 0


@contextlib.contextmanager
def running(
    folder: Path, topic: TopicSettings | None = None, *, topics_max: int = 1_000, **settings: Any
) -> Iterator[Running]:
    """A server in a thread."""
    topics = DiskTopics(folder, topic, topics_max=topics_max)
    disk = topics.disk = Disk()
    server = IngestServer(topics, IngestSettings(port=0, **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.ready.wait(60)
        found = Running(server.url, settings.get("token"), disk, server.stop)
        found.folder = folder
        yield found
    finally:
        disk.let_go.set()
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


class Process:
    """A server in a process of its own."""

    alive: ClassVar[list[subprocess.Popen]] = []

    def __init__(self, folder: Path, *words: str, port: int = 0):
        command = [
            sys.executable,
            "-m",
            "onefold.cli.main",
            "serve",
            "ingest",
            str(folder),
            "--port",
            str(port),
            "--json",
        ]
        self.process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.alive.append(self.process)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()
        self.started = json.loads(line)
        self.server = Running(self.started["url"])
        self.port = int(self.started["url"].rpartition(":")[2])

    def end(self) -> tuple[int, str]:
        """Wait for it; its exit code and what it said to people."""
        _, said = self.process.communicate(timeout=60)
        self.alive.remove(self.process)
        return self.process.returncode, said


def stored(folder: Path, topic: str = "t") -> list[LogRecord]:
    """The messages in a topic's log."""
    reader = LogReader(folder / topic)
    return [record for record in reader.read(reader.start, reader.end) if record.kind in (0, 5)]
