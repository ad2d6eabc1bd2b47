"""Power cuts and failing disks; the same loops run with larger counts in a soak."""

import pytest

from tests.lib.disk import Folder, Inode
from tests.lib.power import Counts, cut_everywhere, fail_everywhere, many_lives


def total(*counts: Counts) -> Counts:
    return Counts(*(sum(getattr(c, name) for c in counts) for name in ("points", "states", "again")))


@pytest.mark.sample
def test_a_power_cut_at_the_operations_of_one_history_loses_nothing_that_was_acknowledged():
    assert cut_everywhere(0, states=2, again=20).points > 100


def test_a_power_cut_at_any_operation_loses_nothing_that_was_acknowledged():
    counts = total(*(cut_everywhere(seed, states=3, again=45) for seed in range(4)))
    assert counts.points >= 500
    assert counts.states >= 2000
    assert counts.again >= 500


@pytest.mark.sample
def test_a_log_lives_through_many_power_cuts():
    counts = total(*(many_lives(seed, lives=25) for seed in range(100, 120)))
    assert counts.points == 500


def test_an_error_of_the_disk_at_any_operation_loses_nothing_and_keeps_nothing_that_failed():
    counts = fail_everywhere(seed=7, steps=25, lasting=(1, 3))
    assert counts.points >= 100


@pytest.mark.parametrize("liar", [Inode, Folder])
def test_a_disk_that_only_says_that_it_synced_is_found_out(liar, monkeypatch):
    """The control: were a sync missing in the store, the simulation would notice."""
    monkeypatch.setattr(liar, "sync", lambda self: None)
    with pytest.raises(AssertionError, match="before operation"):
        cut_everywhere(0, states=10)
