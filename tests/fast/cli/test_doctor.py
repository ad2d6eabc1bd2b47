import json
import os
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from itertools import groupby
from pathlib import Path

import pytest

from onefold import Endpoint, Out
from onefold.cli import doctor as module
from onefold.cli.doctor import PACKAGES, examine
from onefold.clock import wall_ms
from onefold.outbox.plans import Create
from tests.lib.commands import here
from tests.lib.cut_off import cut_off

ROOT = Path(__file__).parents[3]


def doctor(*words: str, **environ: str) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", "onefold.cli.main", "doctor", *words]
    return subprocess.run(line, capture_output=True, text=True, env=os.environ | environ, check=False)


def test_the_doctor_finds_what_the_tests_run_with():
    done = doctor("--json")
    said = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in said["findings"]}
    names = ["onefold", "Python", *PACKAGES, "Java", "cores", "memory", "disk for Spark", "disk here"]
    assert list(found) == names
    for name in ("onefold", "Python", *PACKAGES, "Java"):
        assert found[name]["fine"], found[name]
    assert done.returncode == (0 if said["fine"] else 1)


def test_people_get_a_table_on_standard_error():
    done = doctor()
    assert done.stdout == ""
    assert "pyspark" in done.stderr
    assert "what to do" in done.stderr


def test_a_java_that_was_passed_over_is_told(tmp_path):
    done = doctor("--json", JAVA_HOME=str(tmp_path))
    java = next(f for f in json.loads(done.stdout)["findings"] if f["name"] == "Java")
    assert java["notes"] == [f"passed over JAVA_HOME: {tmp_path}/bin/java is not a program"]


def test_a_package_that_is_missing_or_of_another_version_is_a_finding(monkeypatch):
    def version(name: str) -> str:
        if name == "pyarrow":
            raise PackageNotFoundError(name)
        return {"pyspark": "3.4.1", "pandas": "2.3.3"}[name]

    monkeypatch.setattr(module, "version", version)
    advice = {finding.name: finding.advice for finding in examine() if finding.name in PACKAGES}
    assert advice == {
        "pyspark": "pip install 'onefold[spark]' (needs 3.5 or newer)",
        "pyarrow": "pip install 'onefold[spark]' (needs 14.0.1 or newer)",
        "pandas": "",
    }


def test_a_finding_is_exit_code_1_with_what_to_do(tmp_path):
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import shutil, types\nshutil.disk_usage = lambda path: types.SimpleNamespace(free=5)\n")
    done = doctor("--json", PYTHONPATH=str(tmp_path))
    said = json.loads(done.stdout)
    assert (done.returncode, said["fine"]) == (1, False)
    wrong = {finding["name"] for finding in said["findings"] if not finding["fine"]}
    assert wrong == {"disk for Spark", "disk here"}
    assert "something has to be done" in done.stderr


def test_the_versions_asked_for_are_those_of_the_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [line for line in project["optional-dependencies"]["spark"] if not line.startswith("onefold[")]
    assert [f"{name}>={'.'.join(map(str, PACKAGES[name]))}" for name in sorted(PACKAGES)] == sorted(asked)


# An outbox


@pytest.fixture
def shop(tmp_path):
    """An endpoint in one file, which handles "orders" and is at rest."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with Endpoint("shop", store=url, transport=url, plan="transactional") as app:
        app.handler("orders", key="order")(lambda state, message: ((state or 0) + 1, [Out("shipping", 1)]))
        app.world.queue.waiting()
        yield app


def found(folder: Path, *more: object, code: int | None = None, **environ: str) -> dict[str, list[dict]]:
    """What the doctor says of the shop there, by name; 0 s old is old."""
    url = f"sqlite:///{folder}/shop.db"
    words = ["--store", url, "--transport", url, "--older-than-s", 0, *more]
    done = here("doctor", *words, "--json", cwd=folder, **environ)
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["fine"] else 1)
    assert code in (None, done.returncode)
    return {name: list(those) for name, those in groupby(told["findings"], key=lambda finding: finding["name"])}


def test_an_outbox_at_rest_is_fine(shop, tmp_path):
    told = found(tmp_path, code=0)
    assert {name: [one["found"] for one in those] for name, those in told.items()} == {
        "tokens": ["0"],
        "outbox entries": ["no old ones"],
        "orphans": ["none"],
        "leaks": ["none"],
        "dead letters": ["none"],
        "due times": ["all possible"],
    }


def test_what_was_left_in_an_outbox_is_a_finding_and_its_tokens_are_no_leaks(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": "7"})])
    cut_off(shop, "orders")
    told = found(tmp_path, code=1)
    assert told["outbox entries"][0]["found"].startswith("1 of shop, the oldest written")
    assert (told["leaks"][0]["found"], told["orphans"][0]["found"]) == ("none", "none")


def test_what_is_young_is_under_way(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": "7"})])
    cut_off(shop, "orders")
    shop.world.tokens.create([Create("gone", "a", (("orphan", "orders"),), guarded=False)])
    assert found(tmp_path, "--older-than-s", 600, code=0)["tokens"][0]["found"].startswith("2, the oldest made")


@contextmanager
def a_month_ahead(shop):
    """The shop's queue and ledger with a clock that is wrong for a while."""
    stores = (shop.world.queue, shop.world.entities)
    honest = [store._clock_ms for store in stores]
    for store in stores:
        store._clock_ms = lambda: wall_ms() + 30 * 86_400_000
    yield
    for store, clock in zip(stores, honest, strict=True):
        store._clock_ms = clock


