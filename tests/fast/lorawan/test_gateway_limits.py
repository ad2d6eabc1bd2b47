"""Stations that are malformed, too large, too many, strangers, or do not read: they suffer, the others are served."""

import asyncio
import json
import resource
import socket
import struct
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from onefold.errors import Misuse, StoreFailed
from onefold.lorawan.flow import Downlinks, GatewayLimits, GatewaySettings
from onefold.lorawan.links import lns as lns_json
from onefold.lorawan.radio import Downlink, Radio, Reception
from onefold.lorawan.registry import RegistryEntry
from onefold.lorawan.rules import Device
from onefold.producers.topic import Topic
from tests.lib.gatewaying import FaultyCounters, device, reception, running, service, stored, updf, uplink
from tests.lib.hearing import FRAME, KEY, STATION, until


def test_a_message_with_wrong_fields_is_refused_and_the_station_goes_on(tmp_path, capfd):
    good = updf(uplink(1))
    wrong = [
        {**good, "MIC": "no"},
        {**good, "FCnt": 70_000},
        {name: value for name, value in good.items() if name != "Freq"},
        {**good, "FRMPayload": "zz"},
        {**good, "upinfo": None},
        {"msgtype": "jreq"},
    ]
    with running(tmp_path, keep_all=True) as server, server.station(0xABC) as station:
        for message in wrong:
            station.send(message)
        station.hear(uplink(1, confirmed=True))
        assert server.settled(7) == {"malformed": 6, "new_frame": 1}
        assert len(station.sync()) == 1
    told = [row["told"] for row in stored(tmp_path, "receptions") if row["reason"] == "malformed"]
    assert told[0] == "updf: MIC is 'no', must be a whole number, -2147483648 to 4294967295"
    assert told[2] == "updf: Freq is missing, must be a whole number, 1 to 4294967295"
    said = capfd.readouterr().err.splitlines()
    assert said == ["onefold: station 0000000000000abc: " + told[0]]  # one line is enough


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"x": 1}', "msgtype is missing"),
        ('{"msgtype": Infinity}', "not JSON"),
        ("[" * 10_000, "not JSON"),
        ('{"msgtype": "updf", "FCnt": ' + "9" * 5_000 + "}", "not JSON"),
    ],
)
def test_who_does_not_speak_json_is_no_station(tmp_path, text, reason):
    with running(tmp_path) as server, server.station(1) as stranger, server.station(2) as other:
        stranger.send(text)
        code, told = stranger.end()
        assert code == 1007
        assert reason in told
        other.hear(uplink(1, confirmed=True))
        assert other.message()["msgtype"] == "dnmsg"
        assert server.answers() == {"malformed": 1, "new_frame": 1}
        server.wait_for("stations", 1)


def test_a_message_that_is_too_large_ends_the_connection(tmp_path):
    with running(tmp_path, limits=GatewayLimits(message_bytes_max=5_000)) as server, server.station(2) as other:
        with server.station(1) as large:
            large.send({"msgtype": "updf", "x": "x" * 5_000})
            assert large.end()[0] == 1009
        with server.station(1) as pieces:
            with suppress(ConnectionClosed):
                pieces.websocket.send(["x" * 1_000 for _ in range(1_000)])
            assert pieces.end()[0] in (1009, 1006)  # it may still be writing when the connection is closed
        other.hear(uplink(1, confirmed=True))
        assert other.message()["msgtype"] == "dnmsg"


def test_stations_too_many_are_told_so(tmp_path):
    with (
        running(tmp_path, limits=GatewayLimits(connections_max=2)) as server,
        server.station(1) as one,
        server.station(2),
    ):
        assert server.ask("/healthz") == (503, {"error": "too many connections"})
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as third:  # it is told before it has asked
            assert third.recv(100).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        one.hear(uplink(1, confirmed=True))
        assert one.message()["msgtype"] == "dnmsg"


def test_a_wrong_name_or_path_is_refused(tmp_path):
    with running(tmp_path) as server:
        assert server.ask("/router/x")[0] == 404  # no websocket there
        assert server.ask("/nothing") == (404, {"error": "not found"})
        for path, status in (("/router/x", 400), ("/router/", 403), ("/nothing", 403)):
            with pytest.raises(InvalidStatus) as caught, connect(f"ws://{server.address}{path}", compression=None):
                pass
            assert caught.value.response.status_code == status


