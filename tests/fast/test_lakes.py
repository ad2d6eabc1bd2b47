"""Tables of a lake are read as their metadata says: what no file shows is there, and what it shows may not be."""

import json
import os
import struct
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark import lakes
from onefold.spark.dialect import arrow_schema

COMMON: dict[str, Any] = {
    "t": datetime(1600, 1, 1, tzinfo=UTC), "n": datetime(2024, 1, 1), "d": date(1582, 10, 15), "dec": Decimal("-1.5"),
    "b": b"\0\xff", "i": 7,
}  # fmt: skip
NESTED: list[dict[str, Any]] = [
    {"id": 1, "l": None, "ls": None, "m": None, "s": None},
    {"id": 2, "l": [], "ls": [], "m": [], "s": {"x": None, "l": None}},
    {"id": 3, "l": [None], "ls": [None], "m": [("a", None)], "s": {"x": 1, "l": []}},
    {"id": 4, "l": [1], "ls": [{"x": None, "z": "q"}], "m": [("a", {"x": None})], "s": {"x": 1, "l": [None]}},
]
SCHEMA = pa.schema({
    "id": pa.int64(), "i": pa.int32(), "l": pa.list_(pa.int32()),
    "ls": pa.list_(pa.struct([("x", pa.int32()), ("z", pa.string())])),
    "m": pa.map_(pa.string(), pa.struct([("x", pa.int32())])),
    "s": pa.struct([("x", pa.int32()), ("l", pa.list_(pa.string()))]),
    "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"), "d": pa.date32(), "dec": pa.decimal128(38, 18),
    "b": pa.binary(),
})  # fmt: skip
ROWS = pa.Table.from_pylist([*(row | COMMON for row in NESTED), {"id": 5}], schema=SCHEMA)


def rows(snapshot):
    """What the tasks give to Spark."""
    schema = arrow_schema(T.StructType(lakes._plain(snapshot.schema)))
    units = [(n, 0, 1) for n in range(len(snapshot.files))]
    numbers = pa.record_batch({"id": pa.array(range(len(units)), pa.int64())})
    read = lakes._read_units(snapshot.store, snapshot.files, units, snapshot.schema, schema, False, iter([numbers]))
    table = pa.Table.from_batches(list(read), schema)
    assert len(table) == sum(file.rows for file in snapshot.files)  # as the metadata says
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.fixture
def lake(tmp_path):
    """A catalogue in a file, and how a table in it is named."""
    catalog = load_catalog(
        "default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri()
    )  # fmt: skip
    catalog.create_namespace("db")
    return catalog, lambda name, **options: lakes.open_snapshot(f"{tmp_path}/catalog.db#{name}", "iceberg", options)


def test_every_type_of_a_file_that_was_added_to_iceberg_is_what_it_was(lake, tmp_path):
    catalog, opened = lake
    ids = pa.array([uuid.UUID(int=n).bytes for n in range(5)], pa.uuid())
    table = ROWS.append_column("u", ids)
    pq.write_table(table, tmp_path / "a.parquet")
    catalog.create_table("db.a", schema=table.schema).add_files([(tmp_path / "a.parquet").as_uri()])
    found = rows(opened("db.a"))
    assert [row.pop("u") for row in found] == [str(uuid.UUID(int=n)) for n in range(5)]
    assert found == ROWS.to_pylist()  # pyiceberg itself reads lists that are null as empty ones


def test_columns_of_iceberg_are_found_by_their_numbers_whatever_they_were_called(lake):
    catalog, opened = lake
    before = [("id", pa.int32()), ("old", pa.string()), ("gone", pa.int64()),
              ("s", pa.struct([("x", pa.int64()), ("y", pa.string())])), ("p", pa.string())]  # fmt: skip
    table = catalog.create_table("db.e", schema=pa.schema(before))
    with table.update_spec() as spec:
        spec.add_identity("p")
    first = [{"id": 1, "old": "a", "gone": 1, "s": {"x": 1, "y": "q"}, "p": "A"},
             {"id": 2, "old": "b", "gone": 2, "s": None, "p": None}]  # fmt: skip
    table.append(pa.Table.from_pylist(first, pa.schema(before)))
    version = opened("db.e").version
    with table.update_schema() as schema:
        schema.rename_column("old", "name")
        schema.delete_column("gone")
        schema.update_column("id", field_type=LongType())
        schema.rename_column(("s", "x"), "xx")
        schema.add_column(("s", "w"), LongType())
    with table.update_schema() as schema:
        schema.add_column("old", LongType())  # another one of an earlier name
    after = [("id", pa.int64()), ("name", pa.string()), ("p", pa.string()), ("old", pa.int64()),
             ("s", pa.struct([("xx", pa.int64()), ("y", pa.string()), ("w", pa.int64())]))]  # fmt: skip
    new = {"id": 3, "name": "c", "s": {"xx": 3, "y": "r", "w": 9}, "p": "C", "old": 44}
    table.append(pa.Table.from_pylist([new], pa.schema(after)))
    assert rows(opened("db.e")) == [
        {"id": 1, "name": "a", "s": {"xx": 1, "y": "q", "w": None}, "p": "A", "old": None},
        {"id": 2, "name": "b", "s": None, "p": None, "old": None},
        new,
    ]
    assert rows(opened("db.e", **{"snapshot-id": str(version)})) == first
    assert rows(lakes.open_snapshot(table.metadata_location, "iceberg", {}))[2] == new


