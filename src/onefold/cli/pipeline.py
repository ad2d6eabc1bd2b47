"""From settings to the session, source and engine of a job. This module imports Spark."""

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
    """Add to the error for a missing column what to write in the TOML file."""
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
    """Refuse a source that does not exist or has other columns, before Spark starts."""
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
    """The memory that a batch run continues from; None without [memory]."""
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
    return Figures() if settings.report.page == "samples" else Figures(samples_max=0)


def format_of(settings: Settings, engine: Engine) -> str:
    """The format to read: "text" for JSON lines if the engine parses each line itself."""
    source = settings.source
    options = {
        name.lower(): value for name, value in source.options.items()
    }  # Spark's option names are case-insensitive
    lines = source.format in ("json", "jsonl", "ndjson") and str(options.get("multiline", "")).strip().lower() != "true"
    return "text" if engine.reads_lines and lines else source.format
