"""./run bench negentropy: two sets of a million records, both sides in this process, one core.

Build: sealing the set and its totals, against sorting the same columns with numpy; then distinct timestamps and 63 %
tied ones, alternating, as a ratio of medians. Reconcile: 1, 1,000 and 100,000 differences, half of them on each side,
scattered or in one range; with frame limits of 60,000 bytes up and 500,000 down; with the sparse and with the full
reply. The best of several rounds is kept. Memory is tracemalloc's peak, without the two sets. Then hostile messages of
128 KiB, and a server whose records are in a SQLite file.
"""

import argparse
import gc
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from onefold.errors import BadInput
from onefold.reconcile import Items, ItemSet, Session
from onefold.reconcile.sqlite import SqliteRecords

RECORDS = 1_000_000
DIFFERENCES = (1, 1_000, 100_000)
FRAMES = (60_000, 500_000)


class Sides(NamedTuple):
    client: Items
    server: Items
    have: int
    need: int


class Talked(NamedTuple):
    seconds: float
    rounds: int
    up: int
    down: int
    have: int
    need: int


def columns(records: int, id_size: int) -> tuple[Any, Any]:
    """A year of random records."""
    grow = np.random.default_rng(1)
    ids = np.frombuffer(grow.bytes(records * id_size), dtype=np.uint8).reshape(records, id_size)
    return (1_700_000_000 + grow.integers(0, 31_000_000, records)).astype(np.uint64), ids


def sealed(stamps: Any, ids: Any, wire: str) -> ItemSet:
    items = ItemSet.from_arrays(stamps, ids)
    items.seal()
    nothing = np.zeros(1, dtype=np.int64)
    (items.sums if wire == "v1" else items.xors)(nothing, nothing)  # the totals, which are made when first asked for
    return items


