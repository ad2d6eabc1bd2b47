"""A breadth-first search of all reachable states, so that the first wrong state has the shortest history.

After a complete search, a depth-first pass checks that every history ends, and counts how often a handler can be called
for one message. If no state can be reached from itself, every history ends; and as every state without a next move is
at rest, it ends well.

A history is printed as numbered lines, one per move, and what is wrong at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, Final, NoReturn

from onefold.outbox import plans
from onefold.outbox.explore.handlers import HandlerWrong
from onefold.outbox.explore.system import FREE, GROUPS, IDLE, WORLD, Invariant, Move, State, System
from onefold.outbox.explore.topology import Algorithm, Offence, Topology, Wrong
from onefold.outbox.plans import Outcome, Settled

STATES_MAX: Final = 200_000
"""Some seconds, and 100 MB. Two messages on one entity with one crash and one expiry need fewer states under every plan
but ``checkpointed``."""


class Convicted(AssertionError):
    """Something is wrong. The text is the shortest history that leads there, line by line, and what is wrong."""

    def __init__(self, plan: str, offence: Offence, history: str, states: int) -> None:
        super().__init__(f"{plan}: {offence.wrong.replace('_', ' ')} (found in {states:,} states)\n{history}")
        self.plan, self.offence, self.history, self.states = plan, offence, history, states


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result of a search that found nothing wrong."""

    plan: str
    topology: str
    extent: str
    """Numbers of messages and workers, and the budget of each fault."""
    states: int
    """Distinct states of the whole system: database, transport, workers, budgets left. Workers of a stage are
    interchangeable."""
    transitions: int
    rests: int
    """States in which all work was done; each was checked against every order without faults."""
    complete: bool
    """False: there are more states than ``states_max``; those that were explored are right."""
    seconds: float
    performed: int
    """Steps executed by the SQLite store; the others were cached from an equal state."""
    endings: int
    """How many different results there are without faults."""
    ends: tuple[str, ...]
    """Two of these in words if there are several: the result depends on the order of the messages."""
    calls_max: int | None
    """How often the handler, with its side effects, may be called for one message. None: not counted."""
    findings: tuple[str, ...]
    """Notes that are no error."""


def explored(
    topology: Topology, algorithm: Algorithm, *, states_max: int = STATES_MAX,
    invariant: Invariant | None = None, endless: bool = False,
) -> Exploration:  # fmt: skip
    """Explore all states; raises `Convicted`. ``endless``: also check that every history ends, and count calls."""
    try:
        system = System(topology, algorithm, invariant)
    except HandlerWrong as error:
        line = f"Wrong, without any fault: {error}."
        raise Convicted(algorithm.name, Offence(error.wrong, str(error)), line, 0) from error
    with closing(system.snapshots):
        return _Search(system, states_max).run(endless)


def together(plan: str, parts: Iterable[Exploration]) -> Exploration:
    parts = list(parts)
    calls = [part.calls_max for part in parts]
    return Exploration(
        plan,
        ", ".join(dict.fromkeys(part.topology for part in parts)),
        "; ".join(dict.fromkeys(part.extent for part in parts)),
        sum(part.states for part in parts),
        sum(part.transitions for part in parts),
        sum(part.rests for part in parts),
        all(part.complete for part in parts),
        sum(part.seconds for part in parts),
        sum(part.performed for part in parts),
        max(part.endings for part in parts),
        next((part.ends for part in parts if part.ends), ()),
        None if None in calls else max(call for call in calls if call is not None),
        tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
    )


