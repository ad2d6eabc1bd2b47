"""The truth beside the traffic: what a plain set with endless memory would say, and what can be known to be missing.

A lost message is *known* to be missing once a later one arrives that names its predecessor. So of a chain's lost
messages, each maximal run that such a message follows is one range ``(lower, upper]``; a run at the end of a chain, or
in a chain that names nothing, leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onefold.sim.columns import KEY_FIELDS, key_columns
from onefold.sim.messages import Bools, Ints, Messages
from onefold.sim.part import REJECTIONS, Part
from onefold.verdict import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What is so, whatever a judge may say."""

    rows: pa.Table
    """Per row, by ``offset``: ``verdict``; ``reason`` and the kind of ``damage``, null unless it is a REJECT."""
    lost: pa.Table
    """The messages never delivered: key, ``timestamp``, ``sequence``."""
    missing: pa.Table
    """The ranges known to be missing: key, ``lower_*`` (the last delivered below; null at the start of a chain) and
    ``upper_*`` (the last lost one), both a timestamp and a sequence."""


def truth(sent: Messages, part: npt.NDArray[np.int8], lost: Bools) -> Truth:
    """All three tables."""
    return Truth(_rows(part), _lost(sent, lost), _missing(sent, lost))


def _rows(part: npt.NDArray[np.int8]) -> pa.Table:
    delivers = {Part.ORIGINAL: Verdict.FIRST, Part.COPY: Verdict.REPEAT}
    verdicts = [str(delivers.get(p, Verdict.REJECT)) for p in Part]
    reasons = [REJECTIONS[p].reason if p in REJECTIONS else None for p in Part]
    damages = [p.name.lower() if p in REJECTIONS else None for p in Part]
    code = pa.array(part)
    columns = {
        "offset": pa.array(np.arange(len(part))),
        "verdict": pa.array(verdicts, pa.string()).take(code),
        "reason": pa.array(reasons, pa.string()).take(code),
        "damage": pa.array(damages, pa.string()).take(code),
    }
    return pa.table(columns)


def _lost(sent: Messages, lost: Bools) -> pa.Table:
    at = np.flatnonzero(lost)
    return _keyed(sent, at, {"timestamp": pa.array(sent.timestamp[at]), "sequence": pa.array(sent.sequence[at])})


def _missing(sent: Messages, lost: Bools) -> pa.Table:
    # Only a message that is not the first of its chain names one, so its neighbour is of the same chain.
    upper = np.flatnonzero(lost[:-1] & ~lost[1:] & sent.names_previous[1:])
    delivered = np.maximum.accumulate(np.where(lost, -1, np.arange(len(sent))))
    lower = delivered[upper]
    none = lower < sent.starts[sent.chain[upper]]
    columns = {
        "lower_timestamp": pa.array(sent.timestamp[lower], mask=none),
        "lower_sequence": pa.array(sent.sequence[lower], mask=none),
        "upper_timestamp": pa.array(sent.timestamp[upper]),
        "upper_sequence": pa.array(sent.sequence[upper]),
    }
    return _keyed(sent, upper, columns)


def _keyed(sent: Messages, at: Ints, columns: dict[str, pa.Array]) -> pa.Table:
    fields = [*KEY_FIELDS, *(pa.field(name, pa.int64()) for name in columns)]
    keys = key_columns(len(sent.starts), sent.chain[at])
    return pa.Table.from_arrays([*keys, *columns.values()], schema=pa.schema(fields))
