"""The truth about receptions as lines: one for every reception, in the same order as the traffic's lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from onefold.errors import BadInput
from onefold.sim.radio.traffic import RadioTraffic
from onefold.sim.radio.truth import Kind

KINDS = {kind.name.lower(): kind for kind in Kind}


class TruthLine(NamedTuple):
    """What one reception is."""

    station: str
    key: str
    """The frame's key, in hex: the same for all receptions of a frame."""
    kind: Kind
    frame: int
    """The number of the frame in this traffic."""
    device: str
    """Its DevEUI, in hex; of a stranger too."""
    counter: int
    """32 bit; of a join request: its nonce."""
    join: bool


def truth_lines(made: RadioTraffic) -> Iterator[TruthLine]:
    """All of them."""
    keys = [frame.key.hex() for frame in made.frames]
    names = [f"{device.dev_eui:016x}" for device in made.world.devices]
    owners, counters = (column.tolist() for column in (made.air.device, made.air.counter))
    joins = [not hasattr(frame, "fcnt") for frame in made.frames]
    kinds = list(Kind)
    rows = zip(*(c.tolist() for c in (made.receptions.gateway, made.truth.kind, made.truth.frame)), strict=True)
    for gateway, kind, frame in rows:
        station, device = made.world.gateways[gateway], names[owners[frame]]
        yield TruthLine(station, keys[frame], kinds[kind], frame, device, counters[frame], joins[frame])


def as_json(line: TruthLine) -> str:
    """A line of the truth's file."""
    return (
        f'{{"station":"{line.station}","key":"{line.key}","kind":"{line.kind.name.lower()}","frame":{line.frame},'
        f'"device":"{line.device}","counter":{line.counter},"join":{str(line.join).lower()}}}\n'
    )


def read_truth(file: Path) -> list[TruthLine]:
    """The lines of such a file."""
    lines = []
    with file.open(encoding="utf-8") as opened:
        for number, text in enumerate(opened, 1):
            try:
                fields = json.loads(text)
                fields["kind"] = KINDS[fields["kind"]]
                lines.append(TruthLine(**fields))
            except (ValueError, TypeError, KeyError) as error:
                raise BadInput(f"{file}:{number}: is no line of a truth: {text[:80]!r}") from error
    return lines
