"""The same sessions as NIP-77 messages, JSON in text frames, for the clients of Nostr relays.

    ["NEG-OPEN", name, filter, hex]    a session, and its first message      -> NEG-MSG
    ["NEG-MSG", name, hex]             the next message                      -> NEG-MSG
    ["NEG-CLOSE", name]                ends the session                      -> no answer
    -> ["NEG-MSG", name, hex], ["NEG-ERR", name, "reason: text"], ["NOTICE", text]

A client names its sessions and may have several; opening a name again replaces its session. A NEG-ERR closes the
session. Its reason is one word: ``blocked`` for what is not served, ``closed`` for a session that is over, and those
of NIP-01: ``invalid``, ``rate-limited``, ``error``.

Of the filters only ``since`` and ``until`` (both inclusive) are served. Others are refused, because ignoring one would
give a wrong result. The wire is v1, so ids have 32 bytes; the records themselves are fetched by other means.
"""

from __future__ import annotations

import json
from binascii import Error as BadHex
from binascii import unhexlify
from collections.abc import Mapping
from typing import Any, Final

from onefold.decoding import read_json
from onefold.errors import BadInput
from onefold.reconcile import INFINITY
from onefold.reconcile.exchange import Opening
from onefold.reconcile.peer import PeerSessions, Refused, failed

NAME_MAX: Final = 64  # characters, as in NIP-01
FIELDS: Final = {"NEG-OPEN": 4, "NEG-MSG": 3, "NEG-CLOSE": 2}
REASONS: Final[Mapping[str, str]] = {
    "bad_frame": "invalid",
    "bad_message": "invalid",
    "bad_open": "blocked",
    "busy": "rate-limited",
    "store_failed": "error",
}
"""The reasons for the errors of `peer`; all others, such as the limits of a session, are ``closed``."""


class Subscriptions(PeerSessions):
    def answer(self, text: str) -> str | None:
        """The answer to a message, or None; never raises."""
        try:
            verb, name, rest = read_message(text)
        except Refused as refused:
            self._trouble(refused)
            return _text("NOTICE", f"invalid: {refused}")
        with self._lock:
            try:
                return self._answer(verb, name, rest)
            except Refused as refused:
                return self._refuse(name, refused)
            except Exception as error:
                return self._refuse(name, failed(error))

    def expire(self) -> None:
        """Close the sessions whose time is up; a client learns of it with its next message."""
        with self._lock:
            for name in [name for name, session in self._sessions.items() if session.settled]:
                self._end(name)

    def _answer(self, verb: str, name: str, rest: list[Any]) -> str | None:
        if verb == "NEG-CLOSE":
            self._end(name)
            return None
        try:
            message = unhexlify(rest[-1])
        except (BadHex, TypeError, ValueError):
            text = f"the message is {rest[-1]!r:.50}, must be hex digits, two for a byte"
            raise Refused("bad_message", text) from None
        if verb == "NEG-OPEN":
            self._end(name)
            opening = read_filter(rest[0])
            if len(self._sessions) >= self._limits.subscriptions_max:
                raise Refused("busy", f"{len(self._sessions)} subscriptions are open here, the limit")
            self._open(name, opening)
        session = self._sessions.get(name)
        if session is None:
            raise Refused("not_open", "there is no such subscription, or it is closed")
        return _text("NEG-MSG", name, session.reconcile(message).hex())

    def _refuse(self, name: str, refused: Refused) -> str:
        self._end(name)
        self._trouble(refused)
        return _text("NEG-ERR", name, f"{REASONS.get(refused.name, 'closed')}: {refused}")


def _text(*words: str) -> str:
    return json.dumps(words, separators=(",", ":"))


def read_message(text: str) -> tuple[str, str, list[Any]]:
    """The verb, the name and the rest of a message; `Refused` if it is not one of the three."""
    try:
        document = read_json(text, "the message")
    except BadInput as error:
        raise Refused("bad_frame", str(error)) from None
    if not isinstance(document, list) or not document or not isinstance(document[0], str):
        raise Refused("bad_frame", "the message is not a list that begins with a string")
    verb, rest = document[0], document[1:]
    if verb not in FIELDS:
        raise Refused("bad_frame", f"{verb!r:.50} is not served here, only {', '.join(FIELDS)}")
    if len(document) != FIELDS[verb]:
        raise Refused("bad_frame", f"{verb} has {len(document)} fields, must have {FIELDS[verb]}")
    name = rest[0]
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX:
        raise Refused("bad_frame", f"the subscription is {name!r:.80}, must be 1 to {NAME_MAX} characters")
    return verb, name, rest[1:]


def read_filter(filter: Any) -> Opening:
    """The session that a filter asks for; `Refused` if it is not served."""
    if not isinstance(filter, dict):
        raise Refused("bad_frame", f"the filter is {filter!r:.50}, must be an object")
    for name, value in filter.items():
        if name not in ("since", "until"):
            raise Refused("bad_open", f"records are filtered only by since and until, not by {name!r:.50}")
        if type(value) is not int or not 0 <= value < INFINITY:
            raise Refused("bad_frame", f"{name} is {value!r:.50}, must be a whole number from 0 to 2^64 - 2")
    return Opening(**filter)
