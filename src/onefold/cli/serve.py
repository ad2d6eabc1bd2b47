"""``onefold serve``: what runs until it is told to stop."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from onefold.cli.options import AsJson, Host, Port, TokenFile, make_folder, read_token
from onefold.cli.output import announce
from onefold.cli.serve_console import console
from onefold.cli.serve_desk import desk
from onefold.cli.serve_gateway import gateway
from onefold.cli.serve_reconcile import reconcile
from onefold.producers.records import JUMP_MAX

__all__ = ["console", "desk", "gateway", "ingest", "reconcile"]


def ingest(
    folder: Annotated[Path, Argument(help="Where the topics are kept; made if it is not there.")],
    host: Host = "127.0.0.1",
    port: Port = 7654,
    token_file: TokenFile = None,
    deduplicate: Annotated[bool, Option(help="Of new topics: store each message once.")] = True,
    memory: Annotated[
        Literal["highest", "gaps"],
        Option(help="Of new topics: remember the highest sequence of a producer, or also what is missing below."),
    ] = "highest",
    jump_max: Annotated[
        int, Option(min=0, help="Reject sequences further above their producer's highest; 0: none is too far.")
    ] = JUMP_MAX,
    create: Annotated[bool, Option(help="Make a topic when somebody publishes to it.")] = True,
    idle_ms: Annotated[
        int | None, Option(min=1, help="Forget producers not heard from for so long, down to a floor.")
    ] = None,
    retain_bytes: Annotated[int | None, Option(min=1, help="Keep about so much of a topic.")] = None,
    retain_ms: Annotated[int | None, Option(min=1, help="Keep messages for about so long.")] = None,
    snapshot_entries: Annotated[int, Option(min=1, help="Save what is remembered every so many.")] = 100_000,
    snapshot_ms: Annotated[int, Option(min=1, help="Save what is remembered at least so often.")] = 60_000,
    producers_max: Annotated[int, Option(min=1, help="Producers of a topic that are remembered.")] = 100_000,
    topics_max: Annotated[int, Option(min=1, help="Topics that clients can make.")] = 1_000,
    connections_max: Annotated[int, Option(min=1, help="Connections at the same time.")] = 1_000,
    message_bytes_max: Annotated[int, Option(min=1, help="Bytes of one message.")] = 1 << 20,
    json: AsJson = False,
) -> None:
    """Take messages over HTTP and websocket, and store each once.

    Ctrl-C and SIGTERM stop it: what is in hand is stored and answered. A kill loses nothing that was acknowledged.
    """
    from onefold.producers.server import IngestLimits, IngestServer, IngestSettings
    from onefold.producers.topic import Topics, TopicSettings

    settings = TopicSettings(
        deduplicate=deduplicate,
        memory=memory,
        producers_max=producers_max,
        jump_max=jump_max or None,
        idle_ms=idle_ms,
        snapshot_entries=snapshot_entries,
        snapshot_ms=snapshot_ms,
        retain_bytes=retain_bytes,
        retain_ms=retain_ms,
        message_bytes_max=message_bytes_max,
    )
    token = read_token(token_file)
    limits = IngestLimits(connections_max=connections_max)
    where = IngestSettings(host=host, port=port, token=token, create=create, limits=limits)
    topics = Topics(folder, settings, topics_max=topics_max)
    make_folder(folder)
    server = IngestServer(topics, where)

    about = {"folder": str(folder), "token": token is not None}
    server.run(lambda url: announce(f"taking messages for {folder} at {url}", {"url": url, **about}, json))
