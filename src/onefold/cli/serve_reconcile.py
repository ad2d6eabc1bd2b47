"""``onefold serve reconcile``: a store that others reconcile theirs with; with --spark, a table instead of a store."""

from __future__ import annotations

import json as jsons
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import typer

from onefold.cli.check import names_of
from onefold.cli.diff import ReaderOption, table_at
from onefold.cli.options import AsJson, Host, NewStore, Port, TokenFile, file_of, read_token
from onefold.cli.output import people
from onefold.errors import Misuse
from onefold.reconcile.records import Records

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


def open_store(path: str, options: TableOptions, read_only: bool) -> Records:
    from onefold.reconcile.records import open_records

    options.refuse()
    if not file_of(path).exists() and read_only:
        raise Misuse(f"{file_of(path)}: there is no such store, and --read-only would leave a new one empty")
    return open_records(path, make=not read_only)


def open_table(path: str, options: TableOptions, of_stores: Mapping[str, bool]) -> Records:
    """The table as a store, its index up to date; `Misuse` if an option of stores was used."""
    if name := next((name for name, used in of_stores.items() if used), None):
        raise Misuse(f"{name} is not for --spark: a table is always read, and never written")
    from onefold.spark.peer.index import ROWS_MAX, TableIndex
    from onefold.spark.peer.naming import Naming
    from onefold.spark.peer.records import TableRecords
    from onefold.spark.session import session

    table = table_at(path, options.format, options.option)
    naming = Naming(columns=None if options.key is None else names_of(options.key), time=options.time)
    people.print("starting Spark ...", highlight=False)
    index = TableIndex(session(options.master), table, naming, folder=options.index)
    records = TableRecords(index, rows_max=options.rows_max or ROWS_MAX)
    people.print("bringing the index up to date ...", highlight=False)
    len(records)
    return records


IDLE_S: Final = 60.0
RECORD_BYTES_MAX: Final = 512 << 10


def reconcile(
    path: NewStore,
    host: Host = "127.0.0.1",
    port: Port = 7657,
    token_file: TokenFile = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Give records, and take none.")] = False,
    connections_max: Annotated[int, typer.Option(min=1, help="Connections at the same time.")] = 256,
    sessions_max: Annotated[int, typer.Option(min=1, help="Sessions at the same time.")] = 64,
    session_s: Annotated[
        float, typer.Option(min=1, help="Seconds a session may wait for its peer, in all, to find what differs.")
    ] = 600,
    work_s: Annotated[float, typer.Option(min=1, help="Seconds of CPU a session may take to find what differs.")] = 60,
    record_bytes_max: Annotated[int, typer.Option(min=1, help="Bytes of a record that is taken.")] = RECORD_BYTES_MAX,
    spark: Spark = False,
    format: Format = "auto",
    option: ReaderOption = None,
    key: Key = None,
    time: Time = None,
    index: Index = None,
    rows_max: RowsMax = None,
    master: Master = "local[*]",
    json: AsJson = False,
) -> None:
    """Let others find what they and a store lack of each other, and exchange it.

    They do so with `onefold reconcile STORE ws://HOST:PORT`, `onefold diff TABLE ws://HOST:PORT`, or as clients of
    NIP-77. Ctrl-C and SIGTERM stop it.
    """
    from onefold.net.http import check_host
    from onefold.reconcile.peer import ReconcileLimits
    from onefold.reconcile.server import ReconcileServer, ReconcileSettings

    limits = ReconcileLimits(
        connections_max=connections_max, sessions_max=sessions_max, look_silence_s_max=session_s, work_s_max=work_s,
        idle_s=max(IDLE_S, session_s) if spark else IDLE_S,  # a peer of a table may be one, and run a job meanwhile
        record_bytes_max=record_bytes_max,
    )  # fmt: skip
    writable = not read_only and not spark
    settings = ReconcileSettings(
        host=host, port=port, token=read_token(token_file), writable=writable, bodies=not spark, limits=limits
    )  # fmt: skip
    check_host(host, settings.token)  # before a file is made for a server that cannot be
    table = TableOptions(
        format=format, option=option, key=key, time=time, index=index, rows_max=rows_max, master=master
    )  # fmt: skip
    of_stores = {"--read-only": read_only, "--record-bytes-max": record_bytes_max != RECORD_BYTES_MAX}
    records = open_table(path, table, of_stores) if spark else open_store(path, table, read_only)
    try:
        size = len(records)
        server = ReconcileServer(records, settings)
    except BaseException:
        records.close()
        raise

    def say(url: str) -> None:
        url = url.replace("http", "ws", 1)  # what a client connects to; the pages beside it are at http://
        ways = "telling the ids of" if spark else f"giving{' and taking' * writable} the records of"
        people.print(f"{ways} {path} at {url}", markup=False, soft_wrap=True)
        if json:
            document = {"url": url, "store": path, "records": size, "writable": writable}
            print(jsons.dumps({**document, "token": settings.token is not None}), flush=True)

    server.run(say)
