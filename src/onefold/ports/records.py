"""The doors to records that are reconciled (negentropy): what keeps them, and what carries bytes to a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onefold.engines.negentropy.items import Items
from onefold.engines.negentropy.records import Record


class Snapshot(Items, Protocol):
    """The records as they were at one moment, for one session; to be closed when that is over."""

    def close(self) -> None:
        """Let go of it. May be called twice."""
        ...


class Records(Protocol):
    """A set of records, each known by its id, in the order of time and id.

    Shared by threads, and by processes if it is a file. What was added is kept when ``add`` returns, as durably as the
    store can.
    """

    @property
    def id_size(self) -> int:
        """How many bytes an id has; the same for all."""
        ...

    def __len__(self) -> int: ...

    def add(self, records: Sequence[Record]) -> list[bool]:
        """Keep these, all or none; for each whether it is new. One that is there already stays as it is.

        A body is not held against its id: that is for whoever got it from somewhere. `BadInput` for an id of another
        size, the timestamp 2^64 - 1, or two records of one id among these with different timestamps.
        """
        ...

    def remove(self, ids: Sequence[bytes]) -> int:
        """Forget these; how many there were."""
        ...

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        """The records with these ids, in the same order; None for one that is not there."""
        ...

    def snapshot(self) -> Snapshot:
        """The records as they are now; later changes do not show in it."""
        ...

    def close(self) -> None:
        """Let go of the store; every other call is `Misuse` from then on. May be called twice."""
        ...


class Channel(Protocol):
    """Bytes both ways, in whole messages and in order. `ConnectionError` when it is lost."""

    def send(self, data: bytes) -> None:
        """Put a message on its way."""
        ...

    def receive(self) -> bytes:
        """The next message of the other side; waits for it, within the limits of the channel."""
        ...

    def close(self) -> None:
        """Say good-bye; never raises. May be called twice."""
        ...
