"""Peers that lie, break the rules or never stop: each is refused by name, and the session is as it was."""

import random
import tracemalloc
from time import process_time

import numpy as np
import pytest

from onefold.errors import BadInput
from onefold.reconcile import ItemSet, Limits, Session, SessionLimit, Violation
from onefold.reconcile.codec import write_number

HOSTILE_SIZE = 128 * 1024
FUZZ_EACH = 62_500  # inputs for each wire and role


def sealed(stamps, ids):
    items = ItemSet.from_arrays(stamps, ids)
    items.seal()
    return items


def random_set(count, seed, id_size=32):
    grow = np.random.default_rng(seed)
    ids = np.frombuffer(grow.bytes(count * id_size), dtype=np.uint8).reshape(count, id_size)
    return sealed(grow.integers(1_000, 1_000 + count * 3, count), ids)


ITEMS = random_set(400, 1)
OTHERS = random_set(400, 2)
FEW = sealed([5, 6, 7], [bytes([i]) * 32 for i in (1, 2, 3)])


def side(role, wire="v1", items=ITEMS, **how):
    session = Session(items, wire, **how)
    if role == "client":
        session.initiate()
    return session


def state(session):
    return session.spent, session._questions, list(session._waiting)


@pytest.mark.parametrize(
    ("ranges", "offset", "match"),
    [
        ("80 00 00 00", 1, "a number with a leading zero digit|minimal number"),
        ("81 80 80 80 80 80 80 80 80 80 00 00 00", 1, "does not end within 10 bytes|minimal number"),
        ("83 80 80 80 80 80 80 80 80 00 00 00", 1, "2\\^64 or more|minimal number"),
        ("81 ff ff ff ff ff ff ff ff 7f 00 00 02 00 00", 13, "a timestamp of 2\\^64 - 1 or more|below"),
        ("05 21", 2, "a prefix longer than an id, which has 32 bytes"),
        ("05 80 00", 2, "a prefix longer than an id"),
        ("05 01 09 00 01 00 00", 5, "a bound that is below the one before it"),
        ("05 01 09 00 01 01 08 00", 5, "a bound that is below the one before it"),
        ("05 02 09 01 00 01 02 09 00 00", 6, "a bound that is below the one before it"),
        ("00 00 00 01 00 00", 4, "below the one before it|2\\^64 - 1 or more"),
        ("05 00 00 01 00 02 01" + " 09" * 32, 4, "ids in an empty range"),
        ("05 00 03", 3, "unknown mode 3"),
        ("05 00 07", 3, "unknown mode 7"),
        ("05 00 81 00", 3, "unknown mode 129"),
        ("05", 2, "the message ends inside a range"),
        ("05 02 01", 4, "the message ends inside a range"),
        ("00 00 01 00 00", 1, "goes on beyond the end"),
        ("00 00 02 02" + " 00" * 32, 1, "goes on beyond the end"),
        ("00 00 02 81 ff ff ff ff ff ff ff ff 7f", 1, "goes on beyond the end"),
        ("00 00 02 80 01" + " 00" * 32, 4, "leading zero digit"),
        ("00 00 02 02" + " 00" * 64, 37, "an id that is in its list twice"),
    ],
)
@pytest.mark.parametrize("role", ["client", "server"])
def test_what_breaks_the_protocol_is_refused_with_its_byte(role, ranges, offset, match):
    for padding in (0, 100):  # a few ranges are looked at one by one, many as columns
        session = side(role, items=FEW)
        skips = b"".join(b"\x02\x00\x00" for _ in range(padding))
        before = state(session)
        with pytest.raises(Violation, match=match) as caught:
            session.reconcile(b"\x61" + skips + bytes.fromhex(ranges))
        if not padding or ranges[:2] not in ("00", "01", "81"):  # behind others these go wrong elsewhere
            assert caught.value.values["offset"] == offset + len(skips)
        assert state(session) == before


@pytest.mark.parametrize(("message", "match"), [(b"", "empty message"), (b"\x51", "0x51 is no version")])
@pytest.mark.parametrize("role", ["client", "server"])
def test_what_is_no_message_of_the_protocol_is_refused(role, message, match):
    with pytest.raises(Violation, match=match):
        side(role).reconcile(message)


def test_a_list_for_what_was_not_asked_is_refused():
    client = side("client")
    differs_below_1500 = b"\x61" + write_number(1_501) + b"\x00\x01" + bytes(16)
    assert client.reconcile(differs_below_1500).reply is not None
    before = state(client)
    above = b"\x61" + write_number(1_601) + b"\x00\x00" + b"\x00\x00\x02\x01" + b"\x09" * 32
    with pytest.raises(Violation, match="byte 5: a list of ids for a range that was not asked about"):
        client.reconcile(above)
    assert state(client) == before


