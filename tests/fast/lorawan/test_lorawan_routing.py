"""The decision table, line by line as the ADR has it."""

import itertools

import pytest

from onefold.lorawan import Status, Strategy, route, route_lost

# "Further processing of messages based on their duplication status" of ADR 007; "-" stands for either.
# The last column is ours to derive: Mark marks what is not the first, None passes it "without marking".
ADR = """
status          strategy  confirm  first | up  down  marked
not_duplicate   drop      yes      -     | yes yes   no       always up, and down if it requires confirmation
not_duplicate   mark      yes      -     | yes yes   no
not_duplicate   none      yes      -     | yes yes   no
not_duplicate   drop      no       -     | yes no    no
not_duplicate   mark      no       -     | yes no    no
not_duplicate   none      no       -     | yes no    no
soft_duplicate  drop      -        -     | yes no    no       level 1 never says this under Drop
soft_duplicate  mark      -        -     | yes no    yes      up; never down, because of collisions on the air
soft_duplicate  none      -        -     | yes no    no
resubmission    drop      yes      -     | no  yes   no       requires confirmation, Drop: down only
resubmission    mark      yes      -     | yes yes   yes      else both
resubmission    none      yes      -     | yes yes   no
resubmission    drop      no       -     | no  no    no       does not, Drop: nowhere
resubmission    mark      no       yes   | yes no    yes      else up when first message
resubmission    mark      no       no    | no  no    no
resubmission    none      no       yes   | yes no    no
resubmission    none      no       no    | no  no    no
duplicate       drop      -        -     | no  no    no       not processed further
duplicate       mark      -        -     | no  no    no       join requests only
duplicate       none      -        -     | no  no    no
"""

# "Upstream Processing" and "Downstream Processing" between servers, for the one that was told "duplicate".
ADR_LOST = {"drop": (False, False, False), "mark": (True, False, True), "none": (True, False, False)}

YES = {"yes": (True,), "no": (False,), "-": (True, False)}


def lines():
    for line in ADR.strip().splitlines()[1:]:
        conditions, outcome = line.split("|")
        status, strategy, confirm, first = conditions.split()
        expected = tuple(word == "yes" for word in outcome.split()[:3])
        for confirmed, first_message in itertools.product(YES[confirm], YES[first]):
            yield Status(status), Strategy(strategy), confirmed, first_message, expected


@pytest.mark.parametrize(("status", "strategy", "confirmed", "first", "expected"), list(lines()))
def test_a_line_of_the_adr(status, strategy, confirmed, first, expected):
    assert route(status, strategy, confirmed=confirmed, first_message=first) == expected


def test_the_table_above_has_every_case_once():
    cases = [case[:4] for case in lines()]
    assert len(cases) == len(set(cases)) == len(Status) * len(Strategy) * 2 * 2


@pytest.mark.parametrize("strategy", Strategy)
def test_a_frame_that_another_server_counted(strategy):
    assert route_lost(strategy) == ADR_LOST[strategy]
