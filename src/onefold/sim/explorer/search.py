"""The search: every state that can be reached, nearest first, so that the first wrong one has the shortest history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

from onefold.sim.explorer.crews import FREE
from onefold.sim.explorer.handlers import HandlerRaised
from onefold.sim.explorer.rounds import rounds
from onefold.sim.explorer.system import WORLD, Note, State, System
from onefold.sim.explorer.verdicts import Offence, Wrong


class Trail(NamedTuple):
    """A way through the states: the first of them, then each move with the state that it leads to."""

    first: State
    moves: tuple[tuple[Note, State], ...]
    again: int = 0
    """From which move on it goes round, if it does."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to."""

    states: int
    """Distinct ones. Workers of one stage are alike: states that differ by who of them did it are one state."""
    transitions: int
    rests: int
    """States at rest."""
    depth: int
    """Moves in the longest of the shortest histories."""
    complete: bool
    """False: the limit was reached, and there is more."""
    seconds: float
    performed: int
    """Steps that the store performed; all others were known from before."""
    offence: Offence | None = None
    trail: Trail | None = None
    calls_max: int | None = None
    """How often the handler was called for one message at most, if the search is complete and that was asked for."""


def search(system: System, states_max: int, *, endless: bool = False) -> Searched:
    """Look at all states, or at so many; stops at the first that is wrong.

    ``endless``: then go through all of them once more, to see whether anything can go on for ever, and to count calls.
    """
    return _Search(system, states_max).run(endless)


class _Search:
    def __init__(self, system: System, states_max: int) -> None:
        self.system = system
        self.states_max = states_max
        self.parents: dict[State, State | None] = {system.first: None}
        self.transitions = self.rests = self.depth = 0
        self.complete = True
        self.began = perf_counter()

    def run(self, endless: bool) -> Searched:
        layer = [self.system.first]
        while layer and self.complete:
            following: list[State] = []
            for state in layer:
                wrong = self._look(state, following)
                if wrong is not None:
                    return self._done(*wrong)
                if len(self.parents) >= self.states_max:
                    self.complete = False
                    break
            self.depth += bool(following)
            layer = following
        if not endless or not self.complete:
            return self._done()
        found = rounds(self.system)
        if not found.circle:
            return self._done(calls=found.calls_max)
        again = found.circle.index(found.circle[-1]) + 1
        trail = Trail(found.circle[0], tuple(_noted(self.system, list(found.circle))), again)
        return self._done(Offence(Wrong.CIRCLE, "it can go round like this for ever."), trail)

    def _look(self, state: State, following: list[State]) -> tuple[Offence, Trail] | None:
        """Everything that can happen in this state; what is wrong, if anything is."""
        parents, offences, stuck = self.parents, self.system.worlds.offences, True
        try:
            for after, note in self.system.moves(state):
                self.transitions += 1
                if note.act.cost == FREE:
                    stuck = False
                if after not in parents:
                    parents[after] = state
                    following.append(after)
                    offence = offences[after[WORLD]]
                    if offence is not None:
                        return offence, self.trail(after)
        except HandlerRaised as error:
            return Offence(Wrong.HANDLER, f"{error}."), self.trail(state)
        if self.system.resting(state):
            self.rests += 1
            offence = self.system.worlds.at_rest(state[WORLD])
        else:
            offence = Offence(Wrong.STUCK, "nobody can go on, and it is not finished.") if stuck else None
        return None if offence is None else (offence, self.trail(state))

    def trail(self, state: State) -> Trail:
        """The shortest way to this state."""
        way = [state]
        while (before := self.parents[way[-1]]) is not None:
            way.append(before)
        return Trail(way[-1], tuple(_noted(self.system, way[::-1])))

    def _done(self, offence: Offence | None = None, trail: Trail | None = None, calls: int | None = None) -> Searched:
        return Searched(
            len(self.parents),
            self.transitions,
            self.rests,
            self.depth,
            self.complete and offence is None,
            perf_counter() - self.began,
            self.system.images.performed,
            offence,
            trail,
            calls,
        )


def _noted(system: System, way: list[State]) -> Iterator[tuple[Note, State]]:
    for before, after in pairwise(way):
        yield next((note, state) for state, note in system.moves(before) if state == after)
