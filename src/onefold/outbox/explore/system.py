"""A whole system with all its workers, and everything that can happen next in it.

A *state* is a tuple of small numbers: the budgets left, the shared world, the parcels that can be leased, and one
number per group of workers. Histories that lead to equal numbers lead to the same state, and are merged.

- `StoreSnapshots`: the real store with any content that was ever reached. A database in memory is serialized after each
  write and restored before the next step. Each pair of content and step is executed once.
- `endings`: the oracle. The results without faults, for every order of messages: one handler call each, no store and
  no plan. Whatever the faults, the system must end in one of these.
- `Payloads`: every payload ever sent. ``m1`` is the first message, ``m1.2`` the second one that it sends, ``mark1`` the
  first mark of a source. A token is the name with the number of its attempt, ``m1.2@3``, so a message that is sent
  under two tokens is recognised by its name.
- `Positions`: where a worker is in its attempt: its job, and all answers so far. A generator cannot be copied, but the
  same answers lead to the same position again. A handler is called as soon as a plan asks for it.
- `Worlds`: the content of the database, and the books with what no store knows: which messages changed a state, what
  was ever sent, which tokens were removed.
- `WorkerGroups`: the workers of one stage, of the source, or the one that does a chore. Workers of a group are
  interchangeable, so a group is kept sorted. A worker is its position, its parcel, and whether its lease still runs; 0
  is an idle one.
- `Transport`: the parcels that can be leased now. A payload that was sent or copied several times is several parcels,
  because a late acknowledgement concerns one parcel and not its copies.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from math import prod
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from onefold.errors import Misuse
from onefold.outbox import plans
from onefold.outbox.explore.handlers import Handlers
from onefold.outbox.explore.topology import Algorithm, Chore, Content, Offence, Topology, Wrong
from onefold.outbox.plans import MARK, Attempt, Handled, Key, Message, Outcome, Outgoing, pack
from onefold.outbox.ports import Parcel, Queue, parcels_of
from onefold.outbox.runner import World
from onefold.outbox.stores.sqlite import SqliteLocal

PAGE_BYTES: Final = 1_024
"""Small pages make small copies."""
_WRITES: Final = frozenset(
    {plans.Commit, plans.Create, plans.Finish, plans.Keep, plans.Lease, plans.Persist, plans.Remove, plans.Settle}
)
_ROW_OF: Final = "select position from outbox_queue where json_extract(cast(payload as text), '$.token') = ?"


@runtime_checkable
class OwnStep(Protocol):
    """A step of a specimen, a mutant or a chore, which no shipped plan has. It performs itself."""

    def perform(self, ledger: SqliteLocal, connection: sqlite3.Connection) -> Any: ...

    def describe(self, answer: Any) -> str: ...


T = TypeVar("T")


class Numbered(list[T]):
    """A list without duplicates that finds the number of an item."""

    def __init__(self, *items: T) -> None:
        super().__init__(items)
        self._numbers = {item: number for number, item in enumerate(items)}

    def number(self, item: T) -> int:
        number = self._numbers.setdefault(item, len(self))
        if number == len(self):
            self.append(item)
        return number


class StoreSnapshots:
    """All contents so far, by number; the first is number 0."""

    def __init__(self, tables: Iterable[str], messages: Sequence[Message], tokens: bool, rows: bool) -> None:
        """The first messages are rows of the queue (``rows``), or have tokens (``tokens``), or neither."""
        self.contents: list[Content] = []
        self.performed = 0
        self._snapshots: list[bytes] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._connection = db = sqlite3.connect(":memory:", isolation_level=None)
        db.execute(f"pragma page_size={PAGE_BYTES}")
        for statement in tables:
            db.execute(statement)
        self._store = SqliteLocal.over(db, lambda: 0)  # the clock stands still: time is not part of a state
        self.realm = self._store.place if rows else self._store.realm
        self._sent: list[Parcel] = []
        transport = self._store if rows else cast(Queue, SimpleNamespace(send=self._sent.extend))
        self._world = World(self._store, self._store, transport)
        names = db.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
        self._reads = [(name, f'select * from "{name}"') for (name,) in names]  # noqa: S608 # names of our own schema
        if rows:
            self._store.send(parcels_of(messages, self.realm))
        elif tokens:
            self._store.create([plans.Create("", "", ((each.token, each.to),), False) for each in messages])
        self._rows: list[Mapping[int, Parcel]] = []
        """The queue of each content, by position."""
        self._here = self._number()

    def close(self) -> None:
        self._connection.close()

    def perform(self, content: int, step: Any) -> tuple[int, Any, list[Parcel]]:
        """The content after a step, its answer, and what it sent."""
        self.performed += 1
        self._sent.clear()
        if self._here != content:
            self._connection.deserialize(self._snapshots[content])
            self._here = content
        if isinstance(step, OwnStep):
            answer = step.perform(self._store, self._connection)
        elif isinstance(step, plans.Lease):
            answer = tuple(self._leased(token) for token in step.tokens)
        else:
            (answer,) = self._world.perform(type(step), [step])
        if type(step) in _WRITES or isinstance(step, OwnStep):
            self._here = self._number()
            before, after = self._rows[content], self._rows[self._here]
            self._sent += [parcel for position, parcel in after.items() if position not in before]
        return self._here, answer, list(self._sent)

    def _leased(self, token: str) -> str | None:
        """Lease the row of this message, even if it is leased: the receipt, or None if the row is gone."""
        positions = [position for (position,) in self._connection.execute(_ROW_OF, [token])]
        return self._store.lend(lambda: positions, 1)[0].receipt if positions else None

    def _number(self) -> int:
        execute = self._connection.execute
        # In the order of the keys: the tables have no row ids.
        rows = tuple((name, tuple(execute(sql))) for name, sql in self._reads)
        number = self._numbers.get(rows)
        if number is None:
            number = self._numbers[rows] = len(self.contents)
            tables = dict(rows)
            tokens, entities = tables["outbox_tokens"], tables["outbox_entities"]  # columns in the order of the schema
            parcels = {row[0]: Parcel(row[1], row[5]) for row in tables["outbox_queue"]}
            content = Content(
                frozenset(row[0] for row in tokens)
                | frozenset(plans.unpack_message(parcel.payload).token for parcel in parcels.values()),
                {row[0]: row[2] for row in tokens if row[2]},
                {Key(row[0], row[1]): row[3] for row in entities if row[3] is not None},
                tuple((Key(row[0], row[1]), row[2]) for row in tables["outbox_entries"]),
                {name: table for name, table in rows if not name.startswith("outbox_")},
            )
            self.contents.append(content)
            self._rows.append(parcels)
            self._snapshots.append(self._connection.serialize())
        return number


_LOOKS: Final = frozenset({plans.Load, plans.Open, plans.Peek})


WORLDS_MAX: Final = 50_000
"""Intermediate results of `endings`: eight messages in any order have some thousands."""


class Ending(NamedTuple):
    states: frozenset[tuple[Key, str]]
    applied: frozenset[str]
    """The names of the messages that were processed."""
    sent: frozenset[tuple[str, str, str]]
    """Messages to queues without a handler: name, queue, body."""

    def __str__(self) -> str:
        entities = [f"{key} = {text}" for key, text in sorted(self.states)]
        return ", ".join([*entities, *(f"{body} sent to {queue}" for _, queue, body in sorted(self.sent))]) or "nothing"


def plain(text: str) -> str:
    """The text without numbers of attempts: they depend on the history, and a handler may keep the token it saw.

    >>> plain('{"paid":"m1.1@2"}')
    '{"paid":"m1.1"}'
    """
    return _ATTEMPT.sub(r"\1", text)


_ATTEMPT: Final = re.compile(r"(\b(?:m|mark)\d+(?:\.\d+)*)@\d+")


def endings(topology: Topology, handlers: Handlers) -> frozenset[Ending]:
    """All results without faults. Exceptions of a handler are not caught."""
    served, source = topology.served, topology.source
    marks = source.marks if source is not None else ()
    messages = enumerate(topology.messages, 1)
    waiting = frozenset((f"m{number}", queue, pack(body)) for number, (queue, body) in messages)
    # Each item: the messages still to be processed, the next mark, and the result of all others.
    worlds = Numbered((waiting, 0, Ending(frozenset(), frozenset(), frozenset())))
    for waiting, mark, ending in worlds:  # grows during the loop
        for parcel in sorted(waiting):
            name, queue, body = parcel
            rest = waiting - {parcel}
            if queue not in served:
                worlds.number((rest, mark, ending._replace(sent=ending.sent | {parcel})))
                continue
            _, stage, handling = served[queue]
            message = Message(name, queue, json.loads(body))
            key = Key(stage.endpoint, _entity_of(message, handling))
            states = dict(ending.states)
            answer = handlers.handled(handling, message, json.loads(states.pop(key, "null")))
            after = Ending(_with(states, key, answer.state), ending.applied | {name}, ending.sent)
            worlds.number((rest | _named(name, answer.outgoing), mark, after))
        if source is not None and mark < len(marks):
            outgoing = _named(f"mark{mark + 1}", plans.outgoings(marks[mark], source.name))
            marked = _with(dict(ending.states), Key(source.endpoint, source.name), {"mark": mark + 1})
            worlds.number((waiting | outgoing, mark + 1, ending._replace(states=marked)))
        if len(worlds) > WORLDS_MAX:
            raise Misuse(f"more than {WORLDS_MAX} orders and results without a single fault: give fewer messages")
    return frozenset(ending for waiting, mark, ending in worlds if not waiting and mark == len(marks))


def _with(states: dict[Key, str], key: Key, state: Any) -> frozenset[tuple[Key, str]]:
    if state is None:
        states.pop(key, None)
    else:
        states[key] = plain(pack(state))
    return frozenset(states.items())


def _named(name: str, outgoing: tuple[Outgoing, ...]) -> frozenset[tuple[str, str, str]]:
    return frozenset((f"{name}.{position}", out.to, plain(pack(out.body))) for position, out in enumerate(outgoing, 1))


@dataclass(frozen=True, slots=True, eq=False)
class ExplorerJob:
    label: str
    """The token of its message, or its mark."""
    begin: Callable[[], Attempt]
    answer: Callable[[plans.Handle], Handled | plans.Asked] | None = None
    outside: Callable[[plans.Call], Any] | None = None
    acknowledges: bool = True
    """False: its end is its acknowledgement, as with sources, chores, and messages whose row is their token."""
    then: int = -1
    """The payload that arrives when this one is acknowledged: the next mark."""

    @property
    def name(self) -> str:
        return name_of(self.label)


def _entity_of(message: Message, handling: plans.Handling) -> str:
    name, _ = handling.read(message)
    assert name is not None, "a handler without state is not explored"
    return name


class Payload(NamedTuple):
    group: int
    """The group whose workers take it; -1: none."""
    jobs: tuple[ExplorerJob, ...]
    """One per plan that a worker can process it with."""
    message: Message | None


def name_of(token: str) -> str:
    """The name of the message with this token, or of the mark with this entry.

    >>> name_of("m1.2@3"), name_of("shop/orders.log#41")
    ('m1.2', 'mark41')
    """
    token = token.removesuffix(plans.ONCE)
    mark = token.rpartition(MARK)[2] if MARK in token else ""
    return f"mark{mark}" if mark else token.partition("@")[0]


def fresh(name: str, attempt: int, many: int) -> tuple[str, ...]:
    """The ids of the n-th attempt at a message: the attempt's own, and one for each message that it sends.

    >>> fresh("m1", 2, 3)
    ('m1@2', 'm1.1@2', 'm1.2@2')
    """
    return (f"{name}@{attempt}", *(f"{name}.{number}@{attempt}" for number in range(1, many)))


class Payloads(list[Payload]):
    """All payloads ever sent, by number."""

    def __init__(self, topology: Topology, algorithm: Algorithm, handlers: Handlers) -> None:
        super().__init__()
        self._algorithm, self._handlers, self._served = algorithm, handlers, topology.served
        self.number = cache(self._add)

    def first(self, topology: Topology, messages: Sequence[Message], realm: str) -> list[int]:
        numbers = [self.number(parcel.payload) for parcel in parcels_of(messages, realm)]
        source, following = topology.source, -1
        if source is None:
            return numbers
        assert self._algorithm.sourced is not None
        for mark in range(len(source.marks), 0, -1):  # each one leads to the next
            outgoing = plans.outgoings(source.marks[mark - 1], source.name)
            begin = partial(self._algorithm.sourced, plans.Taken(Key(source.endpoint, source.name), mark, outgoing))
            job = ExplorerJob(f"mark{mark}", begin, acknowledges=False, then=following)
            self.append(Payload(len(topology.stages), (job,), None))
            following = len(self) - 1
        return [*numbers, following]

    def _add(self, payload: bytes) -> int:
        message = plans.unpack_message(payload)
        group, jobs = -1, []
        if message.to in self._served:
            group, stage, handling = self._served[message.to]
            key = Key(stage.endpoint, _entity_of(message, handling))
            answer, outside = (
                partial(each, handling, message) for each in (self._handlers.answer, self._handlers.outside)
            )
            for plan in (self._algorithm.plan, *self._algorithm.others):
                begin, acknowledges = partial(plan, key, message), not self._algorithm.rows
                jobs.append(ExplorerJob(message.token, begin, answer, outside, acknowledges))
        self.append(Payload(group, tuple(jobs), message))
        return len(self) - 1


class Position(NamedTuple):
    job: ExplorerJob
    answers: tuple[Any, ...]
    step: Any
    """The pending step; None: the attempt has ended."""
    step_number: int
    """Equal steps have equal numbers."""
    outcome: Outcome | None
    carries: bool
    """The handler was called, and its result is not written yet."""
    called: bool
    """The handler was called since the previous position."""


class Positions(list[Position]):
    """All positions so far, by number."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = cache(self._add)
        """Where a job begins."""
        self._after: dict[tuple[int, str], int] = {}
        self._steps: Numbered[str] = Numbered()

    def after(self, position: int, answer: Any, *, written: bool = False) -> int:
        """The position after this answer; ``written``: the handler's result is in the store now."""
        key = (position, repr(answer))
        if key not in self._after:
            job, answers, *_ = before = self[position]
            self._after[key] = self._add(job, (*answers, answer), before.carries and not written)
        return self._after[key]

    def _add(self, job: ExplorerJob, answers: tuple[Any, ...] = (), carries: bool = False) -> int:
        attempt, called = job.begin(), False
        step: Any = None
        outcome: Outcome | None = None
        try:
            step = attempt.send(None)
            for answer in answers:
                step = attempt.send(answer)
            while isinstance(step, plans.Handle):
                assert job.answer is not None, "this job has nothing to handle"
                handled = job.answer(step)
                answers, carries, called = (*answers, handled), isinstance(handled, Handled), True
                step = attempt.send(handled)
        except StopIteration as stop:
            step, outcome = None, stop.value
        attempt.close()
        number = self._steps.number(f"{type(step).__name__} {step!r}")
        self.append(Position(job, answers, step, number, outcome, carries, called))
        return len(self) - 1


