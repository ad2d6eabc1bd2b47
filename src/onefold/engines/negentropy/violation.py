"""What can be wrong with a session: the peer broke the protocol, or a limit was reached.

Both are bad input: foreign bytes are not what they should be. A session that raises one of them is as it was before
the message, so the caller may close it, or (rarely) wait for a better message. Neither ever comes from an honest peer
within the limits.
"""

from typing import Any

from onefold.errors import BadInput


class Violation(BadInput):
    """The peer's message breaks the protocol; ``values["offset"]`` is the byte where.

    >>> raise Violation("unknown mode 7", 12, mode=7)
    Traceback (most recent call last):
    onefold.engines.negentropy.violation.Violation: byte 12: unknown mode 7
    """

    def __init__(self, what: str, offset: int, **values: Any) -> None:
        super().__init__(f"byte {offset}: {what}", offset=offset, **values)


class SessionLimit(BadInput):
    """The session reached one of its limits, which is named; it is over."""
