"""Messages through their plan: one, or a batch of them in step.

`process` is the whole of it for who has a transport of their own: a message, a handler, two stores or one, and an
outcome. `Endpoint` and the consumer stand on the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from onefold.engines.outbox.attempt import PLANS, checkpointed
from onefold.engines.outbox.handling import Handler, KeyOf, check_name, check_token, key_of
from onefold.engines.outbox.record import Key, Message
from onefold.engines.outbox.steps import Outcome
from onefold.errors import Misuse
from onefold.ports import Delivery, EntityStore, Queue, TokenStore
from onefold.services.outbox.calling import HandlerFailed, Loop, calling
from onefold.stores.attempts import Job, World, run


def process(
    message: Message, handler: Handler, *, key: KeyOf, entities: EntityStore, tokens: TokenStore, queue: Queue,
    plan: str = "transactional", endpoint: str = "default",
) -> Outcome:  # fmt: skip
    """Attempt one message, once; whoever delivered it is told by the caller.

    Whatever the outcome is, but CONFLICT, the message need not come again. After CONFLICT or an error it must. What a
    handler raises is raised here, and nothing was changed. Endpoints that share a store need names of their own.
    """
    check_plan(plan)
    if plan == "transactional" and entities is not cast(object, tokens):
        raise Misuse("the plan 'transactional' needs entities and tokens in one database: these are two")
    where = Key(check_name(endpoint, "endpoint"), key_of(message, key))
    check_token(message.token)
    with closing(Loop()) as loop:
        (ended,) = attempt(World(entities, tokens, queue), plan, [Work(message, where, handler)], loop)
    return settled(ended)


@dataclass(frozen=True, slots=True)
class Work:
    """A message that is to be processed, and by whom."""

    message: Message
    key: Key
    call: Handler
    delivery: Delivery | None = None
    """What is acknowledged when it is done; None: nothing."""


def check_plan(plan: str) -> str:
    """The name of a plan, or `Misuse`."""
    if plan not in PLANS:
        raise Misuse(f"plan is {plan!r}, must be one of {', '.join(PLANS)}", plan=plan)
    return plan


def attempt(world: World, plan: str, works: Sequence[Work], loop: Loop) -> list[Outcome | Exception]:
    """Try each once, all in step: what each came to, or what stopped it. No two may be of one entity."""
    jobs = [
        Job(PLANS[plan](work.key, work.message), calling(work.call, work.message, loop), work.delivery)
        for work in works
    ]
    ended = run(world, jobs)
    if plan == "parented":
        _forgive(world, works, ended)
    return ended


def _forgive(world: World, works: Sequence[Work], ended: list[Outcome | Exception]) -> None:
    """A copy that comes too late need not please the handler, which this plan calls before it looks for the token.

    So where one failed and there is no token, the message is a duplicate. `checkpointed` looks first, and tidies up.
    """
    failed = [number for number, each in enumerate(ended) if isinstance(each, HandlerFailed)]
    if not failed:
        return
    try:
        held = world.tokens.holds([works[number].message.token for number in failed])
    except Exception as error:
        for number in failed:
            ended[number] = error
        return
    late = [number for number, there in zip(failed, held, strict=True) if not there]
    jobs = [Job(checkpointed(works[n].key, works[n].message), None, works[n].delivery) for n in late]
    for number, outcome in zip(late, run(world, jobs), strict=True):
        ended[number] = outcome


def settled(ended: Outcome | Exception) -> Outcome:
    """The outcome, or the error raised; a handler's own instead of ours around it."""
    if isinstance(ended, HandlerFailed) and ended.__cause__ is not None:
        raise ended.__cause__
    if isinstance(ended, Exception):
        raise ended
    return ended
