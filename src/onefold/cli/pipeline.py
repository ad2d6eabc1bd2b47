"""From settings to what the jobs take: the session, the source and the engine. This file imports Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onefold.errors import Misuse
from onefold.settings import Settings
from onefold.spark.columns import ChainColumns, ProducerColumns
from onefold.spark.engine import ChainsEngine, Engine, Lorawan, Producers
from onefold.spark.ingest import SourceSpec
from onefold.spark.receptions.judge import ReceptionColumns
from onefold.spark.session import session


@contextmanager
def columns_in_toml() -> Iterator[None]:
    """Say of a column that is not there what to write in the pipeline's TOML file."""
    try:
        yield
    except Misuse as error:
        if "role" not in error.values:
            raise
        role, required = error.values["role"], error.values["required"]
        hint = f'name another: {role} = "COLUMN"' if required else f'if there is none: {role} = "none"'
        raise Misuse(f"{error.values['said']}; {hint} in [judge]", **error.values) from error


def opened(settings: Settings) -> tuple[Any, SourceSpec, Engine]:
    """A session of Spark, what to read with it, and how to judge."""
    spark = session(settings.spark.master, memory=settings.spark.memory, config=settings.spark.config)
    source = SourceSpec(
        path=settings.source.path,
        format=_format(settings),
        options=settings.source.options,
        bad_files=settings.source.bad_files,
        partition_types=settings.source.partition_types,
    )
    return spark, source, judging(settings)


def _format(settings: Settings) -> str:
    """The format as it is read: receptions of many shapes as lines, each of which says what it is."""
    source, judge = settings.source, settings.judge
    # To Spark the names of options are the same in capitals and small letters.
    options = {name.lower(): value for name, value in source.options.items()}
    lines = source.format in ("json", "jsonl", "ndjson") and str(options.get("multiline", "")).strip().lower() != "true"
    return "text" if judge.engine == "lorawan" and judge.shape != "flat" and lines else source.format


def judging(settings: Settings) -> Engine:
    """The engine of these settings."""
    judge = settings.judge
    partitions = None if settings.spark.partitions == "auto" else int(settings.spark.partitions)
    if judge.engine == "lorawan":
        return _lorawan(settings, partitions)
    if judge.engine == "producers":
        if judge.sequence is None:
            raise Misuse('judge.sequence: is "none", but producers are judged by it')
        return Producers(
            columns=ProducerColumns(
                producer=judge.producer,
                sequence=judge.sequence,
                order=judge.order,
                epoch=judge.epoch,
                payload=judge.payload,
            ),
            memory=judge.memory,
            gap_count_max=judge.gap_count_max,
            jump_max=None if judge.jump_max == "off" else judge.jump_max,
            partitions=partitions,
        )
    usual = ChainColumns()
    names = {role: getattr(judge, role) for role in ("sequence", "previous_timestamp", "previous_sequence", "arrival")}
    # A name that is the default is the usual one, which a source may lack: run.json writes out what was left open.
    chosen = {role: default if (default := getattr(usual, role)) == name else name for role, name in names.items()}
    return ChainsEngine(
        columns=ChainColumns(key=judge.key, timestamp=judge.timestamp, **chosen),
        floor=judge.floor,
        gap_count_max=judge.gap_count_max,
        jump_max_ms=judge.jump_max_ms,
        partitions=partitions,
    )


def _lorawan(settings: Settings, partitions: int | None) -> Lorawan:
    judge = settings.judge
    return Lorawan(
        columns=ReceptionColumns(
            frame=judge.frame,
            station=judge.station,
            time=judge.time,
            kind=judge.kind,
            device=judge.device,
            fcnt=judge.fcnt,
        ),
        shape=judge.shape,
        expiry_ms=judge.expiry_ms,
        sliding=judge.expiry == "sliding",
        echo_ms=judge.echo_ms,
        strict_adr=judge.strict_adr,
        strategy=settings.publish.strategy,
        late_ms=judge.late_ms,
        partitions=partitions,
    )
