"""Calls the handler that is on trial: each call with equal input is made twice, and never again.

Handlers shall be functions of state and message. One that is not (it reads a clock, or a counter outside) does no harm
to the plans, for what counts is what was written; but the explorer could not go the same way again. So the first answer
is kept, and the difference is told.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onefold.engines.outbox.handling import Handler, handled
from onefold.engines.outbox.record import Message, pack
from onefold.engines.outbox.steps import Handled


class HandlerRaised(Exception):
    """The handler did not answer, or answered what cannot be kept."""

    def __init__(self, message: Message, state: Any, error: Exception) -> None:
        self.message, self.state, self.error = message, state, error
        told = str(error) if type(error).__module__.startswith("onefold") else f"{type(error).__name__}: {error}"
        super().__init__(f"the handler fails on {pack(message.body)} with the state {pack(state)}: {told}")


class Handlers:
    """Remembers every answer."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self._answers: dict[tuple[Handler, str, str, str, str], Handled] = {}
        """By handler, queue, name and body of the message, and state. Not by its token: which attempt made that is
        chance, and an answer that hangs on it would differ from the one without faults."""

    def answer(self, call: Handler, state: Any, message: Message) -> Handled:
        """What the handler makes of it."""
        packed = pack(state)
        key = (call, message.to, message.token.partition("@")[0], pack(message.body), packed)
        if key not in self._answers:
            first, again = (_called(call, json.loads(packed), message) for _ in range(2))
            self._answers[key] = first
            if first != again:
                where = f"{message.to}: for {pack(message.body)} with the state {packed}"
                self._find(f"not repeatable: {where} the handler answered {_told(first)}, then {_told(again)}")
        return self._answers[key]

    def _find(self, finding: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


FINDINGS_MAX = 5


def _called(call: Handler, state: Any, message: Message) -> Handled:
    body = json.loads(pack(message.body))
    given = Message(message.token, message.to, body, message.cause, message.origin, message.realm)
    try:
        answer = call(state, given)
        if inspect.isawaitable(answer):
            answer = _awaited(answer)
        return handled(answer, message)
    except Exception as error:
        raise HandlerRaised(message, state, error) from error


def _awaited(answer: Any) -> Any:
    async def waited() -> Any:
        return await answer

    # In a thread of its own: whoever explores may have a loop running.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, waited()).result()


def _told(answer: Handled) -> str:
    sent = [f"{out.to} {pack(out.body)}" for out in answer.outgoing]
    return f"{pack(answer.state)} and sent {', '.join(sent) or 'nothing'}"
