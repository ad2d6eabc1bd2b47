"""A real nats-server with JetStream for tests: started, killed and started again, on one port and folder."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.mqtt_broker import free_ports, program


class NatsServer:
    """A server on loopback. `with NatsServer(folder) as server:` or start() and kill() by hand, as often as needed."""

    def __init__(self, folder: Path, *, user: str = "", password: str = "", more: str = "", jetstream: bool = True):
        self.folder = folder
        self.user, self.password, self.more, self.jetstream = user, password, more, jetstream
        [self.port] = free_ports(1)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        who = f"{self.user}:{self.password}@" if self.user else ""
        return f"nats://{who}127.0.0.1:{self.port}"

    def start(self) -> "NatsServer":
        """Start it; JetStream answers when this returns."""
        assert self.process is None, "it runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        who = f'authorization {{ user: "{self.user}", password: "{self.password}" }}' if self.user else ""
        store = f'jetstream {{ store_dir: "{self.folder}/js", sync_interval: always }}' if self.jetstream else ""
        (self.folder / "nats.conf").write_text(
            f'server_name: t\nlisten: "127.0.0.1:{self.port}"\n{who}\n{self.more}\n{store}\n'
        )
        with open(self.folder / "nats.log", "ab") as log:
            self.process = subprocess.Popen([program(), "-c", "nats.conf"], cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.folder / "nats.log").read_text())
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
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> "NatsServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()

    def _signal(self, number: int) -> None:
        assert self.process is not None, "it does not run"
        os.kill(self.process.pid, number)

    def _end(self, number: int) -> None:
        self._signal(number)
        assert self.process is not None
        self.process.wait(20)
        self.process = None

    def _answers(self) -> bool:
        """It greets, and it has read its streams: the port is opened after that."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
                return client.recv(5) == b"INFO "
        except OSError:
            return False
