"""Plans with one mistake: the explorer convicts each, by the rule that the mistake breaks."""

from dataclasses import replace

import pytest

from onefold.outbox import RECOVERIES
from onefold.outbox.explore import SHIPPED, TOPOLOGIES, Convicted, Topology, Wrong, explored
from onefold.outbox.explore.topology import close, order, pay, stage, tell
from tests.lib import outbox_mutants as mutants
from tests.lib.examples import sample

ONE, TWO, FOUR = (tuple({"n": n} for n in range(1, many + 1)) for many in (1, 2, 4))


def sent(queue, bodies):
    return tuple((queue, body) for body in bodies)


CHAIN = Topology("chain", "", (stage("order", order, 2), stage("payment", pay, 1)), sent("order", ONE))
ENTITY = Topology("entity", "", (stage("payment", tell, 2),), sent("payment", TWO))
CLOSED = Topology("closed", "", (stage("payment", close, 2),), sent("payment", TWO), crashes=0)
REOPENED = Topology("reopened", "", (stage("payment", close, 2),), sent("payment", FOUR), crashes=0, expiries=0)

CASES = [
    ("checkpointed", mutants.check_before_load, CHAIN, Wrong.APPLIED_TWICE),
    ("parented", mutants.check_before_load, CHAIN, Wrong.APPLIED_TWICE),
    ("checkpointed", mutants.no_version_to_apply, CHAIN, Wrong.APPLIED_TWICE),
    ("checkpointed", mutants.no_version_to_checkpoint, CHAIN, Wrong.TWO_TOKENS),
    ("parented", mutants.no_version_to_checkpoint, CHAIN, Wrong.APPLIED_TWICE),
    ("checkpointed", mutants.no_version_to_clear, ENTITY, Wrong.APPLIED_TWICE),
    ("parented", mutants.no_version_to_clear, ENTITY, Wrong.APPLIED_TWICE),
    ("transactional", mutants.no_version_to_settle, ENTITY, Wrong.STATE),
    ("checkpointed", mutants.remove_before_dispatch, CHAIN, Wrong.LOST),
    ("parented", mutants.remove_before_dispatch, CHAIN, Wrong.LOST),
    ("transactional", mutants.finish_before_dispatch, CHAIN, Wrong.LOST),
    ("checkpointed", mutants.deterministic_ids, CHAIN, Wrong.TOKEN_BACK),
    ("parented", mutants.deterministic_ids, CHAIN, Wrong.TOKEN_BACK),
    ("checkpointed", mutants.dispatch_first, CHAIN, Wrong.TWO_TOKENS),
    ("parented", mutants.dispatch_first, CHAIN, Wrong.TWO_TOKENS),
    ("transactional", mutants.dispatch_first, CHAIN, Wrong.TWO_TOKENS),
    ("checkpointed", mutants.checkpoint_before_create, CHAIN, Wrong.LOST),
    ("parented", mutants.checkpoint_before_create, CHAIN, Wrong.APPLIED_TWICE),
    ("checkpointed", mutants.persist_before_remove, CHAIN, Wrong.APPLIED_TWICE),
    ("parented", mutants.persist_before_remove, CHAIN, Wrong.APPLIED_TWICE),
    ("checkpointed", mutants.acknowledge_first, CHAIN, Wrong.LOST),
    ("parented", mutants.acknowledge_first, CHAIN, Wrong.LOST),
    ("transactional", mutants.acknowledge_first, CHAIN, Wrong.LOST),
    ("checkpointed", mutants.no_tombstone, CLOSED, Wrong.APPLIED_TWICE),
    ("parented", mutants.no_tombstone, CLOSED, Wrong.APPLIED_TWICE),
    ("transactional", mutants.no_tombstone, REOPENED, Wrong.STATE),
    ("checkpointed", mutants.unguarded_create, CHAIN, Wrong.TOKEN_LEFT),
    ("parented", mutants.unguarded_create, CHAIN, Wrong.APPLIED_TWICE),
    ("checkpointed", mutants.no_reload, CHAIN, Wrong.ENTRY_LEFT),
    ("parented", mutants.no_reload, CHAIN, Wrong.ENTRY_LEFT),
    ("transactional", mutants.token_never_asked, CHAIN, Wrong.APPLIED_TWICE),
    ("local", mutants.settle_without_the_rows_deletion, CHAIN, Wrong.TOKEN_LEFT),
    ("local", mutants.state_without_version, ENTITY, Wrong.STATE),
    ("local", mutants.lease_not_checked, CHAIN, Wrong.APPLIED_TWICE),
    ("local", mutants.insert_outside_the_transaction, CHAIN, Wrong.LOST),
    ("local", mutants.no_tombstone, REOPENED, Wrong.STATE),
]


@pytest.mark.parametrize(
    ("plan", "rewriter", "topology", "wrong"),
    [sample(*case) if number % 6 == 0 else case for number, case in enumerate(CASES)],
    ids=[f"{case[0]}-{case[1].__name__}" for case in CASES],
)
def test_a_mistake_is_convicted_by_the_rule_that_it_breaks(plan, rewriter, topology, wrong):
    with pytest.raises(Convicted) as convicted:
        explored(topology, mutants.mutant(plan, rewriter), states_max=100_000)
    assert convicted.value.offence.wrong is wrong
    assert convicted.value.history.splitlines()[-1].startswith("Wrong: ")


@pytest.mark.parametrize("plan", ["checkpointed", "parented", "transactional"])
def test_a_first_message_without_a_token_is_lost(plan):
    with pytest.raises(Convicted) as convicted:
        explored(CHAIN, mutants.mutant(plan, mutants.as_it_is, tokens=False))
    assert convicted.value.offence.wrong is Wrong.LOST


@pytest.mark.parametrize(
    ("topology", "plan"),
    [(CHAIN, "transactional"), (CLOSED, "parented"), (REOPENED, "transactional"), (CHAIN, "local")],
)
def test_a_plan_that_goes_through_a_rewriter_unchanged_is_right(topology, plan):
    assert explored(topology, mutants.mutant(plan, mutants.as_it_is)).complete


@pytest.mark.parametrize("topology", [CHAIN, ENTITY, CLOSED, REOPENED], ids=lambda topology: topology.name)
def test_where_every_write_is_checked_the_token_need_not_be_looked_at_again_when_it_settles(topology):
    # A token is removed only together with a write of its own entity, so the version tells as much. The look is kept:
    # somebody may discard a token by hand.
    assert explored(topology, mutants.mutant("transactional", mutants.settle_without_token)).complete


def test_a_pump_that_writes_the_whole_outbox_brings_back_what_was_cleared_since_it_looked():
    pumped = TOPOLOGIES["pumped"]
    with pytest.raises(Convicted) as convicted:
        explored(pumped, replace(SHIPPED["transactional"], recovery=RECOVERIES["checkpointed"]))
    assert convicted.value.offence.wrong is Wrong.ENTRY_LEFT
    assert "the pump writes payment/one" in convicted.value.history
