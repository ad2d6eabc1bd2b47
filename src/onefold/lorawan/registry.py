"""The registry of our devices: their addresses, keys and settings, from a TOML file or an SQLite table.

    [[device]]
    dev_eui  = "0004a30b001c0530"                    # dashes and upper case will do
    dev_addr = "26011bda"
    nwk_skey = "000102030405060708090a0b0c0d0e0f"
    app_key  = "..."                                 # verifies join requests
    app_skey = "..."                                 # for whoever decrypts; not used here
    strategy = "drop"                                # drop, mark or none
    gateway  = "a"                                   # only the server of this name may answer for it
    class    = "A"                                   # A or C
    activation = "abp"                               # abp or otaa
    relaxed  = false                                 # may its counter restart?
    fcnt_up  = 0                                     # the last counter, used if no store knows one

The SQLite table is called ``devices``, with columns of these names. Several devices may share an address: the integrity
code distinguishes them. An error names the file, the device, the key and the value, but never the value of a secret.
`Sessions` holds what a running server knows of these devices.
"""

import logging
import os
import re
import sqlite3
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, Final

from onefold.errors import BadInput, OnefoldError
from onefold.lorawan.claims import Lookup
from onefold.lorawan.radio import shown
from onefold.lorawan.rules import Counters, Device, Heard, Strategy

HEX: Final = re.compile(r"[0-9a-fA-F]*")
SECRETS: Final = ("nwk_skey", "app_skey", "app_key")
GATEWAY_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True)
class RegistryEntry:
    """A device with its keys, which its repr leaves out."""

    device: Device
    nwk_skey: bytes | None = field(default=None, repr=False)
    app_skey: bytes | None = field(default=None, repr=False)
    app_key: bytes | None = field(default=None, repr=False)
    fcnt_up: int | None = None

    @cached_property
    def session(self) -> str:
        """The name of its counters in a store: the device, and a hash of the key that they belong to.

        A device that joined again counts from zero: with another key it has another name, so that is no replay.
        """
        keys = sha256(b"onefold session" + (self.nwk_skey or b"")).hexdigest()
        return f"{self.device.dev_eui:016x}/{keys[:8]}"


class Registry:
    def __init__(self, entries: Iterable[RegistryEntry] = ()) -> None:
        self.by_eui = {entry.device.dev_eui: entry for entry in entries}
        self.by_address: dict[int, list[RegistryEntry]] = {}
        for entry in self.by_eui.values():
            if entry.device.dev_addr is not None and entry.nwk_skey is not None:
                self.by_address.setdefault(entry.device.dev_addr, []).append(entry)

    def __len__(self) -> int:
        return len(self.by_eui)


def _number(digits: int, value: object) -> int | None:
    plain = value.replace("-", "").replace(":", "") if isinstance(value, str) else ""
    return int(plain, 16) if len(plain) == digits and HEX.fullmatch(plain) else None


def _secret(value: object) -> bytes | None:
    good = isinstance(value, str) and len(value) == 32 and HEX.fullmatch(value)
    return bytes.fromhex(str(value)) if good else None


def _choice(options: Iterable[str]) -> tuple[Callable[[object], str | None], str]:
    names = {option.lower(): option for option in options}
    return lambda value: names.get(value.lower()) if isinstance(value, str) else None, f"one of {', '.join(options)}"


READERS: Final[Mapping[str, tuple[Callable[[object], Any], str]]] = {
    "dev_eui": (partial(_number, 16), "16 hex digits in quotes"),
    "dev_addr": (partial(_number, 8), "8 hex digits in quotes"),
    **dict.fromkeys(SECRETS, (_secret, "32 hex digits in quotes")),
    "strategy": _choice(Strategy),
    "gateway": (
        lambda value: value if isinstance(value, str) and len(value) <= GATEWAY_CHARACTERS_MAX else None,
        "the name of a server",
    ),
    "class": _choice("AC"),
    "activation": _choice(("abp", "otaa")),
    "relaxed": (lambda value: bool(value) if value in (True, False) else None, "true or false"),
    "fcnt_up": (
        lambda value: value if type(value) is int and 0 <= value < 2**32 else None,
        "a whole number, 0 to 4294967295",
    ),
}
"""By key: a reader, which returns None for a wrong value, and what the value must be."""


def registry_of(rows: Iterable[Mapping[str, Any]], source: str) -> Registry:
    """Read the rows of a file or table; `BadInput` names the first thing that is wrong."""
    entries: dict[int, RegistryEntry] = {}
    for number, row in enumerate(rows, 1):
        eui = row.get("dev_eui")
        where = f"{source}: device {number}" + (f" ({eui})" if isinstance(eui, str) and len(eui) < 40 else "")
        given = {name: value for name, value in row.items() if value is not None}
        if unknown := given.keys() - READERS.keys():
            raise BadInput(f"{where}: there is no key {min(unknown)!r}, only {', '.join(READERS)}")
        fields: dict[str, Any] = {}
        for name, (read, must) in READERS.items():
            if name in given and (value := read(given[name])) is not None:
                fields[name] = value
            elif name in given or name == "dev_eui":
                problem = f"is {shown(given[name])}" if name in given else "is missing"
                if name in SECRETS and isinstance(given[name], str):
                    problem, must = f"has {len(given[name])} characters", "32 hex digits"
                elif name in SECRETS:
                    problem = "is not a text"
                raise BadInput(f"{where}: {name} {problem}, must be {must}", key=name)
        if ("dev_addr" in fields) != ("nwk_skey" in fields):
            raise BadInput(f"{where}: dev_addr and nwk_skey belong together, and one of them is missing")
        if "dev_addr" not in fields and "app_key" not in fields:
            text = "has neither dev_addr and nwk_skey nor an app_key, so nothing of it can be checked"
            raise BadInput(f"{where}: {text}")
        if fields["dev_eui"] in entries:
            raise BadInput(f"{where}: dev_eui is there twice", dev_eui=eui)
        keys = {name: fields.pop(name, None) for name in (*SECRETS, "fcnt_up")}
        device = Device(device_class=fields.pop("class", "A"), gateway=fields.pop("gateway", None) or None, **fields)
        entries[device.dev_eui] = RegistryEntry(device, **keys)
    return Registry(entries.values())


