"""Some of the rows that a run, or a batch of a stream, rejected: read from its files, without a session of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds

ROWS_MAX: Final = 50
"""How many rows are looked at; of each reason among them one is given."""
COLUMNS_MAX: Final = 12
CELL_CHARS_MAX: Final = 60
VERDICT, REASON = "verdict", "reason"


def reject_rows(folder: Path) -> list[tuple[str, str]]:
    """A reason and a row of it as text, for each reason that is found; what cannot be read has none."""
    try:
        return _read(folder)
    except (OSError, ValueError, OverflowError, pa.ArrowException):  # a date that Python has none for, too
        return []


def _read(folder: Path) -> list[tuple[str, str]]:
    if (folder / "rejects").is_dir():
        rows, wanted = ds.dataset(folder / "rejects", format="parquet"), None
    elif (folder / "messages").is_dir():
        rows, wanted = ds.dataset(folder / "messages", format="parquet"), ds.field(VERDICT) == "REJECT"
    else:
        return []
    if REASON not in rows.schema.names:
        return []
    names = [name for name in rows.schema.names if name not in (VERDICT, REASON)][:COLUMNS_MAX]
    head = rows.head(
        ROWS_MAX, columns=[*names, REASON], filter=wanted, batch_size=ROWS_MAX, batch_readahead=1, fragment_readahead=1
    )
    found: dict[str, str] = {}
    for row in head.to_pylist():
        found.setdefault(str(row[REASON]), _text(row))
    return list(found.items())


def _text(row: dict[str, object]) -> str:
    return ", ".join(
        f"{name} {'null' if value is None else str(value)[:CELL_CHARS_MAX]}"
        for name, value in row.items()
        if name != REASON
    )