def test_stations_need_the_token(tmp_path):
    with running(tmp_path, server={"token": "s3cret"}) as server:
        for value in (None, "Bearer other", "s3cre", "Basic s3cret"):
            headers = None if value is None else {"Authorization": value}
            with pytest.raises(InvalidStatus) as caught, server.station(headers=headers):
                pass
            assert caught.value.response.status_code == 401
        for value in ("Bearer s3cret", "s3cret", "bearer s3cret"):
            with server.station(headers={"Authorization": value}) as station:
                assert station.version()["msgtype"] == "router_config"
        assert server.ask("/healthz") == (200, {"status": "ok", "stations": 0})
        server.token = None
        assert server.ask("/metrics")[0] == 401


def test_without_a_token_it_only_listens_to_this_machine(tmp_path):
    for host in ("0.0.0.0", "::"):  # noqa: S104 # to be refused
        told = "to listen on more than loopback needs a token"
        with pytest.raises(Misuse, match=told), running(tmp_path, server={"host": host}):
            pass
    page = {"Origin": "http://evil.example"}
    with running(tmp_path) as server, pytest.raises(InvalidStatus) as caught, server.station(headers=page):
        pass
    assert caught.value.response.status_code == 403


def _deaf(server, eui: int) -> socket.socket:
    """A station that never reads: small buffers, and nobody at the other end of them."""
    host, port = server.address.split(":")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    plain.connect((host, int(port)))
    plain.sendall(
        f"GET /router/{eui:016x} HTTP/1.1\r\nHost: {server.address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    return plain


def _frame(message: object) -> bytes:
    data = json.dumps(message).encode()
    return b"\x81" + struct.pack("!BHI", 0xFE, len(data), 0) + data  # masked with zero


def test_a_station_that_never_reads_is_cut_off_and_the_others_are_served(tmp_path, capfd):
    limits = GatewayLimits(queued_max=20)
    with running(tmp_path, limits=limits) as server, server.station(2) as other:
        deaf = _deaf(server, 1)
        sync = _frame({"msgtype": "timesync", "txtime": 1, "pad": "x" * 300})
        with suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(100_000):
                deaf.sendall(sync * 20)
            raise AssertionError("it was never cut off")
        server.wait_for("stations", 1)
        other.hear(uplink(1, confirmed=True))
        assert other.message()["msgtype"] == "dnmsg"
        deaf.close()
    assert "station 0000000000000001 does not read (20 messages wait for it): cut off" in capfd.readouterr().err


def test_a_station_that_reads_each_message_within_the_limit_is_not_cut_off():
    async def main():
        loop, late_s, sent, aborts = asyncio.get_running_loop(), [0.0], [], []
        now_s = loop.time
        loop.time = lambda: now_s() + late_s[0]  # type: ignore[method-assign]

        async def send(message):
            late_s[0] += 15  # of write_s, which is 20
            for _ in range(3):
                await asyncio.sleep(0)
            sent.append(message)

        async def receive():
            await asyncio.Event().wait()

        lns: Any = SimpleNamespace(service=SimpleNamespace(settings=GatewaySettings()), messages=Counter())
        connection = lns_json.StationConnection(lns, STATION, receive, send, lambda: aborts.append(1))
        for number in range(5):
            assert connection.send(str(number))
        connection.close(1000, "")
        await connection.run()
        assert [message.get("text") for message in sent] == ["0", "1", "2", "3", "4", None]
        assert not aborts

    asyncio.run(main())


def test_a_flood_of_bad_messages_leaves_memory_flat(tmp_path):
    with running(tmp_path) as server, server.station(1) as hostile, server.station(2) as other:
        bad = json.dumps({**updf(uplink(1)), "FCnt": -1, "pad": "x" * 2_000})
        unknown = json.dumps(updf(uplink(1, 99)))
        forged = json.dumps(updf(uplink(1, key="ee" * 16)))

        def flood(count):
            before = sum(server.answers().values())
            for n in range(count):
                hostile.send((bad, unknown, forged)[n % 3])
            server.settled(before + count)
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        flood(1_500)
        settled = flood(1_500)
        assert flood(3_000) - settled < 8_000  # KiB
        assert server.figure("sightings") == 0
        other.hear(uplink(1, confirmed=True))
        assert other.message()["msgtype"] == "dnmsg"


@pytest.mark.parametrize("kind", ["updf", "timesync"])
def test_a_station_that_we_cannot_read_any_more_is_not_kept(tmp_path, monkeypatch, capfd, kind):
    real, bad = lns_json.read_message, [True]

    def failing(text):
        if kind in text and bad:
            raise ZeroDivisionError(bad.pop())
        return real(text)

    monkeypatch.setattr(lns_json, "read_message", failing)
    with running(tmp_path) as server, server.station(1) as station, server.station(2) as other:
        other.version()
        station.send(updf(uplink(1)) if kind == "updf" else {"msgtype": "timesync", "txtime": 1})
        assert station.end() == (1011, "an error of the server")
        server.wait_for("stations", 1)
        other.hear(uplink(1, confirmed=True))
        assert other.message()["msgtype"] == "dnmsg"
    said = capfd.readouterr().err.splitlines()
    assert said == ["onefold: station 0000000000000001: unexpected: ZeroDivisionError: True"]


def test_what_is_kept_of_everything_is_bounded_when_the_disk_fails_and_the_uplinks_are_not_held_up(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("onefold.lorawan.flow.LINGER_S", 1.0)  # all are decided before the first are written

    async def main():
        async with service(tmp_path, keep_all=True, limits=GatewayLimits(in_hand_max=500, grace_s=0.1)) as made:
            everything = made._everything
            assert everything is not None
            publish = everything._publish
            broken = [True]

            def failing(messages):
                if broken:
                    raise StoreFailed("No space left on device")
                publish(messages)

            everything._publish = failing  # type: ignore[method-assign]
            for _ in range(3_000):
                made.hear(reception(uplink(1, 99)))  # a stranger's
            made.hear(reception(uplink(1)))
            await made.idle()
            assert len(everything._queue) <= 500
            assert made.figures()["unkept"] == 2_501
            await until(lambda: made.problems() == {"receptions": "No space left on device"})
            broken.clear()
            await until(lambda: len(everything._queue) == 0)

    asyncio.run(main())
    assert len(stored(tmp_path)) == 1
    assert len(stored(tmp_path, "receptions")) == 500


def test_receptions_beyond_the_limit_wait_in_their_sockets(tmp_path):
    counters = FaultyCounters()
    limits = GatewayLimits(in_hand_max=4, parked_max=4, grace_s=5)
    with running(tmp_path, counters=counters, limits=limits) as server, server.station() as station:
        counters.let_go.clear()
        for fcnt in range(1, 31):
            station.hear(uplink(fcnt))
        server.wait_for("in_hand", 4)
        station.websocket.ping()
        assert server.figure("in_hand") == 4
        counters.let_go.set()
        assert server.settled(30) == {"new_frame": 30}
    assert [row["fcnt"] for row in stored(tmp_path)] == list(range(1, 31))


def test_a_log_that_cannot_be_written_is_tried_again_and_nothing_is_acknowledged_before(tmp_path, monkeypatch):
    broken = [True]
    publish = Topic.publish

    def failing(self, producer, messages, epoch=None):
        if broken[0]:
            raise StoreFailed("No space left on device")
        return publish(self, producer, messages, epoch)

    monkeypatch.setattr(Topic, "publish", failing)
    with running(tmp_path, device(), rx_delay_s=15) as server, server.station() as station:
        station.hear(uplink(1, confirmed=True))
        server.wait(lambda: server.ask("/healthz")[0] == 503)
        assert server.ask("/healthz")[1]["problems"] == {"uplinks": "No space left on device"}
        station.hear(uplink(2, confirmed=True))
        assert station.sync() == []
        broken[0] = False
        assert station.message()["msgtype"] == station.message()["msgtype"] == "dnmsg"
    assert [row["fcnt"] for row in stored(tmp_path)] == [1, 2]


class Deaf:
    """A station that takes downlinks and never says that it transmitted one."""

    def __call__(self, downlink: Downlink) -> bool:
        return True


def test_downlinks_that_a_clock_which_was_ahead_dated_do_not_keep_later_ones_from_being_given_up():
    downlinks = Downlinks(GatewaySettings(), 1)
    entry = RegistryEntry(Device(dev_eui=2, dev_addr=0x26011BDA), nwk_skey=KEY)
    now_ms, month_ms = 1_700_000_000_000, 30 * 86_400_000
    for at_ms in (now_ms + month_ms, now_ms, now_ms + 20_000):
        assert downlinks.acknowledge(Reception(FRAME, STATION, Radio(868_100_000, 5), Deaf(), at_ms), entry, 1, at_ms)
    assert downlinks.outcomes["lost"] == 1, "the one of the month to come, when the clock is back"
    downlinks.expire(now_ms + 30_001)
    assert downlinks.outcomes["lost"] == 2