Invariant = Callable[[Mapping[str, Any]], object]


class WorldBooks(NamedTuple):
    applied: frozenset[str]
    """The names of messages that changed a state."""
    sent: frozenset[int]
    dead: frozenset[str]
    """Tokens that were removed."""
    attempts: tuple[tuple[str, int], ...]
    """How many attempts at each message asked for ids."""
    calls: frozenset[tuple[str, str, str]] = frozenset()
    """External calls: message, name of the call, key."""


class StepResult(NamedTuple):
    world: int
    position: int
    arrivals: tuple[int, ...]
    """Payloads that were sent to a group by this step."""
    acknowledged: bool
    called: bool
    """The handler was called right after this step."""


class ExploredWorld(NamedTuple):
    content: int
    books: WorldBooks
    offence: Offence | None = None
    """An offence of the step that led to it."""


class Worlds(Numbered[ExploredWorld]):
    """All worlds so far, by number."""

    def __init__(self, system: System, invariant: Invariant | None) -> None:
        super().__init__()
        self._snapshots, self._payloads, self._positions = system.snapshots, system.payloads, system.positions
        self._endings, self._algorithm, self._invariant = system.endings, system.algorithm, invariant
        self._performed: dict[tuple[int, int], tuple[int, Any, tuple[int, ...]]] = {}
        self.stepped = cache(lambda world, position: self._step(world, position, self._positions[position].step))
        """The result of the next step of a worker at a position."""
        self.offence = cache(lambda world: self[world].offence or self._judge(world))
        self.at_rest = cache(self._at_rest)
        """What is wrong if all queues are empty and all workers idle."""

    def cut_off(self, world: int, position: int, many: tuple[int, ...]) -> StepResult:
        """The result if a worker dies while it sends, and only these of its messages are stored."""
        messages = self._positions[position].step.messages
        return self._step(world, position, plans.Dispatch(tuple(messages[number] for number in many)))

    def _step(self, world: int, position: int, step: Any) -> StepResult:
        content, books, _ = self[world]
        offence = None
        arrivals: tuple[int, ...] = ()
        written = False
        if isinstance(step, plans.Fresh):
            after, books, answer = content, *self._fresh(books, position, step)
        elif isinstance(step, plans.Acknowledge):
            after, answer = content, None
        elif isinstance(step, plans.Call):
            job = self._positions[position].job
            assert job.outside is not None, "this job has nothing to handle"
            after, answer, call = content, job.outside(step), (job.name, step.name, step.key)
            if any(each[:2] == call[:2] and each != call for each in books.calls):
                offence = Offence(
                    Wrong.TWO_KEYS, f"{step.name} was called for {job.name} under two keys: it is executed twice."
                )
            books = books._replace(calls=books.calls | {call})
        else:
            after, answer, arrivals = self._perform(content, position, step)
            if type(step) in (plans.Persist, plans.Settle, plans.Commit) or getattr(step, "writes", False):
                written = answer in (True, plans.Settled.DONE)
            if after != content:
                removed = self._snapshots.contents[content].tokens - self._snapshots.contents[after].tokens
                books = books._replace(dead=books.dead | removed) if removed else books
            name = self._positions[position].job.name
            if written and self._positions[position].carries:
                if name in books.applied:
                    offence = Offence(Wrong.APPLIED_TWICE, f"{name} is applied twice: it counts double.")
                books = books._replace(applied=books.applied | {name})
        # After the entity is read again, the handler's earlier result will not be written.
        position = self._positions.after(position, answer, written=written or type(step) in _LOOKS)
        called = self._positions[position].called
        while isinstance(named := self._positions[position].step, plans.Fresh):
            books, answer = self._fresh(books, position, named)
            position = self._positions.after(position, answer)
            called = called or self._positions[position].called
        job, outcome = self._positions[position].job, self._positions[position].outcome
        ended = not job.acknowledges and outcome not in (None, Outcome.CONFLICT)
        acknowledged = isinstance(step, plans.Acknowledge) or ended
        if acknowledged and job.then >= 0 and job.then not in books.sent:
            arrivals = (*arrivals, job.then)
        if arrivals:
            books = books._replace(sent=books.sent | set(arrivals))
            arrivals = tuple(payload for payload in arrivals if self._payloads[payload].group >= 0)
        world = self.number(ExploredWorld(after, books, offence))
        return StepResult(world, position, arrivals, acknowledged, called)

    def _perform(self, content: int, position: int, step: Any) -> tuple[int, Any, tuple[int, ...]]:
        key = (content, self._positions[position].step_number)
        is_whole = step is self._positions[position].step  # an interrupted send is not cached
        if is_whole and key in self._performed:
            return self._performed[key]
        after, answer, parcels = self._snapshots.perform(content, step)
        result = after, answer, tuple(self._payloads.number(parcel.payload) for parcel in parcels)
        if is_whole:
            self._performed[key] = result
        return result

    def _fresh(self, books: WorldBooks, position: int, step: plans.Fresh) -> tuple[WorldBooks, tuple[str, ...]]:
        """New ids, numbered by message and attempt, so that equal histories have equal ids."""
        name = self._positions[position].job.name
        attempts = dict(books.attempts)
        attempts[name] = attempts.get(name, 0) + 1
        return books._replace(attempts=tuple(sorted(attempts.items()))), fresh(name, attempts[name], step.many)

    def _judge(self, world: int) -> Offence | None:
        content, books, _ = self[world]
        back = self._snapshots.contents[content].tokens & books.dead
        if back:
            return Offence(Wrong.TOKEN_BACK, f"the token {min(back)} was removed, and exists again.")
        seen: dict[str, Any] = {}
        for number in sorted(books.sent):
            message = self._payloads[number].message
            if message is None:
                continue
            name = name_of(message.token)
            other = seen.setdefault(name, message)
            if other.token != message.token:
                tokens = " and ".join(sorted((other.token, message.token)))
                return Offence(Wrong.TWO_TOKENS, f"{name} was sent under two tokens, {tokens}: it will count double.")
            if other != message:
                bodies = f"{pack(other.body)} and {pack(message.body)}"
                return Offence(Wrong.TWO_PAYLOADS, f"{name} was sent with two contents, {bodies}.")
        if self._invariant is None:
            return None
        values = self._snapshots.contents[content].values
        try:
            holds, why = self._invariant(values) is not False, ""
        except AssertionError as error:
            holds, why = False, f" ({str(error).splitlines()[0]})" if str(error) else ""
        return None if holds else Offence(Wrong.INVARIANT, f"the invariant does not hold for {pack(values)}{why}.")

    def _at_rest(self, world: int) -> Offence | None:
        content, books = self._snapshots.contents[self[world].content], self[world].books
        outside = [m for n in books.sent if self._payloads[n].group < 0 and (m := self._payloads[n].message)]
        messages = frozenset((name_of(m.token), m.to, plain(pack(m.body))) for m in outside)
        states = frozenset((key, plain(text)) for key, text in content.states.items())
        ending = Ending(states, books.applied, messages)
        if content.entries and self._algorithm.tidy:
            return Offence(Wrong.ENTRY_LEFT, f"at rest, the outbox entry {content.entries[0][1]} is left over.")
        if ending not in self._endings:
            return self._differs(ending)
        wanted = {message.token for message in outside} if self._algorithm.tokens else set()
        for token in sorted(wanted - content.tokens):
            return Offence(Wrong.LOST, f"at rest, {token} was sent and has no token: it will not be processed.")
        # Tokens of a late worker of a source are left to the `sweeper`.
        for token in sorted(content.tokens - wanted):
            if self._algorithm.tidy and MARK not in content.parents.get(token, ""):
                return Offence(Wrong.TOKEN_LEFT, f"at rest, the token {token} is left over.")
        return None

    def _differs(self, ending: Ending) -> Offence:
        for name in sorted(frozenset.intersection(*(each.applied for each in self._endings)) - ending.applied):
            return Offence(Wrong.LOST, f"at rest, {name} was never applied: it is lost.")
        for name, to, _ in sorted(frozenset.intersection(*(each.sent for each in self._endings)) - ending.sent):
            return Offence(Wrong.LOST, f"at rest, {name} was never sent to {to}: it is lost.")
        nearest = min(self._endings, key=lambda each: (len(each.states ^ ending.states), sorted(each.states)))
        states, wanted = (
            ", ".join(f"{key} = {text}" for key, text in sorted(each.states)) or "no entity"
            for each in (ending, nearest)
        )
        text = f"at rest there is {states}; without faults there would be {wanted}"
        return Offence(
            Wrong.STATE, f"{text}." if len(self._endings) == 1 else f"{text}, or the result of another order."
        )


