"""The two streams of a queue in JetStream, and the consumers.

``NAME`` holds the parcels: one subject for each queue, retention by work queue, so what is acknowledged is gone.
``NAME-dead`` holds the dead letters. A stream that is there already is taken as it is, if nothing can get lost in it:
in memory, with an age, or with a limit that throws out the oldest, it is `Misuse` that names the setting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from onefold.errors import Misuse

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")


@dataclass(frozen=True, slots=True)
class Names:
    """What things are called.

    >>> names = Names("onefold")
    >>> names.subject("orders.eu"), names.consumer("orders.eu"), names.queue("onefold.queue.orders.eu")
    ('onefold.queue.orders.eu', 'orders=eu', 'orders.eu')
    """

    stream: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.stream):
            raise Misuse(f"stream is {self.stream!r:.200}, must be 1 to 100 letters, digits, '-' and '_'")

    @property
    def dead(self) -> str:
        """The stream of the dead letters."""
        return f"{self.stream}-dead"

    def subject(self, queue: str) -> str:
        """Where the parcels of a queue go."""
        return f"{self.stream}.queue.{queue}"

    def dead_subject(self, queue: str) -> str:
        """Where its dead letters go."""
        return f"{self.stream}.dead.{queue}"

    def consumer(self, queue: str) -> str:
        """Who gives them out: the name of a consumer has no dots."""
        return queue.replace(".", "=")

    def queue(self, subject: str) -> str:
        """The queue that a subject, of either stream, belongs to."""
        return subject.split(".", 2)[2]


class Receipt(NamedTuple):
    """What the address for acknowledgements, which comes with each parcel, says.

    >>> Receipt.parse("$JS.ACK.onefold.orders=eu.2.17.20.1763283600000000000.0")
    Receipt(stream='onefold', consumer='orders=eu', times=2, sequence=17)
    """

    stream: str
    consumer: str
    times: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read one; `Misuse` for a receipt of another kind of queue."""
        parts = text.split(".")
        # Servers that know of domains put two names more in front, and a word behind.
        named = parts[2:] if len(parts) == 9 else parts[4:]
        if parts[:2] != ["$JS", "ACK"] or len(parts) not in (9, 11, 12) or not text.isprintable() or " " in text:
            raise Misuse(f"no receipt of this queue: {text!r:.200}", receipt=text)
        try:
            return cls(named[0], named[1], int(named[2]), int(named[3]))
        except ValueError:
            raise Misuse(f"no receipt of this queue: {text!r:.200}", receipt=text) from None


async def make_streams(js: JetStreamContext, names: Names, replicas: int | None) -> None:
    """Make what is not there, and look at what is."""
    kept = StreamConfig(storage=StorageType.FILE, discard=DiscardPolicy.NEW, num_replicas=replicas or 1)
    work = kept.evolve(
        name=names.stream, subjects=[names.subject(">")], retention=RetentionPolicy.WORK_QUEUE, duplicate_window=0
    )
    dead = kept.evolve(name=names.dead, subjects=[names.dead_subject(">")], retention=RetentionPolicy.LIMITS)
    for wanted in (work, dead):
        try:
            found = (await js.stream_info(str(wanted.name))).config
        except NotFoundError:
            found = (await js.add_stream(wanted)).config
        _check(found, wanted, replicas)


def _check(found: StreamConfig, wanted: StreamConfig, replicas: int | None) -> None:
    same = ["subjects", "retention", "storage", *(["num_replicas"] if replicas else [])]
    for name in same:
        if getattr(found, name) != getattr(wanted, name):
            raise Misuse(f"stream {wanted.name}: {name} is {_told(found, name)}, must be {_told(wanted, name)}")
    if found.max_age:
        raise Misuse(f"stream {wanted.name}: max_age is {found.max_age} s: parcels would be lost")
    if found.no_ack or found.persist_mode == PersistMode.ASYNC:
        raise Misuse(f"stream {wanted.name}: it acknowledges before it has written (no_ack or persist_mode)")
    limits = [name for name in _LIMITS if (getattr(found, name) or -1) > 0]
    if limits and found.discard != DiscardPolicy.NEW:
        raise Misuse(f"stream {wanted.name}: {limits[0]} with discard old: parcels would be lost")


def _told(config: StreamConfig, name: str) -> str:
    value = getattr(config, name)
    return str(getattr(value, "value", value))


def consumer_config(names: Names, queue: str, lease_ms: int) -> ConsumerConfig:
    """A consumer that everybody who leases from this queue shares.

    No limit to what is on loan: parcels that wait out a delay count as on loan, and would stop the others.
    """
    return ConsumerConfig(
        durable_name=names.consumer(queue),
        filter_subject=names.subject(queue),
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=lease_ms / 1000,
        max_ack_pending=-1,
        max_deliver=-1,
    )
