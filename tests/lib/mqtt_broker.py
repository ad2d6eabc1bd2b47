"""A real MQTT broker for tests: nats-server."""

import socket
from pathlib import Path

from tests.lib.local_server import LocalServer, free_ports, nats_program


class MqttBroker(LocalServer):
    """It listens for MQTT on its port."""

    def __init__(self, folder: Path, *, user: str = "", password: str = ""):
        self._nats, port = free_ports(2)
        super().__init__(folder, port)
        self.user, self.password = user, password

    @property
    def url(self) -> str:
        who = f"{self.user}:{self.password}@" if self.user else ""
        return f"mqtt://{who}127.0.0.1:{self.port}"

    def words(self) -> list[str]:
        who = f'authorization {{ user: "{self.user}", password: "{self.password}" }}' if self.user else ""
        (self.folder / "nats.conf").write_text(
            f'server_name: t\nlisten: "127.0.0.1:{self._nats}"\n{who}\n'
            f'jetstream {{ store_dir: "{self.folder}/js" }}\nmqtt {{ listen: "127.0.0.1:{self.port}" }}\n'
        )
        return [nats_program(), "-c", "nats.conf"]

    def greet(self, client: socket.socket) -> bool:
        """An MQTT CONNECT gets its CONNACK, whatever that says."""
        head = b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x05probe"
        client.sendall(b"\x10" + bytes([len(head)]) + head)
        return client.recv(4)[:1] == b"\x20"
