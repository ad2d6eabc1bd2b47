"""What others left unfinished: outbox entries of workers that died, tokens that nobody will use, old tombstones.

A message that was not acknowledged comes again, and its next delivery finishes what is left. But a transport may give a
message up, and a source may have nobody who asks again; so now and then somebody looks for what is *stranded*. To
finish an entry that somebody is still at does no harm: one of the two gets through, as everywhere.

Orphans are tokens whose parent is gone and did not free them: garbage, of two kinds.

- *of a source* over two stores (see `engines.outbox.source`), whose parent is a mark: tokens are read first, then
  whether the entry that they were made for is still there. An entry that is gone has freed its own.
- *of a message*, whoever's it was: whoever removes its token frees those that count in the same step. But the plan
  `transactional` frees none, so what a worker of another plan made and lost with, on the same database, stays. They
  have to be as old as a stranded entry: a parent that was discarded by hand may have somebody at it still.

What is dated later than now was written by a clock that was ahead: how old it is cannot be known, so it is old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from onefold.errors import Misuse
from onefold.outbox.plans import MARK, RECOVERIES
from onefold.outbox.ports import FOREVER_MS, Stranded, Token, TokenStore
from onefold.outbox.runner import Job, RunnerWorld, run
from onefold.outbox.steps import Key, Outcome
from onefold.outbox.stores.queues import STEP_MS

if TYPE_CHECKING:
    from onefold.outbox.endpoint import Endpoint

SECONDS_MAX: Final = 100 * 366 * 86_400
"""Of any time that can be set: a hundred years. Clocks and locks cannot tell more."""
PAGE: Final = 500
"""Entries, or tokens, that are read at once: each entry can hold 1,000 messages."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found, and what became of it."""

    finished: int = 0
    """Outbox entries whose messages are sent now, and which are gone."""
    conflicts: int = 0
    """Entries that somebody else was at; they are theirs, or the next recovery's."""
    swept: int = 0
    """Tokens that were made for nothing."""
    purged: int = 0
    """Tombstones that were old enough."""

    def __add__(self, other: Recovered) -> Recovered:
        return Recovered(
            self.finished + other.finished,
            self.conflicts + other.conflicts,
            self.swept + other.swept,
            self.purged + other.purged,
        )


def recover(app: Endpoint, older_than_s: float, tombstone_s: float, *, latest_ms: int = FOREVER_MS) -> Recovered:
    """One look at all that an endpoint left behind; ``latest_ms``: no later than this is believed of the clock.

    That is for tombstones alone. To finish an entry too early does no harm, but what a tombstone remembers is gone with
    it: a request that was forgotten could be made again.
    """
    if not (0 <= older_than_s <= SECONDS_MAX and 0 <= tombstone_s <= SECONDS_MAX):
        raise Misuse(f"older_than_s is {older_than_s}, tombstone_s {tombstone_s}: must be from 0 to {SECONDS_MAX:,}")
    world, now = app.world, app.clock_ms()
    old = _Old.at(now, older_than_s)
    done = _finish(world, app.plan, app.name, old)
    swept = _sweep(world, app.name, old)
    purged = world.entities.purge(min(now, latest_ms) - round(tombstone_s * 1000), app.name)
    return replace(done, swept=swept, purged=purged)


def recover_left(world: RunnerWorld, now_ms: int, older_than_s: float, endpoint: str | None = None) -> Recovered:
    """The same without the endpoint itself, for one or for all; tombstones stay, for their time is the endpoint's."""
    old = _Old.at(now_ms, older_than_s)
    done = _finish(world, "parented", endpoint, old)
    return replace(done, swept=_sweep(world, endpoint, old))


class _Old(NamedTuple):
    """The dates that are old enough: before one time, or later than now can be."""

    before_ms: int
    after_ms: int

    @classmethod
    def at(cls, now_ms: int, older_than_s: float) -> _Old:
        return cls(now_ms - round(older_than_s * 1000) + 1, now_ms + STEP_MS)

    def covers(self, at_ms: int) -> bool:
        return at_ms < self.before_ms or at_ms > self.after_ms


def _finish(world: RunnerWorld, plan: str, endpoint: str | None, old: _Old) -> Recovered:
    done = Recovered()
    while found := world.entities.stranded(old.before_ms, PAGE, endpoint, after_ms=old.after_ms):
        outcomes = [each for entries in _rounds(found) for each in _finished(world, plan, entries)]
        conflicts = outcomes.count(Outcome.CONFLICT)
        done += Recovered(len(outcomes) - conflicts, conflicts)
        if conflicts or len(found) < PAGE:  # what is left is somebody's: not again and again
            break
    return done


def _finished(world: RunnerWorld, plan: str, entries: Sequence[Stranded]) -> list[Outcome]:
    ended = run(world, [Job(RECOVERIES[plan](each.key, each.name)) for each in entries])
    for each in ended:
        if isinstance(each, Exception):
            raise each
    return [each for each in ended if isinstance(each, Outcome)]


def _rounds(found: Iterable[Stranded]) -> Iterator[list[Stranded]]:
    """No two of one entity at once: the second would write what the first one changed."""
    left = list(found)
    while left:
        first: dict[Key, Stranded] = {}
        later = [each for each in left if first.setdefault(each.key, each) is not each]
        yield list(first.values())
        left = later


def _sweep(world: RunnerWorld, endpoint: str | None, old: _Old) -> int:
    swept, prefix = 0, "" if endpoint is None else f"{endpoint}/"
    for page in _orphans(world.tokens):
        garbage = [token for token in page if MARK not in token.parent and old.covers(token.at_ms)]
        ours = [token for token in page if MARK in token.parent and token.parent.startswith(prefix)]
        keys = [_source_of(token.parent) for token in ours]
        entities = world.entities.load(keys) if keys else []
        garbage += [token for token, at in zip(ours, entities, strict=True) if token.parent not in at.outbox]
        swept += sum(world.tokens.discard(token.token, token.parent) for token in garbage)
    return swept


def _source_of(mark: str) -> Key:
    """The entity whose mark it is: the name of an endpoint has no stroke in it."""
    endpoint, _, name = mark.rpartition(MARK)[0].partition("/")
    return Key(endpoint, name)


def _orphans(tokens: TokenStore) -> Iterator[list[Token]]:
    after = ""
    while page := tokens.listed(after=after, limit=PAGE, orphans=True):
        yield page
        after = page[-1].token
