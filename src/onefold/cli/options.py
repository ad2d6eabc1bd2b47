"""What all servers ask of the command line: the token that their clients must send, and a folder to keep things in.

What the commands about records share: opening a store that is a file, and reading an id.

What the commands about tokens and outboxes share: opening the stores, and finding what belongs to a token.

The doors to stores and transports are for those who process messages. Who looks in from outside sees no more than they
show: outbox entries and dead letters are read from the oldest on, up to a limit, and of what waits in a queue only the
number is known. Where a limit was reached, that is said, and nothing is concluded from what was not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, cast
from urllib.parse import unquote

import typer
from rich.table import Table

from onefold.errors import BadInput, Misuse
from onefold.outbox.ports import FOREVER_MS, Buried, EntityStore, Queue, Stranded, Token, TokenStore
from onefold.outbox.steps import Entry, Message, unpack_message
from onefold.outbox.stores.ledgers import open_ledger, open_tokens
from onefold.outbox.stores.queues import open_queue
from onefold.reconcile.records import Records, open_records
from onefold.stores.addresses import masked, sqlite_file

TOKEN: Final = "ONEFOLD_TOKEN"  # noqa: S105 # the name of a variable
TOKEN_BYTES_MAX: Final = 4_096


VARIABLE = "With a password in it, better the variable: all users of a machine can read the words of a command."

Store: TypeAlias = Annotated[
    str,
    typer.Option(envvar="ONEFOLD_STORE", help=f"Where states are kept: sqlite:///b.db, postgresql://... {VARIABLE}"),
]
Transport: TypeAlias = Annotated[
    str, typer.Option(envvar="ONEFOLD_TRANSPORT", help="Where messages go: sqlite:///q.db, nats://host:4222.")
]
Tokens: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="ONEFOLD_TOKEN_STORE", help="Where tokens are kept, if not in the store: redis://host:6379/0."),
]
Plan: TypeAlias = Annotated[
    Literal["transactional", "parented", "checkpointed"] | None,
    typer.Option(help="By default transactional; with --tokens, parented."),
]
Queues: TypeAlias = Annotated[
    str | None, typer.Option(help="The queues that can be asked for, with commas between: orders,refunds. Else all.")
]
Name: TypeAlias = Annotated[str, typer.Option(help="Of the desk, and of the queue that answers come by.")]
Window: TypeAlias = Annotated[
    float, typer.Option(min=1, max=6 * 86_400, help="How long a request, and its answer, is kept.")
]
Wait: TypeAlias = Annotated[float, typer.Option(min=0, max=600, help="How long a client can wait for an answer.")]
Host: TypeAlias = Annotated[str, typer.Option(help="The address to listen on; more than loopback needs a token.")]
Port: TypeAlias = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any that is free.")]
TokenFile: TypeAlias = Annotated[
    Path | None, typer.Option(help=f"A file with the token that clients must send; or the variable {TOKEN}.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the address as one line of JSON on standard output, when it is ready.")
]


def check_lasting(**urls: str | None) -> None:
    """Refuse what would be gone, unseen by anybody else, when this process ends."""
    for name, url in urls.items():
        if url is not None and url.startswith("memory:"):
            raise Misuse(f"--{name} is {url}: nobody else would see it, and it ends with this process")


def read_token(file: Path | None) -> str | None:
    """The token of the file, else of the environment; None: there is none. What cannot be a header is refused."""
    if file is None:
        given, place = os.environ.get(TOKEN), TOKEN
        if given is None:
            return None
    else:
        place = str(file)
        with file.open(encoding="utf-8", errors="replace") as opened:
            given = opened.read(TOKEN_BYTES_MAX + 1)
    token = given.strip()
    if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise Misuse(f"{place}: a token is 1 to {TOKEN_BYTES_MAX:,} printable ASCII characters without spaces")
    return token


def make_folder(folder: Path) -> None:
    """Make it, unless it is there."""
    if folder.exists() and not folder.is_dir():
        raise Misuse(f"{folder}: is a file, must be a folder", folder=str(folder))
    folder.mkdir(parents=True, exist_ok=True)


STORE: Final = "The store: a file, such as notes.db."
RecordStore: TypeAlias = Annotated[str, typer.Argument(metavar="STORE", help=STORE)]
NewStore: TypeAlias = Annotated[str, typer.Argument(metavar="STORE", help=f"{STORE} Made if it is not there.")]


def file_of(address: str) -> Path:
    """The file that a store is in."""
    path = sqlite_file(address) if "://" in address else address
    if not path:
        raise Misuse(f"{masked(address)}: name the file of a store, such as notes.db or sqlite:///notes.db")
    return Path(path)


@contextmanager
def opened_records(address: str, *, make: bool = False, id_size: int | None = None) -> Iterator[Records]:
    """Open a store, and close it in the end; ``make`` it if it is not there, else `Misuse`."""
    file = file_of(address)
    if not make and not file.exists():
        raise Misuse(f"{file}: there is no such store", store=str(file))
    records = open_records(address, id_size, make=make)
    try:
        yield records
    finally:
        records.close()


def read_id(text: str, id_size: int) -> bytes:
    """An id as it is written, in hex; `Misuse` if it is none of this store."""
    try:
        id = bytes.fromhex(text)
    except ValueError:
        raise Misuse(f"{text!r:.80} is no id: it is written in hex") from None
    if len(id) != id_size:
        raise Misuse(f"{text!r:.80} has {count(len(id), 'byte')}; the ids of this store have {id_size}")
    return id


def count(many: int, what: str) -> str:
    """So many of these.

    >>> count(1, "record"), count(2_000, "record")
    ('1 record', '2,000 records')
    """
    return f"{many:,} {what}{'s' * (many != 1)}"


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
class OutboxStores:
    """Stores and a transport, those that were named."""

    entities: EntityStore | None
    tokens: TokenStore
    queue: Queue | None

    def entries(self) -> list[Stranded]:
        """What is in outboxes, the oldest first."""
        return [] if self.entities is None else self.entities.stranded(FOREVER_MS, LOOKED_MAX)


@contextmanager
def opened(store: str | None, tokens: str | None = None, transport: str | None = None) -> Iterator[OutboxStores]:
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
        yield OutboxStores(entities, held, queue)


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
class DeadLetter:
    """A dead letter, and the message in it; None if it holds no message."""

    buried: Buried
    message: Message | None

    @property
    def token(self) -> str | None:
        """Of its message."""
        return None if self.message is None else self.message.token


def letters(queue: Queue, name: str | None = None) -> list[DeadLetter]:
    """Dead letters, of one queue or of all, the oldest first."""
    return [DeadLetter(buried, _message(buried)) for buried in queue.buried(LOOKED_MAX, name)]


def _message(buried: Buried) -> Message | None:
    try:
        return unpack_message(buried.payload)
    except BadInput:
        return None


@dataclass(frozen=True, slots=True)
class TokenContext:
    """What can be found of a token."""

    token: Token | None
    own: Stranded | None
    """Its message changed the state, and this is left to do."""
    sender: Stranded | None
    """Its message is still to be sent, by this entry."""
    letters: tuple[DeadLetter, ...]
    all_seen: bool
    """No limit was reached: what is not here is not there."""


def known(stores: OutboxStores, name: str) -> TokenContext:
    """Look everywhere for a token."""
    entries = stores.entries()
    buried = [] if stores.queue is None else letters(stores.queue)
    return TokenContext(
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

    >>> from onefold.outbox import Outgoing
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
