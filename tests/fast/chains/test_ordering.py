"""The ordered mode of chains: the published cases event by event, then the laws that hold for any arrival."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import ChainDetector, OrderedChain, Verdict
from onefold.chains import RULES, GapFound, GapResolved, Released, Resend, Unfillable
from onefold.errors import BadInput, Misuse

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "chains.json").read_text())["ordered"]
SETTINGS = {"initial_wait": "wait_ms", "retry_wait": "retry_ms", "max_requests": "requests_max", "strategy": "strategy"}


class Owner:
    """Runs a chain on a virtual clock, beside a store that answers every resend at once with what it has."""

    def __init__(self, chain, stored=()):
        self.chain, self.stored, self.now_ms = chain, list(stored), 0
        self.answers, self.events = [], []

    def add(self, previous, number):
        answer, events = self.chain.add(previous, number, f"m{number}", self.now_ms)
        self.answers.append(answer)
        self.take(events)
        assert self.chain.held_count <= self.chain.settings.buffer_max
        return answer

    def advance(self, ms):
        end_ms = self.now_ms + ms
        while self.chain.due_ms is not None and self.chain.due_ms <= end_ms:
            self.now_ms = self.chain.due_ms
            self.take(self.chain.tick(self.now_ms))
        self.now_ms = end_ms

    def give_up(self, to=None):
        self.take(self.chain.give_up(self.now_ms, to))

    def take(self, events):
        self.events += events
        for resend in [event for event in events if isinstance(event, Resend)]:
            for previous, number in self.stored:
                if resend.first <= number <= resend.last:
                    self.add(previous, number)
            self.take(self.chain.answered(self.now_ms, resend))

    def released(self):
        return [event.number for event in self.events if isinstance(event, Released)]

    def of(self, kind):
        return [(event.lower[0], event.upper[0]) for event in self.events if isinstance(event, kind)]


def pairs(steps):
    return [(previous and tuple(previous), tuple(number)) for previous, number in steps]


def as_published(event):
    kinds = {Released: "out", GapFound: "gap_found", Resend: "resend", Unfillable: "unfillable"}
    row = {"t": event.at_ms, "ev": kinds.get(type(event), "gap_resolved")}
    if isinstance(event, Released):
        return {**row, "msg": list(event.number)}
    ends = [] if isinstance(event, GapResolved) else [list(end) for end in event[1:]]
    return {**row, **dict(zip(("from", "to"), ends, strict=False))}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_published_case_comes_out_event_by_event(case):
    filler = case.get("gap_filler", {})
    chain = OrderedChain[str](**{ours: filler[theirs] for theirs, ours in SETTINGS.items() if theirs in filler})
    owner = Owner(chain, pairs(filler.get("stored", [])))
    for op in case["ops"]:
        if op["op"] == "add":
            owner.add(*pairs([(op["prev"], op["num"])])[0])
        elif op["op"] == "advance":
            owner.advance(op["ms"])
        else:
            owner.give_up(op["to"] and tuple(op["to"]))
    assert [as_published(event) for event in owner.events] == case["expect_events"]
    assert [number[0] for number in owner.released()] == case["expect_out"]


def fed(*timestamps, linked=True, **settings):
    owner = Owner(OrderedChain(**settings))
    for t in timestamps:
        owner.add((t - 1, 0) if linked else None, (t, 0))
    return owner


@pytest.mark.parametrize(
    ("arrivals", "gaps_found"),
    [
        ([1, 3], [(1, 3)]),
        ([1, 2, 3, 9, 7, 6, 4, 5, 8, 10], [(3, 9)]),
        ([1, 3, 5, 4, 6, 8, 7, 2], [(1, 3)]),
        ([1, 1, 2, 2, 4, 4, 3, 5, 3, 5], [(2, 4)]),
    ],
)
def test_one_gap_is_worked_on_at_a_time_and_keeps_the_end_it_was_found_with(arrivals, gaps_found):
    owner = fed(*arrivals)
    assert owner.of(GapFound) == gaps_found
    if 2 in arrivals:
        assert owner.released() == [(t, 0) for t in sorted(set(arrivals))]


@pytest.mark.parametrize(
    ("arrivals", "to", "out", "unfillable"),
    [
        ([1, 5, 3, 6], 5, [1, 3, 5, 6], [(1, 3), (3, 5)]),
        ([1, 2, 4, 5, 7, 8, 10], None, [1, 2, 4, 5, 7, 8, 10], [(2, 4), (5, 7), (8, 10)]),
        ([1, 5], 4, [1], []),
        ([1, 2], None, [1, 2], []),
    ],
)
def test_giving_up_by_hand_reports_every_range_that_it_passes(arrivals, to, out, unfillable):
    owner = fed(*arrivals)
    owner.give_up(to and (to, 0))
    assert owner.released() == [(t, 0) for t in out]
    assert owner.of(Unfillable) == unfillable
    assert len(owner.of(GapFound)) <= 1


@pytest.mark.parametrize("strategy", ["light", "full"])
def test_a_partly_filled_gap_is_asked_for_as_it_was_found_and_given_up_as_it_is(strategy):
    chain = OrderedChain[str](wait_ms=50, retry_ms=20, requests_max=3, strategy=strategy)
    owner = Owner(chain, stored=[((2, 0), (3, 0))])
    owner.add((0, 0), (1, 0))
    owner.add((4, 0), (5, 0))
    owner.advance(300)
    assert [event for event in owner.events if isinstance(event, Resend)] == [
        Resend(at_ms, (1, 1), (4, 0)) for at_ms in (50, 70, 90)
    ]
    ends = [event for event in owner.events if isinstance(event, Unfillable)]
    assert ends == [Unfillable(90, (1, 0), (3, 0)), Unfillable(90, (3, 0), (5, 0))]
    assert owner.released() == [(1, 0), (3, 0), (5, 0)]


@pytest.mark.parametrize(("strategy", "ends_ms"), [("light", [50, 50]), ("full", [50, 100])])
def test_full_waits_for_each_gap_and_light_only_for_the_first(strategy, ends_ms):
    owner = fed(1, 3, 5, wait_ms=50, requests_max=0, strategy=strategy)
    owner.advance(300)
    assert [event.at_ms for event in owner.events if isinstance(event, Unfillable)] == ends_ms
    assert len(owner.of(GapFound)) == (2 if strategy == "full" else 1)


def test_without_an_answer_a_gap_is_given_up_one_retry_after_the_last_request():
    chain = OrderedChain[str](wait_ms=50, retry_ms=20, requests_max=2)
    chain.add(None, (1, 0), "a", 0)
    chain.add((2, 0), (3, 0), "b", 0)
    assert [chain.tick(49), chain.tick(50), chain.tick(69), chain.tick(70), chain.tick(89)] == [
        [],
        [Resend(50, (1, 1), (2, 0))],
        [],
        [Resend(70, (1, 1), (2, 0))],
        [],
    ]
    given_up = [Unfillable(90, (1, 0), (3, 0)), Released(90, (3, 0), "b"), GapResolved(90)]
    assert (chain.due_ms, chain.tick(90), chain.due_ms) == (90, given_up, None)


def test_a_tick_that_comes_late_asks_once_and_leaves_time_for_an_answer():
    chain = OrderedChain[str](wait_ms=50, retry_ms=20, requests_max=2)
    chain.add(None, (1, 0), "a", 0)
    chain.add((2, 0), (3, 0), "b", 0)
    assert chain.tick(9_000) == [Resend(9_000, (1, 1), (2, 0))]
    assert chain.due_ms == 9_020


def test_only_the_answer_to_the_last_request_ends_the_wait():
    chain = OrderedChain[str](wait_ms=50, retry_ms=20, requests_max=2)
    chain.add(None, (1, 0), "a", 0)
    chain.add((2, 0), (3, 0), "b", 0)
    assert chain.answered(10) == []
    (first,) = chain.tick(50)
    assert chain.answered(60) == []
    (second,) = chain.tick(70)
    assert isinstance(first, Resend)
    assert isinstance(second, Resend)
    assert chain.answered(75, first) == []
    assert chain.answered(75, second)[0] == Unfillable(75, (1, 0), (3, 0))
    assert chain.answered(75) == []


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 3))
def test_whatever_the_clock_did_a_gap_ends_within_the_waits_that_the_settings_allow(wait_ms, retry_ms, ahead_ms, asks):
    chain = OrderedChain[str](wait_ms=wait_ms, retry_ms=retry_ms, requests_max=asks)
    chain.add((0, 0), (1, 0), "first", ahead_ms)
    chain.add((2, 0), (3, 0), "held", ahead_ms)
    now_ms = 0  # the clock came back
    for _ in range(asks + 2):
        chain.tick(now_ms)
        now_ms += max(1, wait_ms, retry_ms)
    assert chain.held_count == 0


def test_an_answer_to_a_chain_that_never_asks_changes_nothing():
    owner = fed(1, 3, requests_max=0)
    assert owner.chain.answered(0) == []
    assert owner.chain.held_count == 1


def test_messages_without_a_previous_number_go_out_at_once():
    owner = fed(1, 3, linked=False)
    assert owner.released() == [(1, 0), (3, 0)]
    assert owner.of(GapFound) == []
    assert [str(a) for a in owner.answers] == ["FIRST new_chain", "FIRST ahead"]
    assert [str(owner.add(None, (t, 0))) for t in (3, 2)] == ["REPEAT seen", "UNSURE behind_head"]


def test_what_an_unlinked_message_passes_over_in_a_known_gap_is_never_called_a_repeat():
    owner = fed(1, 5, 9)
    assert str(owner.add(None, (7, 0))) == "FIRST fills_gap"
    assert str(owner.add(None, (3, 0))) == "FIRST fills_gap"
    assert owner.released() == [(1, 0), (3, 0)]
    assert str(owner.add((1, 0), (2, 0))) == "UNSURE given_up"
    assert str(owner.add((3, 0), (4, 0))) == "FIRST fills_gap"
    assert owner.released() == [(t, 0) for t in (1, 3, 4, 5, 7)]
    assert str(owner.add((5, 0), (6, 0))) == "UNSURE given_up"


def test_between_neighbouring_numbers_there_is_nothing_to_give_up():
    owner = fed(1, 5)
    owner.add(None, (1, 1))
    assert owner.released() == [(1, 0), (1, 1)]
    assert owner.chain.given_up() == []


def test_every_kind_of_message_gets_its_reason():
    owner = fed(10, 11, 13, 14, 17, 17, 12, 16)
    reasons = "new_chain in_order opens_gap in_order opens_gap seen fills_gap fills_gap"
    assert [answer.reason for answer in owner.answers] == reasons.split()
    owner.give_up()
    late = {
        ((14, 0), (15, 0)): "UNSURE given_up",
        ((12, 0), (13, 0)): "REPEAT seen",
        ((9, 0), (10, 0)): "REPEAT seen",
        ((8, 0), (9, 0)): "REPEAT below_floor",
        ((17, 0), (17, 0)): "REJECT bad_numbering",
        ((16, 5), (18, 0)): "REJECT gap_mismatch",
        ((17, 0), (18, -1)): "REJECT bad_number",
    }
    assert {message: str(owner.add(*message)) for message in late} == late


def test_two_messages_that_claim_the_same_place_are_not_both_held():
    owner = fed(1, 5)
    assert str(owner.add((4, 0), (6, 0))) == "REJECT gap_mismatch"
    assert str(owner.add((4, 0), (4, 7))) == "REJECT gap_mismatch"
    assert owner.chain.held_count == 1


def test_a_full_buffer_gives_up_the_lowest_gap_and_loses_nothing():
    owner = fed(1, 3, 5, 7, buffer_max=2)
    assert owner.released() == [(1, 0), (3, 0)]
    assert owner.of(Unfillable) == [(1, 3)]
    assert owner.of(GapFound) == [(1, 3), (3, 5)]
    assert str(owner.add((1, 0), (2, 0))) == "UNSURE given_up"
    owner.add((5, 0), (5, 5))
    assert owner.released() == [(1, 0), (3, 0), (5, 0), (5, 5)]


def test_beyond_gap_count_max_the_lowest_range_is_forgotten_and_all_below_is_unsure():
    owner = fed(1, 3, 5, 7, gap_count_max=2)
    owner.give_up()
    assert owner.chain.given_up() == [((3, 0), (4, 0)), ((5, 0), (6, 0))]
    assert owner.chain.forgotten == (2, 0)
    verdicts = {t: str(owner.add((t - 1, 0), (t, 0))) for t in (2, 3, 4)}
    assert verdicts == {2: "UNSURE forgotten", 3: "REPEAT seen", 4: "UNSURE given_up"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wait_ms", -1),
        ("retry_ms", -1),
        ("requests_max", -1),
        ("buffer_max", 0),
        ("gap_count_max", 0),
        ("strategy", "x"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(name, value):
    with pytest.raises(Misuse, match=f"{name} is '?{value}'?, must be"):
        OrderedChain(**{name: value})


def test_giving_up_to_what_is_no_number_is_refused():
    with pytest.raises(Misuse, match="to is"):
        OrderedChain().give_up(0, "4|0")  # type: ignore[arg-type]


def test_the_state_prints_on_one_line():
    chain = OrderedChain[str]()
    assert str(chain) == "nothing yet"
    chain.add(None, (1, 0), "a", 0)
    assert (str(chain), chain.last) == ("out to 1|0", (1, 0))
    chain.add((3, 0), (4, 0), "b", 0)
    assert repr(chain) == "<OrderedChain out to 1|0, 1 held, (1|0, 3|0] missing>"


numbers = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), min_size=2, max_size=25, unique=True).map(sorted)
settings = st.fixed_dictionaries(
    {
        "wait_ms": st.integers(0, 3),
        "retry_ms": st.integers(0, 3),
        "requests_max": st.integers(0, 3),
        "strategy": st.sampled_from(["light", "full"]),
        "buffer_max": st.integers(1, 8),
    }
)


@st.composite
def deliveries(draw):
    """A chain, and its messages in any order, some twice, some never; its first message comes first."""
    chain = draw(numbers)
    links = list(pairwise(chain))
    arrivals = draw(st.lists(st.sampled_from(links), max_size=60))
    return chain, [(None, chain[0]), *arrivals]


def deliver(owner, arrivals, pauses):
    for (previous, number), pause_ms in zip(arrivals, pauses, strict=False):
        owner.add(previous, number)
        owner.advance(pause_ms)


pauses = st.lists(st.integers(0, 3), min_size=61, max_size=61)


@given(numbers, st.randoms(use_true_random=False), st.integers(0, 20))
def test_when_every_gap_is_filled_all_messages_come_out_in_order_and_once(chain, random, repeats):
    rest = list(pairwise(chain))
    arrivals = rest + random.choices(rest, k=repeats)
    random.shuffle(arrivals)
    owner, detector = Owner(OrderedChain()), ChainDetector()
    deliver(owner, [(None, chain[0]), *arrivals], [0] * 99)
    assert owner.released() == chain
    assert owner.chain.held_count == 0
    assert owner.chain.due_ms is None
    assert owner.answers == [detector.judge(*message) for message in [(None, chain[0]), *arrivals]]


@given(deliveries(), settings, pauses)
def test_whatever_is_lost_the_rest_comes_out_ascending_and_what_was_given_up_is_told(delivery, how, pause_ms):
    chain, arrivals = delivery
    owner = Owner(OrderedChain(**how))
    deliver(owner, arrivals, pause_ms)
    owner.advance(10_000)
    out, given_up = owner.released(), owner.chain.given_up()
    assert (owner.chain.held_count, owner.chain.due_ms) == (0, None)
    assert all(lower < upper for lower, upper in pairwise(out))
    told = [(event.lower, event.upper) for event in owner.events if isinstance(event, Unfillable)]
    previous_of = {number: previous for previous, number in pairwise(chain)}
    assert given_up == [(lower, previous_of[upper]) for lower, upper in told]
    for number in chain[1 : chain.index(out[-1]) + 1]:
        assert (number in out) != any(lower < number <= upper for lower, upper in given_up)
        late = owner.add(previous_of[number], number)
        assert str(late) == ("REPEAT seen" if number in out else "UNSURE given_up")


@given(deliveries(), settings, pauses)
def test_every_message_has_one_verdict_and_every_first_is_released_once(delivery, how, pause_ms):
    _, arrivals = delivery
    owner = Owner(OrderedChain(**how), stored=arrivals[::2])
    deliver(owner, arrivals, pause_ms)
    owner.give_up()
    assert all(answer in RULES for answer in owner.answers)
    assert sum(answer.verdict is Verdict.FIRST for answer in owner.answers) == len(owner.released())
    assert max(Counter(owner.released()).values()) == 1


@given(deliveries(), settings, pauses)
def test_each_gap_found_is_resolved_and_asked_for_no_more_than_allowed(delivery, how, pause_ms):
    _, arrivals = delivery
    owner = Owner(OrderedChain(**how), stored=arrivals[::3])
    deliver(owner, arrivals, pause_ms)
    owner.advance(10_000)
    asked, is_open = 0, False
    for event in owner.events:
        if isinstance(event, GapFound):
            assert not is_open
            asked, is_open = 0, True
        elif isinstance(event, Resend):
            asked += 1
            assert is_open
            assert asked <= how["requests_max"]
        elif isinstance(event, GapResolved):
            assert is_open
            is_open = False
    assert not is_open


@given(deliveries(), settings, pauses)
def test_before_due_ms_a_tick_does_nothing(delivery, how, pause_ms):
    _, arrivals = delivery
    owner = Owner(OrderedChain(**how))
    for (previous, number), pause in zip(arrivals, pause_ms, strict=False):
        owner.add(previous, number)
        due_ms = owner.chain.due_ms
        assert (due_ms is None) == (owner.chain.held_count == 0)
        assert owner.chain.tick(10**9 if due_ms is None else due_ms - 1) == []
        owner.advance(pause)


@given(deliveries(), settings, pauses, st.integers(0, 60))
def test_a_restored_chain_goes_on_as_if_nothing_had_happened(delivery, how, pause_ms, cut):
    _, arrivals = delivery
    straight, crashed = Owner(OrderedChain(**how)), Owner(OrderedChain(**how))
    deliver(straight, arrivals, pause_ms)
    deliver(crashed, arrivals[:cut], pause_ms)
    crashed.chain = OrderedChain.restore(crashed.chain.snapshot())
    deliver(crashed, arrivals[cut:], pause_ms[cut:])
    assert (crashed.events, crashed.answers) == (straight.events, straight.answers)
    assert crashed.chain.snapshot() == straight.chain.snapshot()


garbage = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=2) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=4,
)


@given(st.lists(st.tuples(garbage, garbage, garbage), max_size=20), settings)
def test_no_message_raises(messages, how):
    chain = OrderedChain[object](**how)
    for previous, number, message in messages:
        answer, events = chain.add(previous, number, message, 0)
        assert answer in RULES
        assert events or answer.verdict is not Verdict.FIRST or chain.held_count


@pytest.mark.parametrize("message", [b"\x00\xff", "text", None, 1.5, [1, {"a": [True]}], {}], ids=repr)
def test_held_messages_that_are_bytes_or_json_survive_a_snapshot(message):
    chain = OrderedChain[object]()
    chain.add(None, (1, 0), "a", 0)
    chain.add((2, 0), (3, 0), message, 0)
    assert OrderedChain.restore(chain.snapshot()).give_up(7)[1] == Released(7, (3, 0), message)


@pytest.mark.parametrize("message", [(1, 2), {1: 2}, object(), float("nan"), [b"x"]], ids=lambda m: type(m).__name__)
def test_held_messages_that_would_come_back_changed_are_refused_at_the_snapshot(message):
    chain = OrderedChain[object]()
    chain.add(None, (1, 0), "a", 0)
    chain.add((2, 0), (3, 0), message, 0)
    with pytest.raises(Misuse, match="neither bytes nor a JSON value"):
        chain.snapshot()


def snapshot_with(**changes):
    owner = fed(1, 3, 6, 9)
    owner.give_up((3, 0))
    return json.dumps({**json.loads(owner.chain.snapshot()), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"format":1}',
        b"[" * 100_000,
        snapshot_with(format=2),
        snapshot_with(more=1),
        snapshot_with(settings={"wait_ms": 1}),
        snapshot_with(settings=None),
        snapshot_with(last="1|0"),
        snapshot_with(last=[7, 0]),
        snapshot_with(last=[2.5, 0]),
        snapshot_with(floor=None),
        snapshot_with(gap=None),
        snapshot_with(gap=[[3, 1], [5, 0], [7, 0], 5000, 0, 0]),
        snapshot_with(held=[]),
        snapshot_with(held=[[[6, 0], [5, 0], "hex", "zz"]]),
        snapshot_with(held=[[[6, 0], None, "json", "1"], [[6, 0], None, "json", "1"]]),
        snapshot_with(given_up=[[[2, 0], [1, 0]]]),
    ],
    ids=lambda data: data[-60:],
)
def test_foreign_bytes_are_bad_input_and_nothing_else(data):
    assert OrderedChain.restore(snapshot_with()).held_count == 2
    with pytest.raises(BadInput, match="ordered-chain snapshot"):
        OrderedChain.restore(data)
