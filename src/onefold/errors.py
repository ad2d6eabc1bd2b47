"""Three kinds of error and no fourth.

A verdict is never an exception: a duplicate is the normal case. What is left is bad input (quarantine it), misuse (fix
the caller) and a stale write (try again). Each carries the offending values; its text is one line that names the place
and the value.
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
