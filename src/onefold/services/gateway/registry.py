"""Which devices are ours: their addresses, keys and wishes, from a TOML file or an SQLite table.

    [[device]]
    dev_eui  = "0004a30b001c0530"                    # dashes and upper case will do
    dev_addr = "26011bda"
    nwk_skey = "000102030405060708090a0b0c0d0e0f"
    app_key  = "..."                                 # verifies join requests
    app_skey = "..."                                 # kept for whoever decrypts; not used here
    strategy = "drop"                                # drop, mark or none
    gateway  = "a"                                   # only the server of this name may answer for it
    class    = "A"                                   # A or C
    activation = "abp"                               # abp or otaa
    relaxed  = false                                 # may its counter begin anew?
    fcnt_up  = 0                                     # the last counter, where nobody remembers one

The SQLite table is called ``devices``, with columns of these names. Several devices may share an address: the integrity
code tells them apart. An error names the file, the device, the key and the value, but never what a secret key is.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, TypeVar

from onefold.engines.lorawan.status import Strategy
from onefold.engines.lorawan.validation import Device
from onefold.errors import BadInput
from onefold.services.gateway.radio_json import shown

T = TypeVar("T", bound=str)
HEX: Final = re.compile(r"[0-9a-fA-F]*")
SECRETS: Final = ("nwk_skey", "app_skey", "app_key")
FIELDS: Final = (
    "dev_eui", "dev_addr", "nwk_skey", "app_skey", "app_key", "strategy", "gateway", "class", "activation", "relaxed",
    "fcnt_up",
)  # fmt: skip
GATEWAY_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True)
class Entry:
    """A device with its keys. Whatever prints it prints no key."""

    device: Device
    nwk_skey: bytes | None = field(default=None, repr=False)
    app_skey: bytes | None = field(default=None, repr=False)
    app_key: bytes | None = field(default=None, repr=False)
    fcnt_up: int | None = None

    @cached_property
    def session(self) -> str:
        """What its counters are kept under: the device, and which of its keys they belong to.

        A device that joined again counts from zero. With a name of its own the new session is not taken for a replay of
        the old one, by any server, in whatever order they learn of it.
        """
        keys = sha256(b"onefold session" + (self.nwk_skey or b"")).hexdigest()
        return f"{self.device.dev_eui:016x}/{keys[:8]}"


class Registry:
    """The devices, by address and by EUI."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.by_eui = {entry.device.dev_eui: entry for entry in entries}
        found: dict[int, list[Entry]] = {}
        for entry in self.by_eui.values():
            if entry.device.dev_addr is not None and entry.nwk_skey is not None:
                found.setdefault(entry.device.dev_addr, []).append(entry)
        self.by_address = {address: tuple(group) for address, group in found.items()}

    def __len__(self) -> int:
        return len(self.by_eui)

    def at(self, dev_addr: int) -> tuple[Entry, ...]:
        """The devices that have this address."""
        return self.by_address.get(dev_addr, ())


def registry_of(rows: Iterable[Mapping[str, Any]], place: str) -> Registry:
    """Read the rows of a file or table; `BadInput` names the first thing that is wrong."""
    entries: dict[int, Entry] = {}
    for number, row in enumerate(rows, 1):
        told = row.get("dev_eui")
        where = f"{place}: device {number}" + (f" ({told})" if isinstance(told, str) and len(told) < 40 else "")
        entry = _entry(_Row(row, where))
        if entry.device.dev_eui in entries:
            raise BadInput(f"{where}: dev_eui is there twice", dev_eui=told)
        entries[entry.device.dev_eui] = entry
    return Registry(entries.values())


def _entry(row: "_Row") -> Entry:
    unknown = row.values.keys() - set(FIELDS)
    if unknown:
        raise BadInput(f"{row.where}: there is no key {min(unknown)!r}, only {', '.join(FIELDS)}")
    address = row.number("dev_addr", 4)
    secrets = {name: row.secret(name) for name in SECRETS}
    if (address is None) != (secrets["nwk_skey"] is None):
        raise BadInput(f"{row.where}: dev_addr and nwk_skey belong together, and one of them is missing")
    if address is None and secrets["app_key"] is None:
        raise BadInput(
            f"{row.where}: has neither dev_addr and nwk_skey nor an app_key, so nothing of it can be checked"
        )
    device = Device(
        dev_eui=row.number("dev_eui", 8, needed=True) or 0,
        dev_addr=address,
        strategy=Strategy(row.choice("strategy", "drop", "mark", "none", default="none")),
        gateway=row.gateway(),
        activation=row.choice("activation", "abp", "otaa", default="abp"),
        relaxed=row.flag("relaxed"),
        device_class=row.choice("class", "A", "C", default="A"),
    )
    return Entry(device, **secrets, fcnt_up=row.counter("fcnt_up"))


class _Row:
    """One device as it is written down."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.where = where

    def wrong(self, name: str, must: str) -> BadInput:
        return BadInput(
            f"{self.where}: {name} is {shown(self.values[name]) if name in self.values else 'missing'}, must be {must}",
            key=name,
        )

    def number(self, name: str, size: int, *, needed: bool = False) -> int | None:
        value = self.values.get(name)
        if value is None and not needed:
            return None
        digits = value.replace("-", "").replace(":", "") if isinstance(value, str) else ""
        if len(digits) != 2 * size or not HEX.fullmatch(digits):
            raise self.wrong(name, f"{2 * size} hex digits in quotes")
        return int(digits, 16)

    def secret(self, name: str) -> bytes | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise BadInput(f"{self.where}: {name} is not a text, must be 32 hex digits in quotes", key=name)
        if len(value) != 32 or not HEX.fullmatch(value):
            raise BadInput(f"{self.where}: {name} has {len(value)} characters, must be 32 hex digits", key=name)
        return bytes.fromhex(value)

    def choice(self, name: str, *names: T, default: T) -> T:
        value = self.values.get(name, default)
        for known in names:
            if isinstance(value, str) and value.lower() == known.lower():
                return known
        raise self.wrong(name, f"one of {', '.join(names)}")

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if value not in (True, False):  # SQLite has 0 and 1
            raise self.wrong(name, "true or false")
        return bool(value)

    def counter(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is not None and (type(value) is not int or not 0 <= value < 2**32):
            raise self.wrong(name, "a whole number, 0 to 4294967295")
        return value

    def gateway(self) -> str | None:
        value = self.values.get("gateway", "")
        if not isinstance(value, str) or len(value) > GATEWAY_CHARACTERS_MAX:
            raise self.wrong("gateway", "the name of a server")
        return value or None
