"""Negentropy: which ids each of two sides lacks, in a few round trips and a few bytes."""

from onefold.engines.negentropy.bound import INFINITY, Bounds
from onefold.engines.negentropy.items import Items, ItemSet
from onefold.engines.negentropy.limits import FRAME_SIZE_MIN, FRAME_SIZE_MIN_XOR, Limits, Spent
from onefold.engines.negentropy.records import Record, id_of, record
from onefold.engines.negentropy.session import LIST_BELOW, SPLIT, Reconciled, Session, frame_size_min
from onefold.engines.negentropy.violation import SessionLimit, Violation
from onefold.engines.negentropy.window import Window

__all__ = [
    "FRAME_SIZE_MIN",
    "FRAME_SIZE_MIN_XOR",
    "INFINITY",
    "LIST_BELOW",
    "SPLIT",
    "Bounds",
    "ItemSet",
    "Items",
    "Limits",
    "Reconciled",
    "Record",
    "Session",
    "SessionLimit",
    "Spent",
    "Violation",
    "Window",
    "frame_size_min",
    "id_of",
    "record",
]
