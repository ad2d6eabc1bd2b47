"""Reading what gateways write: JSON from a stranger, field by field, each within its range.

Every reader names the field and the value that is wrong (`BadInput`), shortened, because a stranger chose it too.
Times are the exception: a gateway without a good clock still hears well, so a time that cannot be read is no time.
"""

import base64
import binascii
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from onefold.decoding import read_json
from onefold.errors import BadInput

SHOWN_MAX: Final = 60
PHY_BYTES_MAX: Final = 255
"""The length of a LoRa packet is one byte."""
FREQUENCY_HZ_MAX: Final = 2**32 - 1
GPS_EPOCH_MS: Final = 315_964_800_000
"""6 January 1980. Before it no gateway was built: an earlier clock was never set."""
GPS_LEAP_MS: Final = 18_000
"""GPS time is so far ahead of UTC since 2017, and no further second is announced."""
TIME_MS_MAX: Final = 2**53


def shown(value: object) -> str:
    """The value as an error may show it: one line, short, printable.

    >>> shown("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    if isinstance(value, dict | list):  # its text may be long, and deep
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    told = repr(value) if not isinstance(value, int) or abs(value) < 10**SHOWN_MAX else "a giant number"
    return told if len(told) <= SHOWN_MAX else told[:SHOWN_MAX] + "..."


def document(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object that these bytes are."""
    found = read_json(data, what)
    if not isinstance(found, dict):
        raise BadInput(f"{what} is {shown(found)}, must be a JSON object")
    return found


def integer(source: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A whole number of this range; 868100000.0 is one."""
    value = source.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadInput(f"{name} is {shown(value)}, must be a whole number of {low} to {high}", field=name)
    return value


def number(source: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """A number of this range."""
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadInput(f"{name} is {shown(value)}, must be a number of {low:g} to {high:g}", field=name)
    return value


def decibels(source: Mapping[str, Any], name: str) -> float | None:
    """A level in dB or dBm; None: it is not given."""
    return None if source.get(name) is None else number(source, name, -1_000, 1_000)


def text(source: Mapping[str, Any], name: str) -> str:
    """A string."""
    value = source.get(name)
    if not isinstance(value, str):
        raise BadInput(f"{name} is {shown(value)}, must be a string", field=name)
    return value


def part(source: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object inside the object."""
    value = source.get(name)
    if not isinstance(value, dict):
        raise BadInput(f"{name} is {shown(value)}, must be an object", field=name)
    return value


def octets(source: Mapping[str, Any], name: str, bytes_max: int = PHY_BYTES_MAX) -> bytes:
    """Bytes in base64; some gateways leave the padding away, and Semtech's own example has the alphabet of URLs."""
    value = text(source, name)
    if len(value) > 4 * (bytes_max + 3) // 3:
        raise BadInput(f"{name} has {len(value)} characters, that is more than {bytes_max} bytes", field=name)
    plain = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadInput(f"{name} is {shown(value)}, must be base64", field=name) from None


def moment_ms(source: Mapping[str, Any], name: str) -> int | None:
    """Milliseconds since 1970 from an ISO 8601 time (UTC if it names no zone); None: not given, or no such time.

    >>> moment_ms({"time": "2013-03-31T16:21:17.528002Z"}, "time")
    1364746877528
    >>> moment_ms({"time": "1970-01-01T00:00:08Z"}, "time") is None
    True
    """
    said = source.get(name)
    if not isinstance(said, str):
        return None
    try:
        read = datetime.fromisoformat(said)
        since = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return trusted_ms(math.floor(since * 1_000))


def gps_ms(source: Mapping[str, Any], name: str) -> int | None:
    """Milliseconds since 1970 from the milliseconds of GPS time; None: not given, or no such time.

    >>> gps_ms({"tmms": 1_384_000_018_000}, "tmms"), gps_ms({"tmms": "soon"}, "tmms")
    (1699964800000, None)
    """
    said = source.get(name)
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= TIME_MS_MAX:
        return None
    return trusted_ms(GPS_EPOCH_MS + math.floor(said) - GPS_LEAP_MS)


def trusted_ms(time_ms: int) -> int | None:
    """The time, unless it is that of a clock which nobody set."""
    return time_ms if GPS_EPOCH_MS <= time_ms <= TIME_MS_MAX else None
