"""What a newcomer asks of the commands themselves: `onefold`, `--help`, the TAB key."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from onefold.cli.main import COMMANDS, EXAMPLES, FRONT_DOOR, SECTIONS, app
from tests.lib.commands import here

FRONT = re.findall(r"^  .*?onefold (.*?)(?:  |$)", FRONT_DOOR, re.MULTILINE)
BIN = Path(sys.executable).parent


def parsed(words: list[str]) -> str:
    """The command that these words call, after its own parser took them."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("onefold", list(words))
    while rest := [*context._protected_args, *context.args]:
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return str(context.command_path).removeprefix("onefold ")


@pytest.fixture
def _folder(tmp_path, monkeypatch):
    """What the examples name and an option asks for before anything else."""
    monkeypatch.chdir(tmp_path)
    for name in ("log", "net", "air", "checkpoint", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "log" / "events").mkdir()
    for name in ("events.jsonl", "notes.jsonl", "devices.toml", "pipeline.toml", "notes.db"):
        (tmp_path / name).touch()


def test_every_command_stands_in_one_section():
    top = [name for names in SECTIONS.values() for name in names]
    assert sorted(top) == sorted(name for name in COMMANDS if " " not in name)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_help_ends_with_its_example(name, tmp_path):
    done = here(*name.split(), "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith(f"\nExample:\n  onefold {EXAMPLES[name]}\n")
    assert "<list[" not in done.stdout
    assert " range>" not in done.stdout


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_taken_by_the_parser_of_its_command(name):
    assert f"{parsed(shlex.split(EXAMPLES[name]))} ".startswith(f"{name} ")  # of a group, that of one of its commands


@pytest.mark.usefixtures("_folder")
def test_the_front_door_says_what_the_commands_take():
    assert len(FRONT) == 10
    assert {parsed(shlex.split(line)) for line in FRONT} == {
        "check", "diff", "lorawan report", "consume", "init", "run", "audit", "explain",
    }  # fmt: skip


def test_the_tab_key_completes_commands_options_and_values_in_bash_and_starts_no_spark():
    script = """
    eval "$(onefold completion bash)"
    ask() {
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _onefold_completion onefold
        echo "${COMPREPLY[@]}"
    }
    complete -p onefold
    ask onefold che
    ask onefold log ta
    ask onefold check rows.csv --prev
    ask onefold check rows.csv --memory ""
    ask onefold check ro
    """
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.splitlines() == [
        "complete -o default -F _onefold_completion onefold",
        "check",
        "tail",
        "--previous-timestamp --previous --previous-sequence",
        "highest gaps",
        "",  # then bash itself completes files
    ]
    assert done.stderr == ""


def test_completing_imports_no_spark():
    code = """
import sys
from onefold.cli.main import main
try:
    main()
except SystemExit:
    print({"pyspark", "pyarrow", "pandas", "py4j"} & set(sys.modules))
"""
    asked = {"_ONEFOLD_COMPLETE": "complete_bash", "COMP_WORDS": "onefold\ncheck\n--i", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | asked
    )
    assert done.stdout.splitlines() == ["--id", "set()"]


@pytest.mark.parametrize(
    ("shell", "line"), [("zsh", "compdef _onefold_completion onefold"), ("fish", "complete --command onefold")]
)
def test_other_shells_have_a_script_too(shell, line, tmp_path):
    done = here("completion", shell, cwd=tmp_path)
    assert done.returncode == 0
    assert line in done.stdout
