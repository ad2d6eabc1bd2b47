"""The ChirpStack link, through a real broker; and what strangers publish."""

import asyncio
import base64
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiomqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.clock import wall_ms
from onefold.errors import BadInput, Misuse
from onefold.lorawan.links import mqtt as events
from onefold.lorawan.links.mqtt import ChirpstackMqtt, MqttAddress, MqttLimits
from onefold.lorawan.radio import EU868, Radio, Receiver, region
from onefold.lorawan.rules import MALFORMED
from tests.lib.gatewaying import Process, device, write_registry
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
from tests.lib.mqtt_broker import MqttBroker

TOPIC = f"eu868/gateway/{STATION}/event/up"
V4: dict[str, Any] = {
    "phyPayload": b64(FRAME.phy),
    "txInfo": {
        "frequency": 868_300_000,
        "modulation": {"lora": {"bandwidth": 125_000, "spreadingFactor": 7, "codeRate": "CR_4_5"}},
    },
    "rxInfo": {
        "gatewayId": STATION,
        "uplinkId": 7895,
        "gwTime": "2022-08-03T14:37:43.383634108Z",
        "nsTime": "2022-08-03T14:37:44Z",
        "rssi": -52,
        "snr": 13.75,
        "context": "xwx0GQ==",
        "crcStatus": "CRC_OK",
    },
}
V3: dict[str, Any] = {
    "phyPayload": b64(FRAME.phy),
    "txInfo": {
        "frequency": 868_300_000,
        "modulation": "LORA",
        "loRaModulationInfo": {
            "bandwidth": 125,
            "spreadingFactor": 7,
            "codeRate": "4/5",
            "polarizationInversion": False,
        },
    },
    "rxInfo": {
        "gatewayID": b64(bytes.fromhex(STATION)),
        "time": "2018-07-26T15:15:58.599497Z",
        "timeSinceGPSEpoch": None,
        "rssi": -55,
        "loRaSNR": 15,
        "channel": 2,
        "rfChain": 0,
        "board": 1,
        "antenna": 2,
        "location": None,
        "fineTimestampType": "NONE",
        "context": "AAAAAAAAAAMAAAAAAAAABA==",
        "uplinkID": "c9MNtvmDSiOJzhmVsHxn+Q==",
        "crcStatus": "CRC_OK",
    },
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with MqttBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@contextlib.asynccontextmanager
async def linked(broker: MqttBroker, ear: Receiver, prefix: str = "", **settings: Any) -> AsyncIterator[Any]:
    """A link that is connected, and a gateway bridge at the same broker, that listens to its commands."""
    settings.setdefault("clock_ms", lambda: 1_700_000_000_000)
    link = ChirpstackMqtt(ear, EU868, f"{broker.url}/{prefix}", **settings)
    await link.start()
    try:
        async with asyncio.timeout(60):
            await link.connected.wait()
        async with aiomqtt.Client("127.0.0.1", broker.port) as bridge:
            await bridge.subscribe("+/gateway/+/command/#", 1)
            await bridge.subscribe("gateway/+/command/#", 1)
            yield link, bridge
    finally:
        await link.stop()


async def command(bridge: aiomqtt.Client) -> tuple[str, Any]:
    async with asyncio.timeout(60):
        message = await anext(bridge.messages)
    assert isinstance(message.payload, bytes)
    return str(message.topic), json.loads(message.payload)


def test_an_event_of_version_4_becomes_a_reception_and_is_answered_in_version_4(broker):
    async def main():
        ear = Ear()
        async with linked(broker, ear) as (link, bridge):
            await bridge.publish(TOPIC, json.dumps(V4), 1)
            await ear.until(heard=1)
            assert ear.reply()
            sent = await command(bridge)
            await until(lambda: link.figures()["downlinks"] == 1)
        (got,) = ear.heard
        assert (got.frame, got.station, got.received_ms) == (FRAME, STATION, 1_700_000_000_000)
        assert got.radio == Radio(868_300_000, 5, -52, 13.75, 1_659_537_463_383)
        assert sent == (
            f"eu868/gateway/{STATION}/command/down",
            {
                "gatewayId": STATION,
                "downlinkId": 70_000,
                "items": [item_4(868_300_000, 7, "1s"), item_4(869_525_000, 12, "2s")],
            },
        )

    asyncio.run(main())


def item_4(frequency: int, spreading: int, delay: str) -> dict[str, Any]:
    lora = {"bandwidth": 125_000, "spreadingFactor": spreading, "codeRate": "CR_4_5", "polarizationInversion": True}
    return {
        "phyPayload": b64(ANSWER.pdu),
        "txInfo": {
            "frequency": frequency,
            "power": 14,
            "modulation": {"lora": lora},
            "board": 0,
            "antenna": 0,
            "timing": {"delay": {"delay": delay}},
            "context": "xwx0GQ==",
        },
    }


def test_an_event_of_version_3_is_answered_in_version_3_without_a_prefix(broker):
    async def main():
        ear = Ear()
        async with linked(broker, ear) as (_, bridge):
            await bridge.publish(f"gateway/{STATION}/event/up", json.dumps(V3), 1)
            await ear.until(heard=1)
            assert ear.reply(ANSWER._replace(device_class="C"))
            topic, sent = await command(bridge)
        assert ear.heard[0].radio == Radio(868_300_000, 5, -55, 15, 1_532_618_158_599)
        assert topic == f"gateway/{STATION}/command/down"
        assert (sent["gatewayID"], sent["token"]) == (V3["rxInfo"]["gatewayID"], 70_000 - 65_536)
        assert int.from_bytes(base64.b64decode(sent["downlinkID"])) == 70_000
        first, second = (item["txInfo"] for item in sent["items"])
        assert first == {
            "frequency": 868_300_000,
            "power": 14,
            "modulation": "LORA",
            "loRaModulationInfo": {
                "bandwidth": 125,
                "spreadingFactor": 7,
                "codeRate": "4/5",
                "polarizationInversion": True,
            },
            "board": 1,
            "antenna": 2,
            "timing": "DELAY",
            "delayTimingInfo": {"delay": "1s"},
            "context": "AAAAAAAAAAMAAAAAAAAABA==",
        }
        assert (second["frequency"], second["timing"]) == (869_525_000, "IMMEDIATELY")

    asyncio.run(main())


def test_a_confirmed_uplink_is_stored_once_and_acknowledged_once_through_the_broker(broker, tmp_path):
    async def main():
        async with serving(tmp_path) as service, linked(broker, service, clock_ms=wall_ms) as (link, bridge):
            await bridge.publish(TOPIC, json.dumps(V4), 1)
            topic, sent = await command(bridge)
            outcome = {"gatewayId": STATION, "downlinkId": sent["downlinkId"], "items": [{"status": "OK"}, {}]}
            await bridge.publish(TOPIC.replace("event/up", "event/ack"), json.dumps(outcome), 1)
            await until(lambda: link.figures()["tx_ok"] == 1)
            forged = {**V4, "phyPayload": b64(FRAME._replace(mic=1).phy)}
            await bridge.publish(TOPIC, json.dumps(forged), 1)
            await until(lambda: link.figures()["frames"] == 2)
            await service.idle()
            figures = service.downlinks.outcomes
            assert link.figures()["downlinks"] == 1
        assert topic == f"eu868/gateway/{STATION}/command/down"
        assert is_acknowledgement(base64.b64decode(sent["items"][0]["phyPayload"]))
        assert (figures["sent"], figures["transmitted"]) == (1, 1)
        (stored,) = upstream(tmp_path)
        assert (stored["station"], stored["reason"], stored["snr"]) == (STATION, "new_frame", 13.75)

    asyncio.run(main())


def test_the_outcome_of_a_command_is_told_by_its_number_in_both_versions(broker):
    async def main():
        ear = Ear()
        async with linked(broker, ear) as (link, bridge):
            for event in (V3, V4):
                ear.heard.clear()
                await bridge.publish(TOPIC, json.dumps(event), 1)
                await ear.until(heard=1)
                assert ear.reply(ANSWER._replace(number=2**60 + len(ear.numbers)))
                _, sent = await command(bridge)
                name = {key: sent[key] for key in ("downlinkID", "downlinkId") if key in sent}
                for status in ("OK", "OK"):  # the second names nothing that is waited for
                    ack = {**name, "items": [{"status": status}]}
                    await bridge.publish(f"gateway/{STATION}/event/ack", json.dumps(ack), 1)
                await until(lambda: link.figures()["tx_ok"] % 2 == 0 < link.figures()["tx_ok"])
            await until(lambda: link.figures()["tx_ok"] == 4)
        assert ear.numbers == [2**60, 2**60 + 1]

    asyncio.run(main())


def test_only_the_prefix_that_was_asked_for_is_heard(broker):
    async def main():
        ear = Ear()
        async with linked(broker, ear, "eu868") as (link, bridge):
            await bridge.publish(TOPIC.replace("eu868", "us915"), json.dumps(V4), 1)
            await bridge.publish(TOPIC, json.dumps(V4), 1)
            await ear.until(heard=1)
            assert link.figures()["events"] == 1

    asyncio.run(main())


def test_protobuf_is_refused_with_a_hint_and_the_rest_goes_on(broker, caplog):
    async def main():
        ear = Ear()
        async with linked(broker, ear) as (link, bridge):
            for _ in range(5):
                await bridge.publish(TOPIC, bytes.fromhex("0a11800400000080bd0306d69947f2f03aa71012"), 1)
            await bridge.publish(TOPIC, json.dumps(V4), 1)
            await ear.until(heard=1, refused=5)
            assert link.figures()["malformed"] == 5
        station, reason, told = ear.refused[-1]
        assert [record.getMessage() for record in caplog.records] == [f"station {STATION}: {told}"]  # told once
        assert (station, reason) == (STATION, MALFORMED)
        assert 'set marshaler="json" in the gateway bridge' in told

    asyncio.run(main())


def test_acknowledgements_and_statistics_are_counted(broker):
    async def main():
        ear = Ear()
        root = f"eu868/gateway/{STATION}/event"
        sent: dict[str, list[Any]] = {
            "ack": [
                {"items": [{"status": "OK"}, {}]},
                {"items": [{"status": "TOO_LATE"}, {"status": "OK"}]},
                {"items": [{"status": "TX_FREQ"}, {"status": "COLLISION_PACKET"}]},
                {"error": "TOO_LATE", "token": 5},
                {"token": 5},
                {"items": 5},
            ],
            "txack": [{"items": [{"status": "OK"}]}],
            "stats": [{"gatewayId": STATION}],
            "mesh": [{}],
        }
        async with linked(broker, ear) as (link, bridge):
            for event, documents in sent.items():
                for document in documents:
                    await bridge.publish(f"{root}/{event}", json.dumps(document), 1)
            await until(lambda: link.figures()["events"] == 9)
            figures = link.figures()
        assert (figures["tx_ok"], figures["tx_failed"], figures["malformed"]) == (4, 2, 1)
        assert (figures["stats"], figures["other_events"]) == (1, 1)

    asyncio.run(main())


def test_events_that_are_retained_too_large_or_too_many_are_counted(broker):
    async def main():
        ear = Ear(room=0)
        limits = MqttLimits(event_bytes_max=2_000, events_max=2, busy_s=0.2)
        async with aiomqtt.Client("127.0.0.1", broker.port) as old:
            await old.publish(TOPIC, json.dumps(V4), 1, retain=True)
            try:
                async with linked(broker, ear, limits=limits) as (link, bridge):
                    await until(lambda: link.figures()["retained"] == 1)
                    await bridge.publish(TOPIC, b"x" * 2_001, 1)
                    for _ in range(10):
                        await bridge.publish(TOPIC, json.dumps(V4), 1)
                    await until(lambda: link.figures()["busy"] + link.figures()["queue_full"] == 10)
                    figures = link.figures()
            finally:
                await old.publish(TOPIC, None, 1, retain=True)
        assert (figures["oversize"], figures["frames"]) == (1, 0)
        assert figures["queue_full"] >= 1 <= figures["busy"]
        assert [str(answer) for _, answer, _ in ear.refused] == ["REJECT busy"] * figures["busy"]
        assert ear.arrived == figures["busy"]

    asyncio.run(main())


def test_an_event_waits_a_moment_for_a_busy_service(broker):
    async def main():
        ear = Ear(room=0)
        async with linked(broker, ear, limits=MqttLimits(busy_s=10)) as (link, bridge):
            await bridge.publish(TOPIC, json.dumps(V4), 1)
            await until(lambda: link.figures()["events"] == 1)
            ear.room = 1
            await ear.until(heard=1)
            await until(lambda: link.figures()["frames"] == 1)
            assert link.figures()["busy"] == 0

    asyncio.run(main())


def test_a_broker_that_goes_is_waited_for_and_what_is_too_late_is_not_sent(tmp_path):
    async def main():
        ear = Ear()
        broker = MqttBroker(tmp_path)
        link = ChirpstackMqtt(ear, EU868, broker.url, limits=MqttLimits(wait_min_s=0.05, wait_max_s=0.2))
        await link.start()  # before there is a broker
        await until(lambda: link.figures()["disconnects"] >= 2)
        assert link.problem
        with broker:
            await asyncio.wait_for(link.connected.wait(), 60)
            assert not link.problem
            async with aiomqtt.Client("127.0.0.1", broker.port) as bridge:
                await bridge.publish(TOPIC, json.dumps(V4), 1)
                await ear.until(heard=1)
            broker.kill()
            await until(lambda: not link.connected.is_set())
            assert not ear.reply()
            broker.start()
            await asyncio.wait_for(link.connected.wait(), 60)
            async with aiomqtt.Client("127.0.0.1", broker.port) as bridge:
                await bridge.subscribe("+/gateway/+/command/#", 1)
                assert ear.reply(ANSWER._replace(rx_delay_s=-3_600))
                await until(lambda: link.figures()["late"] == 1)
                await bridge.publish(TOPIC, json.dumps(V4), 1)
                await ear.until(heard=2)
                assert ear.reply(ANSWER._replace(number=9))
                assert (await command(bridge))[1]["downlinkId"] == 9
            await link.stop()
        assert link.figures()["connects"] == 2
        assert not ear.reply()

    asyncio.run(main())


def test_a_wrong_password_is_a_problem_that_names_no_password(tmp_path, caplog):
    async def main():
        with MqttBroker(tmp_path, user="gw", password="right") as broker:  # noqa: S106
            link = ChirpstackMqtt(
                Ear(), EU868, broker.url.replace("right", "wrong"), limits=MqttLimits(wait_min_s=0.01)
            )
            await link.start()
            await until(lambda: link.figures()["disconnects"] >= 2)
            await link.stop()
            assert link.figures()["connects"] == 0
            assert "wrong" not in caplog.text + str(link.problem) + repr(link.address) + str(link.address)
            assert caplog.text.count("no connection to mqtt://127.0.0.1") == 1  # once, not for every attempt
            link = ChirpstackMqtt(Ear(), EU868, broker.url)
            await link.start()
            await asyncio.wait_for(link.connected.wait(), 60)
            await link.stop()

    asyncio.run(main())


def test_a_broker_that_never_answers_costs_nothing_and_does_not_hold_up_the_end(caplog):
    async def main():
        with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
            url = f"mqtt://127.0.0.1:{silent.getsockname()[1]}"
            link = ChirpstackMqtt(Ear(), EU868, url, limits=MqttLimits(answer_s=0.02, wait_min_s=0.01, wait_max_s=0.01))
            await link.start()
            await until(lambda: link.figures()["disconnects"] >= 1)
            before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
            await until(lambda: link.figures()["disconnects"] >= 20)
            after = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
            assert max(after[0] - before[0], after[1] - before[1]) < 5
            await asyncio.wait_for(link.stop(), 60)
        await until(lambda: len(asyncio.all_tasks()) == 1)  # this one

    asyncio.run(main())
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@x/",
        "mqtt://",
        "mqtt://u:secret@h:port/",
        "mqtt://u:secret@h:99999",
        "mqtt://u:secret@h/a?b",
        "mqtt://u:sec#ret@h/a",
        "mqtt://u:secret@h/+/x",
        "mqtt://u:secret@h/%23",
        "h:1883",
        "",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_repeating_it(url):
    with pytest.raises(Misuse, match="MQTT broker") as caught:
        MqttAddress(url)
    assert "sec" not in f"{caught.value} {caught.value.values}"


def test_the_address_of_a_broker_is_read():
    plain = MqttAddress("mqtt://[::1]")
    assert (plain.host, plain.port, plain.tls, plain.user, plain.topics[0]) == (
        "::1",
        1883,
        False,
        None,
        "gateway/+/event/+",
    )
    assert str(plain) == "mqtt://[::1]:1883/"
    assert (plain.tls, MqttAddress("mqtts://h").tls) == (False, True)
    assert MqttAddress("mqtts://h/a/eu868/").topics == ["a/eu868/gateway/+/event/+"]


def read(event: Any) -> events.UplinkEvent | None:
    return events.read_heard(json.dumps(event).encode(), STATION, EU868)


def changed(event: dict[str, Any], place: str, change: dict[str, Any]) -> dict[str, Any]:
    return {**event, place: {**event[place], **change}} if place else {**event, **change}


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


def test_an_error_of_ours_costs_one_event(broker, caplog):
    async def main():
        ear = Deaf(1)
        async with linked(broker, ear) as (link, bridge):
            await bridge.publish(TOPIC, json.dumps(V4), 1)
            await bridge.publish(TOPIC, json.dumps(V4), 1)
            await ear.until(heard=1)
            assert (link.figures()["failed"], link.figures()["frames"], link.problem) == (1, 1, None)

    asyncio.run(main())
    (line,) = [each.getMessage() for each in caplog.records]
    assert line == f"station {TOPIC}: unexpected: RecursionError: too deep"


def test_an_error_of_ours_in_the_connection_is_told_and_it_is_made_again(broker, monkeypatch):
    real, failures = ChirpstackMqtt._serve, [ZeroDivisionError("no"), ZeroDivisionError("no")]

    async def failing(self, client):
        if failures:
            raise failures.pop()
        await real(self, client)

    monkeypatch.setattr(ChirpstackMqtt, "_serve", failing)

    async def main():
        ear = Ear()
        link = ChirpstackMqtt(ear, EU868, broker.url, limits=MqttLimits(wait_min_s=0.1))
        await link.start()
        await until(lambda: link.problem == "unexpected: ZeroDivisionError: no")
        async with asyncio.timeout(60):
            await link.connected.wait()
        assert link.problem is None
        monkeypatch.setattr(ChirpstackMqtt, "_run", None)
        await link.stop()

    asyncio.run(main())


def test_a_broker_that_is_not_there_is_a_problem_of_the_server(tmp_path):
    with MqttBroker(tmp_path / "broker") as broker:
        process = Process(tmp_path / "s", write_registry(tmp_path / "devices.toml", device()), ONEFOLD_MQTT=broker.url)
        try:
            assert process.started["mqtt"] == f"mqtt://127.0.0.1:{broker.port}/"
            asyncio.run(until(lambda: process.server.figure('link{figure="connected",link="mqtt"}') == 1, 30))
            assert process.server.ask("/healthz")[0] == 200
            broker.kill()
            asyncio.run(until(lambda: process.server.ask("/healthz")[0] == 503, 30))
            assert set(process.server.ask("/healthz")[1]["problems"]) == {"mqtt"}
            broker.start()
            asyncio.run(until(lambda: process.server.ask("/healthz")[0] == 200, 30))
            process.process.terminate()
            assert process.end()[0] == 0
        finally:
            if process.process in Process.alive:
                process.process.kill()
                process.end()


def test_what_protobuf_leaves_out_is_zero():
    event = {**V4, "rxInfo": {"gatewayId": STATION.upper()}, "phyPayload": b64(JOIN.phy)}
    assert read(event) == events.UplinkEvent(JOIN, Radio(868_300_000, 5, None, 0.0, None), 4, b"", 0, 0)


def test_without_a_context_there_is_no_way_back():
    class Message:
        payload = json.dumps(changed(V4, "rxInfo", {"context": None})).encode()
        retain = False

    async def main():
        ear = Ear()
        await ChirpstackMqtt(ear, EU868, "mqtt://x")._take(TOPIC, Message())  # type: ignore[arg-type]
        assert ear.heard[0].back is None

    asyncio.run(main())


def test_a_bad_crc_is_not_heard():
    assert read(changed(V4, "rxInfo", {"crcStatus": "BAD_CRC"})) is None
    assert read(changed(V3, "rxInfo", {"crcStatus": "BAD_CRC"})) is None
    assert read(changed(V3, "rxInfo", {"crcStatus": "NO_CRC"})) is not None


def test_fsk_is_understood_both_ways_in_both_versions():
    info = {"datarate": 50_000, "frequencyDeviation": 25_000}
    four = read(changed(V4, "txInfo", {"modulation": {"fsk": info}}))
    three = read(changed(V3, "txInfo", {"modulation": "FSK", "fskModulationInfo": info}))
    assert four is not None
    assert three is not None
    assert four.radio.data_rate == three.radio.data_rate == 7
    downlink = ANSWER._replace(rx1=(868_800_000, 7))
    sent = [json.loads(events.command(STATION, up, downlink, EU868))["items"][0]["txInfo"] for up in (four, three)]
    assert sent[0]["modulation"] == {"fsk": info}
    assert (sent[1]["modulation"], sent[1]["fskModulationInfo"]) == ("FSK", info)


def test_a_region_with_other_rates_answers_in_them():
    us915 = region("US915")
    heard = events.read_heard(json.dumps(V4).encode(), STATION, us915)
    assert heard is not None
    assert heard.radio.data_rate == 3
    sent = json.loads(
        events.command(STATION, heard, ANSWER._replace(rx1=(923_300_000, 13), rx2=(923_300_000, 8)), us915)
    )
    lora = [item["txInfo"]["modulation"]["lora"] for item in sent["items"]]
    assert [(how["spreadingFactor"], how["bandwidth"]) for how in lora] == [(7, 500_000), (12, 500_000)]
    with pytest.raises(BadInput, match="data rate"):
        events.command(STATION, heard, ANSWER, us915)  # 5 is none there


@pytest.mark.parametrize(
    ("event", "place", "change", "told"),
    [
        (V4, "", {"phyPayload": "&"}, "phyPayload is '&', must be base64"),
        (V4, "", {"phyPayload": 5}, "phyPayload is 5, must be a string"),
        (V4, "", {"phyPayload": b64(b"abc")}, "a frame of 3 bytes"),
        (V4, "", {"phyPayload": "A" * 10_000}, "more than 255 bytes"),
        (V4, "", {"txInfo": None}, "txInfo is None, must be an object"),
        (V4, "", {"rxInfo": [V4["rxInfo"]]}, "rxInfo is an array of 1, must be an object"),
        (V4, "txInfo", {"frequency": -1}, "frequency is -1"),
        (V4, "txInfo", {"frequency": 2**32}, "frequency is 4294967296"),
        (V4, "txInfo", {"frequency": 10**300}, "frequency is a giant number"),
        (V4, "txInfo", {"frequency": "868300000"}, "frequency is '868300000'"),
        (V4, "txInfo", {"modulation": {}}, "lora is missing, must be an object"),
        (V4, "txInfo", {"modulation": {"lrFhss": {}}}, "lora is missing"),
        (V4, "txInfo", {"modulation": {"lora": {"bandwidth": 125, "spreadingFactor": 7}}}, "bandwidth is 125"),
        (V4, "txInfo", {"modulation": {"lora": {"bandwidth": 125_000, "spreadingFactor": True}}}, "is True"),
        (V4, "txInfo", {"modulation": {"lora": {"bandwidth": 62_000, "spreadingFactor": 7}}}, "no data rate SF7BW62"),
        (
            V4,
            "rxInfo",
            {"gatewayId": "0000000000000001"},
            f"names gateway 0000000000000001, but came on the topic of {STATION}",
        ),
        (V4, "rxInfo", {"gatewayId": V3["rxInfo"]["gatewayID"]}, "must be an EUI"),
        (V4, "rxInfo", {"gatewayId": None}, "gatewayId is None, must be a string"),
        (V4, "rxInfo", {"rssi": "x"}, "rssi is 'x'"),
        (V4, "rxInfo", {"snr": 1e9}, "snr is 1000000000.0"),
        (V4, "rxInfo", {"context": 5}, "context is 5, must be a string"),
        (V4, "rxInfo", {"context": "A" * 400}, "context has 400 characters"),
        (V4, "rxInfo", {"board": -1}, "board is -1"),
        (V3, "txInfo", {"modulation": "MORSE"}, "modulation is 'MORSE', must be LORA or FSK"),
        (V3, "txInfo", {"loRaModulationInfo": None}, "loRaModulationInfo is None"),
        (V3, "txInfo", {"modulation": "FSK"}, "fskModulationInfo is missing"),
        (V3, "rxInfo", {"gatewayID": "AAAA"}, "gatewayID is 'AAAA', must be an EUI"),
        (V3, "rxInfo", {"gatewayID": b64(bytes(8))}, "names gateway 0000000000000000"),
        (V3, "rxInfo", {"loRaSNR": "x"}, "loRaSNR is 'x'"),
    ],
)
def test_a_wrong_field_is_named(event, place, change, told):
    with pytest.raises(BadInput) as caught:
        read(changed(event, place, change))
    assert told in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("time", [5, True, [], {}, "", "soon", None])
@pytest.mark.parametrize(("event", "name"), [(V4, "gwTime"), (V4, "time"), (V3, "time")])
def test_a_time_that_cannot_be_read_is_no_time_and_the_event_counts(event, name, time):
    bare = {key: value for key, value in event["rxInfo"].items() if key not in ("gwTime", "time")}
    got = read({**event, "rxInfo": {**bare, name: time}})
    assert got is not None
    assert (got.frame, got.radio.time_ms) == (FRAME, None)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "gateway",
        "gateway/x/event/up",
        f"gateway/{STATION}/state/conn",
        f"x/{STATION}/event/up",
        f"gateway/{STATION}/event",
    ],
)
def test_other_topics_are_none_of_ours(topic):
    assert events.read_topic(topic) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = ["phyPayload", *V4["txInfo"], *V3["txInfo"], *V4["rxInfo"], *V3["rxInfo"]]
CHANGES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3)
EVENTS = st.builds(
    lambda event, one, two: changed(changed(event, "txInfo", one), "rxInfo", two),
    st.sampled_from([V3, V4]),
    CHANGES,
    CHANGES,
)
PAYLOADS = st.binary(max_size=200) | st.builds(lambda value: json.dumps(value).encode(), JSON | EVENTS)


@given(st.sampled_from(["up", "ack", "txack", "stats", "x"]), PAYLOADS)
def test_whatever_a_stranger_publishes_raises_nothing_and_is_counted_once(event, data):
    class Message:
        payload = data
        retain = False

    async def main():
        ear = Ear()
        link = ChirpstackMqtt(ear, EU868, "mqtt://x")
        await link._take(f"gateway/{STATION}/event/{event}", Message())  # type: ignore[arg-type]
        figures = link.figures()
        assert figures["events"] == 1 == sum(figures.values()) - 1
        assert (figures["malformed"], figures["frames"]) == (len(ear.refused), len(ear.heard))
        assert all(said.isprintable() and len(said) < 300 for *_, said in ear.refused)

    asyncio.run(main())
