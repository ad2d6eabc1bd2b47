"""Negentropy: which ids each of two sides lacks, in a few round trips and a few bytes."""

from typing import TYPE_CHECKING

from onefold.moved import loaded_on_use
from onefold.reconcile.codec import FRAME_SIZE_MIN, FRAME_SIZE_MIN_XOR, Violation
from onefold.reconcile.items import INFINITY, Bounds, Items, ItemSet, Window
from onefold.reconcile.records import Record, Records, id_of, open_records, record
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

if TYPE_CHECKING:
    from onefold.reconcile.client import Reconciliation, beside, dial, reconcile
    from onefold.reconcile.server import ReconcileServer, ReconcileSettings

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
    "ReconcileServer",
    "ReconcileSettings",
    "Reconciled",
    "Reconciliation",
    "Record",
    "Records",
    "Session",
    "SessionLimit",
    "Spent",
    "Violation",
    "Window",
    "beside",
    "dial",
    "frame_size_min",
    "id_of",
    "open_records",
    "reconcile",
    "record",
]

_LATER = dict.fromkeys(("Reconciliation", "beside", "dial", "reconcile"), "client")
_LATER |= dict.fromkeys(("ReconcileServer", "ReconcileSettings"), "server")
__getattr__ = loaded_on_use(__name__, _LATER)
