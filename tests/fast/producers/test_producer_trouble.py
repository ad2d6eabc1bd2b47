"""How long a producer waits for trouble to pass."""

import threading

import pytest

from onefold.errors import Misuse, StoreFailed
from onefold.producers.client import Producer
from onefold.producers.topic import Topics
from onefold.verdict import Verdict


@pytest.mark.parametrize("retry_s", [-1, float("nan")])
def test_a_time_to_retry_is_not_negative(tmp_path, retry_s):
    with pytest.raises(Misuse, match="retry_s"):
        Producer("t", at=tmp_path, retry_s=retry_s)


def test_time_without_trouble_does_not_count_as_trouble(tmp_path):
    made: list[Producer] = []
    with Topics(tmp_path) as other:
        other.topic("t")
        thread = threading.Thread(target=lambda: made.append(Producer("t", at=tmp_path, retry_s=20)))
        thread.start()
        thread.join(0.2)
    thread.join(60)
    assert made[0]._trouble_since is None
    made[0].close()


def test_a_folder_that_another_writes_is_waited_for(tmp_path):
    with Topics(tmp_path) as other:
        other.topic("t")
        with pytest.raises(StoreFailed, match=r"gave up after 0.2 s: .*another process writes this log"):
            Producer("t", at=tmp_path, retry_s=0.2)
        made: list[Producer] = []
        thread = threading.Thread(target=lambda: made.append(Producer("t", at=tmp_path, retry_s=None)))
        thread.start()
    thread.join(60)
    assert made[0].send(b"x").verdict == Verdict.FIRST
    made[0].close()
