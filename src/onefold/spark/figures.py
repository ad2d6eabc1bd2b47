"""The figures of a run, for its report: where things happened, to whom, how late copies came, what was refused.

They are taken while the judged rows are at hand, by native aggregates over the few columns that each needs. All that
comes back is bounded, whatever the run: below a megabyte as JSON, in `run.json` under ``figures``.

    timeline     verdicts over time             worst_keys   the keys with the most that does not count
    strips       what is missing, by key        lags         how long after its first a copy came
    rejects      some rows of each reason       phases       where the time went

Cost: five queries at most, side by side; the largest is one shuffle of (id, arrival) by id. What there is nothing of
costs nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from onefold import __version__
from onefold.errors import Misuse
from onefold.spark.figures_keys import keys_and_strips
from onefold.spark.figures_lags import lags
from onefold.spark.figures_rejects import reject_samples
from onefold.spark.figures_subject import Subject
from onefold.spark.figures_timeline import timeline
from onefold.spark.judging import Judging
from onefold.spark.table import believed_bytes
from onefold.tally import Tally
from onefold.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How much of each is kept: as much as a page shows."""

    bins_max: int = 60
    """Of the timeline."""
    keys_max: int = 20
    """How many of the worst keys are told."""
    strips_max: int = 300
    """Of how many keys the missing ranges are told."""
    ranges_max: int = 40
    """How many of the ranges of a key are told: the widest."""
    samples_max: int = 5
    """How many rows of each reason to reject are shown; 0: a report then holds no row."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name != "samples_max")
            if value < least:
                raise Misuse(f"{field.name} is {value}, must be at least {least}", **{field.name: value})

    def take(self, rows: DataFrame, gaps: DataFrame, judging: Judging, tally: Tally, keys: int) -> dict[str, Any]:
        """The figures of judged rows of so many keys, and of the ranges that are missing among them."""
        subject = Subject.of(judging, rows)
        bounds = {"keys_max": self.keys_max, "strips_max": self.strips_max, "ranges_max": self.ranges_max}
        (worst, strips), over_time, late, refused = _side_by_side(
            rows.sparkSession,
            lambda: keys_and_strips(rows, gaps, subject, **bounds),
            lambda: timeline(rows, subject, tally, bins_max=self.bins_max),
            lambda: lags(rows, subject, copies=tally.count(Verdict.REPEAT)),
            lambda: reject_samples(rows, subject, tally, samples_max=self.samples_max),
        )
        return {
            "timeline": over_time,
            "worst_keys": worst,
            "strips": None if strips is None else {"keys": keys, **strips},
            "lags": late,
            "rejects": refused,
        }


def _side_by_side(spark: SparkSession, *figures: Callable[[], Any]) -> list[Any]:
    """All of them at once: of a small run most of the time is planning, in which the cores have nothing to do."""
    with ThreadPoolExecutor(len(figures), thread_name_prefix="onefold-figures") as threads:
        begun = [threads.submit(inheritable_thread_target(spark)(figure)) for figure in figures]
        return [figure.result() for figure in begun]


class Phases:
    """The steps of a run, and how long each took; the first begins at once."""

    def __init__(self, first: str, say: Callable[[str], None], *, clock: Callable[[], float] = monotonic) -> None:
        self._say = say
        self._clock = clock
        self._begun = [(first, clock())]

    def begin(self, step: str) -> None:
        """Say that a step begins, and the one before it has ended."""
        self._begun.append((step, self._clock()))
        self._say(step)

    @property
    def seconds(self) -> float:
        """How long it all took up to now."""
        return self._clock() - self._begun[0][1]

    def lasted(self) -> list[tuple[str, float]]:
        """The steps with their seconds, the last one up to now."""
        ends = [start for _, start in self._begun[1:]] + [self._clock()]
        return [(step, round(end - start, 3)) for (step, start), end in zip(self._begun, ends, strict=True)]


def circumstances(source: DataFrame, phases: Phases) -> dict[str, Any]:
    """What else a report tells of a run: where the time went, how large the source is, by what it was done."""
    return {
        "phases": [list(phase) for phase in phases.lasted()],
        "bytes_in": believed_bytes(source),
        "versions": versions(source.sparkSession),
    }


def versions(spark: SparkSession) -> dict[str, str]:
    """Of all that took part."""
    jvm: Any = spark.sparkContext._jvm
    java = str(jvm.java.lang.System.getProperty("java.version"))
    return {"onefold": __version__, "python": platform.python_version(), "spark": spark.version, "java": java}
