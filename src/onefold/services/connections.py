"""How a producer reaches its topic: a log in this process, or a server. Both look the same to it.

A connection is one session (a name and an epoch). Batches are sent in order and answered in order; up to
``outstanding_max`` may be on their way. Any error means that this connection is done with: what was not answered may or
may not be stored, and is sent again over the next one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from onefold.decoding import read_json
from onefold.errors import BadInput, Busy, Misuse, StoreFailed
from onefold.links import batch
from onefold.links.batch import Status
from onefold.services.requests import Message, Receipt, Session
from onefold.services.topic import Topic
from onefold.services.topics import Topics, topic_folder

OUTSTANDING_MAX: Final = 16
"""As many requests as a server lets a connection have on their way; Kafka's producers have 5, and keep order so."""
BATCH_MESSAGES_MAX: Final = 1_000
"""Even where more are allowed: a part of what waits should be on its way while the rest is being packed."""
BATCH_BYTES_MAX: Final = 1 << 20
"""Kafka's producers allow as much for a request."""
OPEN_S: Final = 10.0
"""For a connection to come about; websockets has as much."""
HEAD_BYTES: Final = 256
"""Of a request on the wire, its name with it; at least."""
MESSAGE_BYTES: Final = 12
"""Of a message on the wire, besides its payload."""


class Limits(NamedTuple):
    """What may be sent at once."""

    message_bytes_max: int
    batch_messages_max: int
    batch_bytes_max: int
    outstanding_max: int


class Connection(Protocol):
    """One session with a topic."""

    session: Session
    limits: Limits

    def send(self, messages: Sequence[Message]) -> None:
        """Put a batch on its way."""
        ...

    def receive(self) -> list[Receipt]:
        """What became of the oldest batch that is on its way."""
        ...

    def close(self) -> None:
        """Let go of it; never raises."""
        ...


Connect: TypeAlias = Callable[[str | None], Connection]
"""Open a connection under this name; None: one that nobody has is given out."""


class Embedded:
    """A session with a topic of this process: one batch at a time, which is one group of the log."""

    def __init__(self, topic: Topic, name: str | None) -> None:
        self.session = topic.connect(name)
        self.limits = Limits(topic.settings.message_bytes_max, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX, 1)
        self._topic = topic
        self._waiting: Sequence[Message] = ()

    def send(self, messages: Sequence[Message]) -> None:
        """Keep the batch: it is judged and stored when its receipts are asked for."""
        self._waiting = messages

    def receive(self) -> list[Receipt]:
        """Publish the batch."""
        return self._topic.publish(self.session.name, self._waiting, self.session.epoch)

    def close(self) -> None:
        """Nothing: the topic goes on."""


class Remote:
    """A session with a topic of a server, over a websocket."""

    def __init__(self, url: str, token: str | None, answer_s: float) -> None:
        from onefold.links.websocket import WebSocket  # an extra: who embeds the log does without

        self._socket = WebSocket(url, token=token, open_s=min(OPEN_S, answer_s), answer_s=answer_s)
        self._expected: deque[tuple[int, int]] = deque()
        self._request = 0
        try:
            self.session, self.limits = _greeted(url, self._socket.greeting)
        except BaseException:
            self.close()
            raise

    def send(self, messages: Sequence[Message]) -> None:
        """Put a batch on its way."""
        request, self._request = self._request, (self._request + 1) & 0xFFFF_FFFF
        self._expected.append((request, len(messages)))
        self._socket.send(batch.encode_request(request, self.session.name, self.session.epoch, messages))

    def receive(self) -> list[Receipt]:
        """The reply to the oldest batch; it must be the one to it."""
        request, count = self._expected.popleft()
        reply = batch.decode_reply(self._socket.receive(), messages_max=count)
        if reply.request != request:
            raise BadInput(f"{self._socket.url}: a reply to request {reply.request}, expected {request}")
        if reply.status == Status.REFUSED:
            raise Misuse(f"{self._socket.url}: refused: {reply.text}")
        if reply.status != Status.OK and not reply.receipts:
            raise (Busy if reply.status == Status.BUSY else StoreFailed)(f"{self._socket.url}: {reply.text or 'busy'}")
        if len(reply.receipts) != count:
            raise BadInput(f"{self._socket.url}: {len(reply.receipts)} receipts for {count} messages")
        return [Receipt(*receipt) for receipt in reply.receipts]

    def close(self) -> None:
        """Close the websocket."""
        self._socket.close()


def _greeted(url: str, greeting: str | bytes) -> tuple[Session, Limits]:
    try:
        told = read_json(greeting, "the greeting")
        session = Session(str(told["name"]), *(int(told[key]) for key in ("epoch", "last_sequence_id", "floor")))
        messages_max = min(int(told["batch_messages_max"]), BATCH_MESSAGES_MAX)
        bytes_max = min(int(told["batch_bytes_max"]), BATCH_BYTES_MAX)
        return session, Limits(int(told["message_bytes_max"]), messages_max, bytes_max, OUTSTANDING_MAX)
    except (BadInput, ValueError, KeyError, TypeError, OverflowError) as error:
        raise Misuse(f"{url}: not an ingest server: it greets with {greeting[:100]!r}", url=url) from error


class Way:
    """The way to a topic: opens connections, and owns what it had to open for that."""

    def __init__(self, topic: str, at: str | Path | Topics, token: str | None, answer_s: float) -> None:
        """``at``: the address of a server, a folder of topics, or one that is open already."""
        self._topic, self._at, self._token, self._answer_s = topic, at, token, answer_s
        self._url = isinstance(at, str) and "://" in at
        self._own: Topics | None = None
        if isinstance(at, Topics):
            topic_folder(at.root, topic)
        elif self._url:
            self._address(None)
        else:
            topic_folder(Path(at), topic)

    def __str__(self) -> str:
        return f"topic {self._topic!r} at {self._at.root if isinstance(self._at, Topics) else self._at}"

    def _address(self, name: str | None) -> str:
        from onefold.links.websocket import topic_url

        return topic_url(str(self._at), self._topic, name)

    def connect(self, name: str | None) -> Connection:
        """Open a connection under this name; None: one that nobody has is given out."""
        if self._url:
            return Remote(self._address(name), self._token, self._answer_s)
        if isinstance(self._at, Topics):
            return Embedded(self._at.topic(self._topic), name)
        if self._own is None:
            self._own = Topics(Path(self._at))
        return Embedded(self._own.topic(self._topic), name)

    def close(self) -> None:
        """Close the folder, if it was opened here."""
        if self._own is not None:
            self._own.close()
