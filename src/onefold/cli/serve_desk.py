"""``onefold serve desk``: requests in over HTTP, each handed on once."""

import json as jsons
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from onefold.cli.output import people
from onefold.cli.token import TOKEN, read_token
from onefold.errors import Misuse

VARIABLE = "With a password in it, better the variable: all users of a machine can read the words of a command."

Store: TypeAlias = Annotated[
    str,
    typer.Option(envvar="ONEFOLD_STORE", help=f"Where states are kept: sqlite:///b.db, postgresql://... {VARIABLE}"),
]
Transport: TypeAlias = Annotated[
    str, typer.Option(envvar="ONEFOLD_TRANSPORT", help="Where messages go: sqlite:///q.db, nats://host:4222.")
]
Tokens: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="ONEFOLD_TOKEN_STORE", help="Where tokens are kept, if not in the store: redis://host:6379/0."),
]
Plan: TypeAlias = Annotated[
    Literal["transactional", "parented", "checkpointed"] | None,
    typer.Option(help="By default transactional; with --tokens, parented."),
]
Queues: TypeAlias = Annotated[
    str | None, typer.Option(help="The queues that can be asked for, with commas between: orders,refunds. Else all.")
]
Name: TypeAlias = Annotated[str, typer.Option(help="Of the desk, and of the queue that answers come by.")]
Window: TypeAlias = Annotated[
    float, typer.Option(min=1, max=6 * 86_400, help="How long a request, and its answer, is kept.")
]
Wait: TypeAlias = Annotated[float, typer.Option(min=0, max=600, help="How long a client can wait for an answer.")]
Host: TypeAlias = Annotated[str, typer.Option(help="The address to listen on; more than loopback needs a token.")]
Port: TypeAlias = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any that is free.")]
TokenFile: TypeAlias = Annotated[
    Path | None, typer.Option(help=f"A file with the token that clients must send; or the variable {TOKEN}.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the address as one line of JSON on standard output, when it is ready.")
]


def check_lasting(**urls: str | None) -> None:
    """Refuse what would be gone, unseen by anybody else, when this process ends."""
    for name, url in urls.items():
        if url is not None and url.startswith("memory:"):
            raise Misuse(f"--{name} is {url}: nobody else would see it, and it ends with this process")


def desk(
    store: Store,
    transport: Transport,
    tokens: Tokens = None,
    plan: Plan = None,
    queues: Queues = None,
    name: Name = "desk",
    window_s: Window = 86_400,
    wait_s_max: Wait = 30,
    host: Host = "127.0.0.1",
    port: Port = 7656,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Take requests over HTTP, and hand each on once.

    PUT /orders/ID makes room for a request, POST fills and submits it, GET tells how it stands, DELETE forgets it; ID
    is a UUID of version 7. Each can be repeated without harm. Ctrl-C and SIGTERM stop it.
    """
    from onefold.services.outbox.desk import Desk
    from onefold.services.outbox.desk_server import DeskServer, DeskSettings

    check_lasting(store=store, transport=transport, tokens=tokens)
    allowed = None if queues is None else [queue.strip() for queue in queues.split(",")]
    settings = DeskSettings(host=host, port=port, token=read_token(token_file), wait_s_max=wait_s_max)
    taken = Desk(
        store=store, transport=transport, tokens=tokens, plan=plan, name=name, window_s=window_s, queues=allowed
    )  # fmt: skip
    try:
        server = DeskServer(taken, settings)
    except BaseException:
        taken.close()
        raise

    def say(url: str) -> None:
        for_what = "all queues" if allowed is None else ", ".join(allowed)
        people.print(f"taking requests for {for_what} at {url}", markup=False, soft_wrap=True)
        if json:
            told = {"url": url, "queues": allowed, "plan": taken.endpoint.plan, "token": settings.token is not None}
            print(jsons.dumps(told), flush=True)

    server.run(say)