def test_what_a_clock_that_was_ahead_left_is_shown_and_mended_when_asked(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": str(n)}) for n in range(30)])
    with a_month_ahead(shop):
        assert len(shop.world.queue.lease(["orders"], 30, 30_000)) == 30
    told = found(tmp_path, "--older-than-s", 600, code=1)["due times"]
    assert [one["found"] for one in told] == ["30 in orders due in 30.0 days, beyond their lease or delay"]
    assert "--mend" in told[0]["advice"]
    told = found(tmp_path, "--older-than-s", 600, "--mend", code=0)["due times"]
    assert [one["found"] for one in told] == ["30 in orders due in 30.0 days, beyond their lease or delay: due now"]
    found(tmp_path, "--older-than-s", 600, code=0)
    assert shop.world.queue.strayed() == []


def test_what_is_dated_later_than_now_is_not_young(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": "7"})])
    with a_month_ahead(shop):
        cut_off(shop, "orders")
        shop.world.tokens.create([Create("gone", "a", (("orphan", "orders"),), guarded=False)])
    told = found(tmp_path, "--older-than-s", 600, code=1)
    assert told["outbox entries"][0]["found"].startswith("1 of shop")
    assert told["orphans"][0]["found"] == "1: orphan"


def test_mending_is_for_an_outbox():
    done = doctor("--mend")
    assert (done.returncode, "--mend is for an outbox" in done.stderr) == (2, True)


def test_a_token_whose_message_is_gone_is_a_leak(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": "7"})])
    [token] = shop.world.tokens.listed()
    shop.world.queue.acknowledge(shop.world.queue.lease(["orders"], 1, 1_000))
    [leak] = found(tmp_path, code=1)["leaks"]
    assert leak["found"] == f"1 to orders without a message: {token.token}"


def test_of_messages_that_wait_only_the_number_is_known_and_no_more_is_claimed(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": "7"}), Out("orders", {"order": "8"})])
    [fine] = found(tmp_path, code=0)["leaks"]
    assert fine["found"] == "not known for orders: 2 old tokens, 2 messages"
    shop.world.queue.acknowledge(shop.world.queue.lease(["orders"], 1, 1_000))
    [leak] = found(tmp_path, code=1)["leaks"]
    assert leak["found"] == "at least 1 to orders without a message, among 2 old tokens for 1 messages"


def test_orphans_are_a_finding_unless_their_parent_is_in_an_outbox(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": "7"})])
    parent = cut_off(shop, "orders")
    made = [
        Create(parent, "a", (("expected", "x"),), guarded=False),
        Create("gone", "a", (("lost", "x"),), guarded=False),
    ]
    shop.world.tokens.create(made)
    told = found(tmp_path, code=1)
    assert told["orphans"][0]["found"] == "1: lost"
    assert told["leaks"][0]["found"] == "none"


def test_dead_letters_are_a_finding_and_their_tokens_are_no_leaks(shop, tmp_path):
    shop.take("orders.csv", 1, [Out("orders", {"order": "7"})])
    shop.world.queue.bury(shop.world.queue.lease(["orders"], 1, 1_000), "it said \x1b[31mno")
    told = found(tmp_path, code=1)
    assert told["dead letters"][0]["found"] == "1 in orders; the last one: it said ?[31mno"
    assert told["leaks"][0]["found"] == "none"


def test_the_variables_fill_in_but_alone_the_doctor_looks_at_the_machine(shop, tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    environ = {"ONEFOLD_STORE": url, "ONEFOLD_TRANSPORT": url}
    done = here("doctor", "--store", url, "--json", cwd=tmp_path, ONEFOLD_TRANSPORT=url)
    assert json.loads(done.stdout)["findings"][0]["name"] == "tokens"
    done = here("doctor", "--json", cwd=tmp_path, **environ)
    assert json.loads(done.stdout)["findings"][0]["name"] == "onefold"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--store", "sqlite:///x.db"], "x.db is not there"),
        (["--transport", "sqlite:///x.db"], "--transport: an outbox is checked with"),
        (["--tokens", "redis://me:hush@h"], "--tokens: an outbox is checked with"),
        (["--older-than-s", "5"], "--older-than-s is for an outbox"),
        (["--store", "sqlite:///x.db", "--transport", "sqlite:///x.db"], "x.db is not there"),
    ],
)
def test_options_of_an_outbox_that_would_have_no_effect_are_refused(tmp_path, words, said):
    done = here("doctor", *words, cwd=tmp_path)
    assert (done.returncode, said in done.stderr, "hush" in done.stderr) == (2, True, False)
