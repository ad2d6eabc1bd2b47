"""``onefold outbox feed``: the messages of a topic's log become messages with tokens."""

import signal
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from onefold.cli.output import AsJson, emit_json, people
from onefold.cli.serve_desk import Plan, Store, Tokens, Transport, check_lasting

if TYPE_CHECKING:
    from onefold.services.outbox.feed import Fed

Body: TypeAlias = Annotated[
    Literal["payload", "record"],
    typer.Option(help="What is sent: the payload, which must be JSON; or the record, with its offset and producer."),
]


def feed(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A folder of topics.")],
    topic: Annotated[str, typer.Argument(help="The topic whose messages are taken.")],
    to: Annotated[str, typer.Option(help="The queue that they go to.")],
    store: Store,
    transport: Transport,
    tokens: Tokens = None,
    plan: Plan = None,
    body: Body = "payload",
    name: Annotated[str, typer.Option(help="Whose marks these are; two logs of one name need two.")] = "feed",
    chunk_max: Annotated[int, typer.Option(min=1, max=1_000, help="Messages that are taken in one go.")] = 500,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more; Ctrl-C and SIGTERM end it.")] = False,
    json: AsJson = False,
) -> None:
    """Send each message of a topic to a queue, once, with a token; begin where the last feed ended.

    How far it came is kept in the store. It can be killed at any time and started again.
    """
    from onefold.services.outbox.endpoint import Endpoint
    from onefold.services.outbox.feed import Feed

    check_lasting(store=store, transport=transport, tokens=tokens)
    stop = threading.Event()
    with Endpoint(name, store=store, transport=transport, tokens=tokens, plan=plan) as endpoint:
        feeding = Feed(folder, topic, to, endpoint, chunk_max=chunk_max, whole=body == "record")
        before = _on_signals(stop)
        try:
            fed = feeding.run(follow=follow, stop=stop)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    _tell(fed, topic, to)
    if json:
        emit_json({"topic": topic, "to": to, **asdict(fed)})


def _on_signals(stop: threading.Event) -> dict[int, "signal._HANDLER"]:
    """A signal ends it after the chunk in hand."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}


def _tell(fed: "Fed", topic: str, to: str) -> None:
    resumed = f", {fed.resumed:,} of them of a chunk that was cut off before" if fed.resumed else ""
    people.print(
        f"{fed.sent + fed.resumed:,} messages of {topic} went to {to}{resumed}; taken up to offset {fed.mark}",
        markup=False,
        soft_wrap=True,
    )
