import errno
from random import Random

import pytest

from tests.lib.disk import Inode, PowerCut, SimDisk


def disk_with(content: bytes) -> SimDisk:
    return SimDisk({"/f/a": content})


def left(disk: SimDisk, path: str = "/f/a", states: int = 300) -> set[bytes]:
    return {disk.crash(Random(seed)).read(path) for seed in range(states)}


def test_a_process_reads_what_was_written_whether_it_is_synced_or_not():
    disk = disk_with(b"abc")
    file = disk.open("/f/a")
    file.write(b"XY", 2)
    file.write(b"!", 6)
    assert disk.read("/f/a") == b"abXY\0\0!"
    assert disk.read("/f/a", 1, 3) == b"bXY"
    file.truncate(2)
    assert (disk.read("/f/a"), disk.size("/f/a")) == (b"ab", 2)


def test_what_was_synced_survives_every_crash():
    disk = disk_with(b"")
    file = disk.open("/f/a")
    file.write(b"kept", 0)
    file.sync()
    assert left(disk) == {b"kept"}


def test_a_write_that_was_not_synced_is_there_or_torn_or_zeros_or_gone():
    disk = disk_with(b"k")
    disk.open("/f/a").write(b"abc", 1)
    assert left(disk) == {b"k", b"ka", b"kab", b"kabc", b"k\0\0\0", b"ka\0\0", b"kab\0"}


def test_a_long_write_can_lose_any_sector():
    disk = disk_with(b"")
    disk.open("/f/a").write(b"x" * 1500, 0)
    holes = {tuple(bool(any(state[at : at + 512])) for at in (0, 512, 1024)) for state in left(disk)}
    assert {(True, False, True), (False, True, True), (True, True, False)} <= holes


def test_writes_survive_in_any_order():
    disk = disk_with(b"0")
    file = disk.open("/f/a")
    file.write(b"1", 0)
    file.write(b"2", 0)
    assert left(disk) == {b"0", b"1", b"2"}
    assert disk.read("/f/a") == b"2"


def test_a_cut_that_was_not_synced_may_not_have_happened():
    disk = disk_with(b"abc")
    disk.open("/f/a").truncate(1)
    assert left(disk) == {b"a", b"abc"}


def names(disk: SimDisk) -> set[tuple[str, ...]]:
    return {tuple(disk.crash(Random(seed)).list("/f")) for seed in range(100)}


def test_names_are_durable_only_with_their_folder():
    disk = disk_with(b"a")
    disk.open("/f/b", new=True).close()
    assert names(disk) == {("a",), ("a", "b")}
    disk.sync_folder("/f")
    disk.rename("/f/a", "/f/c")
    disk.unlink("/f/b")
    assert names(disk) == {("a",), ("a", "b"), ("b", "c"), ("c",)}
    disk.sync_folder("/f")
    assert names(disk) == {("c",)}


def test_a_file_that_was_synced_can_still_lose_its_name():
    disk = SimDisk()
    disk.make_folder("/f")
    file = disk.open("/f/a", new=True)
    file.write(b"abc", 0)
    file.sync()
    assert names(disk) == {(), ("a",)}
    assert all(disk.crash(Random(s)).contents().get("/f/a", b"abc") == b"abc" for s in range(100))


def test_a_crash_leaves_the_disk_that_it_is_taken_from_as_it_was():
    disk = disk_with(b"a")
    disk.open("/f/a").write(b"bcd", 1)
    before = disk.contents()
    disk.crash(Random(1)).open("/f/a").write(b"XXXX", 0)
    assert disk.contents() == before
    assert len(left(disk)) > 3


def test_after_a_sync_that_failed_another_one_does_not_help():
    disk = disk_with(b"")
    file = disk.open("/f/a")
    file.write(b"abc", 0)
    disk.fail(1)
    with pytest.raises(OSError, match="simulated sync"):
        file.sync()
    file.sync()
    assert disk.read("/f/a") == b"abc"
    on_disk = left(disk)
    assert len(on_disk) == 1
    file.write(b"abc", 0)
    file.sync()
    assert left(disk) == {b"abc"}


def test_the_nth_operation_fails_with_the_error_asked_for():
    disk = disk_with(b"")
    disk.fail(2, count=2, error=errno.ENOSPC)
    file = disk.open("/f/a")
    for _ in range(2):
        with pytest.raises(OSError, match="space") as caught:
            file.write(b"abc", 0)
        assert caught.value.errno == errno.ENOSPC
    file.write(b"abc", 0)
    disk.fail(1, count=100)
    disk.heal()
    file.sync()
    assert left(disk) == {b"abc"}


def test_when_the_power_is_cut_nothing_works_any_more():
    disk = disk_with(b"")
    file = disk.open("/f/a")
    disk.cut(2)
    file.write(b"abc", 0)
    for _ in range(3):
        with pytest.raises(PowerCut):
            file.sync()
    assert disk.crash(Random(0)).open("/f/a")


def test_a_lock_is_held_until_it_is_closed_or_its_process_is_killed():
    disk = disk_with(b"")
    lock = disk.lock("/f/lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/f/lock")
    lock.close()
    disk.lock("/f/lock")
    disk.kill()
    disk.lock("/f/lock")


@pytest.mark.parametrize("use", ["open", "read", "size", "unlink"])
def test_what_is_not_there_cannot_be_used(use):
    for path in ("/f/b", "/g/a"):
        with pytest.raises(FileNotFoundError):
            getattr(disk_with(b""), use)(path)


def test_the_same_seed_leaves_the_same_disk():
    inode = Inode(b"abc")
    inode.change((1, b"x" * 2000))
    assert inode.after_crash(Random(5)) == inode.after_crash(Random(5))
