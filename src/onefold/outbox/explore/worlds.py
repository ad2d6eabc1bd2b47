"""What all workers share: the content of the database, and the books that tell right from wrong.

The books know what no store knows: which messages changed a state, what was ever sent, which tokens were and are no
more. They are part of a state of the search, for what is right to do next may hang on them.

The real store, at any of the contents that were ever reached.

A database in memory is copied out after each write and copied in before the next step. So two workers can go on from
one content in two ways, and the store that they ask is the one that is shipped. Each pair of content and step is
performed once; whoever comes there again is told what came of it.

Calls the handler that is on trial: each call with equal input is made twice, and never again.

Handlers shall be functions of state and message. One that is not (it reads a clock, or a counter outside) does no harm
to the plans, for what counts is what was written; but the explorer could not go the same way again. So the first answer
is kept, and the difference is told.

The oracle: what comes out when nothing goes wrong, for every order in which messages can be taken.

Plain: one message after the other, each by one call of its handler, no store and no plan. Whatever faults there are,
in the end the world must look like one of these.

What is on its way, and what a worker does with it: each message, mark and chore as a job with a name.

Names are for people and for the books: ``m1`` is the first message, ``m1.2`` the second one that it sends, ``mark1``
what a source has at its first mark. A token is the name with the number of the attempt that made it: ``m1.2@3``. So a
message that is sent under two tokens is found out by its name.

Where a worker is in its attempt: its job, and all the answers that it was given so far.

A generator cannot be copied, but it can be led to the same place again: the same answers bring it there. So a place is
the job with its answers, and has a number; the generator is run once per place, to see what it asks for next. The
handler is called at once where it is asked for: what nobody else can see needs no step of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast, runtime_checkable

from onefold.errors import Misuse
from onefold.outbox.explore.topology import (
    Algorithm,
    Content,
    Handling,
    Offence,
    Rows,
    Stage,
    Topology,
    TopologySource,
    Wrong,
    read,
)
from onefold.outbox.plans import MARK, Handler, Taken, handled, key_of, outgoings
from onefold.outbox.ports import Parcel, Queue
from onefold.outbox.runner import RunnerWorld
from onefold.outbox.steps import (
    Acknowledge,
    Attempt,
    Birth,
    Create,
    Dispatch,
    Finish,
    Fresh,
    Handle,
    Handled,
    Key,
    Load,
    Message,
    Open,
    Outcome,
    Outgoing,
    Persist,
    Remove,
    Settle,
    Settled,
    pack,
    pack_message,
    unpack_message,
)
from onefold.outbox.stores.sqlite import SqliteLedger

PAGE_BYTES: Final = 1_024
"""Small pages make small copies."""
_WRITES: Final = frozenset({Create, Finish, Persist, Remove, Settle})


@runtime_checkable
class OwnStep(Protocol):
    """A step that no shipped plan has: of a specimen, a mutant or a chore. It knows how it is done."""

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> Any:
        """Do it, and give the answer."""
        ...

    def told(self, answer: Any) -> str:
        """What happened, for a history."""
        ...


class _Outbound:
    """Where the transport would be: keeps what it is given until somebody takes it."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []

    def send(self, parcels: Sequence[Parcel]) -> None:
        self.parcels += parcels


class Images:
    """All contents so far, by number; the first is number 0."""

    def __init__(self, tables: Iterable[str], first: Sequence[Birth]) -> None:
        self.contents: list[Content] = []
        self.performed = 0
        self._images: list[bytes] = []
        self._numbers: dict[Rows, int] = {}
        self._connection = db = sqlite3.connect(":memory:", isolation_level=None)
        db.execute(f"pragma page_size={PAGE_BYTES}")
        for statement in tables:
            db.execute(statement)
        self._ledger = SqliteLedger.over(db, lambda: 0)  # the clock stands: time is no part of a state
        self._outbound = _Outbound()
        self._world = RunnerWorld(self._ledger, self._ledger, cast(Queue, self._outbound))
        names = db.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
        self._reads = [(name, f'select * from "{name}"') for (name,) in names]  # noqa: S608 # names of our own schema
        self._ledger.create(first)
        self._here = self._number()

    @property
    def realm(self) -> str:
        """The name of the token store."""
        return self._ledger.realm

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()

    def perform(self, content: int, step: Any) -> tuple[int, Any, list[Parcel]]:
        """Do one step there: the content after it, the answer, and what was sent."""
        self.performed += 1
        if self._here != content:
            self._connection.deserialize(self._images[content])
            self._here = content
        if isinstance(step, OwnStep):
            answer = step.perform(self._ledger, self._connection)
        else:
            (answer,) = self._world.perform(type(step), [step])
        if type(step) in _WRITES or isinstance(step, OwnStep):
            self._here = self._number()
        parcels, self._outbound.parcels = self._outbound.parcels, []
        return self._here, answer, parcels

    def _number(self) -> int:
        """Of the content that the connection has now."""
        execute = self._connection.execute
        # The order of the keys, for the tables have no other.
        rows = tuple((name, tuple(execute(sql))) for name, sql in self._reads)
        number = self._numbers.get(rows)
        if number is None:
            number = self._numbers[rows] = len(self.contents)
            self.contents.append(read(rows))
            self._images.append(self._connection.serialize())
        return number


