"""Frames as they are on the air: counter, payload and integrity code in bytes.

Cost: some 10 us per distinct frame, nearly all of it AES; copies share their frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from onefold.engines.lorawan.frames import Frame
from onefold.engines.lorawan.mic import signed_join, signed_up
from onefold.sim.radio.air import Air, Frames
from onefold.sim.radio.world import JOIN_EUI, World

PAYLOAD_BYTES: Final = (1, 24)
FPORT_MAX: Final = 223


def sign(rng: np.random.Generator, world: World, air: Air) -> list[Frame]:
    """Every frame of the air, by its number."""
    return list(_signed(rng, world, air))


def _signed(rng: np.random.Generator, world: World, air: Air) -> Iterator[Frame]:
    count = len(air.kind)
    lengths = rng.integers(*PAYLOAD_BYTES, count)
    ends = np.cumsum(lengths).tolist()
    payloads = rng.bytes(ends[-1])
    wrong = rng.integers(1, 1 << 32, count).tolist()
    columns = (air.kind, air.device, air.counter, air.confirmed, lengths)
    rows = zip(*(column.tolist() for column in columns), ends, wrong, strict=True)
    for kind, device, counter, confirmed, length, end, other in rows:
        owner = world.devices[device]
        if kind == Frames.JOIN:
            yield signed_join(app_key=owner.app_key, join_eui=JOIN_EUI, dev_eui=owner.dev_eui, dev_nonce=counter)
            continue
        frame = signed_up(
            nwk_skey=owner.nwk_skey,
            dev_addr=owner.dev_addr,
            fcnt=counter,
            payload=payloads[end - length : end],
            fport=1 + end % FPORT_MAX,
            confirmed=confirmed,
            adr=True,
        )
        yield frame._replace(mic=frame.mic ^ other) if kind == Frames.FORGED else frame
