"""The way of the messages: what arrives, when, how often, and what never does.

Every chain has its own constant distance, so without faults its messages arrive in order. A late message is delayed on
top of that; a copy comes some time after the first delivery, never before it. So the truth is known by construction:
the row that delivers a message is FIRST, each copy of it REPEAT, and all other rows are damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from onefold.sim.faults import Faults
from onefold.sim.messages import Bools, Ints, Messages
from onefold.sim.part import KINDS, Part
from onefold.sim.plan import Plan

DISTANCE_MAX_MS: Final = 100
"""From any publisher to us: within one continent."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """Rows in arrival order: the message each comes from, when it arrives and the part it plays."""

    source: Ints
    arrival: Ints
    part: npt.NDArray[np.int8]
    lost: Bools
    """Per message, not per row."""


def deliver(rng: np.random.Generator, sent: Messages, plan: Plan, faults: Faults, *, text_numbers: bool) -> Delivery:
    """Send all messages through the faults."""
    arrival = _late(rng, sent, faults)
    heads = _late_heads(rng, sent, plan, faults)
    _hold_back(rng, heads, arrival, faults)
    lost = _losses(rng, sent, heads, plan.lost)
    originals = np.flatnonzero(~lost)
    copies = _copies(rng, originals, plan)
    victims = rng.choice(len(sent.starts), plan.poisoned, replace=False)
    poisoned = sent.starts[victims] + rng.integers(0, sent.lengths[victims])
    malformed = rng.integers(0, len(sent), plan.malformed)
    kinds = [kind for kind in KINDS if text_numbers or kind is not Part.TEXT_NUMBER]
    extra = [np.full(len(copies), Part.COPY), np.full(len(poisoned), Part.POISONED), np.resize(kinds, len(malformed))]
    source = np.concatenate([originals, copies, poisoned, malformed])
    part = np.concatenate([np.full(len(originals), Part.ORIGINAL), *extra]).astype(np.int8)
    arrivals = arrival[source]
    arrivals[len(originals) :] += rng.integers(0, faults.copy_delay_ms, len(source) - len(originals), endpoint=True)
    order = np.argsort(arrivals, kind="stable")  # stable: at the same ms an original stays before its copies
    return Delivery(source[order], arrivals[order], part[order], lost)


def _late(rng: np.random.Generator, sent: Messages, faults: Faults) -> Ints:
    """When each message would arrive first, were none lost."""
    on_time = sent.timestamp + rng.integers(1, DISTANCE_MAX_MS, len(sent.starts), endpoint=True)[sent.chain]
    late = np.flatnonzero(rng.random(len(sent)) < faults.reorder)
    latest = on_time[late] + faults.reorder_ms
    successor = np.minimum(late + 1, len(sent) - 1)
    follows = sent.chain[successor] == sent.chain[late]
    earliest = np.where(follows, np.minimum(on_time[successor] + 1, latest), on_time[late])
    arrival = on_time.copy()
    arrival[late] = rng.integers(earliest, latest, endpoint=True)
    return arrival


def _late_heads(rng: np.random.Generator, sent: Messages, plan: Plan, faults: Faults) -> Ints:
    """The first messages that shall arrive after their successors; both will be spared by the losses."""
    able = np.flatnonzero(sent.lengths > 1)
    chains = len(sent.starts)
    count = min(round(faults.late_heads * chains), len(able), plan.originals - chains)
    heads: Ints = sent.starts[rng.choice(able, count, replace=False)]
    return heads


def _hold_back(rng: np.random.Generator, heads: Ints, arrival: Ints, faults: Faults) -> None:
    delay = 1 + rng.integers(0, faults.reorder_ms, len(heads), endpoint=True)
    arrival[heads] = np.maximum(arrival[heads], arrival[heads + 1]) + delay


def _losses(rng: np.random.Generator, sent: Messages, heads: Ints, count: int) -> Bools:
    spared = np.zeros(len(sent), np.bool_)
    kept = sent.starts + rng.integers(0, sent.lengths)
    kept[sent.chain[heads]] = heads
    spared[kept] = True
    spared[heads + 1] = True
    lost = np.zeros(len(sent), np.bool_)
    lost[rng.choice(np.flatnonzero(~spared), count, replace=False)] = True
    return lost


def _copies(rng: np.random.Generator, originals: Ints, plan: Plan) -> Ints:
    copied = rng.choice(originals, plan.copied, replace=False)
    again = rng.choice(copied, plan.copies - plan.copied) if plan.copies else copied
    return np.concatenate([copied, again])
