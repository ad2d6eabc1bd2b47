"""Over what the JVM and its Python workers talk, where both are processes of one user on one machine: Unix sockets.

Spark's default is TCP on loopback, and there every task waits for nothing: what the JVM has to say to a worker comes in
several small writes, the second is held back until the first is acknowledged, and the acknowledgement of something so
small is held back too, for 40 ms. A small job of eight tasks takes half as long without that.

Whoever can open the socket of a worker can have it run code, and Spark asks no secret of those who come this way. So
the sockets are in a folder that only its owner may enter.
"""

import atexit
import os
import shutil
import tempfile

_PATH_MAX = 100
"""Bytes that the path of a socket may have: the limit is 108 on Linux and 104 on macOS, with a zero at the end."""

_NAME = len("/.") + 36 + len(".sock")  # Spark calls a socket by a UUID


def unix_sockets() -> dict[str, str]:
    """The settings of a new session; none, that is TCP, where the path of temporary files is too long for a socket."""
    folder = tempfile.mkdtemp(prefix="onefold-sockets-")
    if len(os.fsencode(folder)) + _NAME > _PATH_MAX:
        os.rmdir(folder)
        return {}
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}
