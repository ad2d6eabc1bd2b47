"""``onefold serve``: what runs until it is told to stop."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from onefold.cli import options
from onefold.cli.output import tell
from onefold.cli.serve_console import console
from onefold.cli.serve_gateway import gateway
from onefold.cli.serve_reconcile import reconcile
from onefold.producers.records import JUMP_MAX

__all__ = ["console", "desk", "gateway", "ingest", "reconcile"]


def ingest(
    folder: Annotated[Path, Argument(help="Where the topics are kept; made if it is not there.")],
    host: options.Host = "127.0.0.1",
    port: options.Port = 7654,
    token_file: options.TokenFile = None,
    deduplicate: Annotated[bool, Option(help="Of new topics: store each message once.")] = True,
    memory: Annotated[
        Literal["highest", "gaps"],
        Option(help="Of new topics: remember the highest sequence of a producer, or also what is missing below."),
    ] = "highest",
    jump_max: Annotated[int, Option(min=0, help="Reject sequences that jump further ahead; 0: no limit.")] = JUMP_MAX,
    create: Annotated[bool, Option(help="Make a topic when somebody publishes to it.")] = True,
    idle_ms: Annotated[int | None, Option(min=1, help="Forget producers silent for so long, down to a floor.")] = None,
    retain_bytes: options.RetainBytes = None,
    retain_ms: options.RetainMs = None,
    snapshot_entries: Annotated[int, Option(min=1, help="Save what is remembered every so many.")] = 100_000,
    snapshot_ms: Annotated[int, Option(min=1, help="Save what is remembered at least so often.")] = 60_000,
    producers_max: Annotated[int, Option(min=1, help="Producers of a topic that are remembered.")] = 100_000,
    topics_max: Annotated[int, Option(min=1, help="Topics that clients can make.")] = 1_000,
    connections_max: options.Connections = 1_000,
    message_bytes_max: Annotated[int, Option(min=1, help="Bytes of one message.")] = 1 << 20,
    json: options.AsJson = False,
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
    token = options.read_token(token_file)
    limits = IngestLimits(connections_max=connections_max)
    where = IngestSettings(host=host, port=port, token=token, create=create, limits=limits)
    topics = Topics(folder, settings, topics_max=topics_max)
    options.make_folder(folder)
    server = IngestServer(topics, where)

    about = {"folder": str(folder), "token": token is not None}
    server.run(lambda url: tell(f"taking messages for {folder} at {url}", {"url": url, **about}, json, indent=None))


def desk(
    store: options.Store,
    transport: options.Transport,
    tokens: options.Tokens = None,
    plan: options.Plan = None,
    queues: Annotated[str | None, Option(help="The queues that can be asked for: orders,refunds. Else all.")] = None,
    name: Annotated[str, Option(help="Of the desk, and of the queue that answers come by.")] = "desk",
    window_s: Annotated[float, Option(min=1, max=6 * 86_400, help="How long requests and answers are kept.")] = 86_400,
    wait_s_max: Annotated[float, Option(min=0, max=600, help="How long a client can wait for an answer.")] = 30,
    host: options.Host = "127.0.0.1",
    port: options.Port = 7656,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """Take requests over HTTP, and hand each on once.

    PUT /orders/ID makes room for a request, POST fills and submits it, GET tells how it stands, DELETE forgets it; ID
    is a UUID of version 7. Each can be repeated without harm. Ctrl-C and SIGTERM stop it.
    """
    from onefold.outbox.desk import Desk, DeskServer, DeskSettings

    options.check_lasting(store=store, transport=transport, tokens=tokens)
    allowed = None if queues is None else [queue.strip() for queue in queues.split(",")]
    settings = DeskSettings(host=host, port=port, token=options.read_token(token_file), wait_s_max=wait_s_max)
    requests = Desk(
        store=store, transport=transport, tokens=tokens, plan=plan, name=name, window_s=window_s, queues=allowed
    )  # fmt: skip
    try:
        server = DeskServer(requests, settings)
    except BaseException:
        requests.close()
        raise

    for_what = "all queues" if allowed is None else ", ".join(allowed)
    about = {"queues": allowed, "plan": requests.endpoint.plan, "token": settings.token is not None}
    server.run(lambda url: tell(f"taking requests for {for_what} at {url}", {"url": url, **about}, json, indent=None))
