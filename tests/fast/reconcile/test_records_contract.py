"""What every store of `Records` promises, whatever stands behind it; and its snapshots answer as an ItemSet does."""

import random
from collections.abc import Callable, Iterator
from threading import Thread
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import BadInput, Misuse
from onefold.reconcile import INFINITY, Bounds, Items, ItemSet, Record, Session, record
from onefold.reconcile.records import MemoryRecords, Records, open_records
from onefold.reconcile.sqlite import SqliteRecords
from tests.lib.examples import examples

STORES = ("memory", "sqlite")


class Place(NamedTuple):
    """A store, and a way to another one that shares what is stored, as a second process would have."""

    records: Records
    again: Callable[[], Records]


@pytest.fixture(params=STORES)
def place(request, tmp_path) -> Iterator[Place]:
    if request.param == "memory":
        kept = MemoryRecords()
        yield Place(kept, lambda: kept)
        return
    opened: list[SqliteRecords] = []

    def again() -> Records:
        opened.append(SqliteRecords(tmp_path / "r.db", leaf_items=4))
        return opened[-1]

    yield Place(again(), again)
    for store in opened:
        store.close()


@pytest.fixture
def records(place: Place) -> Records:
    return place.records


COFFEE, TEA, WATER = record(5, b"1 coffee"), record(7, b"2 teas"), record(6, b"")


def listed(snapshot) -> list[tuple[int, bytes]]:
    """All that is in it, in order."""
    stamps, ids = snapshot.rows(np.arange(len(snapshot)))
    return [(stamp, row[: snapshot.id_size].tobytes()) for stamp, row in zip(stamps.tolist(), ids, strict=True)]


def seen(records: Records) -> list[tuple[int, bytes]]:
    snapshot = records.snapshot()
    try:
        return listed(snapshot)
    finally:
        snapshot.close()


def test_it_begins_with_nothing(records):
    assert len(records) == 0
    assert records.read([COFFEE.id]) == [None]
    assert records.remove([COFFEE.id]) == 0
    assert records.add([]) == []
    assert seen(records) == []


def test_what_was_added_is_read_by_its_id_in_the_order_that_was_asked(place):
    assert place.records.add([COFFEE, TEA, WATER]) == [True, True, True]
    other = place.again()
    assert len(other) == 3
    assert other.read([WATER.id, b"?" * 32, COFFEE.id, WATER.id]) == [WATER, None, COFFEE, WATER]
    assert other.read([]) == []


def test_a_record_is_new_once(records):
    assert records.add([COFFEE, TEA, COFFEE]) == [True, True, False]
    assert records.add([TEA, WATER]) == [False, True]
    assert len(records) == 3


def test_an_id_without_a_body_is_kept_and_stays_so(records):
    told = COFFEE._replace(body=None)
    assert records.add([told, TEA]) == [True, True]
    assert records.add([COFFEE]) == [False]
    assert records.read([COFFEE.id, TEA.id]) == [told, TEA]


def test_an_id_that_comes_again_with_another_time_stays_as_it_is(records):
    records.add([COFFEE])
    assert records.add([COFFEE._replace(timestamp=9)]) == [False]
    assert seen(records) == [(5, COFFEE.id)]


def test_what_is_removed_is_gone_and_may_come_again(records):
    records.add([COFFEE, TEA, WATER])
    assert records.remove([TEA.id, TEA.id, b"?" * 32, b"short"]) == 1
    assert records.read([TEA.id, COFFEE.id]) == [None, COFFEE]
    assert seen(records) == [(5, COFFEE.id), (6, WATER.id)]
    assert records.add([TEA._replace(body=None)]) == [True]
    assert records.read([TEA.id]) == [TEA._replace(body=None)]


def test_an_id_of_another_size_is_asked_for_in_vain(records):
    records.add([COFFEE])
    assert records.read([b"short", COFFEE.id, COFFEE.id + b"!"]) == [None, COFFEE, None]


