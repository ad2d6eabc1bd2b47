"""The client of a reconciliation: against peers of this process, cut lines, real servers, and peers that lie."""

import random
import socket
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import BadInput, Busy, Misuse
from onefold.reconcile import Limits, Record, SessionLimit, id_of, record
from onefold.reconcile.client import ClientLimits, beside, dial, find_ids, reconcile
from onefold.reconcile.exchange import (
    ERROR,
    KNOWN,
    NOT_THERE,
    OPENED,
    RECORDS,
    RULES,
    STORED,
    TOO_LARGE,
    UNANSWERED,
    WRONG_ID,
    WRONG_TIME,
    Opening,
    OpenReply,
    Pipe,
    Trouble,
    read_records,
    size_of,
    write_document,
    write_records,
)
from onefold.reconcile.peer import Peer, ReconcileLimits
from onefold.reconcile.records import MemoryRecords
from onefold.tally import BooksDoNotBalance
from onefold.verdict import Verdict
from tests.lib.cutting_proxy import CuttingProxy
from tests.lib.examples import examples
from tests.lib.reconciling import running

AT_ONCE = ClientLimits(pause_s=0)
SMALL = ReconcileLimits(message_bytes_max=9_300, frame_size_max=4_100, record_bytes_max=9_000)


def made(numbers, id_size=32):
    return [record(number, b"note %d" % number, id_size) for number in numbers]


def store(records, id_size=32):
    kept = MemoryRecords(id_size)
    kept.add(records)
    return kept


def ids(records):
    snapshot = records.snapshot()
    stamps, rows = snapshot.rows(np.arange(len(snapshot)))
    return {(int(stamp), row[: records.id_size].tobytes()) for stamp, row in zip(stamps, rows, strict=True)}


def to(there, limits=None, **settings):
    def connect():
        peer = Peer(there, limits, **settings)
        return Pipe(peer.answer, peer.close)

    return connect


numbers = st.sets(st.integers(0, 120), max_size=60)


@settings(max_examples=examples(40), deadline=None)
@given(numbers, numbers, st.sampled_from([("v1", 32), ("xor", 16), ("xor", 32)]), st.booleans(), st.booleans())
def test_both_sides_hold_the_union_or_what_was_asked_for(mine, theirs, wire, pull, push):
    name, size = wire
    here, there = store(made(mine, size), size), store(made(theirs, size), size)
    done = reconcile(here, to(there, SMALL), wire=name, pull=pull, push=push)
    assert (done.have, done.need) == (len(mine - theirs), len(theirs - mine))
    assert {stamp for stamp, _ in ids(here)} == (mine | theirs if pull else mine)
    assert {stamp for stamp, _ in ids(there)} == (mine | theirs if push else theirs)
    assert done.pulled.count(*STORED) == (done.need if pull else 0) == done.pulled.received
    assert done.pushed.count(*STORED) == (done.have if push else 0) == done.pushed.received
    assert (done.here, done.there) == (len(here), len(there))
    assert done.settled == (len(here) == len(there) == len(mine | theirs))
    assert done.agrees == (mine == theirs)
    again = reconcile(here, to(there), wire=name, pull=False, push=False)
    assert again.agrees == done.settled


def test_only_records_of_the_time_that_was_asked_about_are_moved():
    here, there = store(made(range(0, 100, 2))), store(made(range(1, 100, 2)))
    done = reconcile(here, to(there), since=10, until=19)
    assert (done.have, done.need, done.here, done.there, done.settled) == (5, 5, 10, 10, True)
    assert {stamp for stamp, _ in ids(there)} == {*range(1, 100, 2), 10, 12, 14, 16, 18}


def test_records_that_do_not_fit_into_one_answer_are_asked_for_again():
    bodies = [bytes([number]) * random.Random(number).choice([0, 10, 3_000, 9_000]) for number in range(100)]
    here, there = MemoryRecords(), store([record(number, body) for number, body in enumerate(bodies)])
    assert reconcile(here, to(there, SMALL)).pulled.count(*STORED) == 100
    assert ids(here) == ids(there)
    back = MemoryRecords()
    assert reconcile(here, to(back, SMALL)).pushed.count(*STORED) == 100
    assert ids(back) == ids(here)


