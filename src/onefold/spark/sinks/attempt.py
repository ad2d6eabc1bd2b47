"""An attempt to write a batch to files, and the fence that keeps an earlier attempt from finishing.

A driver that was believed dead may wake up in the middle of a batch that its successor is writing again. So

- each attempt has a folder of its own, ``draft``, that no task of another attempt writes to;
- it puts its token into ``attempt.json`` before it clears away what the earlier ones left, and looks again right before
  the rename that takes its draft away: a token that is not its own any more means that its files may be gone;
- what is cleared away is renamed first, then removed: a draft is taken away by its owner or by its successor, whole.

What is renamed to a name that exists is refused, so a batch comes from one attempt, never from two.

The rows are counted as they pass to the files: where driver and executors each have a disk of their own under one
name, files are missing afterwards, and the books do not balance.
"""

import re
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from onefold.errors import StaleWrite
from onefold.spark.place import Place

WORD = "attempt.json"
TOKEN: Final = re.compile("[0-9a-f]{12}")
"""What an attempt calls itself."""
DRAFT: Final = re.compile(rf"(\d{{12}}|trash)-{TOKEN.pattern}")
"""What only an attempt calls a folder: nothing else is ever cleared away."""


class Attempt:
    """The newest attempt in this folder, until the next one begins."""

    def __init__(self, home: Place, batch: int) -> None:
        self.token = uuid4().hex[:12]
        """Unique, so that names made of it are."""
        self.draft = home / f"{batch:012}-{self.token}"
        self._word = home / WORD
        home.make()
        self._word.write_json({"attempt": self.token})
        for name in home.names():
            if DRAFT.fullmatch(name):
                trash = home / f"trash-{uuid4().hex[:12]}"
                (home / name).move_to(trash)
                trash.remove()

    def check(self) -> None:
        """Raise `StaleWrite` if a later attempt has begun."""
        said = self._word.read_json().get("attempt") if self._word.exists() else None
        if said != self.token:
            raise StaleWrite(
                f"another attempt to write this batch began in between ({self._word.shown} says {said}): is a second"
                " query running on this checkpoint?",
                attempt=self.token,
            )


def counted(rows: DataFrame) -> tuple[DataFrame, Observation]:
    """The same rows, and who counts them while they are written; ask `received` after that, not before."""
    counter = Observation()
    return rows.observe(counter, F.count(F.lit(1)).alias("rows")), counter


def received(counter: Observation) -> int:
    """How many rows passed."""
    return int(counter.get["rows"])
