"""The 64-bit names of stations and devices, in all the ways in which they are written.

Basics Station writes an EUI with dashes (``00-16-C0-01-FF-10-A2-35``) or as ID6, four groups as in an IPv6 address
(``16:c001:ff10:a235``, ``::1``), perhaps behind ``router-``, or as a number, which may be signed. Here it is a number.
"""

import re
from typing import Final

from onefold.errors import BadInput
from onefold.services.gateway.radio_json import shown

MAX: Final = 2**64 - 1
PLAIN: Final = re.compile(r"[0-9a-fA-F]{16}|[0-9a-fA-F]{2}([-:][0-9a-fA-F]{2}){7}")
GROUPS: Final = re.compile(r"[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,3}")
GROUP_COUNT: Final = 4
TEXT_MAX: Final = 60


def parse_eui(value: object, field: str) -> int:
    """The number; `BadInput` names the field and what it was.

    >>> [parse_eui(x, "router") for x in ("::1", 1, "00-00-00-00-00-00-00-01", "router-0:0:0:1", "0000000000000001")]
    [1, 1, 1, 1, 1]
    >>> f"{parse_eui('16::a235', 'router'):016x} {parse_eui(-1, 'router'):016x}"
    '001600000000a235 ffffffffffffffff'
    """
    if type(value) is int and -(2**63) <= value <= MAX:
        return value & MAX
    if isinstance(value, str) and len(value) <= TEXT_MAX:
        text = value.removeprefix("router-")
        if PLAIN.fullmatch(text):
            return int(text.replace("-", "").replace(":", ""), 16)
        found = _id6(text)
        if found is not None:
            return found
    raise BadInput(f"{field} is {shown(value)}, must be an EUI, such as 00-16-C0-01-FF-10-A2-35 or 16:c001:ff10:a235")


def parse_dashed(value: object, field: str) -> int:
    """The number of an EUI with dashes, as the EUIs of devices are sent; nothing else will do.

    >>> f"{parse_dashed('85-27-C1-DF-EE-A4-16-9E', 'DevEui'):x}"
    '8527c1dfeea4169e'
    """
    if type(value) is str and len(value) == 23 and value[2::3] == "-------" and PLAIN.fullmatch(value):
        return int(value.replace("-", ""), 16)
    raise BadInput(f"{field} is {shown(value)}, must be an EUI with dashes, such as 00-16-C0-01-FF-10-A2-35")


def dashed(eui: int) -> str:
    """As stations write the EUI of a device.

    >>> dashed(0x16C001FF10A235)
    '00-16-C0-01-FF-10-A2-35'
    """
    return eui.to_bytes(8, "big").hex("-").upper()


def id6(eui: int) -> str:
    """As stations write their own; the longest run of zero groups, of two or more, is left out.

    >>> [id6(x) for x in (0, 1, 0x16C001FF10A235, 0x16 << 48, 0x160000000000A235)]
    ['::0', '::1', '16:c001:ff10:a235', '16::', '1600::a235']
    """
    if eui == 0:
        return "::0"
    groups = [eui >> shift & 0xFFFF for shift in (48, 32, 16, 0)]
    for length in (3, 2):
        for at in range(GROUP_COUNT - length + 1):
            if not any(groups[at : at + length]):
                front, back = (":".join(f"{g:x}" for g in part) for part in (groups[:at], groups[at + length :]))
                return f"{front}::{back}"
    return ":".join(f"{group:x}" for group in groups)


def _id6(text: str) -> int | None:
    front, gap, back = text.partition("::")
    if any(part and not GROUPS.fullmatch(part) for part in (front, back)):
        return None
    groups = [part.split(":") if part else [] for part in (front, back)]
    missing = GROUP_COUNT - len(groups[0]) - len(groups[1])
    if missing < 0 or (not gap and missing):
        return None
    number = 0
    for group in [*groups[0], *["0"] * missing, *groups[1]]:
        number = number << 16 | int(group, 16)
    return number
