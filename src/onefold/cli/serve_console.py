"""``onefold serve console``: a live page over running pipelines and servers."""

from __future__ import annotations

import json as jsons
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.cli.output import people
from onefold.cli.serve_desk import AsJson, Host, Port, TokenFile
from onefold.cli.token import read_token
from onefold.errors import BadInput, Misuse

if TYPE_CHECKING:
    from onefold.services.console.server import ConsoleServer
    from onefold.services.console.view import Watched

LIMIT = 100


def console(
    run: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="The folder of a run or a stream, there or not yet; can be given again."),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server, or a stream with --metrics: http://127.0.0.1:7654; again."),
    ] = None,
    server_token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that these servers want; all get it.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 7658,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Show running pipelines and servers in a browser: rates, open gaps, state, what was rejected, and reports.

    It only reads, and can be started and stopped at any time. Ctrl-C and SIGTERM stop it.
    """
    shown = opened_console(
        run or [], server or [], host=host, port=port, token=read_token(token_file), server_token=_of(server_token_file)
    )

    def say(url: str) -> None:
        people.print(f"console: {url}", markup=False, soft_wrap=True)
        if json:
            told = {"url": url, "runs": [str(each) for each in run or []], "servers": server or []}
            print(jsons.dumps({**told, "token": shown.settings.token is not None}), flush=True)

    shown.run(say)


def opened_console(
    runs: Sequence[Path], servers: Sequence[str], *, host: str = "127.0.0.1", port: int = 7658,
    token: str | None = None, server_token: str | None = None,
) -> ConsoleServer:  # fmt: skip
    """The server of a console: the page of `report`, the rows and the answers of `spark`, served by `services`."""
    from onefold.report.console.page import console_page, login_page
    from onefold.report.documents import FAR
    from onefold.services.console.app import Pages
    from onefold.services.console.folders import Folder
    from onefold.services.console.server import ConsoleServer, ConsoleSettings
    from onefold.services.console.servers import Server

    if not runs and not servers:
        raise Misuse("there is nothing to show: give --run DIR or --server URL")
    for folder in runs:
        if FAR.match(str(folder)) or folder.is_file():
            raise Misuse(f"{folder}: is not a folder of this machine", run=str(folder))
    if server_token is not None and not servers:
        raise Misuse("--server-token-file is given, but no --server")
    watched: list[Watched] = [
        *(Folder(folder, _rejected) for folder in runs),
        *(Server(url, server_token) for url in servers),
    ]
    settings = ConsoleSettings(host=host, port=port, token=token)
    pages = Pages(console=console_page(), login=login_page())
    return ConsoleServer(watched, pages, settings, _explain if find_spec("pyspark") else None)


def _rejected(folder: Path) -> list[tuple[str, str]]:
    if not find_spec("pyarrow"):
        return []
    from onefold.spark.reject_rows import reject_rows

    return reject_rows(folder)


def _explain(folder: Path, words: str) -> dict[str, Any]:
    from onefold.cli.explain import explained

    try:
        split = shlex.split(words)
    except ValueError as error:
        raise BadInput(f"words: {error}") from error
    return explained(str(folder), split, limit=LIMIT)


def _of(file: Path | None) -> str | None:
    """The token of a file, and of no variable: that one is our own."""
    return None if file is None else read_token(file)