def test_a_partition_of_iceberg_whose_column_is_in_no_file_has_its_value(lake, tmp_path):
    catalog, opened = lake
    table = catalog.create_table("db.p", schema=pa.schema([("id", pa.int64()), ("day", pa.date32())]))
    with table.update_spec() as spec:
        spec.add_identity("day")
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), file)
    add_file(table, file, 1, DataFileContent.DATA, Record(19_782), names=True)
    assert rows(opened("db.p")) == [{"id": 1, "day": date(2024, 2, 29)}]


def test_rows_that_iceberg_deleted_by_position_are_not_there(lake, tmp_path):
    catalog, opened = lake
    table = catalog.create_table("db.d", schema=pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": list(range(40_000))}))
    (file,) = (task.file.file_path for task in table.scan().plan_files())
    deletes = tmp_path / "deletes.parquet"
    positions = [0, 1, 1, 16_384, 39_999]
    pq.write_table(pa.table({"file_path": [file] * 5 + ["another"], "pos": pa.array([*positions, 7])}), deletes)
    add_file(table, deletes, 6, DataFileContent.POSITION_DELETES, Record())
    assert [row["id"] for row in rows(opened("db.d"))] == sorted({*range(40_000)} - {*positions})
    puffin = deletes.rename(tmp_path / "deletes.puffin")
    add_file(table, puffin, 6, DataFileContent.POSITION_DELETES, Record(), FileFormat.PUFFIN)
    with pytest.raises(Misuse, match="rows are deleted by a PUFFIN file: only Parquet is read here"):
        opened("db.d")
    add_file(table, puffin, 6, DataFileContent.EQUALITY_DELETES, Record())
    with pytest.raises(Misuse, match="does not yet support equality deletes"):
        opened("db.d")


def add_file(table, file, count, content, partition, format=FileFormat.PARQUET, *, names=False):
    """A file as other writers commit it, which pyiceberg itself does not make."""
    size = os.path.getsize(file)
    none: Any = dict.fromkeys(("key_metadata", "split_offsets", "equality_ids", "sort_order_id"))
    names_of = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    stats: Any = {name: {} for name in names_of}
    entry = DataFile.from_args(
        content=content, file_path=file.as_uri(), file_format=format, partition=partition, record_count=count,
        file_size_in_bytes=size, **stats, **none,
    )  # fmt: skip
    entry.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        if names:
            mapping = table.schema().name_mapping.model_dump_json()
            transaction.set_properties({"schema.name-mapping.default": mapping})
        with transaction.update_snapshot().fast_append() as append:
            append.append_data_file(entry)


def test_partitions_of_delta_stand_in_the_log_whatever_the_folders_say(tmp_path):
    values = ["a b", "x/y", "50%", None]
    table = (
        ROWS.slice(0, 4).append_column("p", pa.array(values)).append_column("day", pa.array([date(2024, 2, 29)] * 4))
    )
    write_deltalake(tmp_path / "t", table, partition_by=["p", "day"])
    assert rows(lakes.open_snapshot(str(tmp_path / "t"), "delta", {})) == table.to_pylist()
    write_deltalake(tmp_path / "t", table.slice(0, 1), mode="overwrite")
    assert len(rows(lakes.open_snapshot(str(tmp_path / "t"), "delta", {}))) == 1
    for option in ("versionAsOf", "versionasof"):
        assert len(rows(lakes.open_snapshot(str(tmp_path / "t"), "delta", {option: "0"}))) == 4


def delta(folder, columns, adds, *, features=(), configuration=None, reader=3):
    """A table as its protocol describes it, written by hand."""
    protocol = {"minReaderVersion": reader, "minWriterVersion": 7 if reader == 3 else 5}
    if reader == 3:
        protocol |= {"readerFeatures": [*features], "writerFeatures": [*features]}
    about: dict[str, Any] = {
        "id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
        "schemaString": json.dumps({"type": "struct", "fields": columns}), "configuration": configuration or {},
        "createdTime": 0,
    }  # fmt: skip
    actions = [{"protocol": protocol}, {"metaData": about}, *({"add": each} for each in adds)]
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def added(file, **more):
    size, count = file.stat().st_size, pq.read_metadata(file).num_rows
    stats = json.dumps({"numRecords": count})
    return {"path": file.name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True,
            "stats": stats, **more}  # fmt: skip


@pytest.mark.parametrize(("mode", "reader"), [("name", 2), ("name", 3), ("id", 3)])
def test_columns_of_delta_that_were_renamed_are_found_by_what_they_are_called_in_the_files(tmp_path, mode, reader):
    folder = tmp_path / "t"
    folder.mkdir()

    def column(name, number, kind="long"):
        about = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
        return {"name": name, "type": kind, "nullable": True, "metadata": about}

    def numbered(name, number, kind):
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    inner = pa.struct([numbered("col-3", 3, pa.int64())])
    # By number the names in the file do not matter.
    names = ["col-1", "col-2"] if mode == "name" else ["x", "y"]
    schema = pa.schema([numbered(names[0], 1, pa.int64()), numbered(names[1], 2, inner)])
    pq.write_table(pa.table({names[0]: [1, 2], names[1]: [{"col-3": 7}, None]}, schema=schema), folder / "a.parquet")
    columns = [column("id", 1), column("s", 2, {"type": "struct", "fields": [column("deep", 3)]})]
    features = ["columnMapping"] if reader == 3 else []
    configuration = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "3"}
    delta(folder, columns, [added(folder / "a.parquet")], features=features, configuration=configuration, reader=reader)
    assert rows(lakes.open_snapshot(str(folder), "delta", {})) == [{"id": 1, "s": {"deep": 7}}, {"id": 2, "s": None}]


