"""What is explored: who handles which queue with how many workers, what comes in, and what may go wrong.

Faults are budgets: with one crash and one expiry every history with at most one of each is tried, at every place. What
one worker more, one message more or one fault more would show is not known; what these few show is known for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from onefold.engines.outbox.attempt import PLANS, RECOVERIES, Plan, Recovery
from onefold.engines.outbox.handling import Handler, KeyOf, Out
from onefold.engines.outbox.source import Taken, sourced, sourced_at_once
from onefold.engines.outbox.steps import Attempt
from onefold.errors import Misuse
from onefold.sim.explorer.content import Content


@dataclass(frozen=True, slots=True)
class Handling:
    """A queue, and who handles what comes there; ``key`` names the entity."""

    queue: str
    call: Handler
    key: KeyOf


@dataclass(frozen=True, slots=True)
class Stage:
    """An endpoint: its handlers, and how many workers share them. Its workers are alike."""

    endpoint: str
    handlings: tuple[Handling, ...]
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Source:
    """What comes from outside, known by a mark: what each mark sends, in order. A mark is offered again until taken."""

    endpoint: str
    name: str
    marks: tuple[tuple[Out, ...], ...]
    workers: int = 2


@dataclass(frozen=True, slots=True)
class Topology:
    """One world to explore, and the budget of each fault."""

    name: str
    title: str
    stages: tuple[Stage, ...]
    messages: tuple[tuple[str, Any], ...] = ()
    """Queue and body of what is there at the beginning; each has a token, as if a desk had made it."""
    source: Source | None = None
    crashes: int = 1
    """A worker dies before any of its steps, or while it sends; what it leased is free, and it starts anew."""
    expiries: int = 1
    """A lease runs out while the worker goes on: what it does later is done, its acknowledgement too."""
    copies: int = 0
    """The transport delivers once more what was sent before, acknowledged or not."""
    pumps: int = 0
    """The recovery of stranded outboxes takes up an entry, however young it is."""

    def __post_init__(self) -> None:
        for name in ("crashes", "expiries", "copies", "pumps"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= BUDGET_MAX:
                raise Misuse(f"{name} is {value!r}, must be a whole number from 0 to {BUDGET_MAX}", **{name: value})
        for stage in self.stages:
            if type(stage.workers) is not int or not 1 <= stage.workers <= WORKERS_MAX:
                raise Misuse(f"workers is {stage.workers!r}, must be a whole number from 1 to {WORKERS_MAX}")


BUDGET_MAX: Final = 9
"""Each one more multiplies the states by about five: nobody waits for ten."""
WORKERS_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class Chore:
    """What somebody else does besides the workers, so many times."""

    who: str
    times: int
    offers: Callable[[Content], Sequence[str]]
    """What there is to do, given what is in the database; each by a name."""
    begin: Callable[[str], Attempt]
    finds: str
    """In a history: ``the pump {finds} m1``."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What is on trial: a plan, with what belongs to it."""

    name: str
    plan: Plan
    recovery: Recovery | None = None
    sourced: Callable[[Taken], Attempt] | None = None
    tokens: bool = True
    """The first messages have tokens. A specimen knows none."""
    tables: tuple[str, ...] = ()
    """Statements that make what it needs besides the store's own tables."""
    chores: tuple[Chore, ...] = field(default=())
    tidy: bool = True
    """Nothing is left at rest. False: what is left is for the pump and the sweeper; nothing is lost or done twice."""
    others: tuple[Plan, ...] = ()
    """Plans that a worker may follow as well, each time it takes a message: an endpoint that changes its plan while
    messages are in flight."""


def _shipped() -> dict[str, Algorithm]:
    return {
        name: Algorithm(name, plan, RECOVERIES[name], sourced_at_once if name == "transactional" else sourced)
        for name, plan in PLANS.items()
    }


SHIPPED: Final[Mapping[str, Algorithm]] = MappingProxyType(_shipped())
"""The plans that the library has."""

MIXED: Final = replace(
    SHIPPED["transactional"], name="mixed", tidy=False, others=(PLANS["checkpointed"], PLANS["parented"])
)
"""All plans side by side, on one database."""
