"""Damaged files: refused with the place, or cut where nothing was acknowledged; never believed."""

from random import Random
from zlib import crc32

import pytest

from onefold.errors import Damaged
from onefold.producers.log.disk import SEGMENT, name
from onefold.producers.log.frames import decode, encode, header
from onefold.producers.log.reader import LogReader
from onefold.producers.log.segments import SegmentLog
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot
from tests.lib import rot
from tests.lib.disk import SimDisk
from tests.lib.examples import proof

FOLDER = rot.FOLDER


def draft(payload: bytes, sequence: int = 0) -> Draft:
    return Draft(0, "p", sequence, 0, crc32(payload), payload)


def opened(contents: dict[str, bytes], **settings) -> SegmentLog:
    return SegmentLog(FOLDER, files=SimDisk(contents), **settings)


def segment(base: int) -> str:
    return f"{FOLDER}/{name(base, SEGMENT)}"


@pytest.mark.parametrize(
    ("mark", "groups", "damages_min"),
    [(True, 5, 4_000), (False, 5, 4_000), proof(True, 12, 20_000), proof(False, 12, 20_000)],
)
def test_every_cut_and_every_flip_is_refused_at_its_place_or_cuts_the_last_group(mark, groups, damages_min):
    whole = rot.specimen(groups=groups, segment_bytes=50 * groups, mark=mark)
    assert len([path for path in whole.contents if path.endswith(SEGMENT)]) >= 3
    cuts, flips = rot.cut_every_byte(whole), rot.flip_every_byte(whole)
    assert cuts.total + flips.total >= damages_min
    assert (cuts.cut + flips.cut == 0) == mark
    assert cuts.refused > 8 * len(whole.records)
    assert flips.refused > cuts.refused


def test_a_reader_gives_no_damaged_record_either():
    whole = rot.specimen(groups=5)
    for path, data in whole.contents.items():
        for at in range(0, len(data), 3) if path.endswith(SEGMENT) else ():
            damaged = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
            found: list[LogRecord] = []
            with pytest.raises(Damaged) as caught:
                found.extend(LogReader(FOLDER, files=SimDisk({**whole.contents, path: damaged})).read(0))
            hit = next(place for place in whole.places if place.path == path and place.stop > at)
            assert (caught.value.values["path"], caught.value.values["position"]) == (path, hit.position)
            assert found == whole.records[: len(found)]


def test_damage_to_a_snapshot_the_mark_or_an_index_costs_no_record():
    whole = rot.with_snapshots(rot.specimen(), [3, 9])
    others = [path for path in whole.contents if not path.endswith(SEGMENT)]
    assert len(others) >= 6
    for path in others:
        data = whole.contents[path]
        damages = [data[:at] for at in range(len(data))]
        damages += [data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] for at in range(len(data)) for bit in rot.BITS]
        for damaged in damages:
            log = opened({**whole.contents, path: damaged})
            assert list(log.read(0)) == whole.records
            assert log.load() == SequencesSnapshot(*((3, b"state at 3") if "9.snap" in path else (9, b"state at 9")))


def test_a_missing_segment_is_named():
    whole = rot.specimen()
    first, second, *_, last = sorted(path for path in whole.contents if path.endswith(SEGMENT))
    for gone in (second, last):
        with pytest.raises(Damaged):
            opened({path: data for path, data in whole.contents.items() if path != gone})
    with pytest.raises(Damaged, match="no longer begins at 0"):
        opened({path: data for path, data in whole.contents.items() if path != first})
    with pytest.raises(Damaged, match="no segment"):
        opened({path: data for path, data in whole.contents.items() if not path.endswith(SEGMENT)})


def test_damage_before_the_snapshot_is_found_when_it_is_read():
    whole = rot.specimen()
    whole = rot.with_snapshots(whole, [3, len(whole.records)])
    data = whole.contents[segment(0)]
    log = opened({**whole.contents, segment(0): data[:70] + b"?" + data[71:]})
    assert log.append([draft(b"goes on")], 0) == len(whole.records)
    with pytest.raises(Damaged) as caught:
        list(log.read(0))
    assert caught.value.values["path"] == segment(0)
    assert [record.offset for record in log.read(20, 25)] == [20, 21, 22, 23, 24]


def test_without_a_whole_snapshot_a_log_that_was_trimmed_is_refused():
    disk = SimDisk()
    log = SegmentLog(FOLDER, segment_bytes=200, files=disk)
    for n in range(30):
        log.append([draft(b"x" * 50)], n)
    log.save(SequencesSnapshot(20, b"older"))
    log.save(SequencesSnapshot(30, b"newer"))
    assert 0 < log.trim(30) <= 20
    log.close()
    whole = disk.contents()
    snapshots = [path for path in whole if path.endswith(".snap")]
    bad = {path: whole[path][:-1] + b"?" for path in snapshots}
    assert opened({**whole, snapshots[1]: bad[snapshots[1]]}).load() == SequencesSnapshot(20, b"older")
    with pytest.raises(Damaged, match="no snapshot"):
        opened({**whole, **bad})
    with pytest.raises(Damaged, match="no snapshot"):
        opened({path: data for path, data in whole.items() if path not in snapshots})


@pytest.mark.parametrize("tail", [bytes(1), bytes(5000), b"x" * 100, b"OFL1" * 50, bytes(600) + b"torn"])
def test_what_is_no_record_at_the_end_is_cut_off_and_kept_aside(tail):
    whole = rot.specimen()
    path = sorted(path for path in whole.contents if path.endswith(SEGMENT))[-1]
    disk = SimDisk({**whole.contents, path: whole.contents[path] + tail})
    log = SegmentLog(FOLDER, files=disk)
    assert list(log.read(0)) == whole.records
    assert disk.read(path) == whole.contents[path]
    aside = [disk.read(f"{FOLDER}/torn/{kept}") for kept in disk.list(f"{FOLDER}/torn")]
    assert aside == ([tail] if any(tail) else [])


def test_only_some_torn_ends_are_kept():
    disk = SimDisk()
    SegmentLog(FOLDER, files=disk).close()
    for n in range(40):
        file = disk.open(segment(0))
        file.write(b"torn %d" % n, 0)
        SegmentLog(FOLDER, files=disk).close()
    assert len(disk.list(f"{FOLDER}/torn")) == 16


def test_a_frame_is_true_only_in_its_own_place():
    frame = encode([draft(b"payload")], 5, 1, 0, 100)
    assert len(decode(frame, 100, 0, 5, 6)[0]) == 1
    assert decode(frame, 101, 0, 5, 6) == ([], 0)
    assert decode(frame, 100, 4096, 5, 6) == ([], 0)
    assert decode(frame, 100, 0, 6, 7) == ([], 0)
    assert header(frame, 0, 100, 0) == (len(frame), 5, 0)
    assert header(frame, 0, 0, 0) is None


def test_a_log_published_into_a_log_is_not_taken_for_its_frames():
    """Torn in the middle of a payload that holds frames: still a torn end, not damage."""
    inner = rot.specimen().contents[segment(0)]
    disk = SimDisk()
    log = SegmentLog(FOLDER, files=disk)
    log.append([draft(b"before")], 0)
    log.append([draft(inner)], 0)
    log.close()
    data = disk.read(segment(0))
    for cut in range(len(data) - 1, len(data) - 600, -37):
        assert opened({segment(0): data[:cut]}).end == 1


def test_random_bytes_are_never_records():
    rng = Random(0)
    for _ in range(300):
        data = rng.randbytes(rng.randrange(400))
        assert opened({segment(0): data}).end == 0
