"""How much is remembered: every limit of the memory, its default, and why.

A limit that is reached is an answer (UNSURE ``producers_full``, ``keys_full``, ``forgotten``), never a duplicate that
counts and never a message that is dropped. The limits bind what is *admitted*; what the log holds is always remembered.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, TypedDict

from onefold.errors import Misuse

MemoryKind: TypeAlias = Literal["highest", "gaps"]

PRODUCERS_MAX = 100_000
"""Below 50 MB with their digests. Pulsar puts at most 10,000 into a snapshot and loses the others without a word."""
GAP_COUNT_MAX = 10_000
"""As for chains: a producer in the worst disorder stays below 1 MB."""
DIGESTS_MAX = 16
"""A retry repeats what was sent last. Kafka keeps the last 5 batches per producer for the same reason."""
FLOORS_COUNT = 65_536
"""A forgotten producer shares its floor with one name in 65,536; 13 MB when every bucket is in use."""
KEYS_MAX = 100_000
"""As many as producers, for about as much memory."""
KEYS_MS = 86_400_000
"""24 hours, as at Stripe: within them a retry is known, after them it is new."""
JUMP_MAX = 1 << 40
"""For servers, which take sequences from strangers. PIP-6's own example numbers messages by their offset in a file: no
line of one leaves out a tebibyte. In milliseconds it is 34 years. (Kafka takes the next sequence only, PIP-6 any.)"""


class Settings(TypedDict, total=False):
    """The keyword arguments of `Sequences`."""

    memory: MemoryKind
    producers_max: int
    gap_count_max: int
    digests_max: int
    floors_count: int
    keys_max: int
    keys_ms: int
    jump_max: int | None


class Bounds(NamedTuple):
    """The settings of a memory, all of them."""

    memory: MemoryKind = "highest"
    producers_max: int = PRODUCERS_MAX
    gap_count_max: int = GAP_COUNT_MAX
    digests_max: int = DIGESTS_MAX
    floors_count: int = FLOORS_COUNT
    keys_max: int = KEYS_MAX
    keys_ms: int = KEYS_MS
    jump_max: int | None = None
    """As published, a sequence may lie any distance ahead; see `JUMP_MAX`."""

    def checked(self) -> Bounds:
        """These bounds, if they make sense; else `Misuse` names the one that does not.

        >>> Bounds(keys_max=0).checked()
        Traceback (most recent call last):
        onefold.errors.Misuse: keys_max is 0, must be a whole number from 1
        """
        if self.memory not in ("highest", "gaps"):
            raise Misuse(f'memory is {self.memory!r}, must be "highest" or "gaps"', memory=self.memory)
        for name, value in zip(self._fields[1:], self[1:], strict=True):
            if name == "jump_max" and value is None:
                continue
            least = 0 if name == "digests_max" else 1
            if type(value) is not int or not least <= value < 2**63:
                raise Misuse(f"{name} is {value!r}, must be a whole number from {least}", **{name: value})
        return self
