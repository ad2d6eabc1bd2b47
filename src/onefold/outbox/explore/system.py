"""A whole world with all its workers, and everything that can happen next in it.

A *state* is a tuple of small numbers: the budgets left, the shared world (database and books), the parcels that can be
leased, and one number per crew. Two histories that lead to equal numbers lead to the same state, and go on as one.

Workers that are alike, and what they can do next.

A *crew* is the workers of one stage, of the source, or one hand that does a chore. Its workers are alike, so a crew is
kept sorted: which of two did it makes no difference. A worker is its place, the parcel it took, and whether its lease
still runs; 0 is an idle one. What a crew can do depends on the world and on itself alone, and is worked out once.

What is done besides the workers: stranded outboxes are finished, tokens that a late source left are swept.

The transport: what can be leased now.

A payload may be there several times: it was sent again, or the transport made a copy. Each of them is a parcel of its
own, for a late acknowledgement is about one parcel and not about its copies.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final, NamedTuple

from onefold.outbox.explore.topology import Algorithm, Chore, Content, Topology
from onefold.outbox.explore.worlds import (
    ExplorerJob,
    Handlers,
    Images,
    Invariant,
    Parcels,
    Stepped,
    Worlds,
    WorldStores,
    endings,
    name_of,
)
from onefold.outbox.plans import MARK, sourced
from onefold.outbox.steps import Attempt, Birth, Dispatch, Entity, Key, Load, Outcome
from onefold.outbox.stores.sqlite import SqliteLedger

IDLE: Final = 0
NO_PARCEL: Final = -1
FREE, CRASH, EXPIRY, COPY, CHORE = range(5)
"""What an action costs: nothing, or one of a budget. The first chore's budget is number 4, the next one's 5."""


class Worker(NamedTuple):
    """A worker at work."""

    place: int
    parcel: int
    """The number of the parcel that it took."""
    leased: bool


class Shift(NamedTuple):
    """What moves in the transport."""

    back: int = NO_PARCEL
    """Can be leased again."""
    gone: int = NO_PARCEL
    """Is acknowledged, wherever it is."""
    come: tuple[int, ...] = ()
    """Payloads that were sent."""


class Act(NamedTuple):
    """Something that a crew can do, and what comes of it."""

    cost: int
    world: int
    crew: int
    shift: Shift | None
    what: str
    """``step``, ``die``, ``expire`` or ``begin``; ``die`` with numbers: only those messages were sent."""
    worker: int
    after: int
    """What the worker is then."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Who they are."""

    title: str
    size: int
    chore: Chore | None = None
    cost: int = FREE