IDLE: Final = 0
NO_PARCEL: Final = -1
FREE, CRASH, EXPIRY, COPY, CHORE = range(5)
"""The budget that an action takes from. The first chore's budget is number 4, the next one's 5."""


class Worker(NamedTuple):
    position: int
    parcel: int
    leased: bool


class Action(NamedTuple):
    what: str
    """``lease``, ``begin``, ``step``, ``expire``, ``copy`` or ``die``; ``die 0 2``: only these messages were sent."""
    worker: int
    after: int
    """The worker's state after it."""
    world: int
    group: int
    cost: int = FREE
    back: int = NO_PARCEL
    """A parcel that can be leased again."""
    acknowledged: int = NO_PARCEL
    """A parcel that is deleted, even if another worker has it."""
    arrivals: tuple[int, ...] = ()


class WorkerGroup(NamedTuple):
    title: str
    size: int
    chore: Chore | None = None
    cost: int = FREE


class WorkerGroups:
    """All states of groups and of workers so far, by number."""

    def __init__(self, system: System, groups: list[WorkerGroup]) -> None:
        self.groups = groups
        self.workers: Numbered[Worker | None] = Numbered(None)
        self.members: Numbered[tuple[int, tuple[int, ...]]] = Numbered()
        """The number of the group, and its workers, sorted."""
        self._snapshots, self._positions, self._worlds = system.snapshots, system.positions, system.worlds
        self.actions = cache(lambda world, group: list(self._actions(world, group)))
        """The possible actions of a group's workers in a world."""
        self._with = cache(self._replaced)
        self._job = cache(lambda chore, offer: ExplorerJob(offer[-1], partial(chore.begin, *offer), acknowledges=False))
        self.idle = [self.members.number((which, (IDLE,) * group.size)) for which, group in enumerate(groups)]

    def _actions(self, world: int, group: int) -> Iterator[Action]:
        which, workers = self.members[group]
        for number in sorted(set(workers)):
            if (worker := self.workers[number]) is not None:
                yield from self._at_work(world, group, number, worker)
        _, _, chore, cost = self.groups[which]
        if chore is not None and workers[0] == IDLE:
            for offer in chore.offers(self._snapshots.contents[self._worlds[world].content]):
                position = self._positions.begin(self._job(chore, offer))
                after = self.workers.number(Worker(position, NO_PARCEL, False))
                yield Action("begin", IDLE, after, world, self._with(group, IDLE, after), cost)

    def taking(self, group: int, job: ExplorerJob, parcel: int) -> tuple[int, int]:
        """The group after an idle worker has leased this parcel, and that worker; (-1, 0) if all are busy."""
        if self.members[group][1][0] != IDLE:
            return -1, 0
        worker = self.workers.number(Worker(self._positions.begin(job), parcel, True))
        return self._with(group, IDLE, worker), worker

    def parcels(self, group: int) -> set[int]:
        """The parcels that its workers process, leased or expired."""
        return {worker.parcel for number in self.members[group][1] if (worker := self.workers[number]) is not None}

    def _at_work(self, world: int, group: int, number: int, worker: Worker) -> Iterator[Action]:
        """The possible actions of a busy worker: its next step, to die, or to lose its lease."""
        yield self._step(world, group, number, worker)
        back = worker.parcel if worker.leased else NO_PARCEL
        if self._positions[worker.position].answers:  # before its first step, to die changes nothing
            idle = self._with(group, number, IDLE)
            yield Action("die", number, IDLE, world, idle, CRASH, back)
            step = self._positions[worker.position].step
            many = range(len(step.messages)) if isinstance(step, plans.Dispatch) else range(0)
            for part in (part for size in range(1, len(many)) for part in combinations(many, size)):
                result = self._worlds.cut_off(world, worker.position, part)
                what = f"die {' '.join(map(str, part))}"
                yield Action(what, number, IDLE, result.world, idle, CRASH, back, arrivals=result.arrivals)
        if worker.leased:
            late = self.workers.number(worker._replace(leased=False))
            yield Action("expire", number, late, world, self._with(group, number, late), EXPIRY, back)

    def _step(self, world: int, group: int, number: int, worker: Worker) -> Action:
        result = self._worlds.stepped(world, worker.position)
        acknowledged = worker.parcel if result.acknowledged else NO_PARCEL
        leased = worker.leased and not result.acknowledged
        if acknowledged != NO_PARCEL and not worker.leased:  # a late acknowledgement ends the lease of another worker
            for other in self.members[group][1]:
                late = self.workers[other]
                if late is not None and late.parcel == acknowledged and late.leased:
                    group = self._with(group, other, self.workers.number(late._replace(leased=False)))
                    break
        if self._positions[result.position].outcome is None:
            back, after = NO_PARCEL, self.workers.number(Worker(result.position, worker.parcel, leased))
        else:
            back, after = worker.parcel if leased else NO_PARCEL, IDLE
        group = self._with(group, number, after)
        return Action("step", number, after, result.world, group, FREE, back, acknowledged, result.arrivals)

    def _replaced(self, group: int, before: int, after: int) -> int:
        which, workers = self.members[group]
        changed = list(workers)
        changed[changed.index(before)] = after
        return self.members.number((which, tuple(sorted(changed))))


