"""The index of a table: made by one pass, kept beside the table, and brought up to date by what is new.

    index.json         what it was made from, the layout's file, and the parts
    layout-*.npz       where the buckets begin
    part-*.npz         the sums of all buckets (`peer_buckets`) over the files that index.json names for this part

A part is good as long as its files are there, as large and as old as they were. New files are read alone and become a
part; of a part that lost one, the other files are read again. Many parts are folded into fewer, which reads nothing.
When there are four times as many rows as the layout was thought out for, all is read again.

A table that is not made of plain files has no parts: its index is made each time, and not kept. An index is only a
memory: one that is damaged, or of another version, is made again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from json import dumps
from typing import Any, Final
from uuid import uuid4

import numpy as np
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from onefold.errors import BadInput, Misuse
from onefold.spark.diff_files import Table, read_table
from onefold.spark.files import first_line
from onefold.spark.overlap import refuse_inside
from onefold.spark.peer_buckets import Buckets, read_arrays, total
from onefold.spark.peer_build import Build
from onefold.spark.peer_files import Files, files_of, only
from onefold.spark.peer_items import Indexed
from onefold.spark.peer_layout import BUCKETS_MAX, Layout
from onefold.spark.peer_naming import Naming
from onefold.spark.place import Place

VERSION: Final = 1
SUFFIX: Final = ".onefold-index"
HEAD: Final = "index.json"
OWN: Final = re.compile(r"(part|layout)-[0-9a-f]{32}\.npz")
"""What only an index calls a file: nothing else in its folder is ever removed."""
BUCKET_ROWS: Final = 128
"""Rows that a bucket should have: 4 kB of ids, where a bound lies in it. Of 10 million rows it is 150 all the same."""
PARTS_MAX: Final = 16
UNREADABLE: Final = (OSError, BadInput, ValueError, KeyError, TypeError, RecursionError)
"""What reading a file may raise that is gone, torn, or somebody else's."""
OUTGROWN: Final = 4
"""So many times the rows that a layout was thought out for are too many for it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some files, and where the sums of their rows are kept."""

    name: str
    rows: int
    files: Files


@dataclass(frozen=True, slots=True)
class _State:
    """An index as it was last brought up to date."""

    made_from: Mapping[str, Any]
    layout_name: str
    layout: Layout
    parts: Sequence[Part]
    buckets: Buckets


class TableIndex:
    """The index of a table.

    ``folder``: where indexes of it are kept; None: beside it. Each set of columns has one of its own in there.
    """

    def __init__(
        self, spark: SparkSession, table: Table, naming: Naming, *, folder: str | None = None,
        bucket_rows: int = BUCKET_ROWS,
    ) -> None:  # fmt: skip
        if bucket_rows < 1:
            raise Misuse(f"bucket_rows is {bucket_rows}, must be at least 1", bucket_rows=bucket_rows)
        self._spark, self._table, self._naming, self._bucket_rows = spark, table, naming, bucket_rows
        named = any(sign in table.path for sign in "*?[{")  # a name for many paths: there is no "beside it"
        if folder is not None:
            refuse_inside(("the table", table.path), ("the index", folder))
        self._folder = folder or (None if named else _beside(table.path))
        self._state: _State | None = None

    def refresh(self) -> Indexed:
        """The table as it is now, with an index that knows all its rows. Cost: one pass over the new files."""
        try:
            return self._refreshed(read_table(self._spark, self._table))
        except (PySparkException, Py4JJavaError) as error:
            raise OSError(f"cannot read {self._table.path}: {first_line(error)}") from error

    def _refreshed(self, df: DataFrame) -> Indexed:
        files = files_of(df, self._table)
        build = Build(self._naming, self._table.path, self._bucket_rows)
        if not files or self._folder is None:
            layout, buckets = build.made(df)
            return Indexed(self._table.path, df, self._naming, layout, buckets)
        made_from = {**self._naming.made_from(df), **self._source(), "bucket_rows": self._bucket_rows}
        store = _Store(Place(self._spark, self._folder) / _digest(made_from), made_from)
        state = self._state
        if state is None or state.made_from != made_from:  # a new file may bring a column, or a wider type
            state = store.read()
        self._state = state = self._updated(df, files, state, store, build)
        return Indexed(self._table.path, df, self._naming, state.layout, state.buckets)

    def _source(self) -> dict[str, Any]:
        """Which table it is, and how it is read; of options a digest, for one may be a secret."""
        table = self._table
        path = str(Place(self._spark, table.path)) if "*" not in table.path else table.path
        return {"path": path, "format": table.format, "options": _digest(sorted(table.options.items()))}

    def _updated(self, df: DataFrame, files: Files, state: _State | None, store: _Store, build: Build) -> _State:
        kept = [part for part in state.parts if part.files.items() <= files.items()] if state else []
        known = {name for part in kept for name in part.files}
        new = {name: told for name, told in files.items() if name not in known}
        if state is None or not kept:
            return _made(df, files, store, build)
        if not new and len(kept) == len(state.parts):
            return state
        whole = len(kept) == len(state.parts)
        before = state.buckets if whole else store.total(kept, len(state.layout))
        if before is None:
            return _made(df, files, store, build)
        layout, found = state.layout, Buckets.none(len(before))
        if new:
            layout, found = build.extended(only(df, new), state.layout, before)
        size = len(layout)
        if size > BUCKETS_MAX or (before.rows + found.rows > OUTGROWN * layout.rows and size < BUCKETS_MAX):
            return _made(df, files, store, build)
        parts = [*kept, *([store.add(found, new)] if new else [])]
        name = state.layout_name if layout is state.layout else store.add_layout(layout)
        both = total((before, found), size)
        updated = _State(store.made_from, name, layout, _folded(parts, store, size), both)
        store.write(updated)
        return updated


