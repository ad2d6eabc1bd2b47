import json
from contextlib import closing
from pathlib import Path

import pytest

from onefold import Endpoint, Out
from onefold.outbox.plans import Create
from onefold.outbox.ports import Parcel
from onefold.outbox.stores.sqlite import SqliteLedger, SqliteQueue
from tests.lib.commands import Done, here
from tests.lib.cut_off import cut_off


@pytest.fixture
def at(tmp_path):
    """A shop in one file: order "bad" is a dead letter, order "new" waits, order 1 is done."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with Endpoint("shop", store=url, transport=url, plan="transactional") as app:

        @app.handler("orders", key="order")
        def pay(state, message):
            if message["order"] == "bad":
                raise ValueError("no such \x1b[31morder")
            return {"paid": 1}, []

        app.take("orders.csv", 1, [Out("orders", {"order": name}) for name in ("bad", "1")])
        app.consume(until_empty=True, attempts_max=1)
        app.take("orders.csv", 2, [Out("orders", {"order": "new"})])
    return url


def tokens(*words: object, cwd: Path) -> Done:
    return here("tokens", *words, cwd=cwd)


def listed(at: str, cwd: Path) -> list[str]:
    done = tokens("ls", "--store", at, "--json", cwd=cwd)
    return [each["token"] for each in json.loads(done.stdout)["listed"]]


def dead(at: str, cwd: Path) -> str:
    done = here("outbox", "ls", "--store", at, "--transport", at, "--json", cwd=cwd)
    [letter] = json.loads(done.stdout)["dead_letters"]
    return str(letter["token"])


def test_tokens_are_listed_with_what_is_known_of_them(at, tmp_path):
    done = tokens("ls", "--store", at, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["tokens"], told["shown"]) == (0, 2, 2)
    assert {each["to"] for each in told["listed"]} == {"orders"}
    assert all(0 <= each["age_s"] < 60 and each["made_for"] is None and not each["begun"] for each in told["listed"])
    assert "2 tokens, the oldest made" in done.stderr


def test_the_tokens_that_are_kept_apart_are_listed_without_the_store(at, tmp_path):
    done = tokens("ls", "--tokens", at, "--limit", 1, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (told["tokens"], told["shown"], "begun" in told["listed"][0]) == (2, 1, False)
    assert "1 shown; 2 tokens" in done.stderr


def test_orphans_are_listed_alone(at, tmp_path):
    with closing(SqliteLedger(tmp_path / "shop.db")) as ledger:
        ledger.create([Create("shop/gone.csv#1", "a1", (("lost", "orders"),), guarded=False)])
    done = tokens("ls", "--store", at, "--orphans", "--json", cwd=tmp_path)
    assert [(each["token"], each["made_for"]) for each in json.loads(done.stdout)["listed"]] == [
        ("lost", "shop/gone.csv#1")
    ]
    assert "1 orphans shown; 3 tokens" in done.stderr


def test_one_token_is_shown_with_its_dead_letter_and_nothing_that_a_terminal_obeys(at, tmp_path):
    name = dead(at, tmp_path)
    done = tokens("show", name, "--store", at, "--transport", at, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["token"]["token"], told["entry"], told["all_seen"]) == (0, name, None, True)
    assert [each["body"] for each in told["dead_letters"]] == [{"order": "bad"}]
    assert "no such ?[31morder" in done.stderr
    assert "\x1b[31m" not in done.stderr


def test_a_token_that_is_not_there_is_exit_code_1(at, tmp_path):
    done = tokens("show", "nobody", "--store", at, cwd=tmp_path)
    assert done.returncode == 1
    assert "its message was processed, or discarded, or never was" in " ".join(done.stderr.split())


def test_a_token_is_discarded_with_its_dead_letter(at, tmp_path):
    name = dead(at, tmp_path)
    done = tokens("discard", name, "--store", at, "--transport", at, "--yes", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"token": name, "removed": True, "dead_letters": 1}
    assert name not in listed(at, tmp_path)
    again = tokens("discard", name, "--store", at, "--transport", at, "--yes", cwd=tmp_path)
    assert (again.returncode, "there is no such token" in again.stderr) == (2, True)


def test_what_was_made_for_a_discarded_message_goes_with_it(at, tmp_path):
    name = dead(at, tmp_path)
    with closing(SqliteLedger(tmp_path / "shop.db")) as ledger, closing(SqliteQueue(tmp_path / "shop.db")) as queue:
        ledger.create([Create(name, "a1", (("child", "shipping"),), guarded=True)])
        queue.acknowledge(queue.lease(["orders"], 1, 1_000))  # nothing waits: nobody can be at it
    assert tokens("discard", name, "--store", at, "--transport", at, "--yes", cwd=tmp_path).returncode == 0
    assert "child" not in listed(at, tmp_path)


def test_a_message_that_waits_is_never_processed_once_its_token_is_discarded(at, tmp_path):
    [name] = set(listed(at, tmp_path)) - {dead(at, tmp_path)}
    assert tokens("discard", name, "--store", at, "--transport", at, "--yes", cwd=tmp_path).returncode == 0
    with Endpoint("shop", store=at, transport=at, plan="transactional") as app:
        app.handler("orders", key="order")(lambda state, message: ({"paid": 1}, []))
        assert str(app.consume(until_empty=True)) == "1 in = 0 first + 1 repeat + 0 unsure + 0 reject"
        assert app.state("new") is None


def test_nothing_is_discarded_without_a_yes(at, tmp_path):
    name = dead(at, tmp_path)
    done = tokens("discard", name, "--store", at, "--transport", at, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is nobody to ask: say --yes" in done.stderr
    assert name in listed(at, tmp_path)


def test_a_token_whose_message_has_still_to_send_something_is_not_discarded(tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    with Endpoint("shop", store=url, transport=url, plan="parented") as app:
        app.handler("orders", key="order")(lambda state, message: ({"paid": 1}, [Out("shipping", 1)]))
        app.take("orders.csv", 1, [Out("orders", {"order": "7"})])
        name = cut_off(app, "orders")
    done = tokens("show", name, "--store", url, cwd=tmp_path)
    assert "shop/7: its message changed it, and has still to send 1 to shipping" in " ".join(done.stderr.split())
    done = tokens("discard", name, "--store", url, "--transport", url, "--yes", cwd=tmp_path)
    assert done.returncode == 2
    assert "has changed shop/7 and has still to send 1 to shipping" in " ".join(done.stderr.split())
    [child] = set(listed(url, tmp_path)) - {name}
    done = tokens("show", child, "--store", url, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (told["entry"], told["sent_by"]["entity"], told["token"]["made_for"]) == (None, "7", name)


def test_a_dead_letter_is_put_back_and_processed_once(at, tmp_path):
    name = dead(at, tmp_path)
    done = tokens("revive", name, "--transport", at, "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"revived": 1, "more": False})
    with Endpoint("shop", store=at, transport=at, plan="transactional") as app:
        app.handler("orders", key="order")(lambda state, message: ({"paid": (state or {"paid": 0})["paid"] + 1}, []))
        app.consume(until_empty=True)
        assert app.state("bad") == {"paid": 1}
    assert listed(at, tmp_path) == []
    assert tokens("revive", "--queue", "orders", "--transport", at, cwd=tmp_path).returncode == 2


def test_all_dead_letters_of_a_queue_are_put_back(at, tmp_path):
    done = tokens("revive", "--queue", "orders", "--transport", at, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "1 back in the queue\n")


def test_a_dead_letter_of_another_store_is_not_discarded(at, tmp_path):
    name = dead(at, tmp_path)
    other = f"sqlite:///{tmp_path}/other.db"
    SqliteLedger(tmp_path / "other.db").close()
    done = tokens("discard", name, "--store", other, "--transport", at, "--yes", cwd=tmp_path)
    assert (done.returncode, "another token store" in done.stderr) == (2, True)
    assert dead(at, tmp_path) == name


def test_dead_letters_that_hold_no_message_are_removed_by_their_queue_and_no_others(at, tmp_path):
    with closing(SqliteQueue(tmp_path / "shop.db")) as queue:
        queue.send([Parcel("junk", b"?"), Parcel("orders", b"?")])
        queue.bury([each for each in queue.lease(["orders", "junk"], 9, 1_000) if each.payload == b"?"], "malformed")
        words = ["discard", "--unreadable", "orders", "--store", at, "--transport", at, "--yes"]
        assert tokens(*words, cwd=tmp_path).stderr == "removed: 1 dead letter\n"
        assert [(each.queue, each.payload == b"?") for each in queue.buried()] == [("orders", False), ("junk", True)]
    assert tokens(*words, cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls"], "name the store of the tokens"),
        (["ls", "--store", "sqlite:///nowhere.db"], "nowhere.db is not there"),
        (["ls", "--store", "memory://"], "nobody else would see it"),
        (["ls", "--store", "http://me:hush@host"], "no ledger at http://..."),
        (["ls", "--tokens", "amqp://me:hush@host"], "no token store at amqp://..."),
        (["show", "t"], "Missing option '--store'"),
        (["show", "a\nb", "--store", "sqlite:///x.db"], "1 to 200 printable characters"),
        (["discard", "t", "--store", "sqlite:///x.db"], "Missing option '--transport'"),
        (["discard", "--store", "sqlite:///x.db", "--transport", "sqlite:///x.db"], "name one token, or a queue"),
        (["revive", "--transport", "sqlite:///x.db"], "name one token, or a queue"),
        (["revive", "t", "--queue", "q", "--transport", "sqlite:///x.db"], "name one token, or a queue"),
    ],
)
def test_wrong_usage_is_told_without_a_password(tmp_path, words, said):
    done = tokens(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "hush" not in done.stderr
    assert not list(tmp_path.iterdir()), "to look must not make files"


def test_the_stores_are_also_found_by_variables(at, tmp_path):
    done = here("tokens", "ls", "--json", cwd=tmp_path, ONEFOLD_STORE=at)
    assert json.loads(done.stdout)["tokens"] == 2
