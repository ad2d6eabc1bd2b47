"""Several servers and one coordinator: one winner, also while it is down, slow, or its answer is lost."""

import contextlib

import pytest

from onefold.errors import StoreFailed
from onefold.lorawan.flow import GatewayLimits
from onefold.producers.topic import Topic
from tests.lib.gatewaying import FaultyCounters, device, running, stored, uplink
from tests.lib.redis_server import RedisServer


@contextlib.contextmanager
def two_servers(folder, *devices, counters=None, server=None, **settings):
    """Servers a and b with a station each."""
    more = {"counters": counters, "server": server, **settings}
    with (
        running(folder / "a", *devices, name="a", **more) as a,
        running(folder / "b", *devices, name="b", **more) as b,
        a.station(1) as one,
        b.station(2) as two,
    ):
        yield a, b, one, two


@pytest.mark.parametrize(("strategy", "up", "marked"), [("drop", 1, 0), ("mark", 2, 1), ("none", 2, 0)])
def test_one_server_wins_and_only_it_answers(tmp_path, strategy, up, marked):
    counters = FaultyCounters()
    with two_servers(tmp_path, device(strategy=strategy), counters=counters) as (a, b, one, two):
        for fcnt in (1, 2, 3):
            one.hear(uplink(fcnt, confirmed=True))
            a.settled(fcnt)
            two.hear(uplink(fcnt, confirmed=True))
            b.settled(fcnt)
        assert a.answers() == {"new_frame": 3}
        assert b.answers() == {"other_server": 3}
        assert (len(one.sync()), len(two.sync())) == (3, 0)
    rows = stored(tmp_path / "a") + stored(tmp_path / "b")
    assert len(rows) == 3 * up
    assert sum(row.get("dup_msg", False) for row in rows) == 3 * marked


def test_an_unconfirmed_frame_that_another_server_was_first_to_count_is_a_repeat_also_at_first_sight(tmp_path):
    counters = FaultyCounters()
    with two_servers(tmp_path, device(fcnt_up=65_500), counters=counters) as (a, b, one, two):
        one.hear(uplink(70_000))
        a.settled(1)
        two.hear(uplink(70_000))  # this server never heard the device: its counter comes from the store
        assert b.settled(1) == {"other_server": 1}


def test_a_server_that_is_some_frames_behind_another_refuses_none_of_them(tmp_path):
    counters = FaultyCounters()
    with two_servers(tmp_path, device(strategy="mark"), counters=counters) as (a, b, one, two):
        for fcnt in range(1, 11):
            one.hear(uplink(fcnt))
        assert a.settled(10) == {"new_frame": 10}
        for fcnt in range(1, 11):
            two.hear(uplink(fcnt))
        assert b.settled(10) == {"late": 9, "other_server": 1}
    assert len(stored(tmp_path / "b")) == 10


def test_a_replay_of_old_frames_to_a_server_that_never_heard_the_device_is_refused(tmp_path):
    counters = FaultyCounters()
    with two_servers(tmp_path, device(strategy="none"), counters=counters) as (a, b, one, two):
        one.hear(uplink(100))
        a.settled(1)
        two.hear(uplink(50))
        assert b.settled(1) == {"old_counter": 1}


def test_a_device_that_began_again_at_another_server_is_believed_here_too(tmp_path):
    counters = FaultyCounters()
    with two_servers(tmp_path, device(relaxed=True), counters=counters) as (a, b, one, two):
        two.hear(uplink(500))
        b.settled(1)
        monotonic_ago(b)
        one.hear(uplink(0, payload=b"new"))
        one.hear(uplink(1, payload=b"new"))
        assert a.settled(2) == {"restarted": 1, "new_frame": 1}
        two.hear(uplink(2, payload=b"new"))  # the first that this server hears of it: it finds out
        two.hear(uplink(3, payload=b"new"))
        assert b.settled(3) == {"new_frame": 3}


def monotonic_ago(server):
    """As if its devices had been looked up long ago."""
    for session in server.server.service.sessions._sessions.values():
        session.asked_at = 0.0


