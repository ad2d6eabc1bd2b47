import asyncio
import inspect
import json
import threading

import pytest

from onefold.cli.lorawan import simulate as command
from onefold.testing.radio import RadioPlan, make
from tests.lib.commands import here
from tests.lib.lns_peer import Peer

SMALL = ("--frames", "200", "--devices", "10", "--gateways", "3", "--shared", "0")


def test_the_defaults_are_those_of_the_simulation():
    said = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    plan = RadioPlan()
    for name in said.keys() - {"folder", "as_json"}:
        assert said[name] == getattr(plan, name), name


def test_simulate_says_what_it_made(tmp_path):
    done = here("lorawan", "simulate", "out", *SMALL, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    lines = (tmp_path / "out/receptions.jsonl").read_text().splitlines()
    assert len(lines) == said["receptions"] == sum(said["kinds"].values())
    assert (said["sent"], said["heard"] + said["lost"]) == (200, 200)
    assert done.stderr.startswith(f"{said['receptions']} receptions by 3 gateways are in out/receptions.jsonl\n")
    assert f"10 devices sent 200 uplinks, {said['lost']} of which nobody heard" in done.stderr


def test_every_option_reaches_the_traffic(tmp_path):
    wanted = {
        "seed": 7, "devices": 20, "gateways": 4, "frames": 300, "interval_ms": 90_000, "side_m": 3_000,
        "range_m": 2_000, "strategy": "mark", "confirmed": 0.5, "retries": 0.6, "retry_ms": 9_000,
        "losses": 0.1, "fades": 0.2,
        "mirrors": 0.3, "replays": 0.04, "forged": 0.05, "foreign": 0.06, "joins": 0.3, "rollovers": 0.25,
        "resets": 0.15, "shared": 0.1,
    }  # fmt: skip
    words = [word for name, value in wanted.items() for word in (f"--{name.replace('_', '-')}", value)]
    done = here("lorawan", "simulate", "out", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "out/truth/plan.json").read_text())
    assert {name: plan[name] for name in wanted} == wanted
    assert plan.keys() - wanted.keys() == {"delay_ms", "slow_ms"}


def test_what_makes_no_sense_is_one_line(tmp_path):
    done = here("lorawan", "simulate", "out", "--losses", "2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "onefold: losses is 2.0, must be between 0.0 and 0.9\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    done = here("lorawan", "simulate", "full", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "onefold: folder is 'full', which exists and is not an empty directory\n"
    done = here("lorawan", "devices", "nowhere.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.toml" in done.stderr
    done = here("lorawan", "play", "full", "ws://127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("devices.toml: is not there: 'onefold lorawan simulate' makes such a folder\n")
    done = here("lorawan", "play", "full", "http://127.0.0.1:1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "onefold: http://127.0.0.1:1: must be ws://HOST:PORT or wss://HOST:PORT\n",
    )


@pytest.fixture
def peer():
    """A small server on a loop of its own, for the traffic of SMALL."""
    peer = Peer(make(RadioPlan(frames=200, devices=10, gateways=3, shared=0)), token="secret")  # noqa: S106 # of this test
    ready, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def run() -> None:
        async with peer.open():
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(60)
    yield peer
    loop.call_soon_threadsafe(done.set)
    thread.join()
    loop.close()


def test_play_is_the_stations(tmp_path, peer):
    (tmp_path / "token").write_text("secret\n")
    assert here("lorawan", "simulate", "out", *SMALL, cwd=tmp_path).returncode == 0
    words = ("--token-file", "token", "--quiet-s", "0.3", "--json")
    done = here("lorawan", "play", "out", peer.url, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["sent"] == len(peer.uplinks) == len((tmp_path / "out/receptions.jsonl").read_text().splitlines())
    assert (said["stations"], said["connects"], said["timesyncs"], said["problems"]) == (3, 3, 3, [])
    assert said["acknowledged"] == said["uplinks_acknowledged"] == said["transmitted"] > 20
    assert said["ack_ms"]["p50"] <= said["ack_ms"]["p99"]
    assert f"{said['acknowledged']} acknowledgements came for {said['acknowledged']} uplinks, after" in done.stderr


def test_a_server_that_sends_something_wrong_is_a_finding(tmp_path, peer):
    (tmp_path / "token").write_text("secret\n")
    peer.spoilt = 1
    assert here("lorawan", "simulate", "out", *SMALL, cwd=tmp_path).returncode == 0
    done = here("lorawan", "play", "out", peer.url, "--token-file", "token", "--quiet-s", "0.3", cwd=tmp_path)
    assert done.returncode == 1
    assert "the integrity code of a down frame to" in done.stderr


def test_a_server_that_is_not_there_or_refuses_is_one_line(tmp_path, peer):
    assert here("lorawan", "simulate", "out", *SMALL, cwd=tmp_path).returncode == 0
    done = here("lorawan", "play", "out", "ws://127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("onefold: ws://127.0.0.1:1/router-info: cannot connect: ")
    done = here("lorawan", "play", "out", peer.url, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        f"onefold: {peer.url}/router-info: the server said 401 Unauthorized\n",
    )
