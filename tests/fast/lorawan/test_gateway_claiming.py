"""Claims and look-ups: a store that is down, slow or forgetful, and errors that nobody has thought of."""

import asyncio
from typing import Any

import pytest

from onefold.clock import wall_ms
from onefold.errors import StoreFailed
from onefold.lorawan.flow import Downlinks, GatewayLimits
from onefold.lorawan.mic import signed_join
from onefold.lorawan.registry import registry_of
from onefold.lorawan.rules import Claim, NetworkServer
from onefold.lorawan.stores.sqlite import MemoryCounters
from tests.lib.gatewaying import KEY, FaultyCounters, Way, answered, device, kept, reception, service, stored, uplink
from tests.lib.hearing import until

MANY = [device(number) for number in range(1, 401)]


def joining(nonce=7, number=1):
    return signed_join(app_key=bytes.fromhex(KEY), join_eui=1, dev_eui=number, dev_nonce=nonce)


@pytest.mark.parametrize("each", [1, 3])
def test_many_devices_that_nobody_can_look_up_are_all_unsure_at_once(tmp_path, each):
    async def main():
        counters = FaultyCounters()
        counters.down = True
        async with service(tmp_path, *MANY, shared=counters, when_down="unsure") as made:
            for fcnt in range(5, 5 + each):
                for number in range(1, 401):
                    made.hear(reception(uplink(fcnt, number, confirmed=True)))
            async with asyncio.timeout(60):
                await made.idle()
            assert answered(made) == {"coordinator_down": 400 * each}
            counters.down = False
            await until(lambda: made.problems() == {})
            made.hear(reception(uplink(50, 1)))
            await made.idle()
            assert answered(made)["new_frame"] == 1

    asyncio.run(main())
    assert len(stored(tmp_path)) == 400 * each + 1


def test_many_devices_beyond_what_can_be_parked(tmp_path):
    async def main():
        counters = FaultyCounters()
        counters.down = True
        async with service(tmp_path, *MANY, shared=counters, limits=GatewayLimits(parked_max=300)) as made:
            for number in range(1, 401):
                made.hear(reception(uplink(5, number, confirmed=True)))
            await until(lambda: answered(made) == {"coordinator_down": 100})
            assert made.figures()["parked"] == 300
            counters.down = False
            await made.idle()
            assert answered(made) == {"coordinator_down": 100, "new_frame": 300}

    asyncio.run(main())


def test_a_claim_is_never_taken_for_what_an_earlier_run_left(tmp_path):
    async def main():
        counters = FaultyCounters()
        counters.lost = True
        async with service(tmp_path, device(app_key=KEY), shared=counters) as made:
            made.hear(reception(joining()))  # in the first round already, and its answer is lost
            await until(lambda: bool(made.problems()))
            assert len(counters.unfinished("a")) == 1
            counters.lost = False
            await made.idle()
            assert answered(made) == {"new_join": 1}
            assert made.figures()["recovered"] == 0

    asyncio.run(main())
    assert len(stored(tmp_path)) == 1


def test_nothing_is_claimed_before_it_is_known_what_an_earlier_run_left(tmp_path):
    class Forgetful(FaultyCounters):
        blind = True

        def unfinished(self, server):
            if self.blind:
                raise StoreFailed("not now")
            return super().unfinished(server)

    async def main():
        counters = Forgetful()
        async with service(tmp_path, device(app_key=KEY), shared=counters) as made:
            made.hear(reception(joining()))
            await until(lambda: made.problems() == {"shared": "not now"})
            assert kept(counters) == 0
            counters.blind = False
            await made.idle()
            assert answered(made) == {"new_join": 1}
            assert made.figures()["recovered"] == 0

    asyncio.run(main())


def test_each_body_has_a_number_of_its_own_that_is_above_all_that_were_left(tmp_path):
    seen = []

    class Watching(FaultyCounters):
        def claim(self, claims, finished=()):
            seen.extend(claims)
            return super().claim(claims, finished)

    async def main():
        counters = Watching()
        left = (wall_ms() + 10_000_000) << 10  # by a run whose clock was ahead
        counters.claim([Claim("0000000000000009/x", "a", 1, body='{"v":2}', number=left)])
        seen.clear()
        async with service(tmp_path, device(strategy="none"), shared=counters) as made:
            for _ in range(3):
                made.hear(reception(uplink(5, confirmed=True)))
            await made.idle()
        assert [each.number for each in counters.unfinished("a")] == [left]

    asyncio.run(main())
    assert sorted({claim.number for claim in seen})[0] > 0
    assert len({claim.number for claim in seen}) == len(seen) == 3
    assert min(claim.number for claim in seen) > (wall_ms() + 9_000_000) << 10
    assert len(stored(tmp_path)) == 3