def test_a_counter_that_went_on_elsewhere_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("onefold.lorawan.flow.ASK_S", 0.0)
    counters = FaultyCounters()
    with two_servers(tmp_path, device(fcnt_up=1), counters=counters) as (a, b, one, two):
        two.hear(uplink(2))
        b.settled(1)
        for n, fcnt in enumerate(range(10_000, 80_000, 10_000), 1):  # over the roll-over, heard by a only
            one.hear(uplink(fcnt))
            assert a.settled(n) == {"new_frame": n}
        two.hear(uplink(70_001))
        assert b.settled(2) == {"new_frame": 2}


def test_a_device_that_another_server_counted_far_ahead_is_asked_for_and_not_refused_for_ever(tmp_path):
    counters = FaultyCounters()
    with two_servers(tmp_path, device(), counters=counters) as (a, b, one, two):
        two.hear(uplink(10))
        b.settled(1)
        for n, fcnt in enumerate((10_000, 20_000, 30_000), 1):
            one.hear(uplink(fcnt))
            a.settled(n)
        two.hear(uplink(30_001))  # it was looked up a moment ago
        assert b.settled(2) == {"new_frame": 1, "counter_gap": 1}
        monotonic_ago(b)
        two.hear(uplink(30_002))
        two.hear(uplink(30_003))
        two.hear(uplink(60_000))  # this is a gap, whatever the other server knows
        assert b.settled(5) == {"new_frame": 3, "counter_gap": 2}


def test_whether_there_is_a_gap_cannot_be_known_while_the_coordinator_is_down(tmp_path):
    counters = FaultyCounters()
    with running(tmp_path, counters=counters, when_down="unsure") as server, server.station() as station:
        station.hear(uplink(10))
        server.settled(1)
        monotonic_ago(server)
        counters.down = True
        station.hear(uplink(30_000))
        assert server.settled(2) == {"new_frame": 1, "coordinator_down": 1}
    assert [row["fcnt"] for row in stored(tmp_path)] == [10]


def test_an_old_frame_of_a_device_that_may_begin_again_stays_an_old_one(tmp_path):
    counters = FaultyCounters()
    with two_servers(tmp_path, device(relaxed=True), counters=counters) as (a, b, one, two):
        for n, fcnt in enumerate((100, 101), 1):
            one.hear(uplink(fcnt))
            a.settled(n)
            two.hear(uplink(fcnt))
            b.settled(n)
        with counters._database.writing() as db:  # the coordinator lost something
            changed = db.execute("update lorawan_counters set fcnt_up = 90, fcnt_down = 0, server = 'a', frame = ''")
            assert changed.rowcount == 1
        monotonic_ago(b)
        two.hear(uplink(50))  # below all that is known: it says nothing of a new beginning
        two.hear(uplink(80))
        assert b.settled(4) == {"other_server": 2, "old_counter": 2}
        two.hear(uplink(102))
        assert b.settled(5)["new_frame"] == 1


def test_a_restart_forgets_no_counter(tmp_path):
    with running(tmp_path, device(fcnt_up=65_500)) as server, server.station() as station:
        station.hear(uplink(70_000))
        server.settled(1)
    with running(tmp_path, device(), expiry_ms=1) as server, server.station() as station:
        station.hear(uplink(70_000))
        station.hear(uplink(69_999))
        station.hear(uplink(70_001))
        assert server.settled(3) == {"counted_before": 1, "old_counter": 1, "new_frame": 1}


def test_a_restart_within_the_expiry_remembers_frames_from_the_log(tmp_path):
    with running(tmp_path) as server, server.station(1) as station:
        station.hear(uplink(5, confirmed=True))
        assert len(station.sync()) <= 1
        server.settled(1)
    with running(tmp_path) as server, server.station(1) as one, server.station(2) as two:
        two.hear(uplink(5, confirmed=True))
        one.hear(uplink(5, confirmed=True))
        assert server.settled(2) == {"other_station": 1, "resubmitted": 1}
        assert len(one.sync()) == 1
    assert len(stored(tmp_path)) == 1


