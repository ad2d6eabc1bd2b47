"""Made traffic on disk: what arrived and the truth beside it, whole or not at all.

    path/messages/part-00000.parquet ...   or .jsonl, one object per line; in arrival order over all files
    path/truth/rows.parquet  lost.parquet  missing.parquet  traffic.json

All is written into a temporary directory beside ``path``, which is then renamed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onefold.errors import Misuse
from onefold.sim.traffic import Made

Format: TypeAlias = Literal["parquet", "jsonl"]

FILE_COUNT_MAX: Final = 10_000
LINES_AT_ONCE: Final = 100_000
"""About 30 MB of text: far below the 2 GiB of an Arrow string column."""


def write(made: Made, path: str | Path, format: Format = "parquet", files: int = 1) -> None:
    """Write traffic and truth below ``path``, which must not exist or be empty."""
    path = Path(path)
    if format not in _WRITERS:
        raise Misuse(f"format is {format!r}, must be one of {', '.join(_WRITERS)}", format=format)
    if type(files) is not int or not 1 <= files <= FILE_COUNT_MAX:
        raise Misuse(f"files is {files!r}, must be a whole number between 1 and {FILE_COUNT_MAX}", files=files)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise Misuse(f"path is {str(path)!r}, which exists and is not an empty directory", path=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        whole = Path(temporary) / path.name  # one level down: the temporary directory itself is for our eyes only
        _write_messages(made.messages, whole / "messages", format, files)
        _write_truth(made, whole / "truth")
        whole.rename(path)


def _write_messages(messages: pa.Table, folder: Path, format: Format, files: int) -> None:
    folder.mkdir(parents=True)
    for i in range(files):
        begin, end = (len(messages) * n // files for n in (i, i + 1))
        _WRITERS[format](messages.slice(begin, end - begin), folder / f"part-{i:05}.{format}")


def _write_truth(made: Made, folder: Path) -> None:
    folder.mkdir()
    for name in ("rows", "lost", "missing"):
        pq.write_table(getattr(made.truth, name), folder / f"{name}.parquet")
    (folder / "traffic.json").write_text(json.dumps(asdict(made.traffic), indent=2) + "\n")


def _write_parquet(table: pa.Table, file: Path) -> None:
    pq.write_table(table, file)


def _write_jsonl(table: pa.Table, file: Path) -> None:
    with file.open("wb") as out:
        for batch in table.to_batches(max_chunksize=LINES_AT_ONCE):
            lines = pc.binary_join_element_wise(*_pieces(batch), "")
            every_line = pa.ListArray.from_arrays([0, len(lines)], lines)
            out.write(pc.binary_join(every_line, "")[0].as_buffer())


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.Array | str]:
    """What the lines of this batch are joined from: texts that are the same for all, and columns."""
    before = "{"
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield f'{before}"{name}":'
        yield _json_values(column)
        before = ","
    yield "}\n"


def _json_values(column: pa.Array) -> pa.Array:
    # Nothing is escaped: traffic makes no text that holds a quote, a backslash or a control character.
    is_text = pa.types.is_string(column.type)
    values = pc.binary_join_element_wise('"', column, '"', "") if is_text else pc.cast(column, pa.string())
    return pc.fill_null(values, "null")


_WRITERS: Final[Mapping[str, Callable[[pa.Table, Path], None]]] = {"parquet": _write_parquet, "jsonl": _write_jsonl}
