"""Places that overlap, in every spelling that a user might give them; and a lock where there is no flock."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import Misuse, StaleWrite
from onefold.spark import signature
from onefold.spark.files import Place
from onefold.spark.objects import LOCK
from onefold.spark.overlap import overlaps, refuse_inside


@pytest.fixture
def data(tmp_path, monkeypatch):
    (tmp_path / "data" / "in" / "day=1").mkdir(parents=True)
    (tmp_path / "data" / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "deep").symlink_to(tmp_path / "data" / "in")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SOURCES = [
    "data/in",
    "data/in/",
    "./data/in",
    "data/other/../in",
    "link/in",
    "data/deep",
    "data//in",
    "link/deep/day=1/..",
]
SOURCES += ["data/in/*", "data/i?", "data/[hi]n", "data/{in,other}", "data/{x,i[n]}", "data/*/../in", "*/in", "link/*"]
TARGETS = ["data", "data/in", "data/in/out", "data/in/day=1/../out", "link", "link/in", "data/deep/x/y", "."]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_spelling_of_what_overlaps_is_known(data, source, target):
    for prefix in ("", f"{data}/", f"file:{data}/", f"file://{data}/", f"FILE://localhost{data}/"):
        assert overlaps(prefix + source, target)
        assert overlaps(source, prefix + target)


@pytest.mark.parametrize(
    "target", ["out", "data/out", "data/in2", "data/i", "data/other", "../x", "data/in.checkpoint"]
)
def test_what_lies_beside_does_not_overlap(data, target):
    for source in ("data/in", "link/in/day=1", "data/in/*.json", "data/{in,on}/x", "data/[i][n]", "data/deep"):
        assert not overlaps(source, target)
        assert not overlaps(f"file://{data}/{source}", f"{data}/{target}")


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("s3a://b/x", "s3://b/x/y", True),
        ("s3a://b/x", "s3a://c/x", False),
        ("hdfs://nn:8020/x/../y", "hdfs://nn/y/", True),
        ("hdfs:///y", "hdfs://nn/y", True),
        ("hdfs://nn/data", "/data", False),
        ("abfss://c@account/x/*/y", "abfs://c@account/x/1", True),
        ("/data/" + "{a,b}" * 30, "/data/x", True),  # more paths than are looked at: all below /data
        ("/data/[z-a]", "/data/x", True),  # no pattern that is known: it may match
        ("/a/b:c", "/a/b:c/d", True),
    ],
)
def test_places_elsewhere_are_compared_by_store_and_way(source, target, expected):
    assert overlaps(source, target) is expected


@pytest.mark.parametrize(
    ("outer", "inner", "refused"),
    [
        ("data/in", "data/in", True),
        ("data/in", "link/in/x", True),
        ("data/in", "data/in/day=1/../.hidden", False),
        ("data/in", "data", False),
        ("data/in", "data/in.checkpoint", False),
        ("data/.in", "data/.in/", True),
        ("s3a://b/x", "s3://b/x/y", True),
    ],
)
def test_what_lies_inside_and_is_not_hidden_is_refused(data, outer, inner, refused):
    with pytest.raises(Misuse, match="lies inside") if refused else contextlib.nullcontext():
        refuse_inside(("the one", outer), ("the other", inner))


names = st.lists(st.sampled_from(["a", "b", "a b", "ä"]), min_size=1, max_size=4)


@given(names, names)
def test_two_plain_paths_overlap_exactly_if_one_begins_with_the_other(one, other):
    shared = min(len(one), len(other))
    assert overlaps("/no/" + "/".join(one), "/no/" + "/".join(other)) == (one[:shared] == other[:shared])


@pytest.fixture
def far(spark, tmp_path):
    """A folder of which nobody can see that it is on this machine's disk: there only a record can be a lock."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set("fs.viewfs.mounttable.test.link./far", tmp_path.as_uri())
    place = Place(spark, "viewfs://test/far/out")
    assert place.local is None
    place.make()
    return place


def test_where_there_is_no_flock_a_record_keeps_the_second_out_while_the_first_lives(far, monkeypatch):
    monkeypatch.setattr(signature, "BEAT_S", 0.1)
    monkeypatch.setattr(signature, "LOOK_S", 0.2)
    with signature.locked(far, "run") as lock:
        lock.check()
        with (
            pytest.raises(Misuse, match=f"another run .*process {os.getpid()}.* is writing"),
            signature.locked(far, "run"),
        ):
            raise AssertionError("two have it")
    with signature.locked(far, "run"):
        pass
    assert far.names() == []


def test_the_record_of_a_dead_process_of_this_machine_is_taken_over_at_once(far, monkeypatch):
    monkeypatch.setattr(signature, "STILL_S", 1e6)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    record = {"host": "any", "machine": signature._machine(), "pid": gone.pid, "began": "1", "token": "x", "beats": 3}
    (far / LOCK).write_json(record)
    with signature.locked(far, "run") as lock:
        lock.check()


def test_a_record_that_stays_as_it_is_has_no_owner_and_who_lost_one_is_told(far, monkeypatch):
    monkeypatch.setattr(signature, "STILL_S", 0.5)
    monkeypatch.setattr(signature, "LOOK_S", 0.1)
    (far / LOCK).write_json({"host": "elsewhere", "pid": 1, "began": "1", "token": "x", "beats": 3})
    with signature.locked(far, "run") as lock:
        (far / LOCK).write_json({"host": "elsewhere", "pid": 1, "began": "1", "token": "y", "beats": 0})
        with pytest.raises(StaleWrite, match="took over"):
            lock.check()
    assert far.names() == [LOCK]  # the other one's, so it stays


def test_a_signed_folder_elsewhere_is_kept_as_a_local_one_is(far, monkeypatch):
    monkeypatch.setattr(signature, "STILL_S", 0.5)  # the test before has left a record that nobody renews
    monkeypatch.setattr(signature, "LOOK_S", 0.1)
    with signature.signed(far, "run", ["_staging"]) as folder:
        (far / "_staging" / "rows").make()
        (far / "_staging" / "rows" / "x").write_bytes(b"1")
        folder.replace({"firsts": far / "_staging" / "rows"}, [])
        folder.remove("_staging")
    assert far.files() == ["_onefold.json", "firsts/x"]
    (far / "firsts" / "mine").write_bytes(b"2")
    with pytest.raises(Misuse, match="'firsts/mine'"), signature.signed(far, "run", ["_staging"]):
        raise AssertionError("it was taken")
    assert far.files() == ["_onefold.json", "firsts/mine", "firsts/x"]


def test_a_lock_ends_with_its_process_however_that_ends(spark, tmp_path):
    code = "import fcntl, os, sys, time; d = os.open(sys.argv[1], 0); fcntl.flock(d, fcntl.LOCK_EX); print(flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(600)", tmp_path], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        place = Place(spark, str(tmp_path))
        with pytest.raises(Misuse, match="another stream"), signature.locked(place, "stream"):
            raise AssertionError("two have it")
        other.kill()
        other.wait()
        with signature.locked(place, "stream"):
            pass


def test_threads_of_one_process_keep_each_other_out_too(spark, tmp_path):
    place, tries = Place(spark, str(tmp_path)), []

    def other():
        try:
            with signature.locked(place, "run"):
                tries.append("in")
        except Misuse:
            tries.append("out")

    with signature.locked(place, "run"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
    assert tries == ["out"]
    assert Path(place.shown).is_dir()
