import json
import tomllib
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import BadInput, Misuse
from onefold.lorawan import Claim, Counters, DataUp, Device, Heard, NetworkServer, Strategy, decide, parse
from onefold.lorawan.mic import ack_down, data_mic, find_counter, join_mic
from onefold.lorawan.registry import Registry, RegistryEntry
from onefold.testing.radio import (
    QUIET,
    FrameKind,
    Frames,
    RadioPlan,
    RadioTraffic,
    SentFrame,
    first_counters,
    heard,
    make,
    read,
    truth_lines,
    write,
)
from onefold.testing.radio import HeardFrame as Line
from onefold.testing.stations import Ack, Ring, doubled
from onefold.verdict import Verdict
from tests.lib.examples import examples
from tests.lib.radio_score import score, verdicts

USUAL = RadioPlan()


@pytest.fixture(scope="module")
def made() -> RadioTraffic:
    return make(USUAL)


def judged(made: RadioTraffic, check_mic: bool = True) -> list[str]:
    """What one server with a perfect store says of every reception."""
    server, store = NetworkServer("a"), dict[str, Counters]()
    by_address: dict[int, list[int]] = {}
    for i, owner in enumerate(made.world.devices):
        if not owner.stranger:
            by_address.setdefault(owner.dev_addr, []).append(i)
    starts = first_counters(made)
    known = {i: Heard(starts[i] - 1 if made.world.devices[i].rolls_over else None) for i in range(made.plan.devices)}

    def claim(claim: Claim | None):
        if claim is None:
            return None
        store[claim.device], claimed = decide(store.get(claim.device), claim)
        return claimed

    said: list[str] = []
    rows = zip(made.truth.frame.tolist(), made.receptions.gateway.tolist(), made.receptions.at_ms.tolist(), strict=True)
    for number, gateway, at_ms in rows:
        frame, station = made.frames[number], made.world.gateways[gateway]
        if not isinstance(frame, DataUp):
            result = server.join(frame, station, at_ms)
            said.append(server.settle(result, Strategy.NONE, claim(result.claim)).answer.verdict)
            continue
        verdict = Verdict.REJECT
        for i in by_address.get(frame.dev_addr, []):
            owner = made.world.devices[i]
            counter = find_counter(owner.nwk_skey, frame, known[i].fcnt_up) if check_mic else frame.fcnt
            if counter is not None:
                strategy = Strategy(owner.strategy)
                device = Device(dev_eui=owner.dev_eui, strategy=strategy, relaxed=owner.resets)
                result = server.uplink(device, frame, counter, known[i], station, at_ms)
                verdict = server.settle(result, strategy, claim(result.claim)).answer.verdict
                break
        said.append(verdict)
    return said


def test_everything_that_can_happen_happens(made):
    assert all(made.truth.count(kind) > 20 for kind in FrameKind)
    assert Counter(type(frame).__name__ for frame in made.frames)["JoinRequest"] >= 10
    devices = made.truth.devices
    assert sum(d.resets for d in devices) == 5
    assert sum(d.rollovers for d in devices) == 5
    assert len({d.dev_addr for d in made.world.devices[:50]}) < 50
    assert {d.dev_addr >> 31 for d in made.world.devices} == {0, 1}
    assert max(np.bincount(made.air.frame[made.air.sent == SentFrame.RETRY])) == 3


def test_the_engine_agrees_with_the_truth(made):
    result = score(list(truth_lines(made)), judged(made))
    assert result.perfect, result
    assert result.uplinks == sum(d.heard + d.joins for d in made.truth.devices)
    assert result.receptions == len(made)


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    devices=st.integers(1, 30),
    gateways=st.integers(1, 8),
    each=st.integers(1, 40),
    share=st.sampled_from([0.0, 0.1, 0.3]),
    losses=st.sampled_from([0.0, 0.3, 0.9]),
)
def test_whatever_the_plan_the_engine_agrees_and_the_devices_add_up(seed, devices, gateways, each, share, losses):
    rates = dict.fromkeys(("mirrors", "replays", "forged", "foreign", "joins", "rollovers", "resets", "shared"), share)
    plan = RadioPlan(
        seed=seed, devices=devices, gateways=gateways, frames=devices * each, losses=losses, fades=share, retries=1.0,
        interval_ms=1_000, **rates,
    )  # fmt: skip
    made = make(plan)
    result = score(list(truth_lines(made)), judged(made))
    assert result.perfect, result
    assert sum(d.sent for d in made.truth.devices) == plan.frames
    assert all(d.sent == d.heard + d.lost and d.lost_between <= d.lost for d in made.truth.devices)


def test_a_judge_that_does_not_look_at_integrity_codes_is_found_out(made):
    result = score(list(truth_lines(made)), judged(made, check_mic=False))
    assert result.false_accepted > 0
    assert not result.perfect


