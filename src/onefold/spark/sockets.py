"""Over what the JVM and its Python workers talk, where both are processes of one user on one machine: Unix sockets.

Spark's default is TCP on loopback, and there a task of few rows waits for nothing: what the JVM has to say to a worker
comes in small writes, the second is held back until the first is acknowledged, and the acknowledgement of something so
small is held back too, for 40 ms. A small job of eight tasks takes half as long without that.

Whoever can open the socket of a worker can have it run code, and Spark asks no secret of those who come this way. So
the sockets are in a folder that only its owner may enter.
"""

import atexit
import shutil
import socket
import tempfile
from pathlib import Path
from uuid import uuid4


def unix_sockets() -> dict[str, str]:
    """The settings of a new session; none, that is TCP, where temporary files cannot be sockets.

    Some file systems have none, and the path of a socket must be short: 108 bytes on Linux, 104 on macOS.
    """
    folder = Path(tempfile.mkdtemp(prefix="onefold-sockets-"))
    trial = folder / f".{uuid4()}.sock"  # a name as long as those that Spark gives
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(trial))
    except OSError:
        shutil.rmtree(folder)
        return {}
    trial.unlink()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}
