"""What is Redis' own of the tokens: crashes, lost answers, an emptied store, settings, one script a call."""

import re
import threading
import time
from collections.abc import Callable

import pytest
import redis

from onefold.errors import BadInput, Damaged, Misuse, StoreFailed
from onefold.outbox.plans import Create, Remove
from onefold.outbox.ports import Live, open_tokens
from onefold.outbox.stores.redis import PREFIX, TOKENS_MAX, RedisTokens
from tests.lib.local_server import free_port
from tests.lib.redis_server import DURABLE, RedisServer


@pytest.fixture
def server(tmp_path):
    """One of our own, to be ill-treated."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def counted(server):
    """Tokens, and how many scripts ran for them: on a server of their own, for others would count too."""
    tokens = RedisTokens(server.url)
    yield tokens, lambda: calls(server.url, "evalsha")
    tokens.close()


@pytest.fixture
def tokens(redis_url):
    tokens = RedisTokens(redis_url)
    yield tokens
    tokens.close()


def made(tokens: RedisTokens, *names: str) -> None:
    assert tokens.create([Create("", "first", tuple((name, "orders") for name in names), guarded=False)]) == [True]


def calls(url: str, command: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


VERBS: dict[str, Callable[[RedisTokens], object]] = {
    "holds": lambda tokens: tokens.holds(["t1"]),
    "create": lambda tokens: tokens.create([Create("", "a1", (("t1", "x"),), guarded=False)]),
    "remove": lambda tokens: tokens.remove([Remove("t1", "")]),
    "discard": lambda tokens: tokens.discard("t1"),
    "listed": lambda tokens: tokens.listed(),
    "orphans": lambda tokens: tokens.listed(orphans=True),
    "live": lambda tokens: tokens.live(),
}


def test_a_server_killed_among_its_answers_forgets_no_token_and_brings_none_back(server):
    answered: list[list[str]] = [[] for _ in range(4)]
    enough = threading.Semaphore(0)

    def work(which: int) -> None:
        tokens = RedisTokens(server.url)
        try:
            for n in range(1_000_000):
                made(tokens, f"{which} {n}")
                if n:
                    tokens.remove([Remove(f"{which} {n - 1}", "")])
                answered[which].append(f"{which} {n}")
                enough.release()
        except StoreFailed:
            pass
        finally:
            tokens.close()

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        enough.acquire(timeout=60)
    server.kill()
    for thread in threads:
        thread.join(60)
    server.start()
    tokens = RedisTokens(server.url)
    for names in answered:
        *gone, last = names
        assert not any(tokens.holds(gone))
        # What comes after the last answer may have been done: the next one made, and then this one removed.
        following = f"{last.split()[0]} {int(last.split()[1]) + 1}"
        assert any(tokens.holds([last, following]))
    tokens.close()


def test_a_restart_that_nobody_noticed_is_not_told_to_anybody(server):
    tokens = RedisTokens(server.url)
    made(tokens, "t1")
    server.kill()
    server.start()
    assert tokens.holds(["t1", "t2"]) == [True, False]
    tokens.close()


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_that_was_emptied_says_so_and_not_that_there_is_no_token(redis_url, verb):
    tokens, other = RedisTokens(redis_url), RedisTokens(redis_url)
    made(tokens, "t1")
    before = tokens.realm
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        with pytest.raises(Damaged, match=f"this was the store '{before}' and is '' now"):
            VERBS[verb](tokens)
        made(other, "t2")
        after = other.realm
        with pytest.raises(Damaged, match=f"this was the store '{before}' and is '{after}' now"):
            VERBS[verb](tokens)
        assert other.listed() == RedisTokens(redis_url).listed()
    tokens.close()
    other.close()


def test_nothing_but_the_realm_is_left_at_rest(tokens, redis_url):
    made(tokens, "t1", "t2")
    for attempt in "ab":
        tokens.create([Create("t1", attempt, tuple((f"{attempt}{n}", "x") for n in range(3)))])
    tokens.remove([Remove("t1", "b")])
    assert tokens.discard("t2")
    tokens.remove([Remove(f"b{n}", "") for n in range(3)])
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == [f"{PREFIX}realm".encode()]


def test_each_call_is_one_script_and_a_large_batch_a_few(counted):
    tokens, scripts = counted
    made(tokens, "parent")
    births = [Create("parent", "a", ((f"c{n:05}", "x"), (f"d{n:05}", "x"))) for n in range(TOKENS_MAX)]
    names = [name for birth in births for name, _ in birth.tokens]
    expected = {
        "create": (lambda: tokens.create(births) == [True] * len(births), 4),
        "holds": (lambda: all(tokens.holds(names)), 2),
        "listed": (lambda: [t.token for t in tokens.listed(limit=5_000)] == sorted([*names, "parent"]), 3),
        "remove": (lambda: tokens.remove([Remove(name, "") for name in names]) is None, 2),
        "live": (lambda: tokens.live().tokens == 1, 1),
    }
    for verb, (call, many) in expected.items():
        before = scripts()
        assert call(), verb
        assert scripts() - before == many, verb


def test_one_birth_is_one_step_however_many_tokens_it_has(counted):
    tokens, scripts = counted
    made(tokens, "t1")
    before = scripts()
    birth = Create("t1", "a", tuple((f"c{n}", "x") for n in range(3 * TOKENS_MAX)))
    assert tokens.create([birth]) == [True]
    assert scripts() - before == 1
    tokens.remove([Remove("t1", "b")])
    assert scripts() - before == 2
    assert tokens.live() == Live(0, None)


def test_orphans_are_found_among_many_and_listed_by_name(tokens):
    made(tokens, *(f"p{n}" for n in range(5)))
    tokens.create([Create(f"p{n}", "a", tuple((f"{m:04} of p{n}", "x") for m in range(300))) for n in range(5)])
    tokens.discard("p1")
    tokens.discard("p3")
    expected = [f"{m:04} of p{n}" for m in range(300) for n in (1, 3)]
    assert [token.token for token in tokens.listed(orphans=True)] == expected
    assert [token.token for token in tokens.listed(orphans=True, after="0007 of p1", limit=2)] == expected[15:17]


def test_children_of_parents_with_alike_names_are_apart(tokens):
    parents = ["a", "a:", "1:a", "1", "a:b", "a;", ":", "é", "\x00", "(", "[", "+", "-"]
    made(tokens, *parents)
    assert all(tokens.create([Create(parent, "a1", ((f"child of {parent}", "x"),)) for parent in parents]))
    for gone in parents:
        tokens.remove([Remove(gone, "other")])
        parents = parents[1:]
        assert [t.token for t in tokens.listed() if t.parent] == sorted(f"child of {parent}" for parent in parents)


def test_a_server_without_memory_changes_nothing_and_says_so(server):
    tokens = RedisTokens(server.url)
    made(tokens, "t1", "t2")
    tokens.create([Create("t1", attempt, ((f"{attempt}1", "x"), (f"{attempt}2", "x"))) for attempt in "abc"])
    before = tokens.listed()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFailed, match="OOM"):
            made(tokens, "t3")
        with pytest.raises(StoreFailed, match="OOM"):
            tokens.remove([Remove("t1", "b")])
        assert tokens.listed() == before
        tokens.remove([Remove("t2", "")])  # nothing has to be written for that
        client.config_set("maxmemory", 0)
    tokens.remove([Remove("t1", "b")])
    assert [(token.token, token.parent) for token in tokens.listed()] == [("b1", ""), ("b2", "")]
    tokens.close()


def test_a_server_that_lost_the_script_gets_it_again(server):
    tokens = RedisTokens(server.url)
    with redis.Redis.from_url(server.url) as client:
        for number in range(3):
            client.script_flush()
            made(tokens, f"t{number}")
            assert tokens.holds([f"t{number}"]) == [True]
    tokens.close()


def test_a_late_answer_is_not_taken_for_that_of_the_next_call(server):
    tokens = RedisTokens(server.url, timeout_s=0.3)
    made(tokens, "t1")
    server.freeze()
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(StoreFailed, match=f"redis://127.0.0.1:{server.port}/0: Timeout"):
            tokens.holds(["t1"])
        seconds.append(time.monotonic() - began)
    assert 0.25 < min(seconds) < 4.5, "on a busy machine the quickest tells"
    server.thaw()
    assert tokens.holds(["t2", "t3"]) == [False, False]
    tokens.close()


@pytest.mark.parametrize("verb", [*VERBS, "realm", "warnings"])
def test_without_a_server_everything_fails_at_once_with_one_line_that_holds_no_password(verb):
    port = free_port()
    tokens = RedisTokens(f"redis://me:hush@127.0.0.1:{port}/3", timeout_s=60)
    verbs = {**VERBS, "realm": lambda tokens: tokens.realm, "warnings": lambda tokens: tokens.warnings()}
    began = time.monotonic()
    with pytest.raises(StoreFailed) as failed:
        verbs[verb](tokens)
    assert time.monotonic() - began < 30
    assert re.fullmatch(rf"redis://127\.0\.0\.1:{port}/3: .*refused.*", str(failed.value))
    assert "hush" not in repr(failed.value.values) + repr(tokens) + repr(failed.value.__cause__)


def test_a_name_that_is_no_text_is_refused(tokens):
    for call in (lambda: made(tokens, "\ud800"), lambda: tokens.holds(["\ud800"])):
        with pytest.raises(BadInput, match=r"cannot keep the text .*ud800"):
            call()
    assert tokens.live() == Live(0, None)


def test_of_good_settings_there_is_nothing_to_say(tokens):
    assert tokens.warnings() == []


def test_settings_that_can_lose_a_token_are_named(server):
    tokens = RedisTokens(server.url)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendfsync", "everysec")
        client.config_set("maxmemory-policy", "allkeys-lru")
    place = f"redis://127.0.0.1:{server.port}/0"
    assert tokens.warnings() == [
        f"{place}: appendfsync is everysec, should be always: after a crash the tokens of the last seconds are missing",
        f"{place}: maxmemory-policy is allkeys-lru, should be noeviction: when memory is short what is kept is thrown"
        " away",
    ]
    tokens.close()


def test_changes_can_wait_for_replicas(server, tmp_path):
    server.stop()
    server.start(*DURABLE, "--repl-diskless-sync-delay", "0")
    with RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port), "--save", "") as replica:
        hasty, patient = (RedisTokens(server.url, timeout_s=20, replicas_min=n) for n in (0, 1))
        made(patient, "t1")
        copy = RedisTokens(replica.url)
        with pytest.raises(StoreFailed, match="replica"):
            copy.holds(["t1"])  # who asks for the realm may have to write it
        with redis.Redis.from_url(replica.url) as client:
            assert client.hkeys(f"{PREFIX}tokens") == [b"t1"]
        assert ["replicas_min is 0: tokens may be missing" in line for line in hasty.warnings()] == [True]
        assert patient.warnings() == []
        replica.kill()
        late = RedisTokens(server.url, timeout_s=1, replicas_min=1)
        with pytest.raises(StoreFailed, match="0 replicas have it, replicas_min is 1"):
            made(late, "t2")
        assert hasty.holds(["t1"]) == [True]
        for each in (hasty, patient, late, copy):
            each.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "must be like redis://"),
        ("redis://:hu/sh@host", "must be like redis://"),
        ("redis://me:hush@h/1?db=2", "redis://h:6379/1: no option 'db'"),
        ("redis://me:hush@h?timeout_s=0", "redis://h:6379/0: timeout_s is 0.0, must be more than 0"),
        ("redis://me:hush@h?replicas_min=-1", "redis://h:6379/0: replicas_min is -1, must be 0 or more"),
        ("rediss://me:hush@h?ssl_colour=blue", "rediss://h:6379/0: .*ssl_colour"),
    ],
)
def test_an_address_that_is_none_is_refused_and_no_password_is_shown(url, said):
    with pytest.raises(Misuse, match=said.replace("?", r"\?")) as refused:
        open_tokens(url)
    assert not re.search("hu/?sh", str(refused.value) + repr(refused.value.values))
