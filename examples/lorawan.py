"""One thermometer, three stations, two servers: every measurement counts once and is confirmed once.

This needs no radio and no server: the frames are made, signed and judged in this process. `onefold serve gateway` does
the same with real stations, and with Redis instead of the dictionary below.

Run it: python examples/lorawan.py
"""

from onefold import Tally
from onefold.lorawan import (
    BAD_MIC,
    Counters,
    DataUp,
    Device,
    Heard,
    NetworkServer,
    Strategy,
    decide,
    find_counter,
    signed_up,
)

KEY = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
THERMOMETER = Device(dev_eui=0x70B3D57ED0000001, dev_addr=0x26011BDA, strategy=Strategy.MARK)
STATIONS = {"roof": "north", "tower": "north", "harbour": "south"}  # each with the server it is connected to

servers = {name: NetworkServer(name) for name in ("north", "south")}
heard = {name: Heard() for name in servers}  # what each server remembers of the thermometer
coordinator: dict[str, Counters] = {}  # the devices' counters, shared by all servers
tally = Tally()


def measure(counter: int, text: str) -> DataUp:
    """A frame as the thermometer sends it, asking for a confirmation."""
    return signed_up(
        nwk_skey=KEY, dev_addr=THERMOMETER.dev_addr or 0, fcnt=counter, payload=text.encode(), confirmed=True
    )


def hear(station: str, frame: DataUp, now_ms: int) -> None:
    """A station delivers a frame that it heard."""
    tally.arrive()
    name = STATIONS[station]
    counter = find_counter(KEY, frame, heard[name].fcnt_up)
    if counter is None:  # before anything is remembered
        print(f"{now_ms:6} ms {station:8} {BAD_MIC}")
        tally.judge(BAD_MIC)
        return

    judged = servers[name].uplink(THERMOMETER, frame, counter, heard[name], station, now_ms)
    claim, answered = judged.claim, ""
    if claim is not None:  # between servers: one atomic step
        coordinator[claim.device], claimed = decide(coordinator.get(claim.device), claim)
        judged = servers[name].settle(judged, THERMOMETER.strategy, claimed)
        answered = f"  confirmed with {claimed.fcnt_down}" if judged.route.down else ""
    goes = "-" if not judged.route.up else "up, marked" if judged.route.marked else "up"
    print(f"{now_ms:6} ms {station:8} {judged.answer!s:21} {goes:10}{answered}".rstrip())
    tally.judge(judged.answer)


def main() -> None:
    """A frame that all stations hear, one that is sent again, a forged one, and a replay."""
    first, second = measure(65_535, "21.5"), measure(65_536, "21.7")  # only 16 bits of the counter are sent
    for name in servers:
        heard[name].fcnt_up = 65_534

    hear("harbour", first, 0)
    hear("roof", first, 4)
    hear("tower", first, 9)

    hear("roof", second, 60_000)
    hear("tower", second, 60_003)
    hear("roof", second, 62_000)  # its confirmation was lost

    hear("roof", second._replace(payload=b"99.9"), 63_000)
    hear("roof", first, 200_000)  # recorded and replayed
    print(tally.check())


if __name__ == "__main__":
    main()
