"""The packet forwarder's link, through real sockets; and what strangers send to it."""

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.lorawan.links import udp as wire
from onefold.lorawan.links.udp import Allow, Gateway, Gateways, SemtechUdp, UdpLimits
from onefold.lorawan.radio import EU868, Radio, Receiver, region
from onefold.lorawan.rules import MALFORMED
from tests.lib.hearing import (
    ANSWER,
    FRAME,
    JOIN,
    STATION,
    Ear,
    b64,
    is_acknowledgement,
    serving,
    until,
    upstream,
)

EUI = bytes.fromhex(STATION)
PACKET = {
    "time": "2013-03-31T16:21:17.528002Z",
    "tmst": 3_512_348_611,
    "chan": 2,
    "rfch": 0,
    "freq": 868.3,
    "stat": 1,
    "modu": "LORA",
    "datr": "SF7BW125",
    "codr": "4/6",
    "rssi": -35,
    "lsnr": 5.1,
    "size": len(FRAME.phy),
    "data": b64(FRAME.phy),
}


def push(*packets: Any, version: int = 2, eui: bytes = EUI, token: bytes = b"\xab\xcd", **more: Any) -> bytes:
    body = json.dumps({"rxpk": packets, **more}).encode()
    return bytes([version]) + token + b"\0" + eui + body


def pull(version: int = 2, eui: bytes = EUI, token: bytes = b"\x12\x34") -> bytes:
    return bytes([version]) + token + b"\2" + eui


