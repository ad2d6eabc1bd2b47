"""A real server for tests: started, killed, stopped in its tracks and started again, on one port and folder."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def free_port() -> int:
    return free_ports(1)[0]


def nats_program() -> str:
    """The one that came as a wheel, else the machine's own."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server") or "nats-server"


class LocalServer:
    """A server on loopback. `with Some(folder) as server:` or start() and kill() by hand, as often as needed."""

    def __init__(self, folder: Path, port: int):
        self.folder, self.port = folder, port
        self.process: subprocess.Popen[bytes] | None = None

    def words(self) -> list[str]:
        """What starts it, in its folder; files that it reads are written here."""
        raise NotImplementedError

    def greet(self, client: socket.socket) -> bool:
        """Whether it answers, and not only listens."""
        raise NotImplementedError

    def start(self) -> Self:
        """Start it; it answers when this returns."""
        assert self.process is None, "it runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        said = self.folder / "server.log"
        with open(said, "ab") as log:
            self.process = subprocess.Popen(self.words(), cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(said.read_text())
            time.sleep(0.01)  # there is nothing that could be waited for but the port
        return self

    def kill(self) -> None:
        """As a crash does it: nothing is flushed, nothing is said."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In good order."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """It keeps its connections, and says nothing any more."""
        assert self.process is not None
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # its threads stop one by one: a moment it may yet answer

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
                return self.greet(client)
        except OSError:
            return False

    def _signal(self, number: int) -> None:
        assert self.process is not None, "it does not run"
        os.kill(self.process.pid, number)

    def _end(self, number: int) -> None:
        self._signal(number)
        assert self.process is not None
        self.process.wait(60)
        self.process = None
