import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.chains import ANSWERS
from onefold.chains.rules import FORGOTTEN, IN_ORDER, NULL_KEY, SEEN
from onefold.errors import BadInput, Misuse
from onefold.tally import BooksDoNotBalance, Tally
from onefold.verdict import Answer, Verdict

NOTES = st.lists(st.tuples(st.sampled_from(ANSWERS), st.integers(0, 1000)), max_size=12)


def tally_of(notes) -> Tally:
    tally = Tally()
    for answer, n in notes:
        tally.arrive(n)
        tally.judge(answer, n)
    return tally


TALLIES = NOTES.map(tally_of)


@given(NOTES)
def test_what_is_noted_balances_and_is_counted_once(notes):
    tally = tally_of(notes).check()
    assert tally.received == sum(n for _, n in notes) == sum(tally.count(verdict) for verdict in Verdict)
    for answer in ANSWERS:
        assert tally.count(*answer) == sum(n for noted, n in notes if noted == answer)


@given(NOTES, NOTES)
def test_tallies_of_parts_add_up_to_the_tally_of_the_whole(one, other):
    assert tally_of(one) + tally_of(other) == tally_of(one + other)


@given(TALLIES, TALLIES, TALLIES)
def test_adding_is_associative_and_commutative_and_has_a_zero(a, b, c):
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Tally() == a


@given(TALLIES, TALLIES)
def test_adding_leaves_both_sides_as_they_were(a, b):
    before = a.to_dict(), b.to_dict()
    whole = a + b
    whole.arrive(5)
    whole.judge(SEEN, 5)
    assert (a.to_dict(), b.to_dict()) == before


@given(TALLIES)
def test_a_tally_survives_json(tally):
    assert Tally.from_dict(json.loads(json.dumps(tally.to_dict()))) == tally


@given(TALLIES, st.integers(1, 50))
def test_a_message_without_a_verdict_breaks_the_law_and_both_sides_are_named(tally, lost):
    tally.received += lost
    with pytest.raises(BooksDoNotBalance, match="!=") as caught:
        tally.check()
    assert caught.value.values == {"received": tally.received, "judged": tally.received - lost}
    assert not tally.balanced
    assert Tally.from_dict(tally.to_dict()) == tally  # an honest account of a broken law can be read


@given(TALLIES, st.integers(1, 50), st.integers(1, 50))
def test_each_column_is_counted_by_itself_so_that_the_law_can_break_either_way(tally, lost, doubled):
    tally.arrive(lost)
    assert (tally.pending, tally.balanced) == (lost, False)
    tally.judge(SEEN, lost)
    assert (tally.pending, tally.balanced) == (0, True)
    tally.judge(SEEN, doubled)
    assert (tally.pending, tally.balanced) == (-doubled, False)


def test_a_broken_part_breaks_the_whole():
    assert not (Tally(2, {SEEN: 1}) + Tally(3, {IN_ORDER: 3})).balanced


def test_the_books_print_on_one_line():
    tally = Tally(1_235, {IN_ORDER: 1_230, SEEN: 2, FORGOTTEN: 2, NULL_KEY: 1})
    assert str(tally) == "1,235 in = 1,230 first + 2 repeat + 2 unsure + 1 reject"
    tally.received += 1
    assert str(tally) == "1,236 in != 1,230 first + 2 repeat + 2 unsure + 1 reject"


def test_lines_come_by_verdict_in_the_order_of_the_law_then_the_largest_first():
    tally = Tally(13, {NULL_KEY: 4, SEEN: 1, Answer(Verdict.REPEAT, "below_floor"): 3, IN_ORDER: 5, FORGOTTEN: 0})
    reasons = [(answer.reason, n) for answer, n in tally]
    assert reasons == [("in_order", 5), ("below_floor", 3), ("seen", 1), ("null_key", 4)]


def test_a_negative_count_is_refused_wherever_it_comes_from():
    with pytest.raises(BadInput, match="-1"):
        Tally(-1)
    with pytest.raises(BadInput, match="-2"):
        Tally(0, {SEEN: -2})
    tally = Tally()
    for add in (tally.arrive, lambda n: tally.judge(SEEN, n)):
        with pytest.raises(Misuse, match="-3") as caught:
            add(-3)
        assert caught.value.values == {"n": -3}
    assert tally == Tally()


HONEST = Tally(6, {IN_ORDER: 3, SEEN: 2, FORGOTTEN: 1}).to_dict()


def line(reason="seen", count: object = 2, verdict="REPEAT"):
    return {"verdict": verdict, "reason": reason, "count": count}


@pytest.mark.parametrize(
    "lie",
    [
        {"first": 4},
        {"repeat": 1},
        {"balanced": False},
        {"in": 7},  # while it still says "balanced"
        {"reasons": []},
        {"reasons": [*HONEST["reasons"], line(count=0)]},
        {"reasons": [line(count=7), *HONEST["reasons"]]},  # one reason twice: which of the two lines is it?
        {"reasons": [*HONEST["reasons"][:2], line("forgotten", 1, "MAYBE")]},
    ],
)
def test_a_tally_that_contradicts_itself_is_refused(lie):
    with pytest.raises(BadInput):
        Tally.from_dict({**HONEST, **lie})


@pytest.mark.parametrize("count", [-2, 2.5, 2.0, "2", None, True, math.inf, math.nan, [2]])
@pytest.mark.parametrize("place", ["in", "repeat", "line"])
def test_a_count_that_is_no_count_is_refused(place, count):
    change = {"reasons": [*HONEST["reasons"][::2], line(count=count)]} if place == "line" else {place: count}
    with pytest.raises(BadInput):
        Tally.from_dict({**HONEST, **change})


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=3), x)
    )
)
def test_what_is_no_tally_at_all_is_bad_input(data):
    with pytest.raises(BadInput):
        Tally.from_dict(data)


@pytest.mark.parametrize("key", sorted(HONEST))
def test_a_tally_with_a_part_missing_is_refused(key):
    with pytest.raises(BadInput, match=key):
        Tally.from_dict({k: v for k, v in HONEST.items() if k != key})
