"""Folders that this tool has signed: nothing else is ever removed or replaced, one writes at a time, none overlaps.

A folder that is written to carries a small document, ``_onefold.json``, from the first moment on: of what kind it is (a
run, a comparison, an audit) and which names in it are its own; of folders of rows also the files that were put there.
The rules:

- A folder is taken only if nothing visible lies in it, or if it is signed.
- A name is written down as ours before it is made, and only while nothing has it.
- What is removed is what the signature names. A file that somebody else put beside or among our own is named, and the
  folder is refused; it is never removed.

A crash leaves an empty folder (taken by the next), a half-written document (which is skipped: nothing else can be
there yet), or a signature that names more than there is.

While a folder is written to it is locked. On a local disk that is a flock on the folder itself, which ends with its
process. Elsewhere it is a lease, ``_onefold.lock``, which its owner renews every few seconds. One that does not change
for `STILL_S` has no owner any more, nor one whose process was on this machine, in this container, and is gone; no two
clocks are compared. Who lost a lock finds out before it removes or publishes anything.

What is written over its own source destroys it, and what is written inside it is read again by the next run. So every
job asks `refuse_overlap` before it writes anything; this needs no Spark, so a mistake in the settings costs no start of
one. Two places overlap if they are one, or one lies inside the other, however they are spelled:

    data/../data/in/   in -> data/in   file:data   file:///data   the same place, through dots, links and spellings
    s3://b/x   s3a://b/x               the same: some schemes are several names of one store
    data/*/in   data/{a,b}             a pattern overlaps whatever it could match, now or later

Local paths are compared with their links resolved and, where both exist, as the file system itself compares them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import iglob
from itertools import islice, product
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import uuid4

from onefold.errors import Misuse, StaleWrite
from onefold.spark.files import Place
from onefold.spark.objects import LOCK, PATTERN, matches

MARK: Final = "_onefold.json"
OURS: Final = {MARK, f"{MARK}.new", LOCK}
FORMAT: Final = 1
BEAT_S: Final = 5.0
STILL_S: Final = 30.0
"""Six beats: a pause of the collector or of the network is no death. HDFS itself gives a writer a minute."""
LOOK_S: Final = 1.0

Owned: TypeAlias = Mapping[str, list[str] | None]
"""The names that are ours in a folder, of each its files; None: whatever is in it."""


class Lock(Protocol):
    def check(self) -> None:
        """Raise `StaleWrite` if somebody else has it by now."""
        ...


class Signed:
    """A signed folder, locked while this is used: what is ours in it, and the only way to remove any of it."""

    def __init__(self, folder: Place, kind: str, lock: Lock, owns: Owned) -> None:
        self.place = folder
        self._kind = kind
        self._lock = lock
        self._owns = dict(owns)

    def own(self, names: Owned) -> None:
        self._lock.check()
        for name in names:
            if name not in self._owns and (self.place / name).exists():
                raise _stranger(self.place, self._kind, name)
        self._owns |= names
        (self.place / MARK).write_json({"format": FORMAT, "kind": self._kind, "owns": self._owns})

    def refuse_foreign(self, name: str) -> None:
        """Raise `Misuse` if there is something in a folder that is not ours."""
        if (self.place / name).exists():
            _refuse_foreign(self.place, self._kind, name, self._owns)

    def remove(self, name: str) -> None:
        """Remove one of our own; `Misuse` if there is something under this name, or in it, that is not."""
        self._lock.check()
        if (self.place / name).exists():
            _refuse_foreign(self.place, self._kind, name, self._owns)
            (self.place / name).remove()

    def replace(self, staged: Mapping[str, Place], earlier: Iterable[str]) -> None:
        """Remove these names, then move what was staged to its names; the signature is written before each step."""
        for name in {**dict.fromkeys(earlier), **staged}:
            self.remove(name)
        self.own({name: source.files() for name, source in staged.items()})
        for name, source in staged.items():  # in a store file by file: of a diff or an audit, whose summary comes last
            source.move_to(self.place / name)


@contextmanager
def signed(
    folder: Place, kind: str, names: Iterable[str], vouched: Callable[[Place], Iterable[str]] = lambda folder: ()
) -> Iterator[Signed]:
    """Take a folder for ourselves, locked and signed; refused with `Misuse` if anything in it is not ours.

    ``names`` are ours from the beginning. ``vouched`` says which names are ours in a folder of the versions that did
    not sign: by what they left instead.
    """
    _owned(folder, kind, names, vouched)  # before anything is written, a lock included
    folder.make()
    with locked(folder, kind) as lock:
        ours = Signed(folder, kind, lock, _owned(folder, kind, names, vouched))
        ours.own({})
        yield ours


def signature(folder: Place) -> dict[str, Any] | None:
    """What the folder is signed with; None if it is not."""
    for name in (MARK, f"{MARK}.new"):  # the second alone: a crash between the two steps that replace the first
        try:
            document = (folder / name).read_json() if (folder / name).exists() else None
        except ValueError:
            continue
        if isinstance(document, dict) and document.get("format") == FORMAT:
            return document
    return None


def _owned(folder: Place, kind: str, names: Iterable[str], vouched: Callable[[Place], Iterable[str]]) -> Owned:
    """What is ours in a folder; `Misuse` if there is anything else, at any depth."""
    present = [name for name in folder.names() if name not in OURS]
    document = signature(folder)
    owns: Owned
    if document is None:
        former = list(vouched(folder)) if present else []
        owns = dict.fromkeys((*names, *former))
        if present and not former:
            raise Misuse(
                f"{folder.shown} is not empty, and no {kind} of onefold signed it: it holds {present[0]!r};"
                " choose an empty folder, or one that does not exist",
                path=folder.shown,
            )
    elif document.get("kind") != kind:
        raise Misuse(f"{folder.shown} holds a {document.get('kind')}, not a {kind}: choose another", path=folder.shown)
    else:
        owns = {**dict.fromkeys(names), **document["owns"]}
    for name in present:
        _refuse_foreign(folder, kind, name, owns)
    return owns


def _refuse_foreign(folder: Place, kind: str, name: str, owns: Owned) -> None:
    if name not in owns:
        raise _stranger(folder, kind, name)
    files = owns[name]
    for file in () if files is None else (folder / name).files():
        if file not in (files or ()):
            raise _stranger(folder, kind, f"{name}/{file}")


def _stranger(folder: Place, kind: str, name: str) -> Misuse:
    return Misuse(
        f"{folder.shown} is not only a {kind}'s folder: it holds {name!r}, which no {kind} of onefold wrote;"
        " move that away, or choose another folder",
        path=folder.shown, name=name,
    )  # fmt: skip


@contextmanager
def locked(folder: Place, kind: str) -> Iterator[Lock]:
    """Lock an existing folder for ourselves; `Misuse` if it is locked already."""
    if (path := folder.local) is not None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # any other: its file system has no such locks
                if error.errno == errno.EWOULDBLOCK:
                    raise _busy(folder, kind, "") from error
            else:
                yield _Flock()
                return
        finally:
            os.close(descriptor)
    lease = _Lease(folder, kind)
    lease.acquire()
    try:
        yield lease
    finally:
        lease.release()


def _busy(folder: Place, kind: str, who: str) -> Misuse:
    return Misuse(
        f"another {kind}{who} is writing to {folder.shown}: wait until it has ended, or choose another folder",
        path=folder.shown,
    )


class _Flock:
    """A lock of the operating system, which nobody can take away."""

    def check(self) -> None:
        pass


class _Lease:
    """A lock that is a file, renewed for as long as its owner lives."""

    def __init__(self, folder: Place, kind: str) -> None:
        self._place, self._kind = folder, kind
        self._file = folder / LOCK
        self._token = uuid4().hex
        self._beats = 0
        self._mutex = threading.Lock()  # of our own lease we never read a part
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="onefold-lock", daemon=True)

    def acquire(self) -> None:
        """Make the lease, or take over that of an owner who is gone."""
        while not self._file.write_new(self._document()):
            last = self._read()
            if last is not None and not self._is_abandoned(last):
                owner = _owner(last)
                raise _busy(self._place, self._kind, f" ({owner['host']}, process {owner['pid']})" if owner else "")
            if last is not None and self._read() == last:  # else somebody else took it over, or gave it back
                self._file.remove()
        self._thread.start()

    def check(self) -> None:
        with self._mutex:
            owner = _owner(self._file.read_bytes() if self._file.exists() else b"") or {}
        if owner.get("token") != self._token:
            raise StaleWrite(f"somebody else took over {self._place.shown} in between", path=self._place.shown)

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(StaleWrite, OSError):
            self.check()
            self._file.remove()

    def _is_abandoned(self, last: bytes) -> bool:
        """Whether its owner is a dead process of this machine, or does not renew it."""
        owner = _owner(last)
        if owner is not None and owner.get("machine") and owner["machine"] == _machine():
            try:
                os.kill(owner["pid"], 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                pass
            if _start_time(owner["pid"]) != owner["began"]:  # process ids are used again
                return True
        end = monotonic() + STILL_S
        while monotonic() < end:
            sleep(LOOK_S)
            if self._read() != last:
                return False
        return True

    def _renew(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(StaleWrite, OSError):  # a store that is away for a moment; at `check` it must be there
                self.check()
                self._beats += 1
                with self._mutex:
                    self._file.write_over(self._document())

    def _document(self) -> bytes:
        pid = os.getpid()
        owner = {"host": socket.gethostname(), "pid": pid, "began": _start_time(pid), "token": self._token}
        owner |= {"machine": _machine()}
        return json.dumps({**owner, "beats": self._beats}).encode()

    def _read(self) -> bytes | None:
        try:
            return self._file.read_bytes() if self._file.exists() else None
        except OSError:  # it is being written
            return b""


def _owner(lease: bytes) -> dict[str, Any] | None:
    try:
        owner = json.loads(lease)
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and {"host", "pid", "began", "token"} <= owner.keys() else None


def _machine() -> str:
    """Which machine this is since it was started, and which of its containers; empty: the system does not tell.

    A host's name tells neither: many containers have the same.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """When a process began, in ticks since this machine did, where the system tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


