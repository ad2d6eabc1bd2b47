"""Snapshots on disk: whole or not there, the newest few.

    magic "OFS1" | crc32 of all that follows | position | length of the state | state

A snapshot is written beside its place, synced, renamed into place, and the folder is synced: a power cut leaves the old
ones, or the old ones and the new one. Damage is found by the crc, and the next older one is taken; therefore more than
one is kept, and no record that the older one needs is ever removed.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from zlib import crc32

from onefold.engines.producers.recovery import Snapshot
from onefold.stores.segments.files import Files
from onefold.stores.segments.folder import SNAPSHOT, SNAPSHOTS_FOLDER, failing, name, numbers

MAGIC = b"OFS1"
_HEADER = struct.Struct("<4sIQQ")
_CHECKED_FROM = 8  # the magic and the crc itself are not in the crc
_PART = ".part"


def pack(snapshot: Snapshot) -> bytes:
    """A snapshot as it is written."""
    body = _HEADER.pack(MAGIC, 0, snapshot.position, len(snapshot.state))[_CHECKED_FROM:] + snapshot.state
    return MAGIC + crc32(body).to_bytes(4, "little") + body


def unpack(data: bytes) -> Snapshot | None:
    """The snapshot that was packed; None if this is not it."""
    if len(data) < _HEADER.size:
        return None
    magic, crc, position, length = _HEADER.unpack_from(data)
    if magic != MAGIC or len(data) != _HEADER.size + length or crc32(memoryview(data)[_CHECKED_FROM:]) != crc:
        return None
    return Snapshot(position, data[_HEADER.size :])


class Snapshots:
    """The snapshots of one log."""

    def __init__(self, files: Files, folder: str, kept: int) -> None:
        self._files = files
        self._folder = f"{folder}/{SNAPSHOTS_FOLDER}"
        self._kept = kept

    def open(self) -> None:
        """Make the folder, and clear away what was never finished."""
        with failing(self._folder):
            self._files.make_folder(self._folder)
            for leftover in self._files.list(self._folder):
                if leftover.endswith(_PART):
                    self._files.unlink(f"{self._folder}/{leftover}")

    def positions(self) -> list[int]:
        """Where there are snapshots, whole or not, ascending."""
        return numbers(self._files, self._folder, SNAPSHOT)

    def get(self, position: int) -> Snapshot | None:
        """The snapshot of a position; None if it is not whole."""
        path = self._path(position)
        with failing(path):
            try:
                found = unpack(self._files.read(path))
            except FileNotFoundError:
                return None
        return found if found is not None and found.position == position else None

    def newest(self) -> Snapshot | None:
        """The newest one that is whole."""
        return next(filter(None, map(self.get, reversed(self.positions()))), None)

    def safe_position(self) -> int:
        """The records below it are not needed even if all kept snapshots but the oldest get lost; 0: all are needed."""
        whole = [position for position in self.positions()[-self._kept :] if self.get(position) is not None]
        if len(whole) < self._kept:
            return 0
        with failing(self._folder):
            # A writer that was killed between a rename and its sync left a name that only this machine's memory has.
            self._files.sync_folder(self._folder)
        return whole[0]

    def save(self, snapshot: Snapshot) -> None:
        """Durable when it returns; then the oldest beyond the kept number are removed."""
        path = self._path(snapshot.position)
        with failing(path):
            self._write(path, pack(snapshot))
        with suppress(OSError):  # nor does it matter whether this is durable: an old snapshot too many does no harm
            for position in self.positions()[: -self._kept]:
                self._files.unlink(self._path(position))

    def _write(self, path: str, data: bytes) -> None:
        part = path + _PART
        file = self._files.open(part, new=True)
        try:
            file.truncate(0)
            file.write(data, 0)
            file.sync()
        except OSError:
            with suppress(OSError):
                self._files.unlink(part)
            raise
        finally:
            file.close()
        replaces = path.rpartition("/")[2] in self._files.list(self._folder)
        self._files.rename(part, path)
        try:
            self._files.sync_folder(self._folder)
        except OSError:
            # A power cut may take it back, so nothing may rely on it: neither retention nor the removal of older ones.
            # In the place of another it stays: one of the two is there in any case.
            if not replaces:
                with suppress(OSError):
                    self._files.unlink(path)
            raise

    def _path(self, position: int) -> str:
        return f"{self._folder}/{name(position, SNAPSHOT)}"
