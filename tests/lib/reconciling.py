"""What the tests of the reconcile server share: records, a client by hand, and a real server in a thread."""

import contextlib
import http.client
import json
import threading
from typing import Any

from websockets.sync.client import connect

from onefold.reconcile import ItemSet, Record, Session, exchange, record
from onefold.reconcile.exchange import Opening, OpenReply, Trouble
from onefold.reconcile.records import MemoryRecords
from onefold.reconcile.server import ReconcileServer, ReconcileSettings


def some(numbers, id_size=32) -> list[Record]:
    """A record for each number; ten of them share a timestamp."""
    return [record(1_000 + number // 10, b"record %d" % number, id_size) for number in numbers]


def store(numbers, id_size=32) -> MemoryRecords:
    records = MemoryRecords(id_size)
    records.add(some(numbers, id_size))
    return records


def items(numbers, id_size=32) -> ItemSet:
    records = some(numbers, id_size)
    found = ItemSet.from_arrays([r.timestamp for r in records], [r.id for r in records], id_size)
    found.seal()
    return found


class Client:
    """Speaks to a peer over any channel."""

    def __init__(self, channel):
        self.channel = channel

    def ask(self, frame: bytes) -> bytes:
        self.channel.send(frame)
        answer = self.channel.recv(60) if hasattr(self.channel, "recv") else self.channel.receive()
        assert isinstance(answer, bytes)
        return answer

    def open(self, **what: Any) -> OpenReply:
        return exchange.read_document(OpenReply, self.ask(exchange.write_document(exchange.OPEN, Opening(**what))))

    def trouble(self, frame: bytes) -> Trouble:
        answer = self.ask(frame)
        assert answer[0] == exchange.ERROR, answer[:100]
        return exchange.read_document(Trouble, answer)

    def find(self, mine: ItemSet, wire="v1", **what: Any) -> tuple[set[bytes], set[bytes]]:
        """Open a session and play it to its end: what only we have, and what only they have."""
        self.open(wire=wire, id_size=mine.id_size, **what)
        session = Session(mine, wire)
        have: set[bytes] = set()
        need: set[bytes] = set()
        message: bytes | None = session.initiate()
        while message is not None:
            answer = self.ask(bytes((exchange.MESSAGE,)) + message)
            assert answer[0] == exchange.MESSAGE, answer[:200]
            message, more_have, more_need = session.reconcile(answer[1:])
            have.update(more_have)
            need.update(more_need)
        assert self.ask(bytes((exchange.CLOSE,))) == bytes((exchange.CLOSED,))
        return have, need


class Running:
    """A server that answers."""

    def __init__(self, server: ReconcileServer):
        self.server = server
        self.url = server.url.replace("http://", "ws://") + "/"

    def connect(self, **how: Any):
        return connect(self.url, compression=None, max_size=16 << 20, **how)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        with contextlib.closing(http.client.HTTPConnection(self.server.url.removeprefix("http://"), timeout=60)) as at:
            at.request("GET", path, headers=headers)
            reply = at.getresponse()
            told = reply.read()
            is_json = reply.getheader("content-type") == "application/json"
            return reply.status, json.loads(told) if is_json else told.decode()

    def figure(self, name: str) -> float:
        lines = self.get("/metrics")[1].splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def wait_for(self, name: str, value: float) -> None:
        """Ask until a figure is reached; each ask is a round trip through the server's event loop."""
        for _ in range(2_000):
            if self.figure(name) == value:
                return
        raise AssertionError(f"{name} is {self.figure(name)}, not {value}")


@contextlib.contextmanager
def running(records, **settings: Any):
    server = ReconcileServer(records, ReconcileSettings(port=0, **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.ready.wait(60)
        yield Running(server)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()