class Forwarder(asyncio.DatagramProtocol):
    """A gateway's socket."""

    def __init__(self):
        self.got: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.got.put_nowait(data)

    def send(self, data: bytes) -> None:
        self.transport.sendto(data)

    async def next(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.got.get()

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.next()


@contextlib.asynccontextmanager
async def linked(ear: Receiver, **settings: Any) -> AsyncIterator[tuple[SemtechUdp, Forwarder]]:
    settings.setdefault("clock_ms", lambda: 1_700_000_000_000)
    link = SemtechUdp(ear, settings.pop("region", EU868), port=0, **settings)
    await link.start()
    try:
        async with forwarding(link.port) as forwarder:
            yield link, forwarder
    finally:
        await link.stop()


@contextlib.asynccontextmanager
async def forwarding(port: int, host: str = "127.0.0.1") -> AsyncIterator[Forwarder]:
    loop = asyncio.get_running_loop()
    transport, forwarder = await loop.create_datagram_endpoint(
        Forwarder, remote_addr=("127.0.0.1", port), local_addr=(host, 0)
    )
    try:
        yield forwarder
    finally:
        transport.close()


def test_a_packet_becomes_a_reception_and_the_datagram_is_acknowledged():
    async def main():
        ear = Ear()
        async with linked(ear) as (link, forwarder):
            assert await forwarder.ask(push(PACKET)) == b"\x02\xab\xcd\x01"
            await ear.until(heard=1)
        (got,) = ear.heard
        assert (got.frame, got.station, got.received_ms) == (FRAME, STATION, 1_700_000_000_000)
        assert got.radio == Radio(868_300_000, 5, -35, 5.1, 1_364_746_877_528)
        assert link.figures()["frames"] == 1
        assert not ear.refused

    asyncio.run(main())


def test_version_1_is_answered_in_version_1():
    async def main():
        ear = Ear()
        async with linked(ear) as (_, forwarder):
            assert await forwarder.ask(push(PACKET, version=1)) == b"\x01\xab\xcd\x01"
            assert await forwarder.ask(pull(version=1)) == b"\x01\x12\x34\x04"
            await ear.until(heard=1)
            assert ear.reply()
            sent = await forwarder.next()
        assert sent[:4] == b"\x01\0\0\x03"
        assert json.loads(sent[4:])["txpk"]["tmst"] == 3_513_348_611

    asyncio.run(main())


def test_a_downlink_goes_to_where_the_gateway_polls_from_and_is_timed_by_its_clock():
    async def main():
        ear = Ear()
        async with linked(ear) as (link, forwarder), forwarding(link.port) as polling:
            assert await polling.ask(pull()) == b"\x02\x12\x34\x04"
            await forwarder.ask(push({**PACKET, "tmst": 2**32 - 10}))  # the two sockets of a real forwarder
            await ear.until(heard=1)
            assert ear.reply()
            sent = await polling.next()
            polling.send(b"\x02" + sent[1:3] + b"\x05" + EUI)
            await until(lambda: link.figures()["tx_ok"] == 1)
            assert ear.numbers == [ANSWER.number]
        assert (sent[0], sent[3]) == (2, 3)
        assert json.loads(sent[4:]) == {
            "txpk": {
                "imme": False,
                "tmst": 999_990,  # the 32 bits of the concentrator's clock went over
                "freq": 868.3,
                "rfch": 0,
                "powe": 14,
                "modu": "LORA",
                "datr": "SF7BW125",
                "codr": "4/5",
                "ipol": True,
                "ncrc": True,
                "size": 12,
                "data": b64(ANSWER.pdu),
            }
        }

    asyncio.run(main())


def test_a_confirmed_uplink_is_stored_once_and_acknowledged_once_through_the_gateway_that_heard_it(tmp_path):
    async def main():
        async with serving(tmp_path) as service:
            async with linked(service, clock_ms=wall_ms) as (link, forwarder):
                await forwarder.ask(pull())
                await forwarder.ask(push(PACKET))
                sent = await forwarder.next()
                forwarder.send(b"\x02" + sent[1:3] + b"\x05" + EUI)
                await until(lambda: link.figures()["tx_ok"] == 1)
                async with forwarding(link.port) as second:  # another gateway, which heard it too
                    other = bytes(7) + b"\x01"
                    await second.ask(pull(eui=other))
                    await second.ask(push(PACKET, {**PACKET, "data": b64(FRAME._replace(mic=1).phy)}, eui=other))
                    await service.idle()
                    assert second.got.empty()
            await service.idle()
            figures = service.downlinks.outcomes
            reasons = {answer.reason: count for answer, count in service.tally}
        packet = json.loads(sent[4:])["txpk"]
        assert is_acknowledgement(base64.b64decode(packet["data"]))
        assert (packet["freq"], packet["datr"], packet["tmst"]) == (868.3, "SF7BW125", 3_513_348_611)
        assert (figures["sent"], figures["transmitted"]) == (1, 1)
        assert reasons == {"new_frame": 1, "other_station": 1, "bad_mic": 1}
        first, again = upstream(tmp_path)  # the strategy is none: the soft duplicate goes up too
        assert (first["station"], first["reason"], first["rssi"], first["fcnt"]) == (STATION, "new_frame", -35, 7)
        assert (again["station"], again["reason"]) == (other.hex(), "other_station")

    asyncio.run(main())


def test_a_gateway_that_will_not_transmit_is_asked_for_the_second_window_once():
    async def main():
        ear = Ear()
        async with linked(ear) as (link, forwarder):
            await forwarder.ask(pull())
            await forwarder.ask(push(PACKET))
            await ear.until(heard=1)
            ear.reply()
            sent = []
            for _ in range(2):
                sent.append(await forwarder.next())
                refusal = json.dumps({"txpk_ack": {"error": "TOO_LATE"}}).encode()
                forwarder.send(b"\x02" + sent[-1][1:3] + b"\x05" + EUI + refusal)
            await until(lambda: link.figures()["tx_failed"] == 2)
            assert await forwarder.ask(pull()) == b"\x02\x12\x34\x04"  # nothing came before this answer
        first, second = (json.loads(data[4:])["txpk"] for data in sent)
        assert (first["freq"], first["datr"], first["tmst"]) == (868.3, "SF7BW125", 3_513_348_611)
        assert (second["freq"], second["datr"], second["tmst"]) == (869.525, "SF12BW125", 3_514_348_611)
        assert second["data"] == first["data"]
        assert link.figures()["downlinks"] == 2

    asyncio.run(main())


def test_a_device_of_class_c_is_sent_its_second_try_at_once():
    sent = wire.transmit(2, b"ab", ANSWER._replace(device_class="C"), 5, EU868, second=True)
    packet = json.loads(sent[4:])["txpk"]
    assert (packet["freq"], packet["datr"], packet["imme"]) == (869.525, "SF12BW125", True)
    assert "tmst" not in packet


def test_without_a_poll_there_is_no_way_back():
    async def main():
        ear = Ear()
        async with linked(ear) as (link, forwarder):
            await forwarder.ask(push(PACKET))
            await ear.until(heard=1)
            assert not ear.reply()
            await forwarder.ask(pull())
            assert not ear.reply(ANSWER._replace(rx1=(1, 15)))  # a data rate that the region lacks
            assert link.figures()["undeliverable"] == 2
        assert not ear.reply()  # nor after the end

    asyncio.run(main())


def test_another_host_cannot_take_over_a_gateway_that_polls():
    async def main():
        ear = Ear()
        async with linked(ear) as (link, forwarder), forwarding(link.port, "127.0.0.2") as thief:
            await forwarder.ask(pull())
            thief.send(pull())
            await until(lambda: link.figures()["moved"] == 1)
            await forwarder.ask(push(PACKET))
            await ear.until(heard=1)
            ear.reply()
            sent = await forwarder.next()
            refusal = json.dumps({"txpk_ack": {"error": "TX_FREQ"}}).encode()
            thief.send(b"\x02" + sent[1:3] + b"\x05" + EUI + refusal)  # nor have it transmit again
            await until(lambda: link.figures()["not_asked"] == 1)
            assert link.figures()["downlinks"] == 1
        assert thief.got.empty()

    asyncio.run(main())


def test_gateways_are_bounded_and_forgotten_when_they_are_silent():
    gateways = Gateways(UdpLimits(gateways_max=2))
    one, other = ("10.0.0.1", 5), ("10.0.0.2", 5)
    assert [gateways.poll(eui, one, 2, 0.0) for eui in (1, 2, 3)] == [None, None, "full"]
    assert gateways.poll(1, ("10.0.0.1", 6), 2, 20.0) is None
    assert gateways.find(1, 20.0) == Gateway(("10.0.0.1", 6), 2, 20.0)
    assert gateways.poll(1, other, 2, 49.0) == "moved"
    assert gateways.poll(1, other, 2, 50.0) is None
    assert gateways.poll(3, one, 2, 60.0) is None  # 2 was silent for a minute
    assert (gateways.find(2, 60.0), len(gateways)) == (None, 2)
    assert gateways.is_at(1, ("10.0.0.2", 99), 60.0)
    assert not gateways.is_at(1, one, 60.0)
    assert gateways.find(1, 110.0) is None


def test_only_packets_with_a_right_crc_are_heard():
    async def main():
        ear = Ear()
        async with linked(ear) as (link, forwarder):
            bare = {name: value for name, value in PACKET.items() if name != "stat"}
            await forwarder.ask(push({**PACKET, "stat": -1}, {**PACKET, "stat": 0}, bare, PACKET))
            await ear.until(heard=1)
        assert (link.figures()["crc_failed"], len(ear.heard), ear.refused) == (3, 1, [])

    asyncio.run(main())


def test_joins_fsk_several_antennas_and_gps_time_are_understood():
    fast = {"tmst": 1, "freq": 868.8, "stat": 1, "modu": "FSK", "datr": 50_000, "data": b64(JOIN.phy).rstrip("=")}
    antennas = [{"ant": 0, "rssic": -80, "lsnr": 2.5}, {"ant": 1, "rssic": -90, "lsnr": 7}]
    got = wire.read_heard({**fast, "rsig": antennas, "tmms": 1_384_000_018_000}, EU868)
    assert got == wire.Rxpk(JOIN, Radio(868_800_000, 7, -90, 7, 315_964_800_000 + 1_384_000_000_000), 1)
    assert wire.read_heard(fast, EU868) == wire.Rxpk(JOIN, Radio(868_800_000, 7), 1)


def test_fsk_over_several_antennas_has_no_snr():
    fast = {"tmst": 1, "freq": 868.8, "stat": 1, "modu": "FSK", "datr": 50_000, "data": b64(JOIN.phy)}
    got = wire.read_heard({**fast, "rsig": [{"ant": 0, "rssic": -90}, {"ant": 1, "rssic": -80}]}, EU868)
    assert got is not None
    assert (got.radio.rssi, got.radio.snr) == (-80, None)
    mixed = [{"rssic": -80}, {"rssic": -95, "lsnr": -12.5}, {"rssic": -99, "lsnr": -12.5}]
    got = wire.read_heard({**fast, "rsig": mixed}, EU868)
    assert got is not None
    assert (got.radio.rssi, got.radio.snr) == (-95, -12.5)


@pytest.mark.parametrize(
    "time", [5, True, [], {}, "", "soon", "0001-01-01T00:00:00+14:00", "2013-13-31T16:21:17Z", None]
)
@pytest.mark.parametrize("tmms", [-1, True, "1384000018000", 1e300, 10**400, [], None])
def test_a_time_that_cannot_be_read_is_no_time_and_the_packet_counts(time, tmms):
    ear = Ear()
    SemtechUdp(ear, EU868).datagram_received(push({**PACKET, "time": time, "tmms": tmms}), ("127.0.0.1", 9))
    assert ear.refused == []
    assert [(heard.frame, heard.radio.time_ms) for heard in ear.heard] == [(FRAME, None)]


def test_a_down_frame_in_fsk_has_its_crc():
    downlink = ANSWER._replace(rx1=(868_800_000, 7))
    sent = json.loads(wire.transmit(2, b"ab", downlink, 1, EU868, second=False)[4:])["txpk"]
    assert (sent["modu"], sent["datr"], sent["fdev"]) == ("FSK", 50_000, 25_000)
    assert "ncrc" not in sent


def test_the_data_rates_of_the_region_count():
    us915 = region("US915")
    got = wire.read_heard({**PACKET, "datr": "SF8BW500"}, us915)
    assert got is not None
    assert got.radio.data_rate == 4
    sent = wire.transmit(2, b"ab", ANSWER._replace(rx1=(923_300_000, 8)), 1, us915, second=False)
    assert json.loads(sent[4:])["txpk"]["datr"] == "SF12BW500"


DOWN = b64(ANSWER.pdu)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tmst": -1}, "tmst is -1, must be a whole number, 0 to 4294967295"),
        ({"tmst": 2**32}, "tmst is 4294967296"),
        ({"tmst": "1"}, "tmst is '1'"),
        ({"tmst": True}, "tmst is True"),
        ({"tmst": None}, "tmst is None"),
        ({"tmst": 10**400}, "tmst is a giant number"),
        ({"freq": "868.3"}, "freq is '868.3', must be a number"),
        ({"freq": 0}, "freq is 0"),
        ({"freq": -868.3}, "freq is -868.3"),
        ({"freq": 1e300}, "freq is 1e+300"),
        ({"stat": "1"}, "stat is '1'"),
        ({"stat": 7}, "stat is 7"),
        ({"modu": "MORSE"}, "modu is 'MORSE', must be LORA or FSK"),
        ({"modu": ["LORA"]}, "modu is an array of 1"),
        ({"datr": 50_000}, "datr is 50000, must be a string"),
        ({"datr": "SF7"}, "datr is 'SF7', must be like SF7BW125"),
        ({"datr": "SF\u0667BW125"}, "must be like SF7BW125"),
        ({"datr": "SF5BW125"}, "EU868 has no data rate SF5BW125"),
        ({"modu": "FSK", "datr": 38_400}, "datr is 38400"),
        ({"rssi": "loud"}, "rssi is 'loud'"),
        ({"rssi": 1e308}, "rssi is 1e+308"),
        ({"lsnr": []}, "lsnr is an array of 0"),
        ({"size": 5}, "size is 5, but data has"),
        ({"data": "&&&&"}, "data is '&&&&', must be base64"),
        ({"data": "AAAAA"}, "must be base64"),
        ({"data": None}, "data is None, must be a string"),
        ({"data": 5}, "data is 5"),
        ({"data": "A" * 5_000}, "data has 5000 characters, that is more than 255 bytes"),
        ({"data": "AAAA", "size": 3}, "a frame of 3 bytes"),
        ({"data": DOWN, "size": 12}, "byte 0 is 0x60"),
        ({"data": "\ud800"}, "must be base64"),
    ],
)
def test_a_wrong_field_is_named_and_the_other_packets_count(change, told):
    ear = Ear()
    SemtechUdp(ear, EU868).datagram_received(push({**PACKET, **change}, PACKET), ("127.0.0.1", 9))
    ((station, reason, said),) = ear.refused
    assert (station, reason, len(ear.heard)) == (STATION, MALFORMED, 1)
    assert told in said
    assert len(said) < 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b'{"rxpk":[],"rxpk":[]}', 'the name "rxpk" is there twice'),
        (b"[]", "PUSH_DATA is an array of 0, must be a JSON object"),
        (b"5", "PUSH_DATA is 5"),
        (b'{"rxpk":{}}', "rxpk is an object of 0, must be an array"),
        (b'{"rxpk":[5]}', "a packet of rxpk is 5, must be an object"),
        (b'{"rxpk":[null]}', "a packet of rxpk is None"),
        (b'{"rxpk":[{"stat":1,"tmst":NaN}]}', "NaN is not a number"),
        (b'{"rxpk":[{"stat":1,"tmst":1e400}]}', "tmst is inf"),
        (b'{"rxpk":[{"stat":1,"tmst":' + b"9" * 5_000 + b"}]}", "is not JSON"),
        (b"[" * 60_000, "is nested too deep"),
        (b'{"rxpk":' + b"[" * 900 + b"]" * 900 + b"}", "a packet of rxpk is an array of 1"),
        (b'{"rxpk":[' + b"{}," * 256 + b"{}]}", "rxpk has 257 packets, the limit is 256"),
    ],
)
def test_a_wrong_document_is_refused_once(body, told):
    ear = Ear()
    link = SemtechUdp(ear, EU868)
    link.datagram_received(b"\x02ab\x00" + EUI + body, ("127.0.0.1", 9))
    ((_, reason, said),) = ear.refused
    assert reason == MALFORMED
    assert told in said
    assert link.figures()["malformed"] == 1
    assert not ear.heard


