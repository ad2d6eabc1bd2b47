"""The published conversations, byte for byte, in both roles."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from onefold.reconcile import ItemSet, Session

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "negentropy.json").read_text(encoding="utf-8"))["cases"]


def side(case, left_out):
    """The records of one side, as the vectors' meta says."""
    stamps, ids = [], []
    for i in sorted(set(range(case["n"])) - set(left_out)):
        digest = sha256(f"{case['seed']}:{i}".encode()).digest()
        stamps.append(1_700_000_000 + (int.from_bytes(digest[:4]) % case["spread"] if case["spread"] else 0))
        ids.append(digest[: case["id_size"]])
    items = ItemSet.from_arrays(stamps, ids, case["id_size"])
    items.seal()
    return items


def alone(case, name):
    return sorted(sha256(f"{case['seed']}:{i}".encode()).digest()[: case["id_size"]] for i in case[name])


def sessions(case, **how):
    client, server = side(case, case["only_server"]), side(case, case["only_client"])
    how = {"wire": case["wire"], "frame_size_max": case["frame_size_limit"], **how}
    return Session(client, **how), Session(server, **how)


def named(case):
    return case["name"]


@pytest.mark.parametrize("case", [case for case in CASES if not case["frame_size_limit"]], ids=named)
def test_both_sides_say_what_the_published_ones_said(case):
    client, server = sessions(case, reply="full")
    have: list[bytes] = []
    need: list[bytes] = []
    messages, said = case["messages"], client.initiate()
    for question, answer in zip(messages[::2], messages[1::2], strict=True):
        assert said.hex() == question
        assert server.reconcile(bytes.fromhex(question)) == (bytes.fromhex(answer), [], [])
        said, more_have, more_need = client.reconcile(bytes.fromhex(answer))
        have, need = have + more_have, need + more_need
    assert said is None
    assert (sorted(have), sorted(need)) == (alone(case, "only_client"), alone(case, "only_server"))
    assert (client.spent.bytes_out, client.spent.bytes_in) == (case["bytes_up"], case["bytes_down"])


@pytest.mark.parametrize("reply", ["full", "sparse"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_both_sides_find_what_differs(case, reply):
    client, server = sessions(case, reply=reply)
    have: list[bytes] = []
    need: list[bytes] = []
    said = client.initiate()
    while said is not None:
        said, more_have, more_need = client.reconcile(server.reconcile(said).reply)
        have, need = have + more_have, need + more_need
    assert (sorted(have), sorted(need)) == (alone(case, "only_client"), alone(case, "only_server"))
    assert client.spent.rounds <= case["rounds"]


@pytest.mark.parametrize("case", [case for case in CASES if case["frame_size_limit"]], ids=named)
def test_a_published_conversation_with_a_frame_limit_can_be_followed(case):
    """The published client asks our server: every question of it is answered, within the limit."""
    _, server = sessions(case, reply="full")
    for question in case["messages"][::2]:
        reply = server.reconcile(bytes.fromhex(question)).reply
        assert len(reply) <= case["frame_size_limit"]
