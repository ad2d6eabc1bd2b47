"""The kinds of error, by what the caller can do about them.

A verdict is never an exception: a duplicate is the normal case. The errors are bad input (quarantine it), misuse (fix
the call), a stale write or a busy server (try again), a failed store (try again when the cause is fixed) and a damaged
store (inspect it). Each carries the offending values; its text is one line that names the place and the value.
"""

from typing import Any


class OnefoldError(Exception):
    """The root of all errors that onefold raises on purpose; ``values`` holds what was wrong.

    >>> try:
    ...     raise Misuse("gap_count_max is 0, must be at least 1", gap_count_max=0)
    ... except OnefoldError as error:
    ...     print(error, error.values)
    gap_count_max is 0, must be at least 1 {'gap_count_max': 0}
    """

    def __init__(self, message: str, **values: Any) -> None:
        super().__init__(message)
        self.values = values


class BadInput(OnefoldError):
    """Foreign data is invalid: set it aside and continue, or stop and report it."""


class Misuse(OnefoldError):
    """An invalid request of the caller: fix the call, the setting or the file."""


class StaleWrite(OnefoldError):
    """Another writer was faster: read again and try again."""


class Busy(OnefoldError):
    """A bounded queue is full: nothing was accepted, try again in a moment."""


class StoreFailed(OnefoldError):
    """A write to the store failed and was not acknowledged. Try again when the named cause is fixed."""


class Damaged(OnefoldError):
    """Stored data is missing or altered; the place is named, and nothing is guessed."""
