"""The lines of a file, each once: resumed, killed, followed, and refused where it is not the same file."""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.producers.client import Producer
from onefold.producers.log.reader import LogReader
from onefold.producers.publisher import FilePublisher, producer_name
from onefold.producers.records import Kind
from onefold.producers.topic import Topics, TopicSettings
from tests.lib.examples import examples, proof

CHILD = """
import sys
from pathlib import Path
from onefold.producers.publisher import FilePublisher
from onefold.producers.client import Producer
with Producer("t", at=sys.argv[2], name="file") as producer:
    FilePublisher(Path(sys.argv[1]), producer).run()
"""


@pytest.fixture
def topics(tmp_path):
    with Topics(tmp_path / "log") as topics:
        yield topics


def published(topics):
    log = topics.topic("t").log
    return [(r.sequence, r.payload) for r in log.read(log.start) if r.kind == Kind.MESSAGE]


def run(path, topics, keep=None, **options):
    with Producer("t", at=topics, name="file") as producer:
        publisher = FilePublisher(path, producer, keep=keep)
        publisher.run(**options)
    return publisher


def lines_of(data):
    """What a file's lines are, the slow way."""
    offset, found = 0, []
    for line in data.splitlines(keepends=True) if b"\r" not in data else data.split(b"\n"):
        found.append((offset, line.rstrip(b"\n")))
        offset += len(line)
    return found


@pytest.mark.parametrize(
    "data", [b"", b"a", b"a\n", b"\n", b"a\n\n\nbc\n", b"\n\nx", b"one\ntwo\nthree", b"\0\xff\n\n"]
)
def test_every_line_is_a_message_empty_ones_and_the_last_one_too(tmp_path, topics, data):
    path = tmp_path / "f"
    path.write_bytes(data)
    publisher = run(path, topics)
    assert published(topics) == lines_of(data)
    assert (publisher.stored, publisher.resumed_at) == (len(lines_of(data)), None)


def test_a_line_keeps_its_carriage_return(tmp_path, topics):
    (tmp_path / "f").write_bytes(b"a\r\nb\r\n")
    run(tmp_path / "f", topics)
    assert published(topics) == [(0, b"a\r"), (3, b"b\r")]


def test_lines_longer_than_a_block_and_many_blocks(tmp_path, topics, monkeypatch):
    monkeypatch.setattr("onefold.producers.publisher.BLOCK_BYTES", 7)
    data = b"\n".join(bytes([65 + i % 26]) * (i % 23) for i in range(200)) + b"\n"
    (tmp_path / "f").write_bytes(data)
    run(tmp_path / "f", topics)
    assert published(topics) == lines_of(data)


def test_started_again_it_sends_the_last_line_again_and_goes_on(tmp_path, topics):
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\n")
    run(path, topics)
    again = run(path, topics)
    assert (again.stored, again.repeats, again.resumed_at) == (0, 1, 4)
    path.write_bytes(b"one\ntwo\nthree\nfour")
    more = run(path, topics)
    assert (more.stored, more.repeats, more.resumed_at, more.answered) == (2, 1, 4, 18)
    assert [payload for _, payload in published(topics)] == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (b"one\nTWO\n", "holds a line of byte 4, with another text"),
        (b"one\ntwo and more\n", "holds a line of byte 4, with another text"),
        (b"one\n", "holds a line of byte 4, and the file ends at 4"),
        (b"o\no\n", "holds a line of byte 4, and the file ends at 4"),
        (b"o\ntwo\nthree\n", "holds a line of byte 4, and no line of the file begins there"),
    ],
)
def test_a_file_that_is_not_the_one_that_was_published_is_refused_by_place(tmp_path, topics, now, said):
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo")
    run(path, topics)
    path.write_bytes(now)
    with pytest.raises(Misuse, match=said) as caught:
        run(path, topics)
    assert str(path) in str(caught.value)
    assert len(published(topics)) == 2


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=30), st.lists(st.sampled_from(b"ab\n"), max_size=12).map(bytes), st.integers(0, 40))
def test_a_file_that_grows_goes_on_and_one_of_which_any_byte_changed_does_not(data, more, place):
    with tempfile.TemporaryDirectory() as folder, Topics(Path(folder) / "log") as topics:
        path, keep = Path(folder) / "f", Path(folder) / "state"
        path.write_bytes(data + b"\n")
        run(path, topics, keep=keep)
        path.write_bytes(data + b"\n" + more + b"\n")
        run(path, topics, keep=keep)
        assert published(topics) == [*walk(data + b"\n" + more + b"\n")]
        changed = bytearray(path.read_bytes())
        changed[place % len(changed)] ^= 1
        path.write_bytes(changed + b"and more\n")
        with pytest.raises(Misuse, match="is not the file that was published"):
            run(path, topics, keep=keep)
        assert published(topics) == [*walk(data + b"\n" + more + b"\n")]


