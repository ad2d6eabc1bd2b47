"""The command: a process that listens, says where, ends well, and goes on after a kill."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from onefold.cli.main import main
from tests.lib.gatewaying import Process, device, stored, uplink, write_registry
from tests.lib.redis_server import RedisServer


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    for process in list(Process.alive):
        process.kill()
        process.communicate()
        Process.alive.remove(process)


@pytest.fixture
def devices(tmp_path):
    return write_registry(tmp_path / "devices.toml", device(1), device(2))


def test_it_says_where_it_is_and_ends_with_what_it_has_in_hand(tmp_path, devices):
    process = Process(tmp_path / "s", devices, "--region", "US915", "--udp", "0")
    started = process.started
    assert (started["name"], started["region"], started["devices"]) == ("a", "US915", 2)
    assert started["coordinator"] is None
    assert started["udp"] > 0
    with process.server.station() as station:
        station.hear(uplink(1, confirmed=True), DR=3, Freq=904_100_000)
        down = station.message()
        assert (down["RX1Freq"], down["RX1DR"], down["RX2Freq"], down["RX2DR"]) == (923_900_000, 13, 923_300_000, 8)
        station.hear(uplink(2, confirmed=True), DR=3, Freq=904_100_000)
        process.server.settled(2)
        process.process.send_signal(signal.SIGTERM)
        assert station.message()["msgtype"] == "dnmsg"
        assert station.end() == (1012, "the server is shutting down")
    code, said = process.end()
    assert code == 0
    assert "server a: taking frames of 2 devices" in said
    assert f"UDP port {started['udp']}; US915; coordinator: none, this is the only server" in said
    assert [row["fcnt"] for row in stored(tmp_path / "s")] == [1, 2]


def test_after_a_kill_it_goes_on_from_its_counters_and_its_log(tmp_path, devices):
    process = Process(tmp_path / "s", devices)
    with process.server.station(1) as station:
        for fcnt in range(1, 21):
            station.hear(uplink(fcnt, confirmed=True))
        process.server.settled(20)
        assert len(station.sync()) == 20
        process.process.kill()
    process.end()
    process = Process(tmp_path / "s", devices)
    with process.server.station(1) as one, process.server.station(2) as two:
        two.hear(uplink(20, confirmed=True))  # another station's copy of what was stored
        one.hear(uplink(20, confirmed=True))  # its acknowledgement was missed
        one.hear(uplink(3, confirmed=True))  # a replay
        one.hear(uplink(21, confirmed=True))
        assert process.server.settled(4) == {"other_station": 1, "resubmitted": 1, "replayed": 1, "new_frame": 1}
        downs = [int.from_bytes(bytes.fromhex(down["pdu"])[6:8], "little") for down in one.sync()]
        assert downs == [21, 22]  # the counter down goes on too
    process.process.send_signal(signal.SIGINT)
    assert process.end()[0] == 0
    assert [row["fcnt"] for row in stored(tmp_path / "s")] == list(range(1, 22))


def test_a_hangup_reads_the_registry_again(tmp_path, devices):
    process = Process(tmp_path / "s", devices)
    before = devices.stat()
    write_registry(devices, device(1), device(7))  # as long as before, and as old: only the signal tells
    os.utime(devices, ns=(before.st_atime_ns, before.st_mtime_ns))
    process.process.send_signal(signal.SIGHUP)
    with process.server.station() as station:
        count = 0
        while "new_frame" not in process.server.answers():
            count += 1
            station.hear(uplink(1, 7))
            process.server.settled(count)


def test_settings_of_redis_that_lose_state_are_named_at_the_start(tmp_path, devices):
    with RedisServer(tmp_path / "redis", "--appendonly", "no", "--save", "") as redis:
        process = Process(tmp_path / "s", devices, "--coordinator", redis.url, "--name", "b")
        assert process.started["coordinator"] == redis.url
        with process.server.station() as station:
            station.hear(uplink(1, confirmed=True))
            assert station.message()["msgtype"] == "dnmsg"
        process.process.send_signal(signal.SIGTERM)
        code, said = process.end()
    assert code == 0
    assert "warning: redis://" in said
    assert "appendonly" in said


def test_a_coordinator_that_is_not_there_is_said_and_waited_for(tmp_path, devices):
    redis = RedisServer(tmp_path / "redis")
    process = Process(tmp_path / "s", devices, "--name", "a", "--coordinator", redis.url, "--rx-delay", "15")
    with process.server.station() as station:
        station.hear(uplink(1, confirmed=True))
        process.server.wait_for("parked", 1)
        with redis:
            assert station.message()["msgtype"] == "dnmsg"
            process.process.send_signal(signal.SIGTERM)
            code, said = process.end()
    assert code == 0
    assert "warning: the coordinator is not there: redis://" in said
    assert "the coordinator shared is down, frames wait" in said
    assert "the coordinator shared is back" in said


def test_addresses_with_passwords_come_from_variables_and_are_not_shown(tmp_path, devices):
    with RedisServer(tmp_path / "redis", "--user", "me", "on", ">s3cret", "~*", "+@all") as redis:
        url = redis.url.replace("redis://", "redis://me:s3cret@")
        process = Process(tmp_path / "s", devices, "--name", "b", ONEFOLD_COORDINATOR=url)
        with process.server.station() as station:
            station.hear(uplink(1, confirmed=True))
            assert station.message()["msgtype"] == "dnmsg"
        process.process.send_signal(signal.SIGTERM)
        code, said = process.end()
    assert code == 0
    assert process.started["coordinator"] == redis.url
    assert "s3cret" not in said


def test_udp_may_listen_elsewhere_than_websockets(tmp_path, devices):
    process = Process(tmp_path / "s", devices, "--udp", "0", "--udp-host", "127.0.0.2")
    ask = bytes.fromhex("02 1234 02 0016c001ff10a235")
    for host, answers in (("127.0.0.2", True), ("127.0.0.1", False)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gateway:
            gateway.settimeout(60)
            gateway.connect((host, process.started["udp"]))
            gateway.send(ask)
            if answers:
                assert gateway.recv(100) == bytes.fromhex("02 1234 04")
            else:
                with pytest.raises(ConnectionRefusedError):
                    gateway.recv(100)
    assert process.server.ask("/healthz")[0] == 200


def test_two_servers_cannot_have_one_folder(tmp_path, devices):
    Process(tmp_path / "s", devices)
    done = run("--devices", str(devices), folder=tmp_path / "s")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert str(tmp_path / "s") in line


def run(*words, folder):
    command = [sys.executable, "-m", "onefold.cli.main", "serve", "gateway", str(folder), "--port", "0", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--host", "192.0.2.1"], 2, "to listen on more than loopback needs a token"),
        (["--name", "a", "--coordinator", "http://x"], 2, "no counters at http://..."),
        (["--region", "EU433"], 2, "EU433"),
        (["--mqtt", "http://me:s3cret@host"], 2, "MQTT broker must begin with mqtt://"),
        (
            ["--coordinator", "sqlite:///x.db"],
            2,
            "--coordinator needs a --name: two servers of one name would take each other",
        ),
        (["--udp", "0", "--udp-host", "192.0.2.1"], 2, "UDP has no token"),
        (["--udp-host", "127.0.0.1"], 2, "--udp-host is 127.0.0.1, but without --udp it has no effect"),
        (["--udp-allow", "10.0.0.0/8"], 2, "without --udp it has no effect"),
        (["--when-down", "unsure"], 2, "without --coordinator it has no effect"),
        (["--sub-band", "3"], 2, "without --region US915 it has no effect"),
        (["--devices", "no.toml"], 2, "file 'no.toml' does not exist"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, devices, words, code, told, capsys):
    command = ["serve", "gateway", str(tmp_path / "s"), "--port", "0", "--devices", str(devices), *words]
    assert main(command) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert "s3cret" not in line


def test_a_bad_registry_is_one_line_without_keys(tmp_path, capsys):
    secret = "c0ffee" + 25 * "5"
    path = write_registry(tmp_path / "devices.toml", device(1, nwk_skey=secret))
    assert main(["serve", "gateway", str(tmp_path / "s"), "--devices", str(path), "--json"]) == 2
    told = capsys.readouterr()
    assert told.err == f"onefold: {path}: device 1 ({1:016x}): nwk_skey has 31 characters, must be 32 hex digits\n"
    assert told.out == ""
