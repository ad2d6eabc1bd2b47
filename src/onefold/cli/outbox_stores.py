"""What the commands about tokens and outboxes share: opening the stores, and finding what belongs to a token.

The doors to stores and transports are for those who process messages. Who looks in from outside sees no more than they
show: outbox entries and dead letters are read from the oldest on, up to a limit, and of what waits in a queue only the
number is known. Where a limit was reached, that is said, and nothing is concluded from what was not seen.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast
from urllib.parse import unquote

import typer
from rich.table import Table

from onefold.cli.serve_desk import VARIABLE, check_lasting
from onefold.engines.outbox.record import Entry, Message, unpack_message
from onefold.errors import BadInput, Misuse
from onefold.ports import FOREVER_MS, Buried, EntityStore, Queue, Stranded, Token, TokenStore
from onefold.stores.outboxes import open_ledger, open_tokens
from onefold.stores.queues import open_queue

LOOKED_MAX: Final = 10_000
"""Outbox entries and dead letters that are read: there are few, or something is very wrong."""
PAGE: Final = 1_000

MaybeStore: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="ONEFOLD_STORE", help=f"Where states are kept: sqlite:///b.db, postgresql://... {VARIABLE}"),
]
MaybeTransport: TypeAlias = Annotated[
    str | None, typer.Option(envvar="ONEFOLD_TRANSPORT", help="Where messages go: sqlite:///q.db, nats://host:4222.")
]


@dataclass(frozen=True, slots=True)
class Opened:
    """Stores and a transport, those that were named."""

    entities: EntityStore | None
    tokens: TokenStore
    queue: Queue | None

    def entries(self) -> list[Stranded]:
        """What is in outboxes, the oldest first."""
        return [] if self.entities is None else self.entities.stranded(FOREVER_MS, LOOKED_MAX)


@contextmanager
def opened(store: str | None, tokens: str | None = None, transport: str | None = None) -> Iterator[Opened]:
    """Open what was named; the tokens are in the store, unless they are kept apart."""
    check_lasting(store=store, tokens=tokens, transport=transport)
    if store is None and tokens is None:
        raise Misuse("name the store of the tokens: --store, or --tokens where they are kept apart")
    for name, url in (("store", store), ("tokens", tokens), ("transport", transport)):
        _check_file(name, url)
    with ExitStack() as closing:

        def ours(thing: Any) -> Any:
            closing.callback(thing.close)
            return thing

        entities = None if store is None else cast(EntityStore, ours(open_ledger(store)))
        held = cast(TokenStore, entities if tokens is None else ours(open_tokens(tokens)))
        queue = None if transport is None else cast(Queue, ours(open_queue(transport)))
        yield Opened(entities, held, queue)


@contextmanager
def opened_queue(transport: str) -> Iterator[Queue]:
    """The transport alone."""
    check_lasting(transport=transport)
    _check_file("transport", transport)
    queue = open_queue(transport)
    try:
        yield queue
    finally:
        queue.close()


def _check_file(name: str, url: str | None) -> None:
    """To look at a file must not make it: a mistyped name would look like a store in which all is well."""
    if (
        url is not None
        and url.startswith("sqlite:///")
        and not Path(path := unquote(url[len("sqlite:///") :])).exists()
    ):
        raise Misuse(f"--{name}: {path} is not there", path=path)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, and the message in it; None if it holds no message."""

    buried: Buried
    message: Message | None

    @property
    def token(self) -> str | None:
        """Of its message."""
        return None if self.message is None else self.message.token


def letters(queue: Queue, name: str | None = None) -> list[Letter]:
    """Dead letters, of one queue or of all, the oldest first."""
    return [Letter(buried, _message(buried)) for buried in queue.buried(LOOKED_MAX, name)]


def _message(buried: Buried) -> Message | None:
    try:
        return unpack_message(buried.payload)
    except BadInput:
        return None


@dataclass(frozen=True, slots=True)
class Known:
    """What can be found of a token."""

    token: Token | None
    own: Stranded | None
    """Its message changed the state, and this is left to do."""
    sender: Stranded | None
    """Its message is still to be sent, by this entry."""
    letters: tuple[Letter, ...]
    all_seen: bool
    """No limit was reached: what is not here is not there."""


def known(stores: Opened, name: str) -> Known:
    """Look everywhere for a token."""
    entries = stores.entries()
    buried = [] if stores.queue is None else letters(stores.queue)
    return Known(
        _token(stores.tokens, name),
        next((each for each in entries if each.name == name), None),
        next((each for each in entries if any(out.token == name for out in each.entry.outgoing)), None),
        tuple(each for each in buried if each.token == name),
        max(len(entries), len(buried)) < LOOKED_MAX,
    )


def all_tokens(tokens: TokenStore, after: str = "", *, orphans: bool = False) -> Iterator[Token]:
    """By name, page by page."""
    while page := tokens.listed(after=after, limit=PAGE, orphans=orphans):
        yield from page
        after = page[-1].token


def _token(tokens: TokenStore, name: str) -> Token | None:
    """From a little before it on: the listing is by name."""
    first = next((each for each in all_tokens(tokens, name[:-1]) if each.token >= name), None)
    return first if first is not None and first.token == name else None


def sends(entry: Entry) -> str:
    """What an entry sends, in words.

    >>> from onefold.engines.outbox import Outgoing
    >>> sends(Entry((Outgoing("shipping", 1), Outgoing("audit", 2), Outgoing("shipping", 3))))
    '2 to shipping, 1 to audit'
    """
    to = [out.to for out in entry.outgoing]
    return ", ".join(f"{to.count(queue)} to {queue}" for queue in dict.fromkeys(to)) or "nothing"


def document(entry: Stranded, now_ms: int) -> Mapping[str, Any]:
    """An outbox entry as JSON."""
    outgoing = [{"to": out.to, "body": out.body, "token": out.token or None} for out in entry.entry.outgoing]
    return {
        "endpoint": entry.key.endpoint,
        "entity": entry.key.name,
        "entry": entry.name,
        "age_s": (now_ms - entry.at_ms) / 1000,
        "sends": outgoing,
    }


def age(ms: float) -> str:
    """A time that has passed, as people say it.

    >>> age(900), age(90_000), age(200_000_000)
    ('0.9 s', '90 s', '2.3 days')
    """
    seconds = max(0.0, ms / 1000)
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def table(*columns: str) -> Table:
    """For people; a column whose name begins with ``>`` is one of numbers."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return made
