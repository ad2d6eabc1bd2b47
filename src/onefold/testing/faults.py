"""The faults of messages on their way, each as a rate.

The same settings and seed give the same faults again. The defaults are a bad day on a public network, not a
catastrophe; `NONE` is a network that never fails.

A `Plan` has the counts, so that exactly the requested rows are made:

    rows = originals + copies + poisoned + malformed          messages = originals + lost

Extra rows are counted first. The remaining rows are originals and their copies; lost messages take no row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, TypeAlias, get_type_hints

from onefold.errors import Misuse

DAY_MS: Final = 86_400_000
Share: TypeAlias = Annotated[float, (0.0, 1.0)]
"""With the range that `check` enforces."""
MostlyLess: TypeAlias = Annotated[float, (0.0, 0.9)]
Delay: TypeAlias = Annotated[int, (0, 30 * DAY_MS)]
COPIES_EACH: Final = 1.25
"""Rows per copied message beside the original: most are repeated once, some twice or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The rates of all faults; a share of messages unless said otherwise.

    >>> Faults(losses=2)
    Traceback (most recent call last):
    onefold.errors.Misuse: losses is 2, must be between 0.0 and 0.9
    """

    copies: Share = 0.10
    """Delivered again, once or more. Reported are 1 to 30 % where senders retry or several receivers hear one frame."""
    copy_delay_ms: Delay = 60_000
    """Maximal delay of a copy after the first delivery. 60 s: the memory of LoRaWAN network servers."""
    reorder: Share = 0.05
    """Delivered late, and after the successor where `reorder_ms` allows it."""
    reorder_ms: Delay = 10_000
    """The maximal delay: ten messages at the default interval."""
    losses: MostlyLess = 0.002
    """Never delivered at all; each chain keeps at least one message."""
    late_heads: Share = 0.02
    """Share of *chains* whose first message arrives after its successor."""
    no_previous: Share = 0.0
    """Share of *chains* whose messages never name their predecessor: best-effort publishers."""
    poisoned: Share = 0.0
    """Share of *chains* that get one extra row from the far future, as an attack."""
    malformed: MostlyLess = 0.0
    """Share of *rows* that are extra, damaged copies, every kind in turn."""

    def __post_init__(self) -> None:
        check(self)


def check(settings: object) -> None:
    """Raise `Misuse` for the first field outside the range in its type; whole bounds ask for a whole number."""
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        for low, high in getattr(hint, "__metadata__", ()):
            kinds = (int,) if isinstance(low, int) else (int, float)
            if type(value) not in kinds or math.isnan(value) or not low <= value <= high:
                whole = "a whole number " if kinds == (int,) else ""
                raise Misuse(f"{name} is {value!r}, must be {whole}between {low} and {high}", **{name: value})


@contextmanager
def whole_folder(path: Path, name: str) -> Iterator[Path]:
    """A new folder to write into, renamed to ``path`` when all is written; that must not exist, or be empty."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise Misuse(f"{name} is {str(path)!r}, which exists and is not an empty directory", **{name: str(path)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        whole = Path(temporary) / path.name  # one level down: the temporary directory itself is private
        whole.mkdir()
        yield whole
        whole.rename(path)


NONE: Final = Faults(copies=0, reorder=0, losses=0, late_heads=0)
"""Every message arrives once, in order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts that add up.

    >>> plan(1000, 10, Faults(copies=0.1, losses=0.002))
    Plan(originals=889, lost=2, copied=89, copies=111, poisoned=0, malformed=0)
    """

    originals: int
    lost: int
    copied: int
    """Messages with at least one copy."""
    copies: int
    poisoned: int
    malformed: int


def plan(rows: int, chains: int, faults: Faults) -> Plan:
    """Distribute the rows; `Misuse` if the extra rows leave less than one row per chain."""
    poisoned, malformed = round(faults.poisoned * chains), round(faults.malformed * rows)
    room = rows - poisoned - malformed
    if room < chains:
        extra = f"{poisoned:,} poisoned and {malformed:,} malformed rows"
        raise Misuse(f"rows is {rows}, must hold {extra} and one row for each of {chains:,} chains", rows=rows)
    originals = max(chains, round(room / (1 + COPIES_EACH * faults.copies)))
    copies = room - originals
    copied = min(copies, max(1, round(faults.copies * originals)))
    lost = round(originals * faults.losses / (1 - faults.losses))
    return Plan(originals, lost, copied, copies, poisoned, malformed)
