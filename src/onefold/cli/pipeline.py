"""From settings to what the jobs take: the session, the source and the engine. This file imports Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onefold.cli.mistakes import are_small, refuse_mistakes
from onefold.errors import Misuse
from onefold.settings import Settings
from onefold.spark.engine import Engine, engine_class
from onefold.spark.figures import Figures
from onefold.spark.host import MemoryOptions
from onefold.spark.ingest import SourceSpec
from onefold.spark.session import session


@contextmanager
def columns_in_toml() -> Iterator[None]:
    """Say of a column that is not there what to write in the pipeline's TOML file."""
    try:
        yield
    except Misuse as error:
        if "role" not in error.values:
            raise
        role, required, right = (error.values[name] for name in ("role", "required", "right"))
        hint = (
            f'name another: {role} = "{right or "COLUMN"}"'
            if required or right
            else f'if there is none: {role} = "none"'
        )
        raise Misuse(f"{error.values['said']}; {hint} in [judge]") from error


def refuse_pipeline(settings: Settings) -> None:
    """Refuse a source, or columns of it, that cannot be judged like this; before Spark is started."""
    engine, source = engine_of(settings), settings.source
    kind, master = format_of(settings, engine), settings.spark.master
    if any("defaultFS" in name for name in settings.spark.config):
        return
    with columns_in_toml():
        refuse_mistakes(source.path, kind, engine.reads, source.reader_options, "source.path", master)


def opened(settings: Settings) -> tuple[Any, SourceSpec, Engine]:
    engine = engine_of(settings)
    spark = session(
        settings.spark.master, memory=settings.spark.memory, config=settings.spark.config,
        brief=settings.source.mode == "batch" and are_small(settings.source.path),
    )  # fmt: skip
    source = SourceSpec(
        path=settings.source.path,
        format=format_of(settings, engine),
        options=settings.source.reader_options,
        bad_files=settings.source.bad_files,
        partition_types=settings.source.partition_types,
    )
    return spark, source, engine


def engine_of(settings: Settings) -> Engine:
    partitions = None if settings.spark.partitions == "auto" else int(settings.spark.partitions)
    kind = engine_class(settings.judge.engine)
    return kind.configured(settings.judge, strategy=settings.publish.strategy, partitions=partitions)


def memory_of(settings: Settings, version: int | None = None) -> MemoryOptions | None:
    """What a batch run goes on from; None: it begins with nothing."""
    judge = settings.judge
    if settings.memory.path is None:
        return None
    return MemoryOptions(
        path=settings.memory.path,
        version=version,
        idle_ms=None if judge.idle_ms == "off" else int(judge.idle_ms),
        state_rows_max=None if judge.state_rows_max == "off" else int(judge.state_rows_max),
        buckets=settings.spark.buckets,
    )


def figures_of(settings: Settings) -> Figures:
    """How much of each figure a page shows."""
    return Figures() if settings.report.page == "samples" else Figures(samples_max=0)


def format_of(settings: Settings, engine: Engine) -> str:
    """The format as it is read: an engine may want JSON as lines, each of which says by itself what it is."""
    source = settings.source
    options = {name.lower(): value for name, value in source.options.items()}  # to Spark they are case-insensitive
    lines = source.format in ("json", "jsonl", "ndjson") and str(options.get("multiline", "")).strip().lower() != "true"
    return "text" if engine.reads_lines and lines else source.format
