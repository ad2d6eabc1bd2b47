"""``onefold lorawan report``: what stored receptions tell an operator, as one plain document.

The receptions are read, judged and numbered once, into a temporary folder; every figure is then an aggregate over that.
Lists are cut at ``top``; what they are cut from is counted in full.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import reception_figures as figures
from onefold.spark.place import Place
from onefold.spark.reception_judge import STATUS, judge_receptions
from onefold.spark.reception_reading import read_rows
from onefold.spark.reception_shapes import NOT_RECEPTION, SHAPES
from onefold.spark.receptions import CLOCK_OFF_MS, ROW, TYPES, recognised
from onefold.spark.table import REASON, VERDICT
from onefold.spark.uplinks import WINDOW, with_window
from onefold.spark.validate import CORRUPT
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

Say: TypeAlias = Callable[[str], None]

FORMAT: Final = 1
TOP: Final = 20
_NARROW: Final = [name for name in TYPES if name not in ("payload", CORRUPT)]


def report(
    spark: SparkSession,
    path: str,
    *,
    format: str = "auto",
    shape: str = "auto",
    expiry_ms: int = 60_000,
    sliding: bool = True,
    strict_adr: bool = False,
    strategy: str = "none",
    clock_off_ms: int = CLOCK_OFF_MS,
    top: int = TOP,
    devices: Collection[str] | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """All figures of the receptions at a path, ready for JSON.

    ``devices``: those that are ours, as the receptions call them (DevEUI or DevAddr, in lower-case digits). Anybody's
    frames are heard; what others lost, or whether they are replayed, is then not asked. None: all are ours.
    """
    started = monotonic()
    judge = judge_receptions(expiry_ms=expiry_ms, sliding=sliding, strict_adr=strict_adr, strategy=strategy)
    if top < 0:
        raise Misuse(f"top is {top}, must be at least 0", top=top)
    folder = tempfile.mkdtemp(prefix="onefold-lorawan-")
    try:
        say("reading receptions")
        rows = recognised(read_rows(spark, path, format=format), shape, clock_off_ms=clock_off_ms)
        rows = _kept(rows, f"{folder}/rows")
        read = _read(rows)
        if not read["receptions"]:
            raise Misuse(f"{path} has no receptions: {_what(read)}", path=path)
        say("judging")
        judged = rows.where(F.col("source") != NOT_RECEPTION).select(*TYPES).transform(judge)
        judged = _kept(with_window(judged).select(*_NARROW, VERDICT, REASON, STATUS, WINDOW), f"{folder}/judged")
        books = _books(judged, read["receptions"])
        heard = judged.where(F.col(WINDOW).isNotNull())
        settings = {
            "expiry_ms": expiry_ms, "sliding": sliding, "strict_adr": strict_adr, "strategy": strategy,
            "clock_off_ms": clock_off_ms,
        }  # fmt: skip
        found = _figures(heard, devices, folder, top, settings, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    place = path if "://" in path else Place(spark, path).shown
    took = round(monotonic() - started, 3)
    return {"format": FORMAT, "path": place, **read, **books, **found, "settings": settings, "seconds": took}


def _kept(rows: DataFrame, folder: str) -> DataFrame:
    """The rows, computed once."""
    rows.write.parquet(f"file:{folder}")
    return rows.sparkSession.read.parquet(f"file:{folder}")


def _read(rows: DataFrame) -> dict[str, Any]:
    """How many rows there are, and what they are."""
    place = F.coalesce(F.col(ROW), F.lit(0)) == 0
    found = rows.groupBy("source").agg(F.count(F.lit(1)).alias("n"), figures.count(place).alias("rows")).collect()
    sources = {row["source"]: row["n"] for row in found}
    others = sources.pop(NOT_RECEPTION, 0)
    return {
        "rows": sum(row["rows"] for row in found),
        "not_receptions": others,
        "receptions": sum(sources.values()),
        "sources": dict(sorted(sources.items())),
    }


def _what(read: dict[str, Any]) -> str:
    shapes = ", ".join(SHAPES)
    return f"{read['rows']:,} rows, none of a shape that is known ({shapes})" if read["rows"] else "it is empty"


def _books(judged: DataFrame, came_in: int) -> dict[str, Any]:
    """The tally by verdict and reason, checked, and the counts by status."""
    counts, statuses = Counter[Answer](), Counter[str]()
    for row in judged.groupBy(VERDICT, REASON, STATUS).count().collect():
        counts[Answer(Verdict(row[VERDICT]), row[REASON])] += row["count"]
        statuses[row[STATUS] or "rejected"] += row["count"]
    tally = Tally(came_in, counts).check()
    return {"engine": "lorawan", "tally": tally.to_dict(), "statuses": dict(sorted(statuses.items()))}


def _figures(
    heard: DataFrame,
    devices: Collection[str] | None,
    folder: str,
    top: int,
    settings: dict[str, Any],
    say: Say,
) -> dict[str, Any]:
    say("merging uplinks")
    uplinks = _kept(figures.with_ours(figures.uplinks(heard), devices), f"{folder}/uplinks")
    totals = figures.totals(uplinks)
    say("looking at counters")
    stepped = _kept(figures.steps(uplinks), f"{folder}/steps")
    losses, suspects = figures.losses(stepped, top), figures.suspects(stepped, top)
    say("looking at gateways")
    gateways, shown = figures.gateways(heard, top)
    say("trying other windows")
    lost = losses["lost"]
    return {
        **totals,
        "gateways": gateways,
        "lost": lost,
        "loss_share": round(lost / max(1, totals["uplinks"] - totals["foreign_uplinks"] + lost), 4),
        "losses": losses,
        "suspects": suspects,
        "gateways_shown": shown,
        "windows": _windows(heard, settings),
    }


def _windows(heard: DataFrame, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What other windows would have made of the data frames: all of them, and those with a clock of their own."""
    lengths = sorted({*figures.WINDOWS_MS, settings["expiry_ms"]})
    data = heard.where(F.col("kind") == "data")
    receptions, counts = figures.what_if(data, lengths, sliding=settings["sliding"])
    return [
        {"window_ms": n, "uplinks": every, "repeats": receptions - every, "uplinks_own_clock": timed}
        for n, (every, timed) in zip(lengths, counts, strict=True)
    ]
