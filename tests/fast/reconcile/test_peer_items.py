"""What a session makes of a table: the laws of its items, over tables that are lists and need no Spark."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import Misuse, StaleWrite
from onefold.reconcile import Bounds, Session, SessionLimit
from onefold.reconcile.items import spans
from onefold.spark.peer.index import NOTHING, TableItems
from onefold.spark.peer.naming import IndexLayout
from tests.lib.examples import examples
from tests.lib.table_listing import Listed, bounds_of, id_of, sealed


@st.composite
def listings(draw):
    """(layout, pairs): times that are spread, crowded or all alike; buckets of any size."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["none", "spread", "crowded", "alike"]))
    size = draw(st.sampled_from([0, 1, 5, 40, 300, 2_000]))
    time = {
        "none": lambda: 0,
        "spread": lambda: rng.randrange(10**6),
        "crowded": lambda: rng.choice((7, 8, 500, 10**5)),
        "alike": lambda: 77,
    }[kind]
    pairs = [(time(), id_of(rng.randrange(10**9))) for _ in range(size)]
    pairs = list({id: (t, id) for t, id in pairs}.values())
    if kind == "none":
        layout = IndexLayout.by_id(draw(st.integers(1, 8)), size)
    else:
        times = np.sort(np.array([t for t, _ in pairs], np.uint64))
        layout = IndexLayout.by_time(times, len(times), draw(st.sampled_from([1, 3, 20, 100])))
    return layout, pairs, rng


@settings(max_examples=examples(60), deadline=None)
@given(listings())
def test_a_table_answers_as_a_set_of_the_same_records_does(listing):
    layout, pairs, rng = listing
    items, truth = TableItems(Listed.of(layout, pairs)), sealed(pairs)
    assert len(items) == len(truth) == int(items.find(Bounds.one(2**64 - 1, b"", 32))[0])
    near = [(t, id[: rng.randrange(33)]) for t, id in rng.sample(pairs, min(len(pairs), 20))]
    near += [(rng.randrange(10**6), b""), (rng.randrange(10), id_of(rng.random() > 0.5)), (0, b"")]
    bounds = bounds_of(sorted(near))
    if rng.random() < 0.5:
        items.expect(bounds, np.array([rng.random() < 0.3 for _ in near]))
    assert items.find(bounds).tolist() == truth.find(bounds).tolist()
    ranks = np.sort(np.array([rng.randrange(len(pairs) + 1) for _ in range(20)]))
    assert (items.sums(ranks[:10], ranks[10:]) == truth.sums(ranks[:10], ranks[10:])).all()
    assert (items.xors(ranks[:10], ranks[10:]) == truth.xors(ranks[:10], ranks[10:])).all()
    for lower, upper in ((0, len(pairs)), sorted((ranks[3], ranks[12]))):
        span = spans(np.array([lower]), np.array([upper]))
        for ours, theirs in zip(items.rows(span), truth.rows(span), strict=True):
            assert (ours == theirs).all()


def reconciled(client, server, reads):
    """What a client finds; and that no message made either side read more than once."""
    have, need = [], []
    message = client.initiate()
    while message is not None:
        before = len(reads)
        reply = server.reconcile(message).reply
        assert len(reads) <= before + 1, reads[before:]
        before = len(reads)
        message, mine, theirs = client.reconcile(reply)
        assert len(reads) <= before + 1, reads[before:]
        have += mine
        need += theirs
    assert len(set(have)) == len(have)
    assert len(set(need)) == len(need)
    return set(have), set(need)


