"""Folders that this tool has signed: nothing else is ever removed or replaced, and one writes at a time.

A folder that is written to carries a small document, ``_onefold.json``, from the first moment on: of what kind it is (a
run, a comparison, an audit) and which names in it are its own; of folders of rows also the files that were put there.
The rules:

- A folder is taken only if nothing visible lies in it, or if it is signed.
- A name is written down as ours before it is made, and only while nothing has it.
- What is removed is what the signature names. A file that somebody else put beside or among our own is named, and the
  folder is refused; it is never removed.

A crash leaves an empty folder (taken by the next), a half-written document (which is passed over: nothing else can be
there yet), or a signature that names more than there is.

While a folder is written to it is locked. On a disk of this machine that is a lock of the operating system on the
folder itself: whoever dies lets it go at once. Elsewhere it is a record, ``_onefold.lock``, which its owner writes anew
every few seconds. One that does not change for `STILL_S` has no owner any more, nor one whose process was of this
machine and is gone; no clock is compared with another one's. Who lost a lock finds out before it removes or publishes
anything.
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
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Protocol
from uuid import uuid4

from onefold.errors import Misuse, StaleWrite
from onefold.spark.place import Place

MARK: Final = "_onefold.json"
LOCK: Final = "_onefold.lock"
OURS: Final = {MARK, f"{MARK}.new", LOCK}
FORMAT: Final = 1
BEAT_S: Final = 5.0
STILL_S: Final = 30.0
"""Six beats: a pause of the collector or of the network is no death. HDFS itself gives a writer a minute."""
LOOK_S: Final = 1.0


class Lock(Protocol):
    """The right to write to a folder."""

    def check(self) -> None:
        """Raise `StaleWrite` if somebody else has it by now."""
        ...


class Signed:
    """A signed folder, locked while this is used: what is ours in it, and the only way to remove any of it."""

    def __init__(self, place: Place, kind: str, lock: Lock, owns: Mapping[str, list[str] | None]) -> None:
        self.place = place
        self._kind = kind
        self._lock = lock
        self._owns = dict(owns)

    def own(self, names: Mapping[str, list[str] | None]) -> None:
        """Write down what is about to be made: names, of each its files (None: whatever will be in it)."""
        self._lock.check()
        for name in names:
            if name not in self._owns and (self.place / name).exists():
                raise _stranger(self.place, self._kind, name)
        self._owns |= names
        self.sign()

    def sign(self) -> None:
        """Write the signature."""
        document = {"format": FORMAT, "kind": self._kind, "owns": self._owns}
        (self.place / MARK).write_json(document)

    def remove(self, name: str) -> None:
        """Remove one of our own; `Misuse` if there is something under this name, or in it, that is not."""
        self._lock.check()
        if (self.place / name).exists():
            _check(self.place, self._kind, name, self._owns)
            (self.place / name).remove()

    def replace(self, staged: Mapping[str, Place], gone: Iterable[str]) -> None:
        """Remove these names, then move what was staged to its names; before each step the signature tells of it."""
        for name in {**dict.fromkeys(gone), **staged}:
            self.remove(name)
        self.own({name: source.files() for name, source in staged.items()})
        for name, source in staged.items():
            source.move_to(self.place / name)


@contextmanager
def signed(
    place: Place, kind: str, names: Iterable[str], vouched: Callable[[Place], Iterable[str]] = lambda place: ()
) -> Iterator[Signed]:
    """Take a folder for ourselves, locked and signed; refused with `Misuse` if anything in it is not ours.

    ``names`` are ours from the beginning. ``vouched`` says which names are ours in a folder of the versions that did
    not sign: by what they left instead.
    """
    _owned(place, kind, names, vouched)  # before anything is written, a lock included
    place.make()
    with locked(place, kind) as lock:
        folder = Signed(place, kind, lock, _owned(place, kind, names, vouched))
        folder.sign()
        yield folder


def signature(place: Place) -> dict[str, Any] | None:
    """What the folder is signed with; None if it is not."""
    for name in (MARK, f"{MARK}.new"):  # the second alone: a crash between the two steps that replace the first
        try:
            document = (place / name).read_json() if (place / name).exists() else None
        except ValueError:
            continue
        if isinstance(document, dict) and document.get("format") == FORMAT:
            return document
    return None


def _owned(
    place: Place, kind: str, names: Iterable[str], vouched: Callable[[Place], Iterable[str]]
) -> dict[str, list[str] | None]:
    """What is ours in a folder; `Misuse` if there is anything else, at any depth."""
    there = [name for name in place.names() if name not in OURS]
    document = signature(place)
    owns: dict[str, list[str] | None]
    if document is None:
        former = list(vouched(place)) if there else []
        owns = dict.fromkeys((*names, *former))
        if there and not former:
            raise Misuse(
                f"{place.shown} is not empty, and no {kind} of onefold signed it: it holds {there[0]!r};"
                " choose an empty folder, or one that does not exist",
                path=place.shown,
            )
    elif document.get("kind") != kind:
        raise Misuse(f"{place.shown} holds a {document.get('kind')}, not a {kind}: choose another", path=place.shown)
    else:
        owns = {**document["owns"], **{name: None for name in names if name not in document["owns"]}}
    for name in there:
        _check(place, kind, name, owns)
    return owns


def _check(place: Place, kind: str, name: str, owns: Mapping[str, list[str] | None]) -> None:
    if name not in owns:
        raise _stranger(place, kind, name)
    files = owns[name]
    if files is not None:
        for file in (place / name).files():
            if file not in files:
                raise _stranger(place, kind, f"{name}/{file}")


def _stranger(place: Place, kind: str, name: str) -> Misuse:
    return Misuse(
        f"{place.shown} is not only a {kind}'s folder: it holds {name!r}, which no {kind} of onefold wrote;"
        " move that away, or choose another folder",
        path=place.shown, name=name,
    )  # fmt: skip


@contextmanager
def locked(place: Place, kind: str) -> Iterator[Lock]:
    """Have a folder, which is there, for ourselves; `Misuse` if somebody else has it."""
    if (folder := place.local) is not None:
        with _opened(folder) as descriptor:
            if _flock(descriptor, place, kind):
                yield _Held()
                return
    record = _Record(place, kind)
    record.acquire()
    try:
        yield record
    finally:
        record.release()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _flock(descriptor: int, place: Place, kind: str) -> bool:
    """Whether the folder is locked now; False: its file system has no such locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise _busy(place, kind, "") from error
        return False
    return True


