"""The interface of engines on Spark: one `Engine` value defines how rows are read, judged, remembered and shown.

Settings, jobs, audit, explain, figures and commands use this interface; none of them knows which engine it is. A new
engine is a class in a file of its own and a line in `ENGINES`; its words for people are a value in `onefold.wording`.

Tasks that judge a part of a table (`judge_partition`) or a bucket of a memory (`judge_bucket`) get the value pickled.
So the file of an engine imports only what executors must have: numpy, pyarrow and pyspark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import host
from onefold.spark.columns import RANGE_ENDS, Columns, moment, quoted
from onefold.spark.host import Codes, Integers, KeyColumns, MemoryOptions, Transform
from onefold.spark.meaning import Meaning
from onefold.spark.memory import Bucket, KeyRecords
from onefold.spark.notes import NoteRules
from onefold.tally import Tally
from onefold.verdict import Answer

if TYPE_CHECKING:
    from onefold.settings import Judge
    from onefold.spark.in_order import OrderedStep


class Named(Protocol):
    """The columns of a table, by role."""

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is named."""

    def of(self, df: Columns) -> Self:
        """The same columns, spelled as in this table."""

    def added_to(self, df: DataFrame) -> DataFrame:
        """The table with the named fields of structs and expressions added as columns."""

    def check(self, df: Columns) -> None:
        """Raise `Misuse` that names the column if one is missing or of a wrong type."""


class AnyShape:
    """No columns by role: rows are used as they are."""

    named: Final[list[tuple[str, str]]] = []

    def of(self, df: Columns) -> Self:
        return self

    def added_to(self, df: DataFrame) -> DataFrame:
        return df

    def check(self, df: Columns) -> None:
        """Accepts any table."""


SOURCES: Final = ("source", "station", "gateway", "receiver", "relay", "node", "kafka_partition")
"""Columns with these names tell the source of a copy, if the engine has no such column itself."""
FILE: Final = "_of_onefold_file"
"""The column with the file or source of a row in a check."""


