"""After a failed write: what was sent ahead of it waits for its retry.

With the memory "highest", a message that is stored makes all below it repeats. Who sends ahead may not know yet that an
earlier write failed; were the later message taken, the retry of the earlier one would be called a repeat, and be lost.
So nothing above the lowest failed sequence of a producer is taken until that one comes again and is stored, or the
producer connects anew and learns what is. (Pulsar closes the producer's connection for the same reason.)
"""

from collections.abc import Sequence

from onefold.engines.producers.records import Kind
from onefold.ports import Draft
from onefold.services.requests import Batch, Receipt, Request


class Fence:
    """The lowest sequence of each producer whose write failed and was not tried again yet."""

    def __init__(self, count_max: int) -> None:
        self._failed: dict[str, int] = {}
        self._count_max = count_max

    def raise_for(self, drafts: Sequence[Draft]) -> None:
        """These could not be stored. Beyond the bound, those who have not tried again for the longest are let go."""
        for draft in drafts:
            if draft.kind == Kind.MESSAGE:
                lowest = self._failed.pop(draft.producer, draft.sequence)
                self._failed[draft.producer] = min(lowest, draft.sequence)
        while len(self._failed) > self._count_max:
            del self._failed[next(iter(self._failed))]

    def holds(self, batch: Batch) -> bool:
        """Must these wait?"""
        failed = self._failed.get(batch.producer)
        return failed is not None and len(batch) > 0 and batch.sequences[0] > failed

    def passed(self, batch: Batch, request: Request[list[Receipt]]) -> None:
        """These were judged: if the failed one was among them, and not refused, others may follow."""
        failed = self._failed.get(batch.producer)
        if failed is not None and len(batch) > 0 and batch.sequences[-1] >= failed and request.settles:
            del self._failed[batch.producer]

    def clear(self) -> None:
        """Nothing that failed matters any more: what was stored was forgotten."""
        self._failed.clear()

    def lift(self, producer: str) -> None:
        """The producer has learnt what is stored."""
        self._failed.pop(producer, None)
