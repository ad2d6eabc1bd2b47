import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains import ANSWERS, ChainDetector
from onefold.chains.rules import JUMP_TOO_FAR
from onefold.errors import Misuse
from onefold.intervals import Gaps
from onefold.verdict import Answer, Verdict
from tests.lib.examples import examples

FIRST, REPEAT, UNSURE, REJECT = Verdict
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "chains.json").read_text())
EXPECTED: dict[object, set] = {
    True: {FIRST},
    False: {REPEAT, UNSURE},
    "GapMisMatchError": {Answer(REJECT, "gap_mismatch")},
    "InvalidNumberingError": {Answer(REJECT, "bad_numbering")},
}

NUMBERS = st.tuples(st.integers(0, 12), st.integers(0, 2))
MESSAGES = st.tuples(st.none() | NUMBERS, NUMBERS)
FLOORS = st.sampled_from(["first", "open"])
BOUNDS = st.integers(1, 5)
SETTINGS = st.fixed_dictionaries(
    {
        "gap_count_max": st.sampled_from([1, 2, 3, 10_000]),
        "floor": FLOORS,
        "jump_max_ms": st.sampled_from([None, 0, 4]),
    }
)


def chained(numbers):
    """The messages of a chain with these numbers: each names its previous one, the head none."""
    numbers = sorted(numbers)
    return list(zip([None, *numbers], numbers, strict=False))


CHAINS = st.sets(NUMBERS, min_size=1, max_size=25).map(chained)


@st.composite
def chain_and_traffic(draw, head_first=False):
    """A chain, and its messages in any order, some lost, some copied."""
    chain = draw(CHAINS)
    traffic = draw(st.lists(st.sampled_from(chain), max_size=50))
    return chain, ([chain[0]] if head_first else []) + traffic


def pair(value):
    return None if value in (None, "inf") else tuple(value)


def seen_by(messages, **options):
    detector = ChainDetector(**options)
    for previous, number in messages:
        detector.judge(previous, number)
    return detector


def copy(detector):
    return ChainDetector.restore(detector.snapshot())


def missing_of(detector, chain):
    """The numbers of this chain that lie in a missing range."""
    return {n for _, n in chain for first, last in detector.missing() if first <= n <= last}


@pytest.mark.parametrize("case", VECTORS["detector"], ids=lambda case: case["id"])
def test_the_published_cases_hold_step_by_step(case):
    detector = ChainDetector(gap_count_max=case["max_gap_count"])
    for step in case["steps"]:
        before = detector.snapshot()
        answer = detector.judge(pair(step["prev"]), pair(step["num"]))
        assert EXPECTED[step["expect"]] & {answer, answer.verdict}
        assert answer.verdict is FIRST or detector.snapshot() == before
        assert detector.gaps() == [(pair(lower), pair(upper)) for lower, upper in step["state"]]


def test_chains_are_told_apart_by_tuples_of_their_parts():
    for steps in (VECTORS["multi_chain"]["steps"], *(extra["steps"] for extra in VECTORS["multi_chain"]["extra"])):
        detectors: dict[tuple, ChainDetector] = {}
        for step in steps:
            detector = detectors.setdefault(tuple(step["key"]), ChainDetector())
            assert detector.judge(pair(step["prev"]), pair(step["num"])).verdict in EXPECTED[step["expect"]]


def judges_as_a_set(detector, traffic, seen):
    for previous, number in traffic:
        assert detector.judge(previous, number).verdict is (REPEAT if number in seen else FIRST)
        seen.add(number)


@settings(max_examples=examples(300))
@given(chain_and_traffic(head_first=True))
def test_with_the_head_first_a_chain_in_any_order_is_judged_as_by_a_set(case):
    judges_as_a_set(ChainDetector(), case[1], set())


@settings(max_examples=examples(300))
@given(chain_and_traffic())
def test_with_an_open_floor_a_chain_is_judged_as_by_a_set_wherever_its_head_is(case):
    judges_as_a_set(ChainDetector(floor="open"), case[1], set())


@given(chain_and_traffic())
def test_with_the_floor_at_the_first_message_only_what_lies_below_it_differs_from_a_set(case):
    detector, seen = ChainDetector(), set()
    for previous, number in case[1]:
        below = number < case[1][0][1]
        answer = detector.judge(previous, number)
        if below and previous is None:
            assert str(answer) == "UNSURE behind_head"
        else:
            assert answer.verdict is (REPEAT if below or number in seen else FIRST)
            assert (answer.reason == "below_floor") == below
        seen.add(number)


