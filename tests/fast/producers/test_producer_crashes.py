"""A producer whose program is killed, or whose disk is full: nothing twice, nothing missing."""

import json
import random
import subprocess
import sys

import pytest

from onefold.producers.records import Kind
from onefold.producers.topic import Topics
from tests.lib.examples import proof

COUNTING = """
import sys
from onefold.producers.client import Producer
with Producer("t", at=sys.argv[1], name="p") as producer:
    for i in range(producer.last_sequence_id + 1, sys.maxsize):
        producer.send_async(b"%d" % i).add_done_callback(lambda future, i=i: print(i, flush=True))
"""

FULL = """
import json, os, resource, sys, threading
from onefold.errors import StoreFailed
from onefold.producers.client import Producer

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

told = []
at = os.path.join(sys.argv[1], "t", "%020d.log" % 0)
with Producer("t", at=sys.argv[1], name="p", retry_s=20) as producer:
    producer.send(bytes(1000))
    room(os.path.getsize(at) + 10_000)
    futures = [producer.send_async(bytes(100_000)) for _ in range(30)]
    told.append(any(future.done() for future in futures[-5:]))
    threading.Timer(0.5, room, [resource.RLIM_INFINITY]).start()
    told += [str(future.result().verdict) for future in futures]
    epochs = producer.epoch
with Producer("t", at=sys.argv[1], name="p", retry_s=0.2) as producer:
    room(os.path.getsize(at) + 10_000)
    futures = [producer.send_async(bytes(100_000)) for _ in range(30)]
    errors = [type(future.exception()) for future in futures]
    while errors[0] is type(None):  # what did fit
        errors.pop(0)
    told.append(len(errors) >= 10 and set(errors) == {StoreFailed})
    room(resource.RLIM_INFINITY)
    try:
        producer.send(b"later")
    except StoreFailed as error:
        told.append(str(error))
    last = producer.last_sequence_id
    try:
        producer.close()
    except StoreFailed as error:
        told.append(str(error))
print(json.dumps({"told": told, "last": last, "epochs": epochs}))
"""


def messages(folder):
    with Topics(folder) as topics:
        log = topics.topic("t").log
        return [(r.sequence, r.payload) for r in log.read(log.start) if r.kind == Kind.MESSAGE]


@pytest.mark.parametrize("kills", [2, proof(5)])
def test_a_program_that_is_killed_goes_on_without_a_duplicate_or_a_hole(tmp_path, kills):
    chance = random.Random(4)
    last = -1
    for _ in range(kills):
        with subprocess.Popen([sys.executable, "-c", COUNTING, tmp_path], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 2_000)):
                last = int(child.stdout.readline())
            child.kill()
            said = child.stdout.read().split("\n")[:-1]
            last = int(said[-1]) if said else last
    found = messages(tmp_path)
    assert found == [(i, b"%d" % i) for i in range(len(found))]
    assert len(found) > last


def test_a_full_disk_is_waited_for_and_what_did_not_get_room_is_never_called_stored(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    early, *verdicts, failed, later, closing = result["told"]
    assert not early
    assert verdicts == ["FIRST"] * 30
    assert failed
    assert later == closing
    assert later.startswith("gave up after 0.2 s: ")
    assert "File too large" in later
    found = [sequence for sequence, _ in messages(tmp_path)]
    assert found == list(range(result["last"] + 1))
