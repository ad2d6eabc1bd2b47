"""The server's end of a connection, frame by frame, without a socket."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import Misuse, StoreFailed
from onefold.reconcile import Record, Session, exchange, record
from onefold.reconcile.exchange import NO_BODY, Opening, Pipe, Trouble
from onefold.reconcile.peer import READ_MAX, Peer, PeerBooks, ReconcileLimits
from onefold.reconcile.records import MemoryRecords
from tests.lib.examples import examples
from tests.lib.reconciling import Client, items, some, store

MESSAGE = bytes((exchange.MESSAGE,))
FIRST = MESSAGE + Session(items(range(50, 150))).initiate()


class Clock:
    """The CPU time of the server's threads: each look at it is so many seconds after the one before."""

    def __init__(self):
        self.now, self.step = 1_000.0, 0.0

    def __call__(self):
        self.now += self.step
        return self.now


class Talk:
    """A peer over these records, its clock and books, and a client of it."""

    def __init__(self, records, *, writable=True, bodies=True, **limits):
        self.clock, self.books, self.records = Clock(), PeerBooks(), records
        how = {"writable": writable, "bodies": bodies}
        self.peer = Peer(records, ReconcileLimits(**limits), self.clock, self.books, **how)
        self.client = Client(Pipe(self.peer.answer, self.peer.close))

    def ask(self, frame):
        return self.client.ask(frame)

    def trouble(self, frame):
        return self.client.trouble(frame)


def ids(records):
    return {record.id for record in records}


@pytest.mark.parametrize(("wire", "id_size", "frame"), [("v1", 32, 4_096), ("xor", 32, 1_024), ("xor", 16, 1_024)])
def test_a_client_finds_what_differs_fetches_it_and_pushes_the_rest(wire, id_size, frame):
    records = store(range(200, 2_000), id_size)
    talk = Talk(records)
    have, need = talk.client.find(items(range(1_800), id_size), wire, frame_size_max=frame)
    assert (have, need) == (ids(some(range(200), id_size)), ids(some(range(1_800, 2_000), id_size)))
    opened = talk.client.open(id_size=id_size, wire="xor")
    assert (opened.records, opened.bodies, opened.writable) == (1_800, True, True)
    got = exchange.read_records(talk.ask(exchange.write_ids(need)), id_size)
    assert all(record.genuine for record in got)
    assert ids(got) == need
    told = talk.ask(exchange.write_records(exchange.PUSH, some(range(200), id_size)))
    assert exchange.read_outcomes(told) == [exchange.STORED] * 200
    assert len(records) == 2_000


