"""Workers that are alike, and what they can do next.

A *crew* is the workers of one stage, of the source, or one hand that does a chore. Its workers are alike, so a crew is
kept sorted: which of two did it makes no difference. A worker is its place, the parcel it took, and whether its lease
still runs; 0 is an idle one. What a crew can do depends on the world and on itself alone, and is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Final, NamedTuple

from onefold.engines.outbox.steps import Dispatch
from onefold.sim.explorer.images import Images
from onefold.sim.explorer.parcels import Job, name_of
from onefold.sim.explorer.places import Places
from onefold.sim.explorer.topology import Chore
from onefold.sim.explorer.worlds import Stepped, Worlds

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

    def __init__(self, crews: list[Crew], images: Images, places: Places, worlds: Worlds) -> None:
        self.crews = crews
        self.workers: list[Worker | None] = [None]
        self.members: list[tuple[int, tuple[int, ...]]] = []
        """Which crew, and its workers, sorted."""
        self._images, self._places, self._worlds = images, places, worlds
        self._worker_numbers: dict[Worker, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._acts: dict[tuple[int, int], list[Act]] = {}
        self._replaced: dict[tuple[int, int, int], int] = {}
        self._chores: dict[tuple[int, str], Job] = {}
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

    def taking(self, crew: int, job: Job, parcel: int) -> tuple[int, int]:
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
            job = self._chores.setdefault((which, offer), Job(name_of(shown), shown, begin, acknowledges=False))
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
