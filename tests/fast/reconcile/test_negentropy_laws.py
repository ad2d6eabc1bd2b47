"""What is found is exact: for any sets, wires, roles, splits, id sizes and frame limits, and beside a plain peer."""

import random
from bisect import bisect_right
from dataclasses import replace
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np
import pytest

from onefold.errors import Misuse
from onefold.reconcile import ItemSet, Limits, Session
from onefold.reconcile.codec import FEW, V1, Layout, Mode, Writer, _read_few, read_ranges, split, universe
from tests.lib.negentropy_peer import PlainPeer, Reader
from tests.lib.negentropy_peer import Writer as PlainWriter

SHAPES = {"one second": 1, "few seconds": 5, "seconds": 10**6, "milliseconds": 10**11, "shared prefixes": 3}
SHARES = (0.0, 0.001, 0.01, 0.1, 0.5, 1.0)


def records_of(rng, count, id_size, shape):
    """Random records: timestamps and ids, some of them hard to separate."""
    grow = np.random.default_rng(rng.randrange(2**32))
    ids = np.frombuffer(grow.bytes(count * id_size), dtype=np.uint8).reshape(count, id_size).copy()
    if shape == "shared prefixes":
        ids[:, : id_size - 3] = 7
        ids = np.unique(ids, axis=0)
    start = 2**64 - 1 - SHAPES[shape] if rng.random() < 0.05 else 1_700_000_000
    stamps = np.uint64(start) + grow.integers(0, SHAPES[shape], len(ids)).astype(np.uint64)
    return stamps, ids