def pump(times: int, recovery: plans.Recovery) -> Chore:
    """Finishes outbox entries by the recovery of the plan, also young ones, which the real pump leaves alone."""

    def begin(endpoint: str, name: str, entry: str) -> Attempt:
        return recovery(Key(endpoint, name), entry)

    finds = "takes up the outbox entry of"
    return Chore("the pump", times, lambda content: [(*key, name) for key, name in content.entries], begin, finds)


class Discard(NamedTuple):
    """Remove a token, if it still has this parent."""

    token: str
    parent: str

    def perform(self, ledger: SqliteLocal, connection: sqlite3.Connection) -> Any:
        return ledger.discard(self.token, self.parent)

    def describe(self, answer: Any) -> str:
        return f"discards the token {self.token}" if answer else f"finds the token {self.token} gone"


def sweeper(times: int, key: Key) -> Chore:
    """Removes tokens of a source whose outbox entry is gone: reads the token first, then looks for the entry."""

    def offers(content: Content) -> Sequence[tuple[str, str]]:
        return [(parent, token) for token, parent in sorted(content.parents.items()) if MARK in parent]

    def begin(parent: str, token: str) -> Generator[Any, Any, Outcome]:
        entity: plans.Entity = yield plans.Load(key)
        if parent not in entity.outbox:
            yield Discard(token, parent)
        return Outcome.TIDIED

    return Chore("the sweeper", times, offers, begin, "looks at the token")