@pytest.mark.parametrize(
    ("ranges", "match"),
    [
        ("00 00 03 00 02 00 00", "2 bytes of bits for 3 listed ids"),
        ("00 00 03 00 01 08", "a bit for more than the 3 listed ids"),
        ("00 00 03 01" + " 01" * 32 + " 00", "a Response with an id that was listed, or is in it twice"),
        ("00 00 03 02" + " 09" * 64 + " 00", "a Response with an id that was listed, or is in it twice"),
        ("06 00 03 00 00", "a Response to something that was not listed"),
        ("01 00 03 00 01 01", "ids in an empty range"),
        ("00 00 03 00 81", "a number that does not end"),
    ],
)
def test_responses_that_make_no_sense_are_refused(ranges, match):
    session = side("client", "xor", items=FEW)
    with pytest.raises(Violation, match=match):
        session.reconcile(bytes.fromhex(ranges))
    assert session.reconcile(bytes.fromhex("00 00 03 00 01 05")).have == [b"\x01" * 32, b"\x03" * 32]


def test_a_server_takes_no_responses():
    with pytest.raises(Violation, match="unknown mode 3"):
        side("server", "xor").reconcile(bytes.fromhex("00 00 03 00 00"))


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("wire", ["v1", "xor"])
def test_random_bytes_never_do_more_than_raise_bad_input(wire, role):
    """Four times 62,500: a quarter of a million in all."""
    rng = random.Random(f"{wire} {role}")
    noise, head = rng.randbytes(4 * FUZZ_EACH), b"\x61" if wire == "v1" else b""
    # Half of it looks like the beginning of ranges, so that more is read before it goes wrong.
    likely = bytes(rng.choice(b"\x00\x01\x02\x03\x05\x7f\x80\x81\xff") for _ in range(4 * FUZZ_EACH))
    session = side(role, wire)
    before, refused = state(session), 0
    for i in range(FUZZ_EACH):
        source = likely if i % 2 else noise
        size = 1 + noise[i] % 50
        try:
            session.reconcile(head + source[4 * i : 4 * i + size])
        except BadInput:
            refused += 1
            assert session.spent is before[0]
        else:
            session = side(role, wire)
            before = state(session)
    assert state(session) == before
    assert refused > FUZZ_EACH // 2


@pytest.mark.parametrize("wire", ["v1", "xor"])
def test_damaged_and_cut_messages_never_do_more_than_raise_bad_input(wire):
    rng = random.Random(wire)
    client, server = side("client", wire, items=OTHERS), side("server", wire)
    question = Session(OTHERS, wire).initiate()
    reply = server.reconcile(question).reply
    assert reply is not None
    for message, session in ((question, server), (reply, client)):
        for i in range(500):
            damaged = bytearray(message)
            for _ in range(rng.choice((1, 1, 3, 20))):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            cut = bytes(damaged)[: rng.randrange(len(damaged))] if i % 3 == 0 else bytes(damaged)
            before = state(session)
            try:
                session.reconcile(cut)
            except BadInput:
                assert state(session) == before
            else:
                session.spent, session._questions, session._waiting = before


