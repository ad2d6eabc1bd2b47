"""Rows that are counted and summed up in passing, while another job reads them: the sums cost no pass of their own."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark.columns import quoted
from onefold.spark.diff_forms import row_form
from onefold.spark.diff_ranges import Fingerprint, aggregates, row_id, with_words


class Passing:
    """Watches a table go by: how many rows there were, and their fingerprint by these columns; None: only counted.

    The figures are those of the first job that reads the table to its end, and wait for it. A stage that Spark has to
    run twice is seen twice: figures that agree are true, figures that do not are a reason to look again. Where Spark
    finds that nothing comes out of a job it forgets what was seen on the way.
    """

    def __init__(self, names: Sequence[str] | None = None, *, called: str = "onefold") -> None:
        self._seen = Observation(called)  # two in one plan need two names
        self._names = names

    def watch(self, df: DataFrame) -> DataFrame:
        """The same rows, seen in passing."""
        if self._names is None:
            return df.observe(self._seen, F.count(F.lit(1)).alias(_cell(0)))
        cells = [cell.alias(_cell(i)) for i, cell in enumerate(aggregates())]
        words = with_words(df, [whole_row_id(df, self._names)])
        return words.observe(self._seen, *cells).select(*(F.col(quoted(name)) for name in df.columns))

    @property
    def rows(self) -> int:
        """How many there were; 0 too if that was forgotten."""
        return int(self._figures().get(_cell(0)) or 0)

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Of all of them; None if it was forgotten."""
        seen = self._figures()
        return Fingerprint.of([seen[_cell(i)] for i in range(len(seen))]) if seen else None

    def _figures(self) -> Mapping[str, Any]:
        try:
            return self._seen.get
        except Py4JJavaError:  # a row without any cells, which cannot be handed over
            return {}


def whole_row_id(df: DataFrame, names: Iterable[str]) -> Column:
    """The id of each row, by these columns."""
    return row_id(row_form((F.col(quoted(name)), df.schema[name].dataType) for name in names))


def comparable(df: DataFrame) -> list[str]:
    """The columns whose values have a form: all but those of a type that nobody can compare."""
    found = []
    for name in df.columns:
        try:
            whole_row_id(df, [name])
        except Misuse:
            continue
        found.append(name)
    return found


def _cell(i: int) -> str:
    return f"cell{i}"
