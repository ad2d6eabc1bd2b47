"""Attempts side by side: what happens to one of them does not happen to the others."""

from onefold.outbox import Entity, Key, Outcome, Outgoing, Taken, sourced
from onefold.outbox.runner import Job, World, ends
from onefold.outbox.stores.sqlite import MemoryLedger, MemoryQueue


def test_what_one_attempt_raises_ends_that_one_alone():
    ledger = MemoryLedger()
    ledger.persist([Entity(Key("shop", "no source"), state=["without a mark"])])
    taken = [Taken(Key("shop", name), 1, (Outgoing("orders", name),)) for name in ("a", "no source", "b")]
    first, failed, last = ends(World(ledger, ledger, queue := MemoryQueue()), [Job(sourced(each)) for each in taken])
    assert (first, last) == (Outcome.APPLIED, Outcome.APPLIED)
    assert isinstance(failed, TypeError)
    assert queue.waiting() == {"orders": 2}