def test_a_judge_that_errs_is_found_out(made):
    lines = list(truth_lines(made))
    right = judged(made)
    for kind, wrong, field in [
        (FrameKind.OTHER_GATEWAY, "FIRST", "counted_twice"),
        (FrameKind.FIRST, "REPEAT", "lost"),
        (FrameKind.RETRY, "REJECT", "refused"),
        (FrameKind.REPLAY, "FIRST", "replays_accepted"),
        (FrameKind.FOREIGN, "REPEAT", "false_accepted"),
        (FrameKind.MIRROR, "UNSURE", "unsure"),
        (FrameKind.MIRROR, "", "unjudged"),
    ]:
        at = next(i for i, line in enumerate(lines) if line.kind == kind)
        result = score(lines, [*right[:at], wrong, *right[at + 1 :]])
        assert (getattr(result, field), result.perfect) == (1, False), kind


def test_every_kind_of_reception_is_what_its_name_says(made):
    lines, by_frame = list(truth_lines(made)), dict[int, list[int]]()
    for i, line in enumerate(lines):
        by_frame.setdefault(line.frame, []).append(i)
    sent, transmission = made.air.sent, made.receptions.transmission
    for indexes in by_frame.values():
        first = [i for i in indexes if lines[i].kind == FrameKind.FIRST]
        true = [i for i in indexes if lines[i].kind < FrameKind.REPLAY]
        assert first == true[:1]
        for i in indexes:
            match lines[i].kind:
                case FrameKind.OTHER_GATEWAY:
                    assert transmission[i] == transmission[first[0]]
                    assert lines[i].station != lines[first[0]].station
                case FrameKind.RETRY:
                    assert sent[transmission[i]] == SentFrame.RETRY
                    assert transmission[i] != transmission[first[0]]
                    assert made.air.confirmed[lines[i].frame]
                case FrameKind.REPLAY:
                    assert sent[transmission[i]] == SentFrame.REPLAY
                    assert i > first[0]


def test_a_mirror_is_the_same_instant_at_the_same_gateway_on_another_frequency_and_much_weaker(made):
    r = made.receptions
    plain = {(t, g): i for i, (t, g) in enumerate(zip(r.transmission, r.gateway, strict=True)) if not r.mirror[i]}
    for i in np.flatnonzero(r.mirror):
        j = plain[r.transmission[i], r.gateway[i]]
        assert j < i
        assert r.at_ms[i] == r.at_ms[j]
        assert r.frequency_hz[i] != r.frequency_hz[j]
        assert r.rssi[i] <= r.rssi[j] - 29.9


def test_frames_are_signed_unless_they_are_forged(made):
    for kind, device, counter, frame in zip(
        made.air.kind.tolist(), made.air.device.tolist(), made.air.counter.tolist(), made.frames, strict=True
    ):
        owner = made.world.devices[device]
        if kind == Frames.JOIN:
            assert frame.mic == join_mic(owner.app_key, frame.raw)
        else:
            right = data_mic(owner.nwk_skey, frame.raw, owner.dev_addr, counter)
            assert (frame.mic == right) == (kind != Frames.FORGED)
        assert parse(frame.phy) == frame


def test_when_nothing_goes_wrong_every_gateway_hears_every_frame_once():
    made = make(replace(QUIET, frames=300, devices=7, gateways=6, confirmed=1.0))
    assert len(made) == 1800
    assert {kind for kind in FrameKind if made.truth.count(kind)} == {FrameKind.FIRST, FrameKind.OTHER_GATEWAY}
    assert made.truth.count(FrameKind.FIRST) == 300
    assert all(isinstance(frame, DataUp) and frame.confirmed for frame in made.frames)


def test_the_same_plan_makes_the_same_traffic_and_another_seed_another(tmp_path):
    plan = RadioPlan(frames=400, devices=20)
    for name, one in (("a", plan), ("b", plan), ("c", replace(plan, seed=2))):
        write(make(one), tmp_path / name)
    files = {file.relative_to(tmp_path / "a") for file in (tmp_path / "a").rglob("*") if file.is_file()}
    assert len(files) == 5
    for file in files:
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b
        assert a != c


def test_what_is_written_is_read_again(made, tmp_path):
    write(made, tmp_path / "out")
    lines = list(read(tmp_path / "out"))
    assert lines == list(heard(made))
    assert [line.at_ms for line in lines] == sorted(line.at_ms for line in lines)
    truth = [json.loads(line) for line in (tmp_path / "out/truth/receptions.jsonl").read_text().splitlines()]
    assert truth == [{**line._asdict(), "kind": line.kind.name.lower()} for line in truth_lines(made)]
    assert json.loads((tmp_path / "out/truth/plan.json").read_text()) == asdict(USUAL)
    per_device = [json.loads(line) for line in (tmp_path / "out/truth/devices.jsonl").read_text().splitlines()]
    assert [d["lost"] for d in per_device] == [d.lost for d in made.truth.devices]


