"""``onefold tokens``: the messages in flight, by their tokens; and what to do with dead letters, which keep theirs."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeAlias

import typer

from onefold.cli.options import (
    LOOKED_MAX,
    DeadLetter,
    MaybeStore,
    MaybeTransport,
    Store,
    TokenContext,
    Tokens,
    Transport,
    age,
    document,
    known,
    letters,
    opened,
    opened_queue,
    sends,
    table,
)
from onefold.cli.output import AsJson, emit_json, people
from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox.plans import check_name
from onefold.outbox.ports import Token, TokenStore
from onefold.outbox.steps import Removal
from onefold.report.text import foreign

REASON_SHOWN: Final = 300
UNSEEN: Final = f"there are more than {LOOKED_MAX:,} outbox entries or dead letters, and not all were looked at"
Name: TypeAlias = Annotated[str, typer.Argument(metavar="TOKEN", help="The token: the name of its message.")]


def ls(
    store: MaybeStore = None,
    tokens: Tokens = None,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Only those that were made for a message whose own token is gone.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many to show.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Show the tokens there are, by name: one for each message that is not processed yet.

    With --store, also which of them have an entry in an outbox: their message has changed the state, and what it sends
    is being sent.
    """
    now = wall_ms()
    with opened(store, tokens) as stores:
        found = stores.tokens.listed(limit=limit, orphans=orphans)
        live = stores.tokens.live()
        begun = None if stores.entities is None else {entry.name for entry in stores.entries()}
    if as_json:
        rows = [_document(each, now) | ({} if begun is None else {"begun": each.token in begun}) for each in found]
        emit_json({"tokens": live.tokens, "shown": len(found), "listed": rows})
    shown = table("token", "to", ">age", "made for", *([] if begun is None else ["in an outbox"]))
    for each in found:
        mark = [] if begun is None else ["yes" if each.token in begun else ""]
        shown.add_row(foreign(each.token), foreign(each.to), age(now - each.at_ms), foreign(each.parent), *mark)
    if found:
        people.print(shown)
    oldest = "" if live.oldest_ms is None else f", the oldest made {age(now - live.oldest_ms)} ago"
    what = (
        f"{len(found):,} orphans shown; " if orphans else f"{len(found):,} shown; " if len(found) < live.tokens else ""
    )
    people.print(f"{what}{live.tokens:,} tokens{oldest}", markup=False)


def show(
    token: Name, store: Store, tokens: Tokens = None, transport: MaybeTransport = None, as_json: AsJson = False
) -> int:
    """Show one token, what is in an outbox for it, and with --transport its dead letter. Exit 1 if there is nothing."""
    check_name(token, "token")
    now = wall_ms()
    with opened(store, tokens, transport) as stores:
        found = known(stores, token)
    if as_json:
        emit_json(
            {
                "token": None if found.token is None else _document(found.token, now),
                "entry": None if found.own is None else document(found.own, now),
                "sent_by": None if found.sender is None else document(found.sender, now),
                "dead_letters": [letter_document(each, now) for each in found.letters],
                "all_seen": found.all_seen,
            }
        )
    told = table("", "")
    for name, value in _lines(found, token, now):
        told.add_row(name, foreign(value, REASON_SHOWN))
    people.print(told)
    if not found.all_seen:
        people.print(UNSEEN, markup=False)
    return 0 if found.token or found.own or found.sender or found.letters else 1


