"""Radio traffic in a folder, whole or not at all.

    receptions.jsonl          {"station": "0016...", "at_ms": 1704067230000, "message": {"msgtype": "updf", ...}}
    devices.toml              a registry of the devices, for `onefold serve gateway --devices`
    truth/receptions.jsonl    what each of these lines is, in the same order
    truth/devices.jsonl       of each device how many uplinks were sent, heard, lost
    truth/plan.json           what it was made from

All is written into a temporary directory beside the folder, which is then renamed.

Receptions are messages of a Basics Station, ``updf`` and ``jreq``. Stations write addresses and integrity codes as
*signed* 32-bit numbers, ids with dashes, a missing port as -1. Lines are put together from text: the part that is the
frame's is made once per frame, and nothing in it needs escaping.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from onefold.errors import BadInput, Misuse
from onefold.lorawan.frames import DataUp, Frame
from onefold.lorawan.radio import dashed
from onefold.testing.faults import whole_folder
from onefold.testing.radio import FrameKind, Frames, RadioTraffic


class TruthLine(NamedTuple):
    station: str
    key: str
    """The frame's key, in hex: the same for all receptions of a frame."""
    kind: FrameKind
    frame: int
    device: str
    """Its DevEUI, in hex; of a stranger too."""
    counter: int
    """32 bit; of a join request: its nonce."""
    join: bool


class HeardFrame(NamedTuple):
    """A line of the traffic: what one station says, and when."""

    station: str
    at_ms: int
    message: str
    xtime: int
    """The station's own clock in it: whoever answers the frame says it again."""


def truth_lines(traffic: RadioTraffic) -> Iterator[TruthLine]:
    keys = [frame.key.hex() for frame in traffic.frames]
    names = [f"{device.dev_eui:016x}" for device in traffic.world.devices]
    owners, counters = (column.tolist() for column in (traffic.air.device, traffic.air.counter))
    joins = [not hasattr(frame, "fcnt") for frame in traffic.frames]
    kinds = list(FrameKind)
    columns = (traffic.receptions.gateway, traffic.truth.kind, traffic.truth.frame)
    for gateway, kind, frame in zip(*(column.tolist() for column in columns), strict=True):
        station, device = traffic.world.gateways[gateway], names[owners[frame]]
        yield TruthLine(station, keys[frame], kinds[kind], frame, device, counters[frame], joins[frame])


def as_json(line: TruthLine) -> str:
    return (
        f'{{"station":"{line.station}","key":"{line.key}","kind":"{line.kind.name.lower()}","frame":{line.frame},'
        f'"device":"{line.device}","counter":{line.counter},"join":{str(line.join).lower()}}}\n'
    )


def registry(traffic: RadioTraffic) -> Iterator[str]:
    """The text of the registry, device by device; strangers are not in it."""
    starts = first_counters(traffic)
    for i, device in enumerate(traffic.world.devices):
        if device.stranger:
            continue
        lines = [
            "[[device]]",
            f'dev_eui = "{device.dev_eui:016x}"',
            f'dev_addr = "{device.dev_addr:08x}"',
            f'nwk_skey = "{device.nwk_skey.hex()}"',
            f'strategy = "{device.strategy}"',
            f'activation = "{"otaa" if device.joins else "abp"}"',
        ]
        if device.joins:
            lines.append(f'app_key = "{device.app_key.hex()}"')
        if device.resets:
            lines.append("relaxed = true")
        if device.rolls_over:  # nobody can guess a high word that was never heard, nor one that passed unheard
            lines.append(f"fcnt_up = {starts[i] - 1}")
        yield "\n".join(lines) + "\n\n"


def first_counters(traffic: RadioTraffic) -> dict[int, int]:
    """The first counter that each device uses, by its number."""
    uplinks = traffic.air.kind == Frames.UPLINK
    pairs = zip(traffic.air.device[uplinks].tolist(), traffic.air.counter[uplinks].tolist(), strict=True)
    return dict(reversed(list(pairs)))  # each device's uplinks stand in order


