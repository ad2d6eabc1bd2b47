"""The wire that is spoken today, version 1: every message begins with the byte 0x61; ids have 32 bytes.

    Message      := 0x61 <Range>*
    Range        := <upper bound> <mode: varint> <payload>
    Skip         := mode 0
    Fingerprint  := mode 1, 16 bytes: SHA-256(sum of the ids modulo 2^256, little-endian; varint of their count)
    IdList       := mode 2, <count: varint> <id>*

Versions are 0x60 to 0x6f. A server that is spoken to in another one answers with its own, alone, and the client decides
whether it can speak that; a client that gets such an answer has no session.

A server answers a list with its own ids in that range; ``sparse`` says which of them it can leave out.
"""

from typing import Final

from onefold.engines.negentropy.arrays import Ints, Rows
from onefold.engines.negentropy.fingerprint import HASHED_SIZE, hashed
from onefold.engines.negentropy.items import Items
from onefold.engines.negentropy.limits import FRAME_SIZE_MIN
from onefold.engines.negentropy.ranges import Mode, Ranges
from onefold.engines.negentropy.sparse import Answered, full_reply, sparse_reply
from onefold.engines.negentropy.violation import Violation
from onefold.engines.negentropy.wire import Replying
from onefold.errors import Misuse

VERSION: Final = 0x61
VERSIONS: Final = range(0x60, 0x70)
ID_SIZE: Final = 32


class WireV1:
    """Version 1 of the protocol."""

    head: Final = bytes([VERSION])
    frame_size_min: Final = FRAME_SIZE_MIN
    both_ways: Final = False

    def check(self, id_size: int) -> None:
        """Misuse, if ids do not have 32 bytes."""
        if id_size != ID_SIZE:
            raise Misuse(f"ids have {id_size} bytes; those of wire v1 have {ID_SIZE}", id_size=id_size)

    def fingerprint_size(self, id_size: int) -> int:
        """How many bytes a fingerprint has."""
        return HASHED_SIZE

    def fingerprints(self, items: Items, lower: Ints, upper: Ints) -> Rows:
        """One for each of these ranges of ranks. Cost: O(1) each, whatever the range."""
        return hashed(items.sums(lower, upper), upper - lower)

    def body(self, message: bytes, initiator: bool) -> int | None:
        """Where the ranges begin; None if a server is to answer with its version."""
        if not message:
            raise Violation("an empty message; it begins with its version", 0)
        version = message[0]
        if version not in VERSIONS:
            raise Violation(f"0x{version:02x} is no version of the protocol", 0, version=version)
        if version != VERSION:
            if initiator:
                raise Violation(f"the peer speaks version 0x{version:02x}, not 0x{VERSION:02x}", 0, version=version)
            return None
        return 1

    def modes(self, initiator: bool) -> frozenset[int]:
        """What a range may say."""
        return frozenset({Mode.SKIP, Mode.FINGERPRINT, Mode.ID_LIST})

    def replies(self, items: Items, answered: Answered, how: Replying) -> tuple[Ranges, Ints]:
        """Our ids in each listed range, or those of them around which something differs."""
        return sparse_reply(answered) if how.sparse else full_reply(answered)
