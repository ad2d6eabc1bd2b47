"""Explore one world under one algorithm: what was found, or who is convicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from onefold.sim.explorer.handlers import HandlerRaised
from onefold.sim.explorer.search import Searched, search
from onefold.sim.explorer.system import System
from onefold.sim.explorer.topology import Algorithm, Topology
from onefold.sim.explorer.verdicts import Offence, Wrong
from onefold.sim.explorer.words import history
from onefold.sim.explorer.worlds import Invariant

STATES_MAX: Final = 200_000
"""Some seconds, and 100 MB. Two messages on one entity with one crash and one expiry need less under every plan but
``checkpointed``."""


class Convicted(AssertionError):
    """Something is wrong. The text is the shortest history that leads there, line by line, and what is wrong then."""

    def __init__(self, plan: str, offence: Offence, told: str, states: int) -> None:
        super().__init__(f"{plan}: {offence.wrong.replace('_', ' ')} (found in {states:,} states)\n{told}")
        self.plan = plan
        self.offence = offence
        self.history = told
        self.states = states


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was explored, and nothing was wrong."""

    plan: str
    topology: str
    states: int
    """Distinct ones of the whole world: database, transport, workers, budgets left. Workers of one stage are alike."""
    transitions: int
    rests: int
    """States in which all work was done; each was checked against every order without faults."""
    complete: bool
    """False: there are more states than were allowed; what was looked at is right."""
    seconds: float
    performed: int
    """Steps that the SQLite store performed; the others were known from an equal state."""
    endings: int
    """In how many ways it can end when nothing goes wrong."""
    calls_max: int | None
    """How often the handler may be called for one message: so often happens what it does outside. None: not counted."""
    findings: tuple[str, ...]
    """What is no fault of the outcome, but worth knowing."""


def explored(
    topology: Topology,
    algorithm: Algorithm,
    *,
    states_max: int = STATES_MAX,
    invariant: Invariant | None = None,
    endless: bool = False,
) -> Exploration:
    """All states, or `Convicted`. ``endless``: also look whether anything goes on for ever, and count calls."""
    try:
        system = System(topology, algorithm, invariant)
    except HandlerRaised as error:
        raise Convicted(algorithm.name, Offence(Wrong.HANDLER, str(error)), _unprovoked(error), 0) from error
    try:
        searched = search(system, states_max, endless=endless)
        if searched.offence is not None and searched.trail is not None:
            told = history(system, searched.trail, searched.offence)
            raise Convicted(algorithm.name, searched.offence, told, searched.states)
        return _exploration(system, searched)
    finally:
        system.images.close()


def together(plan: str, parts: Iterable[Exploration]) -> Exploration:
    """Several explorations as one."""
    parts = list(parts)
    calls = [part.calls_max for part in parts]
    return Exploration(
        plan,
        ", ".join(dict.fromkeys(part.topology for part in parts)),
        sum(part.states for part in parts),
        sum(part.transitions for part in parts),
        sum(part.rests for part in parts),
        all(part.complete for part in parts),
        sum(part.seconds for part in parts),
        sum(part.performed for part in parts),
        max(part.endings for part in parts),
        None if None in calls else max(call for call in calls if call is not None),
        tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
    )


def _unprovoked(error: HandlerRaised) -> str:
    return f"Wrong, without any fault: {error}."


def _exploration(system: System, searched: Searched) -> Exploration:
    return Exploration(
        system.algorithm.name,
        system.topology.name,
        searched.states,
        searched.transitions,
        searched.rests,
        searched.complete,
        searched.seconds,
        searched.performed,
        len(system.endings),
        searched.calls_max,
        tuple(system.handlers.findings),
    )
