"""``onefold serve reconcile --spark TABLE``: the options of a table, and the table where a store is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from onefold.cli.check import names_of
from onefold.cli.diff import table_at
from onefold.cli.output import people
from onefold.errors import Misuse

if TYPE_CHECKING:
    from onefold.ports.records import Records

Spark: TypeAlias = Annotated[
    bool, typer.Option("--spark", help="STORE is a table that Spark can read; its rows are records without bodies.")
]
Format: TypeAlias = Annotated[
    str, typer.Option(help='With --spark: "parquet", "json", ...; "auto": by the ending of the names.')
]
Key: TypeAlias = Annotated[
    str | None, typer.Option(help="With --spark: the columns that ids are made of, with commas. Without: all.")
]
Time: TypeAlias = Annotated[
    str | None, typer.Option(help="With --spark: the column that records are sorted by. Without: by their ids.")
]
Index: TypeAlias = Annotated[
    str | None, typer.Option(help="With --spark: where the index is kept. Without: beside it: .TABLE.onefold-index.")
]
RowsMax: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="With --spark: rows that a session may read, 72 bytes each; else a million.")
]
Master: TypeAlias = Annotated[str, typer.Option(help="With --spark: where Spark runs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How a table is read and its rows are known."""

    format: str = "auto"
    option: list[str] | None = None
    key: str | None = None
    time: str | None = None
    index: str | None = None
    rows_max: int | None = None
    master: str = "local[*]"

    def refuse(self) -> None:
        """`Misuse` if one of them was given, though there is no table."""
        for name, usual in ((field, TableOptions.__dataclass_fields__[field].default) for field in self.__slots__):
            if getattr(self, name) != usual:
                raise Misuse(f"--{name.replace('_', '-')} is for tables: it needs --spark")


def open_table(path: str, options: TableOptions, refused: Mapping[str, bool]) -> Records:
    """The table as a store, its index up to date; ``refused`` are options that would have no effect."""
    if given := next((name for name, there in refused.items() if there), None):
        raise Misuse(f"{given} is not for --spark: a table is always read, and never written")
    from onefold.spark.peer_index import TableIndex
    from onefold.spark.peer_items import ROWS_MAX
    from onefold.spark.peer_naming import Naming
    from onefold.spark.peer_records import TableRecords
    from onefold.spark.session import session

    table = table_at(path, options.format, options.option)
    naming = Naming(columns=None if options.key is None else names_of(options.key), time=options.time)
    people.print("starting Spark ...", highlight=False)
    spark: Any = session(options.master)
    records = TableRecords(
        TableIndex(spark, table, naming, folder=options.index), rows_max=options.rows_max or ROWS_MAX
    )
    people.print("bringing the index up to date ...", highlight=False)
    len(records)
    return records
