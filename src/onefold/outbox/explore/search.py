"""The search: every state that can be reached, nearest first, so that the first wrong one has the shortest history.

Does everything end? And how often can a handler be called for one message?

Both are read off the longest ways: if no state can be reached from itself, every history ends; and since every state
from which nothing follows is at rest, it ends well. On the way back from the ends the calls are counted.

A history in words: numbered lines, one per move, and what is wrong with it.

Explore one world under one algorithm: what was found, or who is convicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, Final, NamedTuple

from onefold.outbox.explore.system import CREWS, FREE, IDLE, WORLD, Note, State, System
from onefold.outbox.explore.topology import Algorithm, Offence, Topology, Wrong
from onefold.outbox.explore.worlds import HandlerRaised, Invariant
from onefold.outbox.steps import (
    Acknowledge,
    Create,
    Dispatch,
    Finish,
    Fresh,
    Holds,
    Load,
    Open,
    Outcome,
    Persist,
    Remove,
    Settle,
    Settled,
)

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


def history(system: System, trail: Trail, offence: Offence) -> str:
    """The whole history, and then what is wrong."""
    teller = _Teller(system)
    lines = []
    before = trail.first
    for note, after in trail.moves:
        lines.append(teller.line(note, before, after))
        before = after
    width = len(str(len(lines)))
    told = [f"{number:{width}}. {line}" for number, line in enumerate(lines, 1)]
    if trail.again:
        told.append(f"... and again from {trail.again} on.")
    return "\n".join([*told, f"Wrong: {offence.text}"])


class _Teller:
    """Keeps in mind which worker is which: in the states they are sorted."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.slots = [[IDLE] * crew.size for crew in system.crews.crews]

    def line(self, note: Note, before: State, after: State) -> str:
        if note.crew < 0:
            return f"the transport delivers a copy of {self.system.parcels.posted[note.parcel].shown}"
        slots, act = self.slots[note.crew], note.act
        slot = slots.index(act.worker)
        crew = self.system.crews.crews[note.crew]
        who = crew.title if crew.chore is not None else f"worker {slot + 1} of {crew.title}"
        told = self._told(who, note, before)
        slots[slot] = act.after
        self._match(slots, slot, self.system.crews.members[after[CREWS + note.crew]][1])
        return told

    def _match(self, slots: list[int], acting: int, workers: tuple[int, ...]) -> None:
        """A late acknowledgement changes others, too."""
        left = list(workers)
        left.remove(slots[acting])
        odd = []
        for number, worker in enumerate(slots):
            if number == acting:
                continue
            if worker in left:
                left.remove(worker)
            else:
                odd.append(number)
        for number, worker in zip(odd, left, strict=True):
            slots[number] = worker

    def _told(self, who: str, note: Note, before: State) -> str:
        system, act = self.system, note.act
        number = act.after if act.what in ("lease", "begin") else act.worker
        worker = system.crews.workers[number]
        assert worker is not None
        shown = system.places.jobs[worker.place].shown
        if act.what == "lease":
            return f"{who} leases {shown}"
        if act.what == "begin":
            chore = system.crews.crews[note.crew].chore
            assert chore is not None
            return f"{who} {chore.finds} {shown}"
        if act.what == "expire":
            return f"the lease of {shown} runs out; {who} goes on"
        if act.what == "die":
            return f"{who} dies"
        if act.what.startswith("die "):
            messages = system.places.steps[worker.place].messages
            part = [messages[int(number)].token for number in act.what.split()[1:]]
            return f"{who} dies while it sends: only {', '.join(part)} is sent"
        return f"{who} {self._step(worker.place, before[WORLD], worker.leased)}"

    def _step(self, place: int, world: int, leased: bool) -> str:
        places = self.system.places
        stepped = self.system.worlds.stepped(world, place)
        step, job = places.steps[place], places.jobs[place]
        answer = places.answers[stepped.place][len(places.answers[place])]
        told = _TOLD[type(step)](step, answer) if type(step) in _TOLD else step.told(answer)
        if isinstance(step, Acknowledge):
            told = f"acknowledges {job.shown}" + ("" if leased else ", late")
        if places.carries[place] and not places.carries[stepped.place] and type(step) not in (Load, Open):
            told += f": {job.name} is applied"
        if stepped.called:
            told += f", and calls the handler for {job.shown}"
        if places.outcomes[stepped.place] is Outcome.CONFLICT:
            told += f", and gives {job.shown} back" if leased else ", and gives up"
        return told


def _persist(step: Persist, answer: bool) -> str:
    entity = step.entity
    if not answer:
        return f"cannot write {entity.key}: version {entity.version} is stale"
    kept = ", ".join(sorted(entity.outbox)) or "empty"
    return f"writes {entity.key} as version {entity.version + 1} (outbox: {kept})"


def _settle(step: Settle, answer: Settled) -> str:
    if answer is Settled.STALE:
        return f"cannot settle {step.name}: version {step.entity.version} of {step.entity.key} is stale"
    if answer is Settled.NO_TOKEN:
        return f"cannot settle {step.name}: its token is gone"
    entry = step.entity.outbox.get(step.name)
    made = ", ".join(out.token for out in entry.outgoing) if entry else ""
    removed = f", removes the token {step.token}" if step.token else ""
    made = f", makes the token {made}" if made else ""
    return f"writes {step.entity.key} as version {step.entity.version + 1}{removed}{made}"


def _create(step: Create, answer: bool) -> str:
    tokens = ", ".join(token for token, _ in step.birth.tokens)
    if not answer:
        return f"makes no tokens: the token {step.birth.parent} is gone"
    return f"makes the token {tokens}" if tokens else f"sees the token {step.birth.parent}"


def _open(step: Open, answer: Any) -> str:
    return f"loads {step.key} (version {answer.entity.version}) and finds {'its' if answer.held else 'no'} token"


_TOLD: Final[Mapping[type, Callable[[Any, Any], str]]] = {
    Load: lambda step, answer: f"loads {step.key} (version {answer.version})",
    Holds: lambda step, answer: f"looks for the token {step.token}: it is {'there' if answer else 'gone'}",
    Open: _open,
    Fresh: lambda step, answer: "makes new ids",
    Create: _create,
    Persist: _persist,
    Settle: _settle,
    Dispatch: lambda step, answer: f"sends {', '.join(message.token for message in step.messages) or 'nothing'}",
    Remove: lambda step, answer: f"removes the token {step.removal.token}",
    Finish: lambda step, answer: f"clears the outbox entry of {step.name}",
    Acknowledge: lambda step, answer: "acknowledges",
}


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
