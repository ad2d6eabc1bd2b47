"""A whole world with all its workers, and everything that can happen next in it.

A *state* is a tuple of small numbers: the budgets left, the shared world (database and books), the parcels that can be
leased, and one number per crew. Two histories that lead to equal numbers lead to the same state, and go on as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from onefold.engines.outbox.steps import Birth
from onefold.sim.explorer.chores import chores_of
from onefold.sim.explorer.crews import CHORE, COPY, CRASH, EXPIRY, FREE, NO_PARCEL, Act, Crew, Crews
from onefold.sim.explorer.handlers import Handlers
from onefold.sim.explorer.images import Images
from onefold.sim.explorer.orders import endings
from onefold.sim.explorer.parcels import Parcels
from onefold.sim.explorer.places import Places
from onefold.sim.explorer.topology import Algorithm, Topology
from onefold.sim.explorer.transport import Transport
from onefold.sim.explorer.worlds import Invariant, Worlds

State = tuple[int, ...]
"""Budgets, world, free parcels, crews."""
BUDGETS, WORLD, PARCELS, CREWS = range(4)


class Note(NamedTuple):
    """How one state led to another, for the history."""

    crew: int
    """Which one; -1: the transport."""
    act: Act
    parcel: int = NO_PARCEL
    """What was leased or copied."""


class System:
    """One topology under one algorithm."""

    def __init__(self, topology: Topology, algorithm: Algorithm, invariant: Invariant | None = None) -> None:
        self.topology, self.algorithm = topology, algorithm
        self.handlers = Handlers()
        self.endings = endings(topology, self.handlers)
        born = [Birth("", "", ((f"m{n}", queue),), False) for n, (queue, _) in enumerate(topology.messages, 1)]
        self.images = Images(algorithm.tables, born if algorithm.tokens else ())
        self.parcels = Parcels(topology, algorithm, self.handlers)
        self.places = Places()
        self.worlds = Worlds(self.images, self.parcels, self.places, self.endings, algorithm, invariant)
        self.transport = Transport()
        chores = chores_of(topology, algorithm)
        crews = [Crew(stage.endpoint, stage.workers) for stage in topology.stages]
        if topology.source is not None:
            crews.append(Crew(topology.source.endpoint, topology.source.workers))
        crews += [Crew(chore.who, 1, chore, CHORE + place) for place, chore in enumerate(chores)]
        self.crews = Crews(crews, self.images, self.places, self.worlds)
        self._spend = _spending([topology.crashes, topology.expiries, topology.copies, *(c.times for c in chores)])
        self._leases: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._first = self._begin()

    def _begin(self) -> State:
        sent, free = self.parcels.first(self.topology, self.images.realm), 0
        for payload in sent:
            free = self.transport.arrive(free, payload, set())
        return (len(self._spend[FREE]) - 1, self.worlds.first(sent), free, *self.crews.idle)

    @property
    def first(self) -> State:
        """Where everything begins."""
        return self._first

    def resting(self, state: State) -> bool:
        """Nothing is on its way, and nobody is at work."""
        return state[PARCELS] == 0 and list(state[CREWS:]) == self.crews.idle

    def moves(self, state: State) -> Iterator[tuple[State, Note]]:
        """Everything that can happen next, with what it leads to."""
        budgets, world, free = state[:CREWS]
        for which in range(len(state) - CREWS):
            place = CREWS + which
            crew = state[place]
            head, tail = state[CREWS:place], state[place + 1 :]
            for act in self.crews.acts(world, crew):
                cost, after, other, shift, *_ = act
                left = self._spend[cost][budgets]
                if left < 0:
                    continue
                now = free if shift is None else self.transport.shifted(free, shift, partial(self._taken, state))
                yield (left, after, now, *head, other, *tail), Note(which, act)
            for parcel, rest in self._leasable(free, which):
                for job in self.parcels.posted[self.transport.payloads[parcel]].jobs:
                    other, worker = self.crews.taking(crew, job, parcel)
                    if other < 0:
                        break
                    act = Act(FREE, world, other, None, "lease", 0, worker)
                    yield (budgets, world, rest, *head, other, *tail), Note(which, act, parcel)
        if self._spend[COPY][budgets] >= 0:
            yield from self._copies(state)

    def _copies(self, state: State) -> Iterator[tuple[State, Note]]:
        budgets, world, free = state[:CREWS]
        for payload in sorted(self.worlds.books[world].sent):
            posted = self.parcels.posted[payload]
            if posted.message is None or posted.crew < 0:
                continue
            now = self.transport.arrive(free, payload, self._taken(state, payload))
            note = Note(-1, Act(COPY, world, 0, None, "copy", 0, 0), payload)
            yield (self._spend[COPY][budgets], world, now, *state[CREWS:]), note

    def _taken(self, state: State, payload: int) -> set[int]:
        """The parcels that the workers who could have this payload know of."""
        return self.crews.parcels(state[CREWS + self.parcels.posted[payload].crew])

    def _leasable(self, free: int, which: int) -> list[tuple[int, int]]:
        """The parcels that a crew can lease, each with what is left then."""
        found = self._leases.get((free, which))
        if found is None:
            posted, payloads = self.parcels.posted, self.transport.payloads
            mine = [each for each in self.transport.free[free] if posted[payloads[each]].crew == which]
            found = self._leases[free, which] = [(each, self.transport.remove(free, each)) for each in mine]
        return found


def _spending(budgets: list[int]) -> list[list[int]]:
    """By cost and number of budgets: the number of what is left then, or -1."""
    sizes = [budget + 1 for budget in budgets]
    total = 1
    for size in sizes:
        total *= size
    table = [list(range(total))]
    weight = 1
    for size in sizes:
        table.append([number - weight if number // weight % size else -1 for number in range(total)])
        weight *= size
    return table


assert (CRASH, EXPIRY, COPY, CHORE) == (1, 2, 3, 4), "the order of the budgets in System"