class Transport:
    """All sets of parcels that can be leased, by number; number 0 is the empty set."""

    def __init__(self) -> None:
        self.free: Numbered[tuple[int, ...]] = Numbered(())
        self.parcels: Numbered[tuple[int, int]] = Numbered()
        """Of each parcel: its payload, and the number of the copy."""
        self.change = cache(self._changed)
        """The set with one parcel more, or with one less."""

    def arrive(self, free: int, payload: int, in_use: set[int]) -> int:
        """The set with a new parcel of this payload; ``in_use`` are the parcels that workers process."""
        copy = 0
        while (parcel := self.parcels.number((payload, copy))) in in_use or parcel in self.free[free]:
            copy += 1
        return self.change(free, parcel, True)

    def _changed(self, free: int, parcel: int, there: bool) -> int:
        others = [each for each in self.free[free] if each != parcel]
        return self.free.number(tuple(sorted([*others, parcel] if there else others)))


State = tuple[int, ...]
"""Budgets, world, free parcels, groups."""
BUDGETS, WORLD, PARCELS, GROUPS = range(4)


class Move(NamedTuple):
    """How one state led to another, for the history."""

    group: int
    """Its number; -1: the transport."""
    action: Action
    parcel: int = NO_PARCEL


class System:
    """One topology under one algorithm."""

    def __init__(self, topology: Topology, algorithm: Algorithm, invariant: Invariant | None = None) -> None:
        self.topology, self.algorithm = topology, algorithm
        self.handlers = Handlers()
        self.endings = endings(topology, self.handlers)
        first = [Message(f"m{number}", queue, body) for number, (queue, body) in enumerate(topology.messages, 1)]
        self.snapshots = StoreSnapshots(algorithm.tables, first, algorithm.tokens, algorithm.rows)
        self.payloads = Payloads(topology, algorithm, self.handlers)
        self.positions = Positions()
        self.worlds = Worlds(self, invariant)
        self.transport = Transport()
        chores = list(algorithm.chores)
        if topology.pumps and algorithm.recovery is not None:
            chores.append(pump(topology.pumps, algorithm.recovery))
        groups = [WorkerGroup(stage.endpoint, stage.workers) for stage in topology.stages]
        if (source := topology.source) is not None:
            groups.append(WorkerGroup(source.endpoint, source.workers))
            if topology.pumps and algorithm.sourced is plans.sourced:
                chores.append(sweeper(topology.pumps, Key(source.endpoint, source.name)))
        groups += [WorkerGroup(chore.who, 1, chore, CHORE + number) for number, chore in enumerate(chores)]
        self.groups = WorkerGroups(self, groups)
        # By cost and state of the budgets: their state after it, or -1 if this budget is used up.
        sizes = [
            1 + many for many in (topology.crashes, topology.expiries, topology.copies, *(c.times for c in chores))
        ]
        total, weight = prod(sizes), 1
        self._spend = [list(range(total))]
        for size in sizes:
            self._spend.append([number - weight if number // weight % size else -1 for number in range(total)])
            weight *= size
        self._leasable = cache(self._leasable_by)
        payloads, free = self.payloads.first(topology, first, self.snapshots.realm), 0
        for payload in payloads:
            free = self.transport.arrive(free, payload, set())
        world = ExploredWorld(0, WorldBooks(frozenset(), frozenset(payloads), frozenset(), ()))
        self.first: State = (len(self._spend[FREE]) - 1, self.worlds.number(world), free, *self.groups.idle)

    def resting(self, state: State) -> bool:
        return state[PARCELS] == 0 and list(state[GROUPS:]) == self.groups.idle

    def moves(self, state: State) -> Iterator[tuple[State, Move]]:
        """Every possible next move, with the state it leads to."""
        budgets, world, free = state[:GROUPS]
        for which in range(len(state) - GROUPS):
            at = GROUPS + which
            group = state[at]
            head, tail = state[GROUPS:at], state[at + 1 :]
            for action in self.groups.actions(world, group):
                _, _, _, world_then, group_then, cost, back, acknowledged, arrivals = action
                budgets_then = self._spend[cost][budgets]
                if budgets_then < 0:
                    continue
                then = free
                if acknowledged != NO_PARCEL:
                    then = self.transport.change(then, acknowledged, False)
                if back != NO_PARCEL:
                    then = self.transport.change(then, back, True)
                for payload in arrivals:
                    then = self.transport.arrive(then, payload, self._in_use(state, payload))
                yield (budgets_then, world_then, then, *head, group_then, *tail), Move(which, action)
            for parcel, rest in self._leasable(free, which):
                for job in self.payloads[self.transport.parcels[parcel][0]].jobs:
                    other, worker = self.groups.taking(group, job, parcel)
                    if other < 0:
                        break
                    action = Action("lease", IDLE, worker, world, other)
                    yield (budgets, world, rest, *head, other, *tail), Move(which, action, parcel)
        if self._spend[COPY][budgets] < 0:
            return
        for payload in sorted(self.worlds[world].books.sent):
            if self.payloads[payload].message is not None and self.payloads[payload].group >= 0:
                then = self.transport.arrive(free, payload, self._in_use(state, payload))
                move = Move(-1, Action("copy", IDLE, IDLE, world, 0, COPY), payload)
                yield (self._spend[COPY][budgets], world, then, *state[GROUPS:]), move

    def _in_use(self, state: State, payload: int) -> set[int]:
        return self.groups.parcels(state[GROUPS + self.payloads[payload].group])

    def _leasable_by(self, free: int, which: int) -> list[tuple[int, int]]:
        """The parcels that a group can lease, each with the set without it."""
        transport = self.transport
        mine = [n for n in transport.free[free] if self.payloads[transport.parcels[n][0]].group == which]
        return [(n, transport.change(free, n, False)) for n in mine]


assert (CRASH, EXPIRY, COPY, CHORE) == (1, 2, 3, 4), "System builds the budgets in this order"