BRACES_MAX: Final = 1_000
"""Paths that the braces of a pattern may stand for; of one with more only what is before the braces counts."""
MATCHES_MAX: Final = 10_000
"""Paths that are there and match a pattern, and whose links are followed."""

_NOBODYS: Final = "_onefold_nobodys"  # a name that nothing has: what is below a place is inside of whatever holds both
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.S)
_ONE_STORE: Final = {"s3n": "s3", "s3a": "s3", "abfss": "abfs", "wasbs": "wasb"}


class _Location(NamedTuple):
    """The store that a path is in, and the path in it; a part of it may be a pattern."""

    scheme: str
    host: str
    """Empty: the store's usual one, which may be any."""
    parts: tuple[str, ...]


def refuse_overlap(reads: Iterable[tuple[str, str]], writes: Iterable[tuple[str, str]]) -> None:
    """Raise `Misuse` that names both if what is written overlaps what is read; each is (what it is, its path).

    >>> refuse_overlap([("the source", "data/in")], [("the output", "data/out")])
    >>> refuse_overlap([("the source", "/data/in/*.json")], [("the output", "file:/data")])
    Traceback (most recent call last):
    onefold.errors.Misuse: the output (file:/data) overlaps the source (/data/in/*.json): choose a place outside of it
    """
    for (read, source), (written, target) in product(reads, list(writes)):
        if overlaps(source, target):
            raise Misuse(
                f"{written} ({target}) overlaps {read} ({source}): choose a place outside of it",
                source=source, target=target,
            )  # fmt: skip


