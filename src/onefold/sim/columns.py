"""From numpy to Arrow: key columns, number columns and payloads, none of them touched row by row.

A key column has few names, so it is those names taken by index; a payload is 40 characters made from the message's
index, written as one block of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onefold.sim.damage import Rows
from onefold.sim.messages import KEY, NUMBER, PREVIOUS, Bools, Ints, keys

KEY_FIELDS: Final = tuple(pa.field(name, pa.int32() if name == "partition" else pa.string()) for name in KEY)

PAYLOAD_CHARS: Final = 40
_HEX: Final = np.array([f"{byte:02x}" for byte in range(256)], "S2").view(np.uint16)


def schema(*, text_numbers: bool = False) -> pa.Schema:
    """The columns of the messages, in order."""
    number = pa.string() if text_numbers else pa.int64()
    numbers = [pa.field(name, number) for name in NUMBER + PREVIOUS]
    rest = [pa.field("arrival", pa.int64()), pa.field("payload", pa.string()), pa.field("offset", pa.int64())]
    return pa.schema([*KEY_FIELDS, *numbers, *rest])


def key_columns(chains: int, chain: Ints, nulls: Mapping[str, Bools] | None = None) -> list[pa.Array]:
    """The four key columns for rows of these chains."""
    columns = []
    for field, (names, which) in zip(KEY_FIELDS, keys(chains).values(), strict=True):
        index = pa.array(which[chain], mask=None if nulls is None else nulls[field.name])
        columns.append(pa.array(names, field.type).take(index))
    return columns


def number_columns(rows: Rows, *, text_numbers: bool) -> list[pa.Array]:
    """The two numbers and the two previous ones; as text, with what text was written over them, if asked for."""
    columns = {name: pa.array(rows.numbers[name], mask=rows.nulls[name]) for name in NUMBER + PREVIOUS}
    if not text_numbers:
        return list(columns.values())
    return [_as_text(column, rows, name) for name, column in columns.items()]


def _as_text(column: pa.Array, rows: Rows, name: str) -> pa.Array:
    text = pc.cast(column, pa.string())
    if name not in rows.texts:
        return text
    at, texts = rows.texts[name]
    mask = np.zeros(len(column), np.bool_)
    mask[at] = True
    return pc.replace_with_mask(text, pa.array(mask), pa.array(texts, pa.string()))


def payloads(seed: int, ids: Ints) -> pa.Array:
    """A payload for each id; equal ids have equal payloads."""
    words = np.empty((len(ids), PAYLOAD_CHARS // 2), np.uint16)
    words[:, :4] = np.frombuffer(b"reading=", np.uint16)
    salted = ids.astype(np.uint64) + _mixed(np.array([seed], np.uint64))
    words[:, 4:12] = _HEX[_mixed(salted).view(np.uint8).reshape(-1, 8)]
    words[:, 12:] = _HEX[_mixed(~salted).view(np.uint8).reshape(-1, 8)]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * PAYLOAD_CHARS
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(words))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: neighbours come out as strangers. Products wrap, as they should: these are arrays, not scalars."""
    words = words * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
