"""Radio traffic in a folder, whole or not at all.

    receptions.jsonl          {"station": "0016...", "at_ms": 1704067230000, "message": {"msgtype": "updf", ...}}
    devices.toml              a registry of the devices, for `onefold serve gateway --devices`
    truth/receptions.jsonl    what each of these lines is, in the same order
    truth/devices.jsonl       of each device how many uplinks were sent, heard, lost
    truth/plan.json           what it was made from

All is written into a temporary directory beside the folder, which is then renamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from onefold.errors import BadInput, Misuse
from onefold.sim.radio.lns import messages
from onefold.sim.radio.registry import registry
from onefold.sim.radio.traffic import RadioTraffic
from onefold.sim.radio.truth_lines import as_json, truth_lines

RECEPTIONS: Final = "receptions.jsonl"
DEVICES: Final = "devices.toml"
TRUTH: Final = "truth/receptions.jsonl"
ORDER: Final = ["station", "at_ms", "message"]
LINE_BYTES_MAX: Final = 16_384
"""Of a line that is read; a message of ours has less than a kilobyte."""


class Heard(NamedTuple):
    """A line of the traffic: what one station says, and when."""

    station: str
    at_ms: int
    message: str
    xtime: int
    """The station's own clock in it: whoever answers the frame says it again."""


def write(made: RadioTraffic, folder: str | Path) -> None:
    """Write traffic, registry and truth into a folder that must not exist or be empty."""
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise Misuse(f"folder is {str(folder)!r}, which exists and is not an empty directory", folder=str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        whole = Path(temporary) / folder.name
        (whole / "truth").mkdir(parents=True)
        _write(whole / RECEPTIONS, _lines(made))
        _write(whole / DEVICES, registry(made))
        _write(whole / TRUTH, map(as_json, truth_lines(made)))
        _write(whole / "truth/devices.jsonl", map(_device, made.truth.devices))
        _write(whole / "truth/plan.json", [json.dumps(asdict(made.plan), indent=2), "\n"])
        whole.rename(folder)


def heard(made: RadioTraffic) -> Iterator[Heard]:
    """The lines of the traffic, without a file."""
    for (gateway, at_ms, message), xtime in zip(messages(made), made.receptions.xtime.tolist(), strict=True):
        yield Heard(made.world.gateways[gateway], at_ms, message, xtime)


def read(folder: str | Path) -> Iterator[Heard]:
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
                yield Heard(station, at_ms, message.decode() if message else json.dumps(line["message"]), xtime)
            except (ValueError, TypeError, KeyError) as error:
                raise BadInput(f"{file}:{number}: is no reception: {text[:80]!r}") from error


def _lines(made: RadioTraffic) -> Iterator[str]:
    for station, at_ms, message, _ in heard(made):
        yield f'{{"station":"{station}","at_ms":{at_ms},"message":{message}}}\n'


def _device(row: Any) -> str:
    return json.dumps({**row._asdict(), "dev_eui": f"{row.dev_eui:016x}"}) + "\n"


def _write(file: Path, texts: Iterable[str]) -> None:
    with file.open("w", encoding="utf-8") as out:
        out.writelines(texts)