def test_parked_frames_wait_and_are_decided_when_the_coordinator_is_back(tmp_path):
    counters = FaultyCounters()
    with (
        running(tmp_path, device(1), device(2), counters=counters, rx_delay_s=15) as server,
        server.station(1) as one,
        server.station(2) as two,
    ):
        one.hear(uplink(1, 1, confirmed=True))
        server.settled(1)
        counters.down = True
        one.hear(uplink(2, 1, confirmed=True))
        one.hear(uplink(1, 2, confirmed=True))  # never heard: not even its counter is known
        two.hear(uplink(2, 1, confirmed=True))
        server.wait_for("parked", 2)
        assert server.ask("/healthz") == (503, {"status": "trouble", "problems": {"shared": "nobody is there"}})
        assert server.answers() == {"new_frame": 1, "other_station": 1}
        counters.down = False
        assert server.settled(4) == {"new_frame": 3, "other_station": 1}
        assert len(one.sync()) == 3
        assert server.ask("/healthz")[0] == 200


def test_too_many_parked_frames_make_the_oldest_unsure(tmp_path):
    counters = FaultyCounters()
    limits = GatewayLimits(parked_max=5, grace_s=5)
    with running(tmp_path, counters=counters, limits=limits) as server, server.station() as station:
        station.hear(uplink(1, confirmed=True))
        server.settled(1)
        counters.down = True
        for fcnt in range(2, 14):
            station.hear(uplink(fcnt, confirmed=True))
        server.wait(lambda: server.answers().get("coordinator_down") == 7)
        counters.down = False
        assert server.settled(13) == {"new_frame": 6, "coordinator_down": 7}
    assert [row["fcnt"] for row in stored(tmp_path)] == list(range(1, 14))


def test_what_cannot_be_known_goes_up_as_unsure_and_is_not_answered(tmp_path):
    counters = FaultyCounters()
    counters.down = True
    with (
        running(tmp_path, device(1), device(2, gateway="a"), counters=counters, when_down="unsure") as server,
        server.station() as station,
    ):
        station.hear(uplink(1, 1, confirmed=True))
        station.hear(uplink(70_000, 1))  # under which counter is its code right? nobody knows
        station.hear(uplink(1, 2, confirmed=True))  # the local store is there
        assert server.settled(3) == {"coordinator_down": 2, "new_frame": 1}
        assert [down["DevEui"][-1] for down in station.sync()] == ["2"]
        assert server.figure("parked") == 0
    assert {(row["dev_eui"][-1], row["verdict"]) for row in stored(tmp_path)} == {("1", "UNSURE"), ("2", "FIRST")}


def test_a_claim_whose_answer_was_lost_is_made_again_and_won_again(tmp_path):
    counters = FaultyCounters()
    with running(tmp_path, counters=counters, rx_delay_s=15) as server, server.station() as station:
        counters.lost = True
        station.hear(uplink(1, confirmed=True))
        server.wait_for("parked", 1)
        counters.lost = False
        assert server.settled(1) == {"new_frame": 1}
        assert len(station.sync()) == 1
    assert len(stored(tmp_path)) == 1


def test_a_shutdown_decides_what_is_in_hand(tmp_path):
    counters = FaultyCounters()
    patient = GatewayLimits(grace_s=60)
    with running(tmp_path, counters=counters, limits=patient, rx_delay_s=15) as server, server.station() as station:
        counters.let_go.clear()
        station.hear(uplink(1, confirmed=True))
        assert counters.asked.wait(60)
        server.stop()
        counters.let_go.set()
        assert [message["msgtype"] for message in [station.message()]] == ["dnmsg"]
        assert station.end() == (1012, "the server is shutting down")
    assert [row["reason"] for row in stored(tmp_path)] == ["new_frame"]


def test_a_shutdown_without_coordinator_leaves_nothing_undecided(tmp_path):
    counters = FaultyCounters()
    counters.down = True
    with running(tmp_path, counters=counters, limits=GatewayLimits(grace_s=0.2)) as server, server.station() as station:
        station.hear(uplink(1, confirmed=True))
        server.wait_for("parked", 1)
        server.stop()
        assert station.end()[0] == 1012
    assert [(row["verdict"], row["reason"]) for row in stored(tmp_path)] == [("UNSURE", "coordinator_down")]


