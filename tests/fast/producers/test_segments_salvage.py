"""What is left of a damaged log is found, counted and saved."""

from random import Random

import pytest

from onefold.errors import Damaged, Misuse
from onefold.producers.log.disk import MARK, SEGMENT
from onefold.producers.log.reader import LogReader
from onefold.producers.log.salvage import Damage, salvage, verify
from onefold.producers.log.segments import SegmentLog
from onefold.producers.rules import SequencesSnapshot
from tests.lib import rot
from tests.lib.disk import SimDisk

FOLDER = rot.FOLDER


def spoil(whole: rot.Specimen, *offsets: int) -> dict[str, bytes]:
    contents = dict(whole.contents)
    for offset in offsets:
        path, position, _, _ = whole.places[offset]
        data = contents[path]
        contents[path] = data[: position + 9] + bytes([data[position + 9] ^ 255]) + data[position + 10 :]
    return contents


def test_a_whole_log_is_found_whole():
    whole = rot.with_snapshots(rot.specimen(groups=11, apart=True), [3, 9])
    findings = verify(FOLDER, files=SimDisk(whole.contents))
    assert (findings.ok, findings.records, findings.snapshots, findings.torn_bytes) == (True, 33, [3, 9], 0)
    assert str(findings) == "/log: 33 whole records of [0, 33)"


def test_every_damaged_place_is_named_with_what_is_lost_and_what_is_not():
    whole = rot.specimen(groups=11, apart=True)
    disk = SimDisk(spoil(whole, 4, 5, 20))
    before = disk.contents()
    findings = verify(FOLDER, files=disk)
    assert disk.contents() == before
    first, second = whole.places[4], whole.places[20]
    assert findings.damages == [
        Damage(first.path, first.position, 4, 5, before=4),
        Damage(second.path, second.position, 20, 20, before=18),
    ]
    assert [findings.records - damage.before for damage in findings.damages] == [26, 12]
    assert (findings.ok, findings.records, findings.start, findings.end) == (False, 30, 0, 33)
    assert str(findings).splitlines() == [
        "/log: 30 whole records of [0, 33)",
        f"  {first.path} at byte {first.position}: offsets 4 to 5 are lost, after 4 whole records, before 26 more",
        f"  {second.path} at byte {second.position}: offset 20 is lost, after 18 whole records, before 12 more",
    ]


def test_records_that_share_a_frame_are_lost_together():
    whole = rot.specimen(groups=11)
    disk = SimDisk(spoil(whole, 2))  # the second group: two records in one frame, and one in another
    assert salvage(FOLDER, "/new", files=disk).lost == [(3, 4)]
    kept = [record[1:] for record in whole.records if record.offset not in (3, 4)]
    assert [record[1:] for record in SegmentLog("/new", files=disk).read(0)] == kept


@pytest.mark.parametrize("seed", range(20))
def test_every_whole_record_is_saved_before_and_behind_any_damage(seed):
    whole = rot.with_snapshots(rot.specimen(seed, groups=11, apart=True), [9, 24])
    lost = sorted(Random(seed).sample(range(len(whole.records)), seed % 7))
    disk = SimDisk(spoil(whole, *lost))
    if lost:
        with pytest.raises(Damaged):
            list(SegmentLog(FOLDER, files=disk).read(0))
        disk.kill()
    findings = salvage(FOLDER, "/new", segment_bytes=500, files=disk)
    assert [n for first, last in findings.lost for n in range(first, last + 1)] == lost
    log = SegmentLog("/new", files=disk)
    kept = [record for record in whole.records if record.offset not in lost]
    assert [record[1:] for record in log.read(0)] == [record[1:] for record in kept]
    assert [record.offset for record in log.read(0)] == list(range(len(kept)))
    assert log.load() == SequencesSnapshot(24 - sum(n < 24 for n in lost), b"state at 24")
    assert verify("/new", files=disk).ok
    assert LogReader("/new", files=disk).end == log.end
    assert log.append([], 0) == len(kept)


def test_a_lost_segment_and_a_lost_end_are_known():
    whole = rot.specimen(groups=11, apart=True)
    _, second, *_, last = sorted(path for path in whole.contents if path.endswith(SEGMENT))
    for gone in (second, last):
        lost = [place.offset for place in whole.places if place.path == gone]
        disk = SimDisk({path: data for path, data in whole.contents.items() if path != gone})
        findings = salvage(FOLDER, "/new", files=disk)
        assert findings.lost == [(lost[0], lost[-1])]
        assert SegmentLog("/new", files=disk).end == len(whole.records) - len(lost)
    everything = SimDisk({f"{FOLDER}/{MARK}": whole.contents[f"{FOLDER}/{MARK}"]})
    assert verify(FOLDER, files=everything).lost == [(0, len(whole.records) - 1)]
    assert salvage(FOLDER, "/new", files=everything).records == 0
    assert SegmentLog("/new", files=everything).end == 0


def test_a_torn_end_is_no_damage():
    whole = rot.specimen(groups=11, apart=True)
    path = whole.places[-1].path
    findings = verify(FOLDER, files=SimDisk({**whole.contents, path: whole.contents[path] + b"torn" + bytes(50)}))
    assert (findings.ok, findings.torn_bytes) == (True, 4)
    assert "4 bytes at the end were never acknowledged" in str(findings)


def test_a_log_that_was_trimmed_keeps_its_offsets_and_needs_a_snapshot_to_go_on():
    disk = SimDisk(rot.with_snapshots(rot.specimen(groups=11, apart=True), [25, 30]).contents)
    log = SegmentLog(FOLDER, files=disk)
    start = log.trim(30)
    log.close()
    assert start > 0
    assert salvage(FOLDER, "/new", files=disk).can_go_on
    assert (SegmentLog("/new", files=disk).start, SegmentLog(FOLDER, files=disk).load()) == (
        start,
        (30, b"state at 30"),
    )
    bad = {p: data[:-1] if p.endswith(".snap") else data for p, data in disk.contents().items() if "/new" not in p}
    disk = SimDisk(bad)
    findings = salvage(FOLDER, "/new", files=disk)
    assert (findings.ok, findings.can_go_on, findings.snapshots_damaged) == (False, False, [25, 30])
    assert "can only be read" in str(findings)
    assert len(list(LogReader("/new", files=disk).read(start))) == 33 - start


def test_salvage_needs_a_log_and_an_empty_place():
    whole = rot.specimen(groups=11, apart=True)
    with pytest.raises(Misuse, match="not empty"):
        salvage(FOLDER, FOLDER, files=SimDisk(whole.contents))
    with pytest.raises(Misuse, match="no log"):
        verify("/nowhere", files=SimDisk())


def test_salvage_on_real_files(tmp_path):
    whole = rot.specimen(groups=11, apart=True)
    (tmp_path / "log").mkdir()
    for path, data in spoil(whole, 7).items():
        (tmp_path / path.lstrip("/")).write_bytes(data)
    findings = salvage(tmp_path / "log", tmp_path / "new")
    assert (findings.lost, SegmentLog(tmp_path / "new").end) == ([(7, 7)], 32)