@settings(max_examples=examples(300))
@given(chain_and_traffic(head_first=True), BOUNDS, FLOORS)
def test_bounded_gaps_never_call_a_new_message_a_repeat_nor_a_repeat_new(case, gap_count_max, floor):
    detector, arrived = ChainDetector(gap_count_max=gap_count_max, floor=floor), set()
    for previous, number in case[1]:
        assert detector.judge(previous, number).verdict in ({REPEAT, UNSURE} if number in arrived else {FIRST, UNSURE})
        assert len(detector.gaps()) <= gap_count_max
        arrived.add(number)


@given(chain_and_traffic(), BOUNDS)
def test_unsure_is_what_lies_in_the_forgotten_reach_and_a_first_message_above_it(case, gap_count_max):
    detector, counted = ChainDetector(gap_count_max=gap_count_max, floor="open"), set()
    for previous, number in case[1]:
        forgotten = detector.forgotten is not None and number <= detector.forgotten
        without_floor = previous is None and detector.forgotten is not None and number != detector.head
        answer = detector.judge(previous, number)
        assert answer.verdict is (UNSURE if forgotten or without_floor else REPEAT if number in counted else FIRST)
        counted |= {number} if answer.verdict is FIRST else set()


@settings(max_examples=examples(300))
@given(st.data(), CHAINS)
def test_after_a_merge_a_chain_is_judged_as_by_the_set_of_what_either_saw(data, chain):
    some = st.lists(st.sampled_from(chain), max_size=30)
    a, b = data.draw(some), data.draw(some)
    merged = seen_by(a, floor="open").merge(seen_by(b, floor="open"))
    union = {number for _, number in a + b}
    assert missing_of(merged, chain) == {n for _, n in chain if union and n < max(union)} - union
    judges_as_a_set(merged, data.draw(st.permutations(chain + chain)), union)


@given(st.data(), CHAINS, BOUNDS, FLOORS)
def test_merging_with_bounded_gaps_never_loses_a_new_message_nor_counts_one_twice(data, chain, gap_count_max, floor):
    some = st.lists(st.sampled_from(chain), max_size=30).map(lambda messages: [chain[0], *messages])
    a, b = data.draw(some), data.draw(some)
    nodes = [seen_by(messages, floor=floor, gap_count_max=gap_count_max) for messages in (a, b)]
    merged = nodes[0].merge(nodes[1])
    assert len(merged.gaps()) <= gap_count_max
    arrived = {number for _, number in a + b}
    for previous, number in data.draw(st.permutations(chain)):
        expected = {REPEAT, UNSURE} if number in arrived else {FIRST, UNSURE}
        assert merged.judge(previous, number).verdict in expected


@given(chain_and_traffic(), st.data(), st.sampled_from([1, 2, 3, 10_000]), FLOORS)
def test_merging_is_commutative_and_idempotent(case, data, gap_count_max, floor):
    cut = data.draw(st.integers(0, len(case[1])))
    options = {"gap_count_max": gap_count_max, "floor": floor}
    a, b = (seen_by(part, **options) for part in (case[1][:cut], case[1][cut:]))
    ab, ba = copy(a).merge(b), copy(b).merge(a)
    assert ab.gaps() == ba.gaps()
    assert (ab.missing(), ab.forgotten) == (ba.missing(), ba.forgotten)
    assert copy(a).merge(a).gaps() == a.gaps()
    assert copy(ab).merge(b).gaps() == ab.gaps()


@given(chain_and_traffic(), chain_and_traffic(), FLOORS)
def test_merging_leaves_the_other_node_as_it_was(case, other, floor):
    a, b = seen_by(case[1], floor=floor), seen_by(other[1], floor=floor)
    before = b.snapshot()
    a.merge(b)
    for previous, number in case[0]:
        a.judge(previous, number)
    assert b.snapshot() == before


