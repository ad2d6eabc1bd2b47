"""``onefold serve console``: a live page over running pipelines and servers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option

from onefold.cli.options import AsJson, Host, Port, TokenFile, read_token
from onefold.cli.output import tell
from onefold.errors import BadInput, Misuse

if TYPE_CHECKING:
    from onefold.report.console.app import ConsoleServer
    from onefold.report.console.watch import Watched

ROWS_MAX: Final = 50
"""How many rejected rows are read; one of each reason is shown."""
COLUMNS_MAX: Final = 12
CELL_CHARS_MAX: Final = 60


def console(
    run: Annotated[
        list[Path] | None, Option(metavar="DIR", help="Output folder of a run or stream; repeatable.")
    ] = None,
    server: Annotated[
        list[str] | None,
        Option(metavar="URL", help="A server, or a stream with --metrics: http://127.0.0.1:7654; repeatable."),
    ] = None,
    server_token_file: Annotated[
        Path | None, Option(exists=True, dir_okay=False, help="File with the token for these servers.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 7658,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Show running pipelines and servers in a browser: rates, open gaps, memory, rejected rows, and reports.

    The console only reads. It can be started and stopped at any time, also before the pipelines. Ctrl-C and SIGTERM
    stop it.
    """
    opened = opened_console(
        run or [], server or [], host=host, port=port, token=read_token(token_file),
        server_token=None if server_token_file is None else read_token(server_token_file),  # not our own variable
    )  # fmt: skip

    about = {"runs": [str(each) for each in run or []], "servers": server or [], "token": opened.token is not None}
    opened.run(lambda url: tell(f"console: {url}", {"url": url, **about}, json, indent=None))


def opened_console(
    runs: Sequence[Path], servers: Sequence[str], *, host: str = "127.0.0.1", port: int = 7658,
    token: str | None = None, server_token: str | None = None,
) -> ConsoleServer:  # fmt: skip
    """The console's server, with rejected rows from Parquet files, and `explain` if Spark is installed."""
    from onefold.report.console.app import ConsoleServer
    from onefold.report.console.watch import Folder, WatchedServer
    from onefold.stores.addresses import is_far

    if not runs and not servers:
        raise Misuse("there is nothing to show: give --run DIR or --server URL")
    for folder in runs:
        if is_far(str(folder)) or folder.is_file():
            raise Misuse(f"{folder}: is not a folder of this machine", run=str(folder))
    if server_token is not None and not servers:
        raise Misuse("--server-token-file is given, but no --server")
    watched: list[Watched] = [
        *(Folder(folder, reject_rows) for folder in runs),
        *(WatchedServer(url, server_token) for url in servers),
    ]
    return ConsoleServer(watched, _explain if find_spec("pyspark") else None, host=host, port=port, token=token)


def _explain(folder: Path, words: str) -> dict[str, Any]:
    from onefold.cli.explain import explained

    try:
        split = shlex.split(words)
    except ValueError as error:
        raise BadInput(f"words: {error}") from error
    return explained(str(folder), split)


def reject_rows(folder: Path) -> list[tuple[str, str]]:
    """One row as text for each reason found; empty if the rows cannot be read."""
    if not find_spec("pyarrow"):
        return []
    import pyarrow as pa
    import pyarrow.dataset as ds

    marked = not (folder / "rejects").is_dir()  # then rejected rows are among the others
    samples: dict[str, str] = {}
    try:
        rows = ds.dataset(folder / ("messages" if marked else "rejects"), format="parquet")
        names = [name for name in rows.schema.names if name not in ("verdict", "reason")][:COLUMNS_MAX]
        head = rows.head(
            ROWS_MAX,
            columns=[*names, "reason"],
            filter=ds.field("verdict") == "REJECT" if marked else None,
            batch_size=ROWS_MAX,
            batch_readahead=1,
            fragment_readahead=1,
        )
        for row in head.to_pylist():
            reason = str(row.pop("reason"))
            cells = (f"{name} {'null' if cell is None else str(cell)[:CELL_CHARS_MAX]}" for name, cell in row.items())
            samples.setdefault(reason, ", ".join(cells))
    except (OSError, ValueError, OverflowError, pa.ArrowException):  # also a date that Python cannot represent
        return []
    return list(samples.items())
