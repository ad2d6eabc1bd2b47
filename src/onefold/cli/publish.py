"""``onefold publish``: publish the lines of a file to a topic, each once, also if it is killed and restarted."""

import threading
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from onefold.cli.options import read_token
from onefold.cli.output import AsJson, fail, people, progress, tell
from onefold.producers.client import Producer
from onefold.producers.publisher import FilePublisher, producer_name, state_file
from onefold.text import without_logins


def publish(
    file: Annotated[Path, Argument(exists=True, dir_okay=False, help="The file; each line is a message.")],
    topic: Annotated[str, Option(help="The topic; made if it does not exist.")],
    to: Annotated[str, Option(help="A folder of topics, or a server: http://HOST:PORT.")] = "./onefold-log",
    name: Annotated[str | None, Option(help='The producer\'s name; default "file:" and the absolute path.')] = None,
    follow: Annotated[bool, Option("--follow", help="Wait for the file to grow; stop with Ctrl-C.")] = False,
    token_file: Annotated[
        Path | None, Option(exists=True, dir_okay=False, help="A file with the server's token.")
    ] = None,
    retry_s: Annotated[
        float, Option(min=0, help='Seconds to retry while the server is unreachable; "inf": for ever.')
    ] = 60,
    state: Annotated[
        Path | None,
        Option(dir_okay=False, help="File for the digest of what was read; default in ~/.local/state/onefold."),
    ] = None,
    json: AsJson = False,
) -> int:
    """Publish the lines of a file to a topic, each once.

    The topic remembers how far the file got: after a kill, run the same command again to continue. Exit 2 if the file
    is not the one that was published before, 3 if the server could not be reached in time.
    """
    token = None if token_file is None else read_token(token_file)
    publisher = None
    name = name or producer_name(file)
    keep = state or state_file(to, topic, name)
    try:
        with (
            Producer(topic, at=to, name=name, token=token, retry_s=retry_s) as producer,
            progress(people, "connecting", spark=False) as show,
        ):

            def show_share(publisher: FilePublisher) -> None:
                share = min(100, 100 * publisher.answered // max(1, publisher.size))
                show(f"{publisher.stored:,} lines stored, {share} % of {publisher.size:,} bytes")

            publisher = FilePublisher(file, producer, keep=keep, tell=show_share)
            publisher.run(threading.Event().wait if follow else None)
    except KeyboardInterrupt:
        stored = 0 if publisher is None else publisher.stored
        return fail(f"interrupted: {stored:,} lines known to be stored; starting it again goes on", 130)
    route = {"file": str(file), "topic": topic, "to": without_logins(to), "name": producer.name}
    figures = {key: getattr(publisher, key) for key in ("stored", "repeats", "resumed_at")}
    before = "none was there before"
    if publisher.resumed_at is not None:
        before = f"those up to byte {publisher.resumed_at:,} were there before"
        before += f" ({publisher.repeats:,} sent again, and not stored twice)"
    tell(f"{publisher.stored:,} lines stored; {before}", route | figures | {"end": publisher.answered}, json)
    return 0
