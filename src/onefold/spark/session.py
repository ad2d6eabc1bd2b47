"""The SparkSession: the user's own if there is one, else ours, made for one machine and quiet.

Ours talks on loopback only, shows no UI and no progress bars, keeps time in UTC and writes Spark's own chatter to a
file instead of the terminal. With another master the same settings hold; the cluster's own defaults fill the rest.
"""

import atexit
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from onefold.spark import java

_JVM_OPTIONS = " ".join(
    (
        # Arrow checks every access a second time; Spark's own readers and writers have done so already.
        "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false",
        # Throughput before short pauses: nobody waits for a single row of a batch.
        "-XX:+UseParallelGC",
    )
)

DEFAULTS = {
    "spark.app.name": "onefold",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Fine slices, which Spark's adaptive execution packs into tasks of even size.
    "spark.sql.shuffle.partitions": "64",
    # Files for several verdicts are open at once, which saves a sort of every row by its verdict.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    "spark.driver.extraJavaOptions": _JVM_OPTIONS,
    "spark.executor.extraJavaOptions": _JVM_OPTIONS,
}

LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(master: str = "local[*]", *, memory: str = "auto", config: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one on this master; ``config`` wins over every default.

    ``memory`` is the driver's heap; "auto" takes a quarter of the machine, between 1 and 8 GB.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    _environment()
    settings = {"spark.master": master, "spark.driver.memory": _memory(memory), **DEFAULTS}
    settings |= LOCAL if master.startswith("local") else {}
    conf = SparkConf().setAll(list((settings | dict(config or {})).items()))
    return SparkSession(SparkContext(conf=conf, gateway=_launch(conf)))


def running_tasks() -> tuple[int, int]:
    """Finished tasks and all tasks of the stages that are running now."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return 0, 0
    tracker = context.statusTracker()
    stages = [stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


def _environment() -> None:
    os.environ["JAVA_HOME"] = str(java.find().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else a warning about the host's name, and a look-up of it


def _launch(conf: SparkConf) -> Any:
    """Start the JVM with its output in a file, which is shown if the start fails and removed at the end."""
    descriptor, name = tempfile.mkstemp(prefix="onefold-spark-", suffix=".log")
    log = Path(name)
    try:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf=conf, popen_kwargs={"stdout": descriptor, "stderr": descriptor}
        )
    except PySparkException as error:
        said = log.read_text(errors="replace").strip().splitlines()
        raise OSError(f"Spark did not start: {said[-1] if said else error} (its log: {log})") from error
    finally:
        os.close(descriptor)
    if "ONEFOLD_DEBUG" not in os.environ:
        atexit.register(log.unlink, missing_ok=True)
    return gateway


def _memory(memory: str) -> str:
    if memory != "auto":
        return memory
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(8192, max(1024, machine // 4 // 2**20))}m"
