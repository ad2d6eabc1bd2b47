"""``onefold serve desk``: requests in over HTTP, each handed on once."""

from typing import Annotated

from typer import Option

from onefold.cli.options import AsJson, Host, Plan, Port, Store, TokenFile, Tokens, Transport, check_lasting, read_token
from onefold.cli.output import announce


def desk(
    store: Store,
    transport: Transport,
    tokens: Tokens = None,
    plan: Plan = None,
    queues: Annotated[
        str | None, Option(help="The queues that can be asked for, with commas between: orders,refunds. Else all.")
    ] = None,
    name: Annotated[str, Option(help="Of the desk, and of the queue that answers come by.")] = "desk",
    window_s: Annotated[
        float, Option(min=1, max=6 * 86_400, help="How long a request, and its answer, is kept.")
    ] = 86_400,
    wait_s_max: Annotated[float, Option(min=0, max=600, help="How long a client can wait for an answer.")] = 30,
    host: Host = "127.0.0.1",
    port: Port = 7656,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Take requests over HTTP, and hand each on once.

    PUT /orders/ID makes room for a request, POST fills and submits it, GET tells how it stands, DELETE forgets it; ID
    is a UUID of version 7. Each can be repeated without harm. Ctrl-C and SIGTERM stop it.
    """
    from onefold.outbox.desk import Desk, DeskServer, DeskSettings

    check_lasting(store=store, transport=transport, tokens=tokens)
    allowed = None if queues is None else [queue.strip() for queue in queues.split(",")]
    settings = DeskSettings(host=host, port=port, token=read_token(token_file), wait_s_max=wait_s_max)
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
    server.run(lambda url: announce(f"taking requests for {for_what} at {url}", {"url": url, **about}, json))
