"""A real nats-server with JetStream, for tests."""

import socket
from pathlib import Path

from tests.lib.local_server import LocalServer, free_port, nats_program


class NatsServer(LocalServer):
    """What it has answered it keeps (sync_interval: always)."""

    def __init__(self, folder: Path, *, user: str = "", password: str = "", more: str = "", jetstream: bool = True):
        super().__init__(folder, free_port())
        self.user, self.password, self.more, self.jetstream = user, password, more, jetstream

    @property
    def url(self) -> str:
        who = f"{self.user}:{self.password}@" if self.user else ""
        return f"nats://{who}127.0.0.1:{self.port}"

    def words(self) -> list[str]:
        who = f'authorization {{ user: "{self.user}", password: "{self.password}" }}' if self.user else ""
        store = f'jetstream {{ store_dir: "{self.folder}/js", sync_interval: always }}' if self.jetstream else ""
        (self.folder / "nats.conf").write_text(
            f'server_name: t\nlisten: "127.0.0.1:{self.port}"\n{who}\n{self.more}\n{store}\n'
        )
        return [nats_program(), "-c", "nats.conf"]

    def greet(self, client: socket.socket) -> bool:
        """It has read its streams: the port is opened after that."""
        return client.recv(5) == b"INFO "