@given(st.sets(st.integers(0, 400)), st.sets(st.integers(0, 400)), st.integers(0, 45), st.integers(0, 45))
@settings(max_examples=examples(30), deadline=None)
def test_what_is_found_between_two_times_is_exact(ours, theirs, since, until):
    since, until = 1_000 + min(since, until), 1_000 + max(since, until)
    within = [number for number in ours if since <= 1_000 + number // 10 <= until]
    have, need = Talk(store(theirs)).client.find(items(within), since=since, until=until)
    there = {number for number in theirs if since <= 1_000 + number // 10 <= until}
    assert (have, need) == (ids(some(set(within) - there)), ids(some(there - set(within))))


def test_a_session_sees_the_records_of_its_beginning_and_a_fetch_those_of_now():
    records = store(range(10))
    talk = Talk(records)
    talk.client.open()
    session = Session(items(range(10)))
    records.add(some([10]))
    assert session.reconcile(talk.ask(MESSAGE + session.initiate())[1:]) == (None, [], [])
    (new,) = some([10])
    assert exchange.read_records(talk.ask(exchange.write_ids([new.id])), 32) == [new]


def test_a_frame_of_records_holds_the_first_that_fit_and_at_least_one():
    large = [record(number, bytes([number]) * 3_000) for number in range(50)]
    records = MemoryRecords()
    records.add(large)
    talk = Talk(records, message_bytes_max=10_240, frame_size_max=4_096, record_bytes_max=3_000)
    talk.client.open()
    asked = [record.id for record in large]
    assert exchange.read_records(talk.ask(exchange.write_ids(asked)), 32) == large[:3]
    assert exchange.read_records(talk.ask(exchange.write_ids(asked[3:])), 32) == large[3:6]
    huge = record(99, bytes(50_000))
    records.add([huge])
    assert exchange.read_records(talk.ask(exchange.write_ids([huge.id, *asked])), 32) == [huge]
    assert exchange.read_records(talk.ask(exchange.write_ids([])), 32) == []
    assert exchange.read_records(talk.ask(exchange.write_ids([large[0].id, huge.id])), 32) == large[:1]


def test_a_record_that_is_not_there_or_has_no_bytes_goes_out_without_a_body():
    records = store(range(2 * READ_MAX))
    records.add([Record(7, b"k" * 32)])
    talk = Talk(records)
    talk.client.open()
    here = some(range(2 * READ_MAX))
    asked = [b"n" * 32, *ids(here[:3]), b"k" * 32]
    got = exchange.read_records(talk.ask(exchange.write_ids(asked)), 32)
    assert [record.id for record in got] == asked
    assert [record for record in got if record.body is None] == [Record(0, b"n" * 32), Record(0, b"k" * 32)]
    many = [record.id for record in here]
    assert exchange.read_records(talk.ask(exchange.write_ids(many)), 32) == here


def test_a_store_that_knows_ids_alone_is_not_asked_for_bodies():
    talk = Talk(store(range(3)), bodies=False)
    assert not talk.client.open().bodies
    asked = [record.id for record in some(range(3))]
    assert exchange.read_records(talk.ask(exchange.write_ids(asked)), 32) == [Record(0, id) for id in asked]


def test_every_pushed_record_is_held_against_its_id():
    records = store(range(2))
    talk = Talk(records, record_bytes_max=100)
    talk.client.open()
    new, changed, moved, bare = record(5, b"new"), record(5, b"was this"), record(5, b"is late"), Record(5, b"i" * 32)
    pushed = [
        new, changed._replace(body=b"is that"), moved._replace(timestamp=6), bare, record(5, bytes(101)),
        some([1])[0], new,
    ]  # fmt: skip
    wrong = exchange.WRONG_ID
    taken = [exchange.STORED, wrong, wrong, wrong, exchange.TOO_LARGE, exchange.KNOWN, exchange.KNOWN]
    assert exchange.read_outcomes(talk.ask(exchange.write_records(exchange.PUSH, pushed))) == taken
    assert records.read([new.id, changed.id, moved.id, bare.id]) == [new, None, None, None]
    books = talk.books.pushed()
    assert {answer.reason: count for answer, count in books} == {"stored": 1, "known": 2, "wrong_id": 3, "too_large": 1}
    assert books.check().received == len(pushed)


HEAD = exchange.HEAD
OPEN = exchange.write_document(exchange.OPEN, Opening())
BAD_FRAMES = {
    "nothing": (b"", "an empty frame", 0),
    "an unknown kind": (b"Z", "0x5a is no kind of frame that a client sends", 0),
    "a server's kind": (b"R", "0x52 is no kind of frame that a client sends", 0),
    "a second open": (OPEN, "a session is open on this connection: close it first", 0),
    "no JSON": (b"O{", "the frame is not JSON: Expecting property name enclosed in double quotes at character 1", 1),
    "a field too many": (b'O{"x":1}', "unknown field 'x'", 1),
    "a wrong field": (b'O{"since":-1}', "since is -1, must be int", 1),
    "half an id": (b"F" + b"a" * 40, "8 bytes after the last id", 33),
    "half a head": (b"P" + b"a" * 20, "the frame ends inside the head of a record", 1),
    "half a body": (b"P" + HEAD.pack(1, 9) + b"a" * 40, "a body of 9 bytes, but only 8 are left", 9),
    "the last time": (b"P" + HEAD.pack(2**64 - 1, NO_BODY) + b"a" * 32, "timestamp 2^64 - 1 is reserved", 1),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_frame_that_is_none_is_an_error_that_names_the_byte(name):
    frame, text, offset = BAD_FRAMES[name]
    talk = Talk(store(range(100)))
    talk.client.open()
    assert talk.trouble(frame) == Trouble(error="bad_frame", text=text, offset=offset)
    assert talk.books.sessions == 0


BAD_OPENINGS: dict[str, dict] = {
    "version is 2, this server speaks 1": {"version": 2},
    "id_size is 16, the ids here have 32 bytes": {"id_size": 16},
    "frame_size_max is 100, must be 0 or at least 4096": {"frame_size_max": 100},
    "since is 5 and until 4: must be 0 <= since <= until < 2^64 - 1": {"since": 5, "until": 4},
}


@pytest.mark.parametrize("text", BAD_OPENINGS)
def test_a_session_that_cannot_be_is_refused_and_takes_no_seat(text):
    talk = Talk(store(range(3)))
    told = talk.trouble(exchange.write_document(exchange.OPEN, Opening(**BAD_OPENINGS[text])))
    assert (told.error, told.text) == ("bad_open", text)
    assert talk.books.sessions == 0


def test_wire_v1_needs_ids_of_32_bytes():
    told = Talk(store(range(3), 16)).trouble(exchange.write_document(exchange.OPEN, Opening(id_size=16)))
    assert (told.error, told.text) == ("bad_open", "ids have 16 bytes; those of wire v1 have 32")


@pytest.mark.parametrize("frame", [FIRST, b"F", b"P"])
def test_what_belongs_to_a_session_needs_one(frame):
    talk = Talk(store(range(3)))
    assert talk.trouble(frame).error == "not_open"
    talk.client.open()
    assert talk.ask(b"C") == talk.ask(b"C") == b"c"
    assert talk.trouble(frame).error == "not_open"


def test_a_broken_message_is_named_with_its_byte_and_ends_the_session():
    talk = Talk(store(range(100)))
    talk.client.open()
    told = talk.trouble(MESSAGE + b"\x61\x00\x00\x07")
    assert told == Trouble(error="bad_message", text="byte 3: unknown mode 7", offset=3)
    assert talk.books.sessions == 0
    assert talk.trouble(FIRST).error == "not_open"


def test_every_limit_of_a_session_has_a_name():
    asked = [record.id for record in some(range(5))]
    pushed = exchange.write_records(exchange.PUSH, some(range(5)))
    cases = {
        "rounds": ({"rounds_max": 2}, [MESSAGE + b"\x61"] * 3),
        "bytes": ({"bytes_max": 5_000}, [FIRST] * 9),
        "needs": ({"needs_max": 12}, [exchange.write_ids(asked)] * 3),
        "pushes": ({"pushes_max": 12}, [pushed] * 3),
        "frame": ({"message_bytes_max": 10_240, "frame_size_max": 4_096, "record_bytes_max": 9}, [bytes(10_241)]),
    }
    for name, (limits, frames) in cases.items():
        talk = Talk(store(range(100)), **limits)
        talk.client.open()
        answers = [talk.ask(frame) for frame in frames]
        told = exchange.read_document(Trouble, next(answer for answer in answers if answer[0] == exchange.ERROR))
        assert told.error == name
        assert f"{name}_max" in told.text or name in ("needs", "pushes", "frame")
        assert talk.books.sessions == 0


def test_a_peer_may_be_silent_for_a_time_between_messages_and_for_a_longer_one_between_records():
    records = Watched()
    talk = Talk(records, look_silence_s_max=60, transfer_silence_s_max=600)
    talk.client.open()
    talk.peer.waited(30)
    talk.peer.waited(29)
    assert talk.ask(FIRST)[0] == exchange.MESSAGE
    assert talk.ask(b"F") == b"R"
    assert records.closed == 0
    talk.peer.waited(2)
    assert talk.ask(b"F") == b"R"
    assert records.closed == 1  # no message may follow, so nobody needs the snapshot
    silent = "the session is over: the peer was silent for more than"
    assert talk.trouble(FIRST).text == f"{silent} 60 s in total"
    talk.client.open()
    talk.peer.waited(601)
    assert talk.trouble(b"F") == Trouble(error="time", text=f"{silent} 600 s in total")
    talk.client.open()
    talk.peer.waited(601)
    talk.peer.expire()
    assert talk.books.sessions == 0


def test_a_session_ends_when_its_messages_took_as_much_cpu_as_they_may():
    records = Watched()
    talk = Talk(records, work_s_max=60)
    talk.clock.step = 25
    talk.client.open()
    for _ in range(3):
        assert talk.ask(FIRST)[0] == exchange.MESSAGE
    told = "the session is over: it took more than 60 s of CPU, work_s_max"
    assert talk.trouble(FIRST) == Trouble(error="work", text=told)
    assert talk.books.sessions == 0


def test_asking_for_nothing_is_counted_too():
    for limit, frame in (("needs", b"F"), ("pushes", b"P")):
        talk = Talk(store(range(3)), **{f"{limit}_max": 5})
        talk.client.open()
        for _ in range(5):
            assert talk.ask(frame)[0] != exchange.ERROR
        assert talk.trouble(frame).error == limit


class Watched(MemoryRecords):
    """Tells when a snapshot is closed; fails when told to."""

    closed: int = 0
    broken: Exception | None = None

    def snapshot(self):
        self._fail()
        snapshot = super().snapshot()
        snapshot.close = self._count  # type: ignore[method-assign]
        return snapshot

    def add(self, records):
        self._fail()
        return super().add(records)

    def read(self, ids):
        self._fail()
        return super().read(ids)

    def _count(self):
        self.closed += 1

    def _fail(self):
        if self.broken is not None:
            raise self.broken


def test_seats_are_shared_by_all_connections():
    records, limits, books = Watched(), ReconcileLimits(sessions_max=2), PeerBooks()
    peers = [Peer(records, limits, Clock(), books) for _ in range(3)]
    clients = [Client(Pipe(peer.answer, peer.close)) for peer in peers]
    clients[0].open()
    clients[1].open()
    assert clients[2].trouble(OPEN).error == "busy"
    clients[0].channel.close()
    clients[0].channel.close()
    assert records.closed == 1
    clients[2].open()
    assert books.sessions == 2


def test_a_store_that_fails_is_an_error_that_can_be_tried_again():
    records = Watched()
    talk = Talk(records)
    records.broken = StoreFailed("the disk is full")
    assert talk.trouble(OPEN) == Trouble(error="store_failed", text="the disk is full")
    records.broken = ZeroDivisionError("what nobody expected is not shown")
    assert talk.trouble(OPEN) == Trouble(error="store_failed", text="ZeroDivisionError")
    records.broken = None
    talk.client.open()
    records.broken = OSError(5, "secret/path")
    assert talk.trouble(exchange.write_ids([b"a" * 32])) == Trouble(error="store_failed", text="OSError")
    assert talk.books.sessions == 0


def test_a_server_that_is_only_read_says_so():
    records = store(range(3))
    talk = Talk(records, writable=False)
    assert not talk.client.open().writable
    assert talk.trouble(exchange.write_records(exchange.PUSH, some([5]))).error == "read_only"
    assert len(records) == 3


def test_after_too_many_errors_the_connection_is_over():
    talk = Talk(store(range(3)), troubles_max=3)
    for _ in range(2):
        talk.trouble(b"Z")
        assert not talk.peer.over
    talk.trouble(b"Z")
    assert talk.peer.over
    assert talk.books.troubles() == {"bad_frame": 3}


def test_no_bytes_make_it_raise():
    rng = random.Random(5)
    talk = Talk(store(range(300)), troubles_max=10**9)
    frames = [
        OPEN,
        FIRST,
        exchange.write_ids(ids(some(range(9)))),
        exchange.write_records(exchange.PUSH, some(range(300, 309))),
    ]
    for _ in range(3_000):
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.randrange(3)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        answer = talk.peer.answer(bytes(frame[: rng.choice((len(frame), rng.randrange(len(frame) + 1)))]))
        assert answer[0] in b"oMRpe"
        assert b"store_failed" not in answer
    assert set(talk.books.troubles()) >= {"bad_frame", "bad_message", "not_open", "bad_open"}


def test_a_limit_that_makes_no_sense_is_misuse():
    for limits in (
        {"idle_s": 0},
        {"frame_size_max": 4_095},
        {"frame_size_max": 600_000},
        {"record_bytes_max": 1 << 20},
    ):
        with pytest.raises(Misuse, match=next(iter(limits))):
            ReconcileLimits(**limits)


def test_a_pipe_answers_in_order_and_is_lost_when_it_is_closed():
    closed: list[int] = []
    pipe = Pipe(lambda data: data * 2, lambda: closed.append(1))
    pipe.send(b"a")
    pipe.send(b"b")
    assert (pipe.receive(), pipe.receive()) == (b"aa", b"bb")
    with pytest.raises(Misuse, match="every frame that was sent"):
        pipe.receive()
    pipe.close()
    pipe.close()
    assert closed == [1]
    with pytest.raises(ConnectionError):
        pipe.send(b"c")
    with pytest.raises(ConnectionError):
        pipe.receive()


def test_a_frame_of_records_that_cannot_be_taken_is_in_the_books_too():
    records = Watched()
    talk = Talk(records, pushes_max=5)
    talk.client.open()
    records.broken = StoreFailed("the disk is full")
    assert talk.trouble(exchange.write_records(exchange.PUSH, some(range(3)))).error == "store_failed"
    records.broken = None
    talk.client.open()
    assert talk.trouble(exchange.write_records(exchange.PUSH, some(range(9)))).error == "pushes"
    assert str(talk.books.pushed().check()) == "12 in = 0 first + 0 repeat + 12 unsure + 0 reject"
