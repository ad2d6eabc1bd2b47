"""Faulty traffic from one seed, with the truth beside it.

Chains of messages are published (`messages`), sent through the faults (`delivery`), some rows are spoilt (`damage`),
and what arrives is one table in arrival order. Because the faults are ours, the right verdict of every row is known and
so is every gap (`truth`): a judge is right if it says the same. The same settings make the same traffic, byte for byte.

Cost: about a second per million rows, whatever the number of chains; nothing runs per row in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from onefold.errors import Misuse
from onefold.sim.columns import key_columns, number_columns, payloads, schema
from onefold.sim.damage import Rows, spoil
from onefold.sim.delivery import Delivery, deliver
from onefold.sim.faults import DAY_MS, Faults, Range, check
from onefold.sim.messages import KEY, Messages, publish, spread
from onefold.sim.part import Part
from onefold.sim.plan import plan
from onefold.sim.truth import Truth, truth

__all__ = ["Faults", "Made", "Traffic", "Truth", "make"]

SPAN_MAX_MS: Final = 200_000_000_000
"""Six years: the most that ``rows * interval_ms`` may be, so that the far future stays far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What to make.

    >>> Traffic(rows=10, chains=20)
    Traceback (most recent call last):
    onefold.errors.Misuse: chains is 20, must be at most rows, which is 10
    """

    seed: int = 1
    rows: int = 10_000
    """Delivered rows, exactly: originals, copies, poisoned and malformed."""
    chains: int = 100
    skew: float = 0.0
    """How unequal the chains are: 0 equal, 1 as words are in a text (Zipf)."""
    ties: float = 0.05
    """Share of messages in the same ms as the one before; their sequence goes up instead."""
    interval_ms: int = 1_000
    """Mean time between two messages of a chain."""
    text_numbers: bool = False
    """Number columns as strings, as they come from CSV; then some malformed numbers are text."""
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        check(self, RANGES)
        if self.chains > self.rows:
            raise Misuse(f"chains is {self.chains}, must be at most rows, which is {self.rows}", chains=self.chains)
        if self.rows * self.interval_ms > SPAN_MAX_MS:
            most = SPAN_MAX_MS // self.rows
            text = f"interval_ms is {self.interval_ms}, must be at most {most} for {self.rows} rows"
            raise Misuse(text, interval_ms=self.interval_ms)
        if self.text_numbers not in (True, False):
            text = f"text_numbers is {self.text_numbers!r}, must be true or false"
            raise Misuse(text, text_numbers=self.text_numbers)
        plan(self.rows, self.chains, self.faults)


RANGES: Final[Mapping[str, Range]] = {
    "seed": (0, 2**63 - 1),
    "rows": (1, 50_000_000),  # above it the payloads no longer fit into one Arrow string column of 2 GiB
    "chains": (1, 50_000_000),
    "skew": (0.0, 4.0),
    "ties": (0.0, 0.9),  # so that no sequence ever comes near its limit of 2^20
    "interval_ms": (1, DAY_MS),
}


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Traffic, and the truth about it."""

    traffic: Traffic
    messages: pa.Table
    """In arrival order; ``offset`` is the row's place in it."""
    truth: Truth


def make(traffic: Traffic) -> Made:
    """Make the traffic.

    >>> made = make(Traffic(rows=1000, chains=10))
    >>> len(made.messages), made.messages.column_names[4:8]
    (1000, ['timestamp', 'sequence', 'previous_timestamp', 'previous_sequence'])
    """
    rng = np.random.default_rng(traffic.seed)
    faults, text_numbers = traffic.faults, traffic.text_numbers
    counts = plan(traffic.rows, traffic.chains, faults)
    lengths = spread(rng, counts.messages, traffic.chains, traffic.skew)
    sent = publish(rng, lengths, ties=traffic.ties, interval_ms=traffic.interval_ms, no_previous=faults.no_previous)
    delivery = deliver(rng, sent, counts, faults, text_numbers=text_numbers)
    rows = _rows(sent, delivery)
    spoil(rng, rows, delivery.part)
    return Made(traffic, _table(traffic, sent, delivery, rows), truth(sent, delivery.part, delivery.lost))


def _rows(sent: Messages, delivery: Delivery) -> Rows:
    at = delivery.source
    no_previous = ~sent.names_previous[at]
    before = np.where(no_previous, at, at - 1)
    numbers = {
        "timestamp": sent.timestamp[at],
        "sequence": sent.sequence[at],
        "previous_timestamp": sent.timestamp[before],
        "previous_sequence": sent.sequence[before],
    }
    nulls = {name: np.zeros(len(at), np.bool_) for name in (*KEY, "timestamp", "sequence")}
    nulls |= {name: no_previous.copy() for name in ("previous_timestamp", "previous_sequence")}
    return Rows(numbers, nulls)


def _table(traffic: Traffic, sent: Messages, delivery: Delivery, rows: Rows) -> pa.Table:
    # A poisoned row is no copy: it has a payload of its own.
    ids = delivery.source + len(sent) * (delivery.part == Part.POISONED)
    columns = [
        *key_columns(traffic.chains, sent.chain[delivery.source], rows.nulls),
        *number_columns(rows, text_numbers=traffic.text_numbers),
        pa.array(delivery.arrival),
        payloads(traffic.seed, ids),
        pa.array(np.arange(traffic.rows)),
    ]
    return pa.Table.from_arrays(columns, schema=schema(text_numbers=traffic.text_numbers))