class HandlerRaised(Exception):
    """The handler did not answer, or answered what cannot be kept."""

    def __init__(self, message: Message, state: Any, error: Exception) -> None:
        self.message, self.state, self.error = message, state, error
        told = str(error) if type(error).__module__.startswith("onefold") else f"{type(error).__name__}: {error}"
        super().__init__(f"the handler fails on {pack(message.body)} with the state {pack(state)}: {told}")


class Handlers:
    """Remembers every answer."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self._answers: dict[tuple[Handler, str, str, str, str], Handled] = {}
        """By handler, queue, name and body of the message, and state. Not by its token: which attempt made that is
        chance, and an answer that hangs on it would differ from the one without faults."""

    def answer(self, call: Handler, state: Any, message: Message) -> Handled:
        """What the handler makes of it."""
        packed = pack(state)
        key = (call, message.to, message.token.partition("@")[0], pack(message.body), packed)
        if key not in self._answers:
            first, again = (_called(call, json.loads(packed), message) for _ in range(2))
            self._answers[key] = first
            if first != again:
                where = f"{message.to}: for {pack(message.body)} with the state {packed}"
                self._find(f"not repeatable: {where} the handler answered {_told(first)}, then {_told(again)}")
        return self._answers[key]

    def _find(self, finding: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


FINDINGS_MAX = 5


def _called(call: Handler, state: Any, message: Message) -> Handled:
    body = json.loads(pack(message.body))
    given = Message(message.token, message.to, body, message.cause, message.origin, message.realm)
    try:
        answer = call(state, given)
        if inspect.isawaitable(answer):
            answer = _awaited(answer)
        return handled(answer, message)
    except Exception as error:
        raise HandlerRaised(message, state, error) from error


def _awaited(answer: Any) -> Any:
    async def waited() -> Any:
        return await answer

    # In a thread of its own: whoever explores may have a loop running.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, waited()).result()


def _told(answer: Handled) -> str:
    sent = [f"{out.to} {pack(out.body)}" for out in answer.outgoing]
    return f"{pack(answer.state)} and sent {', '.join(sent) or 'nothing'}"


WORLDS_MAX: Final = 50_000
"""Worlds on the way: eight messages in any order pass through some thousands."""


class Ending(NamedTuple):
    """A world at rest."""

    states: frozenset[tuple[Key, str]]
    applied: frozenset[str]
    """The names of the messages that were processed."""
    sent: frozenset[tuple[str, str, str]]
    """What went to queues that nobody handles here: name, queue, body."""


class _Serial(NamedTuple):
    """A world on the way: what is still to be taken, and what came of the rest."""

    waiting: frozenset[tuple[str, str, str]]
    mark: int
    ending: Ending


def plain(text: str) -> str:
    """Without the numbers of attempts: which one got through is chance, and a handler may keep the token it saw.

    >>> plain('{"paid":"m1.1@2"}')
    '{"paid":"m1.1"}'
    """
    return _ATTEMPT.sub(r"\1", text)


_ATTEMPT: Final = re.compile(r"(\b(?:m|mark)\d+(?:\.\d+)*)@\d+")


def endings(topology: Topology, handlers: Handlers) -> frozenset[Ending]:
    """All ways in which it can end. What a handler raises goes through."""
    messages = enumerate(topology.messages, 1)
    waiting = frozenset((f"m{number}", queue, pack(body)) for number, (queue, body) in messages)
    first = _Serial(waiting, 0, Ending(frozenset(), frozenset(), frozenset()))
    seen, todo, found = {first}, deque([first]), set()
    while todo:
        world = todo.popleft()
        following = _following(topology, handlers, world)
        if not following:
            found.add(world.ending)
        for after in following:
            if after not in seen:
                seen.add(after)
                todo.append(after)
        if len(seen) > WORLDS_MAX:
            raise Misuse(f"more than {WORLDS_MAX} worlds without a single fault: give fewer messages")
    return frozenset(found)


def _following(topology: Topology, handlers: Handlers, world: _Serial) -> list[_Serial]:
    served = {handling.queue: (stage, handling) for stage in topology.stages for handling in stage.handlings}
    found = []
    for parcel in sorted(world.waiting):
        name, queue, body = parcel
        rest = world._replace(waiting=world.waiting - {parcel})
        if queue not in served:
            found.append(rest._replace(ending=world.ending._replace(sent=world.ending.sent | {parcel})))
            continue
        stage, handling = served[queue]
        message = Message(name, queue, json.loads(body))
        key = Key(stage.endpoint, key_of(message, handling.key))
        states = dict(world.ending.states)
        made = handlers.answer(handling.call, json.loads(states.pop(key, "null")), message)
        ending = Ending(_with(states, key, made.state), world.ending.applied | {name}, world.ending.sent)
        found.append(_Serial(rest.waiting | _named(name, made.outgoing), world.mark, ending))
    source = topology.source
    if source is not None and world.mark < len(source.marks):
        mark = world.mark + 1
        outgoing = _named(f"mark{mark}", outgoings(source.marks[world.mark], source.name))
        marked = _with(dict(world.ending.states), Key(source.endpoint, source.name), {"mark": mark})
        found.append(_Serial(world.waiting | outgoing, mark, world.ending._replace(states=marked)))
    return found


def _with(states: dict[Key, str], key: Key, state: Any) -> frozenset[tuple[Key, str]]:
    if state is None:
        states.pop(key, None)
    else:
        states[key] = plain(pack(state))
    return frozenset(states.items())


def _named(name: str, outgoing: tuple[Outgoing, ...]) -> frozenset[tuple[str, str, str]]:
    return frozenset((f"{name}.{place}", out.to, plain(pack(out.body))) for place, out in enumerate(outgoing, 1))


@dataclass(frozen=True, slots=True)
class ExplorerJob:
    """What a worker is at."""

    name: str
    shown: str
    begin: Callable[[], Attempt]
    answer: Callable[[Any], Handled] | None = None
    """Calls the handler."""
    acknowledges: bool = True
    """False: its end is its acknowledgement, as with sources and chores."""
    then: int = -1
    """The parcel that comes when this one is acknowledged: the next mark."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A payload that was sent, whatever the number of its copies."""

    crew: int
    """Whose workers take it; -1: nobody here."""
    jobs: tuple[ExplorerJob, ...]
    """What a worker can do with it: one per plan."""
    message: Message | None

    @property
    def shown(self) -> str:
        """What it is called in a history."""
        return self.jobs[0].shown


