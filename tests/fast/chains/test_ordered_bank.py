"""The law of a bank of ordered chains: what the chains themselves say, whatever the batches and the clock."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains import ANSWERS
from onefold.chains.columns import NO_PREVIOUS, ChainMessages, HeldMessages, OrderedBank, refused
from onefold.chains.in_order import OrderedChain, OrderSettings, Released, Unfillable
from onefold.verdict import Verdict
from tests.lib.examples import examples

NAMES = [(7, 1), (7, 2), (-3, 1), (2**62, -5)]  # two share their first half


class Naive:
    """The chains asked one message after another, and what they hold."""

    def __init__(self, settings: OrderSettings) -> None:
        self.settings, self.chains, self.held = settings, dict[int, OrderedChain[Any]](), dict[int, dict[int, int]]()

    def judge(self, rows, now_ms):
        codes, lost = [], []
        for chain, previous, number in rows:
            if number < 0 or previous >= number:
                codes.append(-1 - number if number < 0 else ANSWERS.index(REFUSED))
                continue
            rule = self.chains.setdefault(chain, OrderedChain(**self.settings._asdict()))
            held = self.held.setdefault(chain, {})
            step = rule.add(None if previous == NO_PREVIOUS else at(previous), at(number), (previous, number), now_ms)
            codes.append(ANSWERS.index(step.answer))
            if step.answer.verdict is Verdict.FIRST:
                held[number] = previous
            lost += self.follow(chain, step.events)
        for chain, rule in self.chains.items():
            lost += self.follow(chain, rule.tick(now_ms))
        return codes, lost

    def follow(self, chain, events):
        lower = None
        for event in events:
            if isinstance(event, Unfillable):
                lower = event.lower[1]
            elif isinstance(event, Released):
                previous, number = event.message
                del self.held[chain][number]
                if lower is not None:
                    yield (*NAMES[chain], lower, previous)
                    lower = None


REFUSED = next(answer for answer in ANSWERS if answer.reason == "bad_numbering")


def at(number: int) -> tuple[int, int]:
    return 0, number


def columns(rows):
    lines = [(*NAMES[chain], previous, number) for chain, previous, number in rows]
    return ChainMessages(*np.array(lines, np.int64).reshape(-1, 4).T)


def resumed(bank: OrderedBank, held: list[tuple[int, int, int]], settings: OrderSettings) -> OrderedBank:
    """The same from its columns and the messages that wait, as (chain, previous, number)."""
    messages = columns(held)
    lines = np.stack((bank.find(messages.key, messages.key_check), messages.previous, messages.number))
    order = np.lexsort((lines[2], lines[0]))
    return OrderedBank(settings, chains=bank.chains, gaps=bank.gaps, held=HeldMessages(*lines[:, order]))


def check(batches, settings) -> None:
    naive, bank, now_ms = Naive(settings), OrderedBank(settings), 0
    waiting: list[tuple[int, int, int]] = []
    for passed_ms, rows in batches:
        now_ms = max(0, now_ms + passed_ms)  # a clock may step back
        rows = sorted(rows, key=lambda row: row[0])
        codes, lost = naive.judge(rows, now_ms)
        messages = columns(rows)
        assert bank.judge(messages, now_ms).tolist() == codes
        assert sorted(bank.tick(now_ms).T.tolist()) == sorted(map(list, lost))
        counted = [row for row, code in zip(rows, codes, strict=True) if ANSWERS[code].verdict is Verdict.FIRST]
        last = {chain: int(bank.chains.last[i]) for chain, i in enumerate(bank.find(*NAME_COLUMNS)) if i >= 0}
        waiting = [row for row in [*waiting, *counted] if row[2] > last[row[0]]]
        held = {chain: dict(sorted(held.items())) for chain, held in naive.held.items() if held}
        assert {
            c: {n: p for k, p, n in sorted(waiting, key=lambda row: row[2]) if k == c} for c, _, _ in waiting
        } == held
        due_ms = {chain: rule.due_ms for chain, rule in naive.chains.items() if rule.due_ms is not None}
        places = bank.find(*NAME_COLUMNS)
        assert {
            c: bank.chains.due_ms[i] for c, i in enumerate(places) if i >= 0 and bank.chains.due_ms[i] >= 0
        } == due_ms
        bank = resumed(bank, waiting, settings)


NAME_COLUMNS = tuple(np.array(half, np.int64) for half in zip(*NAMES, strict=True))
numbers = st.integers(1, 15)
chains = st.integers(0, 3)
linked = st.tuples(chains, numbers).map(lambda m: (m[0], m[1] - 1, m[1]))
skipping = st.tuples(chains, numbers, st.integers(1, 3)).map(lambda m: (m[0], max(0, m[1] - m[2]), m[1]))
anything = st.tuples(chains, st.integers(NO_PREVIOUS, 15), numbers | st.just(refused("null_key")))


@st.composite
def shuffled(draw):
    """A chain in any order after its first message, some messages twice or never, cut into batches."""
    first, *rest = ((0, number - 1, number) for number in range(1, 9))
    rows = [first, *draw(st.permutations(rest))[draw(st.integers(0, 2)) :], *draw(st.lists(st.sampled_from(rest)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    return [(draw(st.integers(-5, 30)), rows[a:b]) for a, b in pairwise([0, *cuts, len(rows)])]


def batches_of(messages):
    return st.lists(st.tuples(st.integers(-15, 30), st.lists(messages, max_size=12)), max_size=8)


@settings(max_examples=examples(1_500), deadline=None)
@given(
    shuffled() | batches_of(linked | skipping) | batches_of(linked | skipping | anything),
    st.sampled_from([(20, 100, 100), (20, 3, 2), (0, 100, 1), (40, 5, 100)]),
)
def test_a_bank_says_what_its_chains_say_whatever_the_batches_and_the_clock(batches, bounds):
    wait_ms, buffer_max, gap_count_max = bounds
    check(batches, OrderSettings(wait_ms, 0, 0, "light", buffer_max, gap_count_max))
