"""What is Redis' own of the counters: crashes, lost answers, settings that lose, and what is said when it is away."""

import re
import socket
import threading
import time
from contextlib import contextmanager
from uuid import uuid4

import pytest
import redis

from onefold.errors import Misuse, StoreFailed
from onefold.lorawan.ports import open_counters
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished
from onefold.lorawan.stores.redis import CLAIMS_MAX, PREFIX, RedisCounters
from onefold.lorawan.stores.sqlite import MemoryCounters, SqliteCounters
from tests.lib.local_server import free_port
from tests.lib.redis_server import DURABLE, RedisServer

FORGETFUL = ("--appendonly", "no", "--save", "")


@pytest.fixture
def server(tmp_path):
    """One of our own, to be ill-treated."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def counters(redis_url):
    counters = RedisCounters(redis_url)
    yield counters
    counters.close()


def calls(url: str, command: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def claims_until_killed(server: RedisServer, devices: int, answered_min: int) -> dict[str, Claimed]:
    """The last answer that each device got from a server that was killed among its answers.

    Each claim has a body, and finishes that of the claim before it.
    """
    last: dict[str, Claimed] = {}
    enough = threading.Semaphore(0)

    def keep_claiming(device: str) -> None:
        counters = RedisCounters(server.url)
        known = counters.known([device])[0]
        up = known.fcnt_up if known else 0
        while True:
            up += 1
            number = devices * up + int(device[1:])
            asked = Claim(device, "a", up, wants_down=True, body=f"{device}, {up}", number=number)
            try:
                last[device] = counters.claim([asked], [Finished("a", number - devices)])[0]
            except StoreFailed:
                return counters.close()
            enough.release()

    threads = [threading.Thread(target=keep_claiming, args=(f"d{n}",)) for n in range(devices)]
    for thread in threads:
        thread.start()
    for _ in range(answered_min):
        assert enough.acquire(timeout=60)
    server.kill()
    for thread in threads:
        thread.join()
    return last


def test_kill_9_loses_no_claim_that_was_answered(server):
    for _ in range(4):
        last = claims_until_killed(server, devices=4, answered_min=300)
        server.start()
        counters = RedisCounters(server.url)
        for device, claimed in last.items():
            known = counters.known([device])[0]
            assert known is not None
            assert known.fcnt_up - claimed.fcnt_up in (0, 1)  # 1: it was made, and its answer never arrived
            assert known.fcnt_down - claimed.fcnt_down in (0, 1)
            assert counters.claim([Claim(device, "b", claimed.fcnt_up)])[0].won is False
        counters.close()


def test_kill_9_loses_no_message_of_a_claim_that_was_answered_and_brings_none_back(server):
    for _ in range(2):
        last = claims_until_killed(server, devices=4, answered_min=300)
        server.start()
        counters = RedisCounters(server.url)
        ups = {device: known.fcnt_up for device in last if (known := counters.known([device])[0])}
        assert all(ups[device] - claimed.fcnt_up in (0, 1) for device, claimed in last.items())
        # The counter, the new message and the end of the old one: all three or none, also of the unheard claim.
        kept = [Unfinished(4 * up + int(d[1:]), d, up, f"{d}, {up}") for d, up in ups.items()]
        assert counters.unfinished("a") == sorted(kept)
        counters.close()


def test_messages_cost_no_call_of_their_own(server):
    counters = RedisCounters(server.url)
    batch = [Claim(f"d{n}", "ab"[n % 2], 1, body="x", number=n) for n in range(CLAIMS_MAX)]
    later = [c._replace(fcnt_up=2, number=c.number + CLAIMS_MAX) for c in batch]
    counters.claim(batch[:1])
    before = calls(server.url, "evalsha")
    counters.claim(batch)
    counters.claim(later, [Finished(c.server, c.number) for c in batch])
    assert calls(server.url, "evalsha") - before == 2
    assert len(counters.unfinished("a") + counters.unfinished("b")) == CLAIMS_MAX
    counters.claim([], ())
    assert calls(server.url, "evalsha") - before == 2
    counters.close()


def test_unfinished_messages_are_one_readable_hash_for_each_server(counters, redis_url):
    data = Claim("0004a30b001c0530", "a", 7, body="{}", number=12)
    counters.claim([data, Claim("join", "a", 0, keep_ms=1_000, body="[]", number=13)])
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        kept = {"12": '["0004a30b001c0530",7,"{}"]', "13": '["join",0,"[]"]'}
        assert client.hgetall("onefold:lorawan:unfinished/a") == kept
        assert client.pttl("onefold:lorawan:unfinished/a") == -1
        counters.claim([], [Finished("a", 12), Finished("a", 13)])
        assert client.exists("onefold:lorawan:unfinished/a") == 0
        for number, message in (("hello", '["d",7,"{}"]'), ("1", "there"), ("1", "[1,2]"), ("1", "7"), ("1", b"\xff")):
            client.hset("onefold:lorawan:unfinished/a", number, message)
            with pytest.raises(StoreFailed, match="unfinished/a holds something else than messages"):
                counters.unfinished("a")
            client.delete("onefold:lorawan:unfinished/a")
        client.set("onefold:lorawan:unfinished/b", "hello")
        for use in (lambda: counters.unfinished("b"), lambda: counters.claim([Claim("d", "b", 1, body="x")])):
            with pytest.raises(StoreFailed, match="WRONGTYPE"):
                use()


def test_a_server_that_keeps_nothing_loses_it_and_is_warned_of(server):
    server.stop()
    server.start(*FORGETFUL)
    counters = RedisCounters(server.url)
    last = claims_until_killed(server, devices=1, answered_min=10)
    server.start()
    assert last["d0"].won
    assert counters.known(["d0"])[0] is None
    assert [line for line in counters.warnings() if "appendonly is no" in line]
    counters.close()


def test_a_server_that_comes_back_is_found_again(server):
    counters = RedisCounters(server.url, timeout_s=1)
    for number in range(3):
        assert counters.claim([Claim("d", "a", number, wants_down=True)]) == [
            Claimed(True, "a", number, number + 1, None)
        ]
        server.stop()
        with pytest.raises(StoreFailed, match="refused"):
            counters.claim([Claim("d", "a", number)])
        server.start()
    server.stop()  # and also when nobody noticed that it was away
    server.start()
    assert counters.known(["d"])[0] == Counters(2, 3, "a")
    counters.close()


@pytest.mark.parametrize("use", ["claim", "known", "unfinished", "warnings"])
def test_without_a_server_everything_fails_at_once_with_one_line_that_holds_no_password(use):
    port = free_port()
    counters = RedisCounters(f"redis://me:hush@127.0.0.1:{port}/3", timeout_s=60)
    arguments: dict[str, list] = {"claim": [[Claim("d", "a", 1)]], "warnings": []}
    began = time.monotonic()
    with pytest.raises(StoreFailed) as failed:
        getattr(counters, use)(*arguments.get(use, ["d"]))
    assert time.monotonic() - began < 30
    assert re.fullmatch(rf"redis://127\.0\.0\.1:{port}/3: .*refused.*", str(failed.value))
    assert "hush" not in repr(failed.value.values) + repr(counters) + repr(failed.value.__cause__)


def test_a_server_that_says_nothing_is_given_up_after_the_timeout(server):
    silent = RedisCounters(server.url, timeout_s=0.3)  # never connected before
    counters = RedisCounters(server.url, timeout_s=0.3)
    assert counters.known(["d"])[0] is None
    server.freeze()
    try:
        for each in (counters, silent):
            seconds = []
            for _ in range(3):
                began = time.monotonic()
                with pytest.raises(StoreFailed, match=f"redis://127.0.0.1:{server.port}/0: Timeout"):
                    each.claim([Claim("d", "a", 1)])
                seconds.append(time.monotonic() - began)
            assert 0.25 < min(seconds) < 4.5, "on a busy machine the quickest tells"
    finally:
        server.thaw()


def test_a_wrong_password_is_said_but_not_shown(tmp_path):
    with RedisServer(tmp_path, *FORGETFUL, password=uuid4().hex) as server:
        counters = RedisCounters(server.url.replace(server.password, "hush"))
        with pytest.raises(StoreFailed, match="password") as failed:
            counters.known(["d"])[0]
        assert "hush" not in str(failed.value)
        counters.close()
        counters = RedisCounters(server.url)
        assert counters.claim([Claim("d", "a", 1)])[0].won
        counters.close()


def test_a_late_answer_is_not_taken_for_that_of_the_next_claim(server):
    counters = RedisCounters(server.url, timeout_s=0.3)
    counters.claim([Claim("d", "a", 1, wants_down=True)])
    server.freeze()
    with pytest.raises(StoreFailed):
        counters.claim([Claim("d", "a", 2, wants_down=True)])
    server.thaw()
    # It was made when the server woke up. Made again it is won again, and a number of the downlink is skipped.
    assert counters.claim([Claim("e", "b", 9)]) == [Claimed(True, "b", 9, 0, None)]
    assert counters.claim([Claim("d", "b", 2, wants_down=True)]) == [Claimed(False, "a", 2, 0, None)]
    assert counters.claim([Claim("d", "a", 2, wants_down=True)]) == [Claimed(True, "a", 2, 3, None)]
    assert calls(server.url, "evalsha") + calls(server.url, "eval") == 6, "five claims, and one NOSCRIPT"
    counters.close()


@contextmanager
def answers_lost(port: int, after: int):
    """The port of a proxy that passes on so many answers, over all connections, and hangs up instead of the next."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        passed = 0
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", port)) as far:
                while data := client.recv(65_536):
                    far.sendall(data)
                    reply = far.recv(65_536)
                    passed += 1
                    if passed == after + 1:
                        break
                    client.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(60)