def test_what_cannot_be_exchanged_is_booked_by_its_reason_and_the_rest_arrives():
    bare = Record(8, id_of(8, b"elsewhere"))
    large = record(9, b"x" * 9_001)
    here, there = store([*made(range(3)), forged(7), bare, large]), MemoryRecords()
    pushed = reconcile(here, to(there, SMALL))
    assert dict(pushed.pushed) == {STORED: 3, WRONG_ID: 1, NOT_THERE: 1, TOO_LARGE: 1}
    assert (pushed.unpushed, pushed.settled, len(there)) == (3, False, 3)

    empty = MemoryRecords()
    pulled = reconcile(empty, to(here))
    assert dict(pulled.pulled) == {STORED: 4, WRONG_ID: 1, NOT_THERE: 1}
    assert (pulled.unpulled, pulled.settled, len(empty)) == (2, False, 4)


def test_a_peer_that_takes_nothing_or_knows_ids_alone_is_not_asked_to():
    here, there = store(made([1, 2])), store(made([2, 3]))
    silent = reconcile(here, to(there, writable=False, bodies=False))
    assert (silent.unpulled, silent.unpushed, silent.pulled.received, silent.pushed.received) == (1, 1, 0, 0)


# --- lines that are cut -----------------------------------------------------------------------------------------


class Cut:
    """A channel that is lost at the n-th thing that happens on it, before or after it reached the peer."""

    def __init__(self, pipe, after, delivered):
        self._pipe, self._left, self._delivered = pipe, after, delivered
        self.close = pipe.close

    def _used(self):
        self._left -= 1
        return self._left < 0

    def send(self, data):
        lost = self._used()
        if not lost or self._delivered:
            self._pipe.send(data)
        if lost:
            raise ConnectionError("cut")

    def receive(self):
        if self._used():
            raise ConnectionError("cut")
        return self._pipe.receive()


@pytest.mark.parametrize("delivered", [False, True], ids=["before", "after"])
def test_a_connection_may_be_cut_at_any_moment_and_nothing_is_lost_or_booked_twice(delivered):
    mine, theirs = made(range(300)), made(range(250, 500))
    after = unsure = 0
    while True:
        here, there = store(mine), store(theirs)
        calls = iter([True])
        done = reconcile(
            here,
            lambda: Cut(to(there, SMALL)(), after if next(calls, False) else 10**9, delivered),  # noqa: B023
            limits=AT_ONCE,
        )
        assert ids(here) == ids(there)
        assert len(here) == 500
        assert done.settled
        assert done.pulled.received == done.pulled.count(*STORED) == 200
        assert (done.pushed.received, done.pushed.count(Verdict.REJECT)) == (250, 0)
        assert (done.here, done.there) == (500, 500)
        unsure += done.pushed.count(*UNANSWERED)
        if done.connections == 1:
            break
        after += 1
    assert after > 15
    assert unsure > 0


def test_every_connection_may_be_cut_as_long_as_something_moves():
    here, there = MemoryRecords(), store([record(n, b"%d" % n * 2_000) for n in range(60)])
    done = reconcile(here, lambda: Cut(to(there, SMALL)(), 13, False), limits=AT_ONCE)
    assert (len(here), done.pulled.count(*STORED), done.settled) == (60, 60, True)
    assert done.connections > 5


def test_it_is_given_up_after_some_tries_that_moved_nothing():
    opened = []

    def connect():
        opened.append(1)
        raise ConnectionRefusedError("nobody is there")

    with pytest.raises(ConnectionError, match="gave up after 3 tries: nobody is there"):
        reconcile(MemoryRecords(), connect, limits=ClientLimits(tries=3, pause_s=0))
    assert len(opened) == 3