class _Search:
    def __init__(self, system: System, states_max: int) -> None:
        self.system = system
        self.states_max = states_max
        self.parents: dict[State, State | None] = {system.first: None}
        self.transitions = self.rests = 0

    def run(self, endless: bool) -> Exploration:
        """Explore all states, or up to ``states_max``; stops at the first wrong one."""
        began, system, calls = perf_counter(), self.system, None
        layer, complete = [system.first], True
        while layer and complete:
            following: list[State] = []
            for state in layer:
                self._look(state, following)
                if len(self.parents) >= self.states_max:
                    complete = False
                    break
            layer = following
        if endless and complete:
            calls = self._calls_max()
        return Exploration(
            system.algorithm.name,
            system.topology.name,
            system.topology.extent,
            len(self.parents),
            self.transitions,
            self.rests,
            complete,
            perf_counter() - began,
            system.snapshots.performed,
            len(system.endings),
            tuple(sorted(map(str, system.endings))[:2]) if len(system.endings) > 1 else (),
            calls,
            system.handlers.findings,
        )

    def _look(self, state: State, following: list[State]) -> None:
        """Make every move from this state; `Convicted` if something is wrong."""
        parents, offence_of, stuck = self.parents, self.system.worlds.offence, True
        try:
            for after, move in self.system.moves(state):
                self.transitions += 1
                if move.action.cost == FREE:
                    stuck = False
                if after not in parents:
                    parents[after] = state
                    following.append(after)
                    offence = offence_of(after[WORLD])
                    if offence is not None:
                        self._convict(offence, self._way(after))
        except HandlerWrong as error:
            self._convict(Offence(error.wrong, f"{error}."), self._way(state))
        if self.system.resting(state):
            self.rests += 1
            offence = self.system.worlds.at_rest(state[WORLD])
        else:
            offence = Offence(Wrong.STUCK, "no worker can go on, and work is left.") if stuck else None
        if offence is not None:
            self._convict(offence, self._way(state))

    def _calls_max(self) -> int:
        """How often a handler can be called for one message; `Convicted` if there is a cycle. A depth-first pass over
        all states, for a complete search only."""
        system, on_way = self.system, {self.system.first}
        counted: dict[State, dict[str, int]] = {}  # from this state on: the maximum number of calls by message
        way: list[tuple[State, str, Iterator[tuple[State, Move]], dict[str, int]]]
        way = [(system.first, "", system.moves(system.first), {})]
        while way:
            state, called, moves, calls = way[-1]
            for after, move in moves:
                if after in on_way:
                    states = [*(each[0] for each in way), after]
                    circle = Offence(Wrong.CIRCLE, "this can repeat for ever.")
                    self._convict(circle, states, states.index(after) + 1)
                if after not in counted:
                    on_way.add(after)
                    way.append((after, self._called(state, move), system.moves(after), {}))
                    break
                _add(calls, counted[after], self._called(state, move))
            else:
                way.pop()
                on_way.discard(state)
                counted[state] = calls
                if way:
                    _add(way[-1][3], calls, called)
        return max(counted[system.first].values(), default=0)

    def _called(self, before: State, move: Move) -> str:
        """The message for which this move calls the handler; empty if it does not."""
        worker = self.system.groups.workers[move.action.worker]
        if move.action.what != "step" or worker is None:
            return ""
        called = self.system.worlds.stepped(before[WORLD], worker.position).called
        return self.system.positions[worker.position].job.name if called else ""

    def _way(self, state: State) -> list[State]:
        way = [state]
        while (before := self.parents[way[-1]]) is not None:
            way.append(before)
        return way[::-1]

    def _convict(self, offence: Offence, way: Sequence[State], again: int = 0) -> NoReturn:
        """Raise `Convicted` with the history of these states; ``again``: the move from which on it repeats."""
        teller, lines, width = _Teller(self.system), [], len(str(len(way) - 1))
        for number, (before, after) in enumerate(pairwise(way), 1):
            move = next(move for state, move in self.system.moves(before) if state == after)
            lines.append(f"{number:{width}}. {teller.line(move, before, after)}")
        if again:
            lines.append(f"... and again from {again} on.")
        history = "\n".join([*lines, f"Wrong: {offence.text}"])
        raise Convicted(self.system.algorithm.name, offence, history, len(self.parents))


def _add(calls: dict[str, int], later: Mapping[str, int], name: str) -> None:
    """Merge the calls of one more path: ``later`` ones, and one for ``name`` now."""
    for each, count in later.items():
        now = count + (each == name)
        if calls.get(each, 0) < now:
            calls[each] = now
    if name and name not in calls:
        calls[name] = 1


