"""Frames as they are on the air (LoRaWAN 1.0 PHYPayload), parsed and built.

::

    data     MHDR 1 | DevAddr 4 | FCtrl 1 | FCnt 2 | FOpts 0-15 | [FPort 1 | FRMPayload] | MIC 4
    join     MHDR 1 | JoinEUI 8 | DevEUI 8 | DevNonce 2 | MIC 4

All numbers are little-endian, and unsigned here whatever a station's JSON says. The upper three bits of MHDR are the
type, the lower two must be 0; the lower four of FCtrl are the length of FOpts. FRMPayload stays encrypted: judging does
not need it. Foreign bytes give a frame or `BadInput`, which names the offset and the value.

Two receptions are the same frame if they have the same level-1 key. The key of a data frame is made of its address,
MIC, bytes and counter; the MIC covers the rest, so a device that sends the same measurement again has another key. The
key of a join request is made of JoinEUI, DevEUI and nonce. Both are SHA-256 over fixed little-endian layouts, as
deployed, so that the keys of other systems compare. Cost: about a microsecond.

The frame counter has 32 bits in the device and in the MIC, and 16 bits on the air. The upper half is guessed from the
last counter of the device, and the MIC shows which guess is right. Most often it is the smallest counter at or above
the last that ends in these 16 bits, also across a roll-over. Otherwise it is a late or replayed frame from below, or
the device restarted at zero. Cost: three guesses at most, one MIC each.
"""

from hashlib import sha256
from struct import Struct, error
from typing import NamedTuple, TypeAlias, TypeVar

from onefold.errors import BadInput, Misuse

_HEAD = Struct("<II")
_JOIN_LAYOUT = Struct("<QQH")
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
        dev_addr, mic = _bits("dev_addr", dev_addr, 32, -(1 << 31)), _bits("mic", mic, 32, -(1 << 31))
        return sha256(_HEAD.pack(dev_addr, mic) + payload + _U16.pack(_bits("fcnt", fcnt, 16))).digest()


def join_key(*, join_eui: int, dev_eui: int, dev_nonce: int) -> bytes:
    """The key of a join request: SHA-256 over JoinEUI (u64), DevEUI (u64) and DevNonce (u16).

    >>> join_key(join_eui=0, dev_eui=0, dev_nonce=0).hex()[:16]
    '60daa3a5f7dbfa20'
    """
    try:
        return sha256(_JOIN_LAYOUT.pack(join_eui, dev_eui, dev_nonce)).digest()
    except error:
        for name, value, bits in (("join_eui", join_eui, 64), ("dev_eui", dev_eui, 64), ("dev_nonce", dev_nonce, 16)):
            _bits(name, value, bits)
        raise


def _bits(name: str, value: int, bits: int, low: int = 0) -> int:
    if type(value) is not int or not low <= value < 1 << bits:
        raise Misuse(f"{name} is {value!r}, must be a whole number of {bits} bits", **{name: value}) from None
    return value & ((1 << bits) - 1)


JOIN_REQUEST, UNCONFIRMED_UP, UNCONFIRMED_DOWN, CONFIRMED_UP, CONFIRMED_DOWN = 0x00, 0x40, 0x60, 0x80, 0xA0
TYPE_BITS, MAJOR_BITS = 0xE0, 0x03
ADR, ACK, PENDING, FOPTS_BITS = 0x80, 0x20, 0x10, 0x0F

PHY_BYTES_MAX = 255
"""What a LoRa modem can send at once."""
DATA_BYTES_MIN, JOIN_BYTES = 12, 23

_DATA = Struct("<BIBH")
_JOIN = Struct("<BQQH")
_MIC = Struct("<I")


class _DataFrame(NamedTuple):
    mhdr: int
    dev_addr: int
    fctrl: int
    fcnt: int
    """The 16 bits that are on the air."""
    fopts: bytes
    fport: int | None
    payload: bytes
    mic: int

    @property
    def confirmed(self) -> bool:
        return self.mhdr & TYPE_BITS in (CONFIRMED_UP, CONFIRMED_DOWN)

    @property
    def ack(self) -> bool:
        return bool(self.fctrl & ACK)

    @property
    def raw(self) -> bytes:
        """All that the MIC covers: the frame without its MIC."""
        head = _DATA.pack(self.mhdr, self.dev_addr, self.fctrl, self.fcnt) + self.fopts
        return head if self.fport is None else head + bytes((self.fport,)) + self.payload

    @property
    def phy(self) -> bytes:
        return self.raw + _MIC.pack(self.mic)


class DataUp(_DataFrame):
    """A data frame from a device, as `parse` reads it; its counter has the 16 bits that travel."""

    __slots__ = ()

    @property
    def adr(self) -> bool:
        return bool(self.fctrl & ADR)

    @property
    def first(self) -> bool:
        """Its counter on the air is 0 or 1, with which a device begins."""
        return self.fcnt <= 1

    @property
    def key(self) -> bytes:
        return data_key(dev_addr=self.dev_addr, mic=self.mic, payload=self.raw, fcnt=self.fcnt)