def discard(
    store: Store,
    transport: Transport,
    token: Annotated[str | None, typer.Argument(metavar="[TOKEN]", help="The token: the name of its message.")] = None,
    tokens: Tokens = None,
    unreadable: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Instead, dead letters of a queue that hold no message at all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a token, and its dead letter: the message is never processed.

    Refused if the message has changed the state already and has still something to send: recover that first.
    """
    if (token is None) == (unreadable is None):
        raise Misuse("name one token, or a queue by --unreadable: one of them says what is removed")
    with opened(store, tokens, transport) as stores:
        assert stores.queue is not None
        if token is None:
            found = TokenContext(
                None, None, None, tuple(each for each in letters(stores.queue, unreadable) if not each.message), True
            )
        else:
            found = known(stores, check_name(token, "token"))
        told = _check_discard(found, token, stores.tokens.realm)
        if not yes:
            _ask(told)
        # The token first: a dead letter without one does no harm.
        if found.token is not None:
            _remove(stores.tokens, found.token, in_hand=bool(stores.queue.waiting().get(found.token.to)))
        stores.queue.dig_up([each.buried for each in found.letters], deliver=False)
    people.print(f"removed: {told}", markup=False, soft_wrap=True)
    if as_json:
        emit_json({"token": token, "removed": found.token is not None, "dead_letters": len(found.letters)})


def _remove(tokens: TokenStore, token: Token, *, in_hand: bool) -> None:
    """Where nothing waits nobody can be at it: what was made for it goes with it. Else it may be just in time."""
    if in_hand:
        tokens.discard(token.token)
    else:
        tokens.remove([Removal(token.token, "")])


def _ask(what: str) -> None:
    if not sys.stdin.isatty():
        raise Misuse(f"{what}: would be removed for good, and there is nobody to ask: say --yes")
    people.print(f"{what}: this cannot be undone", markup=False, soft_wrap=True)
    if people.input("Remove it? [y/N] ", markup=False).strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _check_discard(found: TokenContext, token: str | None, realm: str) -> str:
    """What would be removed, in words; `Misuse` if it must not, or if there is nothing."""
    if found.own is not None:
        raise Misuse(
            f"{token}: its message has changed {found.own.key} and has still to send {sends(found.own.entry)};"
            " `onefold outbox recover` finishes it, and the token is gone then"
        )
    if not found.all_seen:
        raise Misuse(f"{token}: {UNSEEN}; so nobody can tell whether its message has still something to send")
    if found.token is None and not found.letters:
        raise Misuse(f"{token}: there is no such token, and no dead letter of it" if token else "there is none")
    if any(each.message is not None and each.message.realm not in ("", realm) for each in found.letters):
        raise Misuse(f"{token}: its dead letter belongs to another token store: name that one")
    parts = ["" if found.token is None else f"the token {token}"]
    parts += [f"{len(found.letters)} dead letter{'s' * (len(found.letters) > 1)}" if found.letters else ""]
    return " and ".join(part for part in parts if part)


def revive(
    transport: Transport,
    token: Annotated[str | None, typer.Argument(metavar="[TOKEN]", help="The token of one dead letter.")] = None,
    queue: Annotated[str | None, typer.Option(help="All dead letters of a queue instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their queue, as if they were new: their tokens are still there."""
    if (token is None) == (queue is None):
        raise Misuse("name one token, or a queue by --queue: one of them says which dead letters")
    with opened_queue(transport) as there:
        seen = letters(there, queue)
        found = [each.buried for each in seen if token in (None, each.token)]
        if not found:
            which = f"of the token {token}" if token else f"in the queue {queue}"
            raise Misuse(f"no dead letter {which}" + (f"; {UNSEEN}" if len(seen) == LOOKED_MAX else ""))
        there.dig_up(found, deliver=True)
    more = "; there may be more: call it again" if len(found) == LOOKED_MAX else ""
    people.print(f"{len(found):,} back in the queue{more}", markup=False)
    if as_json:
        emit_json({"revived": len(found), "more": len(found) == LOOKED_MAX})


def _document(token: Token, now_ms: int) -> dict[str, Any]:
    made = {"token": token.token, "to": token.to, "made_for": token.parent or None, "attempt": token.attempt or None}
    return made | {"age_s": (now_ms - token.at_ms) / 1000}


def letter_document(letter: DeadLetter, now_ms: int) -> dict[str, Any]:
    """A dead letter as JSON."""
    buried = letter.buried
    return {
        "queue": buried.queue,
        "token": letter.token,
        "reason": buried.reason,
        "age_s": (now_ms - buried.at_ms) / 1000,
        "body": None if letter.message is None else letter.message.body,
    }


def _lines(found: TokenContext, name: str, now_ms: int) -> Iterator[tuple[str, str]]:
    token = found.token
    if token is None:
        yield "token", f"{name}: there is none; its message was processed, or discarded, or never was"
    else:
        yield "token", token.token
        yield "to", token.to
        yield "made", f"{age(now_ms - token.at_ms)} ago" + (f", for {token.parent}" if token.parent else "")
    if (own := found.own) is not None:
        yield "in an outbox", f"{own.key}: its message changed it, and has still to send {sends(own.entry)}"
    if (sender := found.sender) is not None:
        yield "to be sent", f"by the outbox of {sender.key}, for {age(now_ms - sender.at_ms)}"
    for letter in found.letters:
        yield (
            "dead letter",
            f"in {letter.buried.queue}, for {age(now_ms - letter.buried.at_ms)}: {letter.buried.reason}",
        )