class _Teller:
    """Puts moves into words. Tracks which worker is which, because states keep them sorted."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.slots = [[IDLE] * group.size for group in system.groups.groups]

    def line(self, move: Move, before: State, after: State) -> str:
        if move.group < 0:
            return f"the transport delivers a copy of {self.system.payloads[move.parcel].jobs[0].label}"
        slots, action = self.slots[move.group], move.action
        slot = slots.index(action.worker)
        group = self.system.groups.groups[move.group]
        who = group.title if group.chore is not None else f"worker {slot + 1} of {group.title}"
        text = self._sentence(who, move, before)
        slots[slot] = action.after
        # A late acknowledgement changes another worker, too.
        rest = list(self.system.groups.members[after[GROUPS + move.group]][1])
        rest.remove(slots[slot])
        odd = []
        for number in (number for number in range(len(slots)) if number != slot):
            if slots[number] in rest:
                rest.remove(slots[number])
            else:
                odd.append(number)
        for number, worker in zip(odd, rest, strict=True):
            slots[number] = worker
        return text

    def _sentence(self, who: str, move: Move, before: State) -> str:
        system, action = self.system, move.action
        number = action.after if action.what in ("lease", "begin") else action.worker
        worker = system.groups.workers[number]
        assert worker is not None
        label = system.positions[worker.position].job.label
        if action.what == "lease":
            return f"{who} leases {label}"
        if action.what == "begin":
            chore = system.groups.groups[move.group].chore
            assert chore is not None
            return f"{who} {chore.finds} {label}"
        if action.what == "expire":
            return f"the lease of {label} runs out; {who} goes on"
        if action.what == "die":
            return f"{who} dies"
        if action.what.startswith("die "):
            messages = system.positions[worker.position].step.messages
            part = [messages[int(number)].token for number in action.what.split()[1:]]
            return f"{who} dies while it sends: only {', '.join(part)} is sent"
        return f"{who} {self._step(worker.position, before[WORLD], worker.leased)}"

    def _step(self, position: int, world: int, leased: bool) -> str:
        result = self.system.worlds.stepped(world, position)
        before, after = self.system.positions[position], self.system.positions[result.position]
        step, job = before.step, before.job
        answer = after.answers[len(before.answers)]
        late = "" if leased else ", late"
        text = f"acknowledges {job.label}{late}" if isinstance(step, plans.Acknowledge) else _describe(step, answer)
        if before.carries and not after.carries and type(step) not in (plans.Load, plans.Open, plans.Peek):
            text += f": {job.name} is applied"
        if result.called:
            text += f", and calls the handler for {job.label}"
        if after.outcome is Outcome.CONFLICT:
            text += f", and gives {job.label} back" if leased else ", and gives up"
        return text


def _describe(step: Any, answer: Any) -> str:
    match step:
        case plans.Load():
            return f"loads {step.key} (version {answer.version})"
        case plans.Holds():
            return f"looks for the token {step.token}: it is {'there' if answer else 'gone'}"
        case plans.Open():
            entity, has_token = answer
            return f"loads {step.key} (version {entity.version}) and finds {'its' if has_token else 'no'} token"
        case plans.Fresh():
            return "makes new ids"
        case plans.Keep():
            if answer is None:
                return f"finds the row {step.receipt} not leased to it any more"
            return f"keeps the answer of {', '.join(step.answers)}" if step.answers else "looks for answers"
        case plans.Call():
            return f"calls {step.name} outside, under the key {step.key}"
        case plans.Create():
            tokens = ", ".join(token for token, _ in step.tokens)
            if not answer:
                return f"makes no tokens: the token {step.parent} is gone"
            return f"makes the token {tokens}" if tokens else f"sees the token {step.parent}"
        case plans.Persist(entity):
            if not answer:
                return f"cannot write {entity.key}: version {entity.version} is stale"
            entries = ", ".join(sorted(entity.outbox)) or "empty"
            return f"writes {entity.key} as version {entity.version + 1} (outbox: {entries})"
        case plans.Settle(entity, name, token):
            if answer is Settled.STALE:
                return f"cannot settle {name}: version {entity.version} of {entity.key} is stale"
            if answer is Settled.NO_TOKEN:
                return f"cannot settle {name}: its token is gone"
            tokens = ", ".join(out.token for out in step.entry.outgoing) if step.entry else ""
            removed = f", removes the token {token}" if token else ""
            new = f", makes the token {tokens}" if tokens else ""
            return f"writes {entity.key} as version {entity.version + 1}{removed}{new}"
        case plans.Lease():
            return "leases its row" if all(answer) else "finds its row gone"
        case plans.Peek():
            return f"loads {step.key} (version {answer.version})"
        case plans.Commit(entity):
            assert entity is not None, "a handler without state is not explored"
            key = entity.key
            if answer is Settled.STALE:
                return f"cannot commit: version {entity.version} of {key} is stale"
            if answer is Settled.NO_TOKEN:
                return "cannot commit: its row is gone"
            removed = ", deletes its row" if step.receipts else ""
            new = f", adds rows for {', '.join(message.token for message in step.messages)}" if step.messages else ""
            return f"writes {key} as version {entity.version + 1}{removed}{new}"
        case plans.Dispatch():
            return f"sends {', '.join(message.token for message in step.messages) or 'nothing'}"
        case plans.Remove():
            return f"removes the token {step.token}"
        case plans.Finish():
            return f"clears the outbox entry of {step.name}"
        case _:
            return str(step.describe(answer))