def _beside(path: str) -> str:
    """A hidden folder: as another one it would be read as a part of the table that this one is a partition of."""
    above, slash, name = path.rstrip("/").rpartition("/")
    return f"{above}{slash}.{name}{SUFFIX}"


def _digest(document: Any) -> str:
    return sha256(dumps(document).encode()).hexdigest()[:16]


def _made(df: DataFrame, files: Files, store: _Store, build: Build) -> _State:
    layout, buckets = build.made(df)
    state = _State(store.made_from, store.add_layout(layout), layout, [store.add(buckets, files)], buckets)
    store.write(state)
    return state


def _folded(parts: Sequence[Part], store: _Store, size: int) -> Sequence[Part]:
    """The same parts; if there are too many, the smaller half of them as one."""
    if len(parts) <= PARTS_MAX:
        return parts
    ordered = sorted(parts, key=lambda part: part.rows)
    small, large = ordered[: len(parts) // 2], ordered[len(parts) // 2 :]
    files = {name: told for part in small for name, told in part.files.items()}
    both = store.total(small, size)
    return parts if both is None else [*large, store.add(both, files)]


class _Store:
    """The folder that an index is kept in."""

    def __init__(self, place: Place, made_from: Mapping[str, Any]) -> None:
        self._place, self.made_from = place, made_from

    def read(self) -> _State | None:
        """What is kept; None if there is nothing, or nothing that can be read."""
        try:
            head = (self._place / HEAD).read_json()
            if head["version"] != VERSION or head["made_from"] != self.made_from:
                return None
            columns = read_arrays((self._place / head["layout"]).read_bytes(), ["starts", "bits", "rows"])
            layout = Layout(columns["starts"], columns["bits"], int(columns["rows"]))
            parts = [
                Part(part["name"], part["rows"], {name: (size, at) for name, size, at in part["files"]})
                for part in head["parts"]
            ]
        except UNREADABLE:
            return None
        buckets = self.total(parts, len(layout))
        return None if buckets is None else _State(self.made_from, head["layout"], layout, parts, buckets)

    def total(self, parts: Sequence[Part], size: int) -> Buckets | None:
        """The sums of these parts; None if one cannot be read, as after another process has folded it."""
        try:
            return total((Buckets.from_bytes((self._place / part.name).read_bytes()) for part in parts), size)
        except UNREADABLE:
            return None

    def add(self, buckets: Buckets, files: Files) -> Part:
        """Keep the sums of some files."""
        name = f"part-{uuid4().hex}.npz"
        (self._place / name).write_bytes(buckets.to_bytes())
        return Part(name, buckets.rows, files)

    def add_layout(self, layout: Layout) -> str:
        """Keep where the buckets begin."""
        name, file = f"layout-{uuid4().hex}.npz", BytesIO()
        np.savez_compressed(file, starts=layout.starts, bits=layout.bits, rows=np.int64(layout.rows))
        (self._place / name).write_bytes(file.getvalue())
        return name

    def write(self, state: _State) -> None:
        """Make this the index, and remove what no longer belongs to it."""
        parts = [
            {"name": part.name, "rows": part.rows, "files": [[name, *told] for name, told in part.files.items()]}
            for part in state.parts
        ]
        head = {"version": VERSION, "made_from": self.made_from, "layout": state.layout_name, "parts": parts}
        (self._place / HEAD).write_json(head)
        kept = {HEAD, state.layout_name, *(part.name for part in state.parts)}
        for name in self._place.names():
            if name not in kept and OWN.fullmatch(name):
                (self._place / name).remove()
