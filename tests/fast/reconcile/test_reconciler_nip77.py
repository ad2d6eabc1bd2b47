"""The envelope of NIP-77: what a client of Nostr's relays sends, and what it gets."""

import json
import time
from hashlib import sha256
from pathlib import Path

import pytest

from onefold.reconcile import ItemSet, Record, Session
from onefold.reconcile.nip77 import Subscriptions
from onefold.reconcile.peer import PeerBooks, ReconcileLimits
from onefold.reconcile.records import MemoryRecords
from tests.lib.reconciling import items, some, store

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "negentropy.json").read_text(encoding="utf-8"))["cases"]
V1 = [case for case in CASES if case["wire"] == "v1" and case["n"] <= 2_000]
FIRST = Session(items(range(50, 150))).initiate().hex()


class Talk:
    def __init__(self, records, **limits):
        self.books = PeerBooks()
        self.subscriptions = Subscriptions(records, ReconcileLimits(**limits), time.thread_time, self.books)

    def ask(self, *words):
        told = self.subscriptions.answer(json.dumps(words))
        return None if told is None else json.loads(told)

    def find(self, mine: ItemSet, filter):
        session = Session(mine, frame_size_max=4_096)
        have: set[bytes] = set()
        need: set[bytes] = set()
        message: bytes | None = session.initiate()
        verb: tuple = ("NEG-OPEN", "sub", filter)
        while message is not None:
            word, name, reply = self.ask(*verb, message.hex())
            assert (word, name) == ("NEG-MSG", "sub"), reply
            message, more_have, more_need = session.reconcile(bytes.fromhex(reply))
            have.update(more_have)
            need.update(more_need)
            verb = ("NEG-MSG", "sub")
        assert self.ask("NEG-CLOSE", "sub") is None
        return have, need


def ids(numbers):
    return {record.id for record in some(numbers)}


@pytest.mark.parametrize("case", V1, ids=[case["name"] for case in V1])
def test_a_published_client_is_answered_as_it_expects(case):
    """Its questions, byte for byte; our answers settle what differs, some with fewer bytes than the published ones."""
    records, held = MemoryRecords(), []
    for number in sorted(set(range(case["n"])) - set(case["only_client"])):
        digest = sha256(f"{case['seed']}:{number}".encode()).digest()
        spread = int.from_bytes(digest[:4]) % case["spread"] if case["spread"] else 0
        held.append(Record(1_700_000_000 + spread, digest))
    records.add(held)
    talk, verb = Talk(records), ["NEG-OPEN", "a sub", {}]
    questions, answers = case["messages"][::2], case["messages"][1::2]
    for question, answer in zip(questions, answers, strict=True):
        word, name, reply = talk.ask(*verb, question)
        assert (word, name) == ("NEG-MSG", "a sub")
        same = not case["frame_size_limit"] and question != questions[-1]
        assert reply == answer if same else len(reply) > 0
        verb = ["NEG-MSG", "a sub"]
    assert talk.ask("NEG-CLOSE", "a sub") is None
    assert talk.books.sessions == 0


def test_since_and_until_are_served_and_both_are_part_of_it():
    talk = Talk(store(range(1_000)))
    assert talk.find(items(range(300, 399)), {"since": 1_030, "until": 1_039}) == (set(), ids([399]))
    assert talk.find(items(range(5)), {"until": 1_000}) == (set(), ids(range(5, 10)))
    assert talk.find(items(range(980, 1_001)), {"since": 1_098}) == (ids([1_000]), set())


@pytest.mark.parametrize("name", ["ids", "authors", "kinds", "#e", "limit", "search"])
def test_any_other_filter_is_refused_by_name(name):
    talk = Talk(store(range(10)))
    told = f"blocked: records are filtered only by since and until, not by '{name}'"
    assert talk.ask("NEG-OPEN", "s", {"since": 1, name: []}, FIRST) == ["NEG-ERR", "s", told]
    assert talk.books.sessions == 0