class DataDown(_DataFrame):
    """A data frame to a device, such as an acknowledgement, as `parse_down` reads it."""

    __slots__ = ()

    @property
    def pending(self) -> bool:
        """More is waiting for the device."""
        return bool(self.fctrl & PENDING)


class JoinRequest(NamedTuple):
    """A device asks to join the network; it uses each ``dev_nonce`` once."""

    mhdr: int
    join_eui: int
    dev_eui: int
    dev_nonce: int
    mic: int

    @property
    def raw(self) -> bytes:
        return _JOIN.pack(self.mhdr, self.join_eui, self.dev_eui, self.dev_nonce)

    @property
    def phy(self) -> bytes:
        return self.raw + _MIC.pack(self.mic)

    @property
    def key(self) -> bytes:
        """The key on level 1; the MIC is no part of it."""
        return join_key(join_eui=self.join_eui, dev_eui=self.dev_eui, dev_nonce=self.dev_nonce)


Frame: TypeAlias = DataUp | JoinRequest
"""A frame from a device, as `parse` reads it."""
_Data = TypeVar("_Data", DataUp, DataDown)


def parse(phy: bytes) -> Frame:
    """Parse a frame from a device.

    >>> parse(bytes.fromhex("40da1b0126000100010102" "57f51e45"))  # doctest: +ELLIPSIS
    DataUp(mhdr=64, dev_addr=637606874, fctrl=0, fcnt=1, fopts=b'', fport=1, payload=b'\\x01\\x02', mic=1159656791)
    >>> parse(b"").key
    Traceback (most recent call last):
    onefold.errors.BadInput: a frame of 0 bytes: there must be 12 to 255
    """
    kind = _kind(phy)
    if kind in (UNCONFIRMED_UP, CONFIRMED_UP):
        return _data(DataUp, phy)
    if kind == JOIN_REQUEST:
        if len(phy) != JOIN_BYTES:
            raise BadInput(f"a join request of {len(phy)} bytes: there must be {JOIN_BYTES}", length=len(phy))
        return JoinRequest(*_JOIN.unpack_from(phy), *_MIC.unpack_from(phy, JOIN_BYTES - 4))
    raise BadInput(f"byte 0 is 0x{phy[0]:02x}: no data frame from a device and no join request", offset=0, value=phy[0])


def parse_down(phy: bytes) -> DataDown:
    """Parse a data frame to a device; `BadInput`, with the offset, for anything else."""
    if _kind(phy) in (UNCONFIRMED_DOWN, CONFIRMED_DOWN):
        return _data(DataDown, phy)
    raise BadInput(f"byte 0 is 0x{phy[0]:02x}: no data frame to a device", offset=0, value=phy[0])


def _kind(phy: bytes) -> int:
    if not DATA_BYTES_MIN <= len(phy) <= PHY_BYTES_MAX:
        must = f"there must be {DATA_BYTES_MIN} to {PHY_BYTES_MAX}"
        raise BadInput(f"a frame of {len(phy)} bytes: {must}", length=len(phy))
    if phy[0] & MAJOR_BITS:
        raise BadInput(f"byte 0 is 0x{phy[0]:02x}: major version {phy[0] & 3}, only 0 is known", offset=0, value=phy[0])
    return phy[0] & TYPE_BITS


def _data(cls: type[_Data], phy: bytes) -> _Data:
    mhdr, dev_addr, fctrl, fcnt = _DATA.unpack_from(phy)
    end, port = len(phy) - 4, _DATA.size + (fctrl & FOPTS_BITS)
    if port > end:
        problem = f"byte 5 is 0x{fctrl:02x}: {fctrl & FOPTS_BITS} bytes of options, but there are {end - _DATA.size}"
        raise BadInput(problem, offset=5, value=fctrl)
    fport, payload = (phy[port], phy[port + 1 : end]) if port < end else (None, b"")
    fopts, (mic,) = phy[_DATA.size : port], _MIC.unpack_from(phy, end)
    return cls(mhdr, dev_addr, fctrl, fcnt, bytes(fopts), fport, bytes(payload), mic)


EPOCH = 1 << 16
COUNTER_MAX = (1 << 32) - 1


def candidates(last: int | None, fcnt: int) -> tuple[int, ...]:
    """The 32-bit counters that can have these 16 bits, most likely first.

    >>> candidates(None, 7), candidates(6, 7), candidates(65_535, 0)
    ((7,), (7,), (65536, 0))
    >>> candidates(200_000, 3_392), candidates(200_000, 3_391)
    ((200000, 134464, 3392), (265535, 199999, 3391))
    """
    if last is None:
        return (fcnt,)
    ahead = last + (fcnt - last) % EPOCH
    if ahead < EPOCH:
        return (ahead,)
    below = (ahead - EPOCH,) if ahead - EPOCH == fcnt else (ahead - EPOCH, fcnt)
    return below if ahead > COUNTER_MAX else (ahead, *below)
