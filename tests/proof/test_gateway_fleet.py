"""Two gateway servers, a real Redis, three stations each, as in ``./run soak lorawan`` but a fiftieth of it."""

import pytest

from tests.lib.gateway_trials import kills, redis, retries, truth, whole

RATE = 900
"""Receptions a second: small enough for a machine that runs other tests too."""


def test_the_verdicts_of_a_server_are_the_truth_whatever_happens_on_the_air(tmp_path):
    _, result = truth(tmp_path, 500, rate=RATE)
    assert result.receptions > result.uplinks > 300


def test_every_strategy_has_upstream_what_it_should_and_every_frame_one_acknowledgement(tmp_path):
    assert "acknowledged once each" in whole(tmp_path, 150, rate=RATE)


@pytest.mark.sample
def test_a_server_that_is_killed_loses_and_doubles_nothing_and_two_servers_never_acknowledge_one_frame(tmp_path):
    told, found = kills(tmp_path, 600, 1, rate=RATE)
    of = found.by_strategy["drop"]
    assert found.unsent > 0, "the stations did not notice: this proves nothing"
    assert len(found.servers) == 2
    assert of.lost == 0, told  # what it had won and not stored, it stored when it was back


def test_devices_that_send_again_what_is_not_acknowledged_lose_nothing_when_a_server_is_killed(tmp_path):
    _, found = retries(tmp_path, 450, 1, rate=RATE)
    assert found.unsent > 0, "the stations did not notice: this proves nothing"


def test_a_redis_that_is_restarted_loses_nothing_when_claims_wait_for_it(tmp_path):
    told, found = redis(tmp_path, 300, 1, rate=RATE)
    assert found.by_strategy["drop"].acknowledged > 0, told
