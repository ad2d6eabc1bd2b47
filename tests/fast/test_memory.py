"""The laws of a memory: it finds what a dict would, whatever was merged; a version written again is the same."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains.columns import NO_PREVIOUS
from onefold.errors import BadInput, Misuse
from onefold.spark.chains import ChainsEngine
from onefold.spark.host import MemoryOptions
from onefold.spark.memory import Bucket, ItemLists, KeyRecords, MemoryFolder, covering
from tests.lib.examples import examples
from tests.lib.remembering import Remembered

MEANING = {"engine": "chains", "key": "a string"}
NAMES = [(-5, 1), (3, 1), (3, 2), (3, 9), (2**62, 0), (77, 77), (78, 0), (79, 0)]  # three share their first half

Entry = tuple[int, list[int]]


def records(entries: dict[tuple[int, int], Entry]) -> KeyRecords:
    names = sorted(entries)
    key, check = (np.array(half, np.int64) for half in zip(*names, strict=True))
    items = [item for name in names for item in entries[name][1]]
    counts = np.array([len(entries[name][1]) for name in names], np.int64)
    columns = np.array(items, np.int64), -np.array(items, np.int64)
    return KeyRecords(key, check, {"head": np.array([entries[n][0] for n in names], np.int64)},
                   {"gaps": ItemLists(counts, columns)})  # fmt: skip


def entries(found: KeyRecords | None) -> dict[tuple[int, int], Entry]:
    if found is None:
        return {}
    counts, (lower, upper) = found.lists["gaps"]
    assert (lower == -upper).all()
    lists = np.split(lower, np.cumsum(counts)[:-1])
    names = zip(found.key.tolist(), found.check.tolist(), strict=True)
    heads = found.values["head"].tolist()
    return {name: (head, own.tolist()) for name, head, own in zip(names, heads, lists, strict=True)}


@pytest.fixture
def memory(tmp_path):
    return MemoryFolder.opened(str(tmp_path / "memory"), MEANING, buckets=1)


ENTRIES = st.tuples(st.integers(-(2**62), 2**62), st.lists(st.integers(0, 9), max_size=3))
VERSIONS = st.lists(st.dictionaries(st.sampled_from(NAMES), ENTRIES, max_size=5), min_size=1, max_size=12)


@given(VERSIONS, st.integers(1, 3), st.data())
@settings(max_examples=examples(200))
def test_a_memory_finds_what_a_dict_would_and_a_version_written_again_is_the_same_bytes(versions, keep, data):
    folder = Path(Remembered(ChainsEngine()).folder)  # a folder that is removed in the end
    memory = MemoryFolder.opened(str(folder / "m"), MEANING, buckets=1, keep=keep)
    truth: list[dict[tuple[int, int], Entry]] = [{}]
    every = [np.array(half, np.int64) for half in zip(*NAMES, strict=True)]
    for version, changed in enumerate(versions):
        attempts = []
        for _ in range(data.draw(st.integers(1, 2))):
            bucket = Bucket(memory, 0, version)
            assert entries(bucket.find("chains", *every)) == truth[-1]
            if changed:
                bucket.keep("chains", records(changed))
            assert entries(bucket.find("chains", *every)) == truth[-1] | changed
            bucket.write()
            attempts.append({file.name: file.read_bytes() for file in (folder / "m" / "0000").iterdir()})
        assert attempts[0] == attempts[-1]
        truth.append(truth[-1] | changed)
        for back in range(min(keep, version + 1)):  # what a replay of these versions reads is still there
            assert entries(Bucket(memory, 0, version - back).find("chains", *every)) == truth[version - back]
    assert [entries(found) for _, found in memory.table("chains")] in (
        [truth[-1]],
        [] if not truth[-1] else [truth[-1]],
    )
    for run in memory.runs(0):
        run.verify()
    assert len(memory.runs(0)) <= 8


ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(NO_PREVIOUS, 12), st.integers(0, 14)), max_size=40)


def integers(rows, start=0):
    """Rows of chains as a task gets them; they arrive one after the other."""
    hashed = [(chain * 2_862_933_555_777_941_757 % 2**64) - 2**63 for chain, _, _ in rows]
    lines = [(key, 1, start + at, previous, number, 0)
             for at, (key, (_, previous, number)) in enumerate(zip(hashed, rows, strict=True))]  # fmt: skip
    return np.array(lines, np.int64).reshape(-1, 6).T


@given(ROWS, st.lists(st.integers(0, 40), max_size=5), st.integers(1, 5), st.integers(1, 50))
@settings(max_examples=examples(150))
def test_any_split_into_versions_buckets_and_windows_answers_as_one_version(rows, cuts, buckets, rows_in_memory_max):
    whole = Remembered(ChainsEngine(floor="open"), MemoryOptions(buckets=1)).judge(integers(rows)).tolist()
    engine = ChainsEngine(floor="open", rows_in_memory_max=rows_in_memory_max)
    parts = Remembered(engine, MemoryOptions(buckets=buckets))
    edges = [0, *sorted(cut for cut in cuts if cut <= len(rows)), len(rows)]
    answers = []
    for version, (start, end) in enumerate(pairwise(edges)):
        part = integers(rows[start:end], start)
        codes = parts.judge(part, version=version).tolist()
        assert parts.judge(part, version=version).tolist() == codes, "tried again, it answers the same"
        answers += codes
    assert answers == whole


def test_of_many_small_versions_few_files_are_left_and_the_large_one_is_seldom_written(memory):
    base: dict[tuple[int, int], Entry] = {(key, 0): (key, []) for key in range(10_000)}
    bucket = Bucket(memory, 0, 0)
    bucket.keep("chains", records(base))
    bucket.write()
    lows = []
    for version in range(1, 200):
        bucket = Bucket(memory, 0, version)
        bucket.keep("chains", records({(version % 50, 0): (version, [version])}))
        bucket.write()
        lows.append(memory.files(0)[0][1])
    assert len(memory.files(0)) <= 12
    assert 0 not in lows, "the base stayed as it was"
    assert entries(Bucket(memory, 0, 200).find("chains", np.array([7]), np.array([0]))) == {(7, 0): (157, [157])}


def test_idle_chains_give_up_their_gaps_when_they_are_written_again_and_stay_known():
    remembered = Remembered(ChainsEngine(), MemoryOptions(buckets=1, idle_ms=10))
    remembered.judge(integers([(0, NO_PREVIOUS, 1), (0, 4, 5)]), now_ms=1)
    assert remembered.figures() == {"keys": 1, "gaps": 1}
    for at in range(3):
        remembered.judge(integers([(1 + at, NO_PREVIOUS, 1)]), now_ms=100 + at)
    assert remembered.figures() == {"keys": 4, "gaps": 0}, "merged with others, without having been heard from"
    answered = remembered.judge(integers([(0, 1, 2), (0, 4, 5), (0, 5, 6)]), now_ms=200)
    assert [str(ChainsEngine.answers[code]) for code in answered] == [
        "UNSURE forgotten", "REPEAT seen", "FIRST in_order",
    ]  # fmt: skip


def test_another_meaning_a_stranger_and_a_folder_that_the_driver_does_not_see_are_refused(tmp_path, memory):
    with pytest.raises(Misuse, match="was begun with key = 'a string', not 'b string'"):
        MemoryFolder.opened(memory.path, {"engine": "chains", "key": "b string"})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(Misuse, match=r"is no memory: it holds 'notes'"):
        MemoryFolder.opened(str(tmp_path / "mine"), MEANING)
    Bucket(memory, 0, 0).write()
    shutil.rmtree(memory.path)
    with pytest.raises(Misuse, match="does not see the memory that the driver sees"):
        memory.check_shared()
    with pytest.raises(Misuse, match="no file system of that scheme"):
        MemoryFolder.opened("gopher://x/y", MEANING)
    with pytest.raises(Misuse, match=r"it has no _onefold\.json"):
        MemoryFolder.anywhere(str(tmp_path))


def test_the_memory_of_another_stream_is_refused_also_where_it_is_not_read(tmp_path):
    mine, other = (MemoryFolder.opened(str(tmp_path / "m"), MEANING, buckets=1, owner=owner) for owner in ("a", "b"))
    Bucket(mine, 0, 5).write()
    Bucket(mine, 0, 6)
    for version in (0, 5, 9):
        with pytest.raises(Misuse, match=r"the memory of another checkpoint \(a\)"):
            Bucket(other, 0, version)


def test_a_missing_and_a_damaged_run_are_named(memory):
    for version, names in enumerate((NAMES, NAMES[:1], NAMES[:1])):
        bucket = Bucket(memory, 0, version)
        bucket.keep("chains", records({name: (version, []) for name in names}))
        bucket.write()
    first = Path(memory.path) / "0000" / "000000000000-000000000000.run"
    assert covering(memory.files(0), 3)[-1] == (0, 0)
    data = first.read_bytes()
    first.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BadInput, match=r"0000/000000000000-000000000000\.run is damaged: its checksum differs"):
        memory.runs(0)[-1].verify()
    for damaged in data[:40] + b"\0" + data[41:], data[:8].ljust(len(data), b"\0"):  # the latter as after a power cut
        first.write_bytes(damaged)
        with pytest.raises(BadInput, match="its header is not what was written"):
            memory.runs(0)
    first.unlink()
    with pytest.raises(BadInput, match="version 0 of bucket 0 is missing"):
        memory.runs(0)


def test_versions_that_were_not_published_can_be_dropped(memory):
    for version in range(3):
        bucket = Bucket(memory, 0, version)
        bucket.keep("chains", records({(version, 0): (version, [])}))
        bucket.write()
    memory.drop_from(2)
    assert max(memory.files(0))[0] == 1
    assert json.loads((Path(memory.path) / "_onefold.json").read_text())["kind"] == "memory"
