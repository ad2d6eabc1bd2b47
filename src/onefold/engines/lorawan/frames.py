"""Frames as they are on the air (LoRaWAN 1.0 PHYPayload), parsed and built.

::

    data     MHDR 1 | DevAddr 4 | FCtrl 1 | FCnt 2 | FOpts 0-15 | [FPort 1 | FRMPayload] | MIC 4
    join     MHDR 1 | JoinEUI 8 | DevEUI 8 | DevNonce 2 | MIC 4

All numbers are little-endian, and unsigned here whatever a station's JSON says. The upper three bits of MHDR are the
type, the lower two must be 0; the lower four of FCtrl are the length of FOpts. FRMPayload stays encrypted: nobody needs
to read it to judge it. Foreign bytes give a frame or `BadInput`, which names the offset and the value.
"""

from struct import Struct
from typing import NamedTuple, TypeAlias, TypeVar

from onefold.engines.lorawan.keys import data_key, join_key
from onefold.errors import BadInput

JOIN_REQUEST, UNCONFIRMED_UP, UNCONFIRMED_DOWN, CONFIRMED_UP, CONFIRMED_DOWN = 0x00, 0x40, 0x60, 0x80, 0xA0
TYPE_BITS, MAJOR_BITS = 0xE0, 0x03
ADR, ACK, PENDING, FOPTS_BITS = 0x80, 0x20, 0x10, 0x0F

PHY_BYTES_MAX = 255
"""What a LoRa modem can send at once."""
DATA_BYTES_MIN, JOIN_BYTES = 12, 23

_DATA = Struct("<BIBH")
_JOIN = Struct("<BQQH")
_MIC = Struct("<I")


class DataUp(NamedTuple):
    """A data frame from a device."""

    mhdr: int
    dev_addr: int
    fctrl: int
    fcnt: int
    """The 16 bits that are on the air."""
    fopts: bytes
    fport: int | None
    payload: bytes
    """FRMPayload, as on the air."""
    mic: int

    @property
    def confirmed(self) -> bool:
        """The device asks for a confirmation."""
        return self.mhdr & TYPE_BITS == CONFIRMED_UP

    @property
    def adr(self) -> bool:
        """The network may set the data rate."""
        return bool(self.fctrl & ADR)

    @property
    def ack(self) -> bool:
        """It confirms the last frame down."""
        return bool(self.fctrl & ACK)

    @property
    def first(self) -> bool:
        """Its counter, as on the air, is one that a device begins with."""
        return self.fcnt <= 1

    @property
    def raw(self) -> bytes:
        """All that the MIC covers: the frame without its MIC."""
        return _raw(self.mhdr, self.dev_addr, self.fctrl, self.fcnt, self.fopts, self.fport, self.payload)

    @property
    def phy(self) -> bytes:
        """The whole frame."""
        return self.raw + _MIC.pack(self.mic)

    @property
    def key(self) -> bytes:
        """What it is known by on level 1."""
        return data_key(dev_addr=self.dev_addr, mic=self.mic, payload=self.raw, fcnt=self.fcnt)


class DataDown(NamedTuple):
    """A data frame to a device."""

    mhdr: int
    dev_addr: int
    fctrl: int
    fcnt: int
    fopts: bytes
    fport: int | None
    payload: bytes
    mic: int

    @property
    def confirmed(self) -> bool:
        """The network asks for a confirmation."""
        return self.mhdr & TYPE_BITS == CONFIRMED_DOWN

    @property
    def ack(self) -> bool:
        """It confirms the last frame up."""
        return bool(self.fctrl & ACK)

    @property
    def pending(self) -> bool:
        """More is waiting for the device."""
        return bool(self.fctrl & PENDING)

    @property
    def raw(self) -> bytes:
        """All that the MIC covers."""
        return _raw(self.mhdr, self.dev_addr, self.fctrl, self.fcnt, self.fopts, self.fport, self.payload)

    @property
    def phy(self) -> bytes:
        """The whole frame."""
        return self.raw + _MIC.pack(self.mic)


class JoinRequest(NamedTuple):
    """A device wants to join."""

    mhdr: int
    join_eui: int
    dev_eui: int
    dev_nonce: int
    mic: int

    @property
    def raw(self) -> bytes:
        """All that the MIC covers."""
        return _JOIN.pack(self.mhdr, self.join_eui, self.dev_eui, self.dev_nonce)

    @property
    def phy(self) -> bytes:
        """The whole frame."""
        return self.raw + _MIC.pack(self.mic)

    @property
    def key(self) -> bytes:
        """What it is known by on level 1; the MIC is no part of it."""
        return join_key(join_eui=self.join_eui, dev_eui=self.dev_eui, dev_nonce=self.dev_nonce)


Frame: TypeAlias = DataUp | JoinRequest
_Data = TypeVar("_Data", DataUp, DataDown)


def parse(phy: bytes) -> Frame:
    """The frame from a device that these bytes are.

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
    """The frame to a device that these bytes are."""
    if _kind(phy) in (UNCONFIRMED_DOWN, CONFIRMED_DOWN):
        return _data(DataDown, phy)
    raise BadInput(f"byte 0 is 0x{phy[0]:02x}: no data frame to a device", offset=0, value=phy[0])


def _kind(phy: bytes) -> int:
    if not DATA_BYTES_MIN <= len(phy) <= PHY_BYTES_MAX:
        told = f"a frame of {len(phy)} bytes: there must be {DATA_BYTES_MIN} to {PHY_BYTES_MAX}"
        raise BadInput(told, length=len(phy))
    if phy[0] & MAJOR_BITS:
        raise BadInput(f"byte 0 is 0x{phy[0]:02x}: major version {phy[0] & 3}, only 0 is known", offset=0, value=phy[0])
    return phy[0] & TYPE_BITS


def _data(made: type[_Data], phy: bytes) -> _Data:
    mhdr, dev_addr, fctrl, fcnt = _DATA.unpack_from(phy)
    end, port = len(phy) - 4, _DATA.size + (fctrl & FOPTS_BITS)
    if port > end:
        told = f"byte 5 is 0x{fctrl:02x}: {fctrl & FOPTS_BITS} bytes of options, but there are {end - _DATA.size}"
        raise BadInput(told, offset=5, value=fctrl)
    fport, payload = (phy[port], phy[port + 1 : end]) if port < end else (None, b"")
    fopts, (mic,) = phy[_DATA.size : port], _MIC.unpack_from(phy, end)
    return made(mhdr, dev_addr, fctrl, fcnt, bytes(fopts), fport, bytes(payload), mic)


def _raw(mhdr: int, dev_addr: int, fctrl: int, fcnt: int, fopts: bytes, fport: int | None, payload: bytes) -> bytes:
    head = _DATA.pack(mhdr, dev_addr, fctrl, fcnt)
    return head + fopts if fport is None else head + fopts + bytes((fport,)) + payload
