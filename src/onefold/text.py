"""Foreign text made safe to show: without control characters for a terminal, and without passwords."""

import re
from typing import Final
from unicodedata import category

TEXT_MAX: Final = 300
"""Characters of it that are shown."""
OBEYED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that a terminal acts on: controls, text direction, surrogates, line separators."""
_LOGIN: Final = re.compile(r"(://[^\s/@:?#]*):[^\s/?#]*@")  # linear: neither part goes beyond the next ://


def plain(value: object, most: int = TEXT_MAX) -> str:
    """A foreign value as one short, printable line.

    >>> plain(chr(27) + "[2J later" + chr(10)), plain("a" + chr(0x202E) + "b" * 100, 8)
    ('?[2J later?', 'a?bbb...')
    """
    text = str(value)
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with control characters escaped, except those in ``keep``.

    >>> printable("red" + chr(27) + "[31m, back" + chr(0x202E) + ", next" + chr(10), keep="")
    'red\\\\x1b[31m, back\\\\u202e, next\\\\n'
    """
    if text.isprintable():
        return text
    return "".join(
        sign.encode("unicode_escape").decode() if category(sign) in OBEYED and sign not in keep else sign
        for sign in text
    )


def without_logins(text: str) -> str:
    """The text with the passwords in URLs hidden.

    >>> without_logins("no answer from http://me:secret@host:80/a@b and redis://:secret@host")
    'no answer from http://me:(hidden)@host:80/a@b and redis://:(hidden)@host'
    """
    return _LOGIN.sub(r"\1:(hidden)@", text) if "@" in text else text