@pytest.mark.parametrize(
    "data",
    [
        b"\x02",
        b"\x02ab\x00",
        b"\x02ab\x00" + EUI[:7],
        b"\x00ab\x00" + EUI + b"{}",
        b"\x03ab\x00" + EUI + b"{}",
        b"\x02ab\x01" + EUI,
        b"\x02ab\x03" + EUI,
        b"\x02ab\x04" + EUI,
        b"\x02ab\x06" + EUI,
        b"\x02ab\xff" + EUI,
    ],
)
def test_what_is_not_of_the_protocol_is_counted_and_not_answered(data):
    async def main():
        ear = Ear()
        async with linked(ear) as (link, forwarder):
            forwarder.send(data)
            assert await forwarder.ask(pull()) == b"\x02\x12\x34\x04"
            assert forwarder.got.empty()
        assert (link.figures()["not_protocol"], ear.heard, ear.refused) == (1, [], [])

    asyncio.run(main())


def test_a_datagram_over_the_limit_is_not_read():
    ear = Ear()
    link = SemtechUdp(ear, EU868, limits=UdpLimits(datagram_bytes_max=100))
    link.datagram_received(push(PACKET), ("127.0.0.1", 9))
    assert (link.figures()["not_protocol"], ear.heard, ear.refused) == (1, [], [])


