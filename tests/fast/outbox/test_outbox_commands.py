import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onefold import Endpoint, Out
from onefold.outbox.plans import Create, Dispatch, Finish, Remove
from onefold.outbox.ports import Parcel
from tests.lib.commands import Done, here
from tests.lib.cut_off import cut_off


def shop(url: str, *, tokens: str | None = None, plan: str | None = None) -> Endpoint:
    app = Endpoint("shop", store=url, transport=url, tokens=tokens, plan=plan or (None if tokens else "transactional"))
    app.handler("orders", key="order")(lambda state, message: ((state or 0) + 1, [Out(("shipping", "audit"), 1)]))
    return app


@pytest.fixture
def at(tmp_path):
    return f"sqlite:///{tmp_path}/shop.db"


def outbox(*words: object, cwd: Path) -> Done:
    return here("outbox", *words, cwd=cwd)


def test_what_is_in_outboxes_is_shown_with_what_it_would_send(at, tmp_path):
    with shop(at) as app:
        app.take("orders.csv", 1, [Out("orders", {"order": "7"})])
        name = cut_off(app, "orders")
    done = outbox("ls", "--store", at, "--json", cwd=tmp_path)
    [entry] = json.loads(done.stdout)["entries"]
    assert (entry["endpoint"], entry["entity"], entry["entry"]) == ("shop", "7", name)
    assert [(each["to"], each["body"]) for each in entry["sends"]] == [("shipping", 1), ("audit", 1)]
    assert "1 to shipping, 1 to audit" in done.stderr
    assert "dead letters" not in done.stderr
    assert "0 in outboxes" in outbox("ls", "--store", at, "--endpoint", "other", cwd=tmp_path).stderr
    assert "0 in outboxes" in outbox("ls", "--store", at, "--older-than-s", 3_600, cwd=tmp_path).stderr


def test_an_entry_that_a_clock_ahead_of_ours_dated_is_shown(at, tmp_path):
    with shop(at) as app:
        app.take("orders.csv", 1, [Out("orders", {"order": "7"})])
        cut_off(app, "orders")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("update outbox_entries set at_ms = at_ms + 3600000")
        db.commit()
    assert "1 in outboxes" in outbox("ls", "--store", at, cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("plan", "before"),
    [
        ("transactional", Dispatch),
        ("transactional", Finish),
        ("parented", Dispatch),
        ("parented", Remove),
        ("checkpointed", Create),
        ("checkpointed", Dispatch),
        ("checkpointed", Remove),
    ],
)
def test_what_was_left_by_a_worker_that_died_is_finished_once(at, tmp_path, plan, before):
    with shop(at, plan=plan) as app:
        app.take("orders.csv", 1, [Out("orders", {"order": "7"})])
        cut_off(app, "orders", before)
        words = ["recover", "--store", at, "--transport", at, "--older-than-s", 0, "--json"]
        done = outbox(*words, cwd=tmp_path)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"finished": 1, "conflicts": 0, "swept": 0})
        assert json.loads(outbox(*words, cwd=tmp_path).stdout)["finished"] == 0
        app.handler("shipping", key=lambda message: "s")(lambda state, message: ((state or 0) + 1, []))
        app.handler("audit", key=lambda message: "a")(lambda state, message: ((state or 0) + 1, []))
        app.consume(until_empty=True)
        assert (app.state("7"), app.state("s"), app.state("a")) == (1, 1, 1)
        assert app.world.tokens.live().tokens == 0


def test_only_the_endpoint_that_is_named_is_recovered_and_only_what_is_old(at, tmp_path):
    with shop(at) as app:
        app.take("orders.csv", 1, [Out("orders", {"order": "7"})])
        cut_off(app, "orders")
    words = ["recover", "--store", at, "--transport", at]
    assert "0 finished" in outbox(*words, cwd=tmp_path).stderr
    assert "0 finished" in outbox(*words, "--older-than-s", 0, "--endpoint", "other", cwd=tmp_path).stderr
    assert "1 finished" in outbox(*words, "--older-than-s", 0, "--endpoint", "shop", cwd=tmp_path).stderr


def test_with_tokens_kept_apart_what_a_source_left_is_finished_and_useless_tokens_go(at, tmp_path):
    tokens = f"sqlite:///{tmp_path}/tokens.db"
    with shop(at, tokens=tokens) as app:
        app.take("orders.csv", 1, [Out("orders", {"order": "7"})])
        made = [Create("shop/orders.csv#1", "late", (("useless", "orders"),), guarded=False)]
        app.world.tokens.create([*made, Create("t", "late", (("not ours", "orders"),), guarded=False)])
        words = ["recover", "--store", at, "--tokens", tokens, "--transport", at, "--json"]
        assert json.loads(outbox(*words, cwd=tmp_path).stdout) == {"finished": 0, "conflicts": 0, "swept": 1}
        assert app.world.tokens.holds(["useless", "not ours"]) == [False, True]


def test_dead_letters_are_shown_with_why_they_are_dead(at, tmp_path):
    with Endpoint("shop", store=at, transport=at, plan="transactional") as app:
        app.handler("orders", key="order")(lambda state, message: 1 / 0)
        app.take("orders.csv", 1, [Out("orders", {"order": "7"})])
        app.world.queue.send([Parcel("orders", b"\x1bno message")])
        app.consume(until_empty=True, attempts_max=1)
    done = outbox("ls", "--store", at, "--transport", at, "--json", cwd=tmp_path)
    letters = json.loads(done.stdout)["dead_letters"]
    assert {(each["body"] or {}).get("order") for each in letters} == {"7", None}
    assert "ZeroDivisionError" in done.stderr
    assert "2 set aside as dead letters" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls"], "Missing option '--store'"),
        (["ls", "--store", "sqlite:///nowhere.db"], "nowhere.db is not there"),
        (["ls", "--store", "sqlite:///nowhere.db", "--endpoint", ""], "endpoint is ''"),
        (["ls", "--store", "postgresql://me:hush@127.0.0.1:1/x"], "refused"),
        (["recover", "--store", "sqlite:///nowhere.db"], "Missing option '--transport'"),
        (["recover", "--store", "sqlite:///nowhere.db", "--transport", "sqlite:///q.db"], "nowhere.db is not there"),
    ],
)
def test_wrong_usage_is_told_without_a_password(tmp_path, words, said):
    done = outbox(*words, cwd=tmp_path)
    assert (done.returncode in (2, 3), done.stdout) == (True, "")
    assert said in done.stderr
    assert "hush" not in done.stderr
    assert not list(tmp_path.iterdir()), "to look must not make files"
