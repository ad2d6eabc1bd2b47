"""The segment log on real files, with real processes."""

import os
import signal
import subprocess
import sys
from bisect import bisect_left
from contextlib import suppress
from random import Random
from zlib import crc32

import pytest

from onefold.errors import Damaged, Misuse, StoreFailed
from onefold.producers.log import disk as files_module
from onefold.producers.log import reader as index
from onefold.producers.log.reader import LogReader
from onefold.producers.log.segments import SegmentLog
from onefold.producers.ports import Draft
from onefold.producers.rules import SequencesSnapshot
from tests.lib.disk import SimDisk


def draft(n: int, size: int = 20) -> Draft:
    payload = (b"%d " % n).ljust(size, b".")
    return Draft(0, f"p{n % 3}", n, 0, crc32(payload), payload)


def fill(log: SegmentLog, groups: int, per_group: int = 3, size: int = 20) -> None:
    for _ in range(groups):
        log.append([draft(log.end + n, size) for n in range(per_group)], 10 * log.end)


def same_as_written(records, start: int = 0) -> int:
    """Checks that each record is the one of its offset; returns the offset behind the last."""
    for number, record in enumerate(records, start):
        assert (record.offset, record.payload.split()[0]) == (number, b"%d" % number)
        start = number + 1
    return start


WRITER = """
import sys
from zlib import crc32
from onefold.producers.ports import Draft
from onefold.producers.log.segments import SegmentLog
log = SegmentLog(sys.argv[1], segment_bytes=30_000)
while log.end < int(sys.argv[2]):
    payloads = [b"%d " % n + b"." * (n % 50) for n in range(log.end, log.end + 20)]
    log.append([Draft(0, "p", 0, 0, crc32(p), p) for p in payloads], 1)
    print(log.end, flush=True)
"""


def start_writer(path, end: int = 10**9) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(end)], stdout=subprocess.PIPE, text=True)


def test_a_writer_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path):
    rng, end = Random(1), 0
    for _ in range(5):
        writer = start_writer(tmp_path)
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline() for _ in range(rng.randrange(1, 60))]
        writer.send_signal(signal.SIGKILL)
        acknowledged += writer.stdout
        writer.wait()
        log = SegmentLog(tmp_path)
        assert log.end >= int(acknowledged[-1]) > end
        end = same_as_written(log.read(0))
        assert end == log.end
        log.close()


def test_a_reader_in_another_process_follows_the_writer(tmp_path):
    writer = start_writer(tmp_path, end=4000)
    assert writer.stdout is not None
    writer.stdout.readline()
    reader, seen, looks = LogReader(tmp_path), 0, 0
    while seen < 4000:
        seen = same_as_written(reader.read(seen), seen)
        looks += 1
    assert writer.wait() == 0
    assert looks > 1
    assert len(list(tmp_path.glob("*.log"))) > 3


def test_one_process_writes_a_log_at_a_time(tmp_path):
    log = SegmentLog(tmp_path)
    with pytest.raises(StoreFailed, match=f"{tmp_path}: another process writes this log"):
        SegmentLog(tmp_path)
    log.append([draft(0)], 0)
    log.close()
    assert SegmentLog(tmp_path).end == 1


def test_a_lock_goes_with_its_process(tmp_path):
    writer = start_writer(tmp_path)
    assert writer.stdout is not None
    writer.stdout.readline()
    with pytest.raises(StoreFailed, match="another process"):
        SegmentLog(tmp_path)
    writer.kill()
    writer.wait()
    SegmentLog(tmp_path).close()


FULL = """
import resource, sys
from zlib import crc32
from onefold.errors import StoreFailed
from onefold.producers.ports import Draft
from onefold.producers.log.segments import SegmentLog
log = SegmentLog(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_100, resource.RLIM_INFINITY))
group = [Draft(0, "p", 0, 0, crc32(b"x" * 1000), b"x" * 1000)] * 3
try:
    while True:
        log.append(group, 1)
except StoreFailed as error:
    print(log.end, len(list(log.read(0))), error.values["cause"], error.values["path"].endswith(".log"))
try:
    log.append(group, 1)
except StoreFailed as error:
    print("again", log.end)
log.append(group[:1], 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(group, 1)
print(log.end, len(list(log.read(0))))
"""


