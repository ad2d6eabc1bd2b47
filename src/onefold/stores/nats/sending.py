"""Saying things to JetStream, many at once: parcels, each with the server's word, and answers to deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import nats.errors
from nats.aio.client import Client

from onefold.stores.nats.streams import Receipt

IN_FLIGHT_MAX = 500
"""Parcels that wait for the server's word at once."""
ANSWER_S = 1.0
"""How long an answer to an acknowledgement is waited for. It comes in milliseconds, or never."""
_HEADERS = len(b"NATS/1.0\r\n\r\n")
_NO_ANSWER = (nats.errors.NoRespondersError, nats.errors.TimeoutError)


class Letter(NamedTuple):
    """Something to be stored in a stream."""

    subject: str
    payload: bytes
    headers: Mapping[str, str] | None = None

    def fit(self, bytes_max: int) -> Letter:
        """Without its headers if the server would not take it with them: it hangs up on what is too large."""
        size = len(self.payload) + sum(len(name) + len(value) + 4 for name, value in (self.headers or {}).items())
        return self if size + _HEADERS <= bytes_max else self._replace(headers=None)


async def publish(client: Client, letters: Sequence[Letter], timeout_s: float) -> None:
    """Store them all: the server's word for each is waited for."""
    js = client.jetstream(timeout=timeout_s)
    for at in range(0, len(letters), IN_FLIGHT_MAX):
        part = letters[at : at + IN_FLIGHT_MAX]
        said = [js.publish(subject, payload, headers=dict(more) if more else None) for subject, payload, more in part]
        # All are waited for before the first error is told: nothing goes on behind the caller's back.
        for answer in await asyncio.gather(*said, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer


async def tell(client: Client, receipts: Iterable[str], word: bytes, timeout_s: float) -> None:
    """Say a word to each delivery; the server has heard it when this returns.

    A consumer takes what it is told in turn. So only the last word to each asks for an answer. There is none when the
    server does not know of the delivery: the consumer was removed, or it crashed before it had noted what it gave out.
    Then the word has no effect, and the parcel comes again.
    """
    by_consumer: dict[str, list[str]] = {}
    for receipt in receipts:
        by_consumer.setdefault(Receipt.parse(receipt).consumer, []).append(receipt)
    for *others, _ in by_consumer.values():
        for receipt in others:
            await client.publish(receipt, word)
    patience_s = min(timeout_s / 2, ANSWER_S)
    lasts = [client.request(last, word, timeout=patience_s) for *_, last in by_consumer.values()]
    answers = await asyncio.gather(*lasts, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, _NO_ANSWER):
            raise answer
    if any(isinstance(answer, nats.errors.TimeoutError) for answer in answers):
        await client.flush(ceil(timeout_s))  # is there anybody?