def name_of(token: str) -> str:
    """The name of the message that has this token, or of the mark whose entry has this name.

    >>> name_of("m1.2@3"), name_of("shop/orders.log#41")
    ('m1.2', 'mark41')
    """
    mark = token.rpartition(MARK)[2] if MARK in token else ""
    return f"mark{mark}" if mark else token.partition("@")[0]


def fresh(name: str, attempt: int, many: int) -> tuple[str, ...]:
    """The ids of the n-th attempt at a message: its own, and one for each message that is sent.

    >>> fresh("m1", 2, 3)
    ('m1@2', 'm1.1@2', 'm1.2@2')
    """
    return (f"{name}@{attempt}", *(f"{name}.{number}@{attempt}" for number in range(1, many)))


class Parcels:
    """All payloads that were ever sent, by number."""

    def __init__(self, topology: Topology, algorithm: Algorithm, handlers: Handlers) -> None:
        self.posted: list[Posted] = []
        self._algorithm = algorithm
        self._handlers = handlers
        self._numbers: dict[bytes, int] = {}
        self._served: Mapping[str, tuple[int, Stage, Handling]] = {
            handling.queue: (crew, stage, handling)
            for crew, stage in enumerate(topology.stages)
            for handling in stage.handlings
        }

    def first(self, topology: Topology, realm: str) -> list[int]:
        """What is there at the beginning."""
        messages = enumerate(topology.messages, 1)
        numbers = [
            self.number(pack_message(Message(f"m{place}", queue, body, realm=realm)))
            for place, (queue, body) in messages
        ]
        if topology.source is not None:
            numbers.append(self._marks(topology.source, len(topology.stages)))
        return numbers

    def number(self, payload: bytes) -> int:
        """Of this payload."""
        if payload not in self._numbers:
            self._numbers[payload] = len(self.posted)
            self.posted.append(self._post(unpack_message(payload)))
        return self._numbers[payload]

    def _post(self, message: Message) -> Posted:
        name = name_of(message.token)
        served = self._served.get(message.to)
        if served is None:
            return Posted(-1, (ExplorerJob(name, message.token, _nothing),), message)
        crew, stage, handling = served
        key = Key(stage.endpoint, key_of(message, handling.key))
        answer = partial(self._answer, handling, message)
        plans = (self._algorithm.plan, *self._algorithm.others)
        jobs = tuple(ExplorerJob(name, message.token, partial(plan, key, message), answer) for plan in plans)
        return Posted(crew, jobs, message)

    def _answer(self, handling: Handling, message: Message, state: Any) -> Handled:
        return self._handlers.answer(handling.call, state, message)

    def _marks(self, source: TopologySource, crew: int) -> int:
        """The first mark of a source; each one leads to the next."""
        assert self._algorithm.sourced is not None
        following = -1
        for mark in range(len(source.marks), 0, -1):
            outgoing = outgoings(source.marks[mark - 1], source.name)
            taken = Taken(Key(source.endpoint, source.name), mark, outgoing)
            begin = partial(self._algorithm.sourced, taken)
            job = ExplorerJob(f"mark{mark}", f"mark{mark}", begin, None, False, following)
            self.posted.append(Posted(crew, (job,), None))
            following = len(self.posted) - 1
        return following


