"""What a server keeps account of, over all its connections: sessions, bytes, errors, and the records that were pushed.

Of records that are pushed, arrivals are counted where a frame is read and verdicts where the store has answered. The
two are compared: on the page of metrics (`pending`, 0 at rest) and when the server stops, which fails if they differ.
"""

from __future__ import annotations

import threading
from collections import Counter

from onefold.tally import Tally
from onefold.verdict import Answer


class Books:
    """Counts, written by any thread.

    >>> from onefold.verdict import Verdict
    >>> books = Books()
    >>> books.sit(1), books.sit(1)
    (True, False)
    >>> books.leave()
    >>> books.count("fetched", 3)
    >>> books.sessions, books.of("fetched"), books.of("sessions")
    (0, 3, 1)
    >>> books.arrive(2); books.judge(Answer(Verdict.FIRST, "stored"))
    >>> str(books.pushed()), books.pushed().pending
    ('2 in != 1 first + 0 repeat + 0 unsure + 0 reject', 1)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._troubles: Counter[str] = Counter()
        self._pushed = Tally()
        self._sessions = 0

    @property
    def sessions(self) -> int:
        """How many are open."""
        return self._sessions

    def sit(self, sessions_max: int) -> bool:
        """One more session, if there is room for it."""
        with self._lock:
            if self._sessions >= sessions_max:
                return False
            self._sessions += 1
            self._counts["sessions"] += 1
            return True

    def leave(self) -> None:
        """One session less."""
        with self._lock:
            self._sessions -= 1

    def count(self, what: str, many: int = 1) -> None:
        """So many more of these."""
        with self._lock:
            self._counts[what] += many

    def of(self, what: str) -> int:
        """How many of these there were."""
        return self._counts[what]

    def arrive(self, many: int) -> None:
        """So many records came to be stored."""
        with self._lock:
            self._pushed.arrive(many)

    def judge(self, answer: Answer, many: int = 1) -> None:
        """So many of them were given this verdict."""
        with self._lock:
            self._pushed.judge(answer, many)

    def pushed(self) -> Tally:
        """The records that were pushed, as it stands now."""
        with self._lock:
            return Tally() + self._pushed

    def trouble(self, name: str) -> None:
        """One more error of this name was told."""
        with self._lock:
            self._troubles[name] += 1

    def troubles(self) -> dict[str, int]:
        """The errors that were told, by name."""
        with self._lock:
            return dict(self._troubles)
