"""./run, the one door: that it parses, tells what it can do, and hands words and exit codes through.

The script is tried in a folder of its own with an environment that is already there, so that nothing is installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "run"
PYTEST = "python -m pytest -n auto --dist loadfile --no-loadscope-reorder"

pytestmark = pytest.mark.sample


def call(*words: str, run: Path = RUN, cwd: Path = ROOT, environ: dict[str, str] | None = None):
    return subprocess.run(
        [run, *words],
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def tree(tmp_path):
    """A copy of the script whose .venv is made of echoing programs and carries a valid stamp."""
    root = tmp_path / "a tree"
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / "benchmarks").mkdir()
    for name in ("run", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    for name in ("python", "onefold", "ruff", "mypy", "lint-imports", "uv"):
        program = root / ".venv" / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"; pwd; exit ${{EXIT_{name.replace("-", "_")}:-0}}\n')
        program.chmod(0o755)
    stamp(root)
    return root


def stamp(root: Path) -> None:
    """The stamp as the script writes it: the place and the interpreter, then the sum of the two source files."""
    both = b"".join((root / name).read_bytes() for name in ("requirements.lock", "pyproject.toml"))
    total = subprocess.run(["cksum"], input=both, capture_output=True, check=True).stdout.decode()
    (root / ".venv" / "onefold.stamp").write_text(f"{root} {root}/.venv/bin/python\n{total}")


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_script_parses(shell):
    subprocess.run([shell, "-n", RUN], check=True)


def test_the_ci_script_parses_and_forbids_skipping():
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)
    assert "export CI=true" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("word", ["help", "--help", "-h"])
def test_help_lists_every_command_and_installs_nothing(word, tmp_path):
    shutil.copy(RUN, tmp_path / "run")
    done = call(word, run=tmp_path / "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("test", "proof", "check", "setup-browser", "bench", "soak", "lock", "help"):
        assert f"\n  ./run {command} " in done.stdout
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "onefold demo"),
        (["demo", "--seed", "7"], "onefold demo --seed 7"),
        (["check", "a path"], "onefold check a path"),
        (["simulate", "--rows", "1"], "onefold simulate --rows 1"),
        (["test", "-k", "x y"], f"{PYTEST} --sample tests/fast tests/stores tests/spark tests/proof src -k x y"),
        (["test", "tests/fast/chains", "-k", "gap"], "python -m pytest tests/fast/chains -k gap"),
        (["test"], f"{PYTEST} --sample tests/fast tests/stores tests/spark tests/proof src"),
        (["test", "fast"], f"{PYTEST} --sample tests/fast src"),
        (["test", "stores", "spark"], f"{PYTEST} --sample tests/stores tests/spark"),
        (["test", "proof", "-k", "x y"], f"{PYTEST} --sample tests/proof -k x y"),
        (["proof"], f"{PYTEST} --proof tests"),
        (["proof", "-x"], f"{PYTEST} --proof tests -x"),
    ],
)
def test_words_go_where_they_belong(tree, words, told):
    assert call(*words, run=tree / "run").stdout.splitlines()[0] == told


def test_onefold_works_where_the_caller_stands_and_the_tests_in_the_tree(tree, tmp_path):
    (tmp_path / "here").symlink_to(tree / "run")
    assert call("doctor", run=tmp_path / "here", cwd=tmp_path).stdout.splitlines()[1] == str(tmp_path)
    assert call("test", run=tmp_path / "here", cwd=tmp_path).stdout.splitlines()[1] == str(tree)


def test_check_runs_every_tool_and_the_tests_last(tree):
    done = call("check", run=tree / "run")
    tests = f"{PYTEST} --sample tests/fast tests/stores tests/spark tests/proof src"
    tools = ["ruff format --check .", "ruff check .", "mypy", "lint-imports", tests]
    assert [line for line in done.stdout.splitlines() if line != str(tree)] == tools
    assert done.returncode == 0


@pytest.mark.parametrize("tool", ["ruff", "mypy", "lint_imports", "python"])
def test_check_fails_when_a_tool_does(tree, tool):
    assert call("check", run=tree / "run", environ={f"EXIT_{tool}": "1"}).returncode == 1


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_exit_codes_pass_through(tree, code):
    assert call("doctor", run=tree / "run", environ={"EXIT_onefold": str(code)}).returncode == code
    assert call("test", run=tree / "run", environ={"EXIT_python": str(code)}).returncode == code


def test_bench_runs_the_named_one_or_all_but_the_soaks(tree):
    assert call("bench", run=tree / "run").returncode == 2
    for name in ("chains", "soak_disk", "spark"):
        (tree / "benchmarks" / f"{name}.py").touch()
    one = call("bench", "chains", "--rows", "5", run=tree / "run")
    assert one.stdout.splitlines()[0] == "python benchmarks/chains.py --rows 5"
    every = call("bench", run=tree / "run").stdout.splitlines()
    assert every[::2] == ["python benchmarks/chains.py", "python benchmarks/spark.py"]
    assert call("bench", "nothing", run=tree / "run").returncode == 2


def test_soak_tells_which_there_are(tree):
    none = call("soak", run=tree / "run")
    assert (none.returncode, none.stderr) == (2, "run: the soaks are: none yet\n")
    (tree / "benchmarks" / "soak_disk.py").touch()
    assert call("soak", "net", run=tree / "run").stderr == "run: no soak net; the soaks are: disk\n"
    assert call("soak", "disk", run=tree / "run").stdout.splitlines()[0] == "python benchmarks/soak_disk.py"


def path_of(tmp_path: Path, *names: str) -> str:
    """A PATH with these programs of the machine and no others."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name in names:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return str(folder)


