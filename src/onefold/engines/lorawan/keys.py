"""What makes two receptions the same frame: the two keys of level 1.

A data frame is known by its address, MIC, bytes and counter; the MIC covers the rest, so a device that sends the same
measurement again has another key. A join request is known by who wants to join where, and its nonce. Both are SHA-256
over fixed little-endian layouts, as deployed, so that keys of other systems compare.

Cost: one hash of a frame, about a microsecond.
"""

from hashlib import sha256
from struct import Struct, error

from onefold.errors import Misuse

_HEAD = Struct("<II")
_JOIN = Struct("<QQH")
_U16 = Struct("<H")


def data_key(*, dev_addr: int, mic: int, payload: bytes, fcnt: int) -> bytes:
    """The key of a data frame: SHA-256 over DevAddr (u32), MIC (u32), the frame's bytes and FCnt (u16).

    ``payload`` is all that the MIC covers (`DataUp.raw`). Stations send address and MIC as signed numbers: both
    spellings of one number give one key.

    >>> data_key(dev_addr=1, mic=2, payload=b"", fcnt=3).hex()[:16]
    '6ad2ab46aa76cd9c'
    >>> data_key(dev_addr=-1, mic=2, payload=b"", fcnt=3) == data_key(dev_addr=0xFFFFFFFF, mic=2, payload=b"", fcnt=3)
    True
    """
    try:
        return sha256(_HEAD.pack(dev_addr, mic) + payload + _U16.pack(fcnt)).digest()
    except error:
        return sha256(_HEAD.pack(_u32("dev_addr", dev_addr), _u32("mic", mic)) + payload + _u16("fcnt", fcnt)).digest()


def join_key(*, join_eui: int, dev_eui: int, dev_nonce: int) -> bytes:
    """The key of a join request: SHA-256 over JoinEUI (u64), DevEUI (u64) and DevNonce (u16).

    >>> join_key(join_eui=0, dev_eui=0, dev_nonce=0).hex()[:16]
    '60daa3a5f7dbfa20'
    """
    try:
        return sha256(_JOIN.pack(join_eui, dev_eui, dev_nonce)).digest()
    except error:
        for name, value in (("join_eui", join_eui), ("dev_eui", dev_eui)):
            if not (type(value) is int and 0 <= value < 1 << 64):
                raise Misuse(f"{name} is {value!r}, must be a whole number of 64 bits", **{name: value}) from None
        _u16("dev_nonce", dev_nonce)
        raise


def _u32(name: str, value: int) -> int:
    if type(value) is not int or not -(1 << 31) <= value < 1 << 32:
        raise Misuse(f"{name} is {value!r}, must be a whole number of 32 bits", **{name: value}) from None
    return value & 0xFFFFFFFF


def _u16(name: str, value: int) -> bytes:
    if type(value) is not int or not 0 <= value < 1 << 16:
        raise Misuse(f"{name} is {value!r}, must be a whole number of 16 bits", **{name: value}) from None
    return _U16.pack(value)
