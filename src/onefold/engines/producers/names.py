"""What a producer may be called and how high it may count: the bounds of what a sender can say.

A name is text of 1 to 200 bytes of UTF-8, so that it fits into every frame and every snapshot; an Idempotency-Key is
held to the same. A sequence is a whole number from 0 to 2^63 - 2, so that the next one always fits into 64 bits too.
"""

from typing import Final

SEQUENCE_MAX: Final = 2**63 - 2
NAME_BYTES_MAX: Final = 200


def valid_name(name: object) -> bool:
    """Can this be the name of a producer, or a key?

    >>> valid_name("p"), valid_name(""), valid_name(None), valid_name("a" * 201), valid_name("half a pair: \\ud800")
    (True, False, False, False, False)
    """
    if type(name) is not str or not 0 < len(name) <= NAME_BYTES_MAX:
        return False
    try:
        return len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False
