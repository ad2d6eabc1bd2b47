"""A durable SQLite file: commits survive crashes and power cuts, or the file is not opened.

Two settings decide that. With a rollback journal (SQLite's default) a power cut can undo the last commit; with WAL and
``synchronous=FULL`` each commit is synced before it returns. SQLite does not raise where WAL is impossible (in memory,
on some network disks), but returns the mode in use. So that is checked.

Writers take turns: a transaction begins with ``BEGIN IMMEDIATE``, so it holds the write lock before it reads what it is
going to change. A deferred one would read first and fail if another process wrote in between. A writer that waits
longer than ``busy_s`` fails with `StoreFailed`. SQLite's locks belong to the process that holds them and end with it,
also at ``kill -9``: no lock expires while its owner still works.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from time import monotonic, sleep

from onefold.errors import BadInput, Damaged, Misuse, StoreFailed

# A commit is one sync, some milliseconds: this allows for hundreds of others in the queue. (Also Python's default.)
BUSY_S = 5.0
SYNCHRONOUS_FULL = 2
# Prepared ones that a connection keeps: a statement for many rows is another one for each number of rows.
STATEMENTS = 1_000
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database:
    """One connection to a file. Not thread-safe: the owner must lock."""

    def __init__(self, path: str | PathLike[str], schema: Sequence[str] = (), *, busy_s: float = BUSY_S) -> None:
        """Open or create the file; ``schema``: statements that create missing tables (``if not exists``)."""
        self.path = fspath(path)
        with self._told():
            self._connection = sqlite3.connect(
                self.path, timeout=busy_s, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
            )
        try:
            with self._told():
                mode = self._ask_for_wal(monotonic() + busy_s)
                if mode != "wal":
                    raise Misuse(f"{self.path}: SQLite keeps its journal as {mode!r} here, not as 'wal'", mode=mode)
                self._connection.execute("pragma synchronous=full")
                (level,) = self._connection.execute("pragma synchronous").fetchone()
                if level != SYNCHRONOUS_FULL:
                    raise Misuse(
                        f"{self.path}: synchronous is {level}, not {SYNCHRONOUS_FULL} (FULL)", synchronous=level
                    )
            with self.writing() as db:
                for statement in schema:
                    db.execute(statement)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One exclusive write transaction; durable when it ends, rolled back if anything is raised in it."""
        with self._told():
            try:
                # Inside the try: a Ctrl-C during the wait for the lock is raised when it has been acquired.
                self._connection.execute("begin immediate")
                yield self._connection
                self._connection.execute("commit")
            finally:
                if self._connection.in_transaction:  # not committed because of an error
                    self._connection.execute("rollback")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For one statement, on what was committed when it began. Waits for no writer."""
        with self._told():
            yield self._connection

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._connection.close()

    def _ask_for_wal(self, deadline: float) -> str:
        # If two processes open a new file at once, SQLite fails in the second instead of waiting, so we wait.
        while True:
            try:
                (mode,) = self._connection.execute("pragma journal_mode=wal").fetchone()
                return str(mode)
            except sqlite3.OperationalError as error:
                if _code(error) not in _BUSY or monotonic() > deadline:
                    raise
                sleep(0.005)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a bug: a closed connection, an invalid statement
        except sqlite3.Error as error:
            kind = Damaged if _code(error) in _DAMAGED else StoreFailed
            raise kind(f"{self.path}: {error}", path=self.path) from error
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise BadInput(f"{self.path} cannot keep the text {error.object!r:.100}") from error


def _code(error: sqlite3.Error) -> int:
    """The primary code: the extended ones keep it in their lowest byte."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