def deletion_vector(positions):
    """A small bitmap, inline: Delta's magic, one 32-bit Roaring bitmap with one array, in Z85."""
    array = struct.pack(f"<{len(positions)}H", *positions)
    roaring = struct.pack("<IIHHI", 12_346, 1, 0, len(positions) - 1, 16) + array
    data = struct.pack("<iqi", 1_681_511_377, 1, 0) + roaring
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text, padded = "", data + bytes(-len(data) % 4)
    for (word,) in struct.iter_unpack(">I", padded):
        text += "".join(alphabet[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(positions)}


def test_rows_that_a_deletion_vector_of_delta_names_are_not_there(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    for name in "ab":
        pq.write_table(pa.table({"id": [1, 2, 3, 4]}), folder / f"{name}.parquet")
    column = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    adds = [added(folder / "a.parquet", deletionVector=deletion_vector([0, 2])), added(folder / "b.parquet")]
    delta(folder, [column], adds, features=["deletionVectors"])
    assert [row["id"] for row in rows(lakes.open_snapshot(str(folder), "delta", {}))] == [1, 2, 2, 3, 4, 4]


def test_a_deletion_vector_is_of_one_file_whatever_others_are_called(tmp_path):
    folder = tmp_path / "t x"
    (folder / "p").mkdir(parents=True)
    for file in (folder / "a.parquet", folder / "p" / "a.parquet"):
        pq.write_table(pa.table({"id": [1, 2, 3, 4]}), file)
    column = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    deep = {**added(folder / "p" / "a.parquet", deletionVector=deletion_vector([0, 2])), "path": "p/a.parquet"}
    delta(folder, [column], [added(folder / "a.parquet"), deep], features=["deletionVectors"])
    assert [row["id"] for row in rows(lakes.open_snapshot(str(folder), "delta", {}))] == [1, 2, 2, 3, 4, 4]


def test_what_nobody_here_understands_is_refused_in_one_line(tmp_path, lake):
    column = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    delta(tmp_path / "new", [column], [], features=["somethingNew"])
    with pytest.raises(Misuse) as caught:
        lakes.open_snapshot(str(tmp_path / "new"), "delta", {})
    assert "somethingNew" in str(caught.value)
    assert "\n" not in str(caught.value)
    (tmp_path / "far").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    delta(tmp_path / "clone", [column], [{**added(tmp_path / "a.parquet"), "path": (tmp_path / "a.parquet").as_uri()}])
    with pytest.raises(Misuse, match="lies elsewhere"):
        lakes.open_snapshot(str(tmp_path / "clone"), "delta", {})
    for path, format, words in [
        (f"{tmp_path}/nix", "delta", "there is no Delta table at"),
        (f"{tmp_path}/nix.db#db.x", "iceberg", "there is no catalogue at"),
        (f"{tmp_path}/catalog.db#db.x", "iceberg", "there is no table db.x in the catalogue 'default'; there are none"),
        ("nowhere.db.x", "iceberg", "nowhere.db.x: "),
        ("events", "iceberg", "names no Iceberg table: it must be like lake/catalog.db#db.events"),
        (f"{tmp_path}/v1.metadata.json", "iceberg", "there is nothing at"),
    ]:
        with pytest.raises(Misuse, match=words):
            lakes.open_snapshot(path, format, {})