@settings(max_examples=examples(300))
@given(st.lists(MESSAGES, max_size=40), st.data(), SETTINGS)
def test_a_restart_in_mid_stream_changes_nothing(messages, data, options):
    cuts = data.draw(st.sets(st.integers(0, len(messages)), max_size=4))
    steady, restarted = ChainDetector(**options), ChainDetector(**options)
    for i, (previous, number) in enumerate(messages):
        restarted = copy(restarted) if i in cuts else restarted
        assert restarted.judge(previous, number) == steady.judge(previous, number)
        assert (str(restarted), restarted.missing()) == (str(steady), steady.missing())
    assert restarted.snapshot() == steady.snapshot()


@settings(max_examples=examples(300))
@given(st.lists(MESSAGES, max_size=40), SETTINGS)
def test_only_a_first_changes_the_state(messages, options):
    detector = ChainDetector(**options)
    for previous, number in messages:
        before = str(detector), detector.snapshot()
        answer = detector.judge(previous, number)
        assert ((str(detector), detector.snapshot()) == before) == (answer.verdict is not FIRST)


@given(st.lists(MESSAGES, max_size=40), SETTINGS)
def test_what_was_counted_is_never_counted_again(messages, options):
    detector, counted = ChainDetector(**options), set()
    for previous, number in messages:
        if detector.judge(previous, number).verdict is FIRST:
            assert number not in counted
            counted.add(number)


@given(chain_and_traffic())
def test_missing_is_exactly_what_is_known_to_exist_and_was_not_seen(case):
    chain, traffic = case
    open_floor, first_floor = seen_by(traffic, floor="open"), seen_by(traffic)
    seen = {number for _, number in traffic}
    known = {n for _, n in chain if seen and n < max(seen)}
    assert missing_of(open_floor, chain) == known - seen
    assert missing_of(first_floor, chain) == {n for n in known - seen if n > traffic[0][1]}


@given(chain_and_traffic(), FLOORS)
def test_a_resend_of_what_is_missing_leaves_nothing_missing(case, floor):
    detector = seen_by(case[1], floor=floor)
    for previous, number in case[0]:
        if any(first <= number <= last for first, last in detector.missing()):
            assert detector.judge(previous, number).verdict is FIRST
    assert detector.missing() == []


def test_a_poisoned_message_does_not_mute_its_chain():
    poison = (7_258_118_400_000, 0)
    for arrivals in ([1_005, 1_010, 1_020], [None, None, None]):  # the guard measures from the arrival or the head
        detector = ChainDetector(jump_max_ms=1_000)
        assert detector.judge(None, (1_000, 0), arrivals[0]).verdict is FIRST
        before = str(detector)
        assert detector.judge((1_000, 0), poison, arrivals[1]) == JUMP_TOO_FAR
        assert str(detector) == before
        assert detector.judge((1_000, 0), (1_010, 0), arrivals[2]).reason == "in_order"
        unguarded = ChainDetector()
        unguarded.judge(None, (1_000, 0))
        unguarded.judge((1_000, 0), poison)
        assert unguarded.judge((1_000, 0), (1_010, 0)).verdict is REPEAT  # what the guard is for


def test_a_poisoned_message_cannot_begin_a_chain_when_its_arrival_is_known():
    detector = ChainDetector(jump_max_ms=1_000)
    assert detector.judge(None, (9_000, 0), 1_000) == JUMP_TOO_FAR
    assert str(detector) == "(-inf, inf]"


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 5_000))
def test_the_guard_refuses_more_than_its_limit_ahead_and_no_less(arrival, jump_max_ms, timestamp):
    answer = ChainDetector(jump_max_ms=jump_max_ms).judge(None, (timestamp, 0), arrival)
    assert (answer == JUMP_TOO_FAR) == (timestamp - arrival > jump_max_ms)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
)
HUGE = st.tuples(*[st.integers(-1, 3) | st.sampled_from([2**43, 2**53, 2**63, 2**64, 2**200, 10**400, -(10**400)])] * 2)
ANYTHING = JUNK | HUGE | NUMBERS


@settings(max_examples=examples(500))
@given(st.lists(st.tuples(ANYTHING, ANYTHING, st.none() | st.integers()), max_size=8), SETTINGS)
def test_no_message_raises_and_whatever_came_the_state_can_be_kept(messages, options):
    detector = ChainDetector(**options)
    for previous, number, arrival in messages:
        before = detector.snapshot()
        answer = detector.judge(previous, number, arrival)
        assert answer in ANSWERS
        assert answer.verdict is FIRST or detector.snapshot() == before
        assert copy(detector).snapshot() == detector.snapshot()


