"""Whose name it is: tells a producer's own new connection from another producer that took the name.

Every opening of a name gets the next epoch, and only the newest may write. A producer opens its name again after a lost
connection, so it must know whether somebody else did in between: then that one is the producer now, and this one is a
zombie which must stop, or its messages would be taken for repeats of the other's.

    epoch one above mine                    nobody was there
    epoch further above                     that many openings in between: another producer, or ghosts
    something stored beyond all I sent      another producer

A *ghost* is an opening of my own of which the greeting was lost: it may have counted, even a little later than the next
one. There can be as many ghosts as tries that ended so, and for a while only.
"""

from typing import Final

from onefold.errors import Busy, Misuse
from onefold.services.requests import Session

GHOST_S: Final = 60.0
"""How long a try that was given up may still be in some queue on the way."""


class Claim:
    """A producer's name, its epoch, and how far it is stored."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.epoch = 0
        self.last_sequence_id = -1
        """The highest id that is known to be stored."""
        self.sent = -1
        """The highest id that this producer has ever sent."""
        self.floor = -1
        self._ghosts = 0
        self._ghost_at = 0.0

    def unsure(self, now: float) -> None:
        """A try to open the name ended without an answer."""
        self._ghosts = self._around(now) + 1
        self._ghost_at = now

    def opened(self, session: Session, now: float) -> None:
        """The name was opened, perhaps again; `Misuse` if it shows that it is another producer's now."""
        if self.epoch:
            # A topic that forgot the producer gives out epochs above all that were forgotten, not the next one.
            forgotten = session.last_sequence_id < max(self.last_sequence_id, session.floor)
            between = 0 if forgotten else session.epoch - self.epoch - 1
            if between > self._around(now) or session.last_sequence_id > max(self.sent, self.last_sequence_id):
                raise self._taken()
            self._ghosts -= between
        self.name, self.epoch, self.floor = session.name, session.epoch, session.floor
        self.last_sequence_id = max(self.last_sequence_id, session.last_sequence_id)

    def fenced(self, now: float) -> Exception:
        """What it means that a newer epoch was given out: `Busy` if a ghost may have got it, or else `Misuse`."""
        if self._around(now):
            return Busy(f"producer {self.name!r}: an earlier try to connect came through late", name=self.name)
        return self._taken()

    def _around(self, now: float) -> int:
        return self._ghosts if now - self._ghost_at < GHOST_S else 0

    def _taken(self) -> Misuse:
        said = f"producer {self.name!r}: another producer took this name; this one may not send any more"
        return Misuse(said, name=self.name, epoch=self.epoch)