@settings(max_examples=examples(60), deadline=None)
@given(listings(), st.sampled_from(["v1", "xor"]), st.sampled_from([0, 4_096]), st.booleans())
def test_a_session_with_a_table_is_exact_and_reads_once_for_a_message(listing, wire, frame, table_asks):
    layout, pairs, rng = listing
    index = Listed.of(layout, pairs)
    theirs = [pair for pair in pairs if rng.random() > rng.choice((0.01, 0.5))]
    theirs += [(rng.randrange(10**6), id_of(-number - 1)) for number in range(rng.choice((0, 1, 60)))]
    ours, other = (Session(items, wire, frame_size_max=frame) for items in (TableItems(index), sealed(theirs)))
    have, need = reconciled(*((ours, other) if table_asks else (other, ours)), index.reads)
    a, b = ({id for _, id in side} for side in ((pairs, theirs) if table_asks else (theirs, pairs)))
    assert (have, need) == (a - b, b - a)


def test_cuts_move_to_where_buckets_begin_and_need_no_reading():
    pairs = [(0, id_of(number)) for number in range(2_000)]
    index = Listed.of(IndexLayout.by_id(6), pairs)
    items = TableItems(index)
    ranks = np.arange(125, 2_000, 125)
    cuts = items.cuts(ranks, np.zeros(15, np.int64), np.full(15, 2_000))
    assert set(cuts.tolist()) <= set(index.starts.tolist())
    assert (np.abs(cuts - ranks) < 32).all()
    items.rows(np.concatenate((cuts - 1, cuts)))
    assert not index.reads


def test_a_session_ends_by_name_where_it_would_read_too_many_rows():
    pairs = [(0, id_of(number)) for number in range(500)]
    items = TableItems(Listed.of(IndexLayout.by_id(3), pairs), rows_max=100)
    with pytest.raises(SessionLimit, match="rows_max is 100"):
        items.rows(np.arange(500))


def test_an_id_that_is_there_twice_is_named():
    pairs = [(0, id_of(number)) for number in range(50)] + [(0, id_of(7))]
    with pytest.raises(Misuse, match=f"id {id_of(7).hex()} is there twice"):
        TableItems(Listed.of(IndexLayout.by_id(1), pairs)).rows(np.arange(51))
    far = [(number, id_of(number)) for number in range(10)] + [(900 + number, id_of(number)) for number in (7, 98, 99)]
    items = TableItems(Listed.of(IndexLayout.by_time(np.array([0, 900], np.uint64), 13, 1), far))
    items.rows(np.arange(10))
    with pytest.raises(Misuse, match=f"id {id_of(7).hex()} is there twice"):
        items.rows(np.arange(13))


def test_rows_that_came_or_went_since_the_index_was_made_are_no_answer():
    pairs = [(0, id_of(number)) for number in range(50)]
    index = Listed.of(IndexLayout.by_id(1), pairs)
    index.pairs.pop()
    with pytest.raises(StaleWrite, match="49 rows, the index has 50"):
        TableItems(index).rows(np.arange(50))
    first = min(index.pairs)  # in its place another one, in the same bucket
    index.pairs[index.pairs.index(first)] = (0, first[1][:31] + b"?")
    index.pairs.append((0, id_of(49)))
    with pytest.raises(StaleWrite, match="as many rows as in the index, but others"):
        TableItems(index).rows(np.arange(50))


def test_a_layout_grows_at_its_end_and_keeps_the_numbers_of_its_buckets():
    times = np.sort(np.array([1, 5, 5, 5, 5, 9, 9, 9], np.uint64))
    old = IndexLayout.by_time(times, 8, 1)
    assert old.starts.tolist() == [0, 1, 5, 6, 9, 10]
    assert old.bits.tolist() == [0, 0, 2, 0, 2, 0]
    later = IndexLayout.by_time(np.array([10, 10, 12], np.uint64), 3, 1)
    new = old.then(later, 9)
    assert new.starts.tolist() == [0, 1, 5, 6, 9, 10, 11, 12]
    assert new.bits[5] == 1
    points = np.array([0, 1, 2, 5, 9], np.uint64), np.array([0, 1, 2**62, 2**63, NOTHING], np.uint64)
    assert old.places(*points).tolist() == new.places(*points).tolist()
