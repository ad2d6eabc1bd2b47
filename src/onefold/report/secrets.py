"""What must be neither shown nor kept: passwords and their like, which settings may hold in options of readers."""

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "(hidden)"
_WORDS: Final = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|signature|(?:api|access|account|private|shared).?key"
)
_NAMES: Final = re.compile(rf"pass\b|{_WORDS}", re.I)
_LOGIN: Final = re.compile(r"(://[^/@:\s]{0,100}):\S{0,200}@")
_PAIR: Final = re.compile(rf"""((?:{_WORDS})[\w.-]{{0,40}}\s?=\s?)("[^"]*"|'[^']*'|[^\s&;,"']+)""", re.I)
"""As in the query of an address, and in what Kafka calls a JAAS configuration."""


def without_secrets(value: Any, name: str = "") -> Any:
    """The same, with what is named like a secret hidden, and the passwords in addresses and configurations too.

    >>> without_secrets({"options": {"password": "x", "url": "jdbc://me:x@db/t"}, "key": ["a"]})
    {'options': {'password': '(hidden)', 'url': 'jdbc://me:(hidden)@db/t'}, 'key': ['a']}
    >>> without_secrets(["jdbc:postgresql://db/t?user=me&password=x&ssl=true", 'Plain username="me" password="x y";'])
    ['jdbc:postgresql://db/t?user=me&password=(hidden)&ssl=true', 'Plain username="me" password=(hidden);']
    """
    if isinstance(value, Mapping):
        return {key: without_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner, name) for inner in value]
    if value is not None and not isinstance(value, bool) and _NAMES.search(name):
        return HIDDEN
    return _PAIR.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", value)) if isinstance(value, str) else value


def hidden_in(value: Any, name: str = "") -> list[str]:
    """Where something is hidden, by its dotted name: what is made of this has to come from elsewhere.

    >>> hidden_in({"source": {"path": "t", "options": {"password": "(hidden)", "url": "jdbc://me:(hidden)@db/t"}}})
    ['source.options.password', 'source.options.url']
    """
    if isinstance(value, dict):
        inner = ((f"{name}.{key}" if name else str(key), each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        inner = ((name, each) for each in value)
    else:
        return [name] if isinstance(value, str) and HIDDEN in value else []
    return [found for key, each in inner for found in hidden_in(each, key)]
