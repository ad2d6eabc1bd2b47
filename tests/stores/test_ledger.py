"""What every `EntityStore`, `TokenStore` and `Ledger` promises, whatever stands behind it.

One suite. Tests that take ``tokens`` run over all token stores, those that take ``ledger`` over all that are both.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from onefold.errors import Misuse
from onefold.outbox.plans import (
    Create,
    Entity,
    Entry,
    Finish,
    Key,
    Open,
    Outgoing,
    Remove,
    Settle,
    Settled,
)
from onefold.outbox.ports import Ledger, Live, Stranded, Token, TokenStore
from tests.lib.ledgers import LEDGERS, TOKENS

MINUTE_MS = 60_000
KEY = Key("shop", "7")
OTHER = Key("shop", "8")
NAMES = ["7", " ", "order/7", "é", "ünïcødé ✓", "x" * 200, "a'b\"c\\d%_*?[", "{}", "null", "😀"]


@pytest.fixture(params=LEDGERS)
def ledgers(request):
    with LEDGERS[request.param](request) as place:
        yield place


@pytest.fixture(params=TOKENS)
def places(request):
    with TOKENS[request.param](request) as place:
        yield place


@pytest.fixture
def ledger(ledgers):
    return ledgers.store


@pytest.fixture
def tokens(places):
    return places.store


def entry(*tokens: str, attempt: str = "a1", body: Any = None) -> Entry:
    return Entry(tuple(Outgoing("shipping", body, token) for token in tokens), attempt if tokens else "")


def made(store: TokenStore, *names: str) -> None:
    """Tokens without a parent, as the first of a chain of messages has."""
    assert store.create([Create("", "first", tuple((name, "orders") for name in names), guarded=False)]) == [True]


def names(store: TokenStore, **how: Any) -> list[str]:
    return [token.token for token in store.listed(**how)]


def parents(store: TokenStore) -> dict[str, str]:
    return {token.token: token.parent for token in store.listed()}


def stored(store: Ledger, key: Key = KEY) -> Entity:
    (entity,) = store.load([key])
    return entity


def outbox_names(store: Ledger, key: Key = KEY) -> list[str]:
    return sorted(stored(store, key).outbox)


# Entities


def test_an_entity_that_never_was_has_version_0_and_nothing_in_it(ledger):
    assert ledger.load([KEY, OTHER]) == [Entity(KEY), Entity(OTHER)]


def test_what_is_persisted_is_loaded_with_a_version_one_higher(ledger):
    entity = Entity(KEY, 0, {"paid": 20}).keeping("t1", entry("c1", "c2", body={"order": 7}))
    assert ledger.persist([entity]) == [True]
    assert stored(ledger) == entity.stored
    assert ledger.persist([entity.stored._replace(state={"paid": 30})]) == [True]
    assert stored(ledger) == entity._replace(version=2, state={"paid": 30})


def test_entities_are_loaded_in_the_order_asked_for_and_as_often(ledger):
    ledger.persist([Entity(KEY, 0, 1), Entity(OTHER, 0, 2)])
    assert [entity.state for entity in ledger.load([OTHER, KEY, Key("shop", "9"), OTHER])] == [2, 1, None, 2]


def test_entities_of_two_endpoints_are_apart(ledger):
    keys = [
        Key("shop", "7"),
        Key("bank", "7"),
        Key("shop/7", ""),
        Key("", "shop/7"),
        Key("Shop", "7"),
        Key("shop", "7 "),
    ]
    assert ledger.persist([Entity(key, 0, n) for n, key in enumerate(keys)]) == [True] * len(keys)
    assert [entity.state for entity in ledger.load(keys)] == list(range(len(keys)))


@pytest.mark.parametrize("version", [0, 2, 3])
def test_a_write_of_another_version_than_the_stored_one_changes_nothing(ledger, version):
    ledger.persist([Entity(KEY, 0, "first").keeping("t1", entry("c1"))])
    before = stored(ledger)
    assert ledger.persist([Entity(KEY, version, "late").keeping("t2", entry())]) == [False]
    assert stored(ledger) == before


def test_a_version_that_never_was_cannot_be_written_over(ledger):
    assert ledger.persist([Entity(KEY, 1, "late")]) == [False]
    assert stored(ledger) == Entity(KEY)


def test_of_two_writes_of_one_entity_in_a_batch_the_second_is_stale(ledger):
    batch = [Entity(KEY, 0, "first"), Entity(KEY, 0, "second"), Entity(OTHER, 0, "other"), Entity(KEY, 1, "third")]
    assert ledger.persist(batch) == [True, False, True, True]
    assert [(entity.version, entity.state) for entity in ledger.load([KEY, OTHER])] == [(2, "third"), (1, "other")]


def test_a_persist_writes_the_whole_outbox(ledger):
    ledger.persist([Entity(KEY).keeping("t1", entry()).keeping("t2", entry("c2")).keeping("t3", entry("c3"))])
    ledger.persist([Entity(KEY, 1).keeping("t2", entry("c2", attempt="a2")).keeping("t4", entry())])
    assert stored(ledger).outbox == {"t2": entry("c2", attempt="a2"), "t4": entry()}


def test_a_deleted_entity_stays_as_a_tombstone_and_its_version_goes_on(ledger):
    ledger.persist([Entity(KEY, 0, {"paid": 20})])
    assert ledger.persist([Entity(KEY, 1, None)]) == [True]
    assert stored(ledger) == Entity(KEY, 2, None)
    assert ledger.persist([Entity(KEY, 0, "as if it were new")]) == [False]
    assert ledger.persist([Entity(KEY, 2, "anew")]) == [True]
    assert stored(ledger) == Entity(KEY, 3, "anew")


def test_an_entity_that_never_had_a_state_is_a_tombstone_at_once(ledger):
    assert ledger.persist([Entity(KEY)]) == [True]
    assert stored(ledger) == Entity(KEY, 1)


@pytest.mark.parametrize(
    "state",
    [0, False, "", [], {}, "null", 1.5, -(2**70), 2**53 + 1, "é\n\t\0😀\ud800", [[None], {"": None}], {"😀": "'\"\\"}],
    ids=repr,
)
def test_any_json_value_is_kept_as_it_is(ledger, state):
    sends = Entry((Outgoing("shipping", state, "c1"), Outgoing("billing", [state], "c2")), "a1", "desk/r1")
    ledger.persist([Entity(KEY, 0, state).keeping("t1", sends)])
    found = stored(ledger)
    assert found.state == state
    assert type(found.state) is type(state)
    assert found.outbox == {"t1": sends}


@pytest.mark.parametrize("name", NAMES)
def test_any_printable_name_is_kept_as_it_is(ledger, name):
    key = Key(name, name)
    made(ledger, name)
    sends = Entry((Outgoing(name, name, f"{name[:190]} child"),), name, name)
    assert ledger.settle([Settle(Entity(key, 0, name).keeping(name, sends), name, name)]) == [Settled.DONE]
    assert ledger.open([Open(key, name)]) == [(Entity(key, 1, name, {name: sends}), False)]
    assert ledger.holds([name, f"{name[:190]} child"]) == [False, True]


def test_what_is_done_to_a_state_in_hand_does_not_reach_what_is_stored(ledger):
    state: dict[str, Any] = {"lines": [1]}
    sends = Entry((Outgoing("shipping", {"lines": [1]}),))
    ledger.persist([Entity(KEY, 0, state).keeping("t1", sends)])
    state["lines"].append(2)
    sends.outgoing[0].body["lines"].append(2)
    stored(ledger).state["lines"].append(3)
    assert stored(ledger).state == {"lines": [1]}
    assert stored(ledger).outbox["t1"].outgoing[0].body == {"lines": [1]}


def test_a_large_state_and_a_large_outbox_are_kept(ledger):
    state = {"text": "é" * 150_000}
    sends = entry(*(f"c{n}" for n in range(1_000)), body="x" * 100)
    ledger.persist([Entity(KEY, 0, state).keeping("t1", sends)])
    assert stored(ledger) == Entity(KEY, 1, state, {"t1": sends})


def test_a_batch_of_many_is_one_call(ledger):
    keys = [Key("shop", str(n)) for n in range(1_000)]
    assert ledger.persist([Entity(key, 0, key.name) for key in keys]) == [True] * 1_000
    assert ledger.load(keys) == [Entity(key, 1, key.name) for key in keys]
    made(ledger, *(key.name for key in keys))
    assert ledger.open([Open(key, key.name) for key in keys]) == [(Entity(key, 1, key.name), True) for key in keys]
    settles = [Settle(Entity(key, 1).keeping(key.name, entry(f"c{key.name}")), key.name, key.name) for key in keys]
    assert ledger.settle(settles) == [Settled.DONE] * 1_000
    assert ledger.live().tokens == 1_000
    ledger.finish([Finish(key, key.name) for key in keys])
    assert ledger.load(keys) == [Entity(key, 2) for key in keys]


def test_of_nothing_nothing_comes(ledger):
    assert (ledger.load([]), ledger.persist([]), ledger.open([]), ledger.settle([])) == ([], [], [], [])
    ledger.finish([])


# Outbox entries that wait


def test_stranded_entries_come_oldest_first_with_the_time_they_were_first_written(ledgers):
    ledger, clock = ledgers.store, ledgers.clock
    began_ms = clock.now_ms
    ledger.persist([Entity(OTHER).keeping("t2", entry())])
    clock.pass_ms(MINUTE_MS)
    ledger.persist([Entity(KEY).keeping("t1", entry())])
    clock.pass_ms(MINUTE_MS)
    ledger.persist([Entity(OTHER, 1).keeping("t2", entry("c2")).keeping("t3", entry("c3"))])
    waiting = [
        Stranded(OTHER, "t2", began_ms, entry("c2")),
        Stranded(KEY, "t1", began_ms + MINUTE_MS, entry()),
        Stranded(OTHER, "t3", began_ms + 2 * MINUTE_MS, entry("c3")),
    ]
    assert ledger.stranded(clock.now_ms + 1, 10) == waiting
    assert ledger.stranded(clock.now_ms + 1, 2) == waiting[:2]
    assert ledger.stranded(clock.now_ms, 10) == waiting[:2], "written before that time, not at it"
    assert ledger.stranded(began_ms, 10) == []


def test_stranded_entries_of_one_endpoint(ledgers):
    ledger, later_ms = ledgers.store, ledgers.clock.now_ms + 1
    keys = [Key("shop", "7"), Key("bank", "7"), Key("shop", "8")]
    ledger.persist([Entity(key).keeping("t1", entry()) for key in keys])
    assert [each.key for each in ledger.stranded(later_ms, 10, "shop")] == [keys[0], keys[2]]
    assert ledger.stranded(later_ms, 10, "sho") == []
    assert len(ledger.stranded(later_ms, 10)) == 3


def test_entries_dated_later_than_a_time_are_stranded_too_if_asked_for(ledgers):
    ledger, clock = ledgers.store, ledgers.clock
    now_ms = clock.now_ms
    ledger.persist([Entity(KEY).keeping("t1", entry("c1"))])
    clock.pass_ms(30 * 86_400_000)
    ledger.persist([Entity(OTHER).keeping("t2", entry("c2"))])
    clock.now_ms = now_ms
    strayed = Stranded(OTHER, "t2", now_ms + 30 * 86_400_000, entry("c2"))
    assert ledger.stranded(now_ms, 10) == []
    assert ledger.stranded(now_ms, 10, after_ms=now_ms) == [strayed]
    assert ledger.stranded(now_ms, 10, "shop", after_ms=strayed.at_ms) == [], "later than that time, not at it"
    assert [each.name for each in ledger.stranded(now_ms + 1, 10, after_ms=now_ms)] == ["t1", "t2"]


def test_an_entry_of_a_settle_is_stranded_until_it_is_finished(ledgers):
    ledger, clock = ledgers.store, ledgers.clock
    ledger.settle([Settle(Entity(KEY, 0, 1).keeping("s#1", entry("c1")), "s#1", None)])
    assert ledger.stranded(clock.now_ms + 1, 10) == [Stranded(KEY, "s#1", clock.now_ms, entry("c1"))]
    ledger.finish([Finish(KEY, "s#1")])
    assert ledger.stranded(clock.now_ms + 1, 10) == []


def test_old_tombstones_are_purged_and_nothing_else(ledgers):
    ledger, clock = ledgers.store, ledgers.clock
    keys = [Key(endpoint, name) for endpoint in ("bank", "shop") for name in ("dead", "alive", "sending")]
    for key in keys:
        ledger.persist([Entity(key, 0, 1)])
        if key.name != "alive":
            ledger.persist([Entity(key, 1)._replace(outbox={"t1": entry()} if key.name == "sending" else {})])
    assert ledger.purge(clock.now_ms) == 0, "written before that time, not at it"
    clock.pass_ms(1)
    assert ledger.purge(clock.now_ms, "shop") == 1
    assert [entity.version for entity in ledger.load(keys)] == [2, 1, 2, 0, 1, 2]
    assert ledger.purge(clock.now_ms) == 1
    assert ledger.purge(clock.now_ms) == 0
    assert ledger.persist([Entity(Key("shop", "dead"), 0, "anew")]) == [True]


def test_a_tombstone_is_as_old_as_its_last_write(ledgers):
    ledger, clock = ledgers.store, ledgers.clock
    ledger.persist([Entity(KEY)])
    clock.pass_ms(MINUTE_MS)
    ledger.persist([Entity(KEY, 1)])
    assert ledger.purge(clock.now_ms) == 0
    assert ledger.purge(clock.now_ms + 1) == 1


def test_an_entity_that_was_recreated_is_not_purged(ledgers):
    ledger, clock = ledgers.store, ledgers.clock
    ledger.persist([Entity(KEY), Entity(KEY, 1, "anew")])
    assert ledger.purge(clock.now_ms + 1) == 0
    assert stored(ledger) == Entity(KEY, 2, "anew")


# Tokens


def test_a_token_exists_once_it_is_made_and_until_it_is_removed(tokens):
    assert tokens.holds(["t1", "t2"]) == [False, False]
    made(tokens, "t1")
    assert tokens.holds(["t2", "t1", "t1"]) == [False, True, True]
    tokens.remove([Remove("t1", "")])
    assert tokens.holds(["t1"]) == [False]


def test_a_token_tells_what_it_was_made_for(places):
    tokens, clock = places.store, places.clock
    made(tokens, "t1")
    clock.pass_ms(MINUTE_MS)
    tokens.create([Create("t1", "a1", (("c1", "shipping"), ("c2", "billing")))])
    assert tokens.listed() == [
        Token("c1", "shipping", "t1", "a1", clock.now_ms),
        Token("c2", "billing", "t1", "a1", clock.now_ms),
        Token("t1", "orders", "", "first", clock.now_ms - MINUTE_MS),
    ]


def test_a_guarded_birth_needs_its_parent_and_makes_all_or_nothing(tokens):
    birth = Create("t1", "a1", (("c1", "shipping"), ("c2", "billing")))
    assert tokens.create([birth]) == [False]
    assert tokens.holds(["c1", "c2", "t1"]) == [False] * 3
    made(tokens, "t1")
    assert tokens.create([birth]) == [True]
    assert tokens.holds(["c1", "c2", "t1"]) == [True] * 3


def test_a_birth_without_tokens_asks_whether_the_parent_exists(tokens):
    made(tokens, "t1")
    births = [Create("t1", "", ()), Create("t2", "", ()), Create("t2", "", (), guarded=False)]
    assert tokens.create(births) == [True, False, True]
    assert names(tokens) == ["t1"]


def test_an_unguarded_birth_needs_no_parent(tokens):
    assert tokens.create([Create("shop/log#41", "a1", (("c1", "orders"),), guarded=False)]) == [True]
    assert parents(tokens) == {"c1": "shop/log#41"}


def test_a_token_that_exists_already_is_left_as_it_is(places):
    tokens, clock = places.store, places.clock
    made(tokens, "t1", "c1")
    before = tokens.listed()
    clock.pass_ms(MINUTE_MS)
    assert tokens.create([Create("t1", "a1", (("c1", "shipping"), ("c2", "shipping")))]) == [True]
    assert [each for each in tokens.listed() if each.attempt == "first"] == before
    tokens.remove([Remove("t1", "a2")])
    assert names(tokens) == ["c1"], "c1 was never a child of t1"


def test_each_birth_of_a_batch_is_judged_alone_and_in_order(tokens):
    births = [
        Create("t1", "a1", (("c1", "shipping"),)),
        Create("", "first", (("t1", "orders"),), guarded=False),
        Create("t1", "a2", (("c2", "shipping"),)),
        Create("c1", "a1", (("d1", "shipping"),)),
        Create("c2", "a1", (("d2", "shipping"),)),
    ]
    assert tokens.create(births) == [False, True, True, False, True]
    assert parents(tokens) == {"t1": "", "c2": "t1", "d2": "c2"}


def test_removing_a_token_frees_the_children_of_one_attempt_and_sweeps_the_others(tokens):
    made(tokens, "t1", "t2")
    for attempt in ("a1", "a2", "a3"):
        tokens.create([Create("t1", attempt, ((f"{attempt} x", "shipping"), (f"{attempt} y", "billing")))])
    tokens.create([Create("t2", "a1", (("other", "shipping"),))])
    tokens.remove([Remove("t1", "a2")])
    assert parents(tokens) == {"a2 x": "", "a2 y": "", "other": "t2", "t2": ""}
    assert [token.attempt for token in tokens.listed()] == ["a2", "a2", "a1", "first"], "the attempt stays known"


def test_a_removal_of_an_attempt_without_tokens_sweeps_all_children(tokens):
    made(tokens, "t1")
    tokens.create([Create("t1", "a1", (("c1", "shipping"),))])
    tokens.remove([Remove("t1", "")])
    assert names(tokens) == []


def test_what_is_free_stays_when_the_removal_comes_again(tokens):
    made(tokens, "t1")
    tokens.create([Create("t1", "a1", (("c1", "shipping"),))])
    for attempt in ("a1", "a1", "a2", ""):
        tokens.remove([Remove("t1", attempt)])
    assert parents(tokens) == {"c1": ""}


def test_only_the_children_go_with_a_token_not_their_children(tokens):
    made(tokens, "t1")
    tokens.create([Create("t1", "a1", (("c1", "shipping"),)), Create("c1", "a1", (("d1", "shipping"),))])
    tokens.remove([Remove("t1", "a2")])
    assert parents(tokens) == {"d1": "c1"}


def test_removing_a_token_that_is_not_there_still_sees_to_its_children(tokens):
    mark = "shop/log#41"
    tokens.create([Create(mark, attempt, ((attempt, "orders"),), guarded=False) for attempt in ("a1", "a2")])
    tokens.remove([Remove("never was", "a1"), Remove(mark, "a1")])
    assert parents(tokens) == {"a1": ""}


def test_tokens_without_a_parent_are_nobodys_children(tokens):
    made(tokens, "t1")
    tokens.remove([Remove("", "a1"), Remove("", "first")])
    assert names(tokens) == ["t1"]


def test_removals_of_a_batch_are_made_in_order(tokens):
    made(tokens, "t1", "t2")
    tokens.create([Create("t1", "a1", (("c1", "x"), ("c2", "x"))), Create("c1", "b1", (("d1", "x"),))])
    tokens.remove([Remove("c1", "b1"), Remove("t1", "a1"), Remove("t1", "a2"), Remove("t2", "")])
    assert parents(tokens) == {"c2": "", "d1": ""}


def test_a_token_is_discarded_alone(tokens):
    made(tokens, "t1")
    tokens.create([Create("t1", "a1", (("c1", "shipping"),))])
    assert [tokens.discard("t1"), tokens.discard("t1"), tokens.discard("never was")] == [True, False, False]
    assert parents(tokens) == {"c1": "t1"}


def test_a_token_is_discarded_only_if_its_parent_is_the_one_named(tokens):
    made(tokens, "t1")
    tokens.create([Create("t1", "a1", (("c1", "x"), ("c2", "x")))])
    assert [tokens.discard("c1", "t2"), tokens.discard("c1", ""), tokens.discard("t1", "t1")] == [False] * 3
    assert [tokens.discard("c1", "t1"), tokens.discard("t1", "")] == [True, True]
    assert names(tokens) == ["c2"]


def test_a_discarded_child_is_not_freed_later(tokens):
    made(tokens, "t1")
    tokens.create([Create("t1", "a1", (("c1", "x"), ("c2", "x")))])
    tokens.discard("c1")
    tokens.remove([Remove("t1", "a1")])
    assert parents(tokens) == {"c2": ""}
    assert tokens.live().tokens == 1


def test_tokens_are_listed_by_name_and_page_by_page(tokens):
    many = sorted(f"{n * 7919 % 1_000:03}" for n in range(25))
    made(tokens, *reversed(many))
    pages, after = [], ""
    while page := names(tokens, after=after, limit=10):
        pages.append(page)
        after = page[-1]
    assert pages == [many[:10], many[10:20], many[20:]]
    assert names(tokens, after=many[3] + " ", limit=2) == many[4:6], "what lies behind need not exist"


def test_names_are_listed_in_the_order_of_their_code_points(tokens):
    many = ["A", "B", "Z", "_", "a", "a b", "aa", "a-b", "b", "é", "ÿ", "中", "😀"]
    made(tokens, *many)
    assert names(tokens) == sorted(many)
    assert names(tokens, after="a") == [name for name in sorted(many) if name > "a"]


def test_orphans_have_a_parent_that_has_no_token(tokens):
    made(tokens, "t1", "t2")
    tokens.create([Create("t1", "a1", (("c1", "x"), ("c2", "x"))), Create("t2", "a1", (("c3", "x"),))])
    tokens.create([Create("shop/log#41", "a1", (("c4", "x"),), guarded=False)])
    tokens.discard("t1")
    assert names(tokens, orphans=True) == ["c1", "c2", "c4"]
    assert names(tokens, orphans=True, limit=2) == ["c1", "c2"]
    assert names(tokens, orphans=True, after="c2") == ["c4"]
    tokens.remove([Remove("shop/log#41", "a1"), Remove("t1", "a2")])
    assert names(tokens, orphans=True) == []
    assert names(tokens) == ["c3", "c4", "t2"]


def test_live_counts_the_tokens_and_knows_the_oldest(places):
    tokens, clock = places.store, places.clock
    assert tokens.live() == Live(0, None)
    made(tokens, "t1")
    began_ms = clock.now_ms
    clock.pass_ms(MINUTE_MS)
    tokens.create([Create("t1", "a1", (("c1", "x"), ("c2", "x")))])
    assert tokens.live() == Live(3, began_ms)
    tokens.remove([Remove("t1", "a1")])
    assert tokens.live() == Live(2, began_ms + MINUTE_MS)
    tokens.remove([Remove("c1", ""), Remove("c2", "")])
    assert tokens.live() == Live(0, None)


def test_many_tokens_in_one_batch(tokens):
    births = [Create("", f"a{n}", ((f"t{n}", "orders"),), guarded=False) for n in range(2_000)]
    assert tokens.create(births) == [True] * 2_000
    assert (
        tokens.create([Create(f"t{n}", "a1", ((f"c{n}", "x"),)) for n in range(2_100)])
        == [True] * 2_000 + [False] * 100
    )
    assert tokens.holds([f"t{n}" for n in range(2_001)]) == [True] * 2_000 + [False]
    tokens.remove([Remove(f"t{n}", f"a{n % 2}") for n in range(2_000)])
    assert tokens.live().tokens == 1_000


def test_one_birth_of_many_tokens(tokens):
    made(tokens, "t1")
    assert tokens.create([Create("t1", "a1", tuple((f"c{n}", "x") for n in range(1_000)))]) == [True]
    assert tokens.live().tokens == 1_001
    tokens.remove([Remove("t1", "a2")])
    assert tokens.live().tokens == 0


def test_of_no_tokens_nothing_comes(tokens):
    assert (tokens.holds([]), tokens.create([]), tokens.listed()) == ([], [], [])
    tokens.remove([])


# Both at once


def test_open_sees_an_entity_and_its_token(ledger):
    made(ledger, "t1")
    entity = Entity(KEY, 0, {"paid": 20}).keeping("t0", entry("c0"))
    ledger.persist([entity])
    steps = [Open(KEY, "t1"), Open(OTHER, "t2"), Open(OTHER, "t1"), Open(KEY, "t2")]
    new = Entity(OTHER)
    assert ledger.open(steps) == [
        (entity.stored, True),
        (new, False),
        (new, True),
        (entity.stored, False),
    ]


def test_a_settle_spends_the_token_writes_the_entity_and_makes_free_tokens(ledgers):
    ledger, clock = ledgers.store, ledgers.clock
    made(ledger, "t1")
    clock.pass_ms(MINUTE_MS)
    entity = Entity(KEY, 0, {"paid": 20}).keeping("t1", entry("c1", "c2", attempt="a7"))
    assert ledger.settle([Settle(entity, "t1", "t1")]) == [Settled.DONE]
    assert ledger.open([Open(KEY, "t1")]) == [(entity.stored, False)]
    assert ledger.listed() == [Token(name, "shipping", "", "a7", clock.now_ms) for name in ("c1", "c2")]


def test_a_settle_that_sends_nothing_leaves_no_entry(ledger):
    made(ledger, "t1")
    assert ledger.settle([Settle(Entity(KEY, 0, 1), "t1", "t1")]) == [Settled.DONE]
    assert stored(ledger) == Entity(KEY, 1, 1)
    assert ledger.live().tokens == 0


def test_a_settle_without_a_token_is_guarded_by_the_version_alone(ledger):
    entity = Entity(Key("shop", "log"), 0, {"mark": 41}).keeping("shop/log#41", entry("c1"))
    assert ledger.settle([Settle(entity, "shop/log#41", None)] * 2) == [Settled.DONE, Settled.STALE]
    assert stored(ledger, entity.key) == entity.stored
    assert names(ledger) == ["c1"]


@pytest.mark.parametrize(
    ("token", "version", "answer"),
    [("t1", 0, Settled.STALE), ("t1", 2, Settled.STALE), ("t2", 1, Settled.NO_TOKEN), ("t2", 0, Settled.NO_TOKEN)],
)
def test_a_settle_that_comes_too_late_changes_nothing(ledger, token, version, answer):
    made(ledger, "t1")
    ledger.persist([Entity(KEY, 0, "first").keeping("t0", entry("c0"))])
    before = stored(ledger), ledger.listed()
    assert ledger.settle([Settle(Entity(KEY, version, "late").keeping(token, entry("c1")), token, token)]) == [answer]
    assert (stored(ledger), ledger.listed()) == before


def test_a_new_entity_is_not_settled_without_its_token(ledger):
    assert ledger.settle([Settle(Entity(KEY, 0, 1), "t1", "t1")]) == [Settled.NO_TOKEN]
    assert ledger.settle([Settle(Entity(KEY, 5, 1), "t1", "t1")]) == [Settled.NO_TOKEN]
    assert stored(ledger) == Entity(KEY)


def test_a_settle_of_a_version_that_never_was_is_stale(ledger):
    made(ledger, "t1")
    assert ledger.settle([Settle(Entity(KEY, 1, 1), "t1", "t1")]) == [Settled.STALE]
    assert (stored(ledger), names(ledger)) == (Entity(KEY), ["t1"])


def test_each_settle_of_a_batch_is_judged_alone_and_in_order(ledger):
    made(ledger, "t1", "t2", "t3")
    steps = [
        Settle(Entity(KEY, 0, 1).keeping("t1", entry("c1")), "t1", "t1"),
        Settle(Entity(KEY, 0, 2).keeping("t2", entry("c2")), "t2", "t2"),
        Settle(Entity(OTHER, 0, 1).keeping("t1", entry("c3")), "t1", "t1"),
        Settle(Entity(OTHER, 0, 3), "t3", "t3"),
        Settle(Entity(KEY, 1, 4), "c1", "c1"),
        Settle(Entity(KEY, 2, 5), "c2", "c2"),
    ]
    done, stale, no_token = Settled
    assert ledger.settle(steps) == [done, stale, no_token, done, done, no_token]
    assert ledger.load([KEY, OTHER]) == [Entity(KEY, 2, 4, {"t1": entry("c1")}), Entity(OTHER, 1, 3)]
    assert names(ledger) == ["t2"]


def test_a_settle_leaves_the_entries_of_other_messages_as_the_store_has_them(ledger):
    # A finish changes no version: what the settle knows of the other entries may be older than what is stored.
    ledger.persist([Entity(KEY).keeping("t1", entry("c1")).keeping("t2", entry("c2"))])
    seen = stored(ledger)
    ledger.finish([Finish(KEY, "t1")])
    made(ledger, "t3")
    assert ledger.settle([Settle(seen.keeping("t3", entry("c3")), "t3", "t3")]) == [Settled.DONE]
    assert outbox_names(ledger) == ["t2", "t3"]
    made(ledger, "t4")
    assert ledger.settle([Settle(Entity(KEY, 2), "t4", "t4")]) == [Settled.DONE]
    assert outbox_names(ledger) == ["t2", "t3"]
    assert "c1" not in names(ledger)


def test_a_settle_leaves_a_token_that_exists_already_as_it_is(ledger):
    made(ledger, "t1", "c1")
    ledger.settle([Settle(Entity(KEY).keeping("t1", entry("c1", "c2")), "t1", "t1")])
    assert [(token.token, token.to) for token in ledger.listed()] == [("c1", "orders"), ("c2", "shipping")]


def test_a_settle_spends_its_token_alone(ledger):
    made(ledger, "t1")
    ledger.create([Create("t1", "a1", (("c1", "x"),))])
    ledger.settle([Settle(Entity(KEY), "t1", "t1")])
    assert parents(ledger) == {"c1": "t1"}, "another plan's tokens are swept by Remove"


def test_a_settle_may_delete_the_entity(ledger):
    made(ledger, "t1")
    ledger.persist([Entity(KEY, 0, 1)])
    entity = Entity(KEY, 1, None).keeping("t1", entry("c1"))
    assert ledger.settle([Settle(entity, "t1", "t1")]) == [Settled.DONE]
    assert stored(ledger) == entity.stored


def test_finish_removes_an_entry_whatever_the_version_and_leaves_it(ledger):
    ledger.persist([Entity(KEY, 0, 1).keeping("t1", entry("c1")).keeping("t2", entry())])
    steps = [Finish(KEY, "t1"), Finish(KEY, "never was"), Finish(OTHER, "t1"), Finish(KEY, "t1")]
    ledger.finish(steps)
    assert ledger.load([KEY, OTHER]) == [Entity(KEY, 1, 1, {"t2": entry()}), Entity(OTHER)]


# Who shares it


def test_another_connection_sees_all_of_it(ledgers):
    ledger, other = ledgers.store, ledgers.again()
    made(ledger, "t1")
    ledger.persist([Entity(KEY, 0, 1).keeping("t1", entry("c1"))])
    assert other.realm == ledger.realm != ""
    assert other.open([Open(KEY, "t1")]) == ledger.open([Open(KEY, "t1")])
    assert other.settle([Settle(Entity(KEY, 1, 2), "t1", "t1")]) == [Settled.DONE]
    assert ledger.persist([Entity(KEY, 1, 3)]) == [False]


def test_another_connection_sees_all_tokens(places):
    tokens, other = places.store, places.again()
    made(tokens, "t1")
    assert other.realm == tokens.realm != ""
    assert other.listed() == tokens.listed()
    other.remove([Remove("t1", "")])
    assert tokens.live() == Live(0, None)


def test_two_stores_have_two_realms(request, places):
    with TOKENS[request.node.callspec.params["places"]](request) as elsewhere:
        assert elsewhere.store.realm != places.store.realm
        made(elsewhere.store, "t1")
        assert places.store.holds(["t1"]) == [False]


def test_of_many_threads_that_settle_one_message_one_does(ledgers):
    rounds, stores = 15, [ledgers.store, ledgers.store, ledgers.again()]
    made(ledgers.store, *(f"t{n}" for n in range(rounds)))
    together, answers = threading.Barrier(len(stores)), Counter[str]()

    def work(which: int) -> None:
        for n in range(rounds):
            together.wait()
            entity, has_token = stores[which].open([Open(KEY, f"t{n}")])[0]
            if has_token:
                entity = entity._replace(state=(entity.state or 0) + 1).keeping(f"t{n}", entry(f"c{n} {which}"))
                answers[stores[which].settle([Settle(entity, f"t{n}", f"t{n}")])[0]] += 1

    in_threads(work, len(stores))
    assert answers[Settled.DONE] == rounds
    assert stored(ledgers.store).state == rounds
    assert ledgers.store.live().tokens == rounds


def test_of_many_threads_that_persist_one_version_one_does(ledgers):
    rounds, stores = 15, [ledgers.store, ledgers.store, ledgers.again()]
    together, won = threading.Barrier(len(stores)), Counter[int]()

    def work(which: int) -> None:
        for version in range(rounds):
            together.wait()
            if stores[which].persist([Entity(KEY, version, which)]) == [True]:
                won[version] += 1

    in_threads(work, len(stores))
    assert won == Counter(range(rounds))


def test_batches_that_cross_each_other_do_not_lock_each_other_out(ledgers):
    stores, keys = [ledgers.store, ledgers.again()], [Key("shop", str(n)) for n in range(20)]
    rounds, done = 10, Counter[bool]()
    made(ledgers.store, *(f"{which} {n} {key.name}" for which in range(2) for n in range(rounds) for key in keys))

    def work(which: int) -> None:
        order = keys if which else keys[::-1]
        for n in range(rounds):
            names = [f"{which} {n} {key.name}" for key in order]
            opened = stores[which].open([Open(key, name) for key, name in zip(order, names, strict=True)])
            steps = [Settle(entity, name, name) for (entity, _), name in zip(opened, names, strict=True)]
            done.update(answer is Settled.DONE for answer in stores[which].settle(steps))
            stores[which].remove([Remove(name, "") for name in (names if n % 2 else names[::-1])])

    in_threads(work, 2)
    assert done.total() == 2 * rounds * len(keys)
    assert sum(entity.version for entity in ledgers.store.load(keys)) == done[True]
    assert ledgers.store.live().tokens == 0


def test_a_guarded_birth_and_the_removal_of_its_parent_leave_no_orphan(places):
    rounds, stores = 40, [places.store, places.again()]
    made(places.store, *(f"t{n}" for n in range(rounds)))
    together = threading.Barrier(2)

    def work(which: int) -> None:
        for n in range(rounds):
            together.wait()
            if which:
                stores[which].remove([Remove(f"t{n}", "none")])
            else:
                stores[which].create([Create(f"t{n}", "a1", ((f"c{n}", "x"), (f"d{n}", "x")))])

    in_threads(work, 2)
    assert places.store.listed() == []


def in_threads(work: Callable[[int], None], many: int) -> None:
    """Raises what the first of them raised."""
    failed: list[BaseException] = []

    def guarded(which: int) -> None:
        try:
            work(which)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(which,), daemon=True) for which in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads) or failed, "still at it after a minute"
    if failed:
        raise failed[0]


# The end


def test_who_closes_a_ledger_may_do_so_twice_and_then_do_nothing_else(ledger):
    ledger.close()
    ledger.close()
    for call in (
        lambda: ledger.load([KEY]),
        lambda: ledger.persist([Entity(KEY)]),
        lambda: ledger.stranded(0, 1),
        lambda: ledger.purge(0),
        lambda: ledger.open([Open(KEY, "t1")]),
        lambda: ledger.settle([Settle(Entity(KEY), "t1", "t1")]),
        lambda: ledger.finish([Finish(KEY, "t1")]),
    ):
        with pytest.raises(Misuse, match="closed"):
            call()


def test_who_closes_a_token_store_may_do_so_twice_and_then_do_nothing_else(tokens):
    tokens.close()
    tokens.close()
    for call in (
        lambda: tokens.realm,
        lambda: tokens.holds(["t1"]),
        lambda: tokens.create([Create("", "a1", (("t1", "x"),), guarded=False)]),
        lambda: tokens.remove([Remove("t1", "")]),
        lambda: tokens.discard("t1"),
        lambda: tokens.listed(),
        lambda: tokens.live(),
    ):
        with pytest.raises(Misuse, match="closed"):
            call()