def test_a_claim_whose_answer_is_lost_is_not_made_again_behind_our_back(server):
    first = RedisCounters(server.url)
    first.claim([Claim("d", "a", 0)])
    with answers_lost(server.port, after=1) as port:
        counters = RedisCounters(f"redis://127.0.0.1:{port}", timeout_s=5)
        assert counters.claim([Claim("d", "a", 1, wants_down=True)])[0].fcnt_down == 1
        with pytest.raises(StoreFailed, match=f"redis://127.0.0.1:{port}/0: Connection closed"):
            counters.claim([Claim("d", "a", 2, wants_down=True)])
        assert first.known(["d"])[0] == Counters(2, 2, "a"), "made once"
        assert counters.claim([Claim("d", "a", 2, wants_down=True)]) == [Claimed(True, "a", 2, 3, None)]
        counters.close()
    first.close()


def test_a_server_that_lost_the_script_gets_it_again(server):
    counters = RedisCounters(server.url)
    with redis.Redis.from_url(server.url) as client:
        for number in range(3):
            client.script_flush()
            assert [c.won for c in counters.claim([Claim("d", s, number) for s in "ab"])] == [True, False]
            before = calls(server.url, "eval")
            assert counters.claim([Claim("d", "b", number)])[0].won is False
            assert calls(server.url, "eval") == before, "once is enough"
    counters.close()


