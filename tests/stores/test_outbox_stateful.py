"""Every ledger and token store against plain dicts: whatever is done in whatever order, both say the same."""

from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from onefold.outbox.plans import Create, Entity, Entry, Finish, Key, Open, Outgoing, Remove, Settle, Settled
from onefold.outbox.ports import Live, Token
from tests.lib.examples import examples
from tests.lib.ledgers import LEDGERS, TOKENS

# Few names, so that they meet.
NAMES = ("t1", "t2", "t3", "é", "T1")
ATTEMPTS = ("a1", "a2")
KEYS = tuple(Key(endpoint, name) for endpoint in ("shop", "bank") for name in ("7", "8"))
EXAMPLES = {"memory": 80, "sqlite": 50, "postgres": 8, "redis": 12}
STEPS = 25


def batches(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, min_size=1, max_size=4)


names = st.sampled_from(NAMES)
made = st.tuples(names, st.sampled_from(["orders", "shipping"]))
births = st.builds(
    Create,
    st.sampled_from(["", "shop/log#41", *NAMES]),
    st.sampled_from(ATTEMPTS),
    st.lists(made, max_size=3).map(tuple),
    st.booleans(),
)
removals = st.builds(Remove, st.sampled_from(["shop/log#41", *NAMES]), st.sampled_from(["", *ATTEMPTS]))
sends = st.lists(st.tuples(st.just("x"), st.integers(0, 2), names), max_size=2).map(
    lambda triples: tuple(Outgoing(*triple) for triple in triples)
)
entries = st.tuples(sends, st.sampled_from(ATTEMPTS), st.sampled_from(["", "desk/r1"])).map(lambda parts: Entry(*parts))
outboxes = st.dictionaries(names, entries, max_size=2)


class TokensMachine(RuleBasedStateMachine):
    """Tokens by name."""

    open_place: Any

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.place = self.stack.enter_context(self.open_place())
        self.store = self.place.store
        self.tokens: dict[str, Token] = {}

    def teardown(self) -> None:
        self.stack.close()

    @rule(ms=st.integers(1, 5))
    def wait(self, ms: int) -> None:
        self.place.clock.pass_ms(ms)

    @rule(batch=batches(births))
    def create(self, batch: list[Create]) -> None:
        assert self.store.create(batch) == [self.born(birth) for birth in batch]

    @rule(batch=batches(removals))
    def remove(self, batch: list[Remove]) -> None:
        self.store.remove(batch)
        for token, attempt in batch:
            self.tokens.pop(token, None)
            for child in [each for each in self.tokens.values() if each.parent == token]:
                if child.attempt == attempt:
                    self.tokens[child.token] = child._replace(parent="")
                else:
                    del self.tokens[child.token]

    @rule(token=names, parent=st.sampled_from([None, "", *NAMES]))
    def discard(self, token: str, parent: str | None) -> None:
        known = self.tokens.get(token)
        expected = known is not None and parent in (None, known.parent)
        assert self.store.discard(token, parent) == expected
        if expected:
            del self.tokens[token]

    @rule(after=st.sampled_from(["", *NAMES]), limit=st.integers(1, 3), orphans=st.booleans())
    def page(self, after: str, limit: int, orphans: bool) -> None:
        found = [self.tokens[token] for token in sorted(self.tokens) if token > after]
        if orphans:
            found = [each for each in found if each.parent and each.parent not in self.tokens]
        assert self.store.listed(after=after, limit=limit, orphans=orphans) == found[:limit]

    @rule()
    def go_on_elsewhere(self) -> None:
        self.store = self.place.again()

    @invariant()
    def the_tokens_are_the_same(self) -> None:
        assert self.store.listed() == sorted(self.tokens.values())
        assert self.store.holds(NAMES) == [name in self.tokens for name in NAMES]
        assert self.store.live() == Live(len(self.tokens), min((t.at_ms for t in self.tokens.values()), default=None))

    def born(self, birth: Create) -> bool:
        if birth.guarded and birth.parent not in self.tokens:
            return False
        for token, to in birth.tokens:
            self.tokens.setdefault(token, Token(token, to, birth.parent, birth.attempt, self.place.clock()))
        return True


