"""What stations send, decoded: what real stations send is taken, and everything else is named."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from onefold.errors import BadInput
from onefold.lorawan.links import lns as lns_json
from onefold.lorawan.links.lns import id6, parse_eui
from onefold.lorawan.radio import EU868, dashed, region

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "lorawan.json").read_text(encoding="utf-8"))
ACCEPT = VECTORS["lns_json"]["accept"]
UPDF, JREQ = ACCEPT[0]["json"], ACCEPT[2]["json"]


def decode(message):
    kind, fields = lns_json.read_message(json.dumps(message))
    frame = lns_json.data_up(fields) if kind == "updf" else lns_json.join_request(fields)
    return frame, *lns_json.read_radio(fields, EU868)


def changed(message, **fields):
    found = copy.deepcopy(message)
    found.update(fields)
    return {name: value for name, value in found.items() if value is not ...}


def test_an_uplink_is_the_frame_that_was_on_the_air():
    frame, radio, xtime, rctx = decode(UPDF)
    assert (frame.dev_addr, frame.fcnt, frame.fport, frame.payload) == (58_772_467, 164, 8, bytes.fromhex("5abbba"))
    assert frame.confirmed
    assert frame.mic == 2**32 - 1_943_282_916
    assert (radio.frequency_hz, radio.data_rate, radio.rssi, radio.snr) == (868_100_000, 4, -60, 9)
    assert (radio.time_ms, xtime, rctx) == (1_635_347_491_917, 40_250_921_680_313_459, 0)


def test_port_minus_one_is_no_port():
    frame = decode(ACCEPT[1]["json"])[0]
    assert (frame.fport, frame.payload) == (None, b"")
    assert len(frame.phy) == 12


def test_a_join_request_has_its_names_as_numbers():
    frame, expected = decode(JREQ)[0], ACCEPT[2]["expect"]
    assert (frame.join_eui, frame.dev_eui) == (expected["join_eui_u64"], expected["dev_eui_u64"])
    assert frame.dev_nonce == 41_675


@pytest.mark.parametrize("number", range(len(VECTORS["station_capture"]["messages"])))
def test_what_a_real_station_sent_is_taken_whatever_its_signs(number):
    case = VECTORS["station_capture"]["messages"][number]
    frame = decode(case["message"])[0]
    assert f"{frame.mic:08x}" == case["expect"]["mic_hex"]
    if case["message"]["msgtype"] == "updf":
        assert f"{frame.dev_addr:08x}" == case["expect"]["dev_addr_hex"]
        assert frame.confirmed == case["expect"]["confirmed"]


def test_address_and_code_may_be_unsigned_too():
    message = VECTORS["station_capture"]["messages"][9]["message"]
    unsigned = changed(message, DevAddr=message["DevAddr"] + 2**32, MIC=message["MIC"] + 2**32)
    assert decode(unsigned)[0] == decode(message)[0]


def test_the_time_is_that_of_gps_where_the_station_has_it():
    gps = changed(UPDF, upinfo={**UPDF["upinfo"], "gpstime": 1_478_800_119_000_000})
    assert decode(gps)[1].time_ms == 1_478_800_119_000 + 315_964_800_000 - 18_000
    for rxtime in (0, 1, None, "soon"):
        assert decode(changed(UPDF, upinfo={**UPDF["upinfo"], "rxtime": rxtime}))[1].time_ms is None


# Each line of the vectors as the messages that it stands for, and what the error says of it.
REJECT: dict[str, list[Any]] = {
    "updf MHdr 300": [(UPDF, {"MHdr": 300}, "MHdr is 300, must be a whole number, 0 to 255")],
    "updf FCtrl 300": [(UPDF, {"FCtrl": 300}, "FCtrl is 300")],
    "updf FCnt -164": [(UPDF, {"FCnt": -164}, "FCnt is -164, must be a whole number, 0 to 65535")],
    "updf FOpts 5 (number)": [(UPDF, {"FOpts": 5}, "FOpts is 5, must be the hex digits")],
    "updf FPort 300": [(UPDF, {"FPort": 300}, "FPort is 300, must be a whole number, -1 to 255")],
    "updf FPort -2": [(UPDF, {"FPort": -2}, "FPort is -2")],
    "updf FRMPayload 5 (number)": [(UPDF, {"FRMPayload": 5}, "FRMPayload is 5")],
    "updf FRMPayload null": [(UPDF, {"FRMPayload": None}, "FRMPayload is None")],
    "updf MIC 5.0": [(UPDF, {"MIC": 5.0}, "MIC is 5.0, must be a whole number")],
    "updf FPort -1 with FRMPayload 5ABBBA": [(UPDF, {"FPort": -1}, "FPort is -1 with an FRMPayload of 3 bytes")],
    "jreq MHdr 300": [(JREQ, {"MHdr": 300}, "MHdr is 300")],
    "jreq JoinEui without dashes": [(JREQ, {"JoinEui": "476278C8E5D2C4B5"}, "JoinEui is '476278C8E5D2C4B5', must be")],
    "jreq DevEui without dashes": [(JREQ, {"DevEui": "8527C1DFEEA4169E"}, "DevEui is '8527C1DFEEA4169E', must be")],
    "jreq DevNonce -41675": [(JREQ, {"DevNonce": -41_675}, "DevNonce is -41675")],
    "jreq MIC as string": [(JREQ, {"MIC": "1528855177"}, "MIC is '1528855177'")],
    "DR -2 / '0' / 301": [
        (message, {"DR": value}, f"DR is {value!r}") for message in (UPDF, JREQ) for value in (-2, "0", 301)
    ],
    "Freq missing / negative / string": [
        (message, {"Freq": value}, told)
        for message in (UPDF, JREQ)
        for value, told in ((..., "Freq is missing"), (-868_100_000, "Freq is -868100000"), ("868100000", "Freq is '8"))
    ],
}


def test_every_line_of_the_vectors_is_turned_into_messages():
    assert list(REJECT) == VECTORS["lns_json"]["reject"]


@pytest.mark.parametrize("line", REJECT)
def test_what_the_vectors_reject_is_rejected_with_field_and_value(line):
    for message, fields, told in REJECT[line]:
        with pytest.raises(BadInput) as caught:
            decode(changed(message, **fields))
        assert told in str(caught.value)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (changed(UPDF, MHdr=96), "MHdr is 96, must be 64 or 128"),
        (changed(UPDF, FCtrl=3), "FOpts has 0 bytes, FCtrl 3 says 3"),
        (changed(UPDF, FCnt=True), "FCnt is True"),
        (changed(UPDF, DevAddr=2**32), "DevAddr is 4294967296"),
        (changed(UPDF, DevAddr=-(2**31) - 1), "DevAddr is -2147483649"),
        (changed(UPDF, FRMPayload="5AB"), "FRMPayload is '5AB'"),
        (changed(UPDF, FRMPayload="5A BB"), "FRMPayload is '5A BB'"),
        (changed(UPDF, FRMPayload="5A\tBB\n"), r"FRMPayload is '5A\tBB\n'"),
        (changed(UPDF, FRMPayload="00" * 243), "FRMPayload has 243 bytes"),
        (changed(UPDF, DR=8), "DR is 8, EU868 has 0 to 7"),
        (changed(UPDF, upinfo=...), "upinfo is missing"),
        (changed(UPDF, upinfo={**UPDF["upinfo"], "xtime": None}), "xtime is None"),
        (changed(UPDF, upinfo={**UPDF["upinfo"], "rssi": "loud"}), "rssi is 'loud', must be a number, -1000 to 1000"),
        (changed(JREQ, DevEui=5), "DevEui is 5"),
        (changed(JREQ, JoinEui="47:62:78:C8:E5:D2:C4:B5"), "JoinEui is '47:62"),
    ],
)
def test_what_cannot_be_a_frame_is_named(message, told):
    with pytest.raises(BadInput) as caught:
        decode(message)
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "{}", '{"msgtype": 5}', '{"msgtype": NaN}', "[" * 100_000])
def test_what_is_no_message_is_bad_input(text):
    with pytest.raises(BadInput):
        lns_json.read_message(text)


def test_names_of_stations_come_in_many_forms():
    for text in ("0016c001ff10a235", "00-16-C0-01-FF-10-A2-35", "16:c001:ff10:a235", "router-16:c001:ff10:a235"):
        assert parse_eui(text, "router") == 0x16C001FF10A235
    for number in (0, 1, 0x16 << 48, 2**64 - 1, 0x0001000000000000, 0x0000000100000001, 0x16C001FF10A235):
        assert parse_eui(id6(number), "router") == parse_eui(dashed(number), "router") == number
    wrong: Any
    for wrong in ("", "x", "1:2:3", "1:2:3:4:5", "::1::2", "12345::1", 2**64, 1.5, None, [], "0" * 17):
        with pytest.raises(BadInput, match="router is"):
            parse_eui(wrong, "router")


def test_windows_of_the_regions():
    assert EU868.rx1(867_900_000, 0) == (867_900_000, 0)
    assert EU868.rx2 == (869_525_000, 0)
    us = region("US915")
    assert [us.rx1(902_300_000 + 200_000 * channel, 0)[0] for channel in (0, 7, 8, 63)] == [
        923_300_000, 927_500_000, 923_300_000, 927_500_000,
    ]  # fmt: skip
    assert us.rx1(904_600_000, 4) == (923_900_000, 13)  # channel 65
    assert [us.rx1(903_900_000, rate)[1] for rate in range(4)] == [10, 11, 12, 13]
    for plan in (EU868, us, region("US915", 8)):
        low, high = plan.frequencies
        conf = plan.radio
        tuned = [conf[f"radio_{c['radio']}"]["freq"] + c["if"] for n, c in conf.items() if "chan" in n and c["enable"]]
        assert sorted(set(tuned)) == sorted({channel[0] for channel in plan.channels})
        assert all(low <= frequency <= high for frequency in tuned)
        assert all(abs(c["if"]) <= 500_000 for n, c in conf.items() if "if" in c)
        assert len(plan.rates) == 16
