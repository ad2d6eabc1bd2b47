"""What must hold of every history: the engine against the plain set of stored sequences that it replaces."""

from collections import defaultdict
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.producers import Kind, SequenceEntry, Sequences, recover
from tests.lib.examples import examples

MEMORIES = pytest.mark.parametrize("memory", ["highest", "gaps"])
NAMES = st.sampled_from("pqr")
PUSH = st.tuples(st.just("push"), NAMES, st.integers(0, 14), st.integers(0, 5))
WHICH = st.integers(0, 99)  # of what is pending, modulo how much there is
STORE = st.tuples(st.sampled_from(["persist", "persist", "fail"]), WHICH)
CRASH = st.tuples(st.just("crash"))
FAST = settings(max_examples=examples(150), deadline=None)


def ranges(numbers):
    """The maximal runs of a set of integers, both ends inclusive."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    return tuple((run[0], run[-1]) for run in runs)


class Model:
    """A topic that remembers everything: what was stored, in a set, and what is pending, in a list."""

    def __init__(self, memory, jump_max=None):
        self.memory = memory
        self.jump_max = jump_max
        self.stored = defaultdict(set)
        self.pending = []
        self.fenced = False
        self.log = []

    def push(self, producer, low, high):
        """Verdict, reason and parts, straight from the rules."""
        stored = self.stored[producer]
        out = [part for name, part in self.pending if name == producer]
        if self.fenced:
            return "UNSURE", "fenced", ()
        head = max(stored, default=-1)
        taken = range(head + 1) if self.memory == "highest" else stored
        new = set(range(low, high + 1)).difference(taken)
        if not new:
            return "REPEAT", "behind_highest" if self.memory == "highest" else "seen", ()
        flying = {n for start, end in out for n in range(start, end + 1)}
        if self.memory == "highest":
            flying = set(range(max(flying, default=-1) + 1))
        highest = max(head, *(end for _, end in out), -1)
        if self.jump_max is not None and highest >= 0 and min(new) - highest > self.jump_max:
            return "REJECT", "jump_too_far", ()
        if new & flying:
            return "UNSURE", "in_flight", ()
        parts = ranges(new)
        self.pending += [(producer, part) for part in parts]
        if len(new) <= high - low:
            return "FIRST", "rest_of_batch", parts
        return "FIRST", "new" if low > head else "fills_gap", parts

    def land(self, which):
        return self.pending.pop(which % len(self.pending))

    def settle(self):
        self.fenced = self.fenced and bool(self.pending)


def play(memory, ops, **limits):
    """Run ops on engine and model side by side; yield both after each."""
    s, model = Sequences(memory, **limits), Model(memory, limits.get("jump_max"))
    for op, *args in ops:
        if op == "push":
            producer, low, extra = args
            found, wanted = s.push(producer, low, high=low + extra), model.push(producer, low, low + extra)
            assert (*found, found.parts) == wanted
        elif op == "crash":
            s = recover(None, enumerate(model.log), memory=memory, **limits).sequences
            model.pending, model.fenced = [], False
        elif model.pending:
            producer, (low, high) = model.land(args[0])
            sequence = low + args[0] % (high - low + 1)  # any sequence of the part names it
            if op == "persist":
                s.persist(producer, sequence)
                model.stored[producer].update(range(low, high + 1))
                model.log += [SequenceEntry(Kind.MESSAGE, producer, n) for n in range(low, high + 1)]
            else:
                s.fail(producer, sequence)
                model.fenced = True
            model.settle()
        yield s, model


@MEMORIES
@FAST
@given(ops=st.lists(st.one_of(PUSH, PUSH, STORE, STORE, CRASH), max_size=60), jump_max=st.none() | st.integers(1, 9))
def test_the_engine_answers_like_the_plain_set(memory, ops, jump_max):
    for s, model in play(memory, ops, jump_max=jump_max):
        heads = {name: max(stored) for name, stored in model.stored.items() if stored}
        assert s.persisted == heads
        assert s.pending == len(model.pending)
        assert s.fenced == model.fenced
        pushed = dict(heads)
        for name, (_, high) in model.pending:
            pushed[name] = max(pushed.get(name, -1), high)
        if not s.fenced:
            assert s.pushed == pushed


@MEMORIES
@FAST
@given(ops=st.lists(st.one_of(PUSH, STORE), max_size=40))
def test_when_all_writes_are_back_every_failed_one_can_be_tried_again(memory, ops):
    *_, (s, model) = play(memory, [("crash",), *ops])
    while model.pending:
        producer, (low, _) = model.land(0)
        s.fail(producer, low)
    assert s.pushed == s.persisted
    assert s.pending == 0
    for producer in "pqr":
        for sequence in range(20):
            above = sequence > max(model.stored[producer], default=-1)
            new = above if memory == "highest" else sequence not in model.stored[producer]
            assert (s.push(producer, sequence).verdict == "FIRST") == new


TIDY = st.tuples(st.just("purge"), st.integers(0, 40))
FORGETFUL = st.fixed_dictionaries(
    {
        "gap_count_max": st.integers(1, 3),
        "producers_max": st.integers(1, 3),
        "floors_count": st.sampled_from([1, 2, 64]),
    }
)


@MEMORIES
@FAST
@given(ops=st.lists(st.one_of(PUSH, PUSH, STORE, STORE, CRASH, TIDY), max_size=60), limits=FORGETFUL)
def test_forgetting_never_counts_anything_twice_and_never_calls_new_things_known(memory, ops, limits):
    s, log = Sequences(memory, **limits), []
    ever: defaultdict[str, set[int]] = defaultdict(set)
    pending: list[tuple[str, tuple[int, int]]] = []
    for now, (op, *args) in enumerate(ops):
        if op == "push":
            producer, low, extra = args
            answer = s.push(producer, low, high=low + extra)
            new = {n for start, end in answer.parts for n in range(start, end + 1)}
            assert not new & ever[producer]
            assert bool(new) == (answer.verdict == "FIRST")
            if answer.verdict == "REPEAT":
                known = ever[producer] if memory == "gaps" else range(max(ever[producer]) + 1)
                assert set(range(low, low + extra + 1)) <= set(known)
            pending += [(producer, part) for part in answer.parts]
        elif op == "purge":
            log.append(SequenceEntry(Kind.PURGE, sequence=args[0]))
            s.apply(log[-1])
        elif op == "crash":
            pending.clear()
            s.forget_overlay()
        elif pending:
            producer, (low, high) = pending.pop(args[0] % len(pending))
            if op == "fail":
                s.fail(producer, low)
            else:
                s.persist(producer, low, time_ms=now)
                ever[producer].update(range(low, high + 1))
                log += [SequenceEntry(Kind.MESSAGE, producer, n, time_ms=now) for n in range(low, high + 1)]
        assert len(s) <= limits["producers_max"] + len({name for name, _ in pending})
    assert recover(None, enumerate(log), memory=memory, **limits).sequences == s


EPOCHS = st.one_of(
    st.tuples(st.just("open"), NAMES),
    st.tuples(st.just("opened"), WHICH, st.booleans()),
    st.tuples(st.just("push"), NAMES, st.none() | st.integers(0, 6)),
    st.tuples(st.just("landed"), WHICH),
    st.tuples(st.just("purge"), st.just(2**40)),
)


@FAST
@given(ops=st.lists(EPOCHS, max_size=60))
def test_no_epoch_before_the_newest_ever_writes_and_none_is_given_out_twice(ops):
    s = Sequences(floors_count=2)
    newest: defaultdict[str, int] = defaultdict(int)
    opening, flying, purged = [], [], False
    for place, (op, *args) in enumerate(ops):
        if op == "open":
            opening.append((args[0], s.push_open(args[0])))
            assert opening[-1][1] > newest[args[0]]
        elif op == "opened" and opening:
            producer, epoch = opening.pop(args[0] % len(opening))
            if args[1]:
                s.persist_open(producer, epoch, 0)
                newest[producer] = max(newest[producer], epoch)
            else:
                s.fail_open(producer, epoch)
        elif op == "push":
            producer, epoch = args
            answer = s.push(producer, place, epoch=epoch)
            if answer.verdict == "FIRST":
                assert (epoch or 0) == newest[producer] or (purged and not epoch)
                assert producer not in [name for name, _ in opening]
                flying.append((producer, place, epoch or 0))
            elif epoch and epoch < newest[producer] and not purged:
                assert answer == ("REJECT", "stale_epoch")
        elif op == "landed" and flying:
            producer, sequence, epoch = flying.pop(args[0] % len(flying))
            s.persist(producer, sequence, epoch=epoch)
        elif op == "purge":
            s.apply(SequenceEntry(Kind.PURGE, sequence=args[0]))
            purged = True


@FAST
@given(
    ops=st.lists(
        st.tuples(st.sampled_from(["push", "push", "persist", "fail"]), st.sampled_from("klmn"), st.integers(1, 2)),
        max_size=60,
    ),
    steps=st.lists(st.integers(0, 12), min_size=60, max_size=60),
)
def test_keys_answer_like_a_table_with_times(ops, steps):
    s, now = Sequences(keys_ms=30, keys_max=3), 0
    table: dict[str, tuple[int, int]] = {}
    pending: dict[str, int] = {}
    log = []
    for (op, key, digest), step in zip(ops, steps, strict=False):
        now += step
        live = {k: d for k, (time, d) in table.items() if time + 30 > now}
        if op == "push":
            answer = s.push_key(key, digest, now)
            if key in live:
                assert answer == (("REPEAT", "known_key") if live[key] == digest else ("REJECT", "conflict"))
            elif key in pending:
                assert answer == ("UNSURE", "in_flight")
            elif len(live) + len(pending) >= 3:
                assert answer == ("UNSURE", "keys_full")
            else:
                assert answer == ("FIRST", "new")
                pending[key] = digest
        elif key in pending:
            digest = pending.pop(key)
            if op == "fail":
                s.fail_key(key)
            else:
                s.persist_key(key, digest, now)
                table[key] = now, digest
                log.append(SequenceEntry(Kind.KEYED, key, digest=digest, time_ms=now))
    assert recover(None, enumerate(log), keys_ms=30, keys_max=3).sequences == s
