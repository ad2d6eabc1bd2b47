"""`onefold publish`, as a user runs it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from onefold.producers.log.reader import LogReader
from onefold.producers.records import Kind
from onefold.producers.server import IngestServer, IngestSettings
from onefold.producers.topic import Topics
from tests.lib.commands import here

COMMAND = [sys.executable, "-m", "onefold.cli.main", "publish"]


def publish(folder, *words):
    return here("publish", *words, cwd=folder)


def payloads(folder):
    return [r.payload for r in LogReader(folder).read(0) if r.kind == Kind.MESSAGE]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "f").write_bytes(b"one\n\nthree")
    return tmp_path


def test_it_publishes_once_goes_on_and_refuses_another_file(folder):
    first = publish(folder, "f", "--topic", "t")
    assert (first.returncode, first.stdout) == (0, ""), first.stderr
    assert first.stderr == "3 lines stored; none was there before\n"

    (folder / "f").write_bytes(b"one\n\nthree\nfour\n")
    again = publish(folder, "f", "--topic", "t", "--json")
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert (told["stored"], told["repeats"], told["resumed_at"], told["end"]) == (1, 1, 5, 15)
    assert told["name"] == f"file:{folder / 'f'}"
    assert "those up to byte 5 were there before" in again.stderr
    assert payloads(folder / "onefold-log" / "t") == [b"one", b"", b"three", b"four"]

    (folder / "f").write_bytes(b"one\n\nthree\nfive\n")
    other = publish(folder, "f", "--topic", "t")
    assert other.returncode == 2
    assert len(other.stderr.splitlines()) == 1
    assert "its first 16 bytes are not those that were read then" in other.stderr
    without = publish(folder, "f", "--topic", "t", "--state", "elsewhere.json")  # as from another machine
    assert without.returncode == 2
    assert "the topic holds a line of byte 11, with another text" in without.stderr


def test_another_file_of_the_same_path_is_refused_though_a_line_of_it_fits(folder):
    (folder / "f").write_bytes(b"a1\na2\nend\n")
    assert publish(folder, "f", "--topic", "t").returncode == 0
    (folder / "f").write_bytes(b"b1\nb2\nend\nb4\n")  # rotated; at byte 6 it is the same
    other = publish(folder, "f", "--topic", "t")
    assert (other.returncode, len(other.stderr.splitlines())) == (2, 1)
    assert "is not the file that was published" in other.stderr
    assert payloads(folder / "onefold-log" / "t") == [b"a1", b"a2", b"end"]
    assert publish(folder, "f", "--topic", "t", "--name", "f of today").returncode == 0
    assert payloads(folder / "onefold-log" / "t")[3:] == [b"b1", b"b2", b"end", b"b4"]


def test_a_state_that_cannot_be_read_is_refused_and_one_that_cannot_be_kept_stops_before_anything_is_sent(folder):
    (folder / "broken.json").write_text("[]")
    (folder / "file").write_text("")
    cannot = publish(folder, "f", "--topic", "t", "--state", "file/state.json")
    assert (cannot.returncode, payloads(folder / "onefold-log" / "t")) == (3, [])
    assert publish(folder, "f", "--topic", "t").returncode == 0
    broken = publish(folder, "f", "--topic", "t", "--state", "broken.json")
    assert broken.returncode == 2
    assert "broken.json: does not say what was published" in broken.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nofile", "--topic", "t"], 2, "does not exist"),
        (["f"], 2, "--topic"),
        (["f", "--topic", "../t"], 2, "must be 1 to 100"),
        (["f", "--topic", "t", "--to", "http://"], 2, "is no address of a server"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_2(folder, words, code, said):
    done = publish(folder, *words)
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_is_not_there_is_exit_3(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        done = publish(folder, "f", "--topic", "t", "--to", url, "--retry-s", "0.2")
    assert done.returncode == 3
    assert "gave up after 0.2 s: ws://" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_publishes_to_a_server_with_a_token(folder):
    server = IngestServer(Topics(folder / "log"), IngestSettings(port=0, token="secret"))  # noqa: S106
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.ready.wait(60)
        (folder / "token").write_text("secret\n")
        refused = publish(folder, "f", "--topic", "t", "--to", server.url)
        done = publish(folder, "f", "--topic", "t", "--to", server.url, "--token-file", "token")
    finally:
        server.stop()
        thread.join()
    assert refused.returncode == 2
    assert "401" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert payloads(folder / "log" / "t") == [b"one", b"", b"three"]


def test_following_it_is_ended_by_ctrl_c_and_says_that_it_can_go_on(folder):
    words = [*COMMAND, "f", "--topic", "t", "--follow"]
    with Topics(folder / "onefold-log") as topics:
        topics.topic("t")
    reader = LogReader(folder / "onefold-log" / "t")
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: reader.end == 3)  # the opening and two whole lines
            with (folder / "f").open("ab") as file:
                file.write(b" lines\n")
            wait_for(lambda: reader.end == 4)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert re.fullmatch("onefold: interrupted: [23] lines known to be stored; starting it again goes on\n", err)
    assert publish(folder, "f", "--topic", "t").returncode == 0
    assert payloads(folder / "onefold-log" / "t") == [b"one", b"", b"three lines"]


def test_a_followed_file_that_is_renamed_is_published_to_its_end_before_it_stops(folder):
    words = [*COMMAND, "f", "--topic", "t", "--follow"]
    with Topics(folder / "onefold-log") as topics:
        topics.topic("t")
    reader = LogReader(folder / "onefold-log" / "t")
    with (
        subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as process,
        (folder / "f").open("ab") as file,
    ):
        try:
            wait_for(lambda: reader.end == 3)
            os.kill(process.pid, signal.SIGSTOP)
            (folder / "f").rename(folder / "g")
            file.write(b" lines\nfour\n")
            file.flush()
            os.kill(process.pid, signal.SIGCONT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (
        2,
        "onefold: f: is another file now; the old one is published up to byte 22\n",
    )
    assert payloads(folder / "onefold-log" / "t") == [b"one", b"", b"three lines", b"four"]


def wait_for(condition):
    """Another process does it: all that can be done is to look."""
    pause = threading.Event()
    for _ in range(6_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come")