def test_records_are_in_the_order_of_time_and_id(records):
    stamps = [0, 2**64 - 2, 2**63, 2**63 - 1, 5, 5, 5, 5, 5, 5]
    many = [record(stamp, b"%d" % n) for n, stamp in enumerate(stamps)]
    records.add(many[::2])
    records.add(many[1::2])
    assert seen(records) == sorted((each.timestamp, each.id) for each in many)
    assert records.read([many[1].id, many[2].id]) == many[1:3]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (COFFEE._replace(id=b"short"), "has 5 bytes, must have 32"),
        (COFFEE._replace(timestamp=INFINITY), "timestamp 18446744073709551615 of id"),
        (COFFEE._replace(timestamp=-1), "timestamp -1 of id"),
        (TEA._replace(timestamp=8), "comes with two timestamps, 7 and 8"),
    ],
)
def test_all_are_taken_or_none(records, wrong, told):
    with pytest.raises(BadInput, match=told):
        records.add([TEA, WATER, wrong])
    assert len(records) == 0
    assert seen(records) == []


def test_a_snapshot_stands_still_while_others_write(place):
    place.records.add([COFFEE, TEA])
    before = place.records.snapshot()
    place.again().add([WATER])
    place.records.remove([TEA.id])
    assert listed(before) == [(5, COFFEE.id), (7, TEA.id)]
    assert seen(place.records) == seen(place.again()) == [(5, COFFEE.id), (6, WATER.id)]
    before.close()
    before.close()


def test_a_store_that_was_closed_says_so(records):
    records.add([COFFEE])
    records.close()
    records.close()
    verbs: list[Callable[[], object]] = [
        lambda: len(records),
        lambda: records.add([TEA]),
        lambda: records.remove([TEA.id]),
        lambda: records.read([TEA.id]),
        records.snapshot,
    ]
    for verb in verbs:
        with pytest.raises(Misuse, match="these records were closed"):
            verb()


