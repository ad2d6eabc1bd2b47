"""The kinds of error, by what the one who catches it can do.

A verdict is never an exception: a duplicate is the normal case. What is left: bad input (quarantine it), misuse (fix
the caller), a stale write or a busy server (try again), a failed store (try again when the cause is gone) and a damaged
one (look at it). Each carries the offending values; its text is one line that names the place and the value.
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
    """Foreign data is not what it should be: set it aside and go on, or stop and say so."""


class Misuse(OnefoldError):
    """The caller asked for something that makes no sense: fix the call, the setting or the file."""


class StaleWrite(OnefoldError):
    """Somebody else wrote in between: read again and try again."""


class Busy(OnefoldError):
    """A bounded queue is full: nothing was taken, try again in a moment."""


class StoreFailed(OnefoldError):
    """The store could not keep it: nothing was acknowledged. Try again when the cause, which is named, is gone."""


class Damaged(OnefoldError):
    """What the store once kept is not what it reads now: nothing is guessed, the place is named."""