SQLITE: Final = b"SQLite format 3\0"
BYTES_MAX: Final = 256 << 20
"""Of a TOML file: about a million devices."""
log: Final = logging.getLogger("onefold.gateway")


def read_registry(path: Path) -> Registry:
    """All devices of a TOML or SQLite file; its first bytes tell which."""
    with path.open("rb") as file:
        data = file.read(len(SQLITE))
        if data == SQLITE:
            return registry_of(_table(path), str(path))
        data += file.read(BYTES_MAX)
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
    return registry_of(rows, str(path))


def _table(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            columns = {row["name"] for row in database.execute("pragma table_info(devices)")}
            if not columns:
                raise BadInput(f"{path}: has no table devices", path=str(path))
            wanted = ", ".join(f'"{name}"' for name in READERS if name in columns)
            if "dev_eui" not in columns:
                raise BadInput(f"{path}: the table devices has no column dev_eui", path=str(path))
            rows = database.execute(f"select {wanted} from devices order by dev_eui")  # noqa: S608 # our own names
            yield from (dict(row) for row in rows)
    except sqlite3.Error as error:
        raise BadInput(f"{path}: {error}", path=str(path)) from error


class RegistryFile:
    """A registry that is reloaded when its file changes. If that fails, the last good one stays in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        """Why the current file is not in use; None if it is."""
        self._stamp = self._read_stamp()
        self.registry = read_registry(path)

    def reload(self, *, changed: bool = True) -> bool:
        """Read the file, with ``changed`` only if it has changed; True if there is a new registry. Blocks."""
        stamp = self._read_stamp()
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

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Inode, size and time of the file, and of SQLite's write-ahead log."""
        stamps = []
        for path in (self.path, Path(f"{self.path}-wal")):
            with suppress(OSError):
                status = os.stat(path)
                stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(stamps)


BEHIND_MAX: Final = 16
"""How many frames of a device one server may be behind another: half a minute of a very busy device."""


class DeviceSession:
    __slots__ = ("asked", "asked_at", "claims", "elsewhere", "entry", "fcnt_down", "heard", "loaded", "lookup")

    def __init__(self, entry: RegistryEntry) -> None:
        self.entry = entry
        self.heard = Heard(entry.fcnt_up)
        self.fcnt_down = 0
        """The last down counter that this server knows of; a store may have lost it, or never had it."""
        self.loaded = False
        """Has its own store answered?"""
        self.asked: set[str] = set()
        """The names of the stores that were asked."""
        self.lookup: Lookup | None = None
        self.asked_at = -inf
        self.claims = 0
        self.elsewhere: Counters | None = None
        """The counters in another store than its own, which may be of before a restart of the device."""

    def learn(self, counters: Counters | None, server: str, *, home: bool) -> None:
        """Take over what a store knows of the device: its own (``home``), or another that counted it at some time.

        The highest counter is right. But a relaxed device may have begun again, so its own store is right if it knows
        the device at all, and the counter of the registry is not.
        """
        if counters is not None:
            self.fcnt_down = max(self.fcnt_down, counters.fcnt_down)
        if not home and self.entry.device.relaxed:
            self.elsewhere = counters
            return
        counters = self.elsewhere if counters is None else counters
        if counters is None or (last := expected(counters, server)) < 0:
            return
        heard, before = self.heard, self.heard.fcnt_up
        if self.entry.device.relaxed and not self.loaded and heard.frame is None:  # still that of the registry
            before = None
        heard.fcnt_up = max(last, before or 0)
        if before is None or last > before or (heard.frame is None and last == before):
            # Only of frames that this server counted; for those of others the claim decides.
            own = counters.server == server and counters.frame
            heard.frame = bytes.fromhex(counters.frame) if own else None


def expected(counters: Counters, server: str) -> int:
    """The counter that the next frame must be above. If another server counted the last frame, that frame and some
    before it may still arrive here; these copies must become repeats, and not be refused as old."""
    return counters.fcnt_up if counters.server == server else counters.fcnt_up - 1 - BEHIND_MAX


class Sessions:
    """The devices of a registry that were heard since the start."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._sessions: dict[str, DeviceSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def at(self, dev_addr: int) -> list[DeviceSession]:
        return [self.of(entry) for entry in self.registry.by_address.get(dev_addr, ())]

    def of(self, entry: RegistryEntry) -> DeviceSession:
        session = self._sessions.get(entry.session)
        if session is None:
            session = self._sessions[entry.session] = DeviceSession(entry)
        return session

    def use(self, registry: Registry) -> None:
        """Switch to another registry; devices whose keys did not change keep their sessions."""
        self.registry = registry
        before, self._sessions = self._sessions, {}
        for entry in registry.by_eui.values():
            if (session := before.get(entry.session)) is not None:
                session.entry = entry
                self._sessions[entry.session] = session
