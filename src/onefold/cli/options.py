"""Options that several commands share, and opening the stores that they name."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from typer import Argument, Option

from onefold.errors import Misuse
from onefold.outbox.ports import EntityStore, Queue, TokenStore, open_ledger, open_queue, open_tokens
from onefold.reconcile.records import Records, open_records
from onefold.report.text import many
from onefold.stores.addresses import masked, sqlite_file

TOKEN: Final = "ONEFOLD_TOKEN"  # noqa: S105 # the name of a variable
TOKEN_BYTES_MAX: Final = 4_096
VARIABLE: Final = "If it holds a password, use the variable: other users can read command lines."
STORE: Final = "The store: a file, such as notes.db."

_STORE: Final = Option(
    envvar="ONEFOLD_STORE", help=f"Database with the states of entities: sqlite:///b.db, postgresql://... {VARIABLE}"
)
_TRANSPORT: Final = Option(
    envvar="ONEFOLD_TRANSPORT", help="Message queues: sqlite:///q.db, postgresql://..., nats://host:4222."
)
Store: TypeAlias = Annotated[str, _STORE]
MaybeStore: TypeAlias = Annotated[str | None, _STORE]
Transport: TypeAlias = Annotated[str, _TRANSPORT]
MaybeTransport: TypeAlias = Annotated[str | None, _TRANSPORT]
Tokens: TypeAlias = Annotated[
    str | None,
    Option(envvar="ONEFOLD_TOKEN_STORE", help="Token store, if not the --store: redis://host:6379/0."),
]
Plan: TypeAlias = Annotated[
    Literal["local", "transactional", "parented", "checkpointed"] | None,
    Option(
        help="How state and messages are committed. Default: local if store and transport are one database, else"
        " transactional; with --tokens, parented."
    ),
]
Host: TypeAlias = Annotated[str, Option(help="Address to listen on; beyond loopback a token is needed.")]
Port: TypeAlias = Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0: any free port.")]
TokenFile: TypeAlias = Annotated[
    Path | None,
    Option(exists=True, dir_okay=False, help=f"File with the token that clients must send. Default: {TOKEN}."),
]
AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print the address as one line of JSON when ready.")]
Connections: TypeAlias = Annotated[int, Option(min=1, help="Connections open at the same time, at most.")]
RetainBytes: TypeAlias = Annotated[
    int | None,
    Option(min=1, help="Remove the oldest records of a topic above about this many bytes. Default: keep all."),
]
RetainMs: TypeAlias = Annotated[
    int | None, Option(min=1, help="Remove records older than about this many milliseconds. Default: keep all.")
]
ServerToken: TypeAlias = Annotated[
    Path | None,
    Option(exists=True, dir_okay=False, help=f"File with the server's token. Default: the variable {TOKEN}."),
]
Format: TypeAlias = Annotated[
    str, Option(help='"parquet", "json", "csv", "onefold-log", ...; "auto": by file extension.')
]
ReaderOption: TypeAlias = Annotated[
    list[str] | None,
    Option(metavar="NAME=VALUE", help="An option of Spark's reader, such as header=false; repeatable."),
]
Expiry: TypeAlias = Annotated[int, Option(min=1, help="How long a frame is remembered, in milliseconds.")]
Fixed: TypeAlias = Annotated[
    bool, Option("--fixed", help="Count the expiry from the first copy of a frame, not from the latest.")
]
StrictAdr: TypeAlias = Annotated[
    bool,
    Option(
        "--strict-adr",
        help="Forget as ADR 007 does: after the expiry, the last frame of a device and a join request count again "
        "(in a gateway a DevNonce after five minutes). Default: both are remembered for ever.",
    ),
]
RecordStore: TypeAlias = Annotated[str, Argument(metavar="STORE", help=STORE)]
NewStore: TypeAlias = Annotated[str, Argument(metavar="STORE", help=f"{STORE} Created if missing.")]


def read_token(file: Path | None) -> str | None:
    """The token from the file, else from the environment; `Misuse` if it cannot be sent in a header."""
    if file is None:
        text, where = os.environ.get(TOKEN), TOKEN
        if text is None:
            return None
    else:
        where = str(file)
        with file.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(TOKEN_BYTES_MAX + 1)
    token = text.strip()
    if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise Misuse(f"{where}: a token is 1 to {TOKEN_BYTES_MAX:,} printable ASCII characters without spaces")
    return token


def names_of(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def reader_options(options: Sequence[str] | None) -> dict[str, str]:
    pairs = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Misuse(f"{text!r} is not an option, must be NAME=VALUE", option=text)
        pairs[name] = value
    return pairs


def refuse(options: Mapping[str, object], why: str) -> None:
    """Raise `Misuse` for the first of these options that is set."""
    if option := next((name for name, value in options.items() if value), None):
        raise Misuse(f"{option} {why}", option=option)


def make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise Misuse(f"{folder}: is a file, must be a folder", folder=str(folder))
    folder.mkdir(parents=True, exist_ok=True)


def file_of(address: str) -> Path:
    path = sqlite_file(address) if "://" in address else address
    if not path:
        raise Misuse(f"{masked(address)}: name the file of a store, such as notes.db or sqlite:///notes.db")
    return Path(path)


@contextmanager
def opened_records(address: str, *, make: bool = False, id_size: int | None = None) -> Iterator[Records]:
    """Open a store and close it at the end. Without ``make``, a missing store is `Misuse`."""
    file = file_of(address)
    if not make and not file.exists():
        raise Misuse(f"{file}: there is no such store", store=str(file))
    with closing(open_records(address, id_size, make=make)) as records:
        yield records


def read_id(text: str, id_size: int) -> bytes:
    """Parse an id in hex; `Misuse` if it has another size than the ids of this store."""
    try:
        id = bytes.fromhex(text)
    except ValueError:
        raise Misuse(f"{text!r:.80} is not an id: ids are in hex") from None
    if len(id) != id_size:
        raise Misuse(f"{text!r:.80} has {many(len(id), 'byte')}; the ids of this store have {id_size}")
    return id


def check_lasting(**urls: str | None) -> None:
    """Refuse stores in memory: no other process sees them, and they end with this one."""
    for name, url in urls.items():
        if url is not None and url.startswith("memory:"):
            raise Misuse(f"--{name} is {url}: nobody else would see it, and it ends with this process")


@dataclass(frozen=True, slots=True)
class OutboxStores:
    entities: EntityStore | None
    tokens: TokenStore
    queue: Queue | None


@contextmanager
def opened(store: str | None, tokens: str | None = None, transport: str | None = None) -> Iterator[OutboxStores]:
    """Open the stores that are named; tokens are in the store unless ``tokens`` names another one."""
    if store is None and tokens is None:
        raise Misuse("name the store of the tokens: --store, or --tokens if it is another one")
    check_there(store=store, tokens=tokens, transport=transport)
    with ExitStack() as stack:
        entities: Any = None if store is None else stack.enter_context(closing(open_ledger(store)))
        token_store = entities if tokens is None else stack.enter_context(closing(open_tokens(tokens)))
        queue = None if transport is None else stack.enter_context(closing(open_queue(transport)))
        yield OutboxStores(entities, token_store, queue)


def check_there(**urls: str | None) -> None:
    """Refuse files that do not exist: opening would create them, and a mistyped name would look like an empty store."""
    check_lasting(**urls)
    for name, url in urls.items():
        if (path := sqlite_file(url or "")) and not Path(path).exists():
            raise Misuse(f"--{name}: {path} is not there", path=path)


def age(ms: float) -> str:
    """An age for people.

    >>> age(900), age(90_000), age(200_000_000)
    ('0.9 s', '90 s', '2.3 days')
    """
    seconds = max(0.0, ms / 1000)
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
