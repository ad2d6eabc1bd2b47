"""Signed and locked folders: only what this tool has signed is ever removed or replaced, and by one writer at a time.

A folder that is written to has a small document, ``_onefold.json``, from the start: the kind of the folder (a run, a
comparison, an audit) and the names in it that are ours; for folders of rows also the files in them. The rules:

- A folder is taken only if nothing visible lies in it, or if it is signed.
- A name is added to the signature before it is created, and only while it does not exist.
- Only what the signature names is removed. If somebody else put a file beside or among ours, the error names it and
  the folder is refused; the file is never removed.

A crash leaves an empty folder (the next job takes it), a half-written document (which is skipped: nothing else can be
there yet), or a signature that names more than there is.

A folder is locked while it is written to. On a local disk by a flock on the folder itself, which ends with the process.
Elsewhere by a lease, ``_onefold.lock``, which its owner renews every few seconds. A lease is abandoned if it does not
change for `STILL_S`, or if its owner was a process of this machine and container that has ended; no two clocks are
compared. An owner who lost the lease finds out before it removes or publishes anything.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Protocol, TypeAlias
from uuid import uuid4

from onefold.errors import Misuse, StaleWrite
from onefold.spark.files import Place
from onefold.spark.objects import LOCK

MARK: Final = "_onefold.json"
OURS: Final = {MARK, f"{MARK}.new", LOCK}
FORMAT: Final = 1
BEAT_S: Final = 5.0
STILL_S: Final = 30.0
"""Six beats: a pause of the garbage collector or the network must not count as death. HDFS gives a writer a minute."""
LOOK_S: Final = 1.0

Owned: TypeAlias = Mapping[str, list[str] | None]
"""The names that are ours in a folder, each with its files; None: everything in it."""


class Lock(Protocol):
    def check(self) -> None:
        """Raise `StaleWrite` if somebody else has taken the lock over."""
        ...


class Signed:
    """A signed and locked folder: which names in it are ours, and the only way to remove them."""

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
        """Raise `Misuse` if something under this name is not ours."""
        if (self.place / name).exists():
            _refuse_foreign(self.place, self._kind, name, self._owns)

    def remove(self, name: str) -> None:
        """Remove a name of ours; `Misuse` if it, or something in it, is not ours."""
        self._lock.check()
        if (self.place / name).exists():
            _refuse_foreign(self.place, self._kind, name, self._owns)
            (self.place / name).remove()

    def replace(self, staged: Mapping[str, Place], earlier: Iterable[str]) -> None:
        """Remove these names, then move the staged folders to theirs; the signature is written before the move."""
        for name in {**dict.fromkeys(earlier), **staged}:
            self.remove(name)
        self.own({name: source.files() for name, source in staged.items()})
        for name, source in staged.items():  # in a store file by file; a diff or audit writes its summary last
            source.move_to(self.place / name)


@contextmanager
def signed(
    folder: Place, kind: str, names: Iterable[str], vouched: Callable[[Place], Iterable[str]] = lambda folder: ()
) -> Iterator[Signed]:
    """Lock and sign a folder; `Misuse` if anything in it is not ours.

    ``names`` are ours from the start. ``vouched`` returns the names that are ours in the folder of a former version,
    which had no signature.
    """
    _owned(folder, kind, names, vouched)  # before anything is written, including a lock
    folder.make()
    with locked(folder, kind) as lock:
        ours = Signed(folder, kind, lock, _owned(folder, kind, names, vouched))
        ours.own({})
        yield ours


def signature(folder: Place) -> dict[str, Any] | None:
    """The signature of the folder; None: it is not signed."""
    for name in (MARK, f"{MARK}.new"):  # only the second exists after a crash between the two steps of a replacement
        try:
            document = (folder / name).read_json() if (folder / name).exists() else None
        except ValueError:
            continue
        if isinstance(document, dict) and document.get("format") == FORMAT:
            return document
    return None


def _owned(folder: Place, kind: str, names: Iterable[str], vouched: Callable[[Place], Iterable[str]]) -> Owned:
    """The names that are ours in a folder; `Misuse` if there is anything else, at any depth."""
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
    if (own := owns[name]) is not None and (others := {*(folder / name).files()} - {*own}):
        raise _stranger(folder, kind, f"{name}/{min(others)}")


def _stranger(folder: Place, kind: str, name: str) -> Misuse:
    return Misuse(
        f"{folder.shown} is not only a {kind}'s folder: it holds {name!r}, which no {kind} of onefold wrote;"
        " move that away, or choose another folder",
        path=folder.shown, name=name,
    )  # fmt: skip


@contextmanager
def locked(folder: Place, kind: str) -> Iterator[Lock]:
    """Lock an existing folder; `Misuse` if it is locked already."""
    if (path := folder.local) is not None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # any other errno: the file system does not support flock
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
    """A lock of the operating system, which cannot be taken over."""

    def check(self) -> None:
        pass


class _Lease:
    """A lock file that its owner keeps renewing."""

    def __init__(self, folder: Place, kind: str) -> None:
        self._place, self._kind = folder, kind
        self._file = folder / LOCK
        self._token = uuid4().hex
        self._beats = 0
        self._mutex = threading.Lock()  # so that `check` never reads a half-written lease of our own
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="onefold-lock", daemon=True)

    def acquire(self) -> None:
        """Create the lease, or take over an abandoned one."""
        while not self._file.write_new(self._document()):
            last = self._read()
            if last is not None and not self._is_abandoned(last):
                owner = _owner(last)
                raise _busy(self._place, self._kind, f" ({owner['host']}, process {owner['pid']})" if owner else "")
            if last is not None and self._read() == last:  # else somebody else took it over or released it
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
        """Whether its owner is a dead process of this machine, or has not renewed it for `STILL_S`."""
        owner = _owner(last)
        if owner is not None and owner.get("machine") and owner["machine"] == _machine():
            try:
                os.kill(owner["pid"], 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                pass
            if _start_time(owner["pid"]) != owner["began"]:  # process ids are reused
                return True
        end = monotonic() + STILL_S
        while monotonic() < end:
            sleep(LOOK_S)
            if self._read() != last:
                return False
        return True

    def _renew(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(StaleWrite, OSError):  # the store may be unreachable for a moment; `check` is strict
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
    """An id of this boot of the machine and of this container; empty: the system has none.

    Host names will not do: many containers share one.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """The start time of a process in clock ticks since boot; empty: unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
