"""Receptions for tests, and what the scalar engine says of them."""

import os
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.lorawan import Sightings, Stations, Strategy

START = 1_700_000_000_000
SCHEMA = "offset long, kind string, frame string, device string, fcnt long, station string, time_ms long"
ARROW = pa.schema({
    "offset": pa.int64(), "kind": pa.string(), "frame": pa.string(), "device": pa.string(), "fcnt": pa.int64(),
    "station": pa.string(), "time_ms": pa.int64(),
})  # fmt: skip


def air(frames, seed):
    """Frames heard by several stations, sent again around and beyond the expiry; of a frame one row a millisecond."""
    rng = random.Random(seed)
    heard = []
    for n in range(frames):
        kind, at = "join" if n % 10 == 0 else "data", rng.randrange(3_600_000)
        for _ in range(rng.choice([1, 1, 2, 4])):
            for station in rng.sample("abcd", rng.randrange(1, 4)):
                heard.append((kind, f"{n:064x}", f"dev{n % 7}", n // 7, station, at + rng.randrange(300)))
            at += rng.choice([50, 5_000, 59_700, 60_000, 90_000, 400_000])
    times, rows = set(), list[tuple[Any, ...]]()
    for *row, at in sorted(heard, key=lambda row: row[-1]):
        at += next(late for late in range(1_000) if (row[2], at + late) not in times)  # no ties: the truth is one
        times.add((row[2], at))
        rows.append((*row, START + at))
    return [(offset, *row) for offset, row in enumerate(sorted(rows, key=lambda row: row[-1]))]


def scalar(rows, strategy="none", *, sliding=True, echo_ms=0, expiry_ms=60_000, strict_adr=False):
    stations = Stations(Sightings(expiry_ms=expiry_ms, sliding=sliding), echo_ms=echo_ms)
    found, used = {}, set()
    last: dict[str, bytes] = {}
    for offset, kind, frame, device, _, station, at in rows:
        key = bytes.fromhex(frame)
        if kind == "join":
            status, answer = stations.join(key, station, at, used=key in used and not strict_adr)
            used.add(key)
        else:
            status, answer = stations.data(key, station, Strategy(strategy), at, last.get(device))
            if answer.verdict == "FIRST" and not strict_adr:
                last[device] = key
        found[offset] = f"{answer} {status}"
    return found


def write(rows, folder, name, age):
    folder.mkdir(exist_ok=True)
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), ARROW.types, strict=True)]
    pq.write_table(pa.table(arrays, schema=ARROW), folder / f"{name}.parquet")
    os.utime(folder / f"{name}.parquet", (1_700_000_000 + age, 1_700_000_000 + age))  # Spark takes files by their age
