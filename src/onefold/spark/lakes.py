"""Delta and Iceberg tables by their own metadata: which files a table consists of, and how they are read.

A table is read as one snapshot. Its metadata has the files, their numbers of rows, the deleted rows, the partition
values, and the name or number of each column in the files. The files alone do not show this:

    a file that the log removed         still exists
    a renamed column                    has its old name, or a number, in files written before
    a partition column                  may be in no file, and the names of folders prove nothing
    a deleted row                       is still in its file; another file lists its position

So tasks read the files through Arrow, some row groups each, and apply the metadata. Features that are not supported
(equality deletes, Puffin files, unknown protocol features) are refused in one line. If Spark has the platform's own
connector, that reads the same snapshot.

An Iceberg table belongs to a catalogue, and is named in one of these ways:

    lake/catalog.db#db.events    in a catalogue that is a SQLite file; its tables lie beside it, in ``lake/``
    prod.db.events               in a catalogue that pyiceberg's own settings name (``PYICEBERG_CATALOG__PROD__URI``,
                                 ``~/.pyiceberg.yaml``), or the options here: ``type``, ``uri``, ``warehouse``, keys
    .../v3.metadata.json         one snapshot, without a catalogue; read-only
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from onefold.errors import Misuse, OnefoldError, StoreFailed
from onefold.spark.dialect import arrow_schema
from onefold.stores.addresses import sqlite_file

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
PACKAGES: Final = {DELTA: "deltalake", ICEBERG: "pyiceberg"}
SLICE_BYTES: Final = 64 << 20
"""About how much of a file a task reads."""
TASKS_MAX: Final = 4_096
BATCH_ROWS: Final = 16_384
DELETED_MAX: Final = 50_000_000
"""The most positions of deleted rows, 8 bytes each, that are sent with the tasks; beyond, compact the table."""
DELTA_FEATURES: Final = {
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
    "vacuumProtocolCheck",
}  # fmt: skip
"""The reader features of Delta's protocol that are supported here."""
FIELD_ID: Final = b"PARQUET:field_id"
ID, NAMES = "onefold.id", "onefold.names"
"""Metadata of a column: its number in the files, and its names in files without numbers."""
VERSION_OPTION: Final = {DELTA: "versionAsOf", ICEBERG: "snapshot-id"}
CONNECTOR_OPTIONS: Final = {
    "timestampasof", "as-of-timestamp", "branch", "tag", "start-snapshot-id", "end-snapshot-id",
    "readchangefeed", "readchangedata", "startingversion", "endingversion", "startingtimestamp", "endingtimestamp",
}  # fmt: skip
"""Reader options of Spark's connectors that choose other rows than those of one snapshot, in lower case."""
ARROW_IO: Final = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


def require_package(format: str) -> None:
    if find_spec(PACKAGES[format]) is None:
        raise Misuse(f"format {format!r} needs the package {PACKAGES[format]}: pip install 'onefold[{format}]'")


def refuse_connector_options(path: str, format: str, options: Iterable[str]) -> None:
    """Refuse options that only Spark's own connector knows: ignored, they would give other rows than were asked for."""
    for name in options:
        if name.lower() in CONNECTOR_OPTIONS:
            raise Misuse(
                f"{path}: option {name!r} needs Spark's own {format} connector, which is not here;"
                f" without it {VERSION_OPTION[format]!r} names a snapshot",
                option=name,
            )


