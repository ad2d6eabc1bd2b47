"""A real MQTT broker for tests: nats-server, started, killed and started again, on one port and folder."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path


def program() -> str:
    """The one that came as a wheel, else the machine's own."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server") or "nats-server"


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class MqttBroker:
    """A broker on loopback. `with MqttBroker(folder) as broker:` or start() and kill() by hand, as often as needed."""

    def __init__(self, folder: Path, *, user: str = "", password: str = ""):
        self.folder = folder
        self.user, self.password = user, password
        self._nats, self.port = free_ports(2)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        who = f"{self.user}:{self.password}@" if self.user else ""
        return f"mqtt://{who}127.0.0.1:{self.port}"

    def start(self) -> "MqttBroker":
        """Start it; it answers when this returns."""
        assert self.process is None, "it runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        who = f'authorization {{ user: "{self.user}", password: "{self.password}" }}' if self.user else ""
        (self.folder / "nats.conf").write_text(
            f'server_name: t\nlisten: "127.0.0.1:{self._nats}"\n{who}\n'
            f'jetstream {{ store_dir: "{self.folder}/js" }}\nmqtt {{ listen: "127.0.0.1:{self.port}" }}\n'
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
        """As a crash does it."""
        assert self.process is not None, "it does not run"
        self.process.kill()
        self.process.wait(20)
        self.process = None

    def __enter__(self) -> "MqttBroker":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()

    def _answers(self) -> bool:
        """An MQTT CONNECT gets its CONNACK, whatever that says."""
        head = b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x05probe"
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
                client.sendall(b"\x10" + bytes([len(head)]) + head)
                return client.recv(4)[:1] == b"\x20"
        except OSError:
            return False