def test_an_acknowledgement_after_the_windows_is_not_sent(tmp_path, monkeypatch):
    now = [1_000_000]
    monkeypatch.setattr("onefold.lorawan.links.lns.wall_ms", lambda: now[0] - 2_001)
    with running(tmp_path, device(1), device(2, **{"class": "C"})) as server, server.station() as station:
        monkeypatch.setattr(server.server.service, "_clock", lambda: now[0])  # type: ignore[union-attr]
        station.hear(uplink(1, 1, confirmed=True))
        station.hear(uplink(1, 2, confirmed=True))
        server.settled(2)
        assert [down["dC"] for down in station.sync()] == [2]
        assert server.figure('downlinks_total{outcome="late"}') == 1


def test_two_servers_at_a_redis_that_goes_away_and_comes_back(tmp_path):
    with RedisServer(tmp_path / "redis") as redis:
        url = {"coordinator": redis.url}
        with two_servers(tmp_path, device(), server=url, rx_delay_s=15) as (a, b, one, two):
            one.hear(uplink(1, confirmed=True))
            a.settled(1)
            two.hear(uplink(1, confirmed=True))
            b.settled(1)
            redis.kill()
            two.hear(uplink(2, confirmed=True))
            one.hear(uplink(2, confirmed=True))
            a.wait_for("parked", 1)
            b.wait_for("parked", 1)
            redis.start()
            answers = [a.settled(2), b.settled(2)]
            downs = [len(one.sync()), len(two.sync())]
        assert sorted(answers, key=len) in (
            [{"new_frame": 2}, {"other_server": 2}],
            [{"new_frame": 1, "other_server": 1}] * 2,
        )
        assert sum(downs) == 2
    assert len(stored(tmp_path / "a") + stored(tmp_path / "b")) == 2


def test_what_was_won_and_not_stored_is_stored_by_the_next_run(tmp_path, monkeypatch):
    counters = FaultyCounters()
    publish, broken = Topic.publish, [True]

    def failing(self, *arguments):
        if broken[0]:
            raise StoreFailed("No space left on device")
        return publish(self, *arguments)

    monkeypatch.setattr(Topic, "publish", failing)
    with (
        running(tmp_path, counters=counters, limits=GatewayLimits(grace_s=0.2)) as server,
        server.station(1) as station,
    ):
        station.hear(uplink(1, confirmed=True))
        station.hear(uplink(2))
        server.wait(lambda: server.answers().get("new_frame") == 2)
        server.stop()
        assert station.end()[0] == 1012  # and nothing was acknowledged
    assert len(counters.unfinished("a")) == 2
    assert stored(tmp_path) == []
    broken[0] = False
    with running(tmp_path, counters=counters) as server, server.station(1) as station:
        server.wait_for("recovered_total", 2)
        station.hear(uplink(2))
        station.hear(uplink(3))
        assert server.settled(2) == {"replayed": 1, "new_frame": 1}
    assert [row["fcnt"] for row in stored(tmp_path)] == [1, 2, 3]
    assert counters.unfinished("a") == []


def test_what_was_stored_and_not_finished_is_not_stored_again(tmp_path, monkeypatch):
    counters = FaultyCounters()
    with running(tmp_path, counters=counters, limits=GatewayLimits(grace_s=0.2)) as server, server.station() as station:
        station.hear(uplink(1))
        server.settled(1)
        counters.down = True  # nobody can be told that it is stored
        station.hear(uplink(2))
        server.wait_for("parked", 1)
        server.stop()
        station.end()
    counters.down = False
    assert [left.fcnt_up for left in counters.unfinished("a")] == [1]
    with running(tmp_path, counters=counters) as server:
        assert server.figure("recovered_total") == 0
    assert counters.unfinished("a") == []
    assert [row["fcnt"] for row in stored(tmp_path)] == [1, 2]
