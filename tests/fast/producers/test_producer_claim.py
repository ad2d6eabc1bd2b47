"""Whose name it is, after connections that were lost."""

import pytest

from onefold.errors import Busy, Misuse
from onefold.producers.client import GHOST_S, ClientClaim
from onefold.producers.requests import ProducerSession


def session(epoch, last=-1):
    return ProducerSession("p", epoch, last, -1)


@pytest.fixture
def claim():
    claim = ClientClaim("p")
    claim.opened(session(7, last=4), now=0)
    return claim


def test_the_first_opening_says_nothing_of_others_and_the_next_epoch_means_nobody_was_there(claim):
    assert (claim.epoch, claim.last_sequence_id) == (7, 4)
    claim.opened(session(8, last=4), now=1)
    assert claim.epoch == 8


def test_an_opening_in_between_is_another_producer(claim):
    with pytest.raises(Misuse, match="another producer took this name"):
        claim.opened(session(9, last=4), now=1)


def test_an_opening_in_between_may_be_a_ghost_of_my_own_once(claim):
    claim.unsure(now=1)
    claim.opened(session(9, last=4), now=2)
    with pytest.raises(Misuse):
        claim.opened(session(11, last=4), now=3)


def test_a_ghost_that_comes_late_fences_me_off_and_i_may_open_again(claim):
    claim.unsure(now=1)
    claim.opened(session(8, last=4), now=2)
    assert isinstance(claim.fenced(now=3), Busy)
    claim.opened(session(10, last=4), now=4)
    assert isinstance(claim.fenced(now=5), Misuse)


def test_ghosts_are_not_around_for_ever(claim):
    claim.unsure(now=1)
    assert isinstance(claim.fenced(now=1 + GHOST_S), Misuse)


def test_what_is_stored_beyond_all_i_sent_is_another_producers(claim):
    claim.sent = 6
    claim.opened(session(8, last=6), now=1)
    claim.unsure(now=2)
    with pytest.raises(Misuse):
        claim.opened(session(10, last=7), now=3)


def test_a_topic_that_forgot_me_may_give_any_epoch(claim):
    claim.opened(session(400, last=-1), now=1)
    assert (claim.epoch, claim.last_sequence_id) == (400, 4)
