"""A websocket client for our servers: requests and replies as bytes, in order; an ingest server greets first.

The errors tell the caller whether to retry (the first two):

    ConnectionError         the connection was lost or not made: connect and send again. `ConnectionRefusedError`: the
                            server certainly did not see this connection
    Busy                    the server cannot answer now (HTTP 429 and 5xx)
    Misuse                  a retry will fail too: no such topic, wrong token, too large, not such a server
"""

import logging
import ssl
from contextlib import ExitStack
from socket import gaierror
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from onefold.errors import Busy, Misuse
from onefold.text import plain

SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
REPLY_BYTES_MAX: Final = 16 << 20
"""Of one reply; an ingest server's has some 30 bytes per message. websockets' own default is 1 MiB."""
NEVER: Final = frozenset({1003, 1007, 1008, 1009})
"""Close codes that the same bytes would get again: not acceptable, malformed, forbidden, too big (RFC 6455, 7.4.1)."""
LATER: Final = frozenset({408, 425, 429})
"""HTTP client errors that are temporary; all other 4xx are not."""

LOG: Final = logging.getLogger("onefold.websocket")
LOG.addHandler(logging.NullHandler())  # errors are raised; the log of websockets is only for callers who want it


def topic_url(at: str, topic: str, name: str | None) -> str:
    """The URL at which a producer of this name connects to a topic.

    >>> topic_url("http://127.0.0.1:7654", "orders", "till 1")
    'ws://127.0.0.1:7654/topics/orders/ws?name=till%201'
    """
    parts = urlsplit(at)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise Misuse(f"{at!r} is no address of a server: http://HOST:PORT, or https, ws, wss", at=at)
    path = f"{parts.path.rstrip('/')}/topics/{quote(topic, safe='')}/ws"
    query = "" if name is None else f"name={quote(name, safe='')}"
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, path, query, ""))


class WebSocket:
    """A connection; one thread may send while another receives."""

    def __init__(
        self, url: str, *, token: str | None = None, open_s: float = 10, answer_s: float = 30, greeted: bool = True
    ) -> None:
        self.url = url
        self._answer_s = answer_s
        self._socket, self._closing = _connected(url, token, open_s)
        try:
            self.greeting = self._receive(open_s) if greeted else ""
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes) -> None:
        """Send a request; blocks while the server does not read."""
        try:
            self._socket.send(data)
        except (ConnectionClosed, OSError, AssertionError) as error:  # websockets may assert on a breaking connection
            raise _lost(self.url, error) from error

    def receive(self) -> bytes:
        """The next reply; `ConnectionError` after ``answer_s``."""
        data = self._receive(self._answer_s)
        return data.encode() if isinstance(data, str) else data

    def _receive(self, seconds: float) -> str | bytes:
        try:
            return self._socket.recv(seconds)
        except TimeoutError as error:
            raise ConnectionError(f"{self.url}: no answer in {seconds:g} s") from error
        except (ConnectionClosed, OSError, AssertionError) as error:
            raise _lost(self.url, error) from error

    def close(self) -> None:
        """Close with a close frame, if the server still reads; never raises."""
        try:
            self._closing.close()
        except Exception:  # websockets raises if the connection breaks while it is being closed
            self._socket.socket.close()


def _connected(url: str, token: str | None, open_s: float) -> tuple[ClientConnection, ExitStack]:
    """A connection, and the stack that closes it; or one of the errors above."""
    closing = ExitStack()
    try:
        opened = connect(
            url,
            additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
            compression=None,  # payloads are often compressed already, and a slow client is worse than a fuller line
            open_timeout=open_s,
            close_timeout=1,
            max_size=REPLY_BYTES_MAX,
            logger=LOG,
        )
        return closing.enter_context(opened), closing
    except InvalidStatus as error:
        status, phrase = error.response.status_code, plain(error.response.reason_phrase)
        body = plain(bytes(error.response.body or b"").decode(errors="replace").strip())
        text = f"{url}: the server said {status} {phrase}" + (f": {body}" if body else "")
        raise (Busy if status >= 500 or status in LATER else Misuse)(text, status=status) from error
    except (InvalidURI, UnicodeError) as error:  # the latter: an impossible host name
        raise Misuse(f"{url}: {error}", url=url) from error
    except ssl.SSLCertVerificationError as error:
        raise Misuse(f"{url}: {error.verify_message}", url=url) from error
    except (ConnectionRefusedError, gaierror) as error:  # no connection: the server knows nothing of it
        raise ConnectionRefusedError(f"{url}: cannot connect: {error.strerror or error}") from error
    except (OSError, EOFError, AssertionError, WebSocketException) as error:
        raise ConnectionError(f"{url}: cannot connect: {plain(error)}") from error


def _lost(url: str, error: Exception) -> ConnectionError | Misuse:
    close = error.rcvd if isinstance(error, ConnectionClosed) else None
    if close is not None and close.code in NEVER:
        return Misuse(f"{url}: the server closed with {close.code}: {plain(close.reason)}", code=close.code)
    return ConnectionError(f"{url}: the connection was lost: {plain(error)}")
