"""An ordered chain's state as bytes, and back.

JSON, because the messages that are held are the caller's: bytes travel as hex, everything else as its JSON text. What
would not come back equal (a tuple, an object, NaN) is refused when the snapshot is taken, not when it is needed.
Foreign bytes are checked against the invariants of the engine before a chain is made of them.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, NamedTuple

from onefold.engines.chains.number import Number
from onefold.engines.chains.ordering_settings import Settings
from onefold.errors import BadInput, Misuse

FORMAT = 1


class OpenGap(NamedTuple):
    """The gap that is being worked on: what to ask for, the held message that ends it, and how far asking has come."""

    first: Number
    last: Number
    upper: Number
    due_ms: int
    asked_count: int = 0
    asked_ms: int = 0


class State(NamedTuple):
    """Everything an ordered chain knows; ``held`` is number, previous number and message, ascending."""

    settings: Settings
    floor: Number | None
    last: Number
    forgotten: Number | None
    given_up: list[tuple[Number, Number]]
    held: list[tuple[Number, Number | None, Any]]
    gap: OpenGap | None


def encode(state: State) -> bytes:
    """The state as JSON; a held message that JSON cannot carry raises `Misuse`."""
    held = [(number, previous, *_pack(message)) for number, previous, message in state.held]
    fields = {**state._asdict(), "settings": state.settings._asdict(), "held": held}
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def decode(data: bytes) -> State:
    """The state that was encoded; anything else raises `BadInput`."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise BadInput(f"not an ordered-chain snapshot of format {FORMAT}: begins {data[:20]!r}")
        state = _read(**fields)
    except (ValueError, TypeError, Misuse, RecursionError) as error:
        raise BadInput(f"not an ordered-chain snapshot: {error}") from error
    _refuse_disorder(state)
    return state


def _read(settings: Any, floor: Any, last: Any, forgotten: Any, given_up: Any, held: Any, gap: Any) -> State:
    return State(
        Settings(**settings).checked(),
        _number_or_none(floor),
        _number(last),
        _number_or_none(forgotten),
        [(_number(lower), _number(upper)) for lower, upper in given_up],
        [(_number(n), _number_or_none(previous), _unpack(kind, text)) for n, previous, kind, text in held],
        None if gap is None else _read_gap(*gap),
    )


def _read_gap(first: Any, last: Any, upper: Any, due_ms: Any, asked_count: Any, asked_ms: Any) -> OpenGap:
    return OpenGap(_number(first), _number(last), _number(upper), _whole(due_ms), _whole(asked_count), _whole(asked_ms))


def _pack(message: object) -> tuple[str, str]:
    if isinstance(message, bytes):
        return "hex", message.hex()
    try:
        text = json.dumps(message)
        if json.loads(text) == message:
            return "json", text
    except (TypeError, ValueError, RecursionError):
        pass
    raise Misuse(f"a held message is neither bytes nor a JSON value: {message!r:.80}", held=message)


def _unpack(kind: str, text: str) -> Any:
    return bytes.fromhex(text) if kind == "hex" else json.loads(text)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.80} is not a whole number")
    return value


def _number(value: Any) -> Number:
    timestamp, sequence = value
    return _whole(timestamp), _whole(sequence)


def _number_or_none(value: Any) -> Number | None:
    return None if value is None else _number(value)


def _refuse_disorder(state: State) -> None:
    gone = [bound for gap in state.given_up for bound in gap]
    bounds = [*filter(None, [state.forgotten]), *gone, state.last]
    for number, previous, _ in state.held:
        bounds += [number] if previous is None else [previous, number]
    for lower, upper in pairwise(bounds):
        if lower > upper:
            raise BadInput(f"ordered-chain snapshot: bounds descend from {lower} to {upper}", lower=lower, upper=upper)
    numbers = {number for number, _, _ in state.held}
    gap_fits = state.gap.upper in numbers if state.gap else not numbers
    if not gap_fits or len(numbers) < len(state.held) or (numbers and state.floor is None):
        raise BadInput(f"ordered-chain snapshot: {len(state.held)} held do not fit the gap {state.gap}", gap=state.gap)