def two_sides(rng, count, id_size, shape):
    """The same records less some of them on each side, at random or in a row."""
    stamps, ids = records_of(rng, count, id_size, shape)
    sides = []
    for _ in range(2):
        kept = np.array([rng.random() for _ in ids]) >= rng.choice(SHARES)
        if rng.random() < 0.15:
            kept[len(ids) // 3 : len(ids) // 2] = False
        sides.append((stamps[kept], ids[kept]))
    return sides


def sealed(side, id_size):
    items = ItemSet.from_arrays(side[0], side[1], id_size)
    items.seal()
    return items


def ids_of(side):
    return {row.tobytes() for row in side[1]}


def play(client, server, frames=(0, 0)):
    """Let two sides talk to the end: what only the client has, what only the server has, and the round trips."""
    have: list[bytes] = []
    need: list[bytes] = []
    message, rounds = client.initiate(), 0
    while message is not None:
        assert not frames[0] or len(message) <= frames[0]
        reply = server.reconcile(message)[0]
        assert not frames[1] or len(reply) <= frames[1]
        message, more_have, more_need = client.reconcile(reply)
        have, need, rounds = have + more_have, need + more_need, rounds + 1
    return have, need, rounds


def assert_exact(have, need, client_side, server_side):
    assert len(have) == len(set(have))
    assert len(need) == len(set(need))
    mine, theirs = ids_of(client_side), ids_of(server_side)
    assert set(have) == mine - theirs
    assert set(need) == theirs - mine


@pytest.mark.parametrize(("wire", "limited", "part"), list(product(("v1", "xor"), (False, True), range(3))))
def test_what_is_found_is_exact(wire, limited, part):
    """12 x 175 pairs; which of the two is the client is chance, they are made alike."""
    rng = random.Random(f"{wire} {limited} {part}")
    for _ in range(175):
        id_size = 32 if wire == "v1" else rng.choice((8, 9, 16, 20, 32))
        count = rng.choice((0, 1, 5, 31, 32, 33, 60, 150, 400)) if rng.random() < 0.95 else 3_000
        sides = two_sides(rng, count, id_size, rng.choice(list(SHAPES)))
        least = 4_096 if wire == "v1" else 1_024
        frames = (rng.choice((0, least, 5_000)), rng.choice((least, 6_000, 0))) if limited else (0, 0)
        split, list_below = rng.choice(((16, 32), (16, 32), (2, 2), (8, 50), (16, 16)))
        reply: Any = rng.choice(("sparse", "full"))
        client, server = (
            Session(sealed(side, id_size), wire, frame_size_max=frame, reply=reply, split=split, list_below=list_below)
            for side, frame in zip(sides, frames, strict=True)
        )
        have, need, _ = play(client, server, frames)
        assert_exact(have, need, *sides)


class Leaves:
    """A set that is far away: it keeps its records in leaves of 50, cuts between them, and fetches what is expected.

    Asked about anything else than the ends of leaves and what it has fetched, it fails.
    """

    leaf = 50

    def __init__(self, items):
        self.items, self.id_size, self.count = items, items.id_size, len(items)
        self.here = np.full(self.count + 1, self.count <= self.leaf)

    def __len__(self):
        return self.count

    def expect(self, upper, whole):
        ends = self.items.find(upper)
        starts = np.append(0, ends)[: len(ends)]
        for start, end, listed in zip(starts.tolist(), ends.tolist(), whole.tolist(), strict=True):
            if end % self.leaf:
                self.here[end - end % self.leaf : end - end % self.leaf + self.leaf] = True
            if listed or end - start <= self.leaf:
                self.here[start:end] = True

    def cuts(self, ranks, lower, upper):
        lowest, highest = (lower // self.leaf + 1) * self.leaf, (upper - 1) // self.leaf * self.leaf
        near = np.clip((ranks + self.leaf // 2) // self.leaf * self.leaf, lowest, highest)
        return np.where(lowest <= highest, near, ranks)

    def find(self, bounds):
        return self.items.find(bounds)

    def sums(self, lower, upper):
        self.look(np.concatenate((lower, upper)), (0,))
        return self.items.sums(lower, upper)

    def xors(self, lower, upper):
        self.look(np.concatenate((lower, upper)), (0,))
        return self.items.xors(lower, upper)

    def rows(self, ranks):
        self.look(ranks, (0, self.leaf - 1))
        return self.items.rows(ranks)

    def look(self, ranks, ends):
        known = self.here[ranks] | np.isin(ranks % self.leaf, ends) | (ranks >= self.count - 1)
        assert known.all(), f"a look at {ranks[~known]}, which nobody said would come"

    def snapshot(self):
        return self


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("wire", ["v1", "xor"])
def test_what_is_found_is_exact_where_a_set_is_far_away_and_chooses_its_cuts(wire, limited):
    rng = random.Random(f"leaves {wire} {limited}")
    for turn in range(50):
        sides = two_sides(rng, rng.choice((0, 40, 60, 400, 1_500)), 32, rng.choice(list(SHAPES)))
        frames = (rng.choice((0, 4_096)), rng.choice((4_096, 6_000))) if limited else (0, 0)
        how: Any = {"wire": wire, "reply": rng.choice(("sparse", "full")), "split": rng.choice((2, 16))}
        client, server = (
            Session(items if near else Leaves(items), frame_size_max=frame, **how)
            for items, near, frame in zip(
                (sealed(side, 32) for side in sides), (turn % 3 == 1, turn % 3 == 2), frames, strict=True
            )
        )
        have, need, _ = play(client, server, frames)
        assert_exact(have, need, *sides)


@pytest.mark.parametrize("shape", list(SHAPES))
def test_ranges_are_written_and_read_one_by_one_as_they_are_at_once(shape):
    rng = random.Random(shape)
    items = sealed(records_of(rng, 2_000, 32, shape), 32).snapshot()
    pieces, _ = split(items, universe(items), 4 * FEW, 4 * FEW)
    modes = np.array([rng.choice((Mode.FINGERPRINT, Mode.ID_LIST)) for _ in range(len(pieces))], dtype=np.uint8)
    kept = np.array([rng.random() < 0.8 for _ in modes])  # the others are Skips
    ranges = replace(pieces, modes=modes).take(kept)
    writer = Writer(items, V1)
    (data, ends), written, after = writer.write(ranges), [], None
    for start in range(0, len(ranges), FEW):
        few = ranges.take(slice(start, start + FEW))
        written.append(writer.write(few, after))
        after = few.upper.take(slice(-1, None))
    assert b"".join(part for part, _ in written) == data
    assert [size for _, part in written for size in np.diff(part, prepend=0)] == np.diff(ends, prepend=0).tolist()
    layout = Layout(32, 16, responses=False)
    incoming = read_ranges(data, 0, layout)
    upper, bodies = _read_few(data, incoming.starts.tolist(), layout)
    assert upper.one_by_one() == incoming.upper.one_by_one()
    assert bodies.tolist() == incoming.bodies.tolist()


def test_both_roles_find_the_same():
    rng = random.Random(1)
    for _ in range(50):
        items = [sealed(side, 32) for side in two_sides(rng, 300, 32, rng.choice(list(SHAPES)))]
        have, need, _ = play(*map(Session, items))
        swapped = play(*map(Session, reversed(items)))
        assert (sorted(have), sorted(need)) == (sorted(swapped[1]), sorted(swapped[0]))


@pytest.mark.parametrize("wire", ["v1", "xor"])
def test_without_limits_every_byte_is_that_of_a_plain_peer(wire):
    rng = random.Random(wire)
    for _ in range(60):
        id_size = 32 if wire == "v1" else rng.choice((8, 13, 16, 32))
        sides = two_sides(rng, rng.choice((0, 3, 32, 100, 700)), id_size, rng.choice(list(SHAPES)))
        ours = [Session(sealed(side, id_size), wire, reply="full") for side in sides]
        plain = [PlainPeer(list(zip(*map(list_of, side), strict=True)), wire, id_size) for side in sides]
        found: list[list[bytes]] = [[]] * 4
        message: Any = ours[0].initiate()
        assert message == plain[0].initiate()
        while message is not None:
            reply = plain[1].reconcile(message)[0]
            assert ours[1].reconcile(message).reply == reply
            message, *more = ours[0].reconcile(reply)
            plainly = plain[0].reconcile(reply)
            assert message == plainly[0]
            found = [[*all_, *some] for all_, some in zip(found, (*more, *plainly[1:]), strict=True)]
            if wire == "v1" or message is None:
                assert [sorted(ids) for ids in found[:2]] == [sorted(ids) for ids in found[2:]]


def list_of(column):
    return column.tolist() if column.ndim == 1 else [row.tobytes() for row in column]


@pytest.mark.parametrize("reply", ["sparse", "full"])
@pytest.mark.parametrize("wire", ["v1", "xor"])
def test_a_plain_peer_understands_us_and_we_understand_it_with_frame_limits(wire, reply):
    rng = random.Random(f"{wire} {reply}")
    for _ in range(40):
        id_size = 32 if wire == "v1" else 16
        sides = two_sides(rng, rng.choice((0, 40, 300, 1_200)), id_size, rng.choice(list(SHAPES)))
        items, records = sealed(sides[0], id_size), list(zip(*map(list_of, sides[1]), strict=True))
        ours_max, plain_max = rng.choice((0, 4_096)), 0 if wire == "xor" else rng.choice((0, 8_000))
        ours = Session(items, wire, frame_size_max=ours_max, reply=reply)
        have, need, _ = play(ours, PlainPeer(records, wire, id_size, plain_max), (ours_max, plain_max))
        assert_exact(have, need, sides[0], sides[1])
        ours = Session(items, wire, frame_size_max=ours_max, reply=reply)
        have, need, _ = play(PlainPeer(records, wire, id_size), ours, (0, ours_max))
        # A plain client forgets what it has found, and may find it again behind a full frame.
        assert (set(have), set(need)) == (ids_of(sides[1]) - ids_of(sides[0]), ids_of(sides[0]) - ids_of(sides[1]))


def test_a_million_records_with_one_difference_take_three_round_trips_and_few_bytes():
    grow = np.random.default_rng(7)
    stamps = (1_700_000_000 + grow.integers(0, 30_000_000, 1_000_000)).astype(np.uint64)
    ids = np.frombuffer(grow.bytes(32_000_000), dtype=np.uint8).reshape(-1, 32)
    cases: Any = (("xor", 16, 920, 700), ("v1", 32, 1_200, 1_200))
    for wire, id_size, up, down in cases:
        rows = np.ascontiguousarray(ids[:, :id_size])
        items = sealed((stamps, rows), id_size)
        server = Session(items, wire)
        items.remove(int(stamps[5]), rows[5].tobytes())
        client = Session(items, wire)
        assert play(client, server) == ([], [rows[5].tobytes()], 3)
        assert client.spent.bytes_out <= up
        assert client.spent.bytes_in <= down


def test_the_sparse_reply_is_a_fraction_of_the_full_one():
    """With this many records it is the client that lists, as it is with a million."""
    rng, downloads = random.Random(3), {}
    stamps, ids = records_of(rng, 5_000, 32, "seconds")
    kept = [np.array([rng.random() > 0.05 for _ in ids]) for _ in range(2)]
    sides = [(stamps[here], ids[here]) for here in kept]
    for reply in ("sparse", "full"):
        client, server = (Session(sealed(side, 32), reply=reply) for side in sides)
        assert_exact(*play(client, server)[:2], *sides)
        downloads[reply] = client.spent.bytes_in
    assert downloads["sparse"] * 4 < downloads["full"]


def test_a_list_that_is_not_in_order_is_answered_whole():
    """Published peers list ids in order. One that does not is still understood where it can be seen."""
    ids = [bytes([i]) * 32 for i in range(1, 9)]
    server = Session(sealed(([5] * 8, np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 32)), 32))
    backwards = b"\x61\x00\x00\x02\x03" + ids[6] + ids[4] + ids[2]
    assert server.reconcile(backwards).reply == b"\x61\x00\x00\x02\x08" + b"".join(ids)


def test_rounds_grow_with_the_logarithm_of_the_records():
    rng = random.Random(4)
    for count, rounds_max in ((30, 1), (500, 2), (8_000, 2), (100_000, 3)):
        sides = two_sides(rng, count, 32, "seconds")
        assert play(*(Session(sealed(side, 32)) for side in sides))[2] <= rounds_max


@pytest.mark.parametrize(
    ("wire", "id_size", "frame"),
    [("v1", 32, 4_096), ("xor", 32, 4_096), ("xor", 32, 1_024), ("xor", 16, 1_024), ("xor", 8, 1_100)],
)
def test_small_frames_force_rounds_but_no_more_than_the_bytes_need(wire, id_size, frame):
    rng = random.Random(5)
    for shape in ("few seconds", "shared prefixes", "seconds"):
        sides = two_sides(rng, 4_000, id_size, shape)
        client, server = (Session(sealed(side, id_size), wire, frame_size_max=frame) for side in sides)
        have, need, rounds = play(client, server, (frame, frame))
        assert_exact(have, need, *sides)
        assert rounds <= 6 + (client.spent.bytes_out + client.spent.bytes_in) // (frame // 2)


def test_a_session_sees_its_records_as_they_were_when_it_was_made():
    rng = random.Random(6)
    sides = two_sides(rng, 1_000, 32, "seconds")
    items = [sealed(side, 32) for side in sides]
    client, server = map(Session, items)
    for item in items:
        item.add(5, bytes(32))
    assert_exact(*play(client, server)[:2], *sides)


def test_a_server_answers_another_version_with_its_own_and_a_client_gives_up():
    items = sealed(([1], np.zeros((1, 32), dtype=np.uint8)), 32)
    assert Session(items).reconcile(b"\x62\x00\x00\x09") == (b"\x61", [], [])
    client = Session(items)
    client.initiate()
    with pytest.raises(Exception, match="byte 0: the peer speaks version 0x60, not 0x61"):
        client.reconcile(b"\x60")


def test_a_session_that_makes_no_sense_is_misuse():
    items, short = sealed(([1], np.zeros((1, 32), np.uint8)), 32), sealed(([1], np.zeros((1, 16), np.uint8)), 16)
    unknown: Any = "v2"
    for wrong, match in (
        (lambda: Session(short), "ids have 16 bytes; those of wire v1 have 32"),
        (lambda: Session(items, unknown), "wire is 'v2', must be 'v1' or 'xor'"),
        (lambda: Session(items, id_size=16), "id_size is 16, and the ids have 32 bytes"),
        (lambda: Session(items, frame_size_max=4_095), "frame_size_max is 4095, must be 0 or at least 4096"),
        (lambda: Session(items, "xor", frame_size_max=1_023), "frame_size_max is 1023, must be 0 or at least 1024"),
        (
            lambda: Session(items, "xor", frame_size_max=1_024, split=30, list_below=99),
            "split is 30, must be at most 27: a frame of 1024 bytes lists fewer ids",
        ),
        (lambda: Session(items, reply=unknown), "reply is 'v2', must be 'sparse' or 'full'"),
        (lambda: Session(items, split=1), "split is 1, must be at least 2"),
        (lambda: Session(items, list_below=15), "list_below is 15, must be at least split, 16"),
        (lambda: Session(ItemSet()), "the set is not sealed"),
        (lambda: Limits(rounds_max=0), "rounds_max is 0, must be at least 1"),
    ):
        with pytest.raises(Misuse, match=match):
            wrong()
    client = Session(items)
    client.initiate()
    with pytest.raises(Misuse, match="under way already"):
        client.initiate()
    assert client.reconcile(b"\x61").reply is None
    with pytest.raises(Misuse, match="the session is done"):
        client.reconcile(b"\x61")


def with_empty_ranges(message, wire, id_size, rng, most):
    """The same message with ranges of no width put in: at the beginning, between any two ranges, and at the end."""
    head = 1 if wire == "v1" else 0
    reader, writer = Reader(message, head), PlainWriter()
    print_size = 16 if wire == "v1" else id_size

    def put_in(bound):
        for _ in range(rng.randint(0, most)):
            mode = rng.choice((Mode.SKIP, Mode.FINGERPRINT, Mode.ID_LIST))
            payload = {Mode.SKIP: b"", Mode.FINGERPRINT: rng.randbytes(print_size), Mode.ID_LIST: b"\0"}[mode]
            writer.range(bound, mode, payload)

    put_in((0, b""))
    while reader.at < len(message):
        bound, mode, start = reader.bound(), reader.number(), reader.at
        if mode == Mode.FINGERPRINT:
            reader.take(print_size)
        elif mode != Mode.SKIP:
            reader.take(reader.number() * id_size)
        if mode == Mode.RESPONSE:
            reader.take(reader.number())
        writer.range(bound, mode, message[start : reader.at])
        put_in(bound)
    return message[:head] + b"".join(writer.parts)


@pytest.mark.parametrize(("most", "frame"), [(1, 0), (1, 4_096), (40, 0)])
@pytest.mark.parametrize("wire", ["v1", "xor"])
def test_ranges_of_no_width_anywhere_in_a_message_change_nothing(wire, most, frame):
    """Few ranges are read one by one and many as columns: with 40 at each place it is the latter."""
    rng = random.Random(f"{wire} {most} {frame}")
    for _ in range(20):
        id_size = 32 if wire == "v1" else rng.choice((8, 16))
        sides = two_sides(rng, rng.choice((0, 1, 40, 300, 900)), id_size, rng.choice(list(SHAPES)))
        items = [sealed(side, id_size) for side in sides]
        client, server = (Session(item, wire, frame_size_max=frame) for item in items)
        other_client, other_server = (Session(item, wire, frame_size_max=frame) for item in items)
        found: list[set[bytes]] = [set(), set()]
        message: Any = client.initiate()
        assert other_client.initiate() == message
        while message is not None:
            reply: Any = server.reconcile(message).reply
            assert other_server.reconcile(with_empty_ranges(message, wire, id_size, rng, most)).reply == reply
            learnt = client.reconcile(reply)
            assert other_client.reconcile(with_empty_ranges(reply, wire, id_size, rng, most)) == learnt
            message = learnt.reply
            found = [found[0] | set(learnt.have), found[1] | set(learnt.need)]
        assert found == [ids_of(sides[0]) - ids_of(sides[1]), ids_of(sides[1]) - ids_of(sides[0])]


@pytest.mark.parametrize("wire", ["v1", "xor"])
def test_a_server_that_closes_a_full_frame_with_a_range_of_no_width_is_understood(wire):
    """As published: a list that fills the frame up to infinity, and behind it the fingerprint of the rest: nothing."""
    ids = [bytes([number]) * 32 for number in range(1, 9)]
    items = sealed((list(range(4)), np.frombuffer(b"".join(ids[:4]), dtype=np.uint8).reshape(-1, 32)), 32)
    client = Session(items, wire)
    client.initiate()
    head, empty = (b"\x61", sha256(bytes(33)).digest()[:16]) if wire == "v1" else (b"", bytes(32))
    reply = head + b"\x00\x00\x02\x08" + b"".join(ids) + b"\x00\x00\x01" + empty
    assert client.reconcile(reply) == (None, [], ids[4:])


def close_pairs(rng, count, id_size):
    """Records at one time, two by two alike but for the last byte: a bound between the two is a whole id."""
    beginnings = [rng.randbytes(id_size - 1) for _ in range(count // 2)]
    lasts = rng.randrange(100), rng.randrange(100, 256)
    return [(7, beginning + bytes([last])) for beginning in beginnings for last in lasts]


@pytest.mark.parametrize("frame", [0, 1_024])
def test_ids_that_a_published_xor_server_names_in_both_directions_are_in_neither(frame):
    """It counts a record that equals a bound as below it, and so names records that both have.

    What it names in one direction alone, or not at all, nobody can tell from the truth: that is why ids are hashes.
    """
    rng, both_ways = random.Random(f"both {frame}"), 0
    for _ in range(30):
        id_size = rng.choice((8, 16))
        records = close_pairs(rng, rng.choice((60, 400, 1_500)), id_size)
        ours, theirs = ([record for record in records if rng.random() > 0.01] for _ in range(2))
        items = ItemSet.from_arrays([stamp for stamp, _ in ours], [id for _, id in ours], id_size)
        items.seal()
        client = Session(items, "xor", frame_size_max=frame)
        have, need, _ = play(client, PlainPeer(theirs, "xor", id_size, search=bisect_right))
        assert len(have) + len(need) == len({*have, *need})
        assert set(have) <= {id for _, id in ours}
        assert set(need) <= {id for _, id in theirs}
        both_ways += client.both_ways
    assert both_ways > 30


def test_an_id_that_two_sides_have_at_two_times_is_named_in_neither_direction_of_xor():
    ids = [bytes([number]) * 8 for number in range(1, 101)]
    sides = [ItemSet.from_arrays([stamp, *range(1, 100)], ids) for stamp in (0, 200)]
    for items in sides:
        items.seal()
    client, server = (Session(items, "xor") for items in sides)
    assert play(client, server)[:2] == ([], [])
    assert client.both_ways == 1