def _busy(place: Place, kind: str, who: str) -> Misuse:
    return Misuse(
        f"another {kind}{who} is writing to {place.shown}: wait until it has ended, or choose another folder",
        path=place.shown,
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock of the operating system, which nobody can take away."""

    def check(self) -> None:
        """Nothing can have happened to it."""


class _Record:
    """A lock that is a file, renewed for as long as its owner lives."""

    def __init__(self, place: Place, kind: str) -> None:
        self._place, self._kind = place, kind
        self._file = place / LOCK
        self._token = uuid4().hex
        self._beats = 0
        self._mutex = threading.Lock()  # of our own record we never read a part
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="onefold-lock", daemon=True)

    def acquire(self) -> None:
        """Make the record, or take over that of an owner who is gone."""
        while not self._file.write_new(self._document()):
            last = self._read()
            if last is not None and not self._is_gone(last):
                said = _said(last)
                raise _busy(self._place, self._kind, f" ({said['host']}, process {said['pid']})" if said else "")
            self._file.remove()
        self._thread.start()

    def check(self) -> None:
        """Whether the record is still ours."""
        with self._mutex:
            said = _said(self._read() or b"") or {}
        if said.get("token") != self._token:
            raise StaleWrite(f"somebody else took over {self._place.shown} in between", path=self._place.shown)

    def release(self) -> None:
        """Remove the record if it is still ours."""
        self._ended.set()
        self._thread.join()
        with suppress(StaleWrite, OSError):
            self.check()
            self._file.remove()

    def _is_gone(self, last: bytes) -> bool:
        said = _said(last)
        if said is not None and said["host"] == socket.gethostname() and not _is_alive(said["pid"], said["began"]):
            return True
        end = monotonic() + STILL_S
        while monotonic() < end:
            sleep(LOOK_S)
            if self._read() != last:
                return False
        return True

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(StaleWrite, OSError):  # a store that is away for a moment; at `check` it must be there
                self.check()
                self._beats += 1
                with self._mutex:
                    self._file.write_over(self._document())

    def _document(self) -> bytes:
        pid = os.getpid()
        owner = {"host": socket.gethostname(), "pid": pid, "began": _began(pid), "token": self._token}
        return json.dumps({**owner, "beats": self._beats}).encode()

    def _read(self) -> bytes | None:
        try:
            return self._file.read_bytes() if self._file.exists() else None
        except OSError:  # it is being written
            return b""


def _said(record: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(record)
    except ValueError:
        return None
    return said if isinstance(said, dict) and {"host", "pid", "began", "token"} <= said.keys() else None


def _is_alive(pid: int, began: str) -> bool:
    """Whether a process of this machine is there, and the same one: numbers are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _began(pid) == began


def _began(pid: int) -> str:
    """When a process began, in ticks since this machine did, where the system tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
