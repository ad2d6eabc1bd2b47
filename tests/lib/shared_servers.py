"""One server of a kind for all processes of a run: the first that wants it starts it, the last to go ends it."""

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.lib.local_server import LocalServer

S = TypeVar("S", bound=LocalServer)


def join(server: S) -> S:
    """Start it, or know where the one runs that another process has started in this folder."""
    server.folder.mkdir(parents=True, exist_ok=True)
    with open(server.folder / "shared_server", "a+") as lock:  # who comes meanwhile waits until it answers
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if words := lock.read().split():
            server.port = int(words[0])
        else:
            server.start()
            assert server.process is not None
            lock.write(f"{server.port} {server.process.pid}")
    return server


def end(folder: Path) -> None:
    """End all that were started in folders of this one."""
    for file in folder.glob("*/shared_server"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text().split()[1]), signal.SIGKILL)
