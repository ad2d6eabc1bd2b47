"""A SQLite file that keeps its word: what was committed outlives a crash and a power cut, or it is not opened.

Two settings decide that. With a rollback journal (SQLite's default) a power cut can undo the last commit; with WAL and
``synchronous=FULL`` each commit is synced before it returns. SQLite does not raise when it cannot have WAL (in memory,
on some network disks): it answers with the mode that it has. So the answer is checked.

Writers take turns: a transaction begins with ``BEGIN IMMEDIATE``, so it holds the one write lock before it reads what
it is going to change. A deferred one would read first and then find that another process wrote in between. Whoever
waits longer than ``busy_s`` gives up with `StoreFailed`. SQLite's locks belong to the process that holds them and go
with it, also at ``kill -9``: no lock here can run out while its owner still works.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from time import monotonic, sleep

from onefold.errors import BadInput, Damaged, Misuse, StoreFailed

# A commit is one sync, some milliseconds: this is hundreds of others before us in the queue. (Python's default, too.)
BUSY_S = 5.0
SYNCHRONOUS_FULL = 2
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database:
    """One connection to a file. Not locked among threads: its owner sees to that."""

    def __init__(self, path: str | PathLike[str], schema: Sequence[str] = (), *, busy_s: float = BUSY_S) -> None:
        """Open or create the file; ``schema``: statements that make what is not there yet (``if not exists``)."""
        self.path = fspath(path)
        with self._told():
            self._connection = sqlite3.connect(self.path, timeout=busy_s, isolation_level=None, check_same_thread=False)
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
        """One transaction, alone among all writers; durable when it ends, undone if anything is raised in it."""
        with self._told():
            try:
                # Within: a Ctrl-C that comes while it waits for the lock is raised when it has got it.
                self._connection.execute("begin immediate")
                yield self._connection
                self._connection.execute("commit")
            finally:
                if self._connection.in_transaction:  # not committed: an error of ours, or the disk's
                    self._connection.execute("rollback")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For one statement: what was committed when it began. Waits for no writer."""
        with self._told():
            yield self._connection

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        self._connection.close()

    def _ask_for_wal(self, deadline: float) -> str:
        # Two processes that open a new file at once: SQLite does not let the second wait for this, so we do.
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
            raise  # our own mistake: a closed connection, a statement that is wrong
        except sqlite3.Error as error:
            kind = Damaged if _code(error) in _DAMAGED else StoreFailed
            raise kind(f"{self.path}: {error}", path=self.path) from error
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise BadInput(f"{self.path} cannot keep the text {error.object!r:.100}") from error


def _code(error: sqlite3.Error) -> int:
    """The primary code: the extended ones keep it in their lowest byte."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
