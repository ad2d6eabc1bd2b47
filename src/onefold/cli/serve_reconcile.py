"""``onefold serve reconcile``: a store that others reconcile theirs with."""

import json as jsons
from typing import Annotated, Final

import typer

from onefold.cli.diff import ReaderOption
from onefold.cli.output import people
from onefold.cli.record_stores import NewStore, file_of
from onefold.cli.serve_desk import AsJson, Host, Port, TokenFile
from onefold.cli.serve_reconcile_spark import (
    Format,
    Index,
    Key,
    Master,
    RowsMax,
    Spark,
    TableOptions,
    Time,
    open_table,
)
from onefold.cli.token import read_token
from onefold.errors import Misuse
from onefold.ports.records import Records

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
    from onefold.services.reconciler.limits import ReconcileLimits
    from onefold.services.reconciler.server import ReconcileServer, ReconcileSettings
    from onefold.services.serving import check_host

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
    if spark:
        of_stores = {"--read-only": read_only, "--record-bytes-max": record_bytes_max != RECORD_BYTES_MAX}
        records = open_table(path, table, of_stores)
    else:
        table.refuse()
        records = _open_store(path, read_only)
    try:
        held = len(records)
        server = ReconcileServer(records, settings)
    except BaseException:
        records.close()
        raise

    def say(url: str) -> None:
        url = url.replace("http", "ws", 1)  # what a client connects to; the pages beside it are at http://
        ways = "telling the ids of" if spark else f"giving{' and taking' * writable} the records of"
        people.print(f"{ways} {path} at {url}", markup=False, soft_wrap=True)
        if json:
            told = {"url": url, "store": path, "records": held, "writable": writable}
            print(jsons.dumps({**told, "token": settings.token is not None}), flush=True)

    server.run(say)


def _open_store(path: str, read_only: bool) -> Records:
    from onefold.stores.records import open_records

    if not file_of(path).exists() and read_only:
        raise Misuse(f"{file_of(path)}: there is no such store, and --read-only would leave a new one empty")
    return open_records(path, make=not read_only)
