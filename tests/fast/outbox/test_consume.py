import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onefold import Endpoint, Out
from onefold.outbox import worker
from tests.lib.commands import here, process

SHOP = """
from onefold import Endpoint, Out

app = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///shop.db")
empty = Endpoint("empty", store="memory://", transport="memory://")
number = 7


@app.handler("orders", key="order")
def pay(state, message):
    if message["order"] == "bad":
        raise ValueError("no such order")
    return {"paid": (state or {"paid": 0})["paid"] + 1}, []
"""


MAIL = """
mail = Endpoint("mail", store="sqlite:///mail.db")


@mail.handler("mails", key="to")
def post(state, message):
    return (state or 0) + 1, []
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("shop", None)


def send(folder: Path, *names: str) -> None:
    at = f"sqlite:///{folder}/shop.db"
    with Endpoint("shop", store=at, transport=at) as app:
        app.take("orders.csv", 1, [Out("orders", {"order": name}) for name in names])


def state(folder: Path, name: str) -> object:
    at = f"sqlite:///{folder}/shop.db"
    with Endpoint("shop", store=at, transport=at) as app:
        return app.state(name)


def test_the_handlers_of_a_module_in_this_folder_are_run(folder):
    send(folder, "a", "b", "a")
    done = process("consume", "shop:app", "--until-empty", "--json", "--concurrency", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["tally"]["first"], told["tally"]["balanced"], told["buried"]) == (3, True, 0)
    assert done.stderr.splitlines() == [
        "shop consumes orders",
        "3 in = 3 first + 0 repeat + 0 unsure + 0 reject",
    ]
    assert state(folder, "a") == {"paid": 2}


def test_a_dead_letter_is_told_with_the_traceback_and_exit_code_1(folder):
    send(folder, "a", "bad")
    done = process("consume", "shop:app", "--until-empty", "--attempts-max", 2, "--backoff-s", 0, cwd=folder)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "onefold: orders: ValueError: no such order (delivery 1 of 2)" in lines
    assert "onefold: set aside: orders: ValueError: no such order (delivery 2)" in lines
    assert lines.count("ValueError: no such order") == 2


def test_several_endpoints_are_consumed_by_one_process(folder):
    with (folder / "shop.py").open("a") as shop:
        shop.write(MAIL)
    send(folder, "a", "b")
    done = process("consume", "shop:app", "shop:mail", "--until-empty", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    endpoints = json.loads(done.stdout)["endpoints"]
    assert {name: each["tally"]["first"] for name, each in endpoints.items()} == {"shop": 2, "mail": 0}
    assert "mail consumes mails" in done.stderr.splitlines()
    assert here("consume", "shop:app", "shop:app", cwd=folder).returncode == 2
    assert here("consume", "shop:app", "shop:mail", "--metrics-port", 0, cwd=folder).returncode == 2
    assert process("consume", "shop:app", "shop:empty", cwd=folder).returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(folder, number):
    words = [sys.executable, "-m", "onefold.cli.main", "consume", "shop:app", "--metrics-port", "0"]
    consumer = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert consumer.stderr is not None
    assert consumer.stderr.readline().startswith("metrics at http://127.0.0.1:")
    assert consumer.stderr.readline() == "shop consumes orders; Ctrl-C ends it\n"
    consumer.send_signal(number)
    _, told = consumer.communicate(timeout=60)
    assert (consumer.returncode, told) == (0, "0 in = 0 first + 0 repeat + 0 unsure + 0 reject\n")


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("shop", "'shop' must be MODULE:APP, such as shop:app"),
        ("nowhere:app", "no module 'nowhere' in"),
        ("shop:ap", "shop:ap: 'ap' in the module 'shop' does not exist; it has app, empty"),
        ("shop:number", "shop:number: 'number' in the module 'shop' is a int, not an Endpoint; it has app, empty"),
        ("shop:empty", "empty has no handlers: there is nothing to consume"),
        ("broken:app", "the module 'broken' cannot be imported: ZeroDivisionError: "),
        ("away.sub:app", "no module 'away.sub' in"),
    ],
)
def test_what_cannot_be_run_is_named(folder, target, line):
    (folder / "broken.py").write_text("1 // 0\n")
    done = here("consume", target, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr


def test_a_store_that_cannot_be_opened_is_exit_code_3(folder, monkeypatch):
    monkeypatch.setattr(worker, "OUTAGES_MAX", 1)  # it is tried again for more than a minute otherwise
    (folder / "shop.py").write_text(SHOP.replace("sqlite:///shop.db", "sqlite:////nowhere/shop.db"))
    done = here("consume", "shop:app", cwd=folder)
    assert done.returncode == 3
    assert "/nowhere/shop.db" in done.stderr
