"""What a server never forgets: the last frame of a device, and every nonce that it has joined with."""

import asyncio

import pytest

from onefold.clock import wall_ms
from onefold.lorawan.flow import GatewayLimits, GatewayService, Upstream
from onefold.lorawan.mic import signed_join
from onefold.lorawan.stores.sqlite import MemoryCounters, SqliteCounters
from onefold.verdict import Verdict
from tests.lib.gatewaying import KEY, FaultyCounters, Way, answered, device, kept, reception, service, stored, uplink

HOUR_MS = 3_600_000


class Ticks:
    """The clock of level 1, which the test moves."""

    def __init__(self):
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def joining(nonce, number=1):
    return reception(signed_join(app_key=bytes.fromhex(KEY), join_eui=1, dev_eui=number, dev_nonce=nonce))


@pytest.mark.parametrize(("strategy", "up", "marked"), [("drop", 1, 0), ("mark", 3, 2), ("none", 3, 0)])
def test_a_confirmed_frame_that_is_sent_again_after_the_expiry_counts_once_and_is_answered_each_time(
    tmp_path, strategy, up, marked
):
    async def main():
        ticks, back = Ticks(), Way()
        async with service(tmp_path, device(strategy=strategy), ticks=ticks) as made:
            for _ in range(3):
                made.hear(reception(uplink(7, confirmed=True), back=back))
                await made.idle()
                ticks.now_ms += 197_000
            assert answered(made) == {"new_frame": 1, "counted_before": 2}
        assert back.counters() == [1, 2, 3]

    asyncio.run(main())
    rows = stored(tmp_path)
    assert (len(rows), sum(row.get("dup_msg", False) for row in rows)) == (up, marked)
    assert [row["verdict"] for row in rows] == ["FIRST", "REPEAT", "REPEAT"][:up]


@pytest.mark.parametrize("strategy", ["mark", "none"])
def test_the_reception_that_counts_goes_upstream_before_its_copies(tmp_path, strategy):
    async def main():
        counters = FaultyCounters()
        async with service(tmp_path, device(strategy=strategy), device(2, strategy=strategy), shared=counters) as made:
            made.hear(reception(uplink(1)))
            await made.idle()
            counters.let_go.clear()
            for station in (1, 2, 3):
                for number in (1, 2):
                    made.hear(reception(uplink(2, number, confirmed=True), station))
            await asyncio.get_running_loop().run_in_executor(None, counters.asked.wait)
            assert answered(made) == {"new_frame": 1}
            counters.let_go.set()
            await made.idle()
            assert answered(made) == {"new_frame": 3, "other_station": 4}

    asyncio.run(main())
    for number in (1, 2):
        rows = [row for row in stored(tmp_path) if row["dev_addr"] == f"{number:08x}" and row["fcnt"] == 2]
        assert [row["verdict"] for row in rows] == ["FIRST", "REPEAT", "REPEAT"]


def test_the_last_frame_of_a_device_is_known_after_a_restart_and_after_any_time(tmp_path):
    async def main():
        for run in range(3):
            local, back, ticks = SqliteCounters(tmp_path / "counters.db", wall_ms), Way(), Ticks()
            async with service(tmp_path / "log", device(), local=local, ticks=ticks, expiry_ms=1) as made:
                made.hear(reception(uplink(7, confirmed=True), back=back, received_ms=wall_ms()))
                await made.idle()
                assert answered(made) == ({"new_frame": 1} if run == 0 else {"counted_before": 1})
                assert back.counters() == [run + 1]
                made.hear(reception(uplink(6)))
                await made.idle()
                assert answered(made)["old_counter"] == 1
            await asyncio.sleep(0.01)  # beyond the expiry, by the clock on the wall: else the log knows it

    asyncio.run(main())
    assert len(stored(tmp_path / "log")) == 1