def test_a_full_service_is_counted():
    ear = Ear(room=1)
    link = SemtechUdp(ear, EU868)
    link.datagram_received(push(PACKET, PACKET, PACKET), ("127.0.0.1", 9))
    assert (link.figures()["frames"], link.figures()["busy"]) == (1, 2)


@pytest.mark.parametrize("body", [b"", b"\0", b'{"txpk_ack":{"error":"NONE"}}', b'{"txpk_ack":{}}'])
def test_an_answer_without_an_error_is_a_promise_to_transmit(body):
    assert wire.failure(wire.read(b"\x02ab\x05" + EUI + body)) is None


class Deaf(Ear):
    """Fails where nobody has thought of."""

    def __init__(self, failures: int):
        super().__init__()
        self.failures = failures

    def hear(self, reception):
        if self.failures:
            self.failures -= 1
            raise RecursionError("too deep")
        super().hear(reception)

    def transmitted(self, number):
        raise ZeroDivisionError


def test_an_error_of_ours_costs_one_packet(caplog):
    async def main():
        ear = Deaf(1)
        async with linked(ear) as (link, forwarder):
            await forwarder.ask(push(PACKET, PACKET))
            await ear.until(heard=1)
            await forwarder.ask(pull())
            assert ear.reply()
            sent = await forwarder.next()
            forwarder.send(bytes([2]) + sent[1:3] + b"\5" + EUI)
            await until(lambda: link.figures()["failed"] == 2)
            await forwarder.ask(push(PACKET))
            await ear.until(heard=2)

    asyncio.run(main())
    (line,) = [each.getMessage() for each in caplog.records]  # one in ten seconds
    assert line == f"station {STATION}: unexpected: RecursionError: too deep"