class LedgerMachine(TokensMachine):
    """And entities by key, with the time of their last write, and the time of each outbox entry."""

    def __init__(self) -> None:
        super().__init__()
        self.entities: dict[Key, Entity] = {}
        self.written_ms: dict[Key, int] = {}
        self.first_ms: dict[tuple[Key, str], int] = {}

    @rule(data=st.data(), size=st.integers(1, 3))
    def persist(self, data: st.DataObject, size: int) -> None:
        batch = [self.some_entity(data) for _ in range(size)]
        answers = self.store.persist(batch)
        for entity, answer in zip(batch, answers, strict=True):
            assert answer == self.right(entity)
            if answer:
                self.write(entity.stored)

    @rule(data=st.data(), size=st.integers(1, 3))
    def settle(self, data: st.DataObject, size: int) -> None:
        batch, settling = [], [data.draw(names) for _ in range(size)]
        for name in settling:
            with_token, entity, entry = data.draw(st.booleans()), self.some_entity(data), data.draw(entries)
            # Ids are new in each attempt: none of them is a token that is being spent.
            sent = entry._replace(outgoing=tuple(out for out in entry.outgoing if out.token not in settling))
            entity = entity.keeping(name, sent) if sent.outgoing else entity.without(name)
            batch.append(Settle(entity, name, name if with_token else None))
        answers = self.store.settle(batch)
        assert answers == [self.settled(step) for step in batch]

    @rule(batch=batches(st.builds(Finish, st.sampled_from(KEYS), names)))
    def finish(self, batch: list[Finish]) -> None:
        self.store.finish(batch)
        for key, name in batch:
            if key in self.entities:
                self.entities[key] = self.entities[key].without(name)
                self.first_ms.pop((key, name), None)

    @rule(ago_ms=st.integers(-1, 5), endpoint=st.sampled_from([None, "shop"]))
    def purge(self, ago_ms: int, endpoint: str | None) -> None:
        before_ms = self.place.clock() - ago_ms
        old = [
            key
            for key, entity in self.entities.items()
            if entity.state is None and not entity.outbox and self.written_ms[key] < before_ms
            if endpoint in (None, key.endpoint)
        ]
        assert self.store.purge(before_ms, endpoint) == len(old)
        for key in old:
            del self.entities[key]

    @precondition(lambda self: self.first_ms)
    @rule(ago_ms=st.integers(-1, 5), limit=st.integers(1, 3), endpoint=st.sampled_from([None, "shop"]))
    def look_for_stranded(self, ago_ms: int, limit: int, endpoint: str | None) -> None:
        before_ms = self.place.clock() - ago_ms
        old = sorted(
            (at_ms, key, name)
            for (key, name), at_ms in self.first_ms.items()
            if at_ms < before_ms and endpoint in (None, key.endpoint)
        )
        found = self.store.stranded(before_ms, limit, endpoint)
        assert [(at_ms, key, name) for key, name, at_ms, _ in found] == old[:limit]
        assert [each.entry for each in found] == [self.entities[each.key].outbox[each.name] for each in found]

    @invariant()
    def the_entities_are_the_same(self) -> None:
        expected = [self.entities.get(key, Entity(key)) for key in KEYS]
        assert self.store.load(KEYS) == expected
        opened = self.store.open([Open(key, name) for key, name in zip(KEYS, NAMES, strict=False)])
        assert [entity for entity, _ in opened] == expected
        assert [has_token for _, has_token in opened] == [name in self.tokens for name in NAMES[: len(KEYS)]]

    def some_entity(self, data: st.DataObject) -> Entity:
        """As a worker has it in hand: what is stored now, most of the time, with another state."""
        key, state = data.draw(st.sampled_from(KEYS)), data.draw(st.sampled_from([None, 0, "x", {"n": [1]}]))
        version = self.entities.get(key, Entity(key)).version + data.draw(st.sampled_from([0, 0, 0, -1, 1]))
        return Entity(key, max(0, version), state, data.draw(outboxes))

    def right(self, entity: Entity) -> bool:
        return self.entities.get(entity.key, Entity(entity.key)).version == entity.version

    def settled(self, step: Settle) -> Settled:
        if step.token is not None and step.token not in self.tokens:
            return Settled.NO_TOKEN
        if not self.right(step.entity):
            return Settled.STALE
        if step.token is not None:
            del self.tokens[step.token]
        key, entry = step.entity.key, step.entity.outbox.get(step.name)
        outbox = dict(self.entities.get(key, Entity(key)).outbox)
        if entry is not None:
            outbox[step.name] = entry
            self.born(Create("", entry.attempt, tuple((out.token, out.to) for out in entry.outgoing), guarded=False))
        self.write(Entity(key, step.entity.version + 1, step.entity.state, outbox))
        return Settled.DONE

    def write(self, entity: Entity) -> None:
        key, now_ms = entity.key, self.place.clock()
        for name in self.entities.get(key, Entity(key)).outbox:
            if name not in entity.outbox:
                del self.first_ms[key, name]
        for name in entity.outbox:
            self.first_ms.setdefault((key, name), now_ms)
        self.entities[key], self.written_ms[key] = entity, now_ms


def compare(machine: type[TokensMachine], kind: str, request) -> None:
    class Compared(machine):  # type: ignore[valid-type, misc]
        def open_place(self) -> Any:
            return TOKENS[kind](request)

    run_state_machine_as_test(
        Compared,
        settings=settings(
            max_examples=examples(EXAMPLES[kind]),
            stateful_step_count=STEPS,
            # A server is too slow to look for the shortest history; the found one is short enough to read.
            phases=tuple(Phase) if kind in ("memory", "sqlite") else (Phase.explicit, Phase.reuse, Phase.generate),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("kind", LEDGERS)
def test_a_ledger_does_what_dicts_would_do(kind, request):
    compare(LedgerMachine, kind, request)


@pytest.mark.parametrize("kind", sorted(TOKENS.keys() - LEDGERS.keys()))
def test_a_token_store_does_what_a_dict_would_do(kind, request):
    compare(TokensMachine, kind, request)
