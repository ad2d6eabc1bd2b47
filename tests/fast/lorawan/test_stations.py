import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest

from onefold.errors import BadInput, Misuse
from onefold.testing.radio import QUIET, RadioPlan, RadioTraffic, heard, make
from onefold.testing.stations import Fleet
from tests.lib.fleet import ring
from tests.lib.lns_peer import Peer, settled


@pytest.fixture(scope="module")
def made() -> RadioTraffic:
    return make(replace(QUIET, frames=200, devices=8, gateways=3, confirmed=0.5))


def places(made: RadioTraffic, peer: Peer) -> dict[str, str]:
    return dict.fromkeys(made.world.gateways, peer.url)


def play(made: RadioTraffic, peer: Peer, **settings) -> Fleet:
    async def run() -> Fleet:
        async with peer.open(), Fleet(places(made, peer), ring(made), **settings) as fleet:
            await fleet.play(heard(made))
            if not peer.cut_after:
                await settled(peer, len(made))
            await fleet.quiet(0.2)
            return fleet

    return asyncio.run(run())


def test_every_station_says_what_it_heard_in_order(made):
    peer = Peer(made)
    fleet = play(made, peer)
    assert (fleet.counts.sent, fleet.counts.unsent, fleet.counts.problems) == (600, 0, [])
    for eui in made.world.gateways:
        mine = [message["upinfo"]["xtime"] for station, message in peer.messages if station == eui and "MIC" in message]
        assert mine == [line.xtime for line in heard(made) if line.station == eui]
    versions = [message for _, message in peer.messages if message["msgtype"] == "version"]
    assert [version["protocol"] for version in versions] == [2, 2, 2]
    assert sorted(peer.discovered) == ["00-16-C0-01-FF-10-00-00", "00-16-C0-01-FF-10-00-01", "00-16-C0-01-FF-10-00-02"]
    assert fleet.counts.timesyncs == 3
    assert all(s.config == {"msgtype": "router_config", "region": "EU863"} for s in fleet.stations.values())


def test_acknowledgements_are_counted_by_device_and_uplink_and_each_is_transmitted(made):
    peer = Peer(made)
    fleet = play(made, peer)
    owners = made.world.devices
    wanted = {
        (f"{owners[device].dev_eui:016x}", counter & 0xFFFF)
        for device, counter, confirmed in zip(made.air.device, made.air.counter, made.air.confirmed, strict=True)
        if confirmed
    }
    assert Counter((ack.device, ack.uplink) for ack in fleet.counts.acks) == Counter(wanted)
    said = {(message["FCnt"], message["MIC"]) for message in peer.uplinks if message["msgtype"] == "updf"}
    assert {(ack.uplink, ack.mic) for ack in fleet.counts.acks} <= said
    assert sorted(ack.counter for ack in fleet.counts.acks) == list(range(1, len(wanted) + 1))
    assert all(0 < ack.waited_s < 30 for ack in fleet.counts.acks)
    done = [message["diid"] for _, message in peer.messages if message["msgtype"] == "dntxed"]
    assert sorted(done) == list(range(1, len(wanted) + 1))


def test_an_acknowledgement_with_a_wrong_integrity_code_is_a_problem_and_does_not_count(made):
    fleet = play(made, Peer(made, spoilt=1))
    assert not fleet.counts.acks
    assert "the integrity code of a down frame to" in fleet.counts.problems[0]
    assert len(fleet.counts.problems) == 100


def test_a_station_whose_connection_breaks_comes_again(made):
    peer = Peer(made, cut_after=20)
    fleet = play(made, peer)
    assert fleet.counts.connects > 3
    assert fleet.counts.sent + fleet.counts.unsent == 600
    assert len(peer.discovered) >= fleet.counts.connects


def test_a_token_is_sent_and_a_wrong_one_is_said(made):
    assert play(made, Peer(made, token="secret"), token="secret").counts.sent == 600  # noqa: S106 # of this test
    with pytest.raises(Misuse, match="the server said 401 Unauthorized"):
        play(made, Peer(made, token="secret"), token="other")  # noqa: S106 # of this test


def test_a_server_that_does_not_want_the_station_is_believed(made):
    peer = Peer(made)
    peer.error = "unknown router"
    with pytest.raises(Misuse, match="router-info: unknown router"):
        play(made, peer)


def test_a_connection_that_begins_wrong_is_closed(made):
    class Rude(Peer):
        closed = 0

        async def _answer(self, socket, message):
            await socket.send(json.dumps({"msgtype": "hello"}))
            async with asyncio.timeout(20):
                await socket.wait_closed()
            self.closed += 1

    async def run() -> None:
        peer = Rude(made)
        async with peer.open():
            with pytest.raises(BadInput, match="must be a router_config"):
                async with Fleet(places(made, peer), ring(made)):
                    pass
            async with asyncio.timeout(20):
                while peer.closed < len(made.world.gateways):
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_nobody_there_is_said(made):
    async def run() -> None:
        async with Fleet(dict.fromkeys(made.world.gateways, "ws://127.0.0.1:1"), ring(made)):
            pass

    with pytest.raises(ConnectionError, match=r"ws://127.0.0.1:1/router-info: cannot connect"):
        asyncio.run(run())


def test_a_rate_is_kept(made):
    async def run() -> float:
        peer = Peer(made)
        async with peer.open(), Fleet(places(made, peer), ring(made)) as fleet:
            began = asyncio.get_running_loop().time()
            await fleet.play(list(heard(made))[:100], rate=400)
            return asyncio.get_running_loop().time() - began

    assert 0.24 < asyncio.run(run()) < 5


def test_all_kinds_of_traffic_can_be_played():
    made = make(RadioPlan(frames=300, devices=20))
    peer = Peer(made)
    fleet = play(made, peer)
    assert len(peer.uplinks) == fleet.counts.sent == len(made)
    assert {message["msgtype"] for message in peer.uplinks} == {"updf", "jreq"}
