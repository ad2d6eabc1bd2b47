import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from onefold.spark.session import unix_sockets

FOLDER = "spark.python.unix.domain.socket.dir"
LEFT = "from onefold.spark.session import unix_sockets; print(unix_sockets()['spark.python.unix.domain.socket.dir'])"


def test_the_workers_of_a_session_listen_where_only_its_user_may_enter(spark):
    assert spark.range(2).mapInArrow(lambda batches: batches, "id long").count() == 2
    folder = Path(spark.conf.get(FOLDER))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(stat.S_ISSOCK(path.stat().st_mode) for path in folder.iterdir())


def test_where_temporary_files_have_too_long_a_path_there_are_no_sockets_and_nothing_is_left(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert unix_sockets() == {}
    assert list(deep.iterdir()) == []


def test_the_folder_goes_when_the_process_ends():
    ran = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=True)
    folder = Path(ran.stdout.strip())
    assert folder.name.startswith("onefold-sockets-")
    assert not folder.exists()
