"""Acknowledgements as the devices see them: whose they are, which uplink they answer, and whether they are genuine.

A down frame names an address and its own counter, nothing more. Which device is meant, only the integrity code tells,
for devices may share an address. Which uplink it answers the station knows: a server says its clock value again.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from onefold.engines.lorawan.counter import candidates
from onefold.engines.lorawan.frames import parse_down
from onefold.engines.lorawan.mic import data_mic
from onefold.errors import BadInput, Misuse
from onefold.sim.radio.world import World


class Ack(NamedTuple):
    """One acknowledgement, transmitted by one station for one server."""

    device: str
    """DevEUI in hex."""
    uplink: int
    """The 16-bit counter of the uplink that it answers."""
    mic: int
    """The integrity code of that uplink: a device that begins again uses its counters again, but not for the same."""
    counter: int
    """Its own, 32 bit."""
    station: str
    server: str
    waited_s: float
    """Since the uplink was handed to the server."""


class Ring:
    """The keys of all devices, by address."""

    def __init__(self, keys: Iterable[tuple[int, str, bytes]]) -> None:
        """Address, DevEUI in hex and network session key of each device."""
        self._keys: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)
        for dev_addr, dev_eui, nwk_skey in keys:
            self._keys[dev_addr].append((dev_eui, nwk_skey))
        self._last: dict[str, int] = {}

    @classmethod
    def of(cls, world: World) -> Ring:
        """Of a simulated world."""
        return cls((d.dev_addr, f"{d.dev_eui:016x}", d.nwk_skey) for d in world.devices if not d.stranger)

    @classmethod
    def read(cls, file: Path) -> Ring:
        """Of a registry, as `registry` writes it."""
        try:
            devices = tomllib.loads(file.read_text(encoding="utf-8")).get("device", [])
            return cls((int(d["dev_addr"], 16), d["dev_eui"], bytes.fromhex(d["nwk_skey"])) for d in devices)
        except FileNotFoundError as error:
            raise Misuse(f"{file}: is not there: 'onefold lorawan simulate' makes such a folder") from error
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{file}: is no registry of simulated devices: {error}") from error

    def answer(self, pdu: bytes) -> tuple[str, int, bool]:
        """Device, 32-bit counter and ACK bit of a down frame; `BadInput` if no device has a key that fits."""
        down = parse_down(pdu)
        for dev_eui, nwk_skey in self._keys.get(down.dev_addr, ()):
            for counter in candidates(self._last.get(dev_eui), down.fcnt):
                if data_mic(nwk_skey, down.raw, down.dev_addr, counter, down=True) == down.mic:
                    self._last[dev_eui] = max(counter, self._last.get(dev_eui, 0))
                    return dev_eui, counter, down.ack
        raise BadInput(f"the integrity code of a down frame to {down.dev_addr:08x} is wrong: {pdu.hex()}")


def doubled(acks: Iterable[Ack]) -> Mapping[tuple[str, int, int], set[str]]:
    """The uplinks (device, counter, integrity code) that more than one server acknowledged; there must be none."""
    by: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    for ack in acks:
        by[ack.device, ack.uplink, ack.mic].add(ack.server)
    return {uplink: servers for uplink, servers in by.items() if len(servers) > 1}
