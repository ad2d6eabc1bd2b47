"""The books of a gateway's server can fail: what arrives and what is judged are counted in different places."""

import asyncio
import threading

import pytest

from onefold.lorawan.flow import GatewayLimits, GatewayService, GatewaySettings
from onefold.lorawan.server import GatewayServer, GatewayServerSettings
from onefold.producers.topic import Topics
from onefold.tally import BooksDoNotBalance
from tests.lib.gatewaying import FaultyCounters, device, reception, running, service, uplink, write_registry
from tests.lib.hearing import until


def test_what_arrives_and_what_is_judged_are_two_figures_that_are_equal_at_rest(tmp_path):
    with running(tmp_path) as server, server.station() as station:
        for fcnt in (1, 2, 2):
            station.hear(uplink(fcnt))
        station.hear(uplink(3, key="ee" * 16))
        station.send({"msgtype": "updf", "MHdr": "x"})
        assert server.settled(5) == {"new_frame": 2, "replayed": 1, "bad_mic": 1, "malformed": 1}
        assert server.figure("arrived_total") == 5
        assert server.figure("unaccounted") == 0
        assert server.ask("/healthz")[0] == 200


def test_a_reception_that_is_lost_or_judged_twice_shows_in_the_figures_and_in_the_health(tmp_path, monkeypatch):
    async def forgetful(self, reception):  # does not judge it
        self.in_hand -= 1

    monkeypatch.setattr(GatewayService, "_take", forgetful)

    async def main():
        async with service(tmp_path, kill=True) as made:
            made.hear(reception(uplink(1)))
            assert (made.tally.received, made.tally.judged, made.in_hand) == (1, 0, 0)
            assert made.figures()["unaccounted"] == 1
            assert made.problems() == {"books": "1 in != 0 first + 0 repeat + 0 unsure + 0 reject"}
            with pytest.raises(BooksDoNotBalance):
                made.tally.check()

    asyncio.run(main())


def test_a_server_whose_books_do_not_balance_says_so_when_it_ends(tmp_path):
    topics = Topics(tmp_path / "log")
    made = GatewayServer(
        tmp_path, write_registry(tmp_path / "devices.toml", device()), topics.topic,
        GatewayServerSettings(port=0, gateway=GatewaySettings(limits=GatewayLimits(grace_s=1))),
    )  # fmt: skip
    ended = []

    def run() -> None:
        try:
            made.run()
        except BooksDoNotBalance as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert made.ready.wait(60)
    assert made.service is not None
    made.service.arrive()  # a link that loses what it has read
    made.stop()
    thread.join(60)
    topics.close()
    assert ended == ["the books do not balance: 1 in != 0 first + 0 repeat + 0 unsure + 0 reject"]


def test_what_was_read_and_found_no_room_when_the_server_ends_is_in_the_books(tmp_path):
    counters = FaultyCounters()
    counters.down = True
    limits = GatewayLimits(in_hand_max=1, parked_max=1, grace_s=0.1)
    with running(tmp_path, counters=counters, limits=limits) as server, server.station() as station:
        for fcnt in (1, 2, 3):
            station.hear(uplink(fcnt))
        server.wait_for("arrived_total", 2)  # one in hand, one that waits for room; the third is not read
        assert server.server is not None
        service_ = server.server.service
    assert service_ is not None
    found = {str(answer): count for answer, count in service_.tally}
    assert found == {"UNSURE coordinator_down": 1, "REJECT busy": 1}
    assert service_.tally.balanced


def test_receptions_that_wait_for_room_are_under_way_and_not_unaccounted(tmp_path):
    async def main():
        counters = FaultyCounters()
        counters.down = True
        async with service(tmp_path, shared=counters, limits=GatewayLimits(in_hand_max=1)) as made:
            made.hear(reception(uplink(1)))
            made.arrive()
            waiter = asyncio.create_task(made.room())
            await until(lambda: made._waiting == 1)
            assert (made.tally.pending, made.unaccounted) == (2, 0)
            counters.down = False
            await waiter
            made.refuse("s", next(iter(made.tally))[0], "the test is done")

    asyncio.run(main())
