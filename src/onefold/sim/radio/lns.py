"""Receptions as the messages of a Basics Station: ``updf`` and ``jreq``, in JSON.

Stations say addresses and integrity codes as *signed* 32-bit numbers, ids with dashes, a missing port as -1. Lines are
put together from text: the part that is the frame's is made once per frame, and nothing in it needs escaping.
"""

from __future__ import annotations

from collections.abc import Iterator

from onefold.engines.lorawan.frames import DataUp, Frame
from onefold.sim.radio.traffic import RadioTraffic


def messages(made: RadioTraffic) -> Iterator[tuple[int, int, str]]:
    """Gateway, arrival in ms and LNS message of every reception, in order of arrival."""
    heard = made.receptions
    said = [_frame(frame) for frame in made.frames]
    times = made.air.time_ms[heard.transmission]
    columns = (made.truth.frame, heard.gateway, heard.at_ms, times, heard.rssi, heard.snr)
    numbers = (heard.frequency_hz, heard.data_rate, heard.xtime)
    rows = zip(*(column.tolist() for column in columns + numbers), strict=True)
    for frame, gateway, at_ms, time_ms, rssi, snr, frequency, data_rate, xtime in rows:
        seconds = f"{time_ms // 1000}.{time_ms % 1000:03d}"
        yield (
            gateway,
            at_ms,
            f'{said[frame]},"RefTime":{seconds},"DR":{data_rate},"Freq":{frequency},"upinfo":{{"rctx":0,'
            f'"xtime":{xtime},"gpstime":0,"fts":-1,"rssi":{rssi},"snr":{snr},"rxtime":{seconds}}}}}',
        )


def dashed(eui: int) -> str:
    """An id as stations write it.

    >>> dashed(0x70B3D57ED0000001)
    '70-B3-D5-7E-D0-00-00-01'
    """
    return eui.to_bytes(8, "big").hex("-").upper()


def signed(number: int) -> int:
    """The same 32 bits as a signed number.

    >>> signed(0xFC00AC01)
    -67064831
    """
    return number - (1 << 32) if number >> 31 else number


def _frame(frame: Frame) -> str:
    if isinstance(frame, DataUp):
        return (
            f'{{"msgtype":"updf","MHdr":{frame.mhdr},"DevAddr":{signed(frame.dev_addr)},"FCtrl":{frame.fctrl},'
            f'"FCnt":{frame.fcnt},"FOpts":"{frame.fopts.hex().upper()}",'
            f'"FPort":{-1 if frame.fport is None else frame.fport},'
            f'"FRMPayload":"{frame.payload.hex().upper()}","MIC":{signed(frame.mic)}'
        )
    return (
        f'{{"msgtype":"jreq","MHdr":{frame.mhdr},"JoinEui":"{dashed(frame.join_eui)}",'
        f'"DevEui":"{dashed(frame.dev_eui)}","DevNonce":{frame.dev_nonce},"MIC":{signed(frame.mic)}'
    )