def test_the_pause_between_tries_doubles_up_to_its_limit(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr("onefold.reconcile.client.time.sleep", pauses.append)
    monkeypatch.setattr("onefold.reconcile.client.random.uniform", lambda low, high: high)

    def connect():
        raise ConnectionRefusedError("nobody is there")

    with pytest.raises(ConnectionError):
        reconcile(MemoryRecords(), connect, limits=ClientLimits(tries=6, pause_s=1, pause_s_max=5))
    assert pauses == [1, 2, 4, 5, 5]


def forged(number):
    return Record(number, id_of(number, b"true"), b"false")


def test_a_rejected_record_is_booked_once_though_the_next_look_finds_it_again():
    here, there = store(made([1])), store([forged(7)])
    left = [6, 10**9]  # open, look and fetch; the push is lost
    done = reconcile(here, lambda: Cut(to(there)(), left.pop(0), False), limits=AT_ONCE)
    assert (dict(done.pulled), dict(done.pushed), done.connections) == ({WRONG_ID: 1}, {STORED: 1}, 2)
    assert (done.unpulled, done.unpushed, done.settled) == (1, 0, False)


def test_a_peer_that_only_sends_what_must_be_rejected_gets_nowhere():
    there = store([forged(number) for number in range(2_000)])
    with pytest.raises(ConnectionError, match="gave up after 5 tries: cut"):
        reconcile(MemoryRecords(), lambda: Cut(to(there)(), 12, False), limits=AT_ONCE)


def test_a_busy_peer_is_asked_again_and_one_that_refuses_is_not():
    here, there = store(made([1])), store(made([2]))
    waiting = [Busy("later"), Busy("later"), None]

    def connect():
        if trouble := waiting.pop(0):
            raise trouble
        return to(there)()

    assert reconcile(here, connect, limits=AT_ONCE).settled
    with pytest.raises(Misuse, match="the peer says bad_open: id_size is 32, the ids here have 16 bytes"):
        reconcile(here, to(MemoryRecords(16)))
    with pytest.raises(Misuse, match="those of wire v1 have 32"):
        reconcile(MemoryRecords(16), to(MemoryRecords(16)))


def test_a_server_that_ends_a_session_for_its_cost_is_gone_back_to():
    here, there = store(made(range(500))), store(made(range(400, 900)))
    few = replace(SMALL, needs_max=200, pushes_max=180)
    done = reconcile(here, to(there, few), limits=AT_ONCE)
    assert (done.settled, len(here), len(there)) == (True, 900, 900)
    assert done.connections > 3


# --- peers that lie ---------------------------------------------------------------------------------------------


class Scripted:
    """A peer that changes what an honest one says."""

    def __init__(self, there, **changes):
        self._pipe = to(there)()
        self._changes = {ord(kind): change for kind, change in changes.items()}
        self.send, self.close = self._pipe.send, self._pipe.close

    def receive(self):
        frame = self._pipe.receive()
        change = self._changes.get(frame[0])
        return frame if change is None else change(frame)


def opened(**changes):
    told = {"records": 1, "bodies": True, "writable": True, "message_bytes_max": 1 << 20, "record_bytes_max": 1 << 19}
    return write_document(OPENED, OpenReply(**{**told, **changes}))


def resent(change):
    return lambda frame: write_records(RECORDS, change(read_records(frame, 32)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"o": lambda frame: b""}, "frame of kind b'', expected 'o'"),
        ({"o": lambda frame: b'["NOTICE","no"]'}, "frame of kind b'\\[', as a NIP-77 relay does, expected 'o'"),
        ({"o": lambda frame: b"o{}"}, "a field is missing"),
        ({"o": lambda frame: opened(message_bytes_max=1)}, "the peer accepts 1 bytes a message"),
        ({"M": lambda frame: b"M"}, "byte 0: an empty message"),
        ({"M": lambda frame: frame + b"\xff"}, "byte "),
        ({"R": lambda frame: b"M"}, "expected 'R'"),
        ({"R": lambda frame: frame + b"x"}, "ends inside the head"),
        ({"R": resent(lambda records: [])}, "the peer sent 0 records, 2 were requested"),
        ({"R": resent(lambda records: records * 2)}, "the peer sent 4 records, 2 were requested"),
        ({"R": resent(lambda records: records[::-1])}, "requested was"),
        ({"p": lambda frame: frame + b"\0"}, "the peer sent 3 outcomes, 2 records were pushed"),
        ({"p": lambda frame: b"p\x09\x09"}, "unknown outcome of a push"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_peer_that_does_not_speak_the_protocol_is_left_at_once(changes, text):
    here, there, calls = store(made([1, 2])), store(made([3, 4])), []

    def connect():
        calls.append(1)
        return Scripted(there, **changes)

    with pytest.raises(BadInput, match=text):
        reconcile(here, connect, limits=AT_ONCE)
    assert len(calls) == 1


def test_a_genuine_record_of_another_time_is_not_kept():
    here, there, other = MemoryRecords(), MemoryRecords(), record(50, b"note")
    there.add([Record(5, other.id, b"note")])
    lying = Scripted(there, R=resent(lambda records: [other]))
    assert dict(reconcile(here, lambda: lying, since=0, until=9).pulled) == {WRONG_TIME: 1}
    assert len(here) == 0


def test_what_somebody_else_brought_in_the_meantime_is_a_repeat():
    here, there = MemoryRecords(), store(made([1, 2]))

    def meanwhile(frame):
        here.add(made([1]))
        return frame

    done = reconcile(here, lambda: Scripted(there, R=meanwhile))
    assert dict(done.pulled) == {STORED: 1, KNOWN: 1}


def test_a_look_has_limits_in_time_rounds_and_ids():
    there = store(made(range(200)))
    clock = iter(range(0, 10_000, 40))
    with pytest.raises(SessionLimit, match="answers took more than 30 s in all, look_s_max"):
        find_ids(
            MemoryRecords().snapshot(), to(there)(), Opening(), ClientLimits(look_s_max=30), clock=lambda: next(clock)
        )
    with pytest.raises(SessionLimit, match="needs_max is 100"):
        reconcile(MemoryRecords(), to(there), limits=ClientLimits(session=Limits(needs_max=100)))


def test_what_a_peer_says_is_shown_as_one_plain_short_line():
    trouble = write_document(ERROR, Trouble(error="nasty", text="\x1b[2J\n" + "x" * 1_000))
    with pytest.raises(Misuse) as caught:
        reconcile(MemoryRecords(), lambda: Scripted(MemoryRecords(), o=lambda frame: trouble))
    assert str(caught.value).startswith("the peer says nasty: ?[2J?xxx")
    assert len(str(caught.value)) < 400


def test_a_peer_that_says_stored_keeps_nothing_and_goes_is_left_after_some_tries():
    heard: list[bytes] = []

    def cut(frame):
        heard.append(frame)
        if len(heard) % 2 == 0:
            raise ConnectionError("cut")
        return frame

    ours = store([record(n, bytes([n]) * 200_000) for n in range(4)])  # a frame each
    with pytest.raises(ConnectionError, match="gave up after 3 tries: cut"):
        reconcile(ours, lambda: Scripted(MemoryRecords(), p=cut), limits=ClientLimits(tries=3, pause_s=0))
    assert len(heard) == 8  # the first look had nothing to be held against


def test_a_peer_that_takes_frames_of_any_size_gets_them_no_larger_than_others():
    sizes: list[int] = []
    lying = Scripted(MemoryRecords(), o=lambda frame: opened(message_bytes_max=1 << 63, record_bytes_max=1 << 63))
    send = lying.send

    def sending(frame):
        sizes.append(len(frame))
        send(frame)

    lying.send = sending
    large = [record(n, bytes([n]) * size) for n, size in enumerate([50_000] * 20 + [400_000] * 2)]
    assert reconcile(store(large), lambda: lying).pushed.count(*STORED) == 22
    assert [size for size in sizes if size > 256 << 10] == [size_of(record(0, b"x" * 400_000)) + 1] * 2
    assert len(sizes) == 2 + 4 + 2  # open and look; five of the smaller ones at once


def test_few_large_records_are_asked_for_at_once():
    sizes: list[int] = []
    there = store([record(n, bytes([n]) * 50_000) for n in range(150)])

    def counting(frame):
        sizes.append(len(frame))
        return frame

    counted = Scripted(there, R=counting)
    assert reconcile(MemoryRecords(), lambda: counted).pulled.count(*STORED) == 150
    assert max(sizes[8:]) <= 256 << 10  # until then it is not known how large they are


def test_it_tells_how_it_goes():
    said: list[str] = []
    reconcile(store(made([1])), to(store(made([2]))), say=said.append)
    assert said == [
        "after 1 round trip: 1 only here, 1 only there",
        "pulled 1 records, 0 to go",
        "pushed 1 records, 0 to go",
    ]


def test_the_document_has_every_reason_with_its_rule():
    text = (Path(__file__).parents[3] / "docs" / "reconcile.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(tuple(f"| {verdict} |" for verdict in Verdict))]
    assert rows == [f"| {answer.verdict} | `{answer.reason}` | {rule} |" for answer, rule in RULES.items()]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("ftp://example.org", "is no address of a server"),
        ("ws://", "is no address of a server"),
        ("ws://me:secret@example.org", "a user or a password"),
        ("ws://example.org/?token=secret", "nothing behind its path"),
        ("ws://example.org:99999", "a port up to 65535"),
        ("ws://me:secret@[::1", "is no address of a server"),
        ("ws://example..org", "no address|example..org"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(address, text):
    with pytest.raises(Misuse, match=text) as caught:
        dial(address)()
    assert "secret@" not in str(caught.value)


# --- real servers -----------------------------------------------------------------------------------------------


def test_what_a_server_says_when_it_refuses_is_one_plain_line():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            with listener.accept()[0] as peer:
                peer.recv(4_096)
                peer.sendall(b"HTTP/1.1 403 No\r\ncontent-length: 10\r\n\r\n\x1b[2J\nnever")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(Misuse, match=r"the server said 403 No: \?\[2J\?never$"):
            dial(f"ws://127.0.0.1:{listener.getsockname()[1]}")()
        thread.join()


def test_a_server_is_reconciled_with_over_a_websocket_with_its_token():
    here, there = store(made(range(2_000))), store(made(range(5, 2_010)))
    word = "s3cret"
    with running(there, token=word) as found:
        url = found.server.url
        with pytest.raises(Misuse, match="401"):
            reconcile(here, dial(url, "other"))
        done = reconcile(here, dial(url, word))
        assert (done.have, done.need, done.settled, done.here, done.there) == (5, 10, True, 2_010, 2_010)
        assert reconcile(here, dial(url.replace("http", "ws"), word)).agrees


def test_a_transfer_goes_on_through_a_line_that_is_cut_again_and_again():
    chance = random.Random(1)
    mine = [record(n, chance.randbytes(300)) for n in range(400)]
    theirs = [record(n, chance.randbytes(300)) for n in range(400)]
    here, there = store(mine), store(theirs)
    with running(there) as found, CuttingProxy(urlsplit(found.url).port, seed=3, cuts=4) as proxy:
        done = reconcile(here, dial(proxy.url), limits=ClientLimits(tries=9, pause_s=0.01))
        assert ids(here) == ids(there)
    assert proxy.cuts == 4
    assert done.settled
    assert len(here) == 800


def test_two_stores_of_one_process_need_no_server():
    here, there = store(made([1, 2])), store(made([2, 3]))
    assert reconcile(here, beside(there)).settled
    assert ids(here) == ids(there)


class Forgetful(MemoryRecords):
    """A store that keeps the records and says nothing of the last one."""

    def add(self, records):
        return super().add(records)[:-1]


def test_a_record_that_came_and_was_given_no_verdict_is_an_error():
    """Arrivals are counted where a frame comes in, and verdicts where the store has answered."""
    with pytest.raises(BooksDoNotBalance, match="the books do not balance: 5 in != 4 first"):
        reconcile(Forgetful(), to(store(made(range(5)))))