def test_a_full_disk_is_named_keeps_nothing_of_the_group_and_works_again_when_there_is_room(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "log"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["18 18 File too large True", "again 18", "22 22"]
    assert SegmentLog(tmp_path / "log").end == 22


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="file"):
        SegmentLog(tmp_path / "file")
    SegmentLog(tmp_path / "log").close()
    (tmp_path / "log").chmod(0o500)
    (tmp_path / "log" / "lock").chmod(0o400)
    try:
        if os.geteuid() != 0:  # root may write anywhere
            with pytest.raises(StoreFailed, match="Permission denied"):
                SegmentLog(tmp_path / "log")
        assert LogReader(tmp_path / "log").end == 0
    finally:
        (tmp_path / "log").chmod(0o700)


def test_an_append_is_one_write_and_one_sync_of_the_segment(tmp_path, monkeypatch):
    log = SegmentLog(tmp_path)
    fill(log, 2)
    calls: list[str] = []

    def counted(name, real):
        def call(*arguments):
            calls.append(name)
            return real(*arguments)

        return call

    for name in ("pwrite", "fdatasync", "fsync"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    fill(log, 1, per_group=100)
    assert calls == ["pwrite", "fdatasync", "pwrite"], "the last one is the mark"


def test_a_write_that_the_system_cuts_short_is_finished(tmp_path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: max(1, len(data) // 2)], at))
    log = SegmentLog(tmp_path)
    fill(log, 5)
    monkeypatch.undo()
    log.close()
    assert same_as_written(SegmentLog(tmp_path).read(0)) == 15


def test_the_mark_is_written_again_when_the_log_is_opened(tmp_path):
    log = SegmentLog(tmp_path)
    fill(log, 4)
    log.close()
    (tmp_path / "durable").unlink()
    with pytest.raises(Damaged, match="durable"):
        _ = LogReader(tmp_path).end
    SegmentLog(tmp_path).close()
    assert LogReader(tmp_path).end == 12


def test_there_is_nothing_to_read_where_there_is_no_log(tmp_path):
    with pytest.raises(Misuse, match="no log"):
        LogReader(tmp_path)


@pytest.fixture
def long_log(tmp_path):
    """Several segments, each with several index entries."""
    log = SegmentLog(tmp_path, segment_bytes=300_000)
    fill(log, 60, per_group=50, size=300)
    log.close()
    assert len(list(tmp_path.glob("*.log"))) == 4
    return tmp_path


def without_index(path):
    for file in path.glob("*.index"):
        file.unlink()


def with_another_index(path):
    for file in path.glob("*.index"):
        base = int(file.stem)
        file.write_bytes(b"".join(index.pack(index.IndexEntry(base + n, n * 777, 5)) for n in range(1, 50)))


@pytest.mark.parametrize("spoil", [lambda path: None, without_index, with_another_index])
def test_any_offset_is_found_with_a_good_index_without_one_and_with_a_wrong_one(long_log, spoil):
    spoil(long_log)
    reader = LogReader(long_log)
    for start in range(0, 3000, 113):
        assert same_as_written(reader.read(start, min(3000, start + 3)), start) == min(3000, start + 3)
    assert same_as_written(SegmentLog(long_log).read(0)) == 3000


def test_the_writer_makes_a_lost_index_again(long_log):
    good = {
        file.name: len(index.load(files_module.REAL, str(file), int(file.stem))) for file in long_log.glob("*.index")
    }
    without_index(long_log)
    log = SegmentLog(long_log)
    list(log.read(0))
    assert {file.name for file in long_log.glob("*.index")} == set(good)
    log.close()


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 1000])
def test_ranges_adjoin_and_hold_everything(long_log, parts):
    reader = LogReader(long_log)
    for start, end in [(0, 3000), (5, 2999), (1200, 1210), (7, 7)]:
        ranges = reader.ranges(start, end, parts)
        assert len(ranges) <= parts
        assert [n for a, b in ranges for n in range(a, b)] == list(range(start, end))
        assert all(a < b for a, b in ranges)
    if parts in (2, 3):
        sizes = [b - a for a, b in reader.ranges(0, 3000, parts)]
        assert len(sizes) == parts
        assert min(sizes) > max(sizes) / 2


def test_an_offset_is_found_by_time_also_when_the_clock_was_set_back(tmp_path):
    rng, log, times = Random(3), SegmentLog(tmp_path, segment_bytes=2000), []
    for n in range(100):
        times.append(n * 10 + rng.randrange(-300, 30))
        log.append([draft(n)], times[-1])
    highest = [max(times[: n + 1]) for n in range(100)]
    for reader in (LogReader(tmp_path), LogReader(tmp_path)):
        for time_ms in range(-300, 1100, 13):
            assert reader.offset_at(time_ms) == bisect_left(highest, time_ms)
        without_index(tmp_path)


def test_retention_by_bytes_and_by_time(long_log):
    log = SegmentLog(long_log, segment_bytes=300_000)
    bases = sorted(int(file.stem) for file in long_log.glob("*.log"))
    log.save(SequencesSnapshot(2990, b""))
    assert log.retain(bytes=0) == 0
    log.save(SequencesSnapshot(3000, b""))
    assert log.retain() == 0
    assert log.retain(bytes=10**9, before_ms=0) == 0
    assert log.retain(before_ms=10 * bases[1]) == bases[1]
    assert log.retain(bytes=500_000) == bases[2]
    assert log.retain(bytes=0) == bases[3] == log.start
    assert len(list(long_log.glob("*.index"))) <= 1
    reader = LogReader(long_log)
    assert (reader.start, reader.end) == (bases[3], 3000)
    with pytest.raises(Misuse, match=f"offset 0 .* was removed: the log begins at {bases[3]}"):
        reader.read(0)
    assert reader.offset_at(0) == bases[3]


def test_a_reader_that_retention_overtakes_is_told(long_log):
    reader = LogReader(long_log)
    reading = reader.read(0)
    next(reading)
    log = SegmentLog(long_log, segment_bytes=300_000)
    log.save(SequencesSnapshot(2990, b""))
    log.save(SequencesSnapshot(3000, b""))
    log.trim(3000)
    with pytest.raises(Misuse, match="was removed"):
        list(reading)


def test_only_the_newest_snapshots_are_kept(tmp_path):
    log = SegmentLog(tmp_path, snapshots_kept=3)
    for n in range(8):
        log.append([draft(n)], 0)
        log.save(SequencesSnapshot(log.end, b"%d" % n))
    assert len(list((tmp_path / "snapshots").iterdir())) == 3


def test_a_snapshot_that_is_saved_again_is_never_lost_whatever_fails():
    for operation in range(1, 12):
        disk = SimDisk()
        log = SegmentLog("/log", files=disk)
        fill(log, 1)
        log.save(SequencesSnapshot(3, b"old"))
        disk.fail(operation)
        with suppress(StoreFailed):
            log.save(SequencesSnapshot(3, b"new"))
        disk.heal()
        for state in [disk, *(disk.crash(Random(seed)) for seed in range(20))]:
            state.kill()
            assert SegmentLog("/log", files=state).load() in [(3, b"old"), (3, b"new")]


def test_a_new_folder_is_synced_into_its_parents_and_an_old_one_again(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files_module.Files, "sync_folder", lambda self, path: synced.append(path))
    for _ in range(2):
        files_module.REAL.make_folder(str(tmp_path / "a" / "b"))
    assert synced[-4:] == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a")]


def test_opening_looks_only_at_what_came_after_the_snapshot(tmp_path, monkeypatch):
    log = SegmentLog(tmp_path)
    fill(log, 100, per_group=100)
    log.save(SequencesSnapshot(log.end - 150, b"state"))
    fill(log, 1)
    log.close()
    read = 0

    class Counting(files_module.Files):
        def read(self, path, start=0, size=None):
            nonlocal read
            data = super().read(path, start, size)
            read += len(data) * path.endswith(".log")
            return data

    log = SegmentLog(tmp_path, files=Counting())
    assert log.end == 10003
    assert read < 200_000 < (tmp_path / "00000000000000000000.log").stat().st_size
    assert same_as_written(log.read(log.end - 153), log.end - 153) == 10003


@pytest.mark.parametrize("settings", [{"segment_bytes": 0}, {"snapshots_kept": 0}])
def test_senseless_settings_are_refused(tmp_path, settings):
    with pytest.raises(Misuse):
        SegmentLog(tmp_path, **settings)


@pytest.mark.parametrize(
    "wrong",
    [
        Draft(256, "p", 0, 0, 0, b""),
        Draft(0, "p", 2**63, 0, 0, b""),
        Draft(0, "p", 0, -1, 0, b""),
        Draft(0, "\ud800", 0, 0, 0, b""),
        Draft(0, "p" * 70_000, 0, 0, 0, b""),
        Draft(0, None, 0, 0, 0, b""),  # type: ignore[arg-type]
    ],
)
def test_a_draft_that_does_not_fit_is_refused_with_its_group(tmp_path, wrong):
    log = SegmentLog(tmp_path)
    with pytest.raises(Misuse, match="cannot keep"):
        log.append([draft(0), wrong], 0)
    fill(log, 1)
    assert same_as_written(log.read(0)) == 3
