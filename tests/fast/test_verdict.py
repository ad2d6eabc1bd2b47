import copy
import json

import pytest

from onefold import chains, lorawan, outbox, producers
from onefold.chains import ANSWERS, RULES
from onefold.errors import BadInput, Misuse, OnefoldError, StaleWrite
from onefold.producers.requests import Receipt
from onefold.verdict import Answer, Verdict


def test_there_are_four_verdicts_in_the_order_of_the_law():
    assert [str(verdict) for verdict in Verdict] == ["FIRST", "REPEAT", "UNSURE", "REJECT"]


def test_a_verdict_is_its_name_also_in_json():
    assert json.dumps(list(Verdict)) == '["FIRST", "REPEAT", "UNSURE", "REJECT"]'


def test_an_answer_prints_as_verdict_and_reason_and_unpacks_into_both():
    answer = Answer(Verdict.UNSURE, "forgotten")
    verdict, reason = answer
    assert (str(answer), verdict, reason) == ("UNSURE forgotten", Verdict.UNSURE, "forgotten")


def test_a_reason_names_one_answer_and_is_short_and_lower_case():
    reasons = [answer.reason for answer in ANSWERS]
    assert len(set(reasons)) == len(reasons)
    assert all(reason.replace("_", "").islower() and len(reason) <= 20 for reason in reasons)


def test_every_answer_has_a_rule_that_is_one_sentence():
    assert all(rule[0].isupper() and rule.endswith(".") for rule in RULES.values())


@pytest.mark.parametrize("kind", [BadInput, Misuse, StaleWrite])
def test_every_error_carries_its_values_and_can_be_caught_as_one_of_ours(kind):
    with pytest.raises(OnefoldError, match="limit is 0") as caught:
        raise kind("limit is 0", limit=0)
    assert caught.value.values == {"limit": 0}


def test_every_engine_says_whether_the_sender_should_come_again():
    tables = {
        "chains": chains.ANSWERS,
        "producers": producers.ANSWERS,
        "lorawan": lorawan.ANSWERS,
        "outbox": outbox.ANSWERS.values(),
    }
    again = {name: {answer.reason for answer in answers if answer.retry} for name, answers in tables.items()}
    assert again == {
        "chains": set(),
        "producers": {"in_flight", "fenced", "write_failed", "busy", "producers_full", "keys_full"},
        "lorawan": {"coordinator_down", "busy"},
        "outbox": {"conflict", "handler_failed", "store_failed"},
    }
    assert all(
        answer.verdict in ("UNSURE", "REJECT") for answers in tables.values() for answer in answers if answer.retry
    )


def test_an_answer_is_its_verdict_and_reason_and_keeps_its_retry_when_it_is_copied():
    later = Answer(Verdict.UNSURE, "in_flight", retry=True)
    assert later == ("UNSURE", "in_flight") == Answer(Verdict.UNSURE, "in_flight")
    assert copy.deepcopy(later).retry
    assert Receipt(Verdict.UNSURE, "in_flight").retry
    assert not Receipt(Verdict.UNSURE, "forgotten").retry