@pytest.mark.parametrize(
    "hostile",
    [
        b"\xff" * HOSTILE_SIZE,
        b"\x80" * HOSTILE_SIZE,
        b"\x02\x00\x00" * (HOSTILE_SIZE // 3 - 1) + b"\x02\x00\x07",
        b"\x02\x00\x02\x00" * (HOSTILE_SIZE // 4 - 1) + b"\x02\x00\x07",
        b"\x01\x00\x02\x00" * (HOSTILE_SIZE // 4 - 1) + b"\x02\x00\x07",
        (b"\x02\x00\x01" + b"\x33" * 16) * (HOSTILE_SIZE // 19 - 1) + b"\x02\x00\x07",
        b"\x00\x00\x02\x81\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(HOSTILE_SIZE),
        random.Random(9).randbytes(HOSTILE_SIZE),
        b"\x00\x00\x02\xa0\x00" + bytes(32 * 4_096),
    ],
    ids=[
        "ones",
        "zero digits",
        "skips",
        "empty lists",
        "no width",
        "fingerprints",
        "huge count",
        "noise",
        "one id, often",
    ],
)
def test_a_long_hostile_message_is_refused_in_no_time_and_little_memory(hostile):
    server = side("server")
    best = 1.0
    for _ in range(3):
        start = process_time()
        with pytest.raises(Violation):
            server.reconcile(b"\x61" + hostile)
        best = min(best, process_time() - start)
    assert best < 0.05  # 0.01 on a quiet machine
    tracemalloc.start()
    with pytest.raises(Violation):
        server.reconcile(b"\x61" + hostile)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000


def test_no_question_gets_a_reply_beyond_the_frame_or_a_look_at_all_records():
    items = random_set(60_000, 3)
    for wire, head in (("v1", b"\x61"), ("xor", b"")):
        for question in (b"\x00\x00\x02\x00", b"\x02\x00\x02\x00" * 20_000, (b"\x09\x00\x01" + b"\x33" * 32) * 3_000):
            if wire == "v1":
                question = question.replace(b"\x33" * 32, b"\x33" * 16)
            server = side("server", wire, items=items, frame_size_max=8_000)
            start = process_time()
            assert len(server.reconcile(head + question).reply or b"") <= 8_000
            assert process_time() - start < 1


def repeat(session, message):
    for _ in range(200):
        session.reconcile(message)


def test_a_server_that_never_comes_to_an_end_is_stopped_by_rounds():
    client = side("client")
    with pytest.raises(SessionLimit, match="rounds, rounds_max is 64"):
        repeat(client, b"\x61\x00\x00\x01" + bytes(16))
    assert client.spent.rounds < 100


def test_a_client_that_never_comes_to_an_end_is_stopped_too():
    server = side("server", limits=Limits(rounds_max=10))
    with pytest.raises(SessionLimit, match="rounds, rounds_max is 10"):
        repeat(server, b"\x61")


def test_a_peer_that_sends_too_much_is_stopped_by_bytes():
    server = side("server", limits=Limits(bytes_max=10_000))
    with pytest.raises(SessionLimit, match="bytes passed, bytes_max is 10000"):
        repeat(server, b"\x61\x00\x00\x01" + bytes(16))


def test_fabricated_ids_are_stopped_by_needs():
    client = side("client", items=FEW, limits=Limits(needs_max=100))
    before = state(client)
    made_up = b"".join(i.to_bytes(32) for i in range(101))
    with pytest.raises(SessionLimit, match="the peer named 101 ids that we lack, needs_max is 100"):
        client.reconcile(b"\x61\x00\x00\x02\x65" + made_up)
    assert state(client) == before
    assert len(client.reconcile(b"\x61\x00\x00\x02\x64" + made_up[:3_200]).need) == 100


def combination(target, vectors):
    """Which of these numbers give the target by exclusive or: elimination over GF(2)."""
    basis: dict[int, tuple[int, int]] = {}
    for place, vector in enumerate(vectors):
        chosen = 1 << place
        while vector and (top := vector.bit_length()) in basis:
            vector, chosen = vector ^ basis[top][0], chosen ^ basis[top][1]
        if vector:
            basis[vector.bit_length()] = vector, chosen
    chosen = 0
    while target:
        vector, combined = basis[target.bit_length()]
        target, chosen = target ^ vector, chosen ^ combined
    return [place for place in range(len(vectors)) if chosen >> place & 1]


def test_a_forged_set_deceives_xor_and_not_v1():
    """264 made-up records, some of which together look like the one that is withheld."""
    rng = random.Random(12)
    honest = {10 * i: rng.randbytes(32) for i in range(1, 1_001)}
    withheld = honest[5_000]
    made_up = [rng.randbytes(32) for _ in range(264)]
    chosen = combination(int.from_bytes(withheld), [int.from_bytes(id) for id in made_up])
    forged = [(stamp, id) for stamp, id in honest.items() if id != withheld] + [(5_001, made_up[i]) for i in chosen]
    victim = sealed(list(honest), list(honest.values()))
    attacker = sealed([stamp for stamp, _ in forged], [id for _, id in forged])
    found = {}
    for wire in ("xor", "v1"):
        client, server = side("server", wire, items=victim), side("server", wire, items=attacker)
        have: list[bytes] = []
        need: list[bytes] = []
        message = client.initiate()
        while message is not None:
            message, more_have, more_need = client.reconcile(server.reconcile(message).reply)
            have, need = have + more_have, need + more_need
        found[wire] = have, sorted(need)
    assert found["xor"] == ([], [])
    assert found["v1"] == ([withheld], sorted(made_up[i] for i in chosen))
