"""The registry: what is wrong is named, keys are not, and a change is seen."""

import json
import sqlite3

import pytest

from onefold.cli.main import main
from onefold.errors import BadInput
from onefold.lorawan.registry import RegistryFile, read_registry
from onefold.lorawan.rules import Strategy
from tests.lib.gatewaying import KEY, device, running, uplink, write_registry

SECRET = "c0ffee" + 26 * "5"


def test_a_device_has_what_the_file_says(tmp_path):
    path = write_registry(
        tmp_path / "d.toml",
        {
            "dev_eui": "00-04-A3-0B-00-1C-05-30", "dev_addr": "26011BDA", "nwk_skey": KEY, "app_skey": KEY,
            "app_key": KEY, "strategy": "mark", "gateway": "a", "class": "c", "activation": "otaa", "relaxed": True,
            "fcnt_up": 5,
        },
        {"dev_eui": "0000000000000002", "app_key": KEY},
    )  # fmt: skip
    registry = read_registry(path)
    entry = registry.by_eui[0x0004A30B001C0530]
    assert registry.by_address == {0x26011BDA: [entry]}
    assert (entry.device.strategy, entry.device.gateway, entry.device.device_class) == (Strategy.MARK, "a", "C")
    assert (entry.device.activation, entry.device.relaxed, entry.fcnt_up) == ("otaa", True, 5)
    assert registry.by_eui[2].device.strategy is Strategy.NONE
    assert len(registry) == 2


def test_keys_are_never_printed(tmp_path):
    entry = read_registry(write_registry(tmp_path / "d.toml", device(nwk_skey=SECRET, app_key=SECRET))).by_eui[1]
    assert entry.nwk_skey == bytes.fromhex(SECRET)
    for text in (repr(entry), str(entry), repr(vars(entry).keys()), entry.session):
        assert SECRET[:8] not in text
        assert repr(entry.nwk_skey)[2:10] not in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dev_eui": "12"}, "device 2 (12): dev_eui is '12', must be 16 hex digits in quotes"),
        ({"dev_eui": 12}, "device 2: dev_eui is 12, must be"),
        ({"dev_eui": None}, "device 2: dev_eui is missing, must be"),
        ({"dev_addr": "2601"}, "dev_addr is '2601', must be 8 hex digits in quotes"),
        ({"dev_addr": None}, "dev_addr and nwk_skey belong together, and one of them is missing"),
        ({"nwk_skey": None}, "dev_addr and nwk_skey belong together, and one of them is missing"),
        ({"nwk_skey": None, "dev_addr": None}, "neither dev_addr and nwk_skey nor an app_key"),
        ({"nwk_skey": SECRET[:-1]}, "nwk_skey has 31 characters, must be 32 hex digits"),
        ({"app_key": SECRET[:-1] + "x"}, "app_key has 32 characters, must be 32 hex digits"),
        ({"app_skey": 5}, "app_skey is not a text, must be 32 hex digits in quotes"),
        ({"strategy": "keep"}, "strategy is 'keep', must be one of drop, mark, none"),
        ({"class": "B"}, "class is 'B', must be one of A, C"),
        ({"activation": "x"}, "activation is 'x', must be one of abp, otaa"),
        ({"relaxed": "yes"}, "relaxed is 'yes', must be true or false"),
        ({"fcnt_up": -1}, "fcnt_up is -1, must be a whole number, 0 to 4294967295"),
        ({"fcnt_up": 2**32}, "fcnt_up is 4294967296"),
        ({"gateway": 5}, "gateway is 5, must be the name of a server"),
        ({"dev_eui": "0000000000000001"}, "dev_eui is there twice"),
        ({"nwkskey": SECRET}, "there is no key 'nwkskey', only dev_eui, dev_addr, nwk_skey"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_device(tmp_path, changes, told):
    path = write_registry(tmp_path / "d.toml", device(1), {**device(2), **changes})
    with pytest.raises(BadInput) as caught:
        read_registry(path)
    assert str(caught.value).startswith(f"{path}: device 2")
    assert told in str(caught.value)
    assert SECRET[:8] not in str(caught.value) + repr(caught.value.values)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[device", "is neither TOML nor SQLite"),
        ("\xff", "is neither TOML nor SQLite"),
        ("device = 5", "device must be a list of tables"),
        ("[devices]", "there is no 'devices', only [[device]]"),
    ],
)
def test_a_file_that_is_no_registry_is_named(tmp_path, text, told):
    path = tmp_path / "d.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput) as caught:
        read_registry(path)
    assert told in str(caught.value)


