"""A server that is killed under load, as in ``./run soak producers`` but a twentieth as often."""

from tests.lib.producer_trials import kills


def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing():
    assert "each stored once, in order" in kills(12, say=lambda line: None)