def sides(records: int, differences: int, clustered: bool, wire: str = "v1", id_size: int = 32) -> Sides:
    stamps, ids = columns(records, id_size)
    if clustered:
        where = np.argsort(stamps)[records // 2 : records // 2 + differences]
    else:
        where = np.random.default_rng(2).choice(records, differences, replace=False)
    kept = np.ones((2, records), dtype=np.bool_)
    half = differences // 2
    kept[0, where[half:]] = False
    kept[1, where[:half]] = False
    client, server = (sealed(stamps[here], ids[here], wire) for here in kept)
    return Sides(client, server, half, differences - half)


def talk(two: Sides, frames: tuple[int, int] = (0, 0), **how: Any) -> Talked:
    start = perf_counter()
    client = Session(two.client, frame_size_max=frames[0], **how)
    server = Session(two.server, frame_size_max=frames[1], **how)
    message: bytes | None = client.initiate()
    have = need = 0
    while message is not None:
        reply = server.reconcile(message).reply
        assert reply is not None
        message, more_have, more_need = client.reconcile(reply)
        have, need = have + len(more_have), need + len(more_need)
    seconds = perf_counter() - start
    assert (have, need) == (two.have, two.need), "not what was taken away"
    return Talked(seconds, client.spent.rounds, client.spent.bytes_out, client.spent.bytes_in, have, need)


def best(way: Callable[[], Talked], rounds: int) -> Talked:
    gc.collect()
    return min(way() for _ in range(rounds))


def peak(way: Callable[[], Talked]) -> float:
    tracemalloc.start()
    way()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 1e6


def build(records: int, rounds: int) -> None:
    print(f"## Build, {records:,} records of 32 bytes\n\n| way | seconds | numpy's sort = 1 |\n|---|---|---|")
    stamps, ids = columns(records, 32)
    limbs = [np.ascontiguousarray(ids.view(">u8")[:, k], dtype=np.uint64) for k in range(4)]
    ways: dict[str, Callable[[], Any]] = {
        "`np.lexsort` of timestamp and four limbs": lambda: np.lexsort((*reversed(limbs), stamps)),
        "`np.argsort` of the timestamps alone": lambda: np.argsort(stamps, kind="stable"),
        "`seal`, and the totals of v1": lambda: sealed(stamps, ids, "v1"),
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            start = perf_counter()
            way()
            least[name] = min(least[name], perf_counter() - start)
    one = least["`np.lexsort` of timestamp and four limbs"]
    for name, seconds in least.items():
        print(f"| {name} | {seconds:.3f} | {seconds / one:.2f} |", flush=True)

    ties(records, ids, rounds)


def ties(records: int, ids: Any, rounds: int) -> None:
    """Distinct timestamps and tied ones, in any order, by turns."""
    print("\n| timestamps | seconds, median | distinct = 1 |\n|---|---|---|")
    grow = np.random.default_rng(5)
    tied = grow.integers(0, records, records).astype(np.uint64)
    share = np.mean(np.bincount(tied.astype(np.int64))[tied.astype(np.int64)] > 1)
    ways = {"distinct": grow.permutation(31 * records)[:records].astype(np.uint64), f"{share:.0%} tied": tied}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, stamps in ways.items():
            gc.collect()
            start = perf_counter()
            ItemSet.from_arrays(stamps, ids).seal()
            spent[name].append(perf_counter() - start)
    for name, seconds in spent.items():
        print(f"| {name} | {median(seconds):.3f} | {median(seconds) / median(spent['distinct']):.2f} |", flush=True)


def reconcile(records: int, rounds: int) -> None:
    print("\n## Reconcile\n\n| wire | differences | reply, frames | ms | round trips | bytes up | down | peak MB |")
    print("|---" * 8 + "|")

    def line(wire: str, what: str, how: str, way: Callable[[], Talked]) -> None:
        it = best(way, rounds)
        cells = [wire, what, how, f"{it.seconds * 1e3:,.1f}", str(it.rounds), f"{it.up:,}", f"{it.down:,}"]
        print(f"| {' | '.join(cells)} | {peak(way):,.1f} |", flush=True)

    two = sides(records, 1, False, "xor", 16)
    line("xor, 16", "1", "sparse", lambda: talk(two, wire="xor"))
    for differences in DIFFERENCES:
        for clustered in (False, True)[: 1 if differences == 1 else 2]:
            two = sides(records, differences, clustered)
            what = f"{differences:,}{' in a row' if clustered else ''}"
            line("v1", what, "sparse", lambda two=two: talk(two))  # type: ignore[misc]
            if differences == max(DIFFERENCES):
                line("v1", what, "full", lambda two=two: talk(two, reply="full"))  # type: ignore[misc]
                frames = f"sparse, {FRAMES[0]:,} / {FRAMES[1]:,}"
                line("v1", what, frames, lambda two=two: talk(two, FRAMES))  # type: ignore[misc]


def changes(records: int) -> None:
    """One record at a time, and a thousand at once."""
    print("\n## Changes of a sealed set\n\n| change | microseconds per record |\n|---|---|")
    stamps, ids = columns(records, 32)
    items, new = sealed(stamps, ids, "v1"), np.random.default_rng(3)
    fresh = [new.bytes(32) for _ in range(6_000)]
    for name, verb in (("add, one by one", items.add), ("remove, one by one", items.remove)):
        start = perf_counter()
        for number, id in enumerate(fresh):
            verb(1_700_000_000 + 5_000 * number, id)
        print(f"| {name} | {(perf_counter() - start) / len(fresh) * 1e6:,.0f} |", flush=True)
    many = np.frombuffer(new.bytes(32_000 * 20), dtype=np.uint8).reshape(20, 1_000, 32)
    start = perf_counter()
    for rows in many:
        items.add_many(1_700_000_000 + new.integers(0, 31_000_000, 1_000), rows)
    print(f"| add, 1,000 at once | {(perf_counter() - start) / 20_000 * 1e6:,.1f} |", flush=True)


def hostile(rounds: int) -> None:
    print("\n## 128 KiB of hostile bytes\n\n| message | ms until refused | peak MB |\n|---|---|---|")
    server, size = Session(sealed(*columns(100_000, 32), "v1"), frame_size_max=500_000), 128 * 1024
    for name, message in {
        "all ones": b"\xff" * size,
        "43,000 Skips, then an unknown mode": b"\x02\x00\x00" * (size // 3) + b"\x02\x00\x07",
        "32,000 empty lists, then an unknown mode": b"\x02\x00\x02\x00" * (size // 4) + b"\x02\x00\x07",
        "a count of 2^64 - 1": b"\x00\x00\x02\x81" + b"\xff" * 8 + b"\x7f" + bytes(size),
        "noise": np.random.default_rng(4).bytes(size),
    }.items():

        def refused(message: bytes = message) -> Talked:
            start = perf_counter()
            try:
                server.reconcile(b"\x61" + message)
            except BadInput:
                return Talked(perf_counter() - start, 0, 0, 0, 0, 0)
            raise AssertionError("taken for good")

        print(f"| {name} | {best(refused, rounds).seconds * 1e3:.2f} | {peak(refused):.1f} |", flush=True)


def sqlite(records: int, rounds: int) -> None:
    print("\n## A server whose records are in a SQLite file\n")
    stamps, ids = columns(records, 32)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "records.db"
        start = perf_counter()
        with closing(SqliteRecords(path)) as kept:
            kept.add_items(stamps, ids)
            seconds = perf_counter() - start
        print(f"{records:,} ids loaded in {seconds:.1f} s, a file of {path.stat().st_size / 1e6:.0f} MB\n")
        print("| differences | ms | round trips | bytes up | down | peak MB |\n|---|---|---|---|---|---|")
        with closing(SqliteRecords(path)) as kept:
            for differences in DIFFERENCES:
                gone = np.random.default_rng(2).choice(records, differences, replace=False)
                client = sealed(np.delete(stamps, gone), np.delete(ids, gone, axis=0), "v1")

                def way(client: ItemSet = client, differences: int = differences) -> Talked:
                    start = perf_counter()
                    with closing(kept.snapshot()) as server:
                        talked = talk(Sides(client, server, 0, differences))
                    return talked._replace(seconds=perf_counter() - start)

                it = best(way, rounds)
                cells = [f"{differences:,}", f"{it.seconds * 1e3:,.1f}", str(it.rounds), f"{it.up:,}", f"{it.down:,}"]
                print(f"| {' | '.join(cells)} | {peak(way):,.1f} |", flush=True)


def main() -> None:
    parts: dict[str, Callable[[int, int], None]] = {
        "build": build,
        "reconcile": reconcile,
        "changes": lambda records, _: changes(records),
        "hostile": lambda _, rounds: hostile(rounds),
        "sqlite": sqlite,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--part", choices=parts, action="append", help="only this one; may be given several times")
    options = parser.parse_args()
    print("# Negentropy\n")
    for name in options.part or parts:
        parts[name](options.records, options.rounds)


if __name__ == "__main__":
    main()
