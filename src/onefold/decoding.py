"""Strict JSON from untrusted sources.

JSON is read as I-JSON (RFC 7493): UTF-8, no name twice in an object, and no NaN. Python's reader accepts all of these,
and readers differ in what they make of them; of two values with one name it keeps the last. (A lone surrogate is
accepted here: it concerns one field only, and its writer.)
"""

import json
from collections import Counter
from typing import Any, Final

from onefold.errors import BadInput


def read_json(data: bytes | str, what: str) -> Any:
    """Decode JSON; if it is not I-JSON, raise `BadInput` with a text that begins with ``what``.

    >>> read_json(b'{"a": [1, null]}', "the body")
    {'a': [1, None]}
    >>> read_json(b'{"a": 1, "a": 2}', "the body")
    Traceback (most recent call last):
    onefold.errors.BadInput: the body is not JSON that can be read: the name "a" is there twice in one object
    """
    try:
        return _decode(data if isinstance(data, str) else data.decode())
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} is not UTF-8: byte {error.start}", offset=error.start) from None
    except RecursionError:
        raise BadInput(f"{what} is not JSON that can be read: it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{what} is not JSON: {error.msg} at character {error.pos}", offset=error.pos) from None
    except ValueError as error:  # from the two functions below, or an int of thousands of digits
        raise BadInput(f"{what} is not JSON that can be read: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the name {json.dumps(name[:60])} is there twice in one object")
    return values


_decode: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).decode
