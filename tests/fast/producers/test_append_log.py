"""What every `AppendLog` promises, whatever stands behind it."""

from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.producers.log.segments import SegmentLog
from onefold.producers.ports import AppendLog, Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot
from tests.lib.disk import SimDisk
from tests.lib.memory_log import MemoryLog


def draft(payload: bytes, sequence: int = 0, producer: str = "p", kind: int = 0, epoch: int = 0) -> Draft:
    return Draft(kind, producer, sequence, epoch, crc32(payload), payload)


def payloads(records) -> list[bytes]:
    return [record.payload for record in records]


@pytest.fixture(params=["memory", "segments", "segments that are soon full", "segments on a simulated disk"])
def log(request, tmp_path):
    make: dict[str, Callable[[], AppendLog]] = {
        "memory": MemoryLog,
        "segments": lambda: SegmentLog(tmp_path / "new" / "log"),
        "segments that are soon full": lambda: SegmentLog(tmp_path / "log", segment_bytes=200),
        "segments on a simulated disk": lambda: SegmentLog("/log", segment_bytes=200, files=SimDisk()),
    }
    log = make[request.param]()
    yield log
    log.close()


def test_a_new_log_is_empty(log):
    assert (log.start, log.end, log.load(), list(log.read(0))) == (0, 0, None, [])


def test_a_group_gets_the_next_offsets_and_one_time(log):
    assert log.append([draft(b"a", 7, "x", kind=2, epoch=9), draft(b"")], 100) == 0
    assert log.append([draft(b"c", -1)], 50) == 2
    assert list(log.read(0)) == [
        LogRecord(0, 100, 2, "x", 7, 9, crc32(b"a"), b"a"),
        LogRecord(1, 100, 0, "p", 0, 0, 0, b""),
        LogRecord(2, 50, 0, "p", -1, 0, crc32(b"c"), b"c"),
    ]
    assert log.end == 3


def test_a_group_of_none_changes_nothing(log):
    log.append([draft(b"a")], 0)
    assert log.append([], 0) == 1
    assert log.end == 1


def test_any_range_can_be_read(log):
    for n in range(30):
        log.append([draft(b"%d" % n)], n)
    for start in range(0, 31, 3):
        for end in range(start, 31, 4):
            assert payloads(log.read(start, end)) == [b"%d" % n for n in range(start, end)]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (4, None), (0, 4), (3, 2)])
def test_what_is_not_there_cannot_be_read(log, start, end):
    log.append([draft(b"a")] * 3, 0)
    with pytest.raises(Misuse, match=str(start)):
        log.read(start, end)


def test_a_read_gives_what_was_there_when_it_began(log):
    log.append([draft(b"a")], 0)
    reading = log.read(0)
    log.append([draft(b"b")], 0)
    assert payloads(reading) == [b"a"]


def test_a_draft_whose_digest_is_wrong_is_refused_with_its_group(log):
    with pytest.raises(Misuse, match="crc32"):
        log.append([draft(b"a"), Draft(0, "p", 1, 0, 5, b"b")], 0)
    assert log.end == 0
    log.append([draft(b"c")], 0)
    assert payloads(log.read(0)) == [b"c"]


def test_the_newest_snapshot_is_loaded(log):
    log.append([draft(b"a")] * 5, 0)
    for position, state in [(2, b"two"), (4, b"four"), (5, b""), (5, b"five")]:
        log.save(SequencesSnapshot(position, state))
        assert log.load() == SequencesSnapshot(position, state)


@pytest.mark.parametrize("position", [-1, 6])
def test_a_snapshot_of_what_is_not_there_is_refused(log, position):
    log.append([draft(b"a")] * 5, 0)
    with pytest.raises(Misuse, match=str(position)):
        log.save(SequencesSnapshot(position, b""))
    assert log.load() is None


def test_retention_leaves_what_the_older_snapshot_needs(log):
    for n in range(40):
        log.append([draft(b"%d" % n)], n)
    assert log.trim(40) == 0
    log.save(SequencesSnapshot(20, b"older"))
    assert log.trim(40) == 0
    log.save(SequencesSnapshot(30, b"newer"))
    start = log.trim(25)
    assert start == log.start <= 20
    assert payloads(log.read(start)) == [b"%d" % n for n in range(start, 40)]
    for gone in range(start):
        with pytest.raises(Misuse, match=str(gone)):
            log.read(gone)
    assert log.trim(0) == start
    with pytest.raises(Misuse):
        log.save(SequencesSnapshot(start - 1, b""))


def test_a_closed_log_does_nothing_and_may_be_closed_again(log):
    log.append([draft(b"a")], 0)
    log.close()
    log.close()
    for use in [
        lambda: log.append([draft(b"b")], 0),
        lambda: log.read(0),
        log.load,
        lambda: log.save(SequencesSnapshot(0, b"")),
    ]:
        with pytest.raises(Misuse, match="closed"):
            use()


drafts = st.builds(
    lambda kind, producer, sequence, epoch, payload: draft(payload, sequence, producer, kind, epoch),
    st.integers(0, 255),
    st.text(st.characters(codec="utf-8"), max_size=200),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)


@given(st.lists(st.tuples(st.lists(drafts, max_size=4), st.integers(-(2**63), 2**63 - 1)), max_size=6))
def test_whatever_can_be_appended_is_read_back_by_all_alike(groups):
    disk = SimDisk()
    logs: list[AppendLog] = [MemoryLog(), SegmentLog("/log", segment_bytes=500, files=disk)]
    for group, time_ms in groups:
        assert len({log.append(group, time_ms) for log in logs}) == 1
    memory, segments = (list(log.read(0)) for log in logs)
    assert memory == segments
    disk.kill()
    assert list(SegmentLog("/log", segment_bytes=500, files=disk).read(0)) == memory
