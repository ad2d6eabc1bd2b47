"""Does everything end? And how often can a handler be called for one message?

Both are read off the longest ways: if no state can be reached from itself, every history ends; and since every state
from which nothing follows is at rest, it ends well. On the way back from the ends the calls are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onefold.sim.explorer.system import WORLD, Note, State, System

Calls = dict[str, int]
"""For each message: how often its handler is called from here on, at most."""


class _Visit(NamedTuple):
    """A state on the way from the first one, and what is still to be tried there."""

    state: State
    note: Note | None
    """What led here."""
    moves: Iterator[tuple[State, Note]]
    calls: Calls


class Rounds(NamedTuple):
    """What was found."""

    calls_max: int
    circle: tuple[State, ...] = ()
    """The states of a history whose last one was there before; empty: there is none."""


def rounds(system: System) -> Rounds:
    """Go through all states, deepest first. Only for a search that was complete: it has no limit of its own."""
    counted: dict[State, Calls] = {}
    way = [_Visit(system.first, None, system.moves(system.first), {})]
    on_way = {system.first}
    while True:
        visit = way[-1]
        following = next(visit.moves, None)
        if following is None:
            counted[visit.state] = visit.calls
            on_way.discard(visit.state)
            way.pop()
            if not way:
                return Rounds(max(visit.calls.values(), default=0))
            assert visit.note is not None
            _add(way[-1].calls, visit.calls, _called(system, way[-1].state, visit.note))
            continue
        state, note = following
        if state in on_way:
            return Rounds(0, (*(each.state for each in way), state))
        if state in counted:
            _add(visit.calls, counted[state], _called(system, visit.state, note))
        else:
            on_way.add(state)
            way.append(_Visit(state, note, system.moves(state), {}))


def _add(calls: Calls, later: Calls, name: str) -> None:
    """One more way on from here: later calls, and perhaps one at once."""
    for each, count in later.items():
        now = count + (each == name)
        if calls.get(each, 0) < now:
            calls[each] = now
    if name and name not in calls:
        calls[name] = 1


def _called(system: System, before: State, note: Note) -> str:
    """For which message this move calls the handler; empty: for none."""
    act, places = note.act, system.places
    if act.what == "step":
        worker = system.crews.workers[act.worker]
        assert worker is not None
        called = system.worlds.stepped(before[WORLD], worker.place).called
        return places.jobs[worker.place].name if called else ""
    return ""
