"""``onefold tokens``: the messages in flight, by their tokens; and what to do with dead letters, which keep theirs.

The ports of stores and transports are for those who process messages. Who looks in from outside sees no more than they
show: outbox entries and dead letters are read from the oldest on, up to a limit, and of what waits in a queue only the
number is known. Where a limit was reached, that is said, and nothing is concluded from what was not seen.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Final

from typer import Abort, Argument, Option

from onefold.cli import options
from onefold.cli.options import MaybeStore, MaybeTransport, Store, Tokens, Transport, age, check_there, opened
from onefold.cli.output import AsJson, people, tell
from onefold.clock import wall_ms
from onefold.errors import BadInput, Misuse
from onefold.outbox.plans import Entry, Message, Remove, check_name, unpack_message
from onefold.outbox.ports import FOREVER_MS, Buried, EntityStore, Queue, Stranded, Token, TokenStore, open_queue
from onefold.report.text import foreign, many, table

LOOKED_MAX: Final = 10_000
"""Outbox entries and dead letters that are read: there are few, or something is very wrong."""
PAGE: Final = 1_000
REASON_SHOWN: Final = 300
UNSEEN: Final = f"there are more than {LOOKED_MAX:,} outbox entries or dead letters, and not all were looked at"


def read_entries(entities: EntityStore | None) -> list[Stranded]:
    return [] if entities is None else entities.stranded(FOREVER_MS, LOOKED_MAX)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, and the message in it; None if it holds no message."""

    buried: Buried
    message: Message | None

    @property
    def token(self) -> str | None:
        return None if self.message is None else self.message.token


def letters(queue: Queue, name: str | None = None) -> list[DeadLetter]:
    dead = []
    for buried in queue.buried(LOOKED_MAX, name):
        try:
            message = unpack_message(buried.payload)
        except BadInput:
            message = None
        dead.append(DeadLetter(buried, message))
    return dead


@dataclass(frozen=True, slots=True)
class TokenContext:
    token: Token | None
    own: Stranded | None
    """Its message changed the state, and this is left to do."""
    sender: Stranded | None
    """Its message is still to be sent, by this entry."""
    letters: tuple[DeadLetter, ...]
    all_seen: bool
    """No limit was reached: what is not here is not there."""


def look_for(stores: options.OutboxStores, name: str) -> TokenContext:
    entries = read_entries(stores.entities)
    dead = [] if stores.queue is None else letters(stores.queue)
    # The listing is by name: from a little before it on.
    token = next((each for each in all_tokens(stores.tokens, name[:-1]) if each.token >= name), None)
    return TokenContext(
        token if token is not None and token.token == name else None,
        next((each for each in entries if each.name == name), None),
        next((each for each in entries if any(out.token == name for out in each.entry.outgoing)), None),
        tuple(each for each in dead if each.token == name),
        max(len(entries), len(dead)) < LOOKED_MAX,
    )


def all_tokens(tokens: TokenStore, after: str = "", *, orphans: bool = False) -> Iterator[Token]:
    while page := tokens.listed(after=after, limit=PAGE, orphans=orphans):
        yield from page
        after = page[-1].token


def sends(entry: Entry) -> str:
    """What an entry sends, in words.

    >>> from onefold.outbox import Outgoing
    >>> sends(Entry((Outgoing("shipping", 1), Outgoing("audit", 2), Outgoing("shipping", 3))))
    '2 to shipping, 1 to audit'
    """
    to = [out.to for out in entry.outgoing]
    return ", ".join(f"{to.count(queue)} to {queue}" for queue in dict.fromkeys(to)) or "nothing"


def entry_document(entry: Stranded, now_ms: int) -> dict[str, Any]:
    outgoing = [{"to": out.to, "body": out.body, "token": out.token or None} for out in entry.entry.outgoing]
    return {
        "endpoint": entry.key.endpoint,
        "entity": entry.key.name,
        "entry": entry.name,
        "age_s": (now_ms - entry.at_ms) / 1000,
        "sends": outgoing,
    }