class Crews:
    """All states of crews so far, by number, and all states of workers."""

    def __init__(self, crews: list[Crew], images: Images, places: WorldStores, worlds: Worlds) -> None:
        self.crews = crews
        self.workers: list[Worker | None] = [None]
        self.members: list[tuple[int, tuple[int, ...]]] = []
        """Which crew, and its workers, sorted."""
        self._images, self._places, self._worlds = images, places, worlds
        self._worker_numbers: dict[Worker, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._acts: dict[tuple[int, int], list[Act]] = {}
        self._replaced: dict[tuple[int, int, int], int] = {}
        self._chores: dict[tuple[int, str], ExplorerJob] = {}
        self.idle = [self._number(which, (IDLE,) * crew.size) for which, crew in enumerate(crews)]

    def acts(self, world: int, crew: int) -> list[Act]:
        """What the workers of this crew can do by themselves."""
        found = self._acts.get((world, crew))
        if found is None:
            which, workers = self.members[crew]
            found = [act for worker in sorted(set(workers)) if worker for act in self._at_work(world, crew, worker)]
            chore = self.crews[which].chore
            if chore is not None and workers[0] == IDLE:
                found += self._offered(world, crew, which, chore)
            self._acts[world, crew] = found
        return found

    def taking(self, crew: int, job: ExplorerJob, parcel: int) -> tuple[int, int]:
        """The crew when an idle worker of it has leased this parcel, and that worker; (-1, 0) if all are busy."""
        if self.members[crew][1][0] != IDLE:
            return -1, 0
        worker = self._worker(Worker(self._places.begin(job), parcel, True))
        return self._with(crew, IDLE, worker), worker

    def parcels(self, crew: int) -> set[int]:
        """What its workers took, on loan or not any more."""
        return {found.parcel for worker in self.members[crew][1] if (found := self.workers[worker]) is not None}

    def _at_work(self, world: int, crew: int, number: int) -> list[Act]:
        worker = self.workers[number]
        assert worker is not None
        acts = [self._step(world, crew, number, worker)]
        back = worker.parcel if worker.leased else NO_PARCEL
        if self._places.answers[worker.place]:  # one that did nothing yet can as well not have begun
            shift = Shift(back) if worker.leased else None
            acts.append(Act(CRASH, world, self._with(crew, number, IDLE), shift, "die", number, IDLE))
            acts += self._cut_off(world, crew, number, worker)
        if worker.leased:
            late = self._worker(worker._replace(leased=False))
            acts.append(Act(EXPIRY, world, self._with(crew, number, late), Shift(back), "expire", number, late))
        return acts

    def _step(self, world: int, crew: int, number: int, worker: Worker) -> Act:
        stepped = self._worlds.stepped(world, worker.place)
        gone = worker.parcel if stepped.acknowledged else NO_PARCEL
        leased = worker.leased and not stepped.acknowledged
        if gone != NO_PARCEL and not worker.leased:
            crew = self._called_off(crew, gone)
        if self._places.outcomes[stepped.place] is None:
            back, after = NO_PARCEL, self._worker(Worker(stepped.place, worker.parcel, leased))
        else:
            back, after = worker.parcel if leased else NO_PARCEL, IDLE
        shift = Shift(back, gone, stepped.come)
        moved = None if shift == Shift() else shift
        return Act(FREE, stepped.world, self._with(crew, number, after), moved, "step", number, after)

    def _cut_off(self, world: int, crew: int, number: int, worker: Worker) -> list[Act]:
        step = self._places.steps[worker.place]
        if not isinstance(step, Dispatch):
            return []
        many = range(len(step.messages))
        parts = [part for size in range(1, len(many)) for part in combinations(many, size)]
        stepped = {part: self._worlds.cut_off(world, worker.place, part) for part in parts}
        return [self._died_sending(crew, number, worker, part, after) for part, after in stepped.items()]

    def _died_sending(self, crew: int, number: int, worker: Worker, part: tuple[int, ...], after: Stepped) -> Act:
        shift = Shift(worker.parcel if worker.leased else NO_PARCEL, NO_PARCEL, after.come)
        what = f"die {' '.join(map(str, part))}"
        return Act(CRASH, after.world, self._with(crew, number, IDLE), shift, what, number, IDLE)

    def _offered(self, world: int, crew: int, which: int, chore: Chore) -> list[Act]:
        acts = []
        for offer in chore.offers(self._images.contents[self._worlds.contents[world]]):
            shown = offer.rpartition("\t")[2]
            begin = partial(chore.begin, offer)
            job = self._chores.setdefault((which, offer), ExplorerJob(name_of(shown), shown, begin, acknowledges=False))
            worker = self._worker(Worker(self._places.begin(job), NO_PARCEL, False))
            cost = self.crews[which].cost
            acts.append(Act(cost, world, self._with(crew, IDLE, worker), None, "begin", IDLE, worker))
        return acts

    def _called_off(self, crew: int, parcel: int) -> int:
        """A late acknowledgement takes the parcel from whoever has it now."""
        for number in self.members[crew][1]:
            worker = self.workers[number]
            if worker is not None and worker.parcel == parcel and worker.leased:
                return self._with(crew, number, self._worker(worker._replace(leased=False)))
        return crew

    def _with(self, crew: int, before: int, after: int) -> int:
        """The crew with one worker changed."""
        key = (crew, before, after)
        found = self._replaced.get(key)
        if found is None:
            which, workers = self.members[crew]
            left = list(workers)
            left[left.index(before)] = after
            found = self._replaced[key] = self._number(which, tuple(sorted(left)))
        return found

    def _worker(self, worker: Worker) -> int:
        number = self._worker_numbers.get(worker)
        if number is None:
            number = self._worker_numbers[worker] = len(self.workers)
            self.workers.append(worker)
        return number

    def _number(self, which: int, workers: tuple[int, ...]) -> int:
        key = (which, workers)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.members)
            self.members.append(key)
        return number