def test_statistics_are_counted_with_or_without_packets():
    ear = Ear()
    link = SemtechUdp(ear, EU868)
    stat = {"time": "2014-01-12 08:59:28 GMT", "rxnb": 2}
    link.datagram_received(push(PACKET, stat=stat), ("127.0.0.1", 9))
    link.datagram_received(b"\x02ab\x00" + EUI + json.dumps({"stat": stat}).encode(), ("127.0.0.1", 9))
    assert (link.figures()["stats"], len(ear.heard), ear.refused) == (2, 1, [])


def test_unanswered_downlinks_are_bounded_and_a_strange_answer_asks_for_nothing():
    async def main():
        ear = Ear()
        limits = UdpLimits(unanswered_max=3)
        async with linked(ear, limits=limits) as (link, forwarder):
            await forwarder.ask(pull())
            await forwarder.ask(push(PACKET))
            await ear.until(heard=1)
            tokens = []
            for _ in range(5):
                ear.reply()
                tokens.append((await forwarder.next())[1:3])
            refusal = json.dumps({"txpk_ack": {"error": "COLLISION_PACKET"}}).encode()
            forwarder.send(b"\x02" + tokens[0] + b"\x05" + EUI + refusal)  # given up
            forwarder.send(b"\x02" + tokens[4] + b"\x05" + EUI + b"{")  # cannot be read: not asked again
            forwarder.send(b"\x02" + tokens[3] + b"\x05" + EUI + b'{"txpk_ack":{"warn":"TX_POWER","value":27}}')
            forwarder.send(b"\x02" + tokens[3] + b"\x05" + EUI + refusal)  # already answered
            await until(lambda: link.figures()["not_asked"] == 2)
            assert (link.figures()["tx_ok"], link.figures()["downlinks"]) == (1, 5)
        assert len(ear.refused) == 1

    asyncio.run(main())