def ls(
    store: MaybeStore = None,
    tokens: Tokens = None,
    orphans: Annotated[bool, Option("--orphans", help="Only those made for a message whose token is gone.")] = False,
    limit: Annotated[int, Option(min=1, max=100_000, help="How many to show.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Show the tokens there are, by name: one for each message that is not processed yet.

    With --store, also which of them have an entry in an outbox: their message has changed the state, and what it sends
    is being sent.
    """
    now = wall_ms()
    with opened(store, tokens) as stores:
        listed = stores.tokens.listed(limit=limit, orphans=orphans)
        live = stores.tokens.live()
        begun = None if stores.entities is None else {entry.name for entry in read_entries(stores.entities)}
    rows = [_document(each, now) | ({} if begun is None else {"begun": each.token in begun}) for each in listed]
    lines = table("token", "to", ">age", "made for", *([] if begun is None else ["in an outbox"]))
    for each in listed:
        mark = [] if begun is None else ["yes" if each.token in begun else ""]
        lines.add_row(foreign(each.token), foreign(each.to), age(now - each.at_ms), foreign(each.parent), *mark)
    if listed:
        people.print(lines)
    oldest = "" if live.oldest_ms is None else f", the oldest made {age(now - live.oldest_ms)} ago"
    what = "orphans shown; " if orphans else "shown; " if len(listed) < live.tokens else ""
    listing = f"{len(listed):,} {what}" if what else ""
    document = {"tokens": live.tokens, "shown": len(listed), "listed": rows}
    tell(f"{listing}{live.tokens:,} tokens{oldest}", document, as_json)


def show(
    token: Annotated[str, Argument(metavar="TOKEN", help="The token: the name of its message.")],
    store: Store,
    tokens: Tokens = None,
    transport: MaybeTransport = None,
    as_json: AsJson = False,
) -> int:
    """Show one token, what is in an outbox for it, and with --transport its dead letter. Exit 1 if there is nothing."""
    check_name(token, "token")
    now = wall_ms()
    with opened(store, tokens, transport) as stores:
        context = look_for(stores, token)
    document = {
        "token": None if context.token is None else _document(context.token, now),
        "entry": None if context.own is None else entry_document(context.own, now),
        "sent_by": None if context.sender is None else entry_document(context.sender, now),
        "dead_letters": [letter_document(each, now) for each in context.letters],
        "all_seen": context.all_seen,
    }
    lines = ((name, foreign(value, REASON_SHOWN)) for name, value in _lines(context, token, now))
    people.print(table("", "", rows=lines))
    tell([] if context.all_seen else [UNSEEN], document, as_json)
    return 0 if context.token or context.own or context.sender or context.letters else 1


def discard(
    store: Store,
    transport: Transport,
    token: Annotated[str | None, Argument(metavar="TOKEN", help="The token: the name of its message.")] = None,
    tokens: Tokens = None,
    unreadable: Annotated[
        str | None, Option(metavar="QUEUE", help="Instead, dead letters of a queue that hold no message at all.")
    ] = None,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
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
            unread = tuple(each for each in letters(stores.queue, unreadable) if not each.message)
            context = TokenContext(None, None, None, unread, True)
        else:
            context = look_for(stores, check_name(token, "token"))
        what = _check_discard(context, token, stores.tokens.realm)
        if not yes:
            if not sys.stdin.isatty():
                raise Misuse(f"{what}: would be removed for good, and there is nobody to ask: say --yes")
            people.lines(f"{what}: this cannot be undone")
            if people.input("Remove it? [y/N] ", markup=False).strip().lower() not in ("y", "yes"):
                raise Abort
        # The token first: a dead letter without one does no harm.
        if context.token is not None and stores.queue.waiting().get(context.token.to):
            stores.tokens.discard(context.token.token)  # somebody may be at it, just in time
        elif context.token is not None:  # nothing waits, so nobody can be at it: what was made for it goes with it
            stores.tokens.remove([Remove(context.token.token, "")])
        stores.queue.dig_up([each.buried for each in context.letters], deliver=False)
    document = {"token": token, "removed": context.token is not None, "dead_letters": len(context.letters)}
    tell(f"removed: {what}", document, as_json)


def _check_discard(context: TokenContext, token: str | None, realm: str) -> str:
    """What would be removed, in words; `Misuse` if it must not, or if there is nothing."""
    if context.own is not None:
        raise Misuse(
            f"{token}: its message has changed {context.own.key} and has still to send {sends(context.own.entry)};"
            " `onefold outbox recover` finishes it, and the token is gone then"
        )
    if not context.all_seen:
        raise Misuse(f"{token}: {UNSEEN}; so nobody can tell whether its message has still something to send")
    if context.token is None and not context.letters:
        raise Misuse(f"{token}: there is no such token, and no dead letter of it" if token else "there is none")
    if any(each.message is not None and each.message.realm not in ("", realm) for each in context.letters):
        raise Misuse(f"{token}: its dead letter belongs to another token store: name that one")
    parts = [f"the token {token}"] * (context.token is not None)
    return " and ".join(parts + [many(len(context.letters), "dead letter")] * bool(context.letters))


def revive(
    transport: Transport,
    token: Annotated[str | None, Argument(metavar="TOKEN", help="The token of one dead letter.")] = None,
    queue: Annotated[str | None, Option(help="All dead letters of a queue instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into their queue, as if they were new: their tokens are still there."""
    if (token is None) == (queue is None):
        raise Misuse("name one token, or a queue by --queue: one of them says which dead letters")
    check_there(transport=transport)
    with closing(open_queue(transport)) as there:
        seen = letters(there, queue)
        dead = [each.buried for each in seen if token in (None, each.token)]
        if not dead:
            which = f"of the token {token}" if token else f"in the queue {queue}"
            raise Misuse(f"no dead letter {which}" + (f"; {UNSEEN}" if len(seen) == LOOKED_MAX else ""))
        there.dig_up(dead, deliver=True)
    more = "; there may be more: call it again" if len(dead) == LOOKED_MAX else ""
    tell(f"{len(dead):,} back in the queue{more}", {"revived": len(dead), "more": bool(more)}, as_json)


def _document(token: Token, now_ms: int) -> dict[str, Any]:
    return {
        "token": token.token,
        "to": token.to,
        "made_for": token.parent or None,
        "attempt": token.attempt or None,
        "age_s": (now_ms - token.at_ms) / 1000,
    }


def letter_document(letter: DeadLetter, now_ms: int) -> dict[str, Any]:
    return {
        "queue": letter.buried.queue,
        "token": letter.token,
        "reason": letter.buried.reason,
        "age_s": (now_ms - letter.buried.at_ms) / 1000,
        "body": None if letter.message is None else letter.message.body,
    }


def _lines(context: TokenContext, name: str, now_ms: int) -> Iterator[tuple[str, str]]:
    if (token := context.token) is None:
        yield "token", f"{name}: there is none; its message was processed, or discarded, or never was"
    else:
        yield "token", token.token
        yield "to", token.to
        yield "made", f"{age(now_ms - token.at_ms)} ago" + (f", for {token.parent}" if token.parent else "")
    if (own := context.own) is not None:
        yield "in an outbox", f"{own.key}: its message changed it, and has still to send {sends(own.entry)}"
    if (sender := context.sender) is not None:
        yield "to be sent", f"by the outbox of {sender.key}, for {age(now_ms - sender.at_ms)}"
    for buried in (letter.buried for letter in context.letters):
        yield "dead letter", f"in {buried.queue}, for {age(now_ms - buried.at_ms)}: {buried.head}"
