"""Handlers of users under the explorer: what is right passes, what is wrong is told."""

import asyncio
import datetime
import itertools
import json
import logging
import pathlib
import random
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from contextlib import closing
from types import SimpleNamespace

import pytest

from onefold import Endpoint, Out
from onefold.cli.main import main
from onefold.errors import Misuse
from onefold.outbox.plans import Handling
from onefold.testing import Convicted, explore


def count(state, message):
    return (state or 0) + message["n"], []


def forward(state, message):
    return [*(state or []), message["order"]], [Out("shipping", {"order": message["order"], "for": message.token})]


def ship(state, message):
    return {"by": message.token, "seen": (state or {"seen": 0})["seen"] + 1}, [Out("mail", {"order": message["order"]})]


def endpoint():
    handlers = {
        "orders": Handling("orders", forward, "order"),
        "shipping": Handling("shipping", ship, lambda message: f"parcel {message['order']}"),
    }
    return SimpleNamespace(name="shop", handlers=handlers)


@pytest.mark.parametrize("plan", ["transactional", "parented"])
def test_a_plain_handler_is_right_under_every_fault(plan):
    found = explore(count, plan=plan)
    assert found.complete
    assert found.plan == plan
    assert found.calls_max is not None
    assert 2 <= found.calls_max <= 6
    assert (found.endings, found.findings) == (1, ())


def test_all_plans_are_explored_on_demand():
    found = explore(count, [{"n": 1}], plan="all", copies=1)
    assert (found.plan, found.complete) == ("all", True)


def test_a_coroutine_is_a_handler_also_where_a_loop_runs():
    async def later(state, message):
        await asyncio.sleep(0)
        return count(state, message)

    async def tested():
        return explore(later, crashes=0)

    assert asyncio.run(tested()).complete


def test_messages_between_the_handlers_of_an_endpoint_are_explored():
    found = explore(endpoint(), [("orders", {"order": 7})])
    assert found.complete
    assert found.states > explore(forward, [{"order": 7}], key="order").states


def test_a_handler_that_changes_the_state_it_is_given_does_no_harm():
    def careless(state, message):
        state = state if state is not None else {"seen": []}
        state["seen"].append(message["n"])
        return state, []

    found = explore(careless)
    assert (found.complete, found.endings, found.findings) == (True, 2, ())


def test_a_handler_that_is_not_repeatable_is_convicted():
    numbers = itertools.count()

    def restless(state, message):
        return next(numbers), []

    with pytest.raises(Convicted) as convicted:
        explore(restless, [{"n": 1}])
    assert convicted.value.offence.wrong == "depends_on_chance"
    told = 'depends on more than its input: restless: for {"n":1} with the state null it returned 0 and sent nothing,'
    assert told in convicted.value.offence.text


def lucky(state, message):
    return random.random() < 0.5, []


async def stamped(state, message):
    await asyncio.sleep(0)
    return datetime.datetime.now(datetime.UTC).isoformat(), []


def named(state, message):
    return str(uuid.uuid4()), []


def noting(state, message):
    pathlib.Path("noted.txt").write_text("one more")
    return state, []


def calling(state, message):
    urllib.request.urlopen("http://127.0.0.1:1/charge", data=b"{}")
    return state, []


async def connecting(state, message):
    await asyncio.open_connection("127.0.0.1", 1)
    return state, []


def starting(state, message):
    subprocess.run([sys.executable, "-c", ""], check=True)
    return state, []


def keeping(state, message):
    with closing(sqlite3.connect("own.db")) as db:
        db.execute("create table if not exists own (n)")
    return state, []


@pytest.mark.parametrize(
    ("handler", "wrong", "told"),
    [
        (lucky, "depends_on_chance", r"\(draws random numbers at .*test_explorer_handlers.py:\d+ \(lucky\)\)"),
        (stamped, "depends_on_chance", r"reads the clock at .*test_explorer_handlers.py:\d+ \(stamped\)"),
        (named, "depends_on_chance", r"draws random numbers at .*test_explorer_handlers.py:\d+ \(named\)"),
        (
            noting,
            "acts_on_the_world",
            r"writes the file 'noted.txt' at .*test_explorer_handlers.py:\d+ \(noting\): each call does",
        ),
        (
            calling,
            "acts_on_the_world",
            r"calls POST http://127.0.0.1:1/charge at .*test_explorer_handlers.py:\d+ \(calling\)",
        ),
        (
            connecting,
            "acts_on_the_world",
            r"calls \('127.0.0.1', 1\) at .*test_explorer_handlers.py:\d+ \(connecting\)",
        ),
        (starting, "acts_on_the_world", r"starts .*python.* at .*test_explorer_handlers.py:\d+ \(starting\)"),
        (keeping, "acts_on_the_world", r"opens the database 'own.db' at .*test_explorer_handlers.py:\d+ \(keeping\)"),
    ],
)
def test_a_handler_that_acts_on_the_world_is_convicted_with_the_place(handler, wrong, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Convicted, match=told) as convicted:
        explore(handler, [{"n": 1}])
    assert convicted.value.offence.wrong == wrong


def test_what_does_no_harm_is_a_finding_at_most(tmp_path):
    rates = tmp_path / "rates.txt"
    rates.write_text("7")

    def looking(state, message):
        from wsgiref import util  # reads its source, and may write its bytecode

        logging.getLogger("a handler").warning("%s at %s", util.__name__, time.time())
        return int(rates.read_text()), []

    findings = explore(looking, [{"n": 1}], crashes=0).findings
    assert [finding.split(" at ")[0] for finding in findings] == [
        "looking: the handler reads the clock",
        f"looking: the handler reads the file '{rates}'",
    ]