def chores_of(topology: Topology, algorithm: Algorithm) -> list[Chore]:
    """What is done besides the workers here."""
    chores = list(algorithm.chores)
    if topology.pumps and algorithm.recovery is not None:
        chores.append(pump(topology, algorithm))
    if topology.pumps and topology.source is not None and algorithm.sourced is sourced:
        chores.append(sweeper(topology))
    return chores


def pump(topology: Topology, algorithm: Algorithm) -> Chore:
    """Finishes outbox entries, by the recovery of the plan: also the young ones, which it leaves alone in life."""
    recovery = algorithm.recovery
    assert recovery is not None

    def offers(content: Content) -> Sequence[str]:
        return ["\t".join((*key, name)) for key, name in content.entries]

    def begin(offer: str) -> Attempt:
        endpoint, name, entry = offer.split("\t")
        return recovery(Key(endpoint, name), entry)

    return Chore("the pump", topology.pumps, offers, begin, "takes up the outbox entry of")


class Discard(NamedTuple):
    """Remove one token, if it still has this parent."""

    token: str
    parent: str

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> Any:
        """By the store."""
        return ledger.discard(self.token, self.parent)

    def told(self, answer: Any) -> str:
        """For a history."""
        return f"discards the token {self.token}" if answer else f"finds the token {self.token} gone"


def sweeper(topology: Topology) -> Chore:
    """Sweeps tokens of a source whose outbox entry is gone: read the token first, then look for the entry."""
    assert topology.source is not None
    key = Key(topology.source.endpoint, topology.source.name)

    def offers(content: Content) -> Sequence[str]:
        return [token for token, parent in sorted(content.parents.items()) if MARK in parent]

    def begin(token: str) -> Attempt:
        return _swept(key, token)

    return Chore("the sweeper", topology.pumps, offers, begin, "looks at the token")


def _swept(key: Key, token: str) -> Generator[Any, Any, Outcome]:
    mark = token.partition(".")[0].removeprefix("mark")
    parent = f"{key}{MARK}{mark}"
    entity: Entity = yield Load(key)
    if parent not in entity.outbox:
        yield Discard(token, parent)
    return Outcome.TIDIED


class Transport:
    """All sets of parcels that could ever be leased, by number; number 0 is the empty one."""

    def __init__(self) -> None:
        self.free: list[tuple[int, ...]] = [()]
        self.payloads: list[int] = []
        """Of each parcel."""
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._parcels: dict[tuple[int, int], int] = {}
        self._changed: dict[tuple[int, int, bool], int] = {}

    def add(self, free: int, parcel: int) -> int:
        """With this one."""
        return self._change(free, parcel, True)

    def remove(self, free: int, parcel: int) -> int:
        """Without this one."""
        return self._change(free, parcel, False)

    def arrive(self, free: int, payload: int, taken: set[int]) -> int:
        """With a new parcel that holds this; ``taken`` are those that workers hold or know of."""
        copy = 0
        while (parcel := self._parcel(payload, copy)) in taken or parcel in self.free[free]:
            copy += 1
        return self.add(free, parcel)

    def shifted(self, free: int, shift: Shift, taken: Callable[[int], set[int]]) -> int:
        """After what a worker did; ``taken`` are the parcels that workers know of, for a payload."""
        if shift.gone != NO_PARCEL:
            free = self.remove(free, shift.gone)
        if shift.back != NO_PARCEL:
            free = self.add(free, shift.back)
        for payload in shift.come:
            free = self.arrive(free, payload, taken(payload))
        return free

    def _parcel(self, payload: int, copy: int) -> int:
        key = (payload, copy)
        if key not in self._parcels:
            self._parcels[key] = len(self.payloads)
            self.payloads.append(payload)
        return self._parcels[key]

    def _change(self, free: int, parcel: int, there: bool) -> int:
        key = (free, parcel, there)
        found = self._changed.get(key)
        if found is None:
            others: Sequence[int] = [each for each in self.free[free] if each != parcel]
            parcels = tuple(sorted([*others, parcel] if there else others))
            found = self._numbers.setdefault(parcels, len(self.free))
            if found == len(self.free):
                self.free.append(parcels)
            self._changed[key] = found
        return found


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
        self.places = WorldStores()
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
