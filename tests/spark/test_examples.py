"""The examples run, and the documents say what the code does: each block of Python in them is tried."""

import doctest
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onefold import chains, ids, lorawan, outbox, producers
from tests.lib.examples import proof

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
CHAINS = ROOT / "docs" / "engines" / "chains.md"
RULES: dict[str, Mapping[Any, str]] = {
    "chains": chains.RULES,
    "ids": ids.RULES,
    "lorawan": lorawan.RULES,
    "outbox": outbox.RULES,
    "producers": producers.RULES,
}

CHAIN_DETECTOR = """\
FIRST new_chain        (1000|0, inf]
FIRST in_order         (1000|1, inf]
FIRST opens_gap        (1000|1, 4000|1] (4000|2, inf]
FIRST fills_gap        (2500|0, 4000|1] (4000|2, inf]
REPEAT seen            (2500|0, 4000|1] (4000|2, inf]
FIRST fills_gap        (2500|0, 4000|0] (4000|2, inf]
REJECT bad_numbering   (2500|0, 4000|0] (4000|2, inf]
7 in = 5 first + 1 repeat + 0 unsure + 1 reject
ask for (2500, 1) to (4000, 0)
REPEAT seen
"""

ORDERED_CHAIN = """\
   0 ms  out: message 1
  10 ms  out: message 2
  30 ms  out: message 3
  30 ms  out: message 4
  90 ms  ask for (4, 1) to (5, 0)
 115 ms  out: message 5 (resent)
 115 ms  out: message 6
 165 ms  ask for (6, 1) to (7, 0)
 265 ms  ask for (6, 1) to (7, 0)
 365 ms  given up: between (6, 0) and (8, 0)
 365 ms  out: message 8
out to 8|0
"""

SPARK_JUDGE = """\
+-------+-------+-------+------------+
| device|   sent|verdict|      reason|
+-------+-------+-------+------------+
|kitchen|   1000|  FIRST|   new_chain|
| cellar|   1500|  FIRST|   new_chain|
|   NULL|   1700| REJECT|    null_key|
|kitchen|   2000|  FIRST|    in_order|
| cellar|9999999| REJECT|jump_too_far|
|kitchen|   2000| REPEAT|        seen|
|kitchen|   4000|  FIRST|   opens_gap|
+-------+-------+-------+------------+

"""

PRODUCERS = """\
epoch 1: goes on with sale 0
  FIRST new
  FIRST new
epoch 2: goes on with sale 2
  FIRST new
epoch 3: goes on with sale 3
  FIRST new
  FIRST new
again: REPEAT
producer 'till-1': another producer took this name; this one may not send any more
each once, in order: True
"""

LORAWAN = """\
     0 ms harbour  FIRST new_frame       up          confirmed with 1
     4 ms roof     REPEAT other_server   up, marked
     9 ms tower    REPEAT other_station  up, marked
 60000 ms roof     FIRST new_frame       up          confirmed with 2
 60003 ms tower    REPEAT other_station  up, marked
 62000 ms roof     REPEAT resubmitted    up, marked  confirmed with 3
 63000 ms roof     REJECT bad_mic
200000 ms roof     REJECT old_counter    -
8 in = 2 first + 4 repeat + 0 unsure + 2 reject
"""

SHOP = """\
120 orders, 12 kills
shipped once: 120
paid: 7140 of 7140
tokens left: 0, outbox entries left: 0
"""

NEGENTROPY = """\
round trips: 2, bytes up 989, down 1,506
the laptop lacks ['note 50003', 'note 50004']
the phone lacks  ['note 31337', 'note 50000', 'note 50001', 'note 50002']
round trips: 1, bytes up 337, down 1
now both are equal: True
"""

RECONCILE = """\
a few notes differ
  only here 1, only there 2
  pulled: 2 in = 2 first + 0 repeat + 0 unsure + 0 reject
  pushed: 1 in = 1 first + 0 repeat + 0 unsure + 0 reject
  both hold 10,003 now: True
killed: 16 of 500 notes are here
  only here 0, only there 484
  pulled: 484 in = 484 first + 0 repeat + 0 unsure + 0 reject
  pushed: 0 in = 0 first + 0 repeat + 0 unsure + 0 reject
  both hold 10,503 now: True
"""

PRINTS = {
    "negentropy": NEGENTROPY,
    "reconcile": RECONCILE,
    "lorawan": LORAWAN,
    "chain_detector": CHAIN_DETECTOR,
    "ordered_chain": ORDERED_CHAIN,
    "producers": PRODUCERS,
    "shop": SHOP,
    "spark_judge": SPARK_JUDGE,
}


def blocks(path: Path) -> list[tuple[int, str]]:
    """The Python blocks of a document, each with the line that it begins on."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def test_every_example_is_tried():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(PRINTS)


def test_the_example_of_spark_prints_what_it_should(spark, capsys, monkeypatch):
    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # of this process, others need it
    runpy.run_path(str(ROOT / "examples" / "spark_judge.py"), run_name="__main__")
    assert capsys.readouterr().out == SPARK_JUDGE


@pytest.mark.parametrize("name", [proof(name) if name in ("shop", "spark_judge") else name for name in PRINTS])
def test_an_example_prints_what_it_should(name, tmp_path):
    program = str(ROOT / "examples" / f"{name}.py")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, program], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTS[name]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_python_in_a_document_runs_as_shown(path):
    shown = ""  # the document's lines, all but its examples blank, so that a failure names the right one
    for line, block in blocks(path):
        if ">>>" in block:
            shown += "\n" * (line - shown.count("\n")) + block
        else:  # needs something that only its reader has: it must at least be Python
            compile(block, f"{path}:{line}", "exec")
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    runner.run(doctest.DocTestParser().get_doctest(shown, {}, path.name, str(path), 0), out=report.append)
    assert not runner.failures, "".join(report)


def test_the_worked_example_is_there_to_be_run():
    assert sum(">>>" in block for _, block in blocks(CHAINS)) > 10


@pytest.mark.parametrize("engine", RULES)
def test_the_table_of_reasons_is_the_rules(engine):
    text = (ROOT / "docs" / "engines" / f"{engine}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:FIRST|REPEAT|UNSURE|REJECT) \| `.*$", text, re.MULTILINE)
    assert rows == [f"| {answer.verdict} | `{answer.reason}` | {rule} |" for answer, rule in RULES[engine].items()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (path.parent / target).exists()]
