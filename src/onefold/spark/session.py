"""The SparkSession: the user's own if there is one, else a new one, set up for one machine and quiet.

A new session shows no UI and no progress bars, uses UTC and writes Spark's own output to a file instead of the
terminal. Other settings depend on where the executors are:

* on this machine (local, local-cluster, a standalone master on loopback): all traffic is on loopback, and executors run
  the driver's Python. Those started by the session itself (the first two) talk to Python over Unix sockets;
* elsewhere: the driver's address and Python path may be invalid there. Spark determines the address; the Python is
  ``spark.pyspark.python`` or ``PYSPARK_PYTHON``, else the executors' ``python3``.

Under ``spark-submit`` the JVM exists already: its master and settings override those here, ``config`` overrides both.

onefold ships with the job: the driver makes an archive of its own sources and passes it to Spark, which gives it to
every executor, including later ones. It takes precedence over an installed onefold, so both sides run the same version.
It cannot contain compiled packages; `require_libraries` checks those before the first row is read, so that a missing
one is one line and not a page of Java.

Only this file and `files` use ``_jvm``, ``_jdf`` or ``sparkContext``.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

import onefold
from onefold.errors import Misuse
from onefold.spark import java

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

LIBRARIES = ("numpy", "pyarrow")
"""Must be installed in the executors' Python: compiled, so not in the archive. PySpark comes with Spark."""

_shipped: WeakSet[Any] = WeakSet()
"""The SparkContexts or Spark Connect sessions that this package was shipped to."""


def is_connect(df_or_spark: DataFrame | SparkSession) -> bool:
    """Whether this is Spark Connect, where the JVM is on the server and not accessible."""
    return type(df_or_spark).__module__.startswith("pyspark.sql.connect")


def is_cluster(master: str) -> bool:
    """Whether the executors are separate processes, with packages of their own.

    >>> [is_cluster(master) for master in ("local", "local[*]", "local[2,3]")]
    [False, False, False]
    >>> [is_cluster(master) for master in ("local-cluster[2,1,1024]", "spark://host:7077", "yarn", "k8s://https://h")]
    [True, True, True, True]
    """
    return master != "local" and not master.startswith("local[")


def ship(spark: SparkSession) -> bool:
    """Ship this package to the executors of a cluster, once per SparkContext; returns whether it did so now."""
    if is_connect(spark):
        if spark in _shipped:
            return False
        spark.addArtifacts(str(archive()), pyfile=True)
        _shipped.add(spark)
        return True
    context = spark.sparkContext
    if not is_cluster(str(context.master)) or context in _shipped:
        return False
    context.addPyFile(str(archive()))
    _shipped.add(context)
    return True


def require_libraries(spark: SparkSession, names: Iterable[str] = LIBRARIES) -> None:
    """Raise `Misuse` that names the libraries an executor lacks; only one executor is checked. Cost: one task."""
    lacking = F.udf(partial(_lacks, tuple(names)), "string").asNondeterministic()
    if lack := spark.range(1).select(lacking("id")).collect()[0][0]:
        raise Misuse(
            f"the executors' Python has no {lack}: install it there, or let spark.pyspark.python name one that has it",
            lack=lack,
        )


def _lacks(names: tuple[str, ...], _: int) -> str:
    # Runs on an executor, which must import this file first: so this also checks that the archive arrived.
    missing = [name for name in names if find_spec(name) is None]
    return f"{' and no '.join(missing)} ({sys.executable})" if missing else ""


@cache
def archive() -> Path:
    """The package as a zip file; kept until this process ends, since late executors still fetch it."""
    folder = Path(tempfile.mkdtemp(prefix="onefold-archive-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    draft = folder / "draft"
    with ZipFile(draft, "w") as file:
        # By `resources`, because the driver's own package may be in an archive too.
        for name, source in sorted(_sources(resources.files(onefold), "onefold")):
            entry = ZipInfo(name)  # dated 1980, the earliest date in a zip file
            entry.external_attr = 0o644 << 16
            file.writestr(entry, source.read_bytes(), ZIP_DEFLATED)
    # A Spark Connect server refuses a file with other content under a name that any client has sent before.
    return draft.rename(folder / f"onefold-{onefold.__version__}-{sha256(draft.read_bytes()).hexdigest()[:12]}.zip")


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".lua")) or entry.name == "py.typed":
            yield f"{name}/{entry.name}", entry


def unix_sockets() -> dict[str, str]:
    """Settings for Unix sockets between JVM and Python; empty (TCP) if temporary files cannot be sockets.

    On TCP, Spark's default, the JVM sends to a worker in small writes, which Nagle's algorithm and the delayed
    acknowledgement of 40 ms hold up. A small job of eight tasks takes half as long without that.

    A process that can open a worker's socket can make it run code, and Spark does not authenticate on Unix sockets: so
    they are in a folder that only its owner may enter. Some file systems have no sockets, and a socket's path must be
    short: 108 bytes on Linux, 104 on macOS.
    """
    folder = Path(tempfile.mkdtemp(prefix="onefold-sockets-"))
    trial = folder / f".{uuid4()}.sock"  # a name as long as Spark's own
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(trial))
    except OSError:
        shutil.rmtree(folder)
        return {}
    trial.unlink()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