@pytest.mark.parametrize("at", [3, CLAIMS_MAX + 3])
def test_a_batch_that_fails_half_way_fails_and_can_be_made_again(counters, redis_url, at):
    batch = [Claim(f"d{n}", "a", 1) for n in range(CLAIMS_MAX + 10)]
    with redis.Redis.from_url(redis_url) as client:
        client.set(f"{PREFIX}d{at}", "hello")
        with pytest.raises(StoreFailed, match=f"d{at} holds something else"):
            counters.claim(batch)
        with pytest.raises(StoreFailed, match=f"d{at} holds something else"):
            counters.known([f"d{at}"])[0]
        client.delete(f"{PREFIX}d{at}")
        client.lpush(f"{PREFIX}d{at}", "hello")
        with pytest.raises(StoreFailed, match="WRONGTYPE"):
            counters.claim(batch)
        client.delete(f"{PREFIX}d{at}")
    assert all(claimed == Claimed(True, "a", 1, 0, None) for claimed in counters.claim(batch))


def test_a_device_is_one_readable_string_and_a_join_ends_by_the_servers_clock(counters, redis_url):
    counters.claim(
        [Claim("0004a30b001c0530", "a", 7, fcnt_down=3, wants_down=True), Claim("join/x", "a", 0, keep_ms=300_000)]
    )
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.get("onefold:lorawan:0004a30b001c0530") == "7 4 = a"
        assert client.pttl("onefold:lorawan:0004a30b001c0530") == -1
        assert 290_000 < client.pttl("onefold:lorawan:join/x") <= 300_000


