"""Item sets: what they refuse, and that an index which was changed is the one that would be built anew."""

import random
from itertools import pairwise
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import BadInput, Misuse
from onefold.reconcile import INFINITY, Bounds, ItemSet
from onefold.reconcile.codec import hashed
from onefold.reconcile.items import OVERLAY_MIN, overlay_max
from tests.lib.examples import examples, proof

ID = bytes(range(32))


def sealed(records, id_size=8):
    items = ItemSet.from_arrays([stamp for stamp, _ in records], [id for _, id in records], id_size)
    items.seal()
    return items


def assert_same(changed, records, id_size=8):
    """All that a session could ask of an index, asked of this one and of one that is built from the records."""
    rebuilt, index = sealed(records, id_size).snapshot(), changed.snapshot()
    assert len(index) == len(rebuilt) == len(records)
    everything = np.arange(len(records))
    for ours, theirs in zip(index.rows(everything), rebuilt.rows(everything), strict=True):
        assert (ours == theirs).all()
    grow = np.random.default_rng(len(records))
    ends = np.sort(grow.integers(0, len(records) + 1, (2, 40)), axis=0)
    assert (index.sums(*ends) == rebuilt.sums(*ends)).all()
    assert (index.xors(*ends) == rebuilt.xors(*ends)).all()
    some = sorted(records)[:: max(1, len(records) // 30)]
    bounds = [
        Bounds.one(stamp + add, id[:length], id_size) for stamp, id in some for add in (0, 1) for length in (0, 3, 8)
    ]
    bounds.append(Bounds.one(INFINITY, b"", id_size))
    assert (index.find(Bounds.join(bounds)) == rebuilt.find(Bounds.join(bounds))).all()


def test_a_changed_index_equals_one_that_is_built_anew():
    rng = random.Random(1)
    for stamps in (1, 50, 10**9):
        records = {(rng.randrange(stamps), rng.randbytes(8)) for _ in range(3_000)}
        items = sealed(list(records))
        spare = list(records)[:100]
        for step in range(40):
            gone = rng.sample(sorted(records), rng.choice((1, 5, 60)))
            came = [(rng.randrange(stamps), rng.randbytes(8)) for _ in range(rng.choice((1, 5, 80)))]
            came += [record for record in spare if record not in records][:2]  # some come back
            items.remove_many([stamp for stamp, _ in gone], [id for _, id in gone])
            records -= set(gone)
            came = [record for record in came if record not in records]
            items.add_many([stamp for stamp, _ in came], [id for _, id in came])
            records |= set(came)
            if step % 8 == 0:
                assert_same(items, list(records))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 40))))
def test_any_changes_leave_the_index_that_would_be_built(changes):
    items, records = sealed([]), {}
    for come, stamp, number in changes:
        id = number.to_bytes(8, "big")
        if come and id not in records:
            items.add(stamp, id)
            records[id] = stamp
        elif come:
            with pytest.raises(BadInput, match=f"id {id.hex()} is there twice"):
                items.add(stamp, id)
        elif records.get(id) == stamp:
            items.remove(stamp, id)
            del records[id]
        else:
            with pytest.raises(BadInput, match=f"no record with timestamp {stamp} and id {id.hex()}"):
                items.remove(stamp, id)
    assert_same(items, [(stamp, id) for id, stamp in records.items()])


def test_changes_cost_little_because_main_is_seldom_built_anew():
    """Amortised: one build for as many changes as an overlay holds, and no more than that to look through."""
    items = sealed([(i, i.to_bytes(8, "big")) for i in range(5_000)])
    builds, main = 0, items.snapshot()._main
    for i in range(5_000, 5_000 + 2 * OVERLAY_MIN + 10):
        items.add(i, i.to_bytes(8, "big"))
        index = items.snapshot()
        assert len(index._extra) + len(index._holes) <= overlay_max(len(index._main))
        builds, main = builds + (index._main is not main), index._main
    assert builds == 2


def test_a_snapshot_stands_still():
    items = sealed([(1, b"aaaaaaaa"), (2, b"bbbbbbbb")])
    before = items.snapshot()
    items.remove(1, b"aaaaaaaa")
    items.add(3, b"cccccccc")
    assert [len(before), len(items)] == [2, 2]
    assert before.rows(np.arange(2))[0].tolist() == [1, 2]
    assert items.ids() == [b"bbbbbbbb", b"cccccccc"]


def test_sums_carry_over_all_limbs_and_wrap_at_the_end():
    rng = random.Random(2)
    ids = [b"\xff" * 32, b"\xfe" + b"\xff" * 31, *(rng.randbytes(32) for _ in range(200)), b"\xff" * 31 + b"\xfe"]
    items = sealed(list(enumerate(ids)), 32).snapshot()
    for low, high in [
        (0, 3),
        (1, 2),
        (5, 5),
        (0, len(ids)),
        *(sorted(rng.sample(range(len(ids)), 2)) for _ in range(50)),
    ]:
        total = sum(int.from_bytes(id, "little") for id in ids[low:high]) % 2**256
        limbs = items.sums(np.array([low]), np.array([high]))
        assert b"".join(int(limb).to_bytes(8, "little") for limb in limbs[0]) == total.to_bytes(32, "little")
    assert hashed(limbs, np.array([high - low])).shape == (1, 16)


