"""A history in words: numbered lines, one per move, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onefold.engines.outbox.steps import (
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
from onefold.sim.explorer.crews import IDLE
from onefold.sim.explorer.search import Trail
from onefold.sim.explorer.system import CREWS, WORLD, Note, State, System
from onefold.sim.explorer.verdicts import Offence


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
