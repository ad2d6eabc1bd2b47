"""What all workers share: the content of the database, and the books that tell right from wrong.

The books know what no store knows: which messages changed a state, what was ever sent, which tokens were and are no
more. They are part of a state of the search, for what is right to do next may hang on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from onefold.engines.outbox.attempt import MARK
from onefold.engines.outbox.record import pack
from onefold.engines.outbox.steps import Acknowledge, Dispatch, Fresh, Load, Open, Outcome, Persist, Settle, Settled
from onefold.sim.explorer.images import Images
from onefold.sim.explorer.orders import Ending, plain
from onefold.sim.explorer.parcels import Parcels, fresh, name_of
from onefold.sim.explorer.places import Places
from onefold.sim.explorer.topology import Algorithm
from onefold.sim.explorer.verdicts import Offence, Wrong

_WRITES = (Persist, Settle)
Invariant = Callable[[Mapping[str, Any]], object]


class Books(NamedTuple):
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
        places: Places,
        endings: frozenset[Ending],
        algorithm: Algorithm,
        invariant: Invariant | None = None,
    ) -> None:
        self.contents: list[int] = []
        self.books: list[Books] = []
        self.offences: list[Offence | None] = []
        self._images, self._parcels, self._places = images, parcels, places
        self._endings, self._algorithm, self._invariant = endings, algorithm, invariant
        self._numbers: dict[tuple[int, Books, str], int] = {}
        self._performed: dict[tuple[int, int], tuple[int, Any, tuple[int, ...]]] = {}
        self._stepped: dict[tuple[int, int], Stepped] = {}
        self._rests: dict[int, Offence | None] = {}

    def first(self, sent: list[int]) -> int:
        """The world at the beginning."""
        return self._number(0, Books(frozenset(), frozenset(sent), frozenset(), ()))

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
            written = (type(step) in _WRITES or getattr(step, "writes", False)) and answer in (True, Settled.DONE)
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

    def _named(self, books: Books, place: int, step: Fresh) -> tuple[Books, tuple[str, ...]]:
        """Ids that nobody has seen: numbered by message and attempt, so that equal histories have equal ids."""
        name = self._places.jobs[place].name
        made = dict(books.made)
        made[name] = made.get(name, 0) + 1
        return books._replace(made=tuple(sorted(made.items()))), fresh(name, made[name], step.many)

    def _removed(self, before: int, after: int, books: Books) -> Books:
        if before == after:
            return books
        gone = self._images.contents[before].tokens - self._images.contents[after].tokens
        return books._replace(dead=books.dead | gone) if gone else books

    def _number(self, content: int, books: Books, offence: Offence | None = None) -> int:
        key = (content, books, offence.text if offence else "")
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.contents)
            self.contents.append(content)
            self.books.append(books)
            self.offences.append(offence or self._judge(content, books))
        return number

    def _judge(self, content: int, books: Books) -> Offence | None:
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