def test_counters_from_before_frames_were_kept_are_read_and_get_their_frame_with_the_next_claim(counters, redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.set("onefold:lorawan:d", "7 4 server-a")
        assert counters.known(["d"]) == [Counters(7, 4, "server-a")]
        assert counters.claim([Claim("d", "b", 7, frame="ab" * 32)]) == [Claimed(False, "server-a", 7, 0, None)]
        assert counters.claim([Claim("d", "server-a", 7, frame="ab" * 32)])[0].won
        assert client.get("onefold:lorawan:d") == f"7 4 ={'ab' * 32} server-a"
        assert counters.known(["d"]) == [Counters(7, 4, "server-a", "ab" * 32)]


def test_the_nonces_of_a_device_are_packed_numbers(counters, redis_url):
    counters.claim([Claim("join/x", "a", 0, keep_ms=300_000, nonce=nonce) for nonce in range(0, 5_100, 10)])
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.object("encoding", "onefold:lorawan:nonces/join/x") == "intset"
        assert client.scard("onefold:lorawan:nonces/join/x") == 510
        assert client.pttl("onefold:lorawan:nonces/join/x") == -1
        assert client.memory_usage("onefold:lorawan:nonces/join/x") < 2_048


def test_of_good_settings_there_is_nothing_to_say(counters):
    assert counters.warnings() == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--appendonly", "no"], ["appendonly is no, should be yes"]),
        (["--appendonly", "yes", "--appendfsync", "everysec"], ["appendfsync is everysec, should be always"]),
        ([*DURABLE, "--no-appendfsync-on-rewrite", "yes"], ["no-appendfsync-on-rewrite is yes, should be no"]),
        (
            [*DURABLE, "--maxmemory-policy", "allkeys-lru"],
            ["maxmemory-policy is allkeys-lru, should be noeviction"],
        ),
        (
            ["--appendonly", "no", "--maxmemory-policy", "volatile-ttl"],
            ["appendonly is no, should be yes", "maxmemory-policy is volatile-ttl, should be noeviction"],
        ),
        (
            [*DURABLE, "--rename-command", "CONFIG", ""],
            ["appendfsync, no-appendfsync-on-rewrite could not be checked (unknown command"],
        ),
        (
            ["--appendonly", "no", "--rename-command", "CONFIG", "", "--rename-command", "INFO", ""],
            ["appendonly, appendfsync, no-appendfsync-on-rewrite, maxmemory-policy could not be checked (unknown",
             "whether it has replicas could not be checked (unknown command"],
        ),
        (
            ["--appendonly", "no", "--rename-command", "CONFIG", ""],
            ["appendonly is no, should be yes", "appendfsync, no-appendfsync-on-rewrite could not be checked"],
        ),
    ],
)  # fmt: skip
def test_settings_that_can_lose_a_claim_are_named(tmp_path, settings, said):
    with RedisServer(tmp_path, *settings) as server:
        counters = RedisCounters(server.url)
        warnings = counters.warnings()
        counters.close()
    assert len(warnings) == len(said), warnings
    assert all(line.startswith(f"redis://127.0.0.1:{server.port}/0: ") and "\n" not in line for line in warnings)
    for line, words in zip(warnings, said, strict=True):
        assert words in line


