"""``onefold outbox``: what waits in outboxes, and what fills them."""

from dataclasses import asdict
from typing import Annotated, TypeAlias

import typer

from onefold.cli.outbox_feed import feed
from onefold.cli.outbox_stores import (
    LOOKED_MAX,
    Letter,
    MaybeTransport,
    age,
    document,
    letters,
    opened,
    sends,
    table,
)
from onefold.cli.output import AsJson, emit_json, people
from onefold.cli.serve_desk import Store, Tokens, Transport
from onefold.cli.tokens import letter_document
from onefold.engines.outbox.handling import check_name
from onefold.ports import Stranded
from onefold.report.text import foreign
from onefold.stores.counters import wall_ms

__all__ = ["feed", "ls", "recover"]

Of: TypeAlias = Annotated[str | None, typer.Option("--endpoint", help="Of this endpoint only.")]


def ls(
    store: Store,
    transport: MaybeTransport = None,
    endpoint: Of = None,
    older_than_s: Annotated[
        float, typer.Option(min=0, help="Leave out what is younger: somebody is probably at it.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=1, max=LOOKED_MAX, help="How many to show of each.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Show what is in outboxes, the oldest first; with --transport the dead letters, too.

    An entry is there while a message is being finished. One that stays was left by a worker that died: the next
    delivery of its message finishes it, or a consumer's pump, or `onefold outbox recover`.
    """
    now = wall_ms()
    with opened(store, None, transport) as stores:
        assert stores.entities is not None
        before_ms = now - round(older_than_s * 1000) + 1
        entries = stores.entities.stranded(before_ms, limit, endpoint and check_name(endpoint, "endpoint"))
        dead = None if stores.queue is None else letters(stores.queue)[:limit]
    if as_json:
        told = {"entries": [document(each, now) for each in entries]}
        emit_json(told if dead is None else told | {"dead_letters": [letter_document(each, now) for each in dead]})
    _tell_entries(entries, limit, now)
    if dead is not None:
        _tell_letters(dead, limit, now)


def _tell_entries(entries: list[Stranded], limit: int, now_ms: int) -> None:
    shown = table("entity", "message or mark", ">age", "has still to send")
    for each in entries:
        shown.add_row(
            foreign(each.key), foreign(each.name), age(now_ms - each.at_ms), foreign(sends(each.entry))
        )  # fmt: skip
    if entries:
        people.print(shown)
    people.print(f"{_many(len(entries), limit)} in outboxes", markup=False)


def _tell_letters(dead: list[Letter], limit: int, now_ms: int) -> None:
    shown = table("queue", "token", ">age", "why")
    for each in dead:
        buried = each.buried
        shown.add_row(
            foreign(buried.queue), foreign(each.token or "-"), age(now_ms - buried.at_ms), foreign(buried.reason, 300)
        )  # fmt: skip
    if dead:
        people.print(shown)
    people.print(f"{_many(len(dead), limit)} set aside as dead letters", markup=False)


def _many(count: int, limit: int) -> str:
    return f"{count:,} or more" if count == limit else f"{count:,}"


def recover(
    store: Store,
    transport: Transport,
    tokens: Tokens = None,
    endpoint: Of = None,
    older_than_s: Annotated[
        float, typer.Option(min=0, help="Leave what is younger to whoever is at it; it would do no harm.")
    ] = 60,
    as_json: AsJson = False,
) -> int:
    """Finish what is left in outboxes: send what is to be sent, once, and remove tokens that were made for nothing.

    Consumers do the same from time to time. It can run at any time, and beside them. Exit code 1 if somebody else was
    at an entry: then it is theirs, or the next call's.
    """
    from onefold.services.outbox.recovery import recover_left
    from onefold.stores.attempts import World

    if endpoint is not None:
        check_name(endpoint, "endpoint")
    with opened(store, tokens, transport) as stores:
        assert stores.entities is not None
        assert stores.queue is not None
        world = World(stores.entities, stores.tokens, stores.queue)
        done = recover_left(world, wall_ms(), older_than_s, endpoint)
    people.print(
        f"{done.finished:,} finished, {done.conflicts:,} left to somebody else, {done.swept:,} useless tokens removed",
        markup=False,
    )
    if as_json:
        emit_json({name: count for name, count in asdict(done).items() if name != "purged"})
    return 1 if done.conflicts else 0
