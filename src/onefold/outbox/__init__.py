"""Outbox (token-based deduplication): a message is processed only while its token exists, so each counts once."""

from typing import TYPE_CHECKING

from onefold.moved import loaded_on_use
from onefold.outbox.plans import (
    ANSWERS,
    PLANS,
    RECOVERIES,
    RULES,
    Attempt,
    Entity,
    Entry,
    Handled,
    Key,
    Message,
    Out,
    Outcome,
    Outgoing,
    Retry,
    Settled,
    Step,
    Taken,
    checkpointed,
    handled,
    key_of,
    mark_of,
    outgoings,
    pack,
    pack_entry,
    parented,
    resumed,
    sourced,
    sourced_at_once,
    transactional,
    unpack_entry,
    unpack_message,
)

if TYPE_CHECKING:
    from onefold.outbox.desk import Desk, DeskApp
    from onefold.outbox.endpoint import Endpoint
    from onefold.outbox.stores.sqlite import MemoryLedger, MemoryQueue

__all__ = [
    "ANSWERS",
    "PLANS",
    "RECOVERIES",
    "RULES",
    "Attempt",
    "Desk",
    "DeskApp",
    "Endpoint",
    "Entity",
    "Entry",
    "Handled",
    "Key",
    "MemoryLedger",
    "MemoryQueue",
    "Message",
    "Out",
    "Outcome",
    "Outgoing",
    "Retry",
    "Settled",
    "Step",
    "Taken",
    "checkpointed",
    "handled",
    "key_of",
    "mark_of",
    "outgoings",
    "pack",
    "pack_entry",
    "parented",
    "resumed",
    "sourced",
    "sourced_at_once",
    "transactional",
    "unpack_entry",
    "unpack_message",
]

__getattr__ = loaded_on_use(
    __name__,
    {
        "Desk": "desk",
        "DeskApp": "desk",
        "Endpoint": "endpoint",
        "MemoryLedger": "stores.sqlite",
        "MemoryQueue": "stores.sqlite",
    },
)
