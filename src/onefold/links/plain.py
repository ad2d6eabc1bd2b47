"""What the other side says, as it may be shown."""

from typing import Final

TEXT_MAX: Final = 300
"""Characters that are shown of it."""


def plain(text: str) -> str:
    """A foreign text as one line that is not long, in which there is nothing that a terminal obeys.

    >>> plain(chr(27) + "[2J later" + chr(10))
    '?[2J later?'
    """
    return "".join(sign if sign.isprintable() else "?" for sign in text[:TEXT_MAX])
