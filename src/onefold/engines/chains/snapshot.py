"""A detector's state as bytes, and back.

One format byte, one flag byte, then unsigned LEB128 integers: the settings, the number of gaps, and all bounds in
ascending order as differences (a timestamp step and a sequence), so that close bounds cost two or three bytes each.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

from onefold.engines.chains.number import START, Number
from onefold.errors import BadInput

T = TypeVar("T")

FORMAT = 1
_SEEN, _FORGOT, _NAMED, _OPEN, _GUARDED = 1, 2, 4, 8, 16
_VARINT_BYTES_MAX = 10  # 64 bits and a little: timestamps of 2^53 fit, endless input does not


class State(NamedTuple):
    """Everything a detector knows."""

    gap_count_max: int
    floor: Literal["first", "open"]
    jump_max_ms: int | None
    head: Number | None
    forgotten: Number | None
    floor_named: bool
    gaps: list[tuple[Number, Number]]


def encode(state: State) -> bytes:
    """The state in as few bytes as it needs."""
    flags = (
        (state.head is not None) * _SEEN
        | (state.forgotten is not None) * _FORGOT
        | state.floor_named * _NAMED
        | (state.floor == "open") * _OPEN
        | (state.jump_max_ms is not None) * _GUARDED
    )
    out = bytearray((FORMAT, flags))
    settings = [state.gap_count_max, *([] if state.jump_max_ms is None else [state.jump_max_ms]), len(state.gaps)]
    bounds = [bound for gap in state.gaps for bound in gap]
    last = -1
    for value in settings:
        _put(out, value)
    for bound in [*filter(None, [state.forgotten]), *bounds, *filter(None, [state.head])]:
        _put(out, bound[0] - last)
        _put(out, bound[1] + 1)
        last = bound[0]
    return bytes(out)


def decode(data: bytes) -> State:
    """The state that was encoded; anything else raises `BadInput` with the offset."""
    if len(data) < 2 or data[0] != FORMAT or data[1] >= 2 * _GUARDED:
        raise BadInput(f"not a chain snapshot of format {FORMAT}: begins {data[:2].hex() or 'with nothing'}", offset=0)
    flags = data[1]
    values = _varints(data, 2)
    gap_count_max = _take(values)
    jump_max_ms = _take(values) if flags & _GUARDED else None
    gap_count = _take(values)
    if 4 * gap_count > len(data):
        raise BadInput(f"chain snapshot claims {gap_count} gaps in {len(data)} bytes", gap_count=gap_count)
    numbers = _numbers(values)
    forgotten = _take(numbers) if flags & _FORGOT else None
    gaps = [(_take(numbers), _take(numbers)) for _ in range(gap_count)]
    head = _take(numbers) if flags & _SEEN else None
    if next(values, None) is not None:
        raise BadInput(f"chain snapshot of {len(data)} bytes goes on after its end")
    floor: Literal["first", "open"] = "open" if flags & _OPEN else "first"
    state = State(gap_count_max, floor, jump_max_ms, head, forgotten, bool(flags & _NAMED), gaps)
    _refuse_nonsense(state)
    return state


def _put(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _varints(data: bytes, offset: int) -> Iterator[int]:
    while offset < len(data):
        start, value, more = offset, 0, True
        while more:
            if offset == len(data) or offset - start == _VARINT_BYTES_MAX:
                raise BadInput(f"chain snapshot: integer cut off or too long at byte {start}", offset=start)
            value |= (data[offset] & 0x7F) << 7 * (offset - start)
            more = data[offset] >= 0x80
            offset += 1
        if data[offset - 1] == 0 and offset - start > 1:
            raise BadInput(f"chain snapshot: integer with leading zeros at byte {start}", offset=start)
        yield value


def _numbers(values: Iterator[int]) -> Iterator[Number]:
    timestamp = -1
    for step in values:
        timestamp += step
        yield timestamp, _take(values) - 1


def _take(values: Iterator[T]) -> T:
    for value in values:
        return value
    raise BadInput("chain snapshot ends too early")


def _refuse_nonsense(state: State) -> None:
    """Raise `BadInput` for what no detector can be in: it would answer, and be wrong."""
    seen, named = [lower for lower, _ in state.gaps], [upper for _, upper in state.gaps]
    hidden = state.floor == "first" and seen[:1] == [START]
    if not 1 <= len(state.gaps) + 1 - hidden <= state.gap_count_max:
        raise BadInput(f"chain snapshot: {len(state.gaps)} gaps, gap_count_max {state.gap_count_max}")
    if state.head is None and (state.forgotten or state.gaps or state.floor_named):
        raise BadInput("chain snapshot: gaps in a chain of which nothing was seen")
    edge, top = [*filter(None, [state.forgotten])], [*filter(None, [state.head])]
    bounds = [*edge, *(bound for gap in state.gaps for bound in gap), *top]
    for lower, upper in pairwise(bounds):
        if lower >= upper:
            raise BadInput(f"chain snapshot: {lower} is followed by {upper}", lower=lower, upper=upper)
    floor = seen[:1] == [START]
    if min([*edge, *named, *top], default=(0, 0)) < (0, -1) or any(s < 0 for _, s in [*seen[floor:], *top]):
        raise BadInput(f"chain snapshot: a bound is no number in {bounds}", bounds=bounds)
