"""Stations on websockets: the protocol, what real stations sent, and the acknowledgements."""

import json
import time
from pathlib import Path

import pytest
from websockets.sync.client import connect

from onefold.lorawan.flow import GatewayLimits
from onefold.lorawan.frames import parse_down
from onefold.lorawan.mic import data_mic, signed_join
from onefold.lorawan.radio import region
from tests.lib.gatewaying import KEY, Running, device, running, stored, uplink

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "lorawan.json").read_text(encoding="utf-8"))
CAPTURE = VECTORS["station_capture"]["messages"]
METER = device(0x26011BDA, eui=0x0004A30B001C0530, app_key=KEY)
OTHER = device(0xFC00AC01, eui=2)


def discover(server: Running, query: str) -> dict:
    with connect(f"ws://{server.address}/router-info", compression=None) as websocket:
        websocket.send(query)
        told: dict = json.loads(websocket.recv(timeout=60))
        return told


def replay(server: Running, messages) -> list[dict]:
    """Send what the two stations of the capture sent, in that order; the downlinks by station."""
    with server.station(1) as one, server.station(2) as two:
        stations = {"::1": one, "::2": two}
        for n, case in enumerate(messages, 1):
            stations[case["station"]].send(case["message"])
            server.settled(n)
        return [{**message, "via": name} for name, station in stations.items() for message in station.sync()]


def test_discovery_sends_a_station_to_its_own_address(tmp_path):
    with running(tmp_path) as server:
        for name in ("::1", "00-00-00-00-00-00-00-01", 1, "router-0:0:0:1"):
            told = discover(server, json.dumps({"router": name}))
            assert told == {
                "router": "::1",
                "muxs": "muxs-::1",
                "uri": f"ws://{server.address}/router/0000000000000001",
            }
        with connect(told["uri"], compression=None) as websocket:
            websocket.send('{"msgtype":"version"}')
            assert json.loads(websocket.recv(timeout=60))["msgtype"] == "router_config"
        told = discover(server, '{"router": "me"}')
        assert told["error"].startswith("router is 'me', must be an EUI")
        assert discover(server, "{") == {"error": "the query is not JSON"}
        assert "must be a JSON object" in discover(server, "[1]")["error"]
    with running(tmp_path / "p", server={"public_url": "wss://lns.example"}) as server:
        assert discover(server, '{"router": 1}')["uri"] == "wss://lns.example/router/0000000000000001"


@pytest.mark.parametrize(("name", "told"), [("EU868", "EU863"), ("US915", "US902")])
def test_a_station_is_told_about_the_radio(tmp_path, name, told):
    with running(tmp_path, region=region(name)) as server, server.station() as station:
        config = station.version()
        assert (config["region"], config["hwspec"], len(config["DRs"])) == (told, "sx1301/1", 16)
        assert (config["NetID"], config["JoinEui"]) == (None, None)
        assert (config["nocca"], config["nodc"], config["nodwell"]) == (False, False, False)
        assert len([c for n, c in config["sx1301_conf"][0].items() if n.startswith("chan_multiSF")]) == 8
        assert config["freq_range"][0] < config["sx1301_conf"][0]["radio_0"]["freq"] < config["freq_range"][1]
        assert "nodc" not in station.version("rmtsh prod")  # a production station would only warn of it


def test_time_is_that_of_gps(tmp_path):
    with running(tmp_path) as server, server.station() as station:
        station.send({"msgtype": "timesync", "txtime": 123_456})
        told = station.message()
        assert (told["msgtype"], told["txtime"]) == ("timesync", 123_456)
        assert abs(told["gpstime"] / 1e6 - (time.time() - 315_964_800 + 18)) < 60


def test_what_real_stations_sent(tmp_path):
    with running(tmp_path, METER, OTHER, keep_all=True) as server:
        downs = replay(server, CAPTURE)
        answers = server.answers()
    assert answers == {"new_join": 1, "join_repeated": 1, "new_frame": 4, "other_station": 4, "resubmitted": 1,
                       "counter_gap": 5}  # fmt: skip
    rows = [(row["kind"], row.get("dev_addr"), row.get("fcnt"), row["station"][-1]) for row in stored(tmp_path)]
    assert rows == [("join", None, None, "2"), ("data", "26011bda", 1, "2"), ("data", "26011bda", 2, "1"),
                    ("data", "26011bda", 3, "2"), ("data", "fc00ac01", 4, "2")]  # fmt: skip
    assert [(down["via"], parse_down(bytes.fromhex(down["pdu"])).fcnt) for down in downs] == [("::2", 1), ("::2", 2)]
    everything = stored(tmp_path, "receptions")
    assert len(everything) == len(CAPTURE)
    keys = {row["key"] for row in everything if row["kind"] == "data"}
    assert len(keys) == 7