class Untold(NamedTuple):
    """Something that an engine cannot know with these settings, and the setting that would help."""

    about: Literal["lost", "copies", "restarts"]
    what: str
    option: str = ""  # the setting's name; empty: no setting helps
    value: str = ""  # its value; COLUMN stands for the name of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The columns by which two rows are the same message."""

    names: tuple[str, ...]  # columns that are compared by value: the chain, the producer, the frame
    numbers: tuple[str, ...] = ()  # columns that are compared as whole numbers or times, whatever their type
    time: str | None = None
    expiry_ms: int = 0  # with a time: after this an id is new again

    @property
    def columns(self) -> list[str]:
        return [*self.names, *self.numbers]

    def number(self, df: DataFrame) -> list[Column]:
        """The numbers of each row as longs, equal where the judge treats them as equal."""
        times = [moment(df, name) for name in self.numbers]
        return [part for time in times for part in time if part is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The roles of the columns of judged rows, for audit, explain and figures."""

    key: tuple[str, ...] = ()  # names the chain, producer or device
    identity: Identity | None = None
    message: tuple[str, ...] = ()  # names the message within its key, for people: its number, its frame
    number: str | None = None
    """The column that missing ranges are of; if there are two, the first. None: nothing is known to be missing."""
    number_is_time: bool = False
    least: int | None = None  # the number at which every key begins; None: unknown
    order: str | None = None  # the order of judgement
    axis: str | None = None  # the column of the timeline
    axis_is_time: bool = True
    arrival: str | None = None  # the time by which lags are measured
    arrival_least: int | None = None  # numbers below this are not times; they only order rows
    no_arrival: str = "this engine knows of no time of arrival"  # why there is no arrival
    window_ms: int | None = None  # how long copies are recognised; None: always
    source: str | None = None  # the column with the source of a copy

    @property
    def lower(self) -> str:
        """The column with the lower end of a missing range, which was seen itself."""
        return RANGE_ENDS[0 if self.number_is_time else 1]

    @property
    def upper(self) -> str:
        """The column with the upper end of a missing range."""
        return RANGE_ENDS[2 if self.number_is_time else 3]

    @property
    def columns(self) -> list[str]:
        ids = [] if self.identity is None else self.identity.columns
        singles = [name for name in (self.number, self.axis, self.arrival) if name is not None]
        return list(dict.fromkeys([*self.key, *ids, *singles]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(ABC):
    """How messages are judged. The settings of an engine are its fields, named as in the [judge] table."""

    name: ClassVar[str]
    answers: ClassVar[Sequence[Answer]]  # by code
    timed: ClassVar[bool] = False  # whether judging needs the time at which the batch began
    knows_gaps: ClassVar[bool] = True  # whether it can know that something is missing
    tells_copies: ClassVar[bool] = False  # whether a check calls `copies`
    ordered_rows: ClassVar[bool] = True  # whether the rows of a bucket must be in the order of judgement

    columns: Named
    partitions: int | None = None  # how many tasks judge; None: by the size of the input
    rows_in_memory_max: int = host.ROWS_IN_MEMORY_MAX
    """How many rows a task sorts in memory; more are sorted on disk."""

    def __post_init__(self) -> None:
        for name in ("rows_in_memory_max", "partitions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})

    @classmethod
    @abstractmethod
    def configured(cls, judge: Judge, *, strategy: str, partitions: int | None) -> Self:
        """The engine of these settings."""

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns that name a chain, a producer, a device."""

    @property
    def reads(self) -> Named:
        """The columns that the source must have, before `shaped`."""
        return self.columns

    @property
    def reads_lines(self) -> bool:
        """Whether JSON is read as lines of text, which `shaped` parses."""
        return False

    def fitted(self, source: DataFrame) -> Self:
        """The same engine with the columns that this source has, in its spelling."""
        return replace(self, columns=self.columns.of(source))

    def shaped(self, source: DataFrame) -> DataFrame:
        """The messages of the source, one per row, with the columns of the engine."""
        return source

    def others(self, source: DataFrame) -> int:
        """How many rows of the source are no messages and are left out by `shaped`."""
        return 0

    @abstractmethod
    def integers(self, df: DataFrame) -> Integers:
        """The integers of a row that are needed to judge it."""

    @abstractmethod
    def judge_partition(self, parts: Iterator[KeyColumns]) -> Iterator[Codes]:
        """The codes of the rows of a partition of a table; runs in a task."""

    @abstractmethod
    def judge_bucket(self, rows: KeyColumns, bucket: Bucket, options: MemoryOptions, now_ms: int) -> Codes:
        """The codes of a bucket's rows, which are in the order of judgement if ``ordered_rows``; updates the bucket.

        ``now_ms``: when the batch began; 0 unless the engine is ``timed`` or ``idle_ms`` is set. Runs in a task.
        """

    def compacted(
        self, table: str, records: KeyRecords, figures: dict[str, int], options: MemoryOptions, now_ms: int
    ) -> KeyRecords:
        """The records of a bucket in the form to keep, when they are rewritten; runs in a task."""
        return records

    @abstractmethod
    def meaning(self, df: DataFrame, options: MemoryOptions) -> Meaning:
        """The meaning of a memory of these rows: whoever continues it must have the same."""

    def source_meaning(self) -> Meaning:
        """What else must stay the same from the first batch of a stream to the last: how its source is shaped."""
        return {}

    def step(self, options: MemoryOptions | None = None) -> Transform:
        """The step that adds ``verdict`` and ``reason`` to a table or a stream."""
        options = options or MemoryOptions()
        return lambda df: host.with_verdict(df, self, options)

    def stream(self, options: MemoryOptions) -> Transform:
        """The same step for the batches of a stream, in the form that a sink takes."""
        return self.step(options)

    def ordered(self, options: MemoryOptions) -> OrderedStep:
        """The step that judges a batch of a stream and returns the messages of each key in order."""
        raise Misuse(f"order_wait_ms is {options.ordered_wait_ms}, but only chains can be put in order")

    def note_rules(self, df: DataFrame) -> NoteRules | None:
        """How its tasks take notes while judging; None: they do not."""
        return None

    @abstractmethod
    def missing(self, firsts: DataFrame) -> DataFrame:
        """The missing ranges: the key, lower ends (seen; null: before all), upper ends."""

    def missing_messages(self, ranges: DataFrame) -> Column | None:
        """How many messages are in all missing ranges; None: unknown, because numbering has holes anyway."""
        return None

    def naming(self, rows: DataFrame) -> DataFrame:
        """A small part of a table's judged rows that contains every key."""
        return rows

    def named_gaps(self, rows: DataFrame, gaps: DataFrame) -> DataFrame:
        """The same as `missing`, from the ranges of notes or of a memory, joined with their keys (see `gaps`);
        ``rows`` has the types.
        """
        raise TypeError(f"{self.name} notes no missing ranges")

    def keys(self, rows: DataFrame, tally: Tally) -> int:
        """How many chains, producers or devices have a FIRST among judged rows."""
        firsts = rows.where(F.col(host.VERDICT) == "FIRST")
        return firsts.select(*(F.col(quoted(name)) for name in self.key)).distinct().count() if self.key else 0

    def extras(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """Further tables that a batch run publishes, by folder name, made from the judged rows."""
        return {}

    def copies(self, rows: DataFrame, tally: Tally) -> Mapping[str, Any]:
        """What a check reports about copies, if ``tells_copies``; the judged rows have a column `FILE`."""
        raise TypeError(f"{self.name} tells nothing of copies beyond the books")

    def cannot_tell(self, tally: Tally) -> Sequence[Untold]:
        """What these settings leave unknown, beyond what guarantees.md says of the engine."""
        return ()

    def doubts(self, rows: DataFrame, tally: Tally) -> Sequence[Untold]:
        """What else a check cannot know, judging by all columns of the rows."""
        return ()

    @abstractmethod
    def subject(self, rows: DataFrame) -> Subject:
        """The roles of the columns of judged rows."""


def named_like(kind: type[Any], judge: Judge) -> dict[str, Any]:
    """The settings named like the fields of this dataclass, so that an option is declared only once."""
    return {field.name: getattr(judge, field.name) for field in fields(kind) if hasattr(judge, field.name)}


ENGINES: Final = {
    "chains": "onefold.spark.chains.ChainsEngine",
    "lorawan": "onefold.spark.receptions.judge.LorawanEngine",
    "producers": "onefold.spark.producers.ProducersEngine",
    "ids": "onefold.spark.ids.IdsEngine",
}
"""Engines by name, imported on demand. If it is unknown how rows were judged, the first engine whose usual columns they
have is assumed."""


def engine_class(name: str) -> type[Engine]:
    module, _, kind = ENGINES[name].rpartition(".")
    return getattr(import_module(module), kind)  # type: ignore[no-any-return]


def usual_engines() -> Iterator[Engine]:
    """Each engine with its usual columns and settings."""
    for name in ENGINES:
        kind: Any = engine_class(name)
        yield kind()
