"""What holds for any traffic: forged frames change nothing, no true frame is refused, no replay counts, one wins."""

import copy
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import BadInput
from onefold.lorawan import Claim, DataUp, Device, Heard, NetworkServer, Sightings, Stations, Strategy, decide, parse
from onefold.lorawan.mic import find_counter, signed_up
from tests.lib.examples import examples, proof

KEY, ADDRESS = bytes(range(16)), 0x26011BDA
ROLL_OVER = 1 << 16


class Network:
    """Servers that share a coordinator, and one device: bytes in, final judgements out."""

    def __init__(self, *names, device=None):
        self.device = device or Device(dev_eui=1, strategy=Strategy.DROP)
        self.servers = {name: NetworkServer(name, Stations(Sightings())) for name in names}
        self.heard = {name: Heard() for name in names}
        self.known = None

    def hear(self, name, phy, station="s", now_ms=0):
        """None: not read, not of this device, or forged."""
        try:
            frame = parse(phy)
        except BadInput:
            return None
        if not isinstance(frame, DataUp) or frame.dev_addr != ADDRESS:
            return None
        return self.judge(name, frame, station, now_ms)

    def judge(self, name, frame, station, now_ms):
        """None: forged."""
        fcnt = find_counter(KEY, frame, self.heard[name].fcnt_up)
        if fcnt is None:
            return None
        server = self.servers[name]
        judged = server.uplink(self.device, frame, fcnt, self.heard[name], station, now_ms)
        claimed = None
        if judged.claim is not None:
            self.known, claimed = decide(self.known, judged.claim)
        return server.settle(judged, self.device.strategy, claimed)

    def state(self):
        """All that is remembered."""
        memories = [
            [getattr(server.stations.sightings, name) for name in Sightings.__slots__]
            for server in self.servers.values()
        ]
        return copy.deepcopy((memories, self.heard, self.known))


def signed(fcnt, *, confirmed=False):
    return signed_up(nwk_skey=KEY, dev_addr=ADDRESS, fcnt=fcnt, payload=b"21.5", confirmed=confirmed)


def sent(fcnt, *, confirmed=False):
    return signed(fcnt, confirmed=confirmed).phy


@given(
    fcnt=st.integers(0, 1 << 20),
    ahead=st.integers(0, 1_000),
    flips=st.sets(st.integers(0, len(sent(0)) * 8 - 1), min_size=1, max_size=8),
    now_ms=st.integers(0, 100_000),
)
def test_a_frame_with_any_bits_flipped_changes_no_state(fcnt, ahead, flips, now_ms):
    network = Network("a")
    network.heard["a"].fcnt_up = fcnt
    assert network.hear("a", sent(fcnt + 1)).answer.reason == "new_frame"
    before = network.state()
    forged = bytearray(sent(fcnt + 1 + ahead, confirmed=True))
    for bit in flips:
        forged[bit // 8] ^= 1 << bit % 8
    assert network.hear("a", bytes(forged), "another", now_ms) is None
    assert network.state() == before


@given(st.binary(min_size=12, max_size=60), st.integers(0, 1 << 18))
def test_bytes_of_somebody_who_has_no_key_change_no_state(tail, last):
    network = Network("a")
    network.heard["a"].fcnt_up = last
    before = network.state()
    for head in (0x40, 0x80):
        assert network.hear("a", bytes([head]) + ADDRESS.to_bytes(4, "little") + tail) is None
    assert network.state() == before


def losses(random_, heard):
    """How many frames are lost before each that is heard: over every roll-over as many as may be, and some others."""
    lost = [0] * heard
    counter = 0
    room = 4 * ROLL_OVER - heard - 3 * 16_383 - 1
    for at in range(heard):
        to_roll_over = ROLL_OVER - counter % ROLL_OVER
        if to_roll_over == 1_000 and counter < 3 * ROLL_OVER:
            lost[at] = 16_383
        elif to_roll_over > 20_000 and random_.random() < 0.001:
            lost[at] = min(random_.randrange(1, 200), room)
            room -= lost[at]
        counter += 1 + lost[at]
    return lost


@pytest.mark.parametrize(("heard", "counter", "roll_overs"), [(20_000, 50_000, 1), proof(200_000, -1, 3)])
def test_frames_over_all_roll_overs_are_all_counted_and_no_replay_is(heard, counter, roll_overs):
    random_, network = random.Random(5), Network("a")
    recorded = []
    said: Counter[str] = Counter()
    replays: Counter[str] = Counter()
    for at, lost in enumerate(losses(random_, heard)):
        counter += 1 + lost
        frame, now_ms = signed(counter), at * 1_000
        judged = network.judge("a", frame, "s", now_ms)
        assert judged is not None, f"frame {counter} was called forged"
        assert judged.fcnt == counter
        said[str(judged.answer)] += 1
        if at % 20 == 0:
            recorded.append(frame)
            for old in (frame, random_.choice(recorded), random_.choice(recorded[-500:])):
                judged = network.judge("a", old, random_.choice(["s", "t"]), now_ms + 1)
                replays["forged" if judged is None else str(judged.answer)] += 1
                assert judged is None or not (judged.route.up or judged.route.down)
    assert said == {"FIRST new_frame": heard}
    assert replays.keys() - {"forged"} == {"REJECT old_counter", "REPEAT replayed", "REPEAT other_station"}
    assert ("forged" in replays) == (roll_overs > 1)
    assert counter // ROLL_OVER == roll_overs
    assert network.known is not None
    assert (network.heard["a"].fcnt_up, network.known.fcnt_up) == (counter, counter)
    assert len(network.servers["a"].stations.sightings) <= 61


@st.composite
def interleavings(draw):
    """Each server claims each frame once, in its own order of hearing them; mixed in any way."""
    servers = "abcde"[: draw(st.integers(1, 5))]
    frames = draw(st.integers(1, 6))
    turns = draw(st.permutations([name for name in servers for _ in range(frames)]))
    done: Counter[str] = Counter()
    claims = []
    for name in turns:
        done[name] += 1
        claims.append(Claim("d", name, done[name], wants_down=draw(st.booleans())))
    return claims


@given(interleavings())
def test_one_server_wins_each_frame_however_claims_interleave(claims):
    known, downs = None, []
    winners: Counter[int] = Counter()
    for claim in claims:
        known, claimed = decide(known, claim)
        winners[claim.fcnt_up] += claimed.won
        assert (claimed.fcnt_down > 0) == (claimed.won and claim.wants_down)
        assert (claimed.server, claimed.fcnt_up) == (known.server, known.fcnt_up)
        downs += [claimed.fcnt_down] * (claimed.fcnt_down > 0)
    assert set(winners.values()) == {1}
    assert downs == list(range(1, len(downs) + 1))  # no counter is used twice on the way down


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=30))
def test_in_no_order_at_all_a_frame_is_won_by_more_than_one_server(claims):
    # Out of order, and with work done again after a crash: the same server may win again, another one never.
    known, highest = None, -1
    winners: dict[int, str] = {}
    for name, fcnt, wants_down in claims:
        known, claimed = decide(known, Claim("d", name, fcnt, wants_down=wants_down))
        if claimed.won:
            assert winners.setdefault(fcnt, name) == name
            assert fcnt >= highest
            highest = fcnt
        else:
            assert fcnt < highest or winners[fcnt] != name
    assert (known is None) == (not claims)


