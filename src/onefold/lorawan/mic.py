"""The message integrity code: four bytes of AES-CMAC that only the device and its network can make.

For data it covers a block B0 (direction, address and *32-bit* counter) followed by the frame; so a code is right for
one counter only, and a replay with another upper half fails. For a join request it covers the frame alone. This is
LoRaWAN 1.0; the two keys of 1.1 are not supported.

This is the only file that needs the ``cryptography`` package. Cost: some microseconds per code. The most recent keys
are kept expanded.
"""

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from onefold.errors import Misuse
from onefold.lorawan import frames
from onefold.lorawan.frames import DataDown, DataUp, JoinRequest, candidates

KEY_BYTES = 16
KEYS_KEPT_MAX = 4_096
_B0 = Struct("<B4xBIIxB")


@lru_cache(maxsize=KEYS_KEPT_MAX)
def _expanded(key: bytes) -> CMAC:
    if len(key) != KEY_BYTES:
        raise Misuse(f"a key of {len(key)} bytes: there must be {KEY_BYTES}", length=len(key))  # never its value
    return CMAC(AES(key))


def _code(key: bytes, message: bytes) -> int:
    cmac = _expanded(key).copy()
    cmac.update(message)
    return int.from_bytes(cmac.finalize()[:4], "little")


def data_mic(nwk_skey: bytes, raw: bytes, dev_addr: int, fcnt: int, *, down: bool = False) -> int:
    """The code of a data frame for this 32-bit counter; ``raw``: the frame without its MIC."""
    return _code(nwk_skey, _B0.pack(0x49, down, dev_addr, fcnt, len(raw)) + raw)


def join_mic(app_key: bytes, raw: bytes) -> int:
    return _code(app_key, raw)


def find_counter(nwk_skey: bytes, frame: DataUp, last: int | None) -> int | None:
    """The 32-bit counter for which the frame's code is right, given the last one; None: there is none.

    >>> frame = signed_up(nwk_skey=bytes(16), dev_addr=1, fcnt=65_536)
    >>> frame.fcnt, find_counter(bytes(16), frame, 65_535), find_counter(bytes(16), frame, None)
    (0, 65536, None)
    """
    return find_owner([(nwk_skey, last)], frame)[1]


def find_owner(devices: Iterable[tuple[bytes, int | None]], frame: DataUp | DataDown) -> tuple[int, int | None, int]:
    """Find the sender of a frame among devices that share its address, each given by its key and last counter.

    Returns the position of the device, the 32-bit counter for which the code is right (None: no device fits), and how
    many codes were tried. Cost: one pass, with three codes for each device at most.

    >>> frame = signed_up(nwk_skey=bytes(16), dev_addr=1, fcnt=7)
    >>> find_owner([(b"x" * 16, None), (bytes(16), 6)], frame), find_owner([(b"x" * 16, 70_000)], frame)
    ((1, 7, 2), (0, None, 3))
    """
    raw, dev_addr, mic, down, tried = frame.raw, frame.dev_addr, frame.mic, isinstance(frame, DataDown), 0
    for at, (nwk_skey, last) in enumerate(devices):
        for counter in candidates(last, frame.fcnt):
            tried += 1
            if data_mic(nwk_skey, raw, dev_addr, counter, down=down) == mic:
                return at, counter, tried
    return 0, None, tried


def signed_up(
    *, nwk_skey: bytes, dev_addr: int, fcnt: int, payload: bytes = b"", fport: int | None = 1, fopts: bytes = b"",
    confirmed: bool = False, adr: bool = False,
) -> DataUp:  # fmt: skip
    """A frame from a device, with its MIC; ``fcnt`` has 32 bits, ``payload`` is encrypted already."""
    if fport is None and payload:
        raise Misuse("a frame without a port has no payload", payload=payload)
    mhdr = frames.CONFIRMED_UP if confirmed else frames.UNCONFIRMED_UP
    fctrl = frames.ADR * adr | len(fopts)
    frame = DataUp(mhdr, dev_addr, fctrl, fcnt & 0xFFFF, fopts, fport, payload, 0)
    return frame._replace(mic=data_mic(nwk_skey, frame.raw, dev_addr, fcnt))


def signed_join(*, app_key: bytes, join_eui: int, dev_eui: int, dev_nonce: int) -> JoinRequest:
    request = JoinRequest(frames.JOIN_REQUEST, join_eui, dev_eui, dev_nonce, 0)
    return request._replace(mic=join_mic(app_key, request.raw))


def ack_down(*, nwk_skey: bytes, dev_addr: int, fcnt: int, pending: bool = False) -> bytes:
    """The bytes of an empty down frame that confirms the last uplink; ``fcnt`` has 32 bits."""
    fctrl = frames.ACK | frames.PENDING * pending
    frame = DataDown(frames.UNCONFIRMED_DOWN, dev_addr, fctrl, fcnt & 0xFFFF, b"", None, b"", 0)
    return frame._replace(mic=data_mic(nwk_skey, frame.raw, dev_addr, fcnt, down=True)).phy