def walk(data):
    at = 0
    for line in data.split(b"\n")[:-1]:
        yield at, line
        at += len(line) + 1


def test_what_was_read_and_not_stored_is_known_too(tmp_path):
    """A run that is killed behind the first lines: the rest of what it had read must still be the same."""
    path, keep = tmp_path / "f", tmp_path / "state"
    path.write_bytes(b"a\n" + b"x" * 200 + b"\n")
    with Topics(tmp_path / "log", TopicSettings(message_bytes_max=100)) as topics:
        with pytest.raises(Misuse, match="is longer than"):
            run(path, topics, keep=keep)
        path.write_bytes(b"a\nanother file\n")
        with pytest.raises(Misuse, match="is not the file that was published"):
            run(path, topics, keep=keep)


def test_a_line_that_is_too_long_stops_at_its_place_with_all_before_it_stored(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"a\nb\n" + bytes(101) + b"\nc\n")
    with Topics(tmp_path / "log", TopicSettings(message_bytes_max=100)) as topics:
        with pytest.raises(Misuse, match="the line at byte 4 is longer than the 100 bytes"):
            run(path, topics)
        assert [payload for _, payload in published(topics)] == [b"a", b"b"]


def test_following_sends_whole_lines_only_as_they_come(tmp_path, topics):
    path = tmp_path / "f"
    path.write_bytes(b"one\nhal")
    growth = iter([b"f\ntwo\n", b"", b"three"])

    def wait(seconds):
        added = next(growth, None)
        if added is None:
            return True
        with path.open("ab") as file:
            file.write(added)
        return False

    publisher = run(path, topics, wait=wait)
    assert published(topics) == [(0, b"one"), (4, b"half"), (9, b"two")]
    assert publisher.stored == 3
    run(path, topics)  # finished now
    assert published(topics)[3:] == [(13, b"three")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_bytes(b"o"), "was cut to 1 bytes, 4 were read"),
        (lambda path: path.rename(path.with_name("g")), "is another file now"),
    ],
)
def test_a_followed_file_that_is_cut_or_replaced_ends_with_a_word(tmp_path, topics, change, said):
    path = tmp_path / "f"
    path.write_bytes(b"one\n")

    def wait(seconds):
        change(path)
        return False

    with pytest.raises(Misuse, match=said):
        run(path, topics, wait=wait)
    assert len(published(topics)) == 1


def test_what_cannot_be_read_again_is_refused(tmp_path, topics):
    os.mkfifo(tmp_path / "pipe")
    both_ends = os.open(tmp_path / "pipe", os.O_RDWR)  # so that opening it does not wait
    with pytest.raises(Misuse, match="is not seekable"):
        run(tmp_path / "pipe", topics)
    os.close(both_ends)


def test_the_name_is_the_path_or_its_hash():
    assert producer_name(Path("/a/b")) == "file:/a/b"
    for path in (Path("/" + "x" * 200), Path("/\udcff")):
        assert producer_name(path).startswith("file:sha256:")
        assert len(producer_name(path)) == 76


def kill_again_and_again(path, folder, kills, chance):
    """Publish the file with a process that is killed, each time a little further on; then to the end."""
    for _ in range(kills):
        end = LogReader(folder / "t").end
        further = end + chance.randrange(1, 800)
        with subprocess.Popen([sys.executable, "-c", CHILD, path, folder]) as child:
            while LogReader(folder / "t").end < further and child.poll() is None:
                time.sleep(0.005)
            assert child.poll() is None, "it was done before it was killed"
            child.kill()
    subprocess.run([sys.executable, "-c", CHILD, path, folder], check=True)


@pytest.fixture
def long_file(tmp_path):
    chance = random.Random(6)
    path = tmp_path / "long"
    path.write_bytes(b"".join(b"%d %s\n" % (i, b"x" * chance.randrange(60)) for i in range(12_000)))
    return path


@pytest.mark.parametrize("kills", [2, proof(10)])
def test_killed_again_and_again_it_publishes_each_line_once_and_in_order(tmp_path, long_file, kills):
    Topics(tmp_path / "log").topic("t").close()
    kill_again_and_again(long_file, tmp_path / "log", kills, random.Random(7))
    with Topics(tmp_path / "log") as topics:
        assert published(topics) == lines_of(long_file.read_bytes())


def test_without_deduplication_the_same_kills_make_duplicates(tmp_path, long_file):
    with Topics(tmp_path / "log", TopicSettings(deduplicate=False)) as topics:
        topics.topic("t")
    kill_again_and_again(long_file, tmp_path / "log", 2, random.Random(7))
    with Topics(tmp_path / "log") as topics:
        assert len(published(topics)) > len(set(published(topics))) == 12_000