APART = 3
"""Frames between the fastest server and the slowest."""


@st.composite
def lives(draw):
    """(server, life, counter) in the order of hearing. A device begins again and again, after more than it takes the
    slowest server to follow. Of what is neither at the beginning nor at the end of a life a server may miss some.
    """
    servers, heard = "abc"[: draw(st.integers(2, 3))], []
    for life in range(draw(st.integers(2, 4))):
        frames = draw(st.integers(APART + 2, 9))
        at = dict.fromkeys(servers, 0)
        while followers := [s for s in servers if at[s] < frames and at[s] - min(at.values()) <= APART]:
            name = draw(st.sampled_from(followers))
            if not (2 <= at[name] < frames - 1 and draw(st.sampled_from([False, False, True]))):
                heard.append((name, life, at[name]))
            at[name] += 1
    return heard


@settings(max_examples=examples(200))
@given(lives())
def test_one_server_wins_each_frame_of_each_life_of_a_device_that_begins_again(heard):
    network = Network("a", "b", "c", device=Device(dev_eui=1, strategy=Strategy.DROP, relaxed=True))
    winners: Counter[tuple[int, int]] = Counter()
    down: list[tuple[int, int]] = []
    for name, life, fcnt in heard:
        frame = signed_up(nwk_skey=KEY, dev_addr=ADDRESS, fcnt=fcnt, payload=b"%d" % life, confirmed=True)
        judged = network.judge(name, frame, "station of " + name, 0)
        assert judged is not None
        winners[life, fcnt] += judged.answer.verdict == "FIRST"
        down += [(life, fcnt)] * judged.route.down
    ears = len({name for name, _, _ in heard})
    copies = Counter((life, fcnt) for _, life, fcnt in heard)
    # What some miss, all may lose: the others bring it when a later one is counted already.
    assert all(wins == 1 if copies[frame] == ears else wins <= 1 for frame, wins in winners.items())
    assert sorted(down) == sorted(winners.elements())


@settings(max_examples=examples(50))
@given(
    strategy=st.sampled_from(Strategy),
    order=st.permutations([(server, station) for server in "ab" for station in "123"]),
    frames=st.integers(1, 4),
)
def test_two_servers_with_three_stations_each(strategy, order, frames):
    device = Device(dev_eui=1, strategy=strategy)
    network = Network("a", "b", device=device)
    up, marked, down, first = 0, 0, [], 0
    for fcnt in range(frames):
        for server, station in order:
            judged = network.hear(server, sent(fcnt, confirmed=True), server + station, fcnt * 100)
            up += judged.route.up
            marked += judged.route.marked
            down += [server] * judged.route.down
            first += judged.answer.verdict == "FIRST"
    assert first == len(down) == frames
    expected = {"drop": (frames, 0), "mark": (6 * frames, 5 * frames), "none": (6 * frames, 0)}
    assert (up, marked) == expected[strategy]
