"""One websocket: its messages are answered in order, one at a time, by threads of the server.

It is read again only when the answer has left, so a peer has at most one message in the server's hands. Silence counts
from then until its next message is here: not while it waits for its turn, nor while it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from starlette.types import Message, Receive, Send

from onefold.services.reconciler.books import Books
from onefold.services.reconciler.limits import ReconcileLimits
from onefold.services.reconciler.nip77 import Subscriptions
from onefold.services.reconciler.peer import Peer
from onefold.services.reconciler.turns import Account, Turns

NORMAL: Final = 1000
POLICY: Final = 1008
RESTART: Final = 1012


class Connection:
    """Reads, has it answered, writes; until one side has enough."""

    def __init__(
        self, receive: Receive, send: Send, abort: Callable[[], None], turns: Turns, limits: ReconcileLimits,
        books: Books, peer: Peer, subscriptions: Subscriptions,
    ) -> None:  # fmt: skip
        self._receive, self._send, self._abort = receive, send, abort
        self._turns, self._limits, self._books = turns, limits, books
        self._account = Account()
        self._peer, self._subscriptions = peer, subscriptions
        self._waiting: asyncio.Timeout | None = None
        self._stopped = False

    def stop(self) -> None:
        """Answer what was read, then close."""
        self._stopped = True
        if self._waiting is not None:
            with contextlib.suppress(RuntimeError):  # its time was up at this very moment
                self._waiting.reschedule(0)

    async def run(self) -> None:
        """Serve it to its end."""
        try:
            end = await self._serve()
            if end is not None:
                code, reason = end
                await self._write({"type": "websocket.close", "code": code, "reason": reason})
        except TimeoutError:
            self._books.trouble("unread")
            self._abort()
        except (RuntimeError, OSError):
            pass  # uvicorn's ways to say that the other side has gone
        finally:
            await asyncio.shield(self._turns.off(self._close))

    async def _serve(self) -> tuple[int, str] | None:
        """How it ends; None: the other side went."""
        now = asyncio.get_running_loop().time
        while not self._stopped:
            began = now()
            message = await self._next()
            silence_s = now() - began
            if message is None:
                return self._silence()
            if message["type"] == "websocket.disconnect":
                return None
            data, text = message.get("bytes"), message.get("text") or ""
            if data is not None:
                answer = await self._turns.run(self._account, self._answer, data, silence_s)
                await self._write({"type": "websocket.send", "bytes": answer})
            else:
                told = await self._turns.run(self._account, self._reply, text, silence_s)
                if told is not None:
                    await self._write({"type": "websocket.send", "text": told})
            if self._peer.over or self._subscriptions.over:
                return POLICY, f"{self._limits.troubles_max} errors, troubles_max"
        return self._silence()

    async def _next(self) -> Message | None:
        """The next message; None if none came in time, or none should come any more."""
        try:
            async with asyncio.timeout(self._limits.idle_s) as self._waiting:
                return await self._receive()
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def _silence(self) -> tuple[int, str]:
        if self._stopped:
            return RESTART, "the server is shutting down"
        self._books.trouble("idle")
        return NORMAL, f"idle: nothing was heard for {self._limits.idle_s:g} s"

    def _answer(self, data: bytes, silence_s: float) -> bytes:
        self._wait(silence_s)
        self._subscriptions.expire()
        return self._peer.answer(data)

    def _reply(self, text: str, silence_s: float) -> str | None:
        self._wait(silence_s)
        self._peer.expire()
        self._subscriptions.expire()
        return self._subscriptions.answer(text)

    def _wait(self, silence_s: float) -> None:
        self._peer.waited(silence_s)
        self._subscriptions.waited(silence_s)

    async def _write(self, message: Message) -> None:
        async with asyncio.timeout(self._limits.write_s):
            await self._send(message)

    def _close(self) -> None:
        self._peer.close()
        self._subscriptions.close()
