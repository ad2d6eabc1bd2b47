"""What every `CounterStore` promises, whatever stands behind it: the rule is `decide`, and one claim is one step.

And beside the counters: what was won and is not finished is there, nothing else is, and it costs no step of its own.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.lorawan.ports import CounterStore
from onefold.lorawan.rules import (
    LATE_MAX,
    Claim,
    Claimed,
    Counters,
    Finished,
    Unfinished,
    decide,
    decide_join,
    won_before,
)
from onefold.lorawan.stores.redis import CLAIMS_MAX, RedisCounters
from onefold.lorawan.stores.sqlite import MemoryCounters, SqliteCounters
from tests.lib.examples import examples

TOP = 2**32 - 1
HOUR_MS = 3_600_000
NUMBERS = count(1)


class Place(NamedTuple):
    """A store, and what the tests have to do with it besides."""

    store: CounterStore
    again: Callable[[], CounterStore]
    """Another one that shares what is stored, as a second server would have."""
    pass_ms: Callable[[int], None]
    """Let time go by."""
    entries: Callable[[], int]


class Clock:
    def __init__(self):
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms


def entries_of(store: SqliteCounters) -> int:
    parts = ["count(*) from lorawan_counters", "count(*) from lorawan_unfinished"]
    parts.append("count(distinct device) from lorawan_nonces")
    with store._database.reading() as db:
        return sum(int(db.execute(f"select {part}").fetchone()[0]) for part in parts)


@contextmanager
def in_memory(_folder, _url) -> Iterator[Place]:
    store = MemoryCounters(clock := Clock())
    yield Place(store, lambda: store, clock.pass_ms, lambda: entries_of(store))


@contextmanager
def in_sqlite(folder, _url) -> Iterator[Place]:
    clock = Clock()
    path = folder / f"{uuid4().hex}.db"
    stores = [SqliteCounters(path, clock)]

    def again() -> CounterStore:
        stores.append(SqliteCounters(path, clock))
        return stores[-1]

    yield Place(stores[0], again, clock.pass_ms, lambda: entries_of(stores[0]))
    for store in stores:
        store.close()


@contextmanager
def in_redis(_folder, url) -> Iterator[Place]:
    prefix = f"{uuid4().hex}:"
    stores = [RedisCounters(url, prefix)]
    client = redis.Redis.from_url(url)

    def again() -> CounterStore:
        stores.append(RedisCounters(url, prefix))
        return stores[-1]

    def pass_ms(ms: int) -> None:
        """Its clock is not ours to set: bring the end of each key nearer instead."""
        for key in client.scan_iter(f"{prefix}*"):
            left = client.pttl(key)
            if left >= 0:
                client.pexpire(key, max(0, left - ms))

    yield Place(stores[0], again, pass_ms, lambda: len(list(client.scan_iter(f"{prefix}*"))))
    for store in stores:
        store.close()
    client.close()


PLACES = {"memory": in_memory, "sqlite": in_sqlite, "redis": in_redis}


@pytest.fixture(params=PLACES)
def place(request, tmp_path, redis_server):
    with PLACES[request.param](tmp_path, redis_server.url) as place:
        yield place


@pytest.fixture
def store(place):
    return place.store


def claim(server: str, fcnt_up: int, **more) -> Claim:
    return Claim(more.pop("device", "d"), server, fcnt_up, **{"number": next(NUMBERS), **more})


def left(made: Claim) -> Unfinished:
    return Unfinished(made.number, made.device, made.fcnt_up, made.body)


def done(*made: Claim) -> list[Finished]:
    return [Finished(each.server, each.number) for each in made]


def won(store: CounterStore, *claims: Claim) -> list[bool]:
    return [claimed.won for claimed in store.claim(claims)]


def test_of_a_device_that_was_never_heard_nothing_is_known(store):
    assert store.known(["d"])[0] is None


def test_the_first_to_claim_a_frame_wins_and_the_others_learn_who(store):
    assert store.claim([claim("a", 7)]) == [Claimed(True, "a", 7, 0, None)]
    assert store.claim([claim("b", 7)]) == [Claimed(False, "a", 7, 0, None)]
    assert store.claim([claim("b", 6)]) == [Claimed(False, "a", 7, 0, None)]
    assert store.known(["d"])[0] == Counters(7, 0, "a")


def test_the_winner_may_claim_its_frame_again(store):
    assert won(store, claim("a", 7), claim("a", 7), claim("b", 7), claim("a", 7)) == [True, True, False, True]


def test_who_wins_the_next_frame_takes_the_device_over(store):
    store.claim([claim("a", 7)])
    assert store.claim([claim("b", 8)]) == [Claimed(True, "b", 8, 0, "a")]
    assert store.claim([claim("a", 8)]) == [Claimed(False, "b", 8, 0, None)]


def test_only_the_winner_gets_a_number_for_the_downlink_and_each_number_once(store):
    asked = [claim(server, up, wants_down=True, fcnt_down=5) for up in (1, 2) for server in ("a", "b", "a")]
    assert [claimed.fcnt_down for claimed in store.claim(asked)] == [6, 0, 7, 8, 0, 9]
    known = store.known(["d"])[0]
    assert known is not None
    assert known.fcnt_down == 9


def test_a_server_that_is_ahead_with_the_down_counter_moves_it(store):
    store.claim([claim("a", 1, wants_down=True)])
    assert store.claim([claim("a", 2, wants_down=True, fcnt_down=100)])[0].fcnt_down == 101


def test_a_restarted_device_begins_anew_but_only_if_it_is_said_to_be(store):
    store.claim([claim("a", 500, wants_down=True, fcnt_down=40)])
    assert won(store, claim("b", 0)) == [False]
    assert store.claim([claim("b", 0, restarted_after=500, wants_down=True)])[0][:4] == (True, "b", 0, 1)
    assert store.known(["d"])[0] == Counters(0, 1, "b")
    assert won(store, claim("a", 0, restarted_after=500)) == [False], "of two servers that hear the restart one wins"


def test_a_restarted_device_begins_anew_though_the_server_that_tells_missed_its_last_frames(store):
    store.claim([claim("a", 500)])
    assert won(store, claim("b", 0, restarted_after=37)) == [True]


@pytest.mark.parametrize("counted", [1, 2, 3, LATE_MAX])
def test_a_late_copy_of_a_restart_that_is_counted_already_is_lost(store, counted):
    store.claim([claim("a", 5_000)])
    assert won(store, claim("a", 0, restarted_after=5_000), claim("a", counted)) == [True, True]
    for up in (0, 1):
        late = claim("b", up, restarted_after=5_000)
        assert store.claim([late]) == [Claimed(False, "a", counted, 0, None)]
    assert store.known(["d"])[0] == Counters(counted, 0, "a")


def test_a_restart_is_believed_if_no_server_can_be_so_late(store):
    # The store never heard of 5,000, or b never heard of the life of the device that ended with 1,001.
    store.claim([claim("a", LATE_MAX + 1)])
    assert won(store, claim("b", 1, restarted_after=5_000), claim("b", 0, restarted_after=5_000)) == [False, True]


@pytest.mark.parametrize(("counted", "believed"), [(1_000, False), (1_001, True)])
def test_a_server_can_be_a_thousand_frames_late_with_a_restart_and_no_more(store, counted, believed):
    store.claim([claim("a", counted)])
    assert won(store, claim("b", 0, restarted_after=5_000)) == [believed]


def test_after_0_and_1_alone_another_server_cannot_tell_a_restart(store):
    assert won(store, claim("a", 1), claim("b", 0, restarted_after=1), claim("a", 0, restarted_after=1)) == [
        True, False, True,
    ]  # fmt: skip


def test_a_restart_and_the_frame_after_it_claimed_again_by_the_same_server_win_again(store):
    store.claim([claim("a", 500)])
    batch = [claim("a", 0, restarted_after=500), claim("a", 1)]
    assert won(store, *batch) == won(store, *batch) == [True, True]


def test_many_devices_are_looked_up_at_once_and_answered_in_their_order(store):
    names = [f"d{n}" for n in range(3 * CLAIMS_MAX)]
    store.claim([claim("a", n, device=name) for n, name in enumerate(names) if n % 3])
    found = store.known([*reversed(names), "d1", "d1"])
    assert found == [Counters(n, 0, "a") if n % 3 else None for n in reversed(range(len(names)))] + [
        Counters(1, 0, "a"), Counters(1, 0, "a"),
    ]  # fmt: skip
    assert store.known([]) == []


def test_the_last_frame_is_kept_with_its_counter_for_all_who_share_the_store(place):
    place.store.claim([claim("a", 7, frame="ab" * 32)])
    assert place.again().known(["d"]) == [Counters(7, 0, "a", "ab" * 32)]
    place.store.claim([claim("b", 7, frame="cd" * 32)])  # lost, so it changes nothing
    place.store.claim([claim("a", 7, wants_down=True)])  # of a claimant that does not say which frame it was
    assert place.again().known(["d"]) == [Counters(7, 1, "a", "ab" * 32)]
    place.store.claim([claim("b", 8)])
    assert place.again().known(["d"]) == [Counters(8, 1, "b")]


def joining(server: str, nonce: int, **more) -> Claim:
    return claim(server, 0, device="join/x", keep_ms=HOUR_MS, nonce=nonce, **more)


def test_a_nonce_is_won_once_and_for_ever_by_whatever_server_and_after_any_time(place):
    assert won(place.store, joining("a", 7), joining("a", 8)) == [True, True]
    assert place.store.claim([joining("b", 7)]) == [Claimed(False, "a", 0, 0, None)]  # it was a, of late
    assert won(place.store, joining("a", 7)) == [False]
    place.pass_ms(1_000 * HOUR_MS)
    other = place.again()
    other.claim([claim("a", 1)])  # whatever is expired is gone now
    for server in ("a", "b"):
        assert other.claim([joining(server, 7)]) == [Claimed(False, "", 0, 0, None)]
    assert won(other, joining("b", 65_535), joining("a", 0), joining("a", 0)) == [True, True, False]
    assert won(other, claim("b", 0, device="join/y", keep_ms=HOUR_MS, nonce=7)) == [True]


def test_a_join_whose_answer_was_lost_is_won_when_it_is_made_again(place):
    made = joining("a", 7, body="join")
    assert won(place.store, made) == [True]
    assert won(place.again(), made) == [True]
    place.pass_ms(2 * HOUR_MS)
    assert won(place.again(), made, made._replace(number=made.number + 1)) == [True, False]
    assert place.store.unfinished("a") == [left(made)]


def test_all_nonces_of_a_device_are_one_entry_and_a_lost_join_adds_none(place):
    nonces = range(0, 65_536, 17)
    assert all(won(place.store, *(joining("a", nonce) for nonce in nonces)))
    place.pass_ms(2 * HOUR_MS)
    place.store.claim([claim("a", 1)])
    assert place.entries() == 2
    assert not any(won(place.store, *(joining("b", nonce) for nonce in nonces)))
    assert place.entries() == 2


def test_devices_are_apart(store):
    assert won(store, claim("a", 7), claim("b", 7, device="e"), claim("b", 7, device="D")) == [True] * 3


def test_claims_of_a_batch_are_judged_in_their_order(store):
    batch = [claim("a" if n % 2 else "b", n // 2) for n in range(3 * CLAIMS_MAX)]
    answers = store.claim(batch)
    assert [claimed.won for claimed in answers] == [n % 2 == 0 for n in range(3 * CLAIMS_MAX)]
    assert [claimed.fcnt_up for claimed in answers] == [n // 2 for n in range(3 * CLAIMS_MAX)]


def test_no_claims_no_answers(store):
    assert store.claim([]) == []


def test_counters_of_32_bits_are_kept_to_the_last_one(store):
    for up in (TOP - 1, TOP):
        claimed = store.claim([claim("a", up, wants_down=True, fcnt_down=TOP - 1)])
    assert claimed == [Claimed(True, "a", TOP, TOP + 1, None)]
    assert store.known(["d"])[0] == Counters(TOP, TOP + 1, "a")
    assert won(store, claim("b", TOP), claim("b", TOP - 1)) == [False, False]


@pytest.mark.parametrize("name", ["", " ", "7 8 a", "é\n\t*?[", "join/0004a30b001c0530/65535", "x" * 1_000])
def test_any_name_of_a_device_and_a_server_is_kept_as_it_is(store, name):
    assert store.claim([claim(name, 1, device=name), claim("b", 2, device=name)])[1].previous == name
    store.claim([claim(name, 3, device=name)])
    assert store.known([name])[0] == Counters(3, 0, name)


def test_what_is_kept_for_a_while_is_forgotten_after_it(place):
    store = place.store
    join = claim("a", 0, keep_ms=HOUR_MS)
    store.claim([join])
    place.pass_ms(HOUR_MS // 2)
    assert won(store, join._replace(server="b")) == [False]
    place.pass_ms(HOUR_MS // 2 + 1_000)
    assert store.known(["d"])[0] is None
    assert store.claim([join._replace(server="b")]) == [Claimed(True, "b", 0, 0, None)]


def test_winning_again_keeps_it_longer_and_losing_does_not(place):
    store = place.store
    for server, still_known in (("a", True), ("b", False)):
        store.claim([claim("a", 0, keep_ms=HOUR_MS, device=server)])
        place.pass_ms(HOUR_MS // 2)
        store.claim([claim(server, 0, keep_ms=HOUR_MS, device=server)])
        place.pass_ms(HOUR_MS * 3 // 4)
        assert (store.known([server])[0] is not None) == still_known


def test_what_is_claimed_for_ever_no_longer_ends(place):
    place.store.claim([claim("a", 0, keep_ms=HOUR_MS), claim("a", 1)])
    place.pass_ms(1_000 * HOUR_MS)
    place.store.claim([claim("a", 1, device="e")])
    assert place.store.known(["d"])[0] == Counters(1, 0, "a")


def test_the_state_does_not_grow_with_history(place):
    finished: list[Finished] = []
    for n in range(40):
        frames = [claim("ab"[n % 2], n, device=f"d{d}", wants_down=True, body="x") for d in range(10)]
        joins = [claim("a", 0, device=f"join/{n}/{d}", keep_ms=HOUR_MS, body="x") for d in range(10)]
        place.store.claim(frames + joins, finished)
        finished = done(*frames, *joins)
        place.pass_ms(HOUR_MS + 1_000)
    place.store.claim([claim("a", 100, device="d0")], finished)
    assert place.entries() == 10


def test_another_one_on_the_same_place_knows_the_same(place):
    place.store.claim([claim("a", 7)])
    other = place.again()
    assert other.known(["d"])[0] == Counters(7, 0, "a")
    assert won(other, claim("b", 7)) == [False]


def test_closed_counters_do_nothing_and_may_be_closed_again(store):
    store.close()
    store.close()
    for use in (
        lambda: store.claim([claim("a", 1)]),
        lambda: store.claim([], [Finished("a", 1)]),
        lambda: store.unfinished("a"),
        lambda: store.known(["d"])[0],
    ):
        with pytest.raises(Misuse, match="closed"):
            use()


def test_the_message_of_a_won_claim_is_kept_until_it_is_finished(place):
    assert place.store.unfinished("a") == []
    nine, ten = claim("a", 9, body="nine"), claim("a", 10, body="ten")
    three = claim("a", 3, device="c", body="three")
    place.store.claim([nine, ten, three])
    assert place.again().unfinished("a") == [left(nine), left(ten), left(three)]
    assert place.store.claim([claim("a", 11)], done(nine, three))[0].won
    assert place.again().unfinished("a") == [left(ten)]
    assert place.store.claim([], done(ten)) == []
    assert place.again().unfinished("a") == []


def test_of_a_lost_claim_and_of_one_without_a_message_nothing_is_kept(store):
    seven = claim("a", 7, body="7")
    store.claim([seven, claim("b", 7, body="also 7"), claim("b", 6, body="6"), claim("b", 8)])
    assert (store.unfinished("a"), store.unfinished("b")) == ([left(seven)], [])


@pytest.mark.parametrize("apart", [False, True], ids=["one batch", "two batches"])
def test_two_receptions_of_one_frame_keep_both_messages_and_finishing_one_leaves_the_other(store, apart):
    first, again = claim("a", 7, body="first"), claim("a", 7, body="resubmitted")
    for batch in ([first], [again]) if apart else ([first, again],):
        assert won(store, *batch) == [True] * len(batch)
    assert store.unfinished("a") == [left(first), left(again)]
    store.claim([], done(first))
    assert store.unfinished("a") == [left(again)]
    store.claim([], done(first, again))
    assert store.unfinished("a") == []


def test_the_same_claim_made_again_keeps_one_message(store):
    made = claim("a", 7, body="seven")
    for _ in range(3):  # its answers were lost
        assert won(store, made) == [True]
    assert store.unfinished("a") == [left(made)]
    store.claim([], done(made))
    assert store.unfinished("a") == []


@pytest.mark.parametrize("then", ["a", "b"])
def test_a_claim_that_was_won_is_won_when_it_is_made_again_though_a_later_frame_was_counted_since(store, then):
    made = claim("a", 7, body="seven", wants_down=True)
    assert won(store, made, claim(then, 8)) == [True, True]  # the answer to the first is lost
    assert store.claim([made]) == [Claimed(True, then, 8, 0, None)]
    assert store.known(["d"])[0] == Counters(8, 1, then)
    other = made._replace(fcnt_up=6)
    assert won(store, made._replace(number=made.number + 1), made._replace(body=""), other) == [False, False, False]
    store.claim([], done(made))
    assert won(store, made) == [False]  # it is upstream


def test_the_numbers_of_servers_are_their_own(store):
    seven, eight = claim("a", 7, body="of a", number=1), claim("b", 8, body="of b", number=1)
    store.claim([seven, eight])
    store.claim([], [Finished("a", 2), Finished("c", 1), Finished("", 1)])
    assert (store.unfinished("a"), store.unfinished("b")) == ([left(seven)], [left(eight)])
    store.claim([], done(seven))
    assert (store.unfinished("a"), store.unfinished("b")) == ([], [left(eight)])


@pytest.mark.parametrize("more", [0, 2 * CLAIMS_MAX])
def test_what_is_finished_goes_before_the_claims_of_the_same_call(store, more):
    others = [claim("a", 1, device=f"e{n}", body="x") for n in range(more)]
    made = claim("a", 7, body="seven")
    store.claim([made, *others])
    store.claim([made, *(each._replace(body="", fcnt_up=2) for each in others)], done(*others, made))
    assert store.unfinished("a") == [left(made)]


def test_the_message_of_a_join_outlives_the_join(place):
    join, data = claim("a", 0, device="join/x/1", keep_ms=HOUR_MS, body="join"), claim("a", 1, body="data")
    place.store.claim([join, data])
    place.pass_ms(2 * HOUR_MS)
    place.store.claim([claim("a", 1, device="e")])
    assert place.store.known(["join/x/1", "d"]) == [None, Counters(1, 0, "a")]
    assert place.store.unfinished("a") == [left(join), left(data)]


@pytest.mark.parametrize("text", ["", " ", "7 8 a", "é\n\t*?[", "\0x", '{"fcnt": 7, "\\u0000": "\\""}', "x" * 10_000])
@pytest.mark.parametrize("number", [0, 2**53 + 1, 2**63 - 1])
def test_any_message_name_counter_and_number_is_kept_as_it_is(store, text, number):
    made = Claim(text, text, TOP, body=text or "empty name", number=number)
    store.claim([made, made._replace(body="another", number=1)])
    store.claim([], [Finished(text, 1)])
    assert store.unfinished(text) == [left(made)]
    store.claim([], done(made))
    assert store.unfinished(text) == []


@pytest.mark.parametrize("batch", [1, 20])
def test_of_all_servers_that_race_for_a_frame_one_wins(place, batch):
    """Each has its own connection; the frames are those of three devices, in different orders for each server."""
    servers, frames = [f"s{n}" for n in range(6)], 40
    answers: dict[str, list[tuple[Claim, Claimed]]] = {server: [] for server in servers}
    start = threading.Barrier(len(servers))

    def race(server: str, store: CounterStore, turn: int) -> None:
        devices = ["d0", "d1", "d2"][turn % 3 :] + ["d0", "d1", "d2"][: turn % 3]
        claims = [claim(server, up, device=device, wants_down=True) for up in range(frames) for device in devices]
        start.wait()
        for at in range(0, len(claims), batch):
            part = claims[at : at + batch]
            answers[server] += zip(part, store.claim(part), strict=True)

    threads = [threading.Thread(target=race, args=(s, place.again(), n)) for n, s in enumerate(servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wins = [(asked, claimed) for given in answers.values() for asked, claimed in given if claimed.won]
    winners = Counter((asked.device, asked.fcnt_up) for asked, _ in wins)
    assert all(len(given) == 3 * frames for given in answers.values())
    assert set(winners.values()) == {1}
    # Who comes late loses also frames that nobody had: the counter had moved on. What was won was won once, upwards.
    assert all(winners[device, frames - 1] == 1 for device in ("d0", "d1", "d2"))
    downs = Counter((asked.device, claimed.fcnt_down) for asked, claimed in wins)
    assert set(downs.values()) == {1}
    assert sum(winners.values()) == sum(known.fcnt_down for d in range(3) if (known := place.store.known([f"d{d}"])[0]))


def around(number: int) -> st.SearchStrategy[int]:
    return st.integers(number - 2, number + 2)


DE, ABC = st.sampled_from("de"), st.sampled_from("abc")
COUNTERS = st.one_of(st.integers(0, 4), around(LATE_MAX), around(2 * LATE_MAX), st.integers(TOP - 2, TOP))
steps = st.one_of(
    st.integers(0, 6).map(lambda n: n * 10 + 5),  # so many hours pass, and a half: never on the edge
    st.lists(
        st.builds(
            Claim,
            DE,
            ABC,
            COUNTERS,
            st.one_of(st.integers(0, 3), st.integers(TOP - 2, TOP)),
            wants_down=st.booleans(),
            restarted_after=st.none() | COUNTERS,
            keep_ms=st.sampled_from([0, 10 * HOUR_MS, 30 * HOUR_MS]),
            body=st.sampled_from(["", "x", "y"]),
            number=st.integers(0, 5),
            frame=st.sampled_from(["", "ab" * 32, "cd" * 32]),
            nonce=st.sampled_from([None, None, None, 0, 65_535]),
        ),
        max_size=5,
    ),
    st.just("crash"),
)
# Of what is unfinished, which is finished with the next claims; with some that may never have been there.
finishing = st.tuples(st.sets(st.integers(0, 5)), st.lists(st.builds(Finished, ABC, st.integers(0, 5)), max_size=2))


@pytest.mark.parametrize("name", PLACES)
@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(st.tuples(steps, finishing), max_size=12))
def test_every_answer_is_that_of_decide_over_a_dict(name, history, tmp_path, redis_server):
    model: dict[str, tuple[Counters, int]] = {}
    outbox: dict[Finished, Unfinished] = {}
    nonces: dict[str, set[int]] = defaultdict(set)
    now = 0
    with PLACES[name](tmp_path, redis_server.url) as place:
        store = place.store
        for step, (which, strangers) in history:
            if isinstance(step, str):  # nothing is said to the old one, not even that it is over
                store = place.again()
                continue
            if isinstance(step, int):
                now += step * HOUR_MS
                place.pass_ms(step * HOUR_MS)
                model = {device: kept for device, kept in model.items() if kept[1] > now}
                continue
            expected = []
            finished = [one for n, one in enumerate(outbox) if n in which] + strangers
            outbox = {one: kept for one, kept in outbox.items() if one not in finished}
            for asked in step:
                known = model[asked.entry][0] if asked.entry in model else None
                if asked.nonce is None:
                    counters, claimed = decide(known, asked)
                else:
                    claimed = decide_join(known, asked, used=asked.nonce in nonces[asked.device])
                    counters = Counters(asked.fcnt_up, 0, asked.server)
                kept = outbox.get(Finished(asked.server, asked.number))
                expected.append(claimed if claimed.won else claimed._replace(won=won_before(kept, asked)))
                if claimed.won:
                    model[asked.entry] = counters, now + asked.keep_ms if asked.keep_ms else 1 << 62
                    nonces[asked.device] |= {asked.nonce} - {None}
                    if asked.body:
                        outbox[Finished(asked.server, asked.number)] = left(asked)
            assert store.claim(step, finished) == expected
            devices = ["d", "e", "d/0", "e/65535"]
            assert store.known(devices) == [model[device][0] if device in model else None for device in devices]
            for server in "abc":
                assert store.unfinished(server) == sorted(kept for one, kept in outbox.items() if one.server == server)