def refuse_inside(outer: tuple[str, str], inner: tuple[str, str]) -> None:
    """Raise `Misuse` that names both if the one place is the other or lies inside it, where Spark would see it.

    >>> refuse_inside(("the table", "data"), ("the index", "data/.index"))
    >>> refuse_inside(("the table", "data/t"), ("the index", "data"))
    >>> refuse_inside(("the table", "data"), ("the index", "data/index"))
    Traceback (most recent call last):
    onefold.errors.Misuse: the index (data/index) lies inside the table (data): choose a place outside of it
    """
    name = inner[1].rstrip("/").rpartition("/")[2]
    if overlaps(outer[1], f"{inner[1]}/{_NOBODYS}"):
        if name.startswith(".") and not overlaps(inner[1], f"{outer[1]}/{_NOBODYS}"):
            return
        raise Misuse(
            f"{inner[0]} ({inner[1]}) lies inside {outer[0]} ({outer[1]}): choose a place outside of it",
            outer=outer[1], inner=inner[1],
        )  # fmt: skip


def overlaps(source: str, target: str) -> bool:
    """Whether what is read at ``source``, which may be a pattern, is at, above or below ``target``.

    In ``target`` nothing is a pattern: the signs of a path that is written to are themselves.

    >>> overlaps("data/in", "data/in/../in/out"), overlaps("s3a://b/x/", "s3://b/x"), overlaps("data/a", "data/ab")
    (True, True, False)
    >>> overlaps("data/*/in", "data/out"), overlaps("data/[0-9]*", "data/out"), overlaps("data/{a,b}/c", "data/b")
    (True, False, True)
    """
    scheme, host, path = _split(target)
    written = _Location(scheme, host, _real_parts(scheme, path))
    for read in _locations(source):
        if read.scheme != scheme or (read.host != host and read.host and host):
            continue
        if all(matches(pattern, name) for pattern, name in zip(read.parts, written.parts, strict=False)):
            return True
        one, other = ("/" + "/".join(location.parts) for location in (read, written))
        if scheme == "file" and not PATTERN.search(one) and _same_by_inode(one, other):
            return True
    return False


