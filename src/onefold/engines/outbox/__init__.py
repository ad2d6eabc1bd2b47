"""Outbox (token-based deduplication): a message is processed only while its token exists, so each counts once."""

from onefold.engines.outbox.attempt import PLANS, RECOVERIES, checkpointed, parented, resumed, transactional
from onefold.engines.outbox.handling import ANSWERS, RULES, Out, handled, key_of, outgoings
from onefold.engines.outbox.record import Entity, Entry, Key, Message, Outgoing, pack, pack_entry, unpack_entry
from onefold.engines.outbox.source import Taken, mark_of, sourced, sourced_at_once
from onefold.engines.outbox.steps import Attempt, Handled, Outcome, Settled, Step

__all__ = [
    "ANSWERS",
    "PLANS",
    "RECOVERIES",
    "RULES",
    "Attempt",
    "Entity",
    "Entry",
    "Handled",
    "Key",
    "Message",
    "Out",
    "Outcome",
    "Outgoing",
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
]