def test_a_table_of_sqlite_is_read_the_same(tmp_path):
    path = tmp_path / "d.db"
    with sqlite3.connect(path) as database:
        database.execute("create table devices (dev_eui, dev_addr, nwk_skey, strategy, relaxed, note)")
        row = (f"{1:016x}", f"{1:08x}", KEY, "drop", 1, "on the roof")
        database.execute("insert into devices values (?, ?, ?, ?, ?, ?)", row)
    registry = read_registry(path)
    assert registry.by_eui[1].device.relaxed
    assert registry.by_address[1][0].nwk_skey == bytes.fromhex(KEY)
    with sqlite3.connect(path) as database:
        database.execute("update devices set strategy = 'x'")
    with pytest.raises(BadInput, match="strategy is 'x'"):
        read_registry(path)
    with sqlite3.connect(path) as database:
        database.execute("drop table devices")
    with pytest.raises(BadInput, match="has no table devices"):
        read_registry(path)


def test_a_changed_file_is_read_and_a_bad_one_leaves_the_last_good_one(tmp_path):
    path = write_registry(tmp_path / "d.toml", device(1))
    file = RegistryFile(path)
    assert not file.reload()
    write_registry(path, device(1), device(2))
    assert file.reload()
    assert len(file.registry) == 2
    write_registry(path, device(1, strategy="x"))
    assert not file.reload()
    assert "strategy is 'x'" in (file.problem or "")
    assert len(file.registry) == 2
    write_registry(path, device(1))
    assert file.reload()
    assert (file.problem, len(file.registry)) == (None, 1)


def test_a_running_server_sees_the_change(tmp_path, monkeypatch):
    monkeypatch.setattr("onefold.lorawan.server.WATCH_S", 0.01)
    with running(tmp_path, device(1)) as server, server.station() as station:
        station.hear(uplink(1, 2))
        assert server.settled(1) == {"unknown_device": 1}
        write_registry(tmp_path / "devices.toml", device(1), device(2))
        server.wait_for("devices", 2)
        station.hear(uplink(1, 2))
        assert server.settled(2)["new_frame"] == 1


def test_new_keys_are_a_new_session_that_counts_from_zero(tmp_path, monkeypatch):
    monkeypatch.setattr("onefold.lorawan.server.WATCH_S", 0.01)
    second = "ab" * 16
    with running(tmp_path, device(1)) as server, server.station() as station:
        station.hear(uplink(500))
        server.settled(1)
        write_registry(tmp_path / "devices.toml", device(1, nwk_skey=second), device(2))
        server.wait_for("devices", 2)
        station.hear(uplink(0, key=second))
        station.hear(uplink(501))
        assert server.settled(3) == {"new_frame": 2, "bad_mic": 1}
    with running(tmp_path) as server, server.station() as station:
        station.hear(uplink(1, key=second))
        assert server.settled(1) == {"new_frame": 1}


def test_the_command_lists_devices_without_their_keys(tmp_path, capsys):
    path = write_registry(tmp_path / "d.toml", device(1, nwk_skey=SECRET), device(1, eui=2, gateway="b", relaxed=True))
    assert main(["lorawan", "devices", str(path), "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert [row["dev_eui"] for row in found["devices"]] == [f"{1:016x}", f"{2:016x}"]
    assert found["devices"][0]["keys"] == ["nwk_skey"]
    assert found["shared_addresses"] == 1
    assert main(["lorawan", "devices", str(path)]) == 0
    people = capsys.readouterr().err
    assert "2 devices, 1 addresses belong to several" in people
    assert SECRET[:8] not in told.out + told.err + people
    assert main(["lorawan", "devices", str(write_registry(path, device(1, strategy="x")))]) == 2
    assert "strategy is 'x'" in capsys.readouterr().err
    assert main(["lorawan", "devices", str(tmp_path / "no")]) == 2