def test_a_server_that_died_with_a_frame_in_hand_stores_it_once_and_its_retry_is_a_repeat(tmp_path, monkeypatch):
    async def main():
        local = SqliteCounters(tmp_path / "counters.db", wall_ms)
        with monkeypatch.context() as patch:
            patch.setattr(Upstream, "_publish", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
            async with service(
                tmp_path / "log", device(), local=local, kill=True, expiry_ms=1, limits=GatewayLimits(grace_s=0)
            ) as made:
                made.hear(reception(uplink(7, confirmed=True)))
                while not local.unfinished("a"):
                    await asyncio.sleep(0.01)
        assert stored(tmp_path / "log") == []
        local, ticks = SqliteCounters(tmp_path / "counters.db", wall_ms), Ticks()
        async with service(tmp_path / "log", device(), local=local, ticks=ticks, expiry_ms=1) as made:
            ticks.now_ms += HOUR_MS
            made.hear(reception(uplink(7, confirmed=True)))
            await made.idle()
            assert answered(made) == {"counted_before": 1}
            assert made.figures()["recovered"] == 1

    asyncio.run(main())
    assert [row["fcnt"] for row in stored(tmp_path / "log")] == [7]


def test_by_strict_adr_the_same_frame_counts_again_after_the_expiry_and_a_nonce_after_five_minutes(tmp_path):
    async def main():
        ticks, clock = Ticks(), Ticks()
        local = MemoryCounters(clock)
        devices = device(), device(2, app_key=KEY)
        async with service(tmp_path, *devices, local=local, ticks=ticks, strict_adr=True) as made:
            for _ in range(2):
                made.hear(reception(uplink(7, confirmed=True)))
                made.hear(joining(7, 2))
                await made.idle()
                ticks.now_ms += 301_000
                clock.now_ms += 301_000
            assert answered(made) == {"new_frame": 1, "forgotten": 1, "new_join": 2}

    asyncio.run(main())
    assert len(stored(tmp_path)) == 4


def test_a_replayed_join_is_a_repeat_after_the_expiry_after_a_restart_and_at_another_server(tmp_path):
    async def main():
        shared, ticks = FaultyCounters(), Ticks()
        for name in ("a", "b"):
            for run in range(2):
                ticks.now_ms += HOUR_MS
                folder = tmp_path / f"{name}{run}"
                async with service(folder, device(app_key=KEY), shared=shared, name=name, ticks=ticks) as made:
                    for _ in range(2):
                        made.hear(joining(7))
                        await made.idle()
                        ticks.now_ms += HOUR_MS
                    if (name, run) == ("a", 0):
                        assert answered(made) == {"new_join": 1, "nonce_used": 1}
                    elif name == "a":
                        assert answered(made) == {"nonce_used": 2}
                    else:  # the coordinator's clock stands still here: it knows which server it was
                        assert answered(made) == {"other_server": 2}
                    made.hear(joining(1_000 * ord(name[0]) % 65_536 + run))
                    await made.idle()
                    assert answered(made)["new_join"] == (2 if (name, run) == ("a", 0) else 1)
                assert sum(row["dev_nonce"] == 7 for row in stored(folder)) == ((name, run) == ("a", 0))

    asyncio.run(main())


def test_a_forged_join_and_one_of_a_stranger_leave_nothing_in_the_store(tmp_path):
    async def main():
        local = MemoryCounters(wall_ms)
        async with service(tmp_path, device(app_key=KEY), local=local) as made:
            for nonce in range(50):
                true = signed_join(app_key=bytes.fromhex(KEY), join_eui=1, dev_eui=1, dev_nonce=nonce)
                made.hear(reception(true._replace(mic=true.mic ^ 1)))
                made.hear(reception(true._replace(dev_eui=2)))
            await made.idle()
            assert answered(made) == {"bad_mic": 50, "unknown_device": 50}
            assert kept(local) == 0

    asyncio.run(main())


def test_copies_of_a_frame_whose_claim_could_not_be_made_wait_for_nothing(tmp_path, monkeypatch):
    real = GatewayService._record
    failures: list[object] = []

    def failing(self, heard, session, judged):
        if not failures:
            failures.append(heard)
            raise RecursionError("too deep")
        return real(self, heard, session, judged)

    monkeypatch.setattr(GatewayService, "_record", failing)

    async def main():
        async with service(tmp_path, device(strategy="none")) as made:
            for station in (1, 2):
                made.hear(reception(uplink(5), station))
            async with asyncio.timeout(60):
                await made.idle()
            assert answered(made) == {"coordinator_down": 1, "other_station": 1}

    asyncio.run(main())


def test_a_join_that_only_the_store_knows_to_be_new_is_stored_as_it_is_counted(tmp_path):
    async def main():
        async with service(tmp_path, device(app_key=KEY)) as made:
            made._sightings.entries_max = 1
            for each in (reception(uplink(1)), reception(uplink(2)), joining(7)):
                made.hear(each)
                await made.idle()
            assert answered(made) == {"new_frame": 2, "new_join": 1}

    asyncio.run(main())
    (join,) = [row for row in stored(tmp_path) if row["kind"] == "join"]
    assert (join["verdict"], join["reason"]) == ("FIRST", "new_join")


def test_a_device_that_began_again_goes_on_after_a_restart_whatever_counter_the_registry_has(tmp_path):
    async def main():
        relaxed = device(relaxed=True, fcnt_up=70_000)
        for counters in ((70_001, 0, 1, 2), (3, 4)):
            local = SqliteCounters(tmp_path / "counters.db", wall_ms)
            async with service(tmp_path / "log", relaxed, local=local) as made:
                for fcnt in counters:
                    made.hear(reception(uplink(fcnt)))
                    await made.idle()
                assert made.tally.count(Verdict.FIRST) == len(counters)

    asyncio.run(main())
    assert [row["fcnt"] for row in stored(tmp_path / "log")] == [70_001, 0, 1, 2, 3, 4]
