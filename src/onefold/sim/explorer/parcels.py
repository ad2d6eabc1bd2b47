"""What is on its way, and what a worker does with it: each message, mark and chore as a job with a name.

Names are for people and for the books: ``m1`` is the first message, ``m1.2`` the second one that it sends, ``mark1``
what a source has at its first mark. A token is the name with the number of the attempt that made it: ``m1.2@3``. So a
message that is sent under two tokens is found out by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from onefold.engines.outbox.attempt import MARK
from onefold.engines.outbox.handling import key_of, outgoings
from onefold.engines.outbox.record import Key, Message, pack_message, unpack_message
from onefold.engines.outbox.source import Taken
from onefold.engines.outbox.steps import Acknowledge, Attempt, Handled, Outcome
from onefold.sim.explorer.handlers import Handlers
from onefold.sim.explorer.topology import Algorithm, Handling, Source, Stage, Topology


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is at."""

    name: str
    shown: str
    begin: Callable[[], Attempt]
    answer: Callable[[Any], Handled] | None = None
    """Calls the handler."""
    acknowledges: bool = True
    """False: its end is its acknowledgement, as with sources and chores."""
    then: int = -1
    """The parcel that comes when this one is acknowledged: the next mark."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A payload that was sent, whatever the number of its copies."""

    crew: int
    """Whose workers take it; -1: nobody here."""
    jobs: tuple[Job, ...]
    """What a worker can do with it: one per plan."""
    message: Message | None

    @property
    def shown(self) -> str:
        """What it is called in a history."""
        return self.jobs[0].shown


def name_of(token: str) -> str:
    """The name of the message that has this token, or of the mark whose entry has this name.

    >>> name_of("m1.2@3"), name_of("shop/orders.log#41")
    ('m1.2', 'mark41')
    """
    mark = token.rpartition(MARK)[2] if MARK in token else ""
    return f"mark{mark}" if mark else token.partition("@")[0]


def fresh(name: str, attempt: int, many: int) -> tuple[str, ...]:
    """The ids of the n-th attempt at a message: its own, and one for each message that is sent.

    >>> fresh("m1", 2, 3)
    ('m1@2', 'm1.1@2', 'm1.2@2')
    """
    return (f"{name}@{attempt}", *(f"{name}.{number}@{attempt}" for number in range(1, many)))


class Parcels:
    """All payloads that were ever sent, by number."""

    def __init__(self, topology: Topology, algorithm: Algorithm, handlers: Handlers) -> None:
        self.posted: list[Posted] = []
        self._algorithm = algorithm
        self._handlers = handlers
        self._numbers: dict[bytes, int] = {}
        self._served: Mapping[str, tuple[int, Stage, Handling]] = {
            handling.queue: (crew, stage, handling)
            for crew, stage in enumerate(topology.stages)
            for handling in stage.handlings
        }

    def first(self, topology: Topology, realm: str) -> list[int]:
        """What is there at the beginning."""
        messages = enumerate(topology.messages, 1)
        numbers = [
            self.number(pack_message(Message(f"m{place}", queue, body, realm=realm)))
            for place, (queue, body) in messages
        ]
        if topology.source is not None:
            numbers.append(self._marks(topology.source, len(topology.stages)))
        return numbers

    def number(self, payload: bytes) -> int:
        """Of this payload."""
        if payload not in self._numbers:
            self._numbers[payload] = len(self.posted)
            self.posted.append(self._post(unpack_message(payload)))
        return self._numbers[payload]

    def _post(self, message: Message) -> Posted:
        name = name_of(message.token)
        served = self._served.get(message.to)
        if served is None:
            return Posted(-1, (Job(name, message.token, _nothing),), message)
        crew, stage, handling = served
        key = Key(stage.endpoint, key_of(message, handling.key))
        answer = partial(self._answer, handling, message)
        plans = (self._algorithm.plan, *self._algorithm.others)
        jobs = tuple(Job(name, message.token, partial(plan, key, message), answer) for plan in plans)
        return Posted(crew, jobs, message)

    def _answer(self, handling: Handling, message: Message, state: Any) -> Handled:
        return self._handlers.answer(handling.call, state, message)

    def _marks(self, source: Source, crew: int) -> int:
        """The first mark of a source; each one leads to the next."""
        assert self._algorithm.sourced is not None
        following = -1
        for mark in range(len(source.marks), 0, -1):
            outgoing = outgoings(source.marks[mark - 1], source.name)
            taken = Taken(Key(source.endpoint, source.name), mark, outgoing)
            begin = partial(self._algorithm.sourced, taken)
            job = Job(f"mark{mark}", f"mark{mark}", begin, None, False, following)
            self.posted.append(Posted(crew, (job,), None))
            following = len(self.posted) - 1
        return following


def _nothing() -> Attempt:
    """What nobody handles is never begun."""
    yield Acknowledge()
    return Outcome.DUPLICATE
