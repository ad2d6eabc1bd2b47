"""From settings to what the jobs take: the session, the source and the engine. This file imports Spark."""

from typing import Any

from onefold.errors import Misuse
from onefold.settings import Settings
from onefold.spark.columns import ChainColumns, ProducerColumns
from onefold.spark.jobs import Source
from onefold.spark.judging import Chains, Judging, Producers
from onefold.spark.session import session


def opened(settings: Settings) -> tuple[Any, Source, Judging]:
    """A session of Spark, what to read with it, and how to judge."""
    spark = session(settings.spark.master, memory=settings.spark.memory, config=settings.spark.config)
    source = Source(path=settings.source.path, format=settings.source.format, options=settings.source.options)
    return spark, source, judging(settings)


def judging(settings: Settings) -> Judging:
    """The engine of these settings."""
    judge = settings.judge
    partitions = None if settings.spark.partitions == "auto" else int(settings.spark.partitions)
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
            partitions=partitions,
        )
    return Chains(
        columns=ChainColumns(
            key=judge.key,
            timestamp=judge.timestamp,
            sequence=judge.sequence,
            previous_timestamp=judge.previous_timestamp,
            previous_sequence=judge.previous_sequence,
            arrival=judge.arrival,
        ),
        floor=judge.floor,
        gap_count_max=judge.gap_count_max,
        jump_max_ms=judge.jump_max_ms,
        partitions=partitions,
    )