def test_the_counter_of_real_stations_rolls_over(tmp_path):
    with running(tmp_path, {**METER, "fcnt_up": 65_530}) as server:
        replay(server, CAPTURE[11:])
        assert server.answers() == {"new_frame": 3, "other_station": 2}
    assert [row["fcnt"] for row in stored(tmp_path)] == [65_535, 65_536, 65_537]


@pytest.mark.parametrize("strategy", ["drop", "mark", "none"])
def test_each_strategy_sends_up_what_the_adr_says_and_answers_once(tmp_path, strategy):
    with running(tmp_path, device(strategy=strategy)) as server, server.station(1) as one, server.station(2) as two:
        for fcnt in (1, 2):
            for station in (one, two):
                station.hear(uplink(fcnt, confirmed=True))
                server.settled(2 * fcnt - 1 + (station is two))
        assert server.answers() == {"new_frame": 2, "other_station": 2}
        assert (len(one.sync()), len(two.sync())) == (2, 0)
    rows = [(row["fcnt"], row["status"], row.get("dup_msg", False)) for row in stored(tmp_path)]
    again = {"drop": [], "mark": [("soft_duplicate", True)], "none": [("soft_duplicate", False)]}[strategy]
    expected = [(fcnt, *row) for fcnt in (1, 2) for row in [("not_duplicate", False), *again]]
    assert rows == expected


def test_an_acknowledgement_is_what_the_device_waits_for(tmp_path):
    with running(tmp_path, device(), device(2, **{"class": "C"})) as server, server.station() as station:
        station.hear(uplink(7, confirmed=True))
        down = station.message()
        frame = parse_down(bytes.fromhex(down["pdu"]))
        assert (frame.ack, frame.dev_addr, frame.fcnt, frame.confirmed) == (True, 1, 1, False)
        assert frame.mic == data_mic(bytes.fromhex(KEY), frame.raw, 1, 1, down=True)
        assert (down["DevEui"], down["dC"], down["RxDelay"]) == ("00-00-00-00-00-00-00-01", 0, 1)
        assert (down["RX1Freq"], down["RX1DR"], down["RX2Freq"], down["RX2DR"]) == (868_100_000, 5, 869_525_000, 0)
        assert (down["xtime"], down["rctx"]) == (1, 0)
        station.send({"msgtype": "dntxed", "diid": down["diid"], "DevEui": down["DevEui"], "xtime": 2, "rctx": 0})
        station.hear(uplink(1, 2, confirmed=True))
        second = station.message()
        assert second["dC"] == 2
        assert second["diid"] != down["diid"]
        server.wait_for('downlinks_total{outcome="transmitted"}', 1)
        assert server.figure('downlinks_total{outcome="sent"}') == 2


def test_an_acknowledgement_that_nobody_transmits_is_lost(tmp_path):
    with running(tmp_path, limits=GatewayLimits(lost_s=0)) as server, server.station() as station:
        station.hear(uplink(1, confirmed=True))
        down = station.message()
        server.wait_for('downlinks_total{outcome="lost"}', 1)
        station.send({"msgtype": "dntxed", "diid": down["diid"]})
        station.sync()
        assert server.figure('downlinks_total{outcome="transmitted"}') == 0


def test_an_unconfirmed_frame_gets_no_answer(tmp_path):
    with running(tmp_path) as server, server.station() as station:
        station.hear(uplink(1))
        station.hear(uplink(2))
        server.settled(2)
        assert station.sync() == []


def test_devices_that_share_an_address_are_told_apart_by_their_keys(tmp_path):
    second = "ff" * 16
    with (
        running(tmp_path, device(), device(1, eui=2, nwk_skey=second, strategy="mark")) as server,
        server.station() as station,
    ):
        station.hear(uplink(5))
        station.hear(uplink(9, key=second))
        station.hear(uplink(6, key="ee" * 16))
        assert server.settled(3) == {"new_frame": 2, "bad_mic": 1}
    assert [(row["dev_eui"][-1], row["fcnt"]) for row in stored(tmp_path)] == [("1", 5), ("2", 9)]