def test_more_than_loopback_needs_a_list_and_the_list_is_obeyed():
    with pytest.raises(Misuse, match=r"host is '0\.0\.0\.0': UDP has no token"):
        SemtechUdp(Ear(), EU868, host="0.0.0.0")  # noqa: S104 # that is what is refused
    ear = Ear()
    link = SemtechUdp(ear, EU868, host="0.0.0.0", allow=["10.0.0.0/8", f"{STATION}@192.0.2.7"])  # noqa: S104
    for host in ("10.1.2.3", "192.0.2.7", "192.0.2.8", "::ffff:10.9.9.9"):
        link.datagram_received(push(PACKET), (host, 9))
    link.datagram_received(push(PACKET, eui=bytes(8)), ("192.0.2.7", 9))
    assert (len(ear.heard), link.figures()["not_allowed"]) == (3, 2)


@pytest.mark.parametrize("entry", ["", "@", "10.0.0.1/8", "0016c001ff10a23", "x@10.0.0.0/8", f"{STATION}@", "a.b.c.d"])
def test_an_entry_of_the_list_that_means_nothing_is_refused(entry):
    with pytest.raises(Misuse, match="must be an EUI of 16 hex digits, a network"):
        Allow([entry])


def test_a_listed_gateway_may_come_from_anywhere():
    allow = Allow([STATION.upper(), "2001:db8::/32"])
    assert allow.admits(int(STATION, 16), "203.0.113.5")
    assert allow.admits(1, "2001:db8::7%eth0")
    assert not allow.admits(1, "203.0.113.5")


def test_a_taken_port_is_an_error_at_the_start():
    async def main():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(OSError, match="in use"):
                await SemtechUdp(Ear(), EU868, port=taken.getsockname()[1]).start()

    asyncio.run(main())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
BODIES = (
    st.binary(max_size=200)
    | st.builds(lambda value: json.dumps(value).encode(), JSON)
    | st.builds(
        lambda changes: json.dumps({"rxpk": [{**PACKET, **changes}]}).encode(),
        st.dictionaries(st.sampled_from([*PACKET, "tmms", "rsig"]), JSON, max_size=3),
    )
)


@given(st.sampled_from([0, 1, 2, 3]), st.sampled_from(range(7)), BODIES)
def test_whatever_a_stranger_sends_raises_nothing_and_is_counted_once(version, kind, body):
    ear = Ear()
    link = SemtechUdp(ear, EU868)
    link.datagram_received(bytes([version]) + b"ab" + bytes([kind]) + EUI + body, ("127.0.0.1", 9))
    figures = link.figures()
    kinds = ("not_protocol", "not_allowed", "pushes", "polls", "not_asked")
    assert figures["datagrams"] == 1 == sum(figures[name] for name in kinds)
    assert (figures["malformed"], figures["frames"]) == (len(ear.refused), len(ear.heard))
    assert all(said.isprintable() and len(said) < 250 for *_, said in ear.refused)
    assert figures["gateways"] == figures["polls"]


@given(st.binary(max_size=40))
def test_any_bytes_raise_nothing_and_change_nothing_but_a_counter(data):
    ear = Ear()
    link = SemtechUdp(ear, EU868, allow=["192.0.2.0/24"])
    link.datagram_received(data, ("127.0.0.1", 9))
    figures = link.figures()
    assert (ear.heard, ear.refused, figures["gateways"]) == ([], [], 0)
    assert figures["not_protocol"] + figures["not_allowed"] == 1 == sum(figures.values()) - 1