def test_threads_add_and_remove_at_once(place):
    stores = [place.records, place.again(), place.records]
    parts = [[record(n, b"%d of %d" % (n, k)) for n in range(60)] for k in range(3)]

    def work(store: Records, part: list[Record]) -> None:
        for start in range(0, 60, 20):
            store.add(part[start : start + 20])
            store.remove([part[start].id])

    threads = [Thread(target=work, args=pair) for pair in zip(stores, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = [each for part in parts for n, each in enumerate(part) if n % 20]
    assert len(place.records) == len(left)
    assert seen(place.again()) == sorted((each.timestamp, each.id) for each in left)


@pytest.mark.parametrize("address", ["memory://", "sqlite:///{}/r.db", "{}/r.db"])
def test_a_store_is_opened_by_its_address(address, tmp_path):
    kept = open_records(address.format(tmp_path), 16)
    assert kept.id_size == 16
    assert kept.add([record(1, b"x", 16)]) == [True]
    kept.close()
    for id_size in (7, 33):
        with pytest.raises(Misuse, match="id_size"):
            open_records(address.format(tmp_path), id_size)


@pytest.mark.parametrize("address", ["memory://x", "redis://host", "", "sqlite://x"])
def test_an_address_that_leads_nowhere_is_named(address):
    with pytest.raises(Misuse, match=r"no records at .*; there are some at memory://"):
        open_records(address)


def filled(store: str, path, stamps, ids, items_max: int) -> Records:
    """A store with these records, which came in two parts and lost some on the way."""
    id_size = ids.shape[1]
    records: Records = MemoryRecords(id_size)
    if store == "sqlite":
        records = SqliteRecords(path, id_size, leaf_items=5, items_max=items_max)
    every = [Record(stamp, row.tobytes()) for stamp, row in zip(stamps.tolist(), ids, strict=True)]
    passing = [Record(stamp, bytes([n % 256]) * id_size) for n, stamp in enumerate(stamps.tolist()[:20])]
    records.add(every[::2] + passing)
    records.add(every[1::2])
    records.remove([each.id for each in passing])
    return records


def columns(rng: np.random.Generator, count: int, id_size: int, span: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.frombuffer(rng.bytes(count * id_size), dtype=np.uint8).reshape(count, id_size)
    return np.uint64(2**63 - span // 2) + rng.integers(0, span, count).astype(np.uint64), ids


@pytest.mark.parametrize("store", STORES)
@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 5, 60, 200]), st.sampled_from([8, 20, 32]), st.booleans())
def test_a_snapshot_answers_as_an_item_set_does(tmp_path_factory, store, seed, count, id_size, tight):
    rng = np.random.default_rng(seed)
    stamps, ids = columns(rng, count, id_size, 3 if seed % 2 else 10**9)
    plain = ItemSet.from_arrays(stamps, ids, id_size)
    plain.seal()
    path = tmp_path_factory.mktemp("records") / "r.db"
    records = filled(store, path, stamps, ids, items_max=7 if tight else 100)
    snapshot = records.snapshot()
    assert len(snapshot) == count
    for _ in range(3):
        some = rng.integers(0, count, 12) if count else np.zeros(0, dtype=np.int64)
        lengths = rng.integers(0, id_size + 1, len(some)).tolist()
        pairs = [(int(stamps[at]), ids[at, :length].tobytes()) for at, length in zip(some, lengths, strict=True)]
        ends = [(0, b""), *sorted(pairs), (INFINITY, b"")]
        asked = Bounds.join([Bounds.one(stamp, prefix, id_size) for stamp, prefix in ends])
        snapshot.expect(asked, rng.random(len(asked)) < 0.3)
        assert snapshot.find(asked).tolist() == plain.find(asked).tolist()
        lower, upper = np.sort(rng.integers(0, count + 1, (2, 20)), axis=0)
        assert np.array_equal(snapshot.sums(lower, upper), plain.sums(lower, upper))
        assert np.array_equal(snapshot.xors(lower, upper), plain.xors(lower, upper))
        for column in (0, 1):
            assert np.array_equal(snapshot.rows(some)[column], plain.rows(some)[column])
        wide = upper - lower > 1
        lower, upper = lower[wide], upper[wide]
        cuts = snapshot.cuts((lower + upper) // 2, lower, upper)
        assert ((lower < cuts) & (cuts < upper)).all()
    snapshot.close()
    records.close()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("wire", ["v1", "xor"])
@pytest.mark.parametrize("frames", [(0, 0), (4_096, 6_000)])
def test_a_session_over_a_snapshot_finds_exactly_what_differs(tmp_path, store, wire, frames):
    rng = np.random.default_rng(random.Random(f"{store} {wire} {frames}").randrange(2**32))
    for turn, (share, span) in enumerate([(0.02, 10**9), (0.2, 2), (0.6, 10**9), (0.0, 10**9)]):
        id_size = 32 if wire == "v1" or turn == 1 else 16
        stamps, ids = columns(rng, 2_000, id_size, span)
        kept = rng.random((2, len(ids))) >= share
        plain = ItemSet.from_arrays(stamps[kept[0]], ids[kept[0]])
        plain.seal()
        records = filled(store, tmp_path / f"{turn}.db", stamps[kept[1]], ids[kept[1]], items_max=300)
        for as_client in (False, True):
            snapshot = records.snapshot()
            sides: tuple[Items, Items] = (snapshot, plain) if as_client else (plain, snapshot)
            client, server = (Session(sides[n], wire, frame_size_max=frames[n]) for n in (0, 1))
            have: list[bytes] = []
            need: list[bytes] = []
            message: bytes | None = client.initiate()
            while message is not None:
                reply = server.reconcile(message).reply
                assert reply is not None
                message, more_have, more_need = client.reconcile(reply)
                have, need = have + more_have, need + more_need
            mine, theirs = (kept[1], kept[0]) if as_client else (kept[0], kept[1])
            assert sorted(have) == sorted(row.tobytes() for row in ids[mine & ~theirs])
            assert sorted(need) == sorted(row.tobytes() for row in ids[theirs & ~mine])
            snapshot.close()
        records.close()
