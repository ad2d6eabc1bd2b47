"""What can be wrong with a history, one word each."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Wrong(StrEnum):
    """The rule that was broken."""

    APPLIED_TWICE = "applied_twice"
    """A message changed the state a second time."""
    TWO_TOKENS = "two_tokens"
    """One message was sent under two tokens: it will be processed twice."""
    TWO_PAYLOADS = "two_payloads"
    """One message was sent with two contents."""
    TOKEN_BACK = "token_back"  # noqa: S105 # no password
    """A token that was gone exists again."""
    LOST = "lost"
    """At rest, a message was not processed or not sent."""
    STATE = "state"
    """At rest, the entities are not what any order without faults would make of them."""
    TOKEN_LEFT = "token_left"  # noqa: S105 # no password
    """At rest, there is a token that belongs to nothing."""
    ENTRY_LEFT = "entry_left"
    """At rest, there is an outbox entry."""
    STUCK = "stuck"
    """Not at rest, and nobody can go on."""
    CIRCLE = "circle"
    """It can go on for ever."""
    HANDLER = "handler"
    """The handler raised, or returned what cannot be kept."""
    INVARIANT = "invariant"
    """The invariant that was given does not hold."""


class Offence(NamedTuple):
    """What is wrong, as a word and as a sentence."""

    wrong: Wrong
    text: str
