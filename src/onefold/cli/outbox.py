"""``onefold outbox``: feeds, outbox entries that are not finished, and the tables."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Literal, TypeAlias

from typer import Argument, Option

from onefold.cli.options import MaybeTransport, Plan, Store, Tokens, Transport, age, check_lasting, opened
from onefold.cli.output import AsJson, emit_json, people, tell
from onefold.cli.tokens import LOOKED_MAX, entry_document, letter_document, letters, sends
from onefold.clock import wall_ms
from onefold.net.process import stopped_by_signals
from onefold.outbox.endpoint import Endpoint
from onefold.outbox.feed import Feed, FeedRecord
from onefold.outbox.plans import check_name
from onefold.outbox.ports import SCHEMA_VERSION, open_local, schema_at
from onefold.outbox.runner import World
from onefold.outbox.worker import recover_stores
from onefold.producers.documents import record_document
from onefold.producers.log.reader import LogReader
from onefold.producers.records import MESSAGES
from onefold.producers.topic import topic_folder
from onefold.report.text import foreign, table
from onefold.stores.addresses import masked

Of: TypeAlias = Annotated[str | None, Option("--endpoint", help="Only entries of this endpoint.")]


class TopicLog:
    """The log of a topic, as a feed reads it; ``whole``: a message's body is the whole record, with offset, time,
    producer, sequence and payload."""

    def __init__(self, folder: Path, topic: str, *, whole: bool = False) -> None:
        self.name = topic
        self._reader = LogReader(topic_folder(folder, topic))
        self._whole = whole

    @property
    def start(self) -> int:
        return self._reader.start

    @property
    def end(self) -> int:
        return self._reader.end

    def read(self, start: int, end: int) -> Iterator[FeedRecord]:
        for record in self._reader.read(start, end):
            is_message = record.kind in MESSAGES
            document = record_document(record) if self._whole and is_message else None
            yield FeedRecord(record.offset, record.payload, is_message, document)


def feed(
    folder: Annotated[Path, Argument(exists=True, file_okay=False, help="A folder of topics.")],
    topic: Annotated[str, Argument(help="The topic to read.")],
    to: Annotated[str, Option(help="The queue to send to.")],
    store: Store,
    transport: Transport,
    tokens: Tokens = None,
    plan: Plan = None,
    body: Annotated[
        Literal["payload", "record"],
        Option(help="What to send: the payload, which must be JSON, or the whole record, with offset and producer."),
    ] = "payload",
    name: Annotated[
        str, Option(help="The name under which the store keeps the feed's position; feeds of two logs need two names.")
    ] = "feed",
    chunk_max: Annotated[int, Option(min=1, max=1_000, help="Messages per transaction.")] = 500,
    follow: Annotated[bool, Option("--follow", help="Wait for more messages, until Ctrl-C or SIGTERM.")] = False,
    json: AsJson = False,
) -> None:
    """Send each message of a topic to a queue, once, with a token; start where the last feed stopped.

    The position is kept in the store: the feed can be killed at any time and started again.
    """
    check_lasting(store=store, transport=transport, tokens=tokens)
    stop = threading.Event()
    with Endpoint(name, store=store, transport=transport, tokens=tokens, plan=plan) as endpoint:
        feeding = Feed(TopicLog(folder, topic, whole=body == "record"), to, endpoint, chunk_max=chunk_max)
        with stopped_by_signals(stop):  # after the chunk in hand
            fed = feeding.run(follow=follow, stop=stop)
    resumed = f", {fed.resumed:,} of them from a chunk that was interrupted before" if fed.resumed else ""
    line = f"{fed.sent + fed.resumed:,} messages of {topic} sent to {to}{resumed}; taken up to offset {fed.mark}"
    tell(line, {"topic": topic, "to": to, **asdict(fed)}, json)


def ls(
    store: Store,
    transport: MaybeTransport = None,
    endpoint: Of = None,
    older_than_s: Annotated[
        float, Option(min=0, help="Minimum age in seconds: a worker is probably still finishing younger entries.")
    ] = 0,
    limit: Annotated[int, Option(min=1, max=LOOKED_MAX, help="How many to show of each kind.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Show outbox entries, oldest first; with --transport, also dead letters.

    An entry exists while a worker finishes a message. If that worker dies, the entry stays until the next delivery of
    its message, a consumer's pump or `onefold outbox recover` finishes it.
    """
    if endpoint is not None:
        check_name(endpoint, "endpoint")
    now = wall_ms()
    with opened(store, None, transport) as stores:
        assert stores.entities is not None
        before_ms = now - round(older_than_s * 1000) + 1
        entries = stores.entities.stranded(before_ms, limit, endpoint, after_ms=now)
        dead = None if stores.queue is None else letters(stores.queue)[:limit]
    document = {"entries": [entry_document(each, now) for each in entries]}
    entry_rows = table("entity", "message or mark", ">age", "has still to send")
    for each in entries:
        entry_rows.add_row(foreign(each.key), foreign(each.name), age(now - each.at_ms), foreign(sends(each.entry)))
    parts = [(entry_rows, "in outboxes")]
    if dead is not None:
        document["dead_letters"] = [letter_document(each, now) for each in dead]
        dead_rows = table("queue", "token", ">age", "why")
        for letter in dead:
            buried = letter.buried
            why = foreign(buried.head, 300)
            dead_rows.add_row(foreign(buried.queue), foreign(letter.token or "-"), age(now - buried.at_ms), why)
        parts.append((dead_rows, "set aside as dead letters"))
    if as_json:
        emit_json(document)
    for rows, words in parts:
        if rows.row_count:
            people.print(rows)
        people.lines(f"{rows.row_count:,}{' or more' * (rows.row_count == limit)} {words}")


def recover(
    store: Store,
    transport: Transport,
    tokens: Tokens = None,
    endpoint: Of = None,
    older_than_s: Annotated[
        float, Option(min=0, help="Minimum age in seconds: a worker is probably still finishing younger entries.")
    ] = 60,
    as_json: AsJson = False,
) -> int:
    """Finish outbox entries: send their messages, once, and remove tokens that no message uses.

    Consumers do the same from time to time. Safe at any time, also while they run. Exit code 1 if another process was
    at an entry: that process finishes it, or the next call does.
    """
    if endpoint is not None:
        check_name(endpoint, "endpoint")
    with opened(store, tokens, transport) as stores:
        assert stores.entities is not None
        assert stores.queue is not None
        world = World(stores.entities, stores.tokens, stores.queue)
        done = recover_stores(world, wall_ms(), older_than_s, endpoint)
    rest = f"{done.conflicts:,} left to another process, {done.swept:,} useless tokens removed"
    document = {name: count for name, count in asdict(done).items() if name != "purged"}
    tell(f"{done.finished:,} finished, {rest}", document, as_json)
    return 1 if done.conflicts else 0


def migrate(
    store: Annotated[str, Argument(help="The database: sqlite:///file.db, postgresql://user@host/database.")],
    sql: Annotated[bool, Option("--sql", help="Print the SQL statements instead; do not connect.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create or upgrade the tables of an outbox. Opening a store does the same, if it has the rights.

    Every statement is idempotent. The tables have a version: an older onefold refuses tables of a newer one.
    """
    statements = schema_at(store)
    if sql:
        text = [f"{dedent(statement).strip()};" for statement in statements]
        emit_json({"version": SCHEMA_VERSION, "statements": text}) if as_json else print("\n".join(text))
        return
    with closing(open_local(store)):
        line = f"the tables at {masked(store)} have version {SCHEMA_VERSION}"
        tell(line, {"version": SCHEMA_VERSION}, as_json)