@dataclass(frozen=True, slots=True)
class IcebergName:
    """The name of a table, and its catalogue."""

    catalog: str
    table: tuple[str, ...]
    shown: str
    file: Path | None = None
    """The file, if the catalogue is one."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str, options: Mapping[str, str]) -> IcebergName:
        """Parse an address; `Misuse` if it is none.

        >>> name = IcebergName.parse("lake/catalog.db#db.events", {})
        >>> name.catalog, name.table, str(name.file)
        ('default', ('db', 'events'), 'lake/catalog.db')
        >>> IcebergName.parse("prod.db.events", {}).table
        ('db', 'events')
        """
        where, mark, name = text.rpartition("#")
        parts = tuple(name.split("."))
        if not mark:
            where, *rest = parts
            parts = tuple(rest)
        if len(parts) < 2 or not where or not all(re.fullmatch(r"[\w-]+", part) for part in parts):
            raise Misuse(
                f"{text} names no Iceberg table: it must be like lake/catalog.db#db.events (a catalogue in a SQLite"
                " file), or like prod.db.events (a catalogue of pyiceberg's settings)",
                path=text,
            )
        if not mark:
            return cls(where, parts, text, None, options)
        where = where.removeprefix("file://") if where.startswith("file:///") else where
        file = sqlite_file(where) if "://" in where else where.removeprefix("file:")
        if file is None or "?" in file:
            raise Misuse(f"{text}: a catalogue in a file is a path, such as lake/catalog.db#db.events", path=text)
        return cls("default", parts, text, Path(file), options)

    def others(self) -> list[tuple[str, ...]]:
        """Some of the catalogue's tables."""
        with self.trouble():
            catalog = self.opened()
            return [table for space in catalog.list_namespaces() for table in catalog.list_tables(space)][:10]

    def beside(self, suffix: str) -> IcebergName:
        """The table with this suffix after its name, in the same catalogue."""
        *spaces, last = self.table
        return IcebergName(self.catalog, (*spaces, last + suffix), self.shown + suffix, self.file, self.options)

    def opened(self, *, make: bool = False) -> Catalog:
        """Open the catalogue; ``make``: create the namespace, and the catalogue if it is a file, if missing."""
        require_package(ICEBERG)
        from pyiceberg.catalog import load_catalog

        properties = {**ARROW_IO, **self.options}
        if self.file is not None:
            file = self.file.absolute()
            if make:
                file.parent.mkdir(parents=True, exist_ok=True)
            elif not file.is_file():
                raise Misuse(f"{self.shown}: there is no catalogue at {self.file}", path=self.shown)
            own = {"type": "sql", "uri": f"sqlite:///{file}", "warehouse": file.parent.as_uri()}
            properties = {**own, **properties}
        with self.trouble():
            catalog = load_catalog(properties.pop("name", self.catalog), **properties)
            if make:
                catalog.create_namespace_if_not_exists(self.table[:-1])
        return catalog

    def table_of(self, catalog: Catalog) -> Table | None:
        """The table; None: it does not exist."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.trouble():
            try:
                return catalog.load_table(self.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """Turn errors of a catalogue or its store into one line."""
        from pyiceberg.exceptions import CommitFailedException, RESTError, ServiceUnavailableError

        try:
            yield
        except (CommitFailedException, OnefoldError):
            raise
        except (ValueError, TypeError, ModuleNotFoundError) as error:  # wrong settings
            raise Misuse(f"{self.shown}: {_line(error)}", path=self.shown) from error
        except (OSError, RESTError, ServiceUnavailableError) as error:
            raise OSError(f"{self.shown}: {_line(error)}") from error
        except Exception as error:  # such as SQLAlchemy's, which pyiceberg does not wrap
            raise StoreFailed(f"{self.shown}: {type(error).__name__}: {_line(error)}", path=self.shown) from error


_ICEBERG: Final[Mapping[str, str]] = {
    "boolean": "boolean", "byte": "int", "short": "int", "integer": "int", "long": "long", "float": "float",
    "double": "double", "string": "string", "binary": "binary", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
"""Spark's names of plain types, and Iceberg's."""


def iceberg_schema(schema: T.StructType) -> dict[str, Any]:
    """Spark's schema as Iceberg's JSON, with everything nullable; `Misuse` for a type that Iceberg lacks."""
    numbers = count(1)

    def kind(node: Any, name: str) -> Any:
        if isinstance(node, str):
            if node not in _ICEBERG and not node.startswith("decimal"):
                raise Misuse(f"column {name!r} is {node}, which Iceberg has no type for", column=name)
            return _ICEBERG.get(node, node)
        if node["type"] == "struct":
            own = [(next(numbers), each) for each in node["fields"]]
            fields = [
                {"id": n, "name": each["name"], "required": False, "type": kind(each["type"], name or each["name"])}
                for n, each in own
            ]
            return {"type": "struct", "fields": fields}
        if node["type"] == "array":
            return {
                "type": "list", "element-id": next(numbers), "element-required": False,
                "element": kind(node["elementType"], name),
            }  # fmt: skip
        if node["type"] != "map":
            raise Misuse(f"column {name!r} is {node['type']}, which Iceberg has no type for", column=name)
        ids = {"key-id": next(numbers), "value-id": next(numbers), "value-required": False}
        return {"type": "map", **ids, "key": kind(node["keyType"], name), "value": kind(node["valueType"], name)}

    return {**kind(schema.jsonValue(), ""), "schema-id": 0}


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a snapshot."""

    path: str
    """The path in its file system."""
    size: int
    rows: int
    """Without deleted rows, by the metadata of the table."""
    values: Mapping[str, Any]
    """The partition values by column; these columns may not be in the file."""
    deleted: Any = None
    """The positions of deleted rows, as a sorted array."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table as it was at one moment."""

    format: str
    shown: str
    version: int | None
    """Delta's version, Iceberg's snapshot id; None: the table has none yet."""
    schema: T.StructType
    """The columns; their metadata says how to find them in the files."""
    files: Sequence[LakeFile]
    store: Any = field(repr=False)
    """The file system, which is pickled into the tasks."""

    @property
    def named(self) -> dict[str, Any]:
        return {"format": self.format, "table": self.shown, "version": self.version}

    def only(self, paths: Collection[str]) -> Snapshot:
        """The snapshot restricted to these files; `OSError` if one no longer exists."""
        files = [file for file in self.files if file.path in paths]
        if gone := {*paths} - {file.path for file in files}:
            raise OSError(f"{self.shown}: version {self.version} has no file {min(gone)}: it was replaced meanwhile")
        return replace(self, files=files)

    def read(self, spark: SparkSession, at: str | None = None) -> DataFrame:
        """The rows. ``at``: add a column of this name with the file of each row."""
        schema = T.StructType([*_plain(self.schema), *([T.StructField(at, T.StringType())] if at else [])])
        cuts = [(n, max(1, -(-file.size // SLICE_BYTES))) for n, file in enumerate(self.files) if file.rows]
        units = [(n, part, parts) for n, parts in cuts for part in range(parts)]
        if not units:
            return spark.createDataFrame([], schema)
        numbered = T.StructType([T.StructField(f"c{i}", each.dataType) for i, each in enumerate(schema)])
        read = partial(_read_units, self.store, self.files, units, self.schema, arrow_schema(numbered), at is not None)
        rows = spark.range(0, len(units), 1, min(len(units), TASKS_MAX)).mapInArrow(read, numbered)
        return rows.toDF(*schema.names)


def open_snapshot(path: str, format: str, options: Mapping[str, str]) -> Snapshot:
    """The newest snapshot of a table, or the one that the options name (``versionAsOf``, ``snapshot-id``).

    `Misuse` if there is none, or if it uses features that would be read wrongly; `OSError` if its store fails.
    """
    require_package(format)
    name = VERSION_OPTION[format].lower()  # Spark's option names are case-insensitive
    own = {option: value for option, value in options.items() if option.lower() != name}
    version = next((value for option, value in options.items() if option.lower() == name), None)
    if version is not None and not version.isdecimal():
        raise Misuse(f"{path}: the version is {version!r}, must be a number", path=path)
    wanted = None if version is None else int(version)
    return (_delta if format == DELTA else _iceberg)(path, wanted, own)


def _delta(path: str, version: int | None, options: Mapping[str, str]) -> Snapshot:
    from deltalake import DeltaTable
    from deltalake.fs import DeltaStorageHandler

    with delta_trouble(path):
        table = DeltaTable(delta_url(path), version=version, storage_options=dict(options) or None)
        protocol, configuration = table.protocol(), table.metadata().configuration
        unknown = {*(protocol.reader_features or ())} - DELTA_FEATURES
        mapping = configuration.get("delta.columnMapping.mode", "none")
        if unknown or mapping not in ("none", "name", "id"):
            what = ", ".join(sorted(unknown)) or f"column mapping by {mapping}"
            raise Misuse(f"{path}: this Delta table needs {what}, which only its own connector reads", path=path)
        schema = _delta_columns(json.loads(table.schema().to_json()), mapping)
        actions = pa.table(table.get_add_actions()).to_pylist()
        masks = (
            pa.table(table.deletion_vectors()).to_pylist()
            if "deletionVectors" in (protocol.reader_features or ())
            else []
        )
    store = fs.PyFileSystem(DeltaStorageHandler(table.table_uri, dict(options)))
    physical = {(each.metadata[NAMES] or [each.name])[0]: each.name for each in schema}
    root = f"{table.table_uri.rstrip('/')}/"
    kept = {unquote(each["filepath"].removeprefix(root)): np.array(each["selection_vector"], bool) for each in masks}
    files = []
    for action in actions:
        name = unquote(action["path"])
        if "://" in name or name.startswith("/"):
            raise Misuse(
                f"{path}: its file {name} lies elsewhere (a shallow clone): only Delta's own connector reads that"
            )
        deleted = np.flatnonzero(~kept.pop(name)) if name in kept else None
        rows = action["num_records"]
        if rows is None:
            with store.open_input_file(name) as raw:
                rows = pq.read_metadata(raw).num_rows
        values = {physical.get(key, key): value for key, value in (action.get("partition") or {}).items()}
        files.append(
            LakeFile(name, action["size_bytes"], rows - (0 if deleted is None else len(deleted)), values, deleted)
        )
    if kept:
        raise Misuse(f"{path}: rows are deleted in {min(kept)}, which is no file of this Delta table", path=path)
    return Snapshot(DELTA, path, table.version(), schema, files, store)


@contextmanager
def delta_trouble(path: str) -> Iterator[None]:
    """Turn errors of deltalake into one line, except failed commits."""
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

    try:
        yield
    except CommitFailedError:
        raise
    except TableNotFoundError as error:
        raise Misuse(f"there is no Delta table at {path}", path=path) from error
    except DeltaError as error:
        raise Misuse(f"{path}: {_line(error)}", path=path) from error


def delta_url(path: str) -> str:
    """The URL as deltalake spells it: s3a and s3n are Hadoop's names for s3."""
    return re.sub("^s3[an]:", "s3:", path.removeprefix("file://") if path.startswith("file:///") else path)


def _delta_columns(node: Any, mapping: str) -> Any:
    """The schema of the log as Spark's; the metadata of each column says how to find it in the files."""

    def marked(inner: Any) -> Any:
        if isinstance(inner, list):
            return [marked(each) for each in inner]
        if not isinstance(inner, dict):
            return inner
        own = {name: marked(each) for name, each in inner.items() if name != "metadata"}
        if "metadata" in inner:
            about, has = inner["metadata"], mapping != "none"
            names = [about.get("delta.columnMapping.physicalName", inner["name"]) if has else inner["name"]]
            number = about.get("delta.columnMapping.id") if mapping == "id" else None
            own["metadata"] = {NAMES: names} if number is None else {NAMES: names, ID: number}
        return own

    try:
        return T.StructType.fromJson(marked(node))
    except Exception as error:  # for an unknown type, each version of Spark raises another exception
        raise Misuse(f"the columns of this Delta table are not Spark's: {_line(error)}") from error


def _iceberg(path: str, version: int | None, options: Mapping[str, str]) -> Snapshot:
    name = IcebergName("", (), path, None, options) if is_metadata(path) else IcebergName.parse(path, options)
    table: Any = _static(name) if is_metadata(path) else name.table_of(name.opened())
    if table is None:
        there = [".".join(each) for each in name.others()]
        raise Misuse(
            f"{path}: there is no table {'.'.join(name.table)} in the catalogue"
            f" {name.options.get('name', name.catalog)!r}; there are {', '.join(there) or 'none'}",
            path=path,
        )
    with name.trouble():
        if version is not None and table.snapshot_by_id(version) is None:
            raise Misuse(f"{path} has no snapshot {version} any more", path=path)
        scan = table.scan(snapshot_id=version)
        snapshot = scan.snapshot()
        tasks = [*scan.plan_files()] if snapshot is not None else []
        names = table.name_mapping()
        mapped = None if names is None else _mapped_names(json.loads(names.model_dump_json()))
        schema = spark_schema(json.loads(scan.projection().model_dump_json(by_alias=True)), mapped)
        scheme, netloc, _ = table.io.parse_location(table.location(), table.io.properties)
        store = table.io.fs_by_scheme(scheme, netloc)
        deletes = _positions(table, tasks)
    by_id = {each.metadata[ID]: each.name for each in schema}
    files = []
    for file in (task.file for task in tasks):
        if str(file.file_format).rpartition(".")[2] != "PARQUET":
            raise Misuse(f"{path}: {file.file_path} is {file.file_format}: only Parquet is read here", path=path)
        values = {}
        for place, each in enumerate(table.specs()[file.spec_id].fields):
            if str(each.transform) == "identity" and each.source_id in by_id:
                values[by_id[each.source_id]] = file.partition[place]
        deleted = deletes.get(file.file_path)
        rows = file.record_count - (0 if deleted is None else len(deleted))
        at = table.io.parse_location(file.file_path, table.io.properties)[2]
        files.append(LakeFile(at, file.file_size_in_bytes, rows, values, deleted))
    return Snapshot(ICEBERG, path, None if snapshot is None else snapshot.snapshot_id, schema, files, store)


def is_metadata(path: str) -> bool:
    return path.endswith(".metadata.json")


def _static(name: IcebergName) -> Any:
    require_package(ICEBERG)
    from pyiceberg.table import StaticTable

    path = name.shown if "://" in name.shown else str(Path(name.shown.removeprefix("file:")).absolute())
    with name.trouble():
        try:
            return StaticTable.from_metadata(path, {**ARROW_IO, **name.options})
        except FileNotFoundError as error:
            raise Misuse(f"there is nothing at {name.shown}", path=name.shown) from error


def _positions(table: Any, tasks: Iterable[Any]) -> dict[str, Any]:
    """The positions of deleted rows by data file, from the position delete files."""
    wanted: dict[str, set[str]] = {}
    for task in tasks:
        for delete in task.delete_files:
            kind = str(delete.file_format).rpartition(".")[2]
            if kind != "PARQUET":
                raise Misuse(f"{delete.file_path}: rows are deleted by a {kind} file: only Parquet is read here")
            wanted.setdefault(delete.file_path, set()).add(task.file.file_path)
    found: dict[str, list[Any]] = {}
    for delete, of in wanted.items():
        with table.io.new_input(delete).open() as raw:
            rows = pq.read_table(pa.BufferReader(raw.read()), columns=["file_path", "pos"])
        for path in of:
            found.setdefault(path, []).append(rows.filter(pc.equal(rows["file_path"], path))["pos"].to_numpy())
    deleted = {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}
    if (many := sum(map(len, deleted.values()))) > DELETED_MAX:
        raise Misuse(f"{many:,} rows are deleted by position, more than {DELETED_MAX:,}: compact the table first")
    return deleted


def _mapped_names(mapping: Any) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for each in mapping:
        if each.get("field-id") is not None:
            names[each["field-id"]] = each["names"]
        names |= _mapped_names(each.get("fields") or [])
    return names


def spark_schema(node: Any, mapped: Mapping[int, list[str]] | None) -> Any:
    """Iceberg's schema as Spark's; each column has its number, and its names in files without numbers, as metadata."""

    def kind(node: Any, name: str) -> T.DataType:
        if isinstance(node, str):
            if match := re.fullmatch(r"decimal\((\d+), ?(\d+)\)", node):
                return T.DecimalType(int(match[1]), int(match[2]))
            if node == "uuid":
                return T.StringType()
            word = "binary" if node.startswith("fixed") else _FROM_ICEBERG.get(node)
            if word is None:
                raise Misuse(f"column {name!r} is {node} in Iceberg, which Spark has no type for here", column=name)
            return T.StructField.fromJson({"name": "x", "type": word, "nullable": True, "metadata": {}}).dataType
        if node["type"] == "list":
            return T.ArrayType(kind(node["element"], name))
        if node["type"] == "map":
            return T.MapType(kind(node["key"], name), kind(node["value"], name))
        fields = []
        for each in node["fields"]:
            if each.get("initial-default") is not None:
                raise Misuse(f"column {each['name']!r} has a default for rows written before it: not read here")
            about: dict[str, Any] = {ID: each["id"]}
            if mapped is not None:
                about[NAMES] = mapped.get(each["id"], [])
            fields.append(T.StructField(each["name"], kind(each["type"], name or each["name"]), True, about))
        return T.StructType(fields)

    return kind({"type": "struct", "fields": node["fields"]}, "")


_FROM_ICEBERG: Final = {word: name for name, word in _ICEBERG.items() if name not in ("byte", "short")}


def _plain(schema: T.StructType) -> list[T.StructField]:
    """The columns without our metadata."""

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(each) for each in node]
        if isinstance(node, dict):
            return {name: {} if name == "metadata" else plain(each) for name, each in node.items()}
        return node

    return T.StructType.fromJson(plain(schema.jsonValue())).fields


def _read_units(
    store: Any, files: Sequence[LakeFile], units: Sequence[tuple[int, int, int]], schema: T.StructType,
    target: pa.Schema, tells_file: bool, batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Read some slices of files; runs in a task."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            place, part, parts = units[number]
            try:
                yield from _read_slice(store, files[place], part, parts, schema, target, tells_file)
            except (OSError, pa.ArrowException) as error:
                raise OSError(f"cannot read {files[place].path}: {_line(error)}") from None


def _read_slice(
    store: Any, file: LakeFile, part: int, parts: int, schema: T.StructType, target: pa.Schema, tells_file: bool
) -> Iterator[pa.RecordBatch]:
    with store.open_input_file(file.path) as raw:
        parquet = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us")
        groups = parquet.num_row_groups
        own = pa.struct([*parquet.schema_arrow])
        at = 0
        for group in range(groups):
            rows = parquet.metadata.row_group(group).num_rows
            if group * parts // groups == part:
                start = at
                for batch in parquet.iter_batches(BATCH_ROWS, [group]):
                    yield _fitted(batch, own, start, file, schema, target, tells_file)
                    start += batch.num_rows
            at += rows


def _fitted(
    batch: pa.RecordBatch, own: pa.DataType, start: int, file: LakeFile, schema: T.StructType, target: pa.Schema,
    tells_file: bool,
) -> pa.RecordBatch:  # fmt: skip
    """Rows of a file in the columns of the table, without deleted rows. ``start``: the first row's position."""
    if file.deleted is not None and len(file.deleted):
        first, last = np.searchsorted(file.deleted, [start, start + batch.num_rows])
        stays = np.ones(batch.num_rows, bool)
        stays[file.deleted[first:last] - start] = False
        batch = batch.filter(pa.array(stays))
    has_ids = any(FIELD_ID in (each.metadata or {}) for each in own)
    columns = []
    for each, wanted in zip(schema, target, strict=False):
        place = _place(each, own, has_ids)
        if place is not None:
            columns.append(_cast(batch.column(place), own[place].type, each.dataType, wanted.type, has_ids))
        else:
            columns.append(pa.repeat(_constant(file.values.get(each.name), wanted.type), batch.num_rows))
    if tells_file:
        columns.append(pa.repeat(pa.scalar(file.path), batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _place(column: T.StructField, own: pa.DataType, has_ids: bool) -> int | None:
    """The index of a column in a file or a struct; None: it does not have the column."""
    number, names = column.metadata.get(ID), column.metadata.get(NAMES)
    if number is not None and has_ids:
        numbers = [int((each.metadata or {}).get(FIELD_ID, -1)) for each in own]
        return numbers.index(number) if number in numbers else None
    if names is None:
        raise OSError("its columns have no numbers, and the table has no names for them (schema.name-mapping.default)")
    return next((i for i, each in enumerate(own) if each.name in names), None)


def _constant(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, UUID):
        value = str(value)
    if type(value) is int and pa.types.is_temporal(kind):  # Iceberg's days and microseconds
        return pa.scalar(value, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def _cast(values: Any, own: pa.DataType, kind: T.DataType, target: pa.DataType, has_ids: bool) -> Any:
    """Values of a file in the table's type, whatever columns a struct had when it was written."""
    if isinstance(kind, T.StructType):
        children = []
        for i, each in enumerate(kind):
            place = _place(each, own, has_ids)
            if place is None:
                children.append(pa.nulls(len(values), target[i].type))
            else:
                children.append(_cast(values.field(place), own[place].type, each.dataType, target[i].type, has_ids))
        return pa.StructArray.from_arrays(children, fields=[*target], mask=values.is_null())
    if isinstance(kind, T.ArrayType):
        inner = _cast(values.values, own.value_type, kind.elementType, target.value_type, has_ids)
        return _nested(values, target, inner)
    if isinstance(kind, T.MapType):
        keys = _cast(values.keys, own.key_type, kind.keyType, target.key_type, has_ids)
        items = _cast(values.items, own.item_type, kind.valueType, target.item_type, has_ids)
        return _nested(
            values, target, pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
        )
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if isinstance(kind, T.StringType) and pa.types.is_fixed_size_binary(values.type):
        return pa.array([None if each is None else str(UUID(bytes=each)) for each in values.to_pylist()], target)
    return values if values.type == target else values.cast(target)


def _nested(values: Any, target: pa.DataType, inner: Any) -> Any:
    """The same lists with other elements. Built from buffers, because from offsets Arrow loses which lists are null."""
    if pa.types.is_large_list(values.type):
        values = values.cast(pa.list_(values.type.value_field))
    validity, offsets = values.buffers()[:2]
    return pa.Array.from_buffers(target, len(values), [validity, offsets], offset=values.offset, children=[inner])


def _line(error: Any) -> str:
    return " ".join((str(error).strip() or type(error).__name__).splitlines()[0].split())[:300]
