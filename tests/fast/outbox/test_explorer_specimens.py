"""The published drafts that do not work: each is convicted, by a history that a person can follow."""

from dataclasses import replace

import pytest

from onefold.outbox.explore import SPECIMENS, Algorithm, Convicted, explored
from onefold.outbox.plans import Load, Outcome

EVICTED = """\
evicted: applied twice (found in 67 states)
 1. worker 1 of payment leases m1
 2. worker 1 of payment loads payment/one (version 0)
 3. worker 1 of payment looks whether m1 was processed: no, and calls the handler for m1
 4. worker 1 of payment writes payment/one as version 1 (outbox: m1): m1 is applied
 5. worker 1 of payment sends nothing
 6. worker 1 of payment remembers that m1 was processed
 7. worker 1 of payment writes payment/one as version 2 (outbox: empty)
 8. worker 1 of payment acknowledges m1
 9. the store needs room, and picks m1
10. the store forgets that m1 was processed
11. the transport delivers a copy of m1
12. worker 1 of payment leases m1
13. worker 1 of payment loads payment/one (version 2)
14. worker 1 of payment looks whether m1 was processed: no, and calls the handler for m1
15. worker 1 of payment writes payment/one as version 3 (outbox: m1): m1 is applied
Wrong: m1 is applied twice: it counts double."""

REMADE = """\
remade: two tokens (found in 233 states)
 1. worker 1 of order leases m1
 2. worker 1 of order loads order/one (version 0)
 3. worker 1 of order looks for the token m1: it is there, and calls the handler for m1
 4. worker 1 of order writes order/one as version 1 (outbox: m1): m1 is applied
 5. worker 1 of order makes the token m1.1@1
 6. worker 1 of order sends m1.1@1
 7. worker 1 of order dies
 8. worker 1 of order leases m1
 9. worker 1 of order loads order/one (version 1)
10. worker 1 of order looks for the token m1: it is there
11. worker 1 of order makes the token m1.1@2
12. worker 1 of order sends m1.1@2
Wrong: m1.1 was sent under two tokens, m1.1@1 and m1.1@2: it will count double."""


@pytest.mark.parametrize(("name", "told"), [("evicted", EVICTED), ("remade", REMADE)])
def test_a_published_draft_is_convicted_with_a_readable_history(name, told):
    with pytest.raises(Convicted) as convicted:
        explored(SPECIMENS[name].topology, SPECIMENS[name].algorithm)
    assert str(convicted.value) == told


STUBBORN = """\
stubborn: circle (found in 2 states)
1. worker 1 of payment leases m1
2. worker 1 of payment loads payment/one (version 0), and gives m1 back
... and again from 1 on.
Wrong: this can repeat for ever."""


def stubborn(key, message):
    yield Load(key)
    return Outcome.CONFLICT


def test_a_plan_that_can_go_round_for_ever_is_convicted_if_that_is_asked_for():
    topology = replace(SPECIMENS["evicted"].topology, copies=0)
    assert explored(topology, Algorithm("stubborn", stubborn)).calls_max is None
    with pytest.raises(Convicted) as convicted:
        explored(topology, Algorithm("stubborn", stubborn), endless=True)
    assert str(convicted.value) == STUBBORN
