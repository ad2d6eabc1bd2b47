"""`onefold log`, as a user runs it: while another process writes, and on a damaged log."""

import json
import subprocess
import sys
import threading

import pytest

from onefold.cli.main import main
from onefold.producers.client import Producer
from onefold.producers.topic import Topics, TopicSettings


@pytest.fixture
def topics(tmp_path):
    """Two topics, open for writing."""
    with Topics(tmp_path / "log") as topics:
        with Producer("orders", at=topics, name="till") as till:
            for i in range(12):
                till.send(b"%d coffees" % i)
        with Producer("orders", at=topics, name="[bold]shop", initial_sequence_id=70) as shop:
            shop.send(b'{"tea":1}')
        topics.topic("orders").publish_keyed("key 1", b"\xff\x00")
        topics.topic("empty")
        yield topics


@pytest.fixture
def log(topics, capfd):
    """Run `onefold log` in this process: exit code, standard output, standard error."""
    capfd.readouterr()

    def run(*words):
        code = main(["log", *map(str, words)])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_ls_lists_the_topics_while_they_are_written(topics, log):
    code, out, err = log("ls", topics.root, "--json")
    assert code == 0
    empty, orders = json.loads(out)["topics"]
    assert (empty["topic"], empty["start"], empty["end"], empty["last_ms"]) == ("empty", 0, 0, None)
    assert (orders["topic"], orders["end"]) == ("orders", 16)
    assert orders["bytes"] > 500
    assert "orders" in err


def test_ls_of_a_folder_without_topics_says_so(tmp_path, log):
    assert log("ls", tmp_path)[::2] == (0, f"no topics in {tmp_path}\n")


def test_ls_shows_the_others_when_one_is_damaged(topics, log):
    (topics.root / "empty" / "durable").write_bytes(b"no mark")
    code, out, err = log("ls", topics.root, "--json")
    assert code == 0
    empty, orders = json.loads(out)["topics"]
    assert "the mark is missing or torn" in empty["problem"]
    assert orders["end"] == 16
    assert "the mark is missing or torn" in err


def test_tail_begins_at_a_time(topics, log):
    code, out, _ = log("tail", topics.root / "orders", "--since", "2001-01-01T00:00:00", "--json")
    assert (code, len(lines(out))) == (0, 14)
    assert log("tail", topics.root / "orders", "--since", "2999-01-01T00:00:00", "--json")[:2] == (0, "")
    code, _, err = log("tail", topics.root / "orders", "--since", "2001-01-01T00:00:00", "--from", 3)
    assert (code, "--from and --since" in err) == (2, True)


def test_tail_shows_the_last_messages_and_no_books(topics, log):
    code, out, err = log("tail", topics.root / "orders", "--max", 3, "--json")
    assert code == 0
    assert [line.get("sequence", line.get("key")) for line in lines(out)] == [11, 70, "key 1"]
    assert lines(out)[0]["text"] == "11 coffees"
    assert lines(out)[1]["payload"] == {"tea": 1}
    assert len(lines(log("tail", topics.root / "orders", "--json")[1])) == 10
    err = log("tail", topics.root / "orders", "--max", 2)[2]
    assert err.splitlines()[0].endswith('[bold]shop 70  {"tea":1}')
    assert err.splitlines()[1].endswith("key 1 0 keyed  \\xff\\x00")


def test_tail_from_an_offset_and_with_the_books(topics, log):
    orders = topics.root / "orders"
    assert [line["offset"] for line in lines(log("tail", orders, "--from", 0, "--json")[1])] == [*range(1, 13), 14, 15]
    kinds = [line.get("kind") for line in lines(log("tail", orders, "--from", 12, "--all", "--json")[1])]
    assert kinds == [None, "open", None, None]
    assert log("tail", orders, "--from", 17)[0] == 2
    assert log("tail", topics.root / "empty")[::2] == (0, "")


def test_tail_follows(topics, log):
    def more():
        with Producer("orders", at=topics, name="till") as till:
            till.send(b"news")

    timer = threading.Timer(0.1, more)
    timer.start()
    code, out, _ = log("tail", topics.root / "orders", "--from", 15, "--follow", "--max", 2, "--json")
    timer.join()
    assert code == 0
    assert [line.get("text") for line in lines(out)] == [None, "news"]


