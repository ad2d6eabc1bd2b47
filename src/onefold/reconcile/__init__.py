"""Negentropy: which ids each of two sides lacks, in a few round trips and a few bytes."""

from onefold.reconcile.codec import FRAME_SIZE_MIN, FRAME_SIZE_MIN_XOR, Violation
from onefold.reconcile.items import INFINITY, Bounds, Items, ItemSet, Window
from onefold.reconcile.records import Record, id_of, record
from onefold.reconcile.session import (
    LIST_BELOW,
    SPLIT,
    Limits,
    Reconciled,
    Session,
    SessionLimit,
    Spent,
    frame_size_min,
)

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
