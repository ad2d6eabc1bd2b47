"""The oracle: what comes out when nothing goes wrong, for every order in which messages can be taken.

Plain: one message after the other, each by one call of its handler, no store and no plan. Whatever faults there are,
in the end the world must look like one of these.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any, Final, NamedTuple

from onefold.engines.outbox.handling import key_of, outgoings
from onefold.engines.outbox.record import Key, Message, Outgoing, pack
from onefold.errors import Misuse
from onefold.sim.explorer.handlers import Handlers
from onefold.sim.explorer.topology import Topology

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
