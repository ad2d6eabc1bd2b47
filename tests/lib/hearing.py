"""A receiver that keeps what the links bring, and frames to bring."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from onefold.errors import Busy
from onefold.lorawan.flow import GatewayService, GatewaySettings
from onefold.lorawan.frames import parse_down
from onefold.lorawan.mic import ack_down, data_mic, signed_join, signed_up
from onefold.lorawan.radio import Downlink, Reception
from onefold.lorawan.registry import Registry, RegistryEntry
from onefold.lorawan.rules import Device
from onefold.lorawan.stores.sqlite import MemoryCounters
from onefold.producers.log.reader import LogReader
from onefold.producers.topic import Topics
from onefold.verdict import Answer

KEY = bytes(range(16))
FRAME = signed_up(nwk_skey=KEY, dev_addr=0x26011BDA, fcnt=7, payload=b"\x01\x02", confirmed=True)
JOIN = signed_join(app_key=KEY, join_eui=1, dev_eui=2, dev_nonce=3)
STATION = "0016c001ff10a235"
ANSWER = Downlink(
    ack_down(nwk_skey=KEY, dev_addr=0x26011BDA, fcnt=1), 2, "A", 1, (868_300_000, 5), (869_525_000, 0), 70_000
)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Ear:
    """Keeps receptions and refusals; ``room`` is how many more it takes."""

    def __init__(self, room: int = 1_000_000):
        self.heard: list[Reception] = []
        self.refused: list[tuple[str, Answer, str]] = []
        self.numbers: list[int] = []
        self.room = room
        self.arrived = 0
        self._new = asyncio.Event()

    def arrive(self) -> None:
        self.arrived += 1

    def hear(self, reception: Reception) -> None:
        if self.room <= 0:
            raise Busy("the queue is full")
        self.room -= 1
        self.heard.append(reception)
        self._new.set()

    def refuse(self, station: str, answer: Answer, told: str) -> None:
        self.refused.append((station, answer, told))
        self._new.set()

    def transmitted(self, number: int) -> None:
        self.numbers.append(number)

    def reply(self, downlink: Downlink = ANSWER) -> bool:
        """Send a downlink back to where the first one came from."""
        back = self.heard[0].back
        assert back is not None
        return back(downlink)

    async def until(self, *, heard: int = 0, refused: int = 0) -> None:
        """Wait for so many."""
        async with asyncio.timeout(60):
            while len(self.heard) < heard or len(self.refused) < refused:
                self._new.clear()
                await self._new.wait()


async def until(check, seconds: float = 60) -> None:
    """Wait for what no event tells of."""
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[GatewayService]:
    """A whole service that knows the device of `FRAME`."""
    device = Device(dev_eui=2, dev_addr=FRAME.dev_addr)
    topics = Topics(folder)
    service = GatewayService(
        GatewaySettings(), Registry([RegistryEntry(device, KEY)]), topics.topic, shared=None,
        local=MemoryCounters(lambda: 0),
    )  # fmt: skip
    try:
        yield service
    finally:
        await service.close()
        topics.close()


def upstream(folder: Path) -> list[dict[str, Any]]:
    """What the service stored."""
    return [json.loads(record.payload) for record in LogReader(folder / "uplinks").read(0)]


def is_acknowledgement(pdu: bytes) -> bool:
    """Would the device of `FRAME` take this for the answer?"""
    down = parse_down(pdu)
    mic = data_mic(KEY, down.raw, FRAME.dev_addr, down.fcnt, down=True)
    return down.ack and (down.dev_addr, down.mic) == (FRAME.dev_addr, mic)
