"""A server that is killed under load, as in ``./run soak producers`` but a twentieth as often."""

import pytest

from tests.lib.examples import sample
from tests.lib.producer_trials import kills


@pytest.mark.parametrize("count", [sample(2), 12])
def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(count):
    assert "each stored once, in order" in kills(count, say=lambda line: None)