def heard(traffic: RadioTraffic) -> Iterator[HeardFrame]:
    """Every reception in order of arrival: the lines of the traffic, without a file."""
    arrivals = traffic.receptions
    texts = [_frame(frame) for frame in traffic.frames]
    times = traffic.air.time_ms[arrivals.transmission]
    columns = (traffic.truth.frame, arrivals.gateway, arrivals.at_ms, times, arrivals.rssi, arrivals.snr)
    numbers = (arrivals.frequency_hz, arrivals.data_rate, arrivals.xtime)
    rows = zip(*(column.tolist() for column in columns + numbers), strict=True)
    for frame, gateway, at_ms, time_ms, rssi, snr, frequency, data_rate, xtime in rows:
        seconds = f"{time_ms // 1000}.{time_ms % 1000:03d}"
        message = (
            f'{texts[frame]},"RefTime":{seconds},"DR":{data_rate},"Freq":{frequency},"upinfo":{{"rctx":0,'
            f'"xtime":{xtime},"gpstime":0,"fts":-1,"rssi":{rssi},"snr":{snr},"rxtime":{seconds}}}}}'
        )
        yield HeardFrame(traffic.world.gateways[gateway], at_ms, message, xtime)


def signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _frame(frame: Frame) -> str:
    if isinstance(frame, DataUp):
        return (
            f'{{"msgtype":"updf","MHdr":{frame.mhdr},"DevAddr":{signed(frame.dev_addr)},"FCtrl":{frame.fctrl},'
            f'"FCnt":{frame.fcnt},"FOpts":"{frame.fopts.hex().upper()}",'
            f'"FPort":{-1 if frame.fport is None else frame.fport},'
            f'"FRMPayload":"{frame.payload.hex().upper()}","MIC":{signed(frame.mic)}'
        )
    return (
        f'{{"msgtype":"jreq","MHdr":{frame.mhdr},"JoinEui":"{dashed(frame.join_eui)}",'
        f'"DevEui":"{dashed(frame.dev_eui)}","DevNonce":{frame.dev_nonce},"MIC":{signed(frame.mic)}'
    )


RECEPTIONS: Final = "receptions.jsonl"
DEVICES: Final = "devices.toml"
TRUTH: Final = "truth/receptions.jsonl"
ORDER: Final = ["station", "at_ms", "message"]
LINE_BYTES_MAX: Final = 16_384
"""Of a line that is read; a message of ours has less than a kilobyte."""


def write(traffic: RadioTraffic, folder: str | Path) -> None:
    """Write traffic, registry and truth into a folder that must not exist or be empty."""
    with whole_folder(Path(folder), "folder") as whole:
        (whole / "truth").mkdir()
        lines = heard(traffic)
        _write(whole / RECEPTIONS, (f'{{"station":"{s}","at_ms":{at},"message":{text}}}\n' for s, at, text, _ in lines))
        _write(whole / DEVICES, registry(traffic))
        _write(whole / TRUTH, map(as_json, truth_lines(traffic)))
        devices = ({**row._asdict(), "dev_eui": f"{row.dev_eui:016x}"} for row in traffic.truth.devices)
        _write(whole / "truth/devices.jsonl", (json.dumps(row) + "\n" for row in devices))
        _write(whole / "truth/plan.json", [json.dumps(asdict(traffic.plan), indent=2), "\n"])


def read(folder: str | Path) -> Iterator[HeardFrame]:
    """The lines of a folder's traffic; `BadInput` names the file and the line."""
    file = Path(folder) / RECEPTIONS
    if not file.is_file():
        raise Misuse(f"{file}: is not there: 'onefold lorawan simulate' makes such a folder", folder=str(folder))
    with file.open("rb") as opened:
        number = 0
        while text := opened.readline(LINE_BYTES_MAX):
            number += 1
            try:
                line = json.loads(text)
                station, at_ms, xtime = line["station"], line["at_ms"], line["message"]["upinfo"]["xtime"]
                if len(station) != 16 or int(station, 16) < 0 or (type(at_ms), type(xtime)) != (int, int):
                    raise ValueError(station)
                # As it stands there: to write it again costs as much as to read it.
                message = text.partition(b'"message":')[2].rstrip()[:-1] if [*line] == ORDER else None
                yield HeardFrame(station, at_ms, message.decode() if message else json.dumps(line["message"]), xtime)
            except (ValueError, TypeError, KeyError) as error:
                raise BadInput(f"{file}:{number}: is no reception: {text[:80]!r}") from error


def _write(file: Path, texts: Iterable[str]) -> None:
    with file.open("w", encoding="utf-8") as out:
        out.writelines(texts)