@pytest.mark.parametrize("previous", [(9.0, 0), [10, 0.0], (10,), (), "10|0", 10, (10, -1), (10, None)])
def test_a_previous_number_that_is_none_is_refused(previous):
    detector = seen_by([(None, (10, 0))])
    assert str(detector.judge(previous, (11, 0))) == "REJECT bad_number"


@pytest.mark.parametrize("number", [(2**63, 0), (11, 2**63), (10**400, 0)])
def test_a_number_of_more_than_63_bits_is_out_of_range(number):
    detector = seen_by([(None, (10, 0))])
    for previous in (None, (10, 0), (9, 0)):
        assert str(detector.judge(previous, number)) == "REJECT number_out_of_range"
    assert str(detector.judge((10, 2**63), (11, 0))) == "REJECT number_out_of_range"


@pytest.mark.parametrize(
    "wrong",
    [
        {"gap_count_max": 0},
        {"gap_count_max": -3},
        {"gap_count_max": 2.5},
        {"gap_count_max": "7"},
        {"floor": "closed"},
        {"floor": None},
        {"jump_max_ms": -1},
        {"jump_max_ms": 0.5},
    ],
)
def test_a_setting_that_makes_no_sense_is_misuse_and_is_named_with_its_value(wrong):
    with pytest.raises(Misuse) as caught:
        ChainDetector(**wrong)
    assert caught.value.values == wrong
    (name, value), *_ = wrong.items()
    assert str(caught.value).startswith(f"{name} is {value!r}")


def snapshot_bytes_max(message_count):
    """The largest state in a long chain of which every third message is overtaken by the two after it."""
    numbers = [(1_704_067_200_000 + i, 0) for i in range(message_count)]
    chain = list(zip([None, *numbers], numbers, strict=False))
    detector, sizes = ChainDetector(), []
    for i in range(0, message_count - 3, 3):
        for at in (i + 2, i + 1, i) if i else (0, 1, 2):
            detector.judge(*chain[at])
            sizes.append(len(detector.snapshot()))
    return max(sizes)


def test_bytes_per_chain_stay_the_same_as_history_grows_tenfold():
    # One byte more at most: the distance from the floor to the head is a larger integer.
    assert snapshot_bytes_max(3_000) <= snapshot_bytes_max(30_000) <= snapshot_bytes_max(3_000) + 1 < 60


class Counted(tuple):
    """A number that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other):
        Counted.compared += 1
        return tuple.__lt__(self, other)

    def __eq__(self, other):
        Counted.compared += 1
        return tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


@pytest.mark.parametrize("gap_count", [10, 1_000, 9_000])
def test_an_old_duplicate_costs_the_logarithm_of_the_gaps(gap_count):
    detector = seen_by([(None, (0, 0)), *(((10 * i - 1, 0), (10 * i, 0)) for i in range(1, gap_count))])
    detector._gaps = Gaps((Counted(lower), Counted(upper)) for lower, upper in detector._gaps)
    for old in (1, gap_count // 2, gap_count - 1):
        Counted.compared = 0
        assert detector.judge((10 * old - 1, 0), (10 * old, 0)).reason == "seen"
        assert 0 < Counted.compared <= gap_count.bit_length() + 4


def test_without_previous_only_the_newest_and_the_first_of_the_chain_are_known_and_the_rest_behind_is_unsure():
    detector = ChainDetector()
    arrivals = [(10, 0), (30, 0), (20, 0), (30, 0), (10, 0), (5, 0)]
    assert [str(detector.judge(None, number)) for number in arrivals] == [
        *("FIRST new_chain", "FIRST ahead", "UNSURE behind_head", "REPEAT seen", "REPEAT seen", "UNSURE behind_head")
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=30), FLOORS)
def test_without_previous_what_is_called_a_repeat_was_seen_and_nothing_counts_twice(numbers, floor):
    detector, counted = ChainDetector(floor=floor), []
    for number in numbers:
        answer = detector.judge(None, number)
        assert answer.verdict is not REPEAT or number in counted
        counted += [number] if answer.verdict is FIRST else []
    assert len(counted) == len(set(counted))
