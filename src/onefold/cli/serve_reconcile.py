"""``onefold serve reconcile``: a store that others reconcile theirs with; with --spark, a table instead of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from onefold.cli import options
from onefold.cli.check import names_of
from onefold.cli.diff import table_at
from onefold.cli.output import people, tell
from onefold.errors import Misuse
from onefold.reconcile.records import Records, open_records

if TYPE_CHECKING:
    from onefold.spark.diff_files import DiffTable

IDLE_S: Final = 60.0
RECORD_BYTES_MAX: Final = 512 << 10
MASTER: Final = "local[*]"


def reconcile(
    path: options.NewStore,
    host: options.Host = "127.0.0.1",
    port: options.Port = 7657,
    token_file: options.TokenFile = None,
    read_only: Annotated[bool, Option("--read-only", help="Give records, and take none.")] = False,
    connections_max: options.Connections = 256,
    sessions_max: Annotated[int, Option(min=1, help="Sessions at the same time.")] = 64,
    session_s: Annotated[float, Option(min=1, help="Seconds a session may wait for its peer, in all.")] = 600,
    work_s: Annotated[float, Option(min=1, help="Seconds of CPU a session may take to find what differs.")] = 60,
    record_bytes_max: Annotated[int, Option(min=1, help="Bytes of a record that is taken.")] = RECORD_BYTES_MAX,
    spark: Annotated[bool, Option("--spark", help="STORE is a table; its rows are records without bodies.")] = False,
    format: options.Format = "auto",
    option: options.ReaderOption = None,
    key: Annotated[str | None, Option(help="The columns that ids are made of, with commas. Without: all.")] = None,
    time: Annotated[str | None, Option(help="The column that records are sorted by. Without: by their ids.")] = None,
    index: Annotated[
        str | None, Option(help="Where its index is kept. Without: .TABLE.onefold-index beside it.")
    ] = None,
    rows_max: Annotated[
        int | None, Option(min=1, help="Rows, of 72 bytes, a session may read; else a million.")
    ] = None,
    master: Annotated[str, Option(help="Where Spark runs.")] = MASTER,
    json: options.AsJson = False,
) -> None:
    """Let others find what they and a store lack of each other, and exchange it.

    They do so with `onefold reconcile STORE ws://HOST:PORT`, `onefold diff TABLE ws://HOST:PORT`, or as clients of
    NIP-77. With --spark the store is a table that Spark can read; the options from --format on are for tables. Ctrl-C
    and SIGTERM stop it.
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
        host=host, port=port, token=options.read_token(token_file), writable=writable, bodies=not spark, limits=limits
    )  # fmt: skip
    check_host(host, settings.token)  # before a file is made for a server that cannot be
    if spark:
        of_stores = {"--read-only": read_only, "--record-bytes-max": record_bytes_max != RECORD_BYTES_MAX}
        options.refuse(of_stores, "is not for --spark: a table is always read, and never written")
        records = _open_table(table_at(path, format, option), key, time, index, rows_max, master)
    else:
        names = {"--option": option, "--key": key, "--time": time, "--index": index, "--rows-max": rows_max}
        of_tables = {"--format": format != "auto", **names, "--master": master != MASTER}
        options.refuse(of_tables, "is for tables: it needs --spark")
        records = _open_store(path, read_only)
    try:
        size = len(records)
        server = ReconcileServer(records, settings)
    except BaseException:
        records.close()
        raise

    ways = "telling the ids of" if spark else f"giving{' and taking' * writable} the records of"
    about = {"store": path, "records": size, "writable": writable, "token": settings.token is not None}

    def say(url: str) -> None:
        url = url.replace("http", "ws", 1)  # what a client connects to; the pages beside it are at http://
        tell(f"{ways} {path} at {url}", {"url": url, **about}, json, indent=None)

    server.run(say)


def _open_store(path: str, read_only: bool) -> Records:
    file = options.file_of(path)  # which refuses what is no file
    if read_only and not file.exists():
        raise Misuse(f"{file}: there is no such store, and --read-only would leave a new one empty")
    return open_records(path, make=not read_only)


def _open_table(
    table: DiffTable, key: str | None, time: str | None, folder: str | None, rows_max: int | None, master: str
) -> Records:
    """The table as a store, its index up to date."""
    from onefold.spark.peer.index import ROWS_MAX, TableIndex
    from onefold.spark.peer.naming import Naming
    from onefold.spark.peer.records import TableRecords
    from onefold.spark.session import session

    naming = Naming(columns=None if key is None else names_of(key), time=time)
    people.print("starting Spark ...")
    records = TableRecords(TableIndex(session(master), table, naming, folder=folder), rows_max=rows_max or ROWS_MAX)
    people.print("bringing the index up to date ...")
    len(records)
    return records
