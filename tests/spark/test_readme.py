"""What the README and the first steps say works: their commands are run as they stand, their Python is executed."""

import json
import re
import shlex
import subprocess
import sys
from http.client import HTTPConnection

import pytest

from tests.lib.commands import here, process
from tests.lib.documents import ROOT, blocks, walk
from tests.lib.fleet import Gateway
from tests.lib.producer_trials import Server

README, BLOCKS = blocks("README.md"), blocks("docs/first-steps.md")
COMMANDS = [line.split("#")[0].strip() for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
GROUPS = ("lorawan", "records", "serve")


def name(words):
    return " ".join(words[: 2 if words[0] in GROUPS else 1])


WORDS = {name(words): words for words in (shlex.split(command)[1:] for command in COMMANDS) if words}


pytestmark = pytest.mark.usefixtures("spark")


def onefold(words, cwd):
    return here(*words, cwd=cwd)


def test_the_first_steps_show_every_command_of_a_first_day():
    first = {"check", "init", "run", "simulate", "doctor", "publish", "log", "consume", "tokens", "explore"}
    first |= {"audit", "diff", "explain", "window", "report", "reconcile"}
    pairs = {"serve ingest", "serve gateway", "serve desk", "lorawan simulate", "lorawan play", "lorawan report"}
    pairs |= {"serve reconcile", "records add"}
    assert set(WORDS) == first | pairs


def test_simulate_init_and_run_work_one_after_the_other_as_written(tmp_path):
    small = [*WORDS["simulate"][:-1], "0.02", "--chains", "20"]
    small[small.index("100000")] = "3000"
    assert onefold(small, tmp_path).returncode == 0
    assert onefold(WORDS["init"], tmp_path).returncode == 0
    done = onefold(WORDS["run"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the books balance: 3,000 in =" in done.stderr
    assert "source and sink agree: 3,000 rows, fingerprint " in done.stderr
    for folder in ("firsts", "repeats", "unsure", "rejects", "gaps"):
        assert (tmp_path / "out" / folder).is_dir()
    (tmp_path / "out" / "report.html").unlink()
    shown = {"report": "report.html", "explain": "fills_gap", "window": "99", "audit": "agree"}
    for words, told in ((WORDS[name], text) for name, text in shown.items()):
        # The Java of this test run was started in another folder, so its paths begin there.
        done = onefold([str(tmp_path / word) if "/" in word else word for word in words], tmp_path)
        assert (done.returncode, told in done.stderr) == (0, True), done.stderr
    assert (tmp_path / "out" / "report.html").exists()


def test_two_stores_are_brought_to_agreement_as_written(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"at": 5, "text": "one"}\n{"at": 6, "text": "two"}\n')
    assert process(*WORDS["records add"], cwd=tmp_path).returncode == 0
    command = [sys.executable, "-m", "onefold.cli.main", *WORDS["serve reconcile"], "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["url"].rpartition(":")[2]
        done = process(*(word.replace("7657", port) for word in WORDS["reconcile"]), cwd=tmp_path)
        server.terminate()
    assert (done.returncode, "2 records pulled, 0 pushed; both hold 2 now" in done.stderr) == (0, True), done.stderr


def test_check_finds_the_copies_of_an_id_as_written(tmp_path):
    ids = ["a", "b", "a", "c", "a"]
    lines = (json.dumps({"event_id": id, "at": f"2026-03-01T08:00:0{n}Z"}) for n, id in enumerate(ids))
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    (words,) = (words for command in COMMANDS if "--id" in (words := shlex.split(command)[1:]))
    done = onefold([word.replace("events.jsonl", f"{tmp_path}/events.jsonl") for word in words], tmp_path)
    assert done.returncode == 1, done.stderr
    assert "found: 2 repeated messages" in done.stderr


def test_check_finds_the_duplicate_of_a_small_file_as_written(tmp_path):
    (tmp_path / "data").mkdir()
    rows = "device,ts,previous_timestamp,previous_sequence,arrival\na,5,,,1\na,6,5,0,2\na,6,5,0,3\n"
    (tmp_path / "data" / "x.csv").write_text(rows)
    # The Java of this test run was started in another folder, so its paths begin there.
    done = onefold([word.replace("data/", f"{tmp_path}/data/") for word in WORDS["check"]], tmp_path)
    assert done.returncode == 1, done.stderr
    assert "found: 1 repeated message" in done.stderr


def test_check_needs_no_column_that_its_command_does_not_name(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("device,ts,value\na,5,1\na,6,2\na,6,2\n")
    done = onefold([word.replace("data/", f"{tmp_path}/data/") for word in WORDS["check"]], tmp_path)
    assert done.returncode == 1, done.stderr
    assert "found: 1 repeated message" in done.stderr
    assert "there is no column previous_timestamp, previous_sequence, arrival: judged without" in done.stderr


def test_serve_publish_and_log_work_together_as_written(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    with Server(tmp_path / "log") as server:  # as the page starts it, on a port that is free
        words = [word.replace("7654", str(server.port)) for word in WORDS["publish"]]
        for _ in range(2):
            done = onefold(words, tmp_path)
            assert done.returncode == 0, done.stderr
    done = onefold([*WORDS["log"], "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"events"' in done.stdout
    done = onefold(["log", "tail", "log/events", "--json"], tmp_path)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ['{"n": 1}', '{"n": 2}']


def test_radio_traffic_is_made_served_played_and_reported_as_written(tmp_path):
    assert onefold(WORDS["lorawan simulate"], tmp_path).returncode == 0
    _, _, folder, _, devices, *flags = WORDS["serve gateway"]
    with Gateway(tmp_path / folder, "a", tmp_path / devices, *flags) as server:  # on a port that is free
        play = [word.replace("7655", str(server.up().port)) for word in WORDS["lorawan play"]]
        assert onefold(play, tmp_path).returncode == 0
        assert server.stop() == 0
    done = onefold([*WORDS["lorawan report"][:-1], tmp_path / WORDS["lorawan report"][-1], "--json"], tmp_path)
    assert done.returncode == 1, done.stderr  # there are losses and replays in it
    told = json.loads(done.stdout)
    truth = sum(1 for line in (tmp_path / "air" / "receptions.jsonl").open())
    assert told["tally"]["in"] == truth


def test_a_request_at_the_desk_is_consumed_once_as_written(tmp_path):
    (tmp_path / "app.py").write_text(next(block for kind, block in BLOCKS if "Endpoint" in block))
    desk = [sys.executable, "-m", "onefold.cli.main", *WORDS["serve desk"], "--port", "0", "--json"]
    body = {"customer": "ann", "order": 7, "sum": 20}
    with subprocess.Popen(desk, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        client = HTTPConnection(json.loads(server.stdout.readline())["url"].removeprefix("http://"))
        client.request("POST", "/orders")
        place = json.loads(client.getresponse().read())["id"]
        for _ in range(2):
            client.request("POST", f"/orders/{place}", json.dumps(body))
            assert client.getresponse().read()
        server.terminate()
    done = process(*WORDS["tokens"], "--json", cwd=tmp_path)
    assert [token["to"] for token in json.loads(done.stdout)["listed"]] == ["orders"]
    done = process(*WORDS["consume"], "--until-empty", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 in = 1 first" in done.stderr
    done = process(*WORDS["explore"], cwd=tmp_path)
    assert (done.returncode, "nothing wrong" in done.stderr) == (0, True), done.stderr


def test_doctor_is_content_with_this_machine(tmp_path):
    done = onefold(WORDS["doctor"], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_readme_has_two_commands_for_the_clone():
    (block,) = (block for kind, block in README if kind == "sh" and "./run" in block)
    assert [line.split("#")[0].strip() for line in block.splitlines()] == ["./run", "./run test"]
    done = subprocess.run([ROOT / "run", "help"], capture_output=True, text=True, check=True)
    assert all(re.search(rf"^  {re.escape(line)} +", done.stdout, re.M) for line in ("./run", "./run test"))


def test_the_everyday_commands_of_the_readme_print_what_it_shows(tmp_path):
    everyday = [(kind, block) for kind, block in README if "./run" not in block]
    assert walk(everyday, tmp_path) == 4
    assert (tmp_path / "out" / "report.html").exists()


def test_the_step_of_the_readme_judges_a_dataframe(spark):
    (code,) = (block for kind, block in README if "judge_ids" in block)
    names = {"df": spark.createDataFrame([("a",), ("b",), ("a",)], "event_id string")}
    exec(code, names)  # noqa: S102  # our own README
    assert sorted(row.event_id for row in names["firsts"].collect()) == ["a", "b"]


@pytest.mark.parametrize("code", [block for kind, block in README if kind == "python" and "detector" in block])
def test_the_scalar_example_answers_as_its_comments_say(code):
    names: dict[str, object] = {}
    for line in filter(None, code.splitlines()):
        statement, _, comment = line.partition("#")
        if not comment:
            exec(statement, names)  # noqa: S102  # our own README
            continue
        answer = str(eval(statement, names))  # noqa: S307  # our own README
        assert comment.strip().startswith(answer)
    assert "detector" in names
