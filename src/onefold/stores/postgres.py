"""PostgreSQL: addresses of tables, and a pool of connections to one database.

An address is ``postgresql://user:password@host/database?options#schema.table``. The part after ``#`` is ours, the rest
is PostgreSQL's own. The shown form of an address never has the password; an invalid address is not shown at all, since
the password could be anywhere in it.

A call takes the connection used last, or opens one, or waits until one is returned: never more than ``connections_max``
are open, whatever the number of threads. If one fails, all idle ones are closed too, since they go to the same server.
Before reuse, a connection is checked for a hang-up, so that callers do not notice a restart of the server.

A live server enforces statement timeouts itself. A frozen or disconnected one does not, so we measure the time too, and
close the connection.

A failure is `StoreFailed`, and whether the call took effect is not known. The exception: a deadlock is always rolled
back by the server, so `run` repeats the call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from select import POLLIN, poll
from struct import Struct
from threading import BoundedSemaphore, Lock
from time import monotonic
from types import NoneType
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import unquote

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import Dumper, PyFormat
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus
from psycopg.types.array import ListBinaryDumper

from onefold.errors import BadInput, Misuse, StoreFailed

TABLE = "onefold_messages"
SCHEMES = ("postgresql://", "postgres://")
# PostgreSQL silently truncates longer names: two columns, or two tables, could become one.
NAME_BYTES_MAX = 63
SUFFIX_BYTES_MAX = len("_staging_0123456789_0_parts")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Answer = TypeVar("Answer")
DEADLOCKS_MAX = 3
PATIENCE = 2
"""Times ``timeout_s``: the server's own timeout error comes first, as it says more."""
_UNDONE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A table of a database; ``schema`` None: the first in the search path."""

    conninfo: str = field(repr=False)
    shown: str
    schema: str | None
    table: str

    def __str__(self) -> str:
        return self.shown


def parse(url: str) -> PostgresAddress:
    """Read an address.

    >>> parse("postgresql://me:secret@db.example/shop#sales.orders").shown
    'postgresql://db.example/shop#sales.orders'
    """
    conninfo, _, fragment = url.partition("#")
    if not conninfo.startswith(SCHEMES):
        raise Misuse("the place of a postgres sink must be like postgresql://user@host/database#schema.table")
    if set(fragment) & set("@/:?#"):
        raise Misuse("what follows # in the address must be a table or schema.table; a # before that is written %23")
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        raise Misuse("this is not an address that PostgreSQL can read (it may hold a password: not shown)") from None
    schema, _, table = unquote(fragment or TABLE).rpartition(".")
    check_name(table, NAME_BYTES_MAX - SUFFIX_BYTES_MAX)
    host = parts.get("host") or parts.get("hostaddr") or ""
    port = f":{parts['port']}" if parts.get("port") else ""
    base = f"postgresql://{host}{port}/{parts.get('dbname') or ''}"
    if "@" in base:  # a / in the password would show its rest as the database
        raise Misuse("this address has an @ too many (not shown); write %40 for an @ and %2F for a / in a password")
    shown = f"{base}#{unquote(fragment or TABLE)}"
    return PostgresAddress(conninfo, shown, schema or None, table)


def check_name(name: str, bytes_max: int = NAME_BYTES_MAX) -> None:
    """Raise `Misuse` if PostgreSQL would truncate or refuse this name."""
    size = len(name.encode())
    if not 0 < size <= bytes_max or "\0" in name:
        raise Misuse(f"the name {name!r} has {size} bytes, PostgreSQL can keep 1 to {bytes_max}", name=name)


class Connections:
    """A pool of connections to ``conninfo``; ``shown`` is its form for errors."""

    def __init__(
        self,
        conninfo: str,
        shown: str,
        prepare: Callable[[Connection], None],
        *,
        connections_max: int,
        timeout_s: float,
    ) -> None:
        """Does not connect yet; ``prepare`` is called with each connection before its first use."""
        self.shown = shown
        self._conninfo, self._prepare = conninfo, prepare
        self._connections_max, self._timeout_s = connections_max, timeout_s
        self._slots = BoundedSemaphore(connections_max)
        self._idle: list[Connection] = []
        self._lock = Lock()
        self._open = True

    def run(self, work: Callable[[Connection], Answer]) -> Answer:
        """Call ``work`` with a connection in autocommit mode and return its result."""
        try:
            for _ in range(DEADLOCKS_MAX):
                with suppress(*_UNDONE), self._connection() as connection:
                    return work(connection)
            with self._connection() as connection:
                return work(connection)
        except psycopg.Error as error:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            if isinstance(error, psycopg.DataError):
                raise BadInput(f"{self.shown} cannot keep a value: {line}") from error
            raise StoreFailed(f"{self.shown}: {line}", place=self.shown) from error
        except UnicodeEncodeError as error:
            raise BadInput(f"{self.shown} cannot keep the text {error.object!r:.100}") from error

    def close(self) -> None:
        """Close idle connections now, and those in use when they are returned."""
        with self._lock:
            self._open = False
        self._drop_idle()

    def check_open(self) -> None:
        if not self._open:
            raise Misuse(f"{self.shown}: this store was closed")

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        self.check_open()
        if not self._slots.acquire(timeout=self._timeout_s):
            text = f"{self.shown}: all {self._connections_max} connections were in use for {self._timeout_s} s"
            raise StoreFailed(text, connections_max=self._connections_max)
        try:
            connection = self._reusable() or self._connect()
            try:
                yield connection
            finally:
                if connection.closed:
                    self._drop_idle()
                usable = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
                with self._lock:
                    reused = usable and self._open
                    if reused:
                        self._idle.append(connection)
                if not reused:
                    connection.close()
        finally:
            self._slots.release()

    def _reusable(self) -> Connection | None:
        """An idle connection that the server has not closed; if it has, there is unread data."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not connection.closed:
                poller = poll()
                poller.register(connection.fileno(), POLLIN)
                if not poller.poll(0):
                    return connection
            connection.close()

    def _connect(self) -> Connection:
        """Connect with our options as defaults for those that the address does not set."""
        timeout_ms = str(max(1, int(self._timeout_s * 1_000)))  # 0 would be: no limit
        ours = {
            "connect_timeout": str(max(2, round(self._timeout_s))),
            "tcp_user_timeout": timeout_ms,
            "fallback_application_name": "onefold",
        }
        conninfo = make_conninfo("", **(ours | conninfo_to_dict(self._conninfo)))
        connection = _Patient.connect(conninfo, autocommit=True)
        connection.adapters.register_dumper(list, _Lists)
        connection.patience_s = PATIENCE * self._timeout_s
        try:
            settings = (
                "select set_config('statement_timeout', %(ms)s, false), set_config('lock_timeout', %(ms)s, false)"
            )
            connection.execute(settings, {"ms": timeout_ms})
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class _Patient(psycopg.Connection[tuple[Any, ...]]):
    patience_s: float

    def wait(self, gen: PQGen[Answer], *args: Any, **kwargs: Any) -> Answer:
        deadline = monotonic() + self.patience_s

        def limited() -> PQGen[Answer]:
            """``gen`` with a deadline; psycopg resumes it several times a second."""
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if not ready and monotonic() > deadline:
                        self.close()  # else ending the transaction would wait for the server again
                        raise psycopg.OperationalError(f"no answer within {self.patience_s} s")
                    wanted = gen.send(ready)
            except StopIteration as stop:
                return cast(Answer, stop.value)

        return super().wait(limited(), *args, **kwargs)


