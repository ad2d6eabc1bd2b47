"""onefold travels with the job: on a cluster the executors get the package from the driver.

The judgement is Python and runs on the executors, which have no onefold of their own, or another version of it. So the
driver makes an archive of its own sources and hands it to Spark, which gives it to every executor, also to those that
start later. It goes before whatever is installed there: both sides always run the same version.

The archive is pure Python, some 100 kB, and the same bytes for the same sources. What it cannot carry are the compiled
packages; `require_libraries` looks for those before the first row is read, so that a missing one is one line and not a
page of Java.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import onefold
from onefold.errors import Misuse

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LIBRARIES = ("numpy", "pyarrow")
"""What the executors' Python must have by itself: compiled, so no archive can carry it. PySpark comes with Spark."""

_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the first time that a zip file can tell
_shipped: WeakSet[SparkContext] = WeakSet()


def is_cluster(master: str) -> bool:
    """Whether the executors are processes of their own, which find their packages by themselves.

    >>> [is_cluster(master) for master in ("local", "local[*]", "local[2,3]")]
    [False, False, False]
    >>> [is_cluster(master) for master in ("local-cluster[2,1,1024]", "spark://host:7077", "yarn", "k8s://https://h")]
    [True, True, True, True]
    """
    return master != "local" and not master.startswith("local[")


def ship(spark: SparkSession) -> bool:
    """Give this package to the executors of a cluster, once per SparkContext; whether it was done now."""
    context = spark.sparkContext
    if not is_cluster(str(context.master)) or context in _shipped:
        return False
    context.addPyFile(str(archive()))
    _shipped.add(context)
    return True


def require_libraries(spark: SparkSession, names: Iterable[str] = LIBRARIES) -> None:
    """Ask one executor what it lacks; raises `Misuse` with one line that names it.

    Cost: one task. The others are taken to be like it.
    """
    for lack in spark.sparkContext.parallelize([0], 1).mapPartitions(partial(_lacks, tuple(names))).collect():
        raise Misuse(
            f"the executors' Python has no {lack}: install it there, or let spark.pyspark.python name one that has it",
            lack=lack,
        )


def _lacks(names: tuple[str, ...], _: Iterable[int]) -> Iterator[str]:
    # Runs on an executor, which imports this file to do so: that the archive arrived is tried as well.
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        yield f"{' and no '.join(missing)} ({sys.executable})"


@cache
def archive() -> Path:
    """The package as a zip file, which is there until this process ends: late executors still ask for it."""
    folder = Path(tempfile.mkdtemp(prefix="onefold-archive-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"onefold-{onefold.__version__}.zip"
    with ZipFile(path, "w") as file:
        # By way of `resources`, because the driver's own package may lie in an archive too.
        for name, source in sorted(_sources(resources.files(onefold), "onefold")):
            entry = ZipInfo(name, _LONG_AGO)
            entry.external_attr = 0o644 << 16
            file.writestr(entry, source.read_bytes(), ZIP_DEFLATED)
    return path


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".lua")) or entry.name == "py.typed":
            yield f"{name}/{entry.name}", entry
