"""Many devices on one address: a frame costs one question to the stores and one pass, and a forger has a budget."""

import asyncio
from collections import Counter
from time import process_time

import pytest

from onefold.clock import wall_ms
from onefold.lorawan.flow import GatewayLimits
from onefold.lorawan.stores.sqlite import MemoryCounters
from tests.lib.gatewaying import FaultyCounters, answered, device, kept, reception, service, uplink

FORGED = "ee" * 16


def key_of(number):
    return f"{number:032x}"


def sharing(count):
    """So many devices with the address 1."""
    return [device(1, eui=number, nwk_skey=key_of(number)) for number in range(1, count + 1)]


class Asked(FaultyCounters):
    """Counts the questions."""

    def __init__(self):
        super().__init__()
        self.questions: Counter[int] = Counter()

    def known(self, devices):
        self.questions[len(devices)] += 1
        return super().known(devices)


def test_a_forged_frame_on_an_address_of_1000_devices_costs_less_than_50_ms_of_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr("onefold.lorawan.flow.ASK_S", 0.0)  # each one may look all devices up again

    async def main():
        costs = []
        async with service(tmp_path, *sharing(1_000), shared=FaultyCounters()) as made:
            for fcnt in range(100, 120):
                began = process_time()
                made.hear(reception(uplink(fcnt, key=FORGED)))
                async with asyncio.timeout(120):
                    await made.idle()
                costs.append(process_time() - began)
            assert answered(made) == {"bad_mic": 20}
            made.hear(reception(uplink(5, key=key_of(1_000))))
            await made.idle()
            assert answered(made)["new_frame"] == 1
        return sorted(costs)

    costs = asyncio.run(main())
    assert costs[len(costs) // 2] < 0.05, f"{costs[0]:.3f} to {costs[-1]:.3f} s"


@pytest.mark.parametrize("devices", [1, 100])
def test_all_devices_of_an_address_are_looked_up_together_and_once_more_at_most(tmp_path, devices, monkeypatch):
    async def main():
        shared, local = Asked(), Asked()
        async with service(tmp_path, *sharing(devices), shared=shared, local=local) as made:
            for fcnt in range(7):  # all at once: they wait for the same answers
                made.hear(reception(uplink(fcnt, key=FORGED)))
            await made.idle()
            assert answered(made) == {"bad_mic": 7}
            assert (local.questions, shared.questions) == ({devices: 1}, {devices: 1})
            monkeypatch.setattr("onefold.lorawan.flow.ASK_S", 0.0)  # as if that were long ago
            made.hear(reception(uplink(9, key=FORGED)))
            await made.idle()
            assert answered(made) == {"bad_mic": 8}
            assert (local.questions, shared.questions) == ({devices: 1}, {devices: 2})

    asyncio.run(main())


def test_devices_of_this_server_alone_and_of_all_may_share_an_address(tmp_path):
    async def main():
        shared, local = Asked(), Asked()
        both = sharing(20)
        for each in both[::2]:
            each["gateway"] = "a"
        async with service(tmp_path, *both, shared=shared, local=local) as made:
            for number in range(1, 21):
                made.hear(reception(uplink(5, key=key_of(number))))
            await made.idle()
            assert answered(made) == {"new_frame": 20}
            assert (local.questions, shared.questions) == ({10: 2}, {10: 2})
            assert (kept(local), kept(shared)) == (10, 10)

    asyncio.run(main())


def test_a_store_that_is_down_holds_up_one_reception_however_many_devices_share_its_address(tmp_path):
    async def main():
        counters = FaultyCounters()
        counters.down = True
        limits = GatewayLimits(parked_max=3)
        async with service(tmp_path, *sharing(50), shared=counters, limits=limits) as made:
            for number in range(1, 4):
                made.hear(reception(uplink(5, key=key_of(number))))
            while made.figures()["parked"] != 3:
                await asyncio.sleep(0.01)
            assert answered(made) == {}
            counters.down = False
            await made.idle()
            assert answered(made) == {"new_frame": 3}

    asyncio.run(main())


def test_a_station_that_sends_too_many_wrong_codes_to_an_address_is_not_listened_to_there_for_a_while(tmp_path):
    ticks = [0]

    async def main():
        limits = GatewayLimits(mic_failures_max=100, mic_window_s=60)
        local = MemoryCounters(wall_ms)
        async with service(
            tmp_path, *sharing(10), device(2, eui=99), local=local, limits=limits, ticks=lambda: ticks[0]
        ) as made:
            for fcnt in range(15):
                made.hear(reception(uplink(fcnt, key=FORGED)))
                await made.idle()
            assert answered(made) == {"bad_mic": 11, "mic_budget": 4}
            made.hear(reception(uplink(5, key=key_of(3))))  # also what is true: it was not looked at
            made.hear(reception(uplink(5, key=key_of(3)), station=2))  # by another station it is heard
            made.hear(reception(uplink(5, 2)))  # and so is another address
            await made.idle()
            assert answered(made) == {"bad_mic": 11, "mic_budget": 5, "new_frame": 2}
            ticks[0] += 60_000
            made.hear(reception(uplink(6, key=key_of(3))))
            await made.idle()
            assert answered(made)["new_frame"] == 3

    asyncio.run(main())
