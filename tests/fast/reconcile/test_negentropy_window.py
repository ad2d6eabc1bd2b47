"""A window of records is the set of those records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.reconcile import INFINITY, Bounds, ItemSet, Session, Window


def made(stamps):
    items = ItemSet.from_arrays(stamps, [n.to_bytes(32) for n in range(len(stamps))], id_size=32)
    items.seal()
    return items


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(0, 21), st.integers(0, 21))
def test_it_answers_as_a_set_of_its_own_would(stamps, one, other):
    since, until = sorted((one, other))
    window = Window(made(stamps), since, until)
    chosen = [n for n, stamp in enumerate(stamps) if since <= stamp <= until]
    alone = ItemSet.from_arrays([stamps[n] for n in chosen], [n.to_bytes(32) for n in chosen], id_size=32)
    alone.seal()
    assert len(window) == len(alone)
    bounds = Bounds.join([Bounds.one(stamp, b"\0" * 31 + b"\5", 32) for stamp in (0, since, 7, until, 21)])
    assert window.find(bounds).tolist() == alone.find(bounds).tolist()
    ranks = np.arange(len(alone))
    lower, upper = ranks[:0:-1] * 0, ranks[:0:-1]
    assert window.sums(lower, upper).tolist() == alone.sums(lower, upper).tolist()
    assert window.xors(lower, upper).tolist() == alone.xors(lower, upper).tolist()
    (stamps_here, ids_here), (stamps_alone, ids_alone) = window.rows(ranks), alone.rows(ranks)
    assert stamps_here.tolist() == stamps_alone.tolist()
    assert ids_here.tolist() == ids_alone.tolist()


def test_sessions_over_the_same_window_find_what_differs_in_it_alone():
    ours, theirs = made([n % 100 for n in range(1_000)]), made([n % 100 for n in range(990)])
    client, server = (Session(Window(items, 95, 97)) for items in (ours, theirs))
    message: bytes | None = client.initiate()
    found: set[bytes] = set()
    while message is not None:
        reply = server.reconcile(message).reply
        assert reply is not None
        message, have, need = client.reconcile(reply)
        assert not need
        found |= set(have)
    assert found == {n.to_bytes(32) for n in (995, 996, 997)}


@pytest.mark.parametrize(("since", "until"), [(2, 1), (-1, 5), (0, INFINITY)])
def test_ends_in_the_wrong_order_or_out_of_range_are_misuse(since, until):
    with pytest.raises(Misuse, match="since is"):
        Window(made([]), since, until)