def test_messages_are_those_of_a_station(made):
    clocks = set()
    for line, number in zip(heard(made), made.truth.frame.tolist(), strict=True):
        message, frame = json.loads(line.message), made.frames[number]
        assert (line.station, message["upinfo"]["xtime"]) not in clocks
        clocks.add((line.station, line.xtime))
        assert -(1 << 31) <= message["MIC"] < 1 << 31
        assert message["MIC"] % (1 << 32) == frame.mic
        if isinstance(frame, DataUp):
            assert message["msgtype"] == "updf"
            assert message["DevAddr"] % (1 << 32) == frame.dev_addr
            told = [message["MHdr"], message["FCtrl"], message["FCnt"], message["FPort"], message["FRMPayload"]]
            assert told == [frame.mhdr, frame.fctrl, frame.fcnt, frame.fport, frame.payload.hex().upper()]
        else:
            assert message["msgtype"] == "jreq"
            assert message["DevEui"].replace("-", "").lower() == f"{frame.dev_eui:016x}"


def test_the_registry_knows_the_devices_and_no_strangers(made, tmp_path):
    write(made, tmp_path / "out")
    devices = tomllib.loads((tmp_path / "out/devices.toml").read_text())["device"]
    owners = made.world.devices[:50]
    assert [d["dev_eui"] for d in devices] == [f"{d.dev_eui:016x}" for d in owners]
    assert [d.get("relaxed", False) for d in devices] == [d.resets for d in owners]
    assert ["app_key" in d for d in devices] == [d.joins for d in owners]
    assert ["fcnt_up" in d for d in devices] == [d.rolls_over for d in owners]
    assert not [d for d in made.world.devices if repr(d.nwk_skey)[2:-1] in repr(d)]


def test_verdicts_of_a_server_are_matched_whatever_their_order(made):
    lines, right = list(truth_lines(made)), judged(made)
    records = [
        {"key": line.key, "station": line.station, "verdict": verdict}
        for line, verdict in zip(lines, right, strict=True)
    ]
    by_station = sorted(records, key=lambda record: record["station"])  # stable, as connections are
    assert verdicts(lines, by_station) == right
    assert verdicts(lines, by_station[1:]).count("") == 1


def test_acknowledgements_are_checked_and_told_apart_by_the_key():
    devices = ((0xAA, bytes(16)), (0xBB, bytes([1]) * 16))
    ring = Ring(Registry(RegistryEntry(Device(dev_eui=eui, dev_addr=7), key) for eui, key in devices))
    one, other = f"{0xAA:016x}", f"{0xBB:016x}"
    assert ring.answer(ack_down(nwk_skey=bytes([1]) * 16, dev_addr=7, fcnt=1)) == (other, 1, True)
    assert ring.answer(ack_down(nwk_skey=bytes(16), dev_addr=7, fcnt=65_535)) == (one, 65_535, True)
    assert ring.answer(ack_down(nwk_skey=bytes(16), dev_addr=7, fcnt=65_536)) == (one, 65_536, True)
    with pytest.raises(BadInput, match="to 00000007 is wrong"):
        ring.answer(ack_down(nwk_skey=bytes([2]) * 16, dev_addr=7, fcnt=1))


def test_an_uplink_that_two_servers_acknowledged_is_found():
    acks = [Ack("aa", n, 5, n, "s", server, 0.0) for n, server in ((1, "x"), (1, "x"), (2, "x"), (2, "y"))]
    assert doubled(acks) == {("aa", 2, 5): {"x", "y"}}


def test_a_counter_that_a_restarted_device_uses_again_is_another_uplink():
    acks = [Ack("aa", 1, mic, 1, "s", server, 0.0) for mic, server in ((5, "x"), (6, "y"))]
    assert doubled(acks) == {}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"losses": 2}, "losses is 2, must be between 0.0 and 0.9"),
        ({"devices": 0}, "devices is 0, must be a whole number between 1 and 100000"),
        ({"joins": 0.5, "resets": 0.6}, r"joins \+ rollovers \+ resets is 1.2, must be at most 1"),
        ({"strategy": "all"}, "strategy is 'all', must be one of drop, mark, none, mixed"),
        ({"frames": 10_000_000, "gateways": 9}, "frames is 10000000, must be at most 2222222 for 9 gateways"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(wrong, told):
    with pytest.raises(Misuse, match=told):
        RadioPlan(**wrong)


def test_a_line_that_is_no_reception_is_named(tmp_path):
    (tmp_path / "receptions.jsonl").write_text('{"station": "x"}\n')
    with pytest.raises(BadInput, match=r"receptions.jsonl:1: is no reception: b'{\"station\": \"x\"}\\n'"):
        next(read(tmp_path))
    (tmp_path / "receptions.jsonl").write_text("[" * 10_000)
    with pytest.raises(BadInput, match=r"receptions.jsonl:1: is no reception"):
        next(read(tmp_path))
    with pytest.raises(Misuse, match="is not there"):
        next(read(tmp_path / "nowhere"))


def test_lines_of_another_order_are_read_too(tmp_path):
    line = {"at_ms": 5, "message": {"msgtype": "updf", "upinfo": {"xtime": 7}}, "station": "00000000000000aa"}
    (tmp_path / "receptions.jsonl").write_text(json.dumps(line) + "\n")
    assert list(read(tmp_path)) == [Line("00000000000000aa", 5, json.dumps(line["message"]), 7)]
