"""Commands of onefold, given by tests: in this process, with the Spark that runs already, or in one of their own."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from onefold.cli.main import main


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def here(*words: object, cwd: Path, **environ: str) -> Done:
    """Without the quarter of a minute that a Spark takes to start; what a process adds is its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, environ),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main([str(word) for word in words])
    return Done(code, out.getvalue(), err.getvalue())


def process(*words: object, cwd: Path, **environ: str) -> Done:
    """As a user starts it."""
    command = [sys.executable, "-m", "onefold.cli.main", *map(str, words)]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **environ}
    )
    return Done(done.returncode, done.stdout, done.stderr)


def lines_after_kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill it; the whole lines that it had said and nobody has read yet.

    Not by communicate(), which passes over what readline() has read ahead.
    """
    with process:
        process.kill()
        assert process.stdout is not None
        return [line.removesuffix("\n") for line in process.stdout if line.endswith("\n")]
