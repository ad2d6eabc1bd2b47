"""What documents show: their blocks of code, and their commands, run as they stand."""

import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.lib.commands import here

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[tuple[str, str]]:
    """The kind and the text of each block of code of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def snippet(page: str, kind: str) -> str:
    """The only block of its kind."""
    (block,) = (block for other, block in blocks(page) if other == kind)
    return block


def walk(shown: Iterable[tuple[str, str]], folder: Path) -> int:
    """Run the commands, those of onefold in this process; how many blocks of text they printed, line after line."""
    count = 0
    output: list[str] = []
    for kind, block in shown:
        if kind == "sh" and "onefold " not in block:
            subprocess.run(["sh", "-c", block], cwd=folder, check=True)
        elif kind == "sh":
            output = []
            for words in map(shlex.split, block.splitlines()):
                # The Java of this test run was started in another folder, so its paths begin there.
                paths = [str(folder / word) if (folder / word).exists() else word for word in words[1:]]
                done = here(*paths, cwd=folder)
                finds = words[1] in ("check", "diff") or words[1:3] == ["lorawan", "report"]
                assert done.returncode == finds, done.stderr
                output += [line.rstrip() for line in done.stderr.splitlines()]
        elif kind == "text":
            rest = iter(output)
            assert all(line in rest for line in block.splitlines()), (block, output)
            count += 1
    return count
