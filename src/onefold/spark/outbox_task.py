"""What a task of the outbox sink does: the rows of one bucket become messages, chunk by chunk, each chunk once.

A bucket is a source (`engines.outbox.source`) and a chunk is one mark of it. The rows come sorted, so a replayed task
cuts the same chunks; those that were taken before are skipped, and one that was cut off is finished. Two tasks at the
same bucket, as Spark starts them when one is slow, meet at the version of the source's entity: one gets through.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Final, TypeVar

import pyarrow as pa

from onefold.engines.outbox import Key, Out, Outcome, Taken, outgoings, sourced, sourced_at_once
from onefold.errors import Misuse, OnefoldError, StaleWrite
from onefold.ports import Ledger
from onefold.stores.attempts import Job, World, run
from onefold.stores.outboxes import open_ledger, open_tokens
from onefold.stores.queues import open_queue

T = TypeVar("T")

ENDPOINT: Final = "spark"
"""Whose the entities of such sources are."""
BUCKET, BODY = "bucket", "body"
CHUNK_BITS: Final = 20
"""Of a mark, for the chunk; the rest is the batch. 500 million rows in a bucket, 8 trillion batches."""
TRIES_MAX: Final = 20
"""Of a chunk that somebody else writes too: that one is a copy of this task, so the second try finds it done."""
FIGURES: Final = pa.schema(
    [("applied", pa.int64()), ("resumed", pa.int64()), ("duplicate", pa.int64()), ("kind", pa.string()),
     ("error", pa.string())]
)  # fmt: skip
FIGURES_SPARK: Final = "applied long, resumed long, duplicate long, kind string, error string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where entities, tokens and messages are kept; addresses, for every task opens them for itself."""

    store: str = field(repr=False)
    transport: str = field(repr=False)
    tokens: str | None = field(default=None, repr=False)

    @contextmanager
    def opened(self) -> Iterator[World]:
        """The stores, open until the block ends."""
        with ExitStack() as stack:
            ledger: Ledger = stack.enter_context(closing(open_ledger(self.store)))
            tokens = ledger if self.tokens is None else stack.enter_context(closing(open_tokens(self.tokens)))
            yield World(ledger, tokens, stack.enter_context(closing(open_queue(self.transport))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Sends the rows of its partition: one bucket, sorted; gives back one row of `FIGURES`."""

    places: Places
    source: str
    number: int
    """Of the batch."""
    to: str
    chunk_max: int
    at_once: bool

    def __call__(self, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark calls. An error of ours is an answer: raised here, it would be a page of Java."""
        counts = dict.fromkeys((Outcome.APPLIED, Outcome.RESUMED, Outcome.DUPLICATE), 0)
        kind, told = "", ""
        try:
            self._send(parts, counts)
        except OnefoldError as error:
            kind, told = type(error).__name__, str(error)
        row = {**{str(outcome): count for outcome, count in counts.items()}, "kind": kind, "error": told}
        yield pa.RecordBatch.from_pylist([row], FIGURES)

    def _send(self, parts: Iterator[pa.RecordBatch], counts: dict[Outcome, int]) -> None:
        rows = chain.from_iterable(
            zip(part[BUCKET].to_pylist(), part[BODY].to_pylist(), strict=True) for part in parts
        )  # fmt: skip
        first = next(rows, None)
        if first is None:
            return
        with self.places.opened() as world:
            for bucket, group in groupby(chain([first], rows), itemgetter(0)):
                for index, chunk in enumerate(chunks((text for _, text in group), self.chunk_max)):
                    counts[self._sent(world, bucket, index, chunk)] += len(chunk)

    def _sent(self, world: World, bucket: int, index: int, chunk: list[str]) -> Outcome:
        where = f"{self.source}, batch {self.number}, bucket {bucket}, chunk {index}"
        if index >> CHUNK_BITS:
            raise Misuse(f"{where}: a bucket can have {1 << CHUNK_BITS:,} chunks: use more buckets, or smaller batches")
        outgoing = outgoings([Out(self.to, json.loads(text)) for text in chunk], where)
        taken = Taken(Key(ENDPOINT, f"{self.source}:{bucket}"), self.number << CHUNK_BITS | index, outgoing)
        for _ in range(TRIES_MAX):
            (ended,) = run(world, [Job(sourced_at_once(taken) if self.at_once else sourced(taken))])
            if isinstance(ended, Exception):
                raise ended
            if ended is not Outcome.CONFLICT:
                return ended
        raise StaleWrite(f"{where}: somebody else wrote it in each of {TRIES_MAX} tries")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut into lists of this size; the last may be shorter.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    left: Iterator[Any] = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk
