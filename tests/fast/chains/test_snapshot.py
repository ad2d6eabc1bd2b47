from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold.chains import ChainDetector
from onefold.chains.rules import FORMAT, ChainSettings, State, decode, encode
from onefold.errors import BadInput
from tests.lib.examples import examples

NUMBERS = st.tuples(st.integers(0, 300), st.integers(0, 2))
WIDE = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
MESSAGES = st.tuples(st.none() | NUMBERS, NUMBERS) | st.tuples(st.none() | WIDE, WIDE)


@st.composite
def detectors(draw):
    detector = ChainDetector(
        gap_count_max=draw(st.sampled_from([1, 2, 3, 10_000])),
        floor=draw(st.sampled_from(["first", "open"])),
        jump_max_ms=draw(st.sampled_from([None, 0, 100_000])),
    )
    for previous, number in draw(st.lists(MESSAGES, max_size=20)):
        detector.judge(previous, number)
    return detector


DETECTORS = detectors()


def is_refused_or_sound(data):
    """Foreign bytes are bad input, or the snapshot of a detector that keeps its invariants and goes on judging."""
    try:
        detector = ChainDetector.restore(data)
    except BadInput:
        return
    assert detector.snapshot() == data
    bounds = [bound for gap in detector.gaps() for bound in gap if bound is not None]
    assert bounds == sorted(set(bounds))
    assert len(detector.gaps()) <= detector.gap_count_max
    assert all(first <= last for first, last in detector.missing())
    before = detector.head
    assert before is None or detector.judge(None, before).verdict in ("REPEAT", "UNSURE", "REJECT")
    str(detector)


@given(DETECTORS)
def test_a_detector_comes_back_as_it_was(detector):
    restored = ChainDetector.restore(detector.snapshot())
    for name in ("gap_count_max", "floor", "jump_max_ms", "head", "forgotten"):
        assert getattr(restored, name) == getattr(detector, name)
    assert (restored.gaps(), restored.missing(), str(restored)) == (detector.gaps(), detector.missing(), str(detector))
    assert restored.snapshot() == detector.snapshot()


@given(DETECTORS, DETECTORS)
def test_a_merged_detector_comes_back_as_it_was(one, other):
    merged = one.merge(other)
    assert ChainDetector.restore(merged.snapshot()).snapshot() == merged.snapshot()


@given(st.data(), DETECTORS)
def test_a_cut_snapshot_is_bad_input_wherever_it_is_cut(data, detector):
    whole = detector.snapshot()
    with pytest.raises(BadInput):
        ChainDetector.restore(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(DETECTORS, st.binary(min_size=1, max_size=4))
def test_a_snapshot_that_goes_on_after_its_end_is_bad_input(detector, more):
    with pytest.raises(BadInput):
        ChainDetector.restore(detector.snapshot() + more)


@settings(max_examples=examples(500))
@given(st.data(), DETECTORS)
def test_flipped_bits_are_refused_or_give_a_sound_detector(data, detector):
    damaged = bytearray(detector.snapshot())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    is_refused_or_sound(bytes(damaged))


@settings(max_examples=examples(500))
@given(
    st.binary(max_size=40)
    | st.tuples(st.integers(0, 31), st.binary(max_size=30)).map(lambda x: bytes((FORMAT, x[0])) + x[1])
)
@example(b"")
@example(bytes((FORMAT,)))
@example(bytes((FORMAT, 0, 0, 0)))  # gap_count_max 0
@example(bytes((FORMAT, 0)) + b"\xff" * 100)
def test_random_bytes_are_refused_or_give_a_sound_detector(data):
    is_refused_or_sound(data)


def test_a_claim_of_more_gaps_than_bytes_is_refused_before_any_is_read():
    with pytest.raises(BadInput, match="gaps") as caught:
        decode(bytes((FORMAT, 1, 5, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F)))
    assert caught.value.values == {"gap_count": 2**35 - 1}


def test_another_format_is_refused_and_named():
    data = bytearray(ChainDetector().snapshot())
    data[0] = FORMAT + 1
    with pytest.raises(BadInput, match=f"format {FORMAT}"):
        decode(bytes(data))


@pytest.mark.parametrize(
    "state",
    [
        State(ChainSettings(0, "first"), None, None, False, []),
        State(ChainSettings(9, "first"), None, None, False, [((-1, -1), (5, 0))]),  # gaps, and nothing seen
        State(ChainSettings(9, "first"), None, (4, 0), False, []),
        State(ChainSettings(9, "first"), (5, -1), None, False, []),  # the newest is no number
        State(ChainSettings(9, "first"), (9, 0), None, False, [((5, 0), (5, 0))]),  # an empty gap
        State(ChainSettings(9, "first"), (9, 0), None, False, [((5, 0), (7, 0)), ((7, 0), (8, 0))]),  # gaps that touch
        State(ChainSettings(9, "first"), (9, 0), None, False, [((5, 0), (9, 0))]),  # the newest is missing
        State(ChainSettings(9, "first"), (9, 0), (7, 5), False, [((7, 0), (8, 0))]),  # a gap in the forgotten reach
        State(ChainSettings(2, "open"), (9, 0), None, False, [((1, 0), (2, 0)), ((4, 0), (5, 0))]),  # too many gaps
    ],
)
def test_a_state_that_no_detector_can_be_in_is_refused(state):
    with pytest.raises(BadInput):
        decode(encode(state))


def test_close_gaps_cost_a_few_bytes_each():
    detector = ChainDetector()
    detector.judge(None, (1_704_067_200_000, 0))
    sizes = []
    for i in range(1, 200):
        detector.judge((1_704_067_200_000 + 20 * i - 5, 0), (1_704_067_200_000 + 20 * i, 0))
        sizes.append(len(detector.snapshot()))
    assert sizes[0] < 40
    assert max(b - a for a, b in pairwise(sizes)) <= 6
