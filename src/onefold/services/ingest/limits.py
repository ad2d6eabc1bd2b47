"""Every bound of the service on one page, and the two that are kept while bytes come in: of a body, and of all."""

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from onefold.errors import Busy
from onefold.links import batch

TOO_SLOW: Final = "the body did not come within {} s"
TOO_LARGE: Final = "the body has more than {:,} bytes, the limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may ask of the server."""

    connections_max: int = 1_000
    """Redis allows 10,000; each of ours may hold a body."""
    head_bytes_max: int = 16 << 10
    """Request line and headers; nginx allows 4 x 8 KiB, h11 64 KiB."""
    body_bytes_max: int = batch.BYTES_MAX
    """Of an HTTP body and of a websocket message."""
    in_hand_bytes_max: int = 256 << 20
    """Of all bodies that were not answered yet, together."""
    messages_max: int = batch.MESSAGES_MAX
    outstanding_max: int = 16
    """Requests on one websocket that were not answered yet; after them it is not read."""
    read_max: int = 1_000
    """Records that one GET can ask for."""
    head_s: float = 20
    """From the connection to the end of the first head."""
    keep_alive_s: float = 60
    """Of silence between two requests; nginx waits 75 s, uvicorn 5."""
    body_s: float = 30
    """For a whole body; nginx waits 60 s between two reads, which lets a body last for days."""
    linger_s: float = 1
    """How long the rest of a refused body is read and thrown away, so that the refusal can be read at all."""
    grace_s: float = 20
    """What is in hand at a shutdown may take so long."""


class Budget:
    """The bytes that are in hand, everywhere in the service.

    >>> budget = Budget(10)
    >>> budget.take(8)
    >>> budget.take(3)
    Traceback (most recent call last):
        ...
    onefold.errors.Busy: 8 bytes are in hand, 3 more would be over the limit of 10
    >>> budget.give(8)
    >>> budget.in_hand
    0
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.in_hand = 0

    def take(self, size: int) -> None:
        """So many more come in; `Busy` if that is too much, and they do not count."""
        if self.in_hand + size > self.bytes_max:
            raise Busy(
                f"{self.in_hand:,} bytes are in hand, {size:,} more would be over the limit of {self.bytes_max:,}"
            )
        self.in_hand += size

    def give(self, size: int) -> None:
        """So many were answered."""
        self.in_hand -= size


class Body:
    """The body of one HTTP request as it comes in, within the limits, whatever its head says of its length."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, budget: Budget) -> None:
        names = dict(scope["headers"])
        self._receive = receive
        self._limits = limits
        self._budget = budget
        self._expected = b"expect" in names  # the client waits for a "100 Continue" before it sends a body
        self._deadline: float | None = None
        self._size = 0
        self._taken = 0
        self.ended = b"transfer-encoding" not in names and names.get(b"content-length", b"0") == b"0"

    async def receive(self) -> Message:
        """The next piece, for starlette; 413, 408 or `Busy` where a limit is reached."""
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self._limits.body_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._next()
        except TimeoutError:
            raise HTTPException(408, TOO_SLOW.format(self._limits.body_s)) from None
        if self._size > self._limits.body_bytes_max:
            raise HTTPException(413, TOO_LARGE.format(self._limits.body_bytes_max))
        size = len(message.get("body", b""))
        self._budget.take(size)
        self._taken += size
        return message

    async def discard(self) -> bool:
        """Read on without keeping anything, for a moment; whether that was the end, and the connection can go on."""
        if self._expected and not self._size:
            return self.ended
        try:
            async with asyncio.timeout(self._limits.linger_s):
                while not self.ended and self._size <= 2 * self._limits.body_bytes_max:
                    await self._next()
        except TimeoutError:
            pass
        return self.ended

    def close(self) -> None:
        """The request was answered: its bytes are no longer in hand."""
        self._budget.give(self._taken)
        self._taken = 0

    async def _next(self) -> Message:
        message = await self._receive()
        self._expected = False
        self._size += len(message.get("body", b""))
        self.ended = self.ended or not message.get("more_body", False)  # a disconnect has none either
        return message