class _Lists(ListBinaryDumper):
    """Arrays. A batch is a handful of them, and psycopg's own way goes through each several times."""

    def get_key(self, obj: list[Any], format: PyFormat) -> Any:
        kind = _element(obj)
        return super().get_key(obj, format) if kind is None else (list, kind)

    def upgrade(self, obj: list[Any], format: PyFormat) -> Any:
        kind = _element(obj)
        return super().upgrade(obj, format) if kind is None else _FLAT[kind](list)


def _element(values: list[Any]) -> type | None:
    """The type of all that is not None, if it is one that has a dumper here."""
    kinds = {*map(type, values)} - {NoneType}
    return kinds.pop() if len(kinds) == 1 and kinds <= _FLAT.keys() else None


class _Texts(Dumper):
    """``text[]``: a head, then each element with its length."""

    format = Format.BINARY
    oid = 1009
    element_oid = 25

    def dump(self, obj: list[Any]) -> bytes:
        parts = [_ARRAY_HEAD.pack(1, None in obj, self.element_oid, len(obj), 1)]
        for value in obj:
            if value is None:
                parts.append(_NULL)
            else:
                data = self.element(value)
                parts += (len(data).to_bytes(4, "big"), data)
        return b"".join(parts)

    element: Callable[[Any], bytes] = staticmethod(str.encode)


class _Blobs(_Texts):
    """``bytea[]``"""

    oid = 1001
    element_oid = 17
    element = staticmethod(bytes)


class _Longs(_Texts):
    """``bigint[]``"""

    oid = 1016
    element_oid = 20

    @staticmethod
    def element(value: int) -> bytes:
        try:
            return value.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise psycopg.DataError(f"{value} is no number of 64 bits") from None


_ARRAY_HEAD = Struct("!iiIii")
_NULL = b"\xff\xff\xff\xff"
_FLAT: dict[type, type[_Texts]] = {str: _Texts, bytes: _Blobs, int: _Longs}
