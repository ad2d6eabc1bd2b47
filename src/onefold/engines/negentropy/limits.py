"""What a session may cost, whatever the peer sends: rounds, bytes and ids that it says we lack.

An honest session has few rounds: the logarithm of the records, and what frame limits force. Of two forced rounds one
after the other, what did not fit into the first is in the second: together they carry a frame in one direction. So one
more round is allowed for every quarter of the smallest frame that passed (v1: 1,024 bytes, xor: 256), and bytes have a
limit of their own. Time is the caller's to limit; an engine has no clock.
"""

from dataclasses import dataclass
from typing import Final

from onefold.engines.negentropy.violation import SessionLimit
from onefold.errors import Misuse

FRAME_SIZE_MIN: Final = 4_096  # as the published v1 implementations have it
FRAME_SIZE_MIN_XOR: Final = 1_024  # as the published implementation of that wire has it


@dataclass(frozen=True)
class Limits:
    """The limits of one session."""

    rounds_max: int = 64  # a billion records need 8; the rest is for peers that split otherwise
    bytes_max: int = 1 << 30  # both directions; a million records that all differ take 64 MB
    needs_max: int = 10_000_000  # a list of 32-byte ids of that length is 320 MB

    def __post_init__(self) -> None:
        for name in ("rounds_max", "bytes_max", "needs_max"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name} is {getattr(self, name)}, must be at least 1", **{name: getattr(self, name)})


@dataclass(frozen=True)
class Spent:
    """What a session has cost so far."""

    rounds: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    needs: int = 0

    def received(self, size: int, limits: Limits, frame_size_min: int = FRAME_SIZE_MIN) -> "Spent":
        """With one more message from the peer, whose frames are no smaller; SessionLimit if that is too much."""
        passed = self.bytes_in + size + self.bytes_out
        if passed > limits.bytes_max:
            raise SessionLimit(f"the session is over: {passed} bytes passed, bytes_max is {limits.bytes_max}")
        forced_bytes = frame_size_min // 4
        rounds_max = limits.rounds_max + passed // forced_bytes
        if self.rounds >= rounds_max:
            raise SessionLimit(
                f"the session is over: {self.rounds} rounds, rounds_max is {limits.rounds_max} (and one more for every "
                f"{forced_bytes} bytes)",
                rounds=self.rounds,
            )
        return Spent(self.rounds + 1, self.bytes_in + size, self.bytes_out, self.needs)

    def found(self, needs: int, limits: Limits) -> "Spent":
        """With so many more ids that we lack; SessionLimit if these are too many."""
        if self.needs + needs > limits.needs_max:
            raise SessionLimit(
                f"the session is over: the peer told {self.needs + needs} ids, needs_max is {limits.needs_max}",
                needs=self.needs + needs,
            )
        return Spent(self.rounds, self.bytes_in, self.bytes_out, self.needs + needs)

    def sent(self, size: int) -> "Spent":
        """With one more message to the peer."""
        return Spent(self.rounds, self.bytes_in, self.bytes_out + size, self.needs)