def _nothing() -> Attempt:
    """What nobody handles is never begun."""
    yield Acknowledge()
    return Outcome.DUPLICATE


class WorldStores:
    """All places so far, by number: one list per thing that is known of each."""

    def __init__(self) -> None:
        self.jobs: list[ExplorerJob] = []
        self.answers: list[tuple[Any, ...]] = []
        self.steps: list[Any] = []
        """What is asked for; None: it has ended."""
        self.step_numbers: list[int] = []
        """Equal steps have equal numbers."""
        self.outcomes: list[Outcome | None] = []
        self.carries: list[bool] = []
        """The handler was called, and what it made is not written yet."""
        self.called: list[bool] = []
        """The handler was called on the way from the place before."""
        self._begun: dict[int, int] = {}
        self._after: dict[tuple[int, str], int] = {}
        self._numbers: dict[str, int] = {}

    def begin(self, job: ExplorerJob) -> int:
        """Where a job begins."""
        if id(job) not in self._begun:
            self._begun[id(job)] = self._place(job, (), False)
        return self._begun[id(job)]

    def after(self, place: int, answer: Any, *, written: bool = False) -> int:
        """Where this answer leads; ``written``: with it, what the handler made is in the store."""
        key = (place, repr(answer))
        if key not in self._after:
            carries = self.carries[place] and not written
            self._after[key] = self._place(self.jobs[place], (*self.answers[place], answer), carries)
        return self._after[key]

    def _place(self, job: ExplorerJob, answers: tuple[Any, ...], carries: bool) -> int:
        attempt, called = job.begin(), False
        step: Any = None
        outcome: Outcome | None = None
        try:
            step = attempt.send(None)
            for answer in answers:
                step = attempt.send(answer)
            while isinstance(step, Handle):
                assert job.answer is not None, "this job has nothing to handle"
                made = job.answer(step.state)
                answers, carries, called = (*answers, made), True, True
                step = attempt.send(made)
        except StopIteration as stop:
            step, outcome = None, stop.value
        attempt.close()
        return self._keep(job, answers, step, outcome, carries, called)

    def _keep(
        self,
        job: ExplorerJob,
        answers: tuple[Any, ...],
        step: Any,
        outcome: Outcome | None,
        carries: bool,
        called: bool,
    ) -> int:
        self.jobs.append(job)
        self.answers.append(answers)
        self.steps.append(step)
        self.step_numbers.append(self._numbers.setdefault(f"{type(step).__name__} {step!r}", len(self._numbers)))
        self.outcomes.append(outcome)
        self.carries.append(carries)
        self.called.append(called)
        return len(self.jobs) - 1


_WORLD_WRITES = (Persist, Settle)
Invariant = Callable[[Mapping[str, Any]], object]


