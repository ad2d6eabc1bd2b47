"""The plans as lists of steps: what each asks of the world, in which order, for every answer that it may get."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.outbox import (
    RECOVERIES,
    Entity,
    Entry,
    Handled,
    Key,
    Message,
    Outcome,
    Outgoing,
    Settled,
    Taken,
    checkpointed,
    pack_entry,
    parented,
    resumed,
    sourced,
    sourced_at_once,
    transactional,
    unpack_entry,
)
from onefold.outbox.plans import (
    Acknowledge,
    Create,
    Handle,
    HandlerFailed,
    Holds,
    Load,
    Persist,
    pack_message,
    unpack_message,
)

KEY = Key("billing", "7")
MESSAGE = Message("t1", "orders", {"order": 7})
NEW = Entity(KEY)
OUT = Outgoing("shipping", {"order": 7})
HANDLED = Handled({"paid": 20}, (OUT,))
QUIET = Handled({"paid": 20}, ())
KEPT = Entry((OUT,))
FIXED = KEPT.checkpointed("a1", ("t2",))


def told(attempt, *answers):
    """The steps that an attempt makes when it is given these answers, and how it ends; None: it was cut off."""
    names, given_so_far = [], iter(answers)
    step = next(attempt)
    while True:
        names.append(type(step).__name__.lower())
        try:
            step = attempt.send(next(given_so_far))
        except StopIteration as stop:
            return " ".join(names), stop.value


def made(attempt, *answers):
    """The steps themselves."""
    steps = [next(attempt)]
    for answer in answers:
        steps.append(attempt.send(answer))
    return steps


def test_a_stranded_entry_of_a_message_is_guarded_by_its_token_and_one_of_a_source_by_nothing():
    for recover in RECOVERIES.values():
        for name, guarded in (("t1", True), ("orders.log#41", False)):
            stranded = Entity(KEY, 3, {"paid": 20}).keeping(name, KEPT)
            *_, create = made(recover(KEY, name), stranded, ("a1", "t2"))
            assert create == Create(name, "a1", (("t2", "shipping"),), guarded)


def test_tokens_are_written_down_before_anything_is_sent_with_them():
    stranded = Entity(KEY, 3, {"paid": 20}).keeping("t1", KEPT)
    *_, persist, dispatch, _, cleared = made(resumed(KEY, "t1"), stranded, ("a1", "t2"), True, True, None, None)
    assert persist == Persist(stranded.keeping("t1", FIXED))
    assert [message.token for message in dispatch.messages] == ["t2"]
    assert cleared == Persist(stranded.stored.without("t1"))


def test_the_published_listing_has_seven_round_trips():
    answers = [NEW, True, HANDLED, True, ("a1", "t2"), True, True, None, None, True, None]
    steps = "load holds handle persist fresh create persist dispatch remove persist acknowledge"
    assert told(checkpointed(KEY, MESSAGE), *answers) == (steps, Outcome.APPLIED)


def test_tokens_with_parents_save_two_of_them():
    answers = [NEW, HANDLED, ("a1", "t2"), True, True, None, None, True, None]
    steps = "load handle fresh create persist dispatch remove persist acknowledge"
    assert told(parented(KEY, MESSAGE), *answers) == (steps, Outcome.APPLIED)


def test_one_database_needs_three():
    answers = [(NEW, True), HANDLED, ("a1", "t2"), Settled.DONE, None, None, None]
    steps = "open handle fresh settle dispatch finish acknowledge"
    assert told(transactional(KEY, MESSAGE), *answers) == (steps, Outcome.APPLIED)


def test_a_message_that_sends_nothing_needs_no_tokens():
    quiet = [(NEW, True), QUIET, Settled.DONE, None]
    assert told(transactional(KEY, MESSAGE), *quiet) == ("open handle settle acknowledge", Outcome.APPLIED)
    steps = "load holds handle persist remove persist acknowledge"
    assert told(checkpointed(KEY, MESSAGE), NEW, True, QUIET, True, None, True, None) == (steps, Outcome.APPLIED)


def test_a_write_that_comes_too_late_is_a_conflict_wherever_it_is():
    assert told(checkpointed(KEY, MESSAGE), NEW, True, HANDLED, False)[1] is Outcome.CONFLICT
    assert told(checkpointed(KEY, MESSAGE), NEW, True, HANDLED, True, ("a1", "t2"), True, False)[1] is Outcome.CONFLICT
    late = [NEW, True, HANDLED, True, ("a1", "t2"), True, True, None, None, False]
    assert told(checkpointed(KEY, MESSAGE), *late)[1] is Outcome.CONFLICT
    assert told(parented(KEY, MESSAGE), NEW, HANDLED, ("a1", "t2"), True, False)[1] is Outcome.CONFLICT
    for settled in (Settled.STALE, Settled.NO_TOKEN):
        attempt = transactional(KEY, MESSAGE)
        assert told(attempt, (NEW, True), HANDLED, ("a1", "t2"), settled)[1] is Outcome.CONFLICT


def test_without_a_token_nothing_is_handled_and_what_is_left_is_tidied():
    left = NEW.stored.keeping("t1", FIXED)
    assert told(checkpointed(KEY, MESSAGE), NEW, False, NEW, None) == (
        "load holds load acknowledge",
        Outcome.DUPLICATE,
    )
    assert told(checkpointed(KEY, MESSAGE), left, False, left, None, True, None) == (
        "load holds load dispatch persist acknowledge",
        Outcome.TIDIED,
    )
    assert told(transactional(KEY, MESSAGE), (NEW, False), None) == ("open acknowledge", Outcome.DUPLICATE)


def test_what_was_cut_off_goes_on_where_it_was():
    before, after = NEW.stored.keeping("t1", KEPT), NEW.stored.keeping("t1", FIXED)
    fixing = [before, True, ("a2", "t3"), True, True, None, None, True, None]
    steps = "load holds fresh create persist dispatch remove persist acknowledge"
    assert told(checkpointed(KEY, MESSAGE), *fixing) == (steps, Outcome.RESUMED)
    sending = "load holds dispatch remove persist acknowledge"
    assert told(checkpointed(KEY, MESSAGE), after, True, None, None, True, None) == (sending, Outcome.RESUMED)
    assert told(resumed(KEY, "t1"), after, None, None, True) == ("load dispatch remove persist", Outcome.RESUMED)
    assert told(transactional(KEY, MESSAGE), (after, False), None, None, None) == (
        "open dispatch finish acknowledge",
        Outcome.RESUMED,
    )


def test_a_plan_finishes_what_another_plan_began():
    half_done = (NEW.stored.keeping("t1", KEPT), True)
    steps = "open fresh create persist dispatch remove finish acknowledge"
    answers = [half_done, ("a2", "t3"), True, True, None, None, None, None]
    assert told(transactional(KEY, MESSAGE), *answers) == (steps, Outcome.RESUMED)


def test_a_source_is_taken_once_per_mark():
    taken = Taken(Key("shop", "log"), 41, (OUT,))
    at_41, beyond = Entity(taken.key, 3, {"mark": 41}), Entity(taken.key, 3, {"mark": 42})
    steps = "load persist fresh create persist dispatch remove persist"
    answers = [Entity(taken.key), True, ("a1", "t2"), True, True, None, None, True]
    assert told(sourced(taken), *answers) == (steps, Outcome.APPLIED)
    assert told(sourced(taken), at_41) == ("load", Outcome.DUPLICATE)
    assert told(sourced(taken), beyond) == ("load", Outcome.DUPLICATE)
    left = at_41.keeping(taken.name, FIXED)
    assert told(sourced(taken), left, None, None, True) == ("load dispatch remove persist", Outcome.RESUMED)
    once = [Entity(taken.key), ("a1", "t2"), Settled.DONE, None, None]
    assert told(sourced_at_once(taken), *once) == ("load fresh settle dispatch finish", Outcome.APPLIED)
    assert told(sourced_at_once(taken), left, None, None, None) == ("load dispatch remove finish", Outcome.RESUMED)


def test_a_source_that_can_be_cut_in_two_ways_is_taken_from_where_it_stands():
    taken = Taken(Key("shop", "log"), 41, (OUT,), after=30)
    for plan in (sourced, sourced_at_once):
        assert told(plan(taken), Entity(taken.key, 3, {"mark": 35})) == ("load", Outcome.CONFLICT)
    at_30 = Entity(taken.key, 3, {"mark": 30})
    assert told(sourced_at_once(taken), at_30, ("a1", "t2"), Settled.DONE, None, None)[1] is Outcome.APPLIED


def test_a_source_that_must_be_known_is_not_taken_before():
    taken = Taken(Key("desk", "r1"), 1, (OUT,), known=True)
    assert told(sourced(taken), Entity(taken.key)) == ("load", Outcome.DUPLICATE)
    assert told(sourced_at_once(taken), Entity(taken.key)) == ("load", Outcome.DUPLICATE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text(max_size=8)
TIMES = st.integers(0, 2**53)
EXTRAS = {"headers": st.dictionaries(NAMES, NAMES, max_size=2), "due_ms": TIMES, "delay_ms": TIMES}
EXTRAS["priority"] = st.integers(-1_000, 1_000)


@given(st.lists(st.builds(Outgoing, NAMES, JSON, NAMES, **EXTRAS), max_size=3), NAMES, NAMES)
def test_an_entry_is_read_as_it_was_written(outgoing, attempt, origin):
    entry = Entry(tuple(outgoing), attempt, origin)
    assert unpack_entry(pack_entry(entry)) == entry


@given(st.builds(Message, NAMES, NAMES, JSON, NAMES, NAMES, NAMES, **EXTRAS), st.dictionaries(NAMES, JSON, max_size=2))
def test_a_message_is_read_as_it_was_written_also_if_a_later_version_says_more(message, more):
    payload = pack_message(message)
    assert unpack_message(payload) == message
    later = {**{f"x-{name}": value for name, value in more.items()}, **json.loads(payload)}
    assert unpack_message(json.dumps(later).encode()) == message


def failed(failure):
    attempt = parented(KEY, MESSAGE)
    assert made(attempt, NEW) == [Load(KEY), Handle(None)]
    assert attempt.throw(failure) == Holds("t1")
    return attempt


def test_a_copy_that_comes_too_late_need_not_please_the_handler():
    attempt = failed(HandlerFailed("orders: ValueError"))
    assert [attempt.send(False), attempt.send(NEW)] == [Load(KEY), Acknowledge()]
    with pytest.raises(StopIteration) as stop:
        attempt.send(None)
    assert stop.value.value is Outcome.DUPLICATE


def test_a_handler_that_fails_while_the_token_is_there_ends_the_attempt():
    attempt = failed(failure := HandlerFailed("orders: ValueError"))
    with pytest.raises(HandlerFailed) as error:
        attempt.send(True)
    assert error.value is failure