_JVM_OPTIONS = (
    # Arrow checks every access, which Spark's own readers and writers have done already.
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    # Throughput over short pauses: nobody waits for a single row of a batch.
    " -XX:+UseParallelGC"
    # C2 compiles a method after ten times as many calls as by default. Else, in a job of a minute, it spends a tenth on
    # the code that plans the job and starts its tasks; on few cores the rows have to wait for that.
    " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

DEFAULTS = {
    "spark.app.name": "onefold",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Else Spark looks up the Python line of each call of a column function: half the time of building a plan.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Fewer, larger batches to Python: at six integers a row, three megabytes each.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Small partitions, which adaptive execution coalesces into tasks of even size.
    "spark.sql.shuffle.partitions": "64",
    # Files for several verdicts are open at once, which saves sorting the rows by verdict.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    "spark.driver.extraJavaOptions": _JVM_OPTIONS,
    "spark.executor.extraJavaOptions": _JVM_OPTIONS,
    # A Python worker keeps up to 64 MB of free memory. Else it returns numpy's freed memory to the system and requests
    # it again at once, many times a task, and spends much of its time on zeroing new pages.
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(
    master: str = "local[*]", *, memory: str = "auto", config: Mapping[str, str] | None = None, brief: bool = False
) -> SparkSession:  # fmt: skip
    """The active session, or a new one on this master; ``config`` overrides every default.

    ``brief``: for a job of seconds, in which the JVM's C2 compiler costs more time than it saves.

    ``memory`` is the driver's heap; "auto" is a quarter of the machine's memory, between 1 and 8 GB. On a cluster this
    package is shipped to the executors, which are checked for the libraries that it needs. A master such as
    "sc://host:15002" is a Spark Connect server.
    """
    spark = SparkSession.getActiveSession()
    if spark is None and (SparkContext._active_spark_context is not None or is_remote()):
        spark = SparkSession.builder.getOrCreate()  # it is active only in the thread that made it
    if spark is None:
        if memory == "auto":
            machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            memory = f"{min(8192, max(1024, machine // 4 // 2**20))}m"
        own = dict(config or {})
        ours = {"spark.master": master, "spark.driver.memory": memory, **DEFAULTS}
        if brief:
            ours["spark.driver.extraJavaOptions"] += " -XX:TieredStopAtLevel=1"
        if master.startswith("sc://"):
            spark = _connected(master, own)
        elif "PYSPARK_GATEWAY_PORT" in os.environ:  # under spark-submit, which sets master and resources
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
            conf = SparkConf(_jvm=gateway.jvm)
            conf.setAll(list({**ours, **dict(conf.getAll()), **own}.items()))
            spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
        else:
            spark = _started(ours, own)
    if ship(spark):
        require_libraries(spark)
    return spark


def _connected(master: str, own: Mapping[str, str]) -> SparkSession:
    try:
        builder = SparkSession.builder.remote(master)
        for name, value in own.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    except ImportError as error:
        raise Misuse(f"{master} is Spark Connect: pip install 'onefold[connect]' ({error})", master=master) from error
    except PySparkException as error:
        raise OSError(f"{master} does not answer: {str(error).splitlines()[0]}") from error


def is_here(master: str) -> bool:
    """Whether the executors of this master are on this machine, so that its Python and loopback work for them.

    >>> is_here("local[2]"), is_here("local-cluster[2,1,1024]"), is_here("spark://127.0.0.1:7077")
    (True, True, True)
    >>> is_here("spark://localhost:7077,node2:7077"), is_here("yarn"), is_here("spark://127.example.org:7077")
    (False, False, False)
    """
    if master.startswith("spark://"):
        hosts = [address.rpartition(":")[0] for address in master.removeprefix("spark://").split(",")]
        return all(re.fullmatch(r"localhost|127(\.\d+){3}", host) for host in hosts)
    return master.startswith("local")


def running_tasks() -> tuple[int, int]:
    """The numbers of finished tasks and of all tasks in the running stages."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return 0, 0
    tracker = context.statusTracker()
    stages = [stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


def believed_bytes(df: DataFrame) -> int | None:
    """The optimizer's estimate of a table's size; None if it has none, which it reports as 2^63 - 1."""
    if is_connect(df):
        return None
    size = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    return None if size >= 1 << 60 else size


_cores: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()
"""The cores of Spark Connect servers, by session."""


def cores(spark: SparkSession) -> int:
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    if spark not in _cores:  # a range has one partition per core
        _cores[spark] = spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()
    return _cores[spark]


def has_executors(spark: SparkSession) -> bool:
    """Whether tasks run outside the driver's process, see `is_cluster`."""
    return is_connect(spark) or is_cluster(str(spark.sparkContext.master))


def java_version(spark: SparkSession) -> str:
    if is_connect(spark):
        return "the server's"
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("java.version"))


def query_id(spark: SparkSession) -> str:
    """The id, from the checkpoint, of the stream whose batch this thread processes; empty outside of a batch."""
    if is_connect(spark):
        raise Misuse("Spark Connect does not tell which stream a batch is of: use a classic session, or send_batch")
    return str(spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "")


_opened: WeakKeyDictionary[SparkSession, dict[str, bool]] = WeakKeyDictionary()
"""The URL schemes that a session can or cannot open."""


def opens(spark: SparkSession, scheme: str) -> bool:
    """Whether Spark can open URLs of this scheme; cached. Always true for Spark Connect, which cannot be asked."""
    if scheme == "file" or is_connect(spark):
        return True
    known = _opened.setdefault(spark, {})
    if scheme not in known:
        jvm: Any = spark.sparkContext._jvm
        files = getattr(jvm, "org.apache.hadoop.fs.FileSystem")
        try:
            files.getFileSystemClass(scheme, spark.sparkContext._jsc.hadoopConfiguration())
            known[scheme] = True
        except Py4JJavaError:
            known[scheme] = False
    return known[scheme]


def file_status(spark: SparkSession, urls: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """The URL, size in bytes and modification time (Unix milliseconds) of each file."""
    if is_connect(spark):
        listing = spark.read.format("binaryFile").load(list(urls))
        columns = "_metadata.file_path", "length", F.unix_millis("modificationTime")
        yield from (tuple(row) for row in listing.select(*columns).collect())
        return
    jvm: Any = spark.sparkContext._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    to_path, to_uri = getattr(jvm, "org.apache.hadoop.fs.Path"), getattr(jvm, "java.net.URI")
    for url in urls:
        path = to_path(to_uri(url))
        status = path.getFileSystem(configuration).getFileStatus(path)
        yield url, int(status.getLen()), int(status.getModificationTime())


def _started(ours: Mapping[str, str], own: Mapping[str, str]) -> SparkSession:
    master = own.get("spark.master", ours["spark.master"])
    here = is_here(master)
    talk = {**(LOOPBACK if here else {}), **(unix_sockets() if master.startswith("local") else {})}
    conf = SparkConf().setAll(list({**ours, **talk, **own}.items()))
    with _environment(_variables(here, own)):
        gateway = _launch(conf)
        try:
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (Py4JJavaError, PySparkException) as error:  # a master that does not answer: after a minute
            message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
            line = (str(message).strip().splitlines() or [type(error).__name__])[0]
            if "stopped SparkContext" in line:  # the message after the master or Spark gave up
                line = "the master does not answer"
            raise OSError(f"Spark did not start on {master}: {line}") from error


def _variables(here: bool, own: Mapping[str, str]) -> dict[str, str]:
    variables = {"JAVA_HOME": str(java.find().home), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if here:
        # Without the address, Spark looks up the host name and warns about it.
        variables |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    variables |= {name: os.environ[name] for name in variables.keys() - {"JAVA_HOME"} if name in os.environ}
    if python := own.get("spark.pyspark.python"):
        variables["PYSPARK_PYTHON"] = python  # PySpark itself reads this setting only under spark-submit
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set only while Spark starts: the next session of this process may use another master."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _launch(conf: SparkConf) -> Any:
    """Start the JVM with its output in a file, which is shown if the start fails and removed at the end."""
    descriptor, name = tempfile.mkstemp(prefix="onefold-spark-", suffix=".log")
    log = Path(name)
    try:
        files = {"stdout": descriptor, "stderr": descriptor}
        gateway = launch_gateway(conf=conf, popen_kwargs=files)  # type: ignore[no-untyped-call]
    except PySparkException as error:
        lines = log.read_text(errors="replace").strip().splitlines()
        words = [line for line in lines if not line.startswith("\tat ")]  # without the stack of an exception
        raise OSError(f"Spark did not start: {words[-1] if words else error} (its log: {log})") from error
    finally:
        os.close(descriptor)
    if "ONEFOLD_DEBUG" not in os.environ:
        atexit.register(log.unlink, missing_ok=True)
    return gateway


local_session = session
"""The active Spark session, or a new one on this machine; ``config`` overrides every default.

``local_session()`` uses all cores; ``local_session("local[2]", config={"spark.driver.memory": "4g"})`` two, and 4 GB.
It finds a Java, keeps Spark quiet and on loopback, and sets the time zone to UTC. An active session is used as it is.
"""