def test_tail_ends_quietly_when_nobody_reads_any_more(topics):
    words = [sys.executable, "-m", "onefold.cli.main", "log", "tail", "orders", "--from", "0", "--follow", "--json"]
    with subprocess.Popen(words, cwd=topics.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            child.stdout.close()
            topics.topic("orders").publish("other", [(0, b"x" * 10_000)])
            assert child.wait(60) == 0
            assert child.stderr is not None
            assert child.stderr.read() == b""
        finally:
            child.kill()


@pytest.mark.parametrize("closed", [False, True], ids=["from the tail", "from the snapshot"])
def test_producers_shows_how_far_each_one_is(topics, log, closed):
    if closed:
        topics.close()
    code, out, err = log("producers", topics.root / "orders", "--json")
    assert code == 0
    document = json.loads(out)
    shop, till = document["producers"]
    assert (till["name"], till["last_sequence_id"], till["epoch"]) == ("till", 11, 1)
    assert (shop["name"], shop["last_sequence_id"]) == ("[bold]shop", 70)
    assert till["last_seen_ms"] > 10**12
    assert document["deduplicate"] is True
    assert "[bold]shop" in err


def test_producers_of_a_topic_that_does_not_deduplicate(tmp_path, log):
    with Topics(tmp_path / "other", TopicSettings(deduplicate=False, memory="gaps")) as topics:
        topics.topic("t").publish("p", [(0, b"x")])
        code, _, err = log("producers", tmp_path / "other" / "t")
    assert code == 0
    assert "deduplication is off" in err


def test_verify_finds_damage_and_salvage_saves_the_rest(topics, log, tmp_path):
    orders = topics.root / "orders"
    code, out, err = log("verify", orders, "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert err.endswith("all is whole\n")

    topics.close()
    path = orders / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"5 coffees")] ^= 1
    path.write_bytes(data)
    code, out, err = log("verify", orders, "--json")
    assert code == 1
    found = json.loads(out)
    assert [(damage["first"], damage["last"]) for damage in found["damages"]] == [(6, 6)]
    assert "onefold log salvage" in err

    code, out, err = log("salvage", orders, tmp_path / "new" / "orders", "--json")
    assert (code, json.loads(out)["records"]) == (0, 15)
    assert "15 records saved in" in err
    assert log("verify", tmp_path / "new" / "orders")[0] == 0
    with Producer("orders", at=tmp_path / "new", name="till") as till:
        assert till.last_sequence_id == 11
    assert log("salvage", orders, tmp_path / "new" / "orders")[0] == 2


def test_reset_producer_forgets_the_sequences_of_one_and_that_lasts(topics, log):
    orders = topics.root / "orders"
    topics.topic("orders").publish("wild", [(2**62, b"")])
    code, _, err = log("reset-producer", orders, "wild")
    assert (code, "another process writes this log" in err) == (3, True)
    topics.close()
    code, out, err = log("reset-producer", orders, "wild", "--json")
    assert (code, json.loads(out)["last_sequence_id"]) == (0, 2**62)
    assert "its next one is new" in err
    assert log("reset-producer", orders, "nobody")[0] == 2
    assert log("reset-producer", topics.root, "wild")[0] == 2
    kinds = [line.get("kind") for line in lines(log("tail", orders, "--all", "--max", 1, "--json")[1])]
    assert kinds == ["reset"]
    with Topics(topics.root) as again:
        assert [str(r.verdict) for r in again.topic("orders").publish("wild", [(0, b""), (1, b"")])] == ["FIRST"] * 2
        assert again.topic("orders").last_sequence_id("till") == 11


def test_verify_tells_a_beginning_that_is_lost_from_one_that_retention_removed(tmp_path, log):
    settings = TopicSettings(snapshot_entries=5)
    with Topics(tmp_path / "other", settings, segment_bytes=200) as topics:
        for name in ("lost", "removed"):
            for i in range(30):
                topics.topic(name).publish("p", [(i, b"x" * 50)])
        kept = topics.topic("removed").log.retain(bytes=500)
    lost, removed = tmp_path / "other" / "lost", tmp_path / "other" / "removed"
    assert kept > 0
    code, out, _ = log("verify", removed, "--json")
    assert (code, json.loads(out)["start"], json.loads(out)["damages"]) == (0, kept, [])
    assert log("verify", lost)[0] == 0
    oldest, second = sorted(lost.glob("*.log"))[:2]
    oldest.unlink()
    code, out, err = log("verify", lost, "--json")
    (damage,) = json.loads(out)["damages"]
    assert (code, damage["first"], damage["last"]) == (1, 0, int(second.stem) - 1)
    assert "all is whole" not in err
    with Topics(tmp_path / "other") as topics:
        topics.topic("lost").publish("p", [(99, b"")])
    assert log("verify", lost)[0] == 1  # to write on does not make it whole
    assert log("salvage", lost, tmp_path / "saved")[0] == 0
    assert log("verify", tmp_path / "saved")[0] == 0


def test_verify_of_a_log_of_before_its_beginning_was_written_down_says_so(tmp_path, log):
    with Topics(tmp_path / "other", TopicSettings(snapshot_entries=5), segment_bytes=200) as topics:
        for i in range(30):
            topics.topic("t").publish("p", [(i, b"x" * 50)])
        kept = topics.topic("t").log.retain(bytes=500)
    (tmp_path / "other" / "t" / "start").unlink()
    code, _, err = log("verify", tmp_path / "other" / "t")
    assert (code, f"it begins at {kept}, and nothing says whether" in err) == (0, True)
    with Topics(tmp_path / "other") as topics:
        topics.topic("t")
    assert "nothing says" not in log("verify", tmp_path / "other" / "t")[2]


def test_verify_tells_of_records_of_the_future(tmp_path, log):
    with Topics(tmp_path / "other", clock=lambda: 4_000_000_000_000) as topics:
        topics.topic("t").publish("p", [(0, b""), (1, b"")])
    code, out, err = log("verify", tmp_path / "other" / "t", "--json")
    assert (code, json.loads(out)["ahead"]) == (0, 2)
    assert "2 with a time that is yet to come, from offset 0 on, up to 2096-10-02" in err


@pytest.mark.parametrize("command", ["tail", "verify", "producers"])
def test_a_folder_without_a_log_is_one_line_and_exit_2(log, tmp_path, command):
    (tmp_path / "nothing").mkdir()
    code, _, err = log(command, tmp_path / "nothing")
    assert code == 2
    assert len(err.splitlines()) == 1