def test_ends_that_depend_on_the_order_are_told(module, capsys):
    assert explore(count).ends == ()
    assert explore(forward, [{"order": 7}, {"order": 8}], crashes=0, expiries=0).ends[0].startswith("forward/one = [")
    assert main(["explore", f"{module}:last", "--crashes", "0", "--expiries", "0"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("transactional: nothing wrong in all ")
    assert "states (2 messages, 2 workers, crashes up to 0, expired leases 0, copies 0)" in told[0]
    assert told[1] == "  note: the result depends on the order of the messages: last/one = 1 | last/one = 2"


def test_a_handler_that_raises_in_some_order_is_convicted():
    def impatient(state, message):
        if message["n"] == 2 and state is None:
            raise KeyError("nothing was ordered")
        return [*(state or []), message["n"]], []

    with pytest.raises(Convicted, match="nothing was ordered") as convicted:
        explore(impatient, [{"n": 1}, {"n": 2}])
    assert convicted.value.offence.wrong == "handler"


def test_a_handler_that_returns_nonsense_is_convicted():
    with pytest.raises(Convicted, match=r"returned 5, not \(state, outgoing\)"):
        explore(lambda state, message: 5, [{"n": 1}])


def test_an_invariant_that_breaks_is_told_with_its_history():
    def overdraw(state, message):
        return (10 if state is None else state) - message["sum"], []

    def solvent(states):
        assert all(balance >= 0 for balance in states.values()), "overdrawn"

    with pytest.raises(Convicted) as convicted:
        explore(overdraw, [{"sum": 7}, {"sum": 6}], invariant=solvent)
    *lines, last = convicted.value.history.splitlines()
    assert last == 'Wrong: the invariant does not hold for {"one":-3} (overdrawn).'
    assert lines[-1].endswith("is applied")


def test_a_search_that_is_cut_says_so():
    found = explore(count, states_max=50)
    assert (found.complete, found.calls_max) == (False, None)
    assert found.states >= 50


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"plan": "hopeful"},
            "plan is 'hopeful', must be one of checkpointed, parented, transactional, local, or 'all'",
        ),
        ({"workers": 0}, "workers is 0, must be a whole number from 1 to 9"),
        ({"crashes": -1}, "crashes is -1, must be a whole number from 0 to 9"),
        ({"states_max": 0}, "states_max is 0"),
        ({"messages": []}, "messages is empty"),
        ({"key": "order"}, "pass messages="),
        ({"handler": ship}, "pass messages="),
        ({"handler": 5}, "must be a function"),
        ({"handler": endpoint()}, r"pass messages=\[\(queue, body\), ...\]"),
        ({"handler": endpoint(), "key": "order"}, "key has no effect"),
        ({"messages": [("nowhere", 1)]}, "nobody handles 'nowhere' here: there is count"),
    ],
)
def test_what_makes_no_sense_is_misuse(options, told):
    with pytest.raises(Misuse, match=told):
        explore(**{"handler": count, **options})


@pytest.fixture
def module(tmp_path, monkeypatch):
    text = (
        "def count(state, message):\n    return (state or 0) + message['n'], []\n\ndef bad(state, message):\n    pass\n"
        "def last(state, message):\n    return message['n'], []\n"
    )
    (tmp_path / "explored_here.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "explored_here"
    sys.modules.pop("explored_here", None)


def test_the_command_explores_a_handler_of_the_working_folder(module, capsys):
    assert main(["explore", f"{module}:count", "--message", '{"n": 1}', "--crashes", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    (found,) = json.loads(out)["explorations"]
    assert found["complete"]
    assert f"transactional: nothing wrong in all {found['states']:,} states" in err


def test_the_command_tells_the_history_and_ends_with_1(module, capsys):
    assert main(["explore", f"{module}:bad", "--message", "1", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["convicted"] == "handler"
    assert "not (state, outgoing)" in err
    assert main(["explore", "--specimen", "remade"]) == 1
    assert "12. worker 1 of order sends m1.1@2\nWrong: m1.1 was sent under two tokens" in capsys.readouterr().err


def test_the_command_explores_the_shipped_plans(capsys):
    assert main(["explore", "--shipped", "--states-max", "300"]) == 0
    assert "states in all, nothing wrong" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name one of TARGET, --specimen and --shipped, not none"),
        (["--shipped", "--specimen", "remade"], "not --specimen and --shipped"),
        (["--shipped", "--crashes", "2"], "--crashes needs a TARGET"),
        (["--shipped", "--states-max", "0"], "Invalid value for '--states-max'"),
        (["--specimen", "x"], "--specimen is 'x', must be one of evicted, remade"),
        (["nocolon"], "the target is 'nocolon', must be like shop.handlers:pay"),
        (["nowhere_at_all:x"], "no module 'nowhere_at_all' in"),
        (["json:nothing"], "json has no 'nothing'"),
        (["json:loads", "--message", "{"], "--message is '{', must be JSON"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(words, told, capsys):
    assert main(["explore", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_handler_with_tables_of_its_own_is_not_explored(tmp_path):
    app = Endpoint("shop", store=f"sqlite:///{tmp_path}/a.db")
    app.handler("orders")(lambda message: [])
    with pytest.raises(Misuse, match="orders: a handler that keeps its state in tables of your own cannot be explored"):
        explore(app)
