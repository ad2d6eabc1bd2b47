"""The shipped plans on the shipped SQLite store: every order, crash and late write of some small worlds."""

from dataclasses import replace

import pytest

from onefold.outbox.explore import SHIPPED, TOPOLOGIES, explored
from tests.lib.examples import sample

STATES = {
    ("one-to-two", "checkpointed"): 160_000,
    ("one-to-two", "parented"): 95_000,
    ("one-to-two", "transactional"): 15_000,
    ("two-to-one", "checkpointed"): 300_000,
    ("two-to-one", "parented"): 190_000,
    ("two-to-one", "transactional"): 16_000,
    ("two-to-two", "checkpointed"): 30_000,
    ("two-to-two", "parented"): 18_000,
    ("two-to-two", "transactional"): 1_100,
    ("one-entity", "checkpointed"): 22_000,
    ("one-entity", "parented"): 7_000,
    ("one-entity", "transactional"): 1_800,
    ("pumped", "checkpointed"): 120_000,
    ("pumped", "parented"): 6_500,
    ("pumped", "transactional"): 1_500,
    ("recreated", "parented"): 80_000,
    ("recreated", "transactional"): 5_000,
    ("two-queues", "checkpointed"): 140_000,
    ("two-queues", "parented"): 40_000,
    ("two-queues", "transactional"): 8_000,
    ("source", "checkpointed"): 100_000,
    ("source", "transactional"): 2_000,
    ("one-to-two", "local"): 500,
    ("two-to-one", "local"): 1_300,
    ("two-to-two", "local"): 110,
    ("one-entity", "local"): 350,
    ("pumped", "local"): 35,
    ("recreated", "local"): 3_000,
    ("two-queues", "local"): 220,
    ("source", "local"): 50,
}
"""How many distinct states each world has at least. A search that finds fewer has stopped looking somewhere.

``source`` under ``parented`` is the same as under ``checkpointed``; ``recreated`` under ``checkpointed`` takes 15 s."""


SAMPLE = {
    ("two-to-two", "parented"),
    ("one-entity", "checkpointed"),
    ("pumped", "transactional"),
    ("source", "transactional"),
    *((topology, plan) for topology, plan in STATES if plan == "local"),
}


@pytest.mark.parametrize(
    ("topology", "plan"),
    [sample(*case) if case in SAMPLE else case for case in STATES],
    ids=["-".join(case) for case in STATES],
)
def test_nothing_is_lost_doubled_or_left_in_any_state_of(topology, plan):
    found = explored(TOPOLOGIES[topology], SHIPPED[plan], states_max=1_000_000)
    assert found.complete
    assert found.states >= STATES[topology, plan]
    assert found.rests
    rate = found.states / found.seconds
    print(f"{topology}, {plan}: {found.states:,} states, {found.seconds:.1f} s, {rate:,.0f} a second")


@pytest.mark.sample
def test_the_states_of_all_worlds_are_more_than_a_million():
    assert sum(STATES.values()) >= 1_000_000
    assert {topology for topology, _ in STATES} == set(TOPOLOGIES)


@pytest.mark.parametrize("topology", ["two-to-two", sample("one-entity"), "source"])
def test_every_history_ends(topology):
    found = explored(TOPOLOGIES[topology], SHIPPED["transactional"], endless=True)
    assert found.complete
    assert found.calls_max is not None


@pytest.mark.parametrize("topology", ["two-to-two", "one-entity"])
def test_workers_with_different_plans_lose_nothing_and_double_nothing(topology):
    # What they leave behind is for the pump and the sweeper: see `Algorithm.tidy`.
    others = (SHIPPED["checkpointed"].plan, SHIPPED["parented"].plan)
    mixed = replace(SHIPPED["transactional"], name="mixed", tidy=False, others=others)
    world = replace(TOPOLOGIES[topology], crashes=0)
    assert explored(world, mixed, states_max=60_000).states >= 60_000