BAD = {
    "no JSON": ("{", "NOTICE", "the message is not JSON"),
    "deep": ("[" * 100_000, "NOTICE", "the message is not JSON"),
    "no list": ("{}", "NOTICE", "the message is not a list that begins with a string"),
    "nothing": ("[]", "NOTICE", "the message is not a list that begins with a string"),
    "an unknown word": ('["REQ", "s", {}]', "NOTICE", "'REQ' is not served here, only NEG-OPEN, NEG-MSG, NEG-CLOSE"),
    "too few": ('["NEG-OPEN", "s"]', "NOTICE", "NEG-OPEN has 2 fields, must have 4"),
    "no name": ('["NEG-CLOSE", 5]', "NOTICE", "the subscription is 5, must be 1 to 64 characters"),
    "a long name": (json.dumps(["NEG-CLOSE", "s" * 65]), "NOTICE", "the subscription is 's"),
    "no filter": (json.dumps(["NEG-OPEN", "s", [], FIRST]), "NEG-ERR", "the filter is [], must be an object"),
    "no time": (
        json.dumps(["NEG-OPEN", "s", {"since": 1.5}, FIRST]),
        "NEG-ERR",
        "since is 1.5, must be a whole number",
    ),
    "no hex": (json.dumps(["NEG-OPEN", "s", {}, "6"]), "NEG-ERR", "the message is '6', must be hex digits"),
    "no bytes": (json.dumps(["NEG-OPEN", "s", {}, 6]), "NEG-ERR", "the message is 6, must be hex digits"),
    "a broken message": (json.dumps(["NEG-OPEN", "s", {}, "61000007"]), "NEG-ERR", "byte 3: unknown mode 7"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told_in_the_words_of_the_protocol(name):
    sent, word, text = BAD[name]
    talk = Talk(store(range(100)))
    told = json.loads(talk.subscriptions.answer(sent) or "")
    assert told[0] == word
    assert told[-1].startswith(f"invalid: {text}")
    assert talk.books.sessions == 0


def test_a_name_that_is_opened_again_is_another_session():
    records = store(range(100))
    talk = Talk(records)
    before = talk.ask("NEG-OPEN", "s", {}, FIRST)
    records.remove([record.id for record in some(range(50))])
    assert talk.ask("NEG-MSG", "s", FIRST) == before
    assert talk.ask("NEG-OPEN", "s", {}, FIRST) != before
    assert talk.books.sessions == 1


def test_sessions_of_a_connection_go_side_by_side_up_to_a_limit():
    talk = Talk(store(range(100)), subscriptions_max=2)
    first = talk.ask("NEG-OPEN", "a", {}, FIRST)
    assert talk.ask("NEG-OPEN", "b", {"since": 1_005}, FIRST)[2] != first[2]
    word, name, text = talk.ask("NEG-OPEN", "c", {}, FIRST)
    assert (word, name, text.partition(":")[0]) == ("NEG-ERR", "c", "rate-limited")
    assert talk.ask("NEG-MSG", "a", FIRST) == first
    talk.subscriptions.close()
    assert talk.books.sessions == 0


def test_limits_close_a_session_and_are_named():
    talk = Talk(store(range(100)), rounds_max=1, look_silence_s_max=60, troubles_max=100, sessions_max=1)
    assert talk.ask("NEG-OPEN", "s", {}, "61") == ["NEG-MSG", "s", "61"]
    assert talk.ask("NEG-MSG", "s", "61")[2].startswith("closed: the session is over: 1 rounds, rounds_max is 1")
    assert talk.ask("NEG-MSG", "s", "61")[2] == "closed: there is no such subscription, or it is closed"
    talk.ask("NEG-OPEN", "s", {}, "61")
    assert talk.ask("NEG-OPEN", "t", {}, "61")[2].startswith("rate-limited: 1 sessions are open")
    talk.subscriptions.waited(61)
    told = "closed: the session is over: the peer was silent for more than 60 s in total"
    assert talk.ask("NEG-MSG", "s", "61")[2] == told
    talk.ask("NEG-OPEN", "s", {}, "61")
    talk.subscriptions.waited(61)
    talk.subscriptions.expire()
    assert talk.books.sessions == 0


def test_records_with_shorter_ids_are_not_served_like_this():
    assert Talk(store(range(3), 16)).ask("NEG-OPEN", "s", {}, "61")[2].startswith("blocked: ")


def test_after_too_many_errors_the_connection_is_over():
    talk = Talk(store(range(3)), troubles_max=2)
    talk.ask("REQ")
    assert not talk.subscriptions.over
    talk.ask("NEG-MSG", "s", "61")
    assert talk.subscriptions.over