def _same_by_inode(one: str, other: str) -> bool:
    """Whether one is the other or above it to the file system itself: of bind mounts, or without case."""
    for above, below in ((one, other), (other, one)):
        with suppress(OSError):
            above_stat = os.stat(above)
            for folder in (Path(below), *Path(below).parents):
                with suppress(OSError):  # not there yet
                    if os.path.samestat(os.stat(folder), above_stat):
                        return True
    return False


def _locations(path: str) -> Iterator[_Location]:
    """Where a path leads that may be a pattern, and what matches it now, which may be a link to elsewhere."""
    scheme, host, whole = _split(path)
    for each in _without_braces(whole):
        matches = islice(iglob(each), MATCHES_MAX) if scheme == "file" and PATTERN.search(each) else ()
        for way in (each, *map(os.path.realpath, matches)):
            parts = way.split("/")
            fixed = next((i for i, part in enumerate(parts) if PATTERN.search(part)), len(parts))
            start = "/".join(parts[:fixed]) or ("/" if way.startswith("/") else ".")
            rest = [part for part in parts[fixed:] if part not in ("", ".")]
            if ".." in rest:  # behind a pattern it may lead anywhere below what is fixed
                rest = []
            yield _Location(scheme, host, (*_real_parts(scheme, start), *rest))


def _split(path: str) -> tuple[str, str, str]:
    """The store of a path: scheme and host; and the path in it."""
    url = _SCHEME.fullmatch(path)
    if url is None:
        return "file", "", path
    scheme, host, way = url[1].lower(), (url[2] or "").lower(), url[3]
    if scheme == "file":
        return "file", "", way
    return _ONE_STORE.get(scheme, scheme), host.rpartition("@")[2].partition(":")[0], way


def _real_parts(scheme: str, path: str) -> tuple[str, ...]:
    real = os.path.realpath(path) if scheme == "file" else os.path.normpath("/" + path)
    return tuple(part for part in real.split("/") if part)


def _without_braces(path: str) -> list[str]:
    """All paths that the braces of a pattern stand for."""
    paths, done = [path], []
    while paths:
        one = paths.pop()
        inner = re.search(r"\{([^{}]*)\}", one)
        if inner is None:
            done.append(one)
        else:
            paths += [one[: inner.start()] + choice + one[inner.end() :] for choice in inner[1].split(",")]
        if len(paths) + len(done) > BRACES_MAX:
            return [path.partition("{")[0].rpartition("/")[0] or "/"]
    return done