NEEDED = ("sh", "readlink", "dirname", "cat", "cksum", "id", "head")


def old_python(tmp_path: Path, name: str = "python3", script: str = "exit 1") -> None:
    (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / name).chmod(0o755)


def test_without_a_new_enough_python_it_says_so_in_one_line(tree, tmp_path):
    (tree / ".venv" / "onefold.stamp").unlink()
    path = path_of(tmp_path, *NEEDED)
    old_python(tmp_path, script='[ "$1" = --version ] && echo Python 3.9.2; exit 1')
    done = call("doctor", run=tree / "run", environ={"PATH": path})
    assert done.returncode == 1
    assert done.stderr == "run: needs Python 3.11 or newer, found Python 3.9.2; install python3\n"


def test_without_the_venv_module_and_root_it_says_what_to_install(tree, tmp_path):
    (tree / ".venv" / "onefold.stamp").unlink()
    path = path_of(tmp_path, *NEEDED)  # no apt-get here, so that it cannot install for root either
    old_python(tmp_path)
    old_python(
        tmp_path,
        "python3.12",
        "case $2 in *version_info\\ \\<*) exit 0 ;; *ensurepip*) exit 1 ;; *) echo python3.12-venv ;; esac",
    )
    done = call("doctor", run=tree / "run", environ={"PATH": path})
    assert done.returncode == 1
    assert "apt-get install python3.12-venv" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ERROR: No matching distribution found for pip==26.3", "is there a network?"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "the disk is full: .venv takes 2 GB"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "pip failed; all that it said is in "),
    ],
)
def test_where_pip_fails_the_last_line_says_why_in_plain_words(tree, tmp_path, words, said):
    (tree / ".venv" / "onefold.stamp").unlink()
    path = path_of(tmp_path, *NEEDED, "rm", "sed", "grep", "tail", "mkdir", "chmod", "df")
    pip = f"#!/bin/sh\necho WARNING: Retrying\necho '{words}'\nexit 1\n"
    make = f"""mkdir -p "$3/bin" && printf '%s' "{pip}" >"$3/bin/python" && chmod +x "$3/bin/python\""""
    old_python(tmp_path, script=f"case $2 in venv) {make} ;; esac")
    done = call("doctor", run=tree / "run", environ={"PATH": path})
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert ("Retrying" in done.stderr) is ("HASHES" in words)


def machine(tmp_path: Path, user: str, *names: str, installs: int = 0) -> dict[str, str]:
    """A machine of this user, where apt-get says with `installs` how it went, and keeps what it was asked for."""
    path = path_of(tmp_path, "sh", "readlink", "dirname", "cat", "cksum", "mktemp", "tail", "rm")
    old_python(tmp_path, "id", f"echo {user}")
    old_python(tmp_path, "apt-get", f"echo $@ >>'{tmp_path}/asked'; case $1 in install) exit {installs} ;; esac")
    for name in names:
        old_python(tmp_path, name, "exit 0")
    return {"PATH": path}


@pytest.mark.parametrize("ci", ["", "true"])
def test_the_tests_install_nothing_and_the_proofs_say_that_there_is_no_browser(tree, tmp_path, ci):
    environ = {**machine(tmp_path, "0"), "CI": ci}
    assert call("test", run=tree / "run", environ=environ).stderr == ""
    done = call("proof", run=tree / "run", environ=environ)
    assert done.returncode == 0
    assert done.stdout.startswith("python -m pytest")
    said = "run: no chromium: the tests of the pages are skipped (./run setup-browser installs one)\n"
    assert done.stderr == said
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("user", "names", "installs", "code", "said"),
    [
        ("0", (), 0, 0, "run: installing chromium\n"),
        ("0", (), 1, 1, "run: could not install chromium\n"),
        ("1000", (), 0, 1, "run: cannot install a browser: that needs root and apt-get"),
        ("1000", ("chromium",), 0, 0, "run: a browser is there: chromium\n"),
    ],
)
def test_a_browser_is_installed_when_it_is_asked_for(tree, tmp_path, user, names, installs, code, said):
    (tree / ".venv" / "onefold.stamp").unlink()  # that needs no environment
    environ = machine(tmp_path, user, *names, installs=installs)
    done = call("setup-browser", run=tree / "run", environ=environ)
    assert done.returncode == code
    assert said in done.stderr
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert asked.endswith("install -qy --no-install-recommends chromium\n") is (user == "0")


@pytest.mark.parametrize("change", ["lock", "place", "interpreter", "no stamp"])
def test_an_environment_that_does_not_fit_is_not_used(tree, tmp_path, change):
    if change == "lock":
        with (tree / "requirements.lock").open("a") as lock:
            lock.write("more==1\n")
    elif change == "place":
        tree = tree.rename(tmp_path / "moved")
    elif change == "interpreter":
        (tree / ".venv" / "bin" / "python").unlink()
        (tree / ".venv" / "bin" / "python").symlink_to(sys.executable)
    else:
        (tree / ".venv" / "onefold.stamp").unlink()
    # Every Python fails here, so the attempt to install ends at once: what counts is that it was made.
    path = path_of(tmp_path, *NEEDED, "rm", "sed", "tail", "grep")
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        old_python(tmp_path, name)
    done = call("doctor", run=tree / "run", environ={"PATH": path, "EXIT_python": "1"})
    assert done.returncode == 1
    assert "onefold doctor" not in done.stdout
