"""Reading what somebody else wrote: JSON from strangers, and deflated bytes, with an end to both.

JSON is read as I-JSON (RFC 7493) wants it sent: UTF-8, no name twice in an object, and no NaN. Python's reader takes
all of these, and what it makes of them differs from what the sender, or the next reader, makes of them: of two values
of one name it keeps the last. (Half of a surrogate pair is left to whoever writes the text on: it spoils one field.)

Deflate makes a thousand bytes of one. So what was written with it says how long it is, outside of it: no more than that
is made of it, and nothing at all if that is more than the reader could ever need.
"""

import json
import zlib
from typing import Any, Final

from onefold.errors import BadInput

INFLATED_BYTES_MAX: Final = 1 << 30
"""Of a state: 20 million chains in one bucket; a value of a JVM, in which it travels, ends at two of these."""


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
        names = [name for name, _ in pairs]
        twice = next(name for name in values if names.count(name) > 1)
        raise ValueError(f"the name {json.dumps(twice[:60])} is there twice in one object")
    return values


_decode: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant).decode


def inflate(data: bytes, size: int, what: str, *, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """The ``size`` bytes that these were deflated from; `BadInput` that begins with ``what`` if that is not so.

    >>> inflate(zlib.compress(b"coffee"), 6, "a cup")
    b'coffee'
    >>> inflate(zlib.compress(bytes(1_000_000)), 6, "a cup")
    Traceback (most recent call last):
    onefold.errors.BadInput: a cup: more than the 6 bytes that it says it has
    """
    if not 0 <= size <= bytes_max:
        raise BadInput(f"{what}: says that it has {size:,} bytes, at most {bytes_max:,} are read", bytes=size)
    reader = zlib.decompressobj()
    try:
        inflated = reader.decompress(data, size + 1)
    except zlib.error as error:
        raise BadInput(f"{what}: {error}") from error
    if len(inflated) > size:
        raise BadInput(f"{what}: more than the {size:,} bytes that it says it has", bytes=size)
    if len(inflated) < size or not reader.eof or reader.unused_data:
        raise BadInput(f"{what}: {len(inflated):,} bytes, and not the {size:,} that it says it has", bytes=size)
    return inflated
