"""Where a registry is kept: a TOML file, or an SQLite database with a table ``devices``; and whether it has changed."""

import logging
import os
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from onefold.errors import BadInput, OnefoldError
from onefold.services.gateway.registry import FIELDS, Registry, registry_of

SQLITE: Final = b"SQLite format 3\0"
BYTES_MAX: Final = 256 << 20
"""Of a TOML file: about a million devices."""
log: Final = logging.getLogger("onefold.gateway")


def read_registry(path: Path) -> Registry:
    """All devices of a file; whether it is TOML or SQLite, it says itself."""
    with path.open("rb") as file:
        head = file.read(len(SQLITE))
        if head != SQLITE:
            return registry_of(_toml(path, head + file.read(BYTES_MAX)), str(path))
    return registry_of(_table(path), str(path))


def _toml(path: Path, data: bytes) -> list[dict[str, Any]]:
    if len(data) > BYTES_MAX:
        raise BadInput(f"{path}: has more than {BYTES_MAX:,} bytes, the limit", path=str(path))
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # of UTF-8, of TOML, a number of 5,000 digits, a thousand brackets
        raise BadInput(f"{path}: is neither TOML nor SQLite: {error}", path=str(path)) from error
    rows = document.pop("device", [])
    if document:
        raise BadInput(f"{path}: there is no {min(document)!r}, only [[device]]", path=str(path))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path}: device must be a list of tables: [[device]]", path=str(path))
    return rows


def _table(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            columns = {row["name"] for row in database.execute("pragma table_info(devices)")}
            if not columns:
                raise BadInput(f"{path}: has no table devices", path=str(path))
            wanted = ", ".join(f'"{name}"' for name in FIELDS if name in columns)
            if "dev_eui" not in columns:
                raise BadInput(f"{path}: the table devices has no column dev_eui", path=str(path))
            rows = database.execute(f"select {wanted} from devices order by dev_eui")  # noqa: S608 # our own names
            yield from (dict(row) for row in rows)
    except sqlite3.Error as error:
        raise BadInput(f"{path}: {error}", path=str(path)) from error


class RegistryFile:
    """A registry that is read again when its file changes; one that cannot be read leaves the last good one in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        """Why the file that is there now is not in use; None: it is."""
        self._stamp = self._look()
        self.registry = read_registry(path)

    def reload(self, *, changed: bool = True) -> bool:
        """Read it, or only if it has ``changed``; whether there is a new registry now. Blocks."""
        stamp = self._look()
        if changed and stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.registry = read_registry(self.path)
        except (OnefoldError, OSError) as error:
            self.problem = str(error)
            log.error("the registry is not reloaded: %s", error)
            return False
        self.problem = None
        return True

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when the file does; of SQLite also its write-ahead log."""
        found = []
        for path in (self.path, Path(f"{self.path}-wal")):
            try:
                told = os.stat(path)
            except OSError:
                continue
            found.append((told.st_ino, told.st_size, told.st_mtime_ns))
        return tuple(found)
