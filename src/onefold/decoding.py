"""Reading what somebody else wrote: JSON from strangers.

JSON is read as I-JSON (RFC 7493) wants it sent: UTF-8, no name twice in an object, and no NaN. Python's reader takes
all of these, and what it makes of them differs from what the sender, or the next reader, makes of them: of two values
of one name it keeps the last. (Half of a surrogate pair is left to whoever writes the text on: it spoils one field.)
"""

import json
from collections import Counter
from typing import Any, Final

from onefold.errors import BadInput


def read_json(data: bytes | str, what: str) -> Any:
    """The value that these bytes are; `BadInput` that begins with ``what`` if they are no I-JSON.

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
    except ValueError as error:  # one of the two below, or a number with thousands of digits
        raise BadInput(f"{what} is not JSON that can be read: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the name {json.dumps(name[:60])} is there twice in one object")
    return values


_decode: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant).decode