def test_a_forged_frame_changes_no_state(tmp_path):
    with running(tmp_path) as server, server.station(1) as one, server.station(2) as two:
        one.hear(uplink(5))
        server.settled(1)
        for fcnt in (6, 5, 100, 0):
            one.hear(uplink(fcnt, key="ee" * 16))
        true = uplink(6, confirmed=True)
        one.hear(true._replace(mic=true.mic ^ 1))
        assert server.settled(6) == {"new_frame": 1, "bad_mic": 5}
        assert server.figure("sightings") == 1
        two.hear(true)
        assert server.settled(7)["new_frame"] == 2
        assert len(two.sync()) == 1


def test_a_device_of_another_server_is_not_ours(tmp_path):
    key = bytes.fromhex(KEY)
    theirs, ours = device(1, gateway="b", app_key=KEY), device(2, gateway="a")
    with running(tmp_path, theirs, ours) as server, server.station() as station:
        station.hear(uplink(70_000, 1, confirmed=True))  # beyond 16 bits its counter is known to its own server only
        station.hear(uplink(1, 2, confirmed=True))
        station.hear(signed_join(app_key=key, join_eui=9, dev_eui=1, dev_nonce=3))
        assert server.settled(3) == {"other_gateway": 2, "new_frame": 1}
        assert [down["DevEui"][-1] for down in station.sync()] == ["2"]


def test_join_requests_count_once_and_only_with_the_right_code(tmp_path):
    key = bytes.fromhex(KEY)
    with (
        running(tmp_path, device(dev_addr=None, nwk_skey=None, app_key=KEY)) as server,
        server.station(1) as one,
        server.station(2) as two,
    ):
        first = signed_join(app_key=key, join_eui=9, dev_eui=1, dev_nonce=3)
        one.hear(first._replace(mic=0))
        one.hear(first)
        server.settled(2)
        two.hear(first)
        two.hear(signed_join(app_key=key, join_eui=9, dev_eui=1, dev_nonce=4))
        two.hear(signed_join(app_key=key, join_eui=9, dev_eui=5, dev_nonce=4))
        assert server.settled(5) == {"new_join": 2, "join_repeated": 1, "bad_mic": 1, "unknown_device": 1}
    rows = stored(tmp_path)
    assert [(row["kind"], row["dev_nonce"], row["join_eui"]) for row in rows] == [
        ("join", 3, f"{9:016x}"),
        ("join", 4, f"{9:016x}"),
    ]


def test_messages_of_no_interest_are_counted(tmp_path):
    with running(tmp_path) as server, server.station() as station:
        for kind in ("propdf", "rmtsh", "rejoin", "x" * 100):
            station.send({"msgtype": kind})
        station.send(b"a remote shell's")
        station.send({"msgtype": "dntxed", "seqno": 4})
        station.send({"msgtype": "dntxed"})
        station.sync()
        found = {name: server.figure(f'messages_total{{msgtype="{name}"}}') for name in ("propdf", "rmtsh", "other")}
        assert found == {"propdf": 1, "rmtsh": 1, "other": 3}
        assert server.answers() == {}


def test_a_station_that_comes_again_takes_the_place_of_its_old_connection(tmp_path):
    with running(tmp_path) as server, server.station(1) as old, server.station(1) as new:
        assert old.end() == (1008, "this station has connected again")
        new.hear(uplink(1, confirmed=True))
        assert new.message()["msgtype"] == "dnmsg"
        assert server.figure("stations") == 1


def test_a_record_says_all_there_is_to_say(tmp_path):
    with running(tmp_path, device(strategy="mark")) as server, server.station(0x16C001FF10A235) as station:
        frame = uplink(3, payload=b"\x01\x02")
        station.hear(frame)
        server.settled(1)
    (row,) = stored(tmp_path)
    received = row.pop("received_ms")
    assert abs(received / 1_000 - time.time()) < 60
    assert row == {
        "v": 1, "kind": "data", "key": frame.key.hex(), "dev_eui": f"{1:016x}", "dev_addr": "00000001", "fcnt": 3,
        "fport": 1, "payload": "0102", "confirmed": False, "adr": False, "server": "a", "station": "0016c001ff10a235",
        "time_ms": 1_794_764_902_500, "rssi": -50.0, "snr": 9.5, "frequency": 868_100_000, "dr": 5,
        "verdict": "FIRST", "reason": "new_frame", "status": "not_duplicate",
    }  # fmt: skip