def test_what_was_claimed_is_finished_where_it_was_claimed_though_the_device_has_moved(tmp_path):
    async def main():
        counters, back = FaultyCounters(), Way()
        async with service(tmp_path, device(), shared=counters) as made:
            for fcnt in range(1, 6):
                made.hear(reception(uplink(fcnt, confirmed=True), back=back))
                await made.idle()
            counters.let_go.clear()
            made.hear(reception(uplink(6, confirmed=True), back=back))
            made.sessions.use(registry_of([device(gateway="a")], "devices"))  # now it is this server's own
            counters.let_go.set()
            await made.idle()
            made.hear(reception(uplink(7, confirmed=True), back=back))
            await made.idle()
        assert counters.unfinished("a") == []
        assert back.counters() == [1, 2, 3, 4, 5, 6, 7]

    asyncio.run(main())


def test_the_counter_down_goes_on_when_the_coordinator_lost_its_state(tmp_path):
    async def main():
        counters, back = FaultyCounters(), Way()
        async with service(tmp_path, device(relaxed=True), shared=counters) as made:
            for fcnt in range(1, 4):
                made.hear(reception(uplink(fcnt, confirmed=True), back=back))
                await made.idle()
            with counters._database.writing() as db:
                db.execute("delete from lorawan_counters")
            made.hear(reception(uplink(4, confirmed=True), back=back))
            await made.idle()
            assert back.counters() == [1, 2, 3, 4]
            made.hear(reception(uplink(0, confirmed=True, payload=b"new"), back=back))
            await made.idle()
            assert back.counters() == [1, 2, 3, 4, 1]  # a device that begins again counts anew what it hears

    asyncio.run(main())


def ever(store):
    """A store that outlives whoever uses it."""
    store.close = lambda: None
    return store


def test_a_device_that_moves_between_the_stores_over_a_restart_keeps_its_counters(tmp_path):
    async def main():
        shared, local, back = FaultyCounters(), ever(MemoryCounters(wall_ms)), Way()
        last = 100
        for gateway, coordinator in ((None, None), (None, shared), ("a", shared), (None, shared)):
            async with service(tmp_path, device(gateway=gateway), shared=coordinator, local=local, expiry_ms=1) as made:
                made.hear(reception(uplink(last - 1), received_ms=wall_ms() - 10))
                made.hear(reception(uplink(last + 1, confirmed=True), back=back))
                await made.idle()
                if last > 100:
                    assert answered(made) == {"old_counter": 1, "new_frame": 1}
            last += 2
        assert back.counters() == [1, 2, 3, 4]

    asyncio.run(main())


def test_a_device_that_began_again_after_it_had_moved_is_not_held_to_its_old_counter(tmp_path):
    async def main():
        shared, local, back = FaultyCounters(), ever(MemoryCounters(wall_ms)), Way()
        name = registry_of([device()], "devices").by_eui[1].session
        local.claim([Claim(name, "a", 500, fcnt_down=8, wants_down=True)])
        shared.claim([Claim(name, "a", 3)])
        async with service(tmp_path, device(relaxed=True), shared=shared, local=local) as made:
            made.hear(reception(uplink(4, confirmed=True), back=back))
            made.hear(reception(uplink(2)))
            await made.idle()
            assert answered(made) == {"new_frame": 1, "old_counter": 1}
        assert back.counters() == [10]

    asyncio.run(main())


def test_the_devices_of_this_server_alone_do_not_wait_for_the_coordinator(tmp_path):
    async def main():
        counters, back = FaultyCounters(), Way()
        counters.down = True
        async with service(tmp_path, device(1), device(2, gateway="a"), shared=counters) as made:
            made.hear(reception(uplink(1, 2, confirmed=True), back=back))
            made.hear(reception(uplink(1, 1, confirmed=True), back=back))
            await until(lambda: answered(made) == {"new_frame": 1} and back.counters() == [1])
            counters.down = False

    asyncio.run(main())


@pytest.mark.parametrize("where", ["uplink", "settle"])
def test_an_error_of_ours_ends_one_reception_and_no_other(tmp_path, monkeypatch, caplog, where):
    real = getattr(NetworkServer, where)
    bad: list[Any] = []

    def failing(self, *arguments):
        if not bad:
            bad.append(arguments)
            raise RecursionError("too deep")
        return real(self, *arguments)

    monkeypatch.setattr(NetworkServer, where, failing)

    async def main():
        async with service(tmp_path, *MANY[:3], shared=FaultyCounters()) as made:
            for number in (1, 2, 3):
                made.hear(reception(uplink(1, number)))
            await made.idle()
            assert answered(made) == {"coordinator_down": 1, "new_frame": 2}
            assert made.figures()["failed"] == 1

    asyncio.run(main())
    assert [each.getMessage() for each in caplog.records] == [
        "a reception of station 0000000000000001: unexpected: RecursionError: too deep"
    ]
    assert len(stored(tmp_path)) == 2


def test_an_acknowledgement_that_cannot_be_made_holds_up_nobody(tmp_path, monkeypatch):
    def failing(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(Downlinks, "acknowledge", failing)

    async def main():
        async with service(tmp_path, *MANY[:3]) as made:
            for number in (1, 2, 3):
                made.hear(reception(uplink(1, number, confirmed=True)))
            await made.idle()
            assert answered(made) == {"new_frame": 3}

    asyncio.run(main())
    assert len(stored(tmp_path)) == 3