def test_records_come_sorted_by_timestamp_and_then_by_id():
    rng = random.Random(3)
    records = [(rng.randrange(20), bytes([7] * 12) + rng.randbytes(8)) for _ in range(500)]
    stamps, ids = sealed(records, 20).rows(np.arange(500))
    assert [(int(stamp), id[:20].tobytes()) for stamp, id in zip(stamps, ids, strict=True)] == sorted(records)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 2**32, 2**63, INFINITY - 1]), st.binary(min_size=9, max_size=9))),
    st.sampled_from([b"", b"\x07" * 8, b"\x07" * 20]),
    st.integers(0, INFINITY - 1),
)
def test_records_come_in_order_however_far_apart_times_are_and_however_much_ids_share(records, shared, least):
    """All at one time, or spread over 64 bits; ids that differ in their first byte, or in their last ones only."""
    told = {shared + id: max(least, stamp) for stamp, id in records}
    items = ItemSet.from_arrays(list(told.values()), list(told), 9 + len(shared))
    items.seal()
    stamps = items.rows(np.arange(len(told)))[0].tolist()
    assert list(zip(stamps, items.ids(), strict=True)) == sorted((stamp, id) for id, stamp in told.items())


@pytest.mark.parametrize(("count", "factor"), [(100_000, 3), proof(1_000_000, 1.5)])
def test_records_with_tied_timestamps_are_built_as_fast_as_with_distinct_ones(count, factor):
    """63 % of them share their timestamp with another one. CPU time, the best of five, each by turns."""
    grow = np.random.default_rng(8)
    ids = np.frombuffer(grow.bytes(32 * count), dtype=np.uint8).reshape(count, 32)
    tied = grow.integers(0, count, count)
    assert 0.62 < np.mean(np.bincount(tied)[tied] > 1) < 0.64
    best = {"distinct": 9.0, "tied": 9.0}
    for _ in range(5):
        for name, stamps in (("distinct", grow.permutation(10 * count)[:count]), ("tied", tied)):
            start = process_time()
            ItemSet.from_arrays(stamps, ids).seal()
            best[name] = min(best[name], process_time() - start)
    assert best["tied"] < factor * best["distinct"], best


def test_a_separating_bound_is_as_short_as_it_can_be():
    rng = random.Random(4)
    stamps = {bytes(rng.choice(b"ab") for _ in range(8)): rng.randrange(3) for _ in range(200)}
    records = sorted((stamp, id) for id, stamp in stamps.items())
    items = sealed(records)
    places = np.arange(1, len(records))
    bounds = Bounds.between(items.rows(places - 1), items.rows(places))
    assert items.find(bounds).tolist() == places.tolist()
    for (left, right), stamp, length in zip(pairwise(records), bounds.timestamps, bounds.lengths, strict=True):
        assert stamp == right[0]
        shorter = (int(stamp), right[1][: max(0, length - 1)])
        assert length == 0 or shorter <= left, "a shorter one would not separate them"


@pytest.mark.parametrize(
    ("stamps", "ids", "match"),
    [
        ([1, 1], [ID, ID], f"id {ID.hex()} is there twice"),
        ([1, 2], [ID, ID], f"id {ID.hex()} is there twice"),
        ([1, 2, 3], [bytes(32), ID[::-1], bytes(32)], f"id {bytes(32).hex()} is there twice"),
        ([INFINITY], [ID], rf"timestamp 2\^64 - 1 of id {ID.hex()} is reserved"),
        ([INFINITY + 1], [ID], rf"timestamp {INFINITY + 1} is no whole number"),
        ([-5], [ID], "timestamp -5 is below 0"),
        ([1.5], [ID], "timestamp 1.5 is no whole number"),
        ([1, 2], [ID, ID[1:]], "id 1 has 31 bytes, must have 32"),
    ],
)
def test_records_that_cannot_be_are_refused_by_name(stamps, ids, match):
    with pytest.raises(BadInput, match=match):
        ItemSet.from_arrays(stamps, ids).seal()
    items = ItemSet()
    for stamp, id in zip(stamps, ids, strict=True):
        items.add(stamp, id)
    with pytest.raises(BadInput, match=match):
        items.seal()


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("number", [int, np.int64])
def test_timestamps_on_both_sides_of_2_to_the_63_keep_their_last_digit(kind, number):
    items = ItemSet.from_arrays(kind([number(2**62 + 1), 2**63 + 1]), [ID, ID[::-1]])
    items.seal()
    assert items.rows(np.arange(2))[0].tolist() == [2**62 + 1, 2**63 + 1]


def test_sets_that_are_used_wrongly_say_so():
    items = ItemSet()
    with pytest.raises(Misuse, match="the set is not sealed"):
        items.remove(1, ID)
    with pytest.raises(Misuse, match="2 timestamps and 1 ids"):
        items.add_many([1, 2], [ID])
    with pytest.raises(Misuse, match="id_size is 33, must be from 8 to 32"):
        ItemSet(33)
    with pytest.raises(Misuse, match="ids are float64 of shape"):
        items.add_many([1], np.zeros((1, 32)))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="id 0 has 31 bytes"):
        items.add_many([1], np.zeros((1, 31), dtype=np.uint8))
    items.seal()
    with pytest.raises(Misuse, match="sealed already"):
        items.seal()


def test_what_is_refused_leaves_a_sealed_set_as_it_was():
    items = sealed([(5, b"aaaaaaaa")])
    for wrong in (lambda: items.add_many([1, 2], [b"bbbbbbbb", b"aaaaaaaa"]), lambda: items.remove(4, b"aaaaaaaa")):
        with pytest.raises(BadInput):
            wrong()
    assert items.ids() == [b"aaaaaaaa"]