class WorldBooks(NamedTuple):
    """What happened so far, as far as it matters."""

    applied: frozenset[str]
    """The names of messages that changed a state."""
    sent: frozenset[int]
    """All parcels that were ever sent."""
    dead: frozenset[str]
    """Tokens that were, and are no more."""
    made: tuple[tuple[str, int], ...]
    """How many attempts at a message asked for ids."""


class Stepped(NamedTuple):
    """What came of a step."""

    world: int
    place: int
    come: tuple[int, ...]
    """Parcels that are on their way to a crew now."""
    acknowledged: bool
    called: bool
    """The handler was called at once after it."""


class Worlds:
    """All of them so far, by number."""

    def __init__(
        self,
        images: Images,
        parcels: Parcels,
        places: WorldStores,
        endings: frozenset[Ending],
        algorithm: Algorithm,
        invariant: Invariant | None = None,
    ) -> None:
        self.contents: list[int] = []
        self.books: list[WorldBooks] = []
        self.offences: list[Offence | None] = []
        self._images, self._parcels, self._places = images, parcels, places
        self._endings, self._algorithm, self._invariant = endings, algorithm, invariant
        self._numbers: dict[tuple[int, WorldBooks, str], int] = {}
        self._performed: dict[tuple[int, int], tuple[int, Any, tuple[int, ...]]] = {}
        self._stepped: dict[tuple[int, int], Stepped] = {}
        self._rests: dict[int, Offence | None] = {}

    def first(self, sent: list[int]) -> int:
        """The world at the beginning."""
        return self._number(0, WorldBooks(frozenset(), frozenset(sent), frozenset(), ()))

    def stepped(self, world: int, place: int) -> Stepped:
        """What comes of the next step of a worker that is at this place."""
        found = self._stepped.get((world, place))
        if found is None:
            found = self._stepped[world, place] = self._step(world, place, self._places.steps[place])
        return found

    def cut_off(self, world: int, place: int, many: tuple[int, ...]) -> Stepped:
        """A worker that dies while it sends: only these of its messages are taken."""
        step = self._places.steps[place]
        return self._step(world, place, Dispatch(tuple(step.messages[number] for number in many)))

    def _step(self, world: int, place: int, step: Any) -> Stepped:
        content, books, offence = self.contents[world], self.books[world], None
        come: tuple[int, ...] = ()
        written = False
        if isinstance(step, Fresh):
            after, books, answer = content, *self._named(books, place, step)
        elif isinstance(step, Acknowledge):
            after, answer = content, None
        else:
            after, answer, come = self._perform(content, place, step)
            written = (type(step) in _WORLD_WRITES or getattr(step, "writes", False)) and answer in (True, Settled.DONE)
            books = self._removed(content, after, books)
            name = self._places.jobs[place].name
            if written and self._places.carries[place]:
                if name in books.applied:
                    offence = Offence(Wrong.APPLIED_TWICE, f"{name} is applied twice: it counts double.")
                books = books._replace(applied=books.applied | {name})
        # What was made before a new look at the entity is put aside: it will not be written.
        place = self._places.after(place, answer, written=written or type(step) in (Load, Open))
        called = self._places.called[place]
        while isinstance(named := self._places.steps[place], Fresh):
            books, answer = self._named(books, place, named)
            place = self._places.after(place, answer)
            called = called or self._places.called[place]
        acknowledged = isinstance(step, Acknowledge) or self._ended(place)
        then = self._places.jobs[place].then
        if acknowledged and then >= 0 and then not in books.sent:
            come = (*come, then)
        if come:
            books = books._replace(sent=books.sent | set(come))
            come = tuple(payload for payload in come if self._parcels.posted[payload].crew >= 0)
        return Stepped(self._number(after, books, offence), place, come, acknowledged, called)

    def _ended(self, place: int) -> bool:
        outcome = self._places.outcomes[place]
        return not self._places.jobs[place].acknowledges and outcome not in (None, Outcome.CONFLICT)

    def _perform(self, content: int, place: int, step: Any) -> tuple[int, Any, tuple[int, ...]]:
        if step is not self._places.steps[place]:  # only a part of it: not kept
            after, answer, sent = self._images.perform(content, step)
            return after, answer, tuple(self._parcels.number(parcel.payload) for parcel in sent)
        key = (content, self._places.step_numbers[place])
        found = self._performed.get(key)
        if found is None:
            after, answer, sent = self._images.perform(content, step)
            found = after, answer, tuple(self._parcels.number(parcel.payload) for parcel in sent)
            self._performed[key] = found
        return found

    def _named(self, books: WorldBooks, place: int, step: Fresh) -> tuple[WorldBooks, tuple[str, ...]]:
        """Ids that nobody has seen: numbered by message and attempt, so that equal histories have equal ids."""
        name = self._places.jobs[place].name
        made = dict(books.made)
        made[name] = made.get(name, 0) + 1
        return books._replace(made=tuple(sorted(made.items()))), fresh(name, made[name], step.many)

    def _removed(self, before: int, after: int, books: WorldBooks) -> WorldBooks:
        if before == after:
            return books
        gone = self._images.contents[before].tokens - self._images.contents[after].tokens
        return books._replace(dead=books.dead | gone) if gone else books

    def _number(self, content: int, books: WorldBooks, offence: Offence | None = None) -> int:
        key = (content, books, offence.text if offence else "")
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.contents)
            self.contents.append(content)
            self.books.append(books)
            self.offences.append(offence or self._judge(content, books))
        return number

    def _judge(self, content: int, books: WorldBooks) -> Offence | None:
        """What must hold in every world."""
        back = self._images.contents[content].tokens & books.dead
        if back:
            return Offence(Wrong.TOKEN_BACK, f"the token {min(back)} was removed, and exists again.")
        return self._sent_once(books.sent) or self._asked(content)

    def _sent_once(self, sent: frozenset[int]) -> Offence | None:
        seen: dict[str, Any] = {}
        for number in sorted(sent):
            message = self._parcels.posted[number].message
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
        return None

    def _asked(self, content: int) -> Offence | None:
        if self._invariant is None:
            return None
        values = self._images.contents[content].values
        try:
            holds = self._invariant(values) is not False
            told = ""
        except AssertionError as error:
            holds, told = False, f" ({str(error).splitlines()[0]})" if str(error) else ""
        return None if holds else Offence(Wrong.INVARIANT, f"the invariant does not hold for {pack(values)}{told}.")

    def at_rest(self, world: int) -> Offence | None:
        """What must hold when nothing is on its way and nobody is at work."""
        if world not in self._rests:
            self._rests[world] = self._rest(world)
        return self._rests[world]

    def _rest(self, world: int) -> Offence | None:
        content, books = self._images.contents[self.contents[world]], self.books[world]
        outside = [m for n in books.sent if self._parcels.posted[n].crew < 0 and (m := self._parcels.posted[n].message)]
        sent = frozenset((name_of(m.token), m.to, plain(pack(m.body))) for m in outside)
        states = frozenset((key, plain(text)) for key, text in content.states.items())
        ending = Ending(states, books.applied, sent)
        if content.entries and self._algorithm.tidy:
            return Offence(Wrong.ENTRY_LEFT, f"at rest, the outbox entry {content.entries[0][1]} is left for ever.")
        if ending not in self._endings:
            return self._differs(ending)
        wanted = {message.token for message in outside} if self._algorithm.tokens else set()
        for token in sorted(wanted - content.tokens):
            return Offence(Wrong.LOST, f"at rest, {token} was sent and has no token: nobody will process it.")
        # What a late source left is swept by whoever finds that its outbox entry is gone: see `chores.sweeper`.
        for token in sorted(content.tokens - wanted):
            if self._algorithm.tidy and MARK not in content.parents.get(token, ""):
                return Offence(Wrong.TOKEN_LEFT, f"at rest, the token {token} is left for ever.")
        return None

    def _differs(self, ending: Ending) -> Offence:
        for name in sorted(frozenset.intersection(*(each.applied for each in self._endings)) - ending.applied):
            return Offence(Wrong.LOST, f"at rest, {name} was never applied: it is lost.")
        for name, to, _ in sorted(frozenset.intersection(*(each.sent for each in self._endings)) - ending.sent):
            return Offence(Wrong.LOST, f"at rest, {name} was never sent to {to}: it is lost.")
        nearest = min(self._endings, key=lambda each: (len(each.states ^ ending.states), sorted(each.states)))
        found, wanted = (_states(each.states) for each in (ending, nearest))
        orders = "the only order" if len(self._endings) == 1 else "any order"
        return Offence(
            Wrong.STATE, f"at rest there is {found}, which {orders} without faults would not give: {wanted}."
        )


def _states(states: frozenset[tuple[Any, str]]) -> str:
    return ", ".join(f"{key} = {text}" for key, text in sorted(states)) or "no entity"
