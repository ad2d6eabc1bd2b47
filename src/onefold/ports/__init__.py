"""Every door between what is decided and what keeps it: a few verbs each, no code.

What stands behind a door is chosen by the one who opens it. Whatever stands there passes the one contract suite of its
port, so that the suite, not the adapter, is what a caller may rely on.
"""

from onefold.ports.append_log import AppendLog, Draft, Record
from onefold.ports.counter_store import CounterStore
from onefold.ports.outbox import (
    FOREVER_MS,
    Buried,
    Delivery,
    EntityStore,
    Ledger,
    Live,
    Parcel,
    Queue,
    Stranded,
    Strayed,
    Token,
    TokenStore,
)
from onefold.ports.records import Channel, Records, Snapshot

__all__ = [
    "FOREVER_MS",
    "AppendLog",
    "Buried",
    "Channel",
    "CounterStore",
    "Delivery",
    "Draft",
    "EntityStore",
    "Ledger",
    "Live",
    "Parcel",
    "Queue",
    "Record",
    "Records",
    "Snapshot",
    "Stranded",
    "Strayed",
    "Token",
    "TokenStore",
]
