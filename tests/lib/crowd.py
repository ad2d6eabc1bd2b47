"""Many clients that reconcile with one server at once: shared by the suite and by ``./run soak reconcile``."""

import contextlib
import http.client
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from onefold.reconcile import Record, record
from onefold.reconcile.records import open_records

ONEFOLD = (sys.executable, "-m", "onefold.cli.main")


class Side(NamedTuple):
    """What a client lacks of the server's records, and what it has alone."""

    path: Path
    lacks: list[Record]
    alone: list[Record]


def crowd(
    folder: Path, *, clients: int, records: int, differences: int, burners: int = 0, seed: int = 1
) -> dict[str, Any]:
    """Let so many clients reconcile at once; SystemExit if one is not exact, else what there is to tell."""
    rng = random.Random(seed)
    base = [record(number // 3, b"note %d" % number) for number in range(records)]
    fill(folder / "server.db", base)
    sides = [prepared(folder, number, base, differences, rng) for number in range(clients)]
    with serving(folder / "server.db") as url, burning(burners):
        began = monotonic()
        running = [started(side, url) for side in sides]
        most = watched(url, running)
        seconds = monotonic() - began
    bad = [side.path.with_suffix(".err") for side, one in zip(sides, running, strict=True) if one.returncode != 0]
    if bad:
        raise SystemExit(f"{len(bad)} of {clients} clients failed, the first: {bad[0].read_text().strip()[-300:]}")
    told = [json.loads(side.path.with_suffix(".json").read_text()) for side in sides]
    for side, document in zip(sides, told, strict=True):
        check(side, document)
    whole = {each.id for each in base}.union(*({each.id for each in side.alone} for side in sides))
    if (held := ids_of(folder / "server.db")) != whole:
        raise SystemExit(f"the server holds {len(held)} records, {len(whole)} are expected")
    for side in sides:
        held = ids_of(side.path)
        if not {each.id for each in (*base, *side.alone)} <= held <= whole:
            raise SystemExit(f"{side.path.name} holds {len(held)} records, and not those that it should")
    return {
        "seconds": round(seconds, 1),
        "slowest client": max(document["seconds"] for document in told),
        "connections": sum(document["connections"] for document in told),
        "sessions at once": most,
    }


def fill(path: Path, some: list[Record]) -> None:
    with closing(open_records(str(path))) as store:
        store.add(some)


def prepared(folder: Path, number: int, base: list[Record], differences: int, rng: random.Random) -> Side:
    side = Side(
        folder / f"client{number}.db",
        rng.sample(base, differences),
        [record(rng.randrange(len(base) // 3), b"note %d of client %d" % (n, number)) for n in range(differences)],
    )
    shutil.copy(folder / "server.db", side.path)
    with closing(open_records(str(side.path))) as store:
        store.remove([each.id for each in side.lacks])
        store.add(side.alone)
    return side


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [*ONEFOLD, "serve", "reconcile", str(path), "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
    if process.returncode != 0:
        raise SystemExit(f"the server ended with {process.returncode}: {said[-500:]}")


@contextlib.contextmanager
def burning(count: int) -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def started(side: Side, url: str) -> subprocess.Popen[bytes]:
    with side.path.with_suffix(".json").open("wb") as out, side.path.with_suffix(".err").open("wb") as said:
        return subprocess.Popen([*ONEFOLD, "reconcile", str(side.path), url, "--json"], stdout=out, stderr=said)


def watched(url: str, running: list[subprocess.Popen[bytes]]) -> int:
    """Wait for them; how many sessions were open at once, as far as it was seen."""
    most = 0
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as server:
        while any(process.poll() is None for process in running):
            server.request("GET", "/healthz")
            most = max(most, json.load(server.getresponse())["sessions"])
            sleep(0.1)
    return most


def check(side: Side, told: dict[str, Any]) -> None:
    """Whether a client found exactly what it has alone, and at least what it lacks."""
    alone = {each.id.hex() for each in side.alone}
    if not told["settled"] or told["have"] != len(alone) or not set(told["have_ids"]) <= alone:
        raise SystemExit(f"{side.path.name}: found {told['have']} records only here, {len(alone)} are")
    if told["need"] < len(side.lacks) or not told["pulled"]["balanced"] or not told["pushed"]["balanced"]:
        raise SystemExit(f"{side.path.name}: found {told['need']} records only there, {len(side.lacks)} or more are")


def ids_of(path: Path) -> set[bytes]:
    with closing(open_records(str(path))) as store, closing(store.snapshot()) as snapshot:
        rows = snapshot.rows(np.arange(len(snapshot)))[1]
        return {row.tobytes() for row in rows}