def test_a_user_who_may_not_look_at_the_settings_is_told_so(server):
    with redis.Redis.from_url(server.url) as client:
        client.acl_setuser("radio", enabled=True, passwords=["+hush"], keys=["*"], commands=["+@all", "-config"])
    counters = RedisCounters(server.url.replace("//", "//radio:hush@"))
    assert counters.claim([Claim("d", "a", 1)])[0].won
    (line,) = counters.warnings()
    assert "appendfsync, no-appendfsync-on-rewrite could not be checked" in line
    counters.close()


def test_claims_can_wait_for_replicas(server, tmp_path):
    server.stop()
    server.start(*DURABLE, "--repl-diskless-sync-delay", "0")
    with RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port), "--save", "") as replica:
        hasty, patient = (RedisCounters(server.url, timeout_s=20, replicas_min=n) for n in (0, 1))
        assert patient.claim([Claim("d", "a", 1, wants_down=True)]) == [
            Claimed(True, "a", 1, 1, None)
        ]  # once it is there
        copy = RedisCounters(replica.url)
        assert copy.known(["d"])[0] == Counters(1, 1, "a")
        with pytest.raises(StoreFailed, match="replica"):
            copy.claim([Claim("d", "a", 2)])
        assert ["replicas_min is 0" in line for line in hasty.warnings()] == [True]
        assert patient.warnings() == []
        replica.kill()
        late = RedisCounters(server.url, timeout_s=1, replicas_min=1)
        with pytest.raises(StoreFailed, match="0 replicas have it, replicas_min is 1"):
            late.claim([Claim("d", "a", 2, wants_down=True)])
        assert late.known(["d"])[0] == Counters(2, 2, "a")
        for each in (hasty, patient, late, copy):
            each.close()


def test_an_address_chooses_the_store(tmp_path, redis_url, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = {
        "memory://": MemoryCounters,
        "sqlite:///here.db": SqliteCounters,
        f"sqlite:///{tmp_path}/there%20.db": SqliteCounters,
        f"{redis_url}?prefix=x:&timeout_s=1.5&replicas_min=0": RedisCounters,
    }
    for url, kind in kinds.items():
        counters = open_counters(url)
        assert isinstance(counters, kind)
        assert counters.claim([Claim("d", "a", 1)])[0].won
        counters.close()
    assert {path.name for path in tmp_path.glob("*.db")} == {"here.db", "there .db"}
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == [b"x:d"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "no counters at ''"),
        ("counters.db", "no counters at 'counters.db'"),
        ("mysql://me:hush@h/x", "no counters at mysql://...; there are some at memory://"),
        ("memory://x", "no counters at memory://"),
        ("sqlite://x.db", "no counters at sqlite://"),
        ("sqlite:///", "no counters at sqlite://"),
        ("redis://", "must be like redis://"),
        ("redis://:hu/sh@host", "must be like redis://"),
        ("redis://me:hush@host:port", "must be like redis://"),
        ("redis://me:hush@host/name", "must be like redis://"),
        ("redis://me:hush@h/1?db=2", "redis://h:6379/1: no option 'db'"),
        ("redis://me:hush@h?socket_timeout=hush", "redis://h:6379/0: no option 'socket_timeout'"),
        ("redis://me:hush@h?timeout_s=soon", "redis://h:6379/0: timeout_s=soon"),
        ("redis://me:hush@h?timeout_s=0", "redis://h:6379/0: timeout_s is 0.0, must be more than 0"),
        ("redis://me:hush@h?replicas_min=-1", "redis://h:6379/0: replicas_min is -1, must be 0 or more"),
        ("rediss://me:hush@h?ssl_colour=blue", "rediss://h:6379/0: .*ssl_colour"),
    ],
)
def test_an_address_that_is_none_is_refused_and_no_password_is_shown(url, said):
    with pytest.raises(Misuse, match=said.replace("?", r"\?")) as refused:
        open_counters(url)
    assert not re.search("hu/?sh", str(refused.value) + repr(refused.value.values))
