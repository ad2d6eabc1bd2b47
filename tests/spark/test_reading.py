"""Reading a source: no message is changed, lost or invented by how it is stored, and no file is skipped."""

import gzip
import json
import os
import re
import time

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.spark import run as jobs
from onefold.spark.audits import AuditFailed
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ChainColumns
from onefold.spark.files import Manifest, SourceFile
from onefold.spark.ingest import SourceSpec
from onefold.spark.stream import Watcher
from tests.lib.reading import (
    BAD_FILES,
    DEVICES,
    GOOD,
    GOOD_LINES,
    ODD,
    published,
    put_good,
    read,
    run,
    stream,
    streamed,
)


def test_odd_lines_of_json_are_rejected_with_their_text_and_those_around_them_are_untouched(spark, tmp_path):
    (tmp_path / "in").mkdir()
    for number, odd in enumerate(ODD.values()):
        good = [line.replace('"device": "', f'"device": "{number} ') for line in GOOD]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join([*good[:2], odd, good[2]]) + "\n")
    result = run(spark, tmp_path / "in", tmp_path / "out")
    rows = published(tmp_path / "out")
    bad = [row for row in rows if row["_corrupt_record"] is not None]
    assert sorted(row["_corrupt_record"] for row in bad) == sorted(ODD.values())
    assert {(row["reason"], row["device"], row["ts"]) for row in bad} == {("malformed", None, None)}
    others = sorted((row["device"], row["ts"], row["verdict"]) for row in rows if row["_corrupt_record"] is None)
    names = [(f"{number} {name}", ts, "FIRST") for number in range(len(ODD)) for name, ts in ("a1", "a2", "b1")]
    assert others == sorted(names)
    assert result.tally.received == 4 * len(ODD)


def test_bytes_that_are_no_text_spoil_their_own_line_only(spark, tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"device": "a", "ts": 1}\n{"device": "\xff\xfe", "ts": 1}\n')
    rows, _ = read(spark, tmp_path / "x.jsonl")
    assert sorted(row["reason"] for row in rows) == ["malformed", "new_chain"]
    assert '{"device": "��", "ts": 1}' in {row["_corrupt_record"] for row in rows}


def test_two_spellings_of_a_key_in_different_lines_are_one_column(spark, tmp_path):
    lines = ['{"device": "a", "ts": 1, "Note": "x"}', '{"device": "b", "ts": 1, "note": "y"}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    rows, _ = read(spark, tmp_path / "x.jsonl")
    assert {row["device"]: row["note"] for row in rows} == {"a": "x", "b": "y"}


NUMBERS = ["1", "1.0", "1e0", "12345678901234567890.123456789"]


@pytest.mark.parametrize("keys", [NUMBERS, [*NUMBERS, '"001"', '"01"', "true", '"{}"']], ids=["numbers", "mixed"])
@pytest.mark.parametrize("odd", [[], ["{"]], ids=["clean", "with an odd line"])
def test_keys_keep_their_text_as_it_is_written(spark, tmp_path, odd, keys):
    (tmp_path / "x.jsonl").write_text("\n".join([*(f'{{"device": {key}, "ts": 5}}' for key in keys), *odd]) + "\n")
    rows, manifest = read(spark, tmp_path / "x.jsonl")
    assert {row["device"] for row in rows if row["reason"] != "malformed"} == {key.strip('"') for key in keys}
    assert all(("_corrupt_record" in row) == bool(odd) for row in rows)
    assert [row["verdict"] for row in rows].count("FIRST") == len(keys)
    assert manifest.rows == len(rows) == len(keys) + len(odd)


@pytest.mark.parametrize("odd", [[], ["{"]], ids=["clean", "with an odd line"])
def test_columns_of_json_are_those_of_all_lines_with_the_types_that_all_values_have(spark, tmp_path, odd):
    lines = [{"device": "a", "ts": 1, "n": 1, "x": 1.5, "mixed": 1, "in": {"k": [{"a": 1}]}, "none": None, "o": {}}]
    lines += [{"device": "b", "ts": 1, "n": 2, "x": 2, "mixed": "two", "in": {"k": [{"b": "t"}]}, "a.b c": True}]
    (tmp_path / "x.jsonl").write_text("\n".join([*map(json.dumps, lines), *odd]) + "\n")
    rows = {row["device"]: row for row in read(spark, tmp_path / "x.jsonl")[0] if row["reason"] != "malformed"}
    assert (rows["a"]["n"], rows["a"]["x"], rows["a"]["mixed"], rows["a"]["o"]) == (1, 1.5, "1", "{}")
    assert (rows["b"]["n"], rows["b"]["x"], rows["b"]["mixed"], rows["b"]["a.b c"]) == (2, 2.0, "two", True)
    assert rows["a"]["in"] == {"k": [{"a": 1, "b": None}]}
    assert rows["b"]["in"] == {"k": [{"a": None, "b": "t"}]}


def test_blank_lines_are_no_messages_and_are_counted_apart(spark, tmp_path):
    (tmp_path / "x.jsonl").write_text("\n \t\n" + GOOD[0] + "\r\n\r\n" + GOOD[1] + "\n\n")
    rows, manifest = read(spark, tmp_path / "x.jsonl")
    told = manifest.to_dict()
    assert (len(rows), told["rows"], told["blank"], told["not_counted"]) == (2, 2, 4, None)


def test_json_with_several_lines_to_a_value_is_read_as_the_option_says_and_not_counted(spark, tmp_path):
    (tmp_path / "x.json").write_text('[{"device": "a",\n "ts": 1}, {"device": "b", "ts": 1}]')
    rows, manifest = read(spark, tmp_path / "x.json", format="json", options={"multiLine": "true"})
    assert len(rows) == 2
    assert "several lines" in manifest.to_dict()["not_counted"]


def test_values_of_partition_folders_are_text_unless_they_are_to_be_guessed(spark, tmp_path):
    for value in ("001", "1", "01"):
        (tmp_path / "in" / f"device={value}").mkdir(parents=True)
        pq.write_table(pa.table({"ts": [5]}), tmp_path / "in" / f"device={value}" / "x.parquet")
    inferred = spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled")
    text, _ = read(spark, tmp_path / "in", format="parquet")
    assert {row["device"]: row["verdict"] for row in text} == dict.fromkeys(["001", "1", "01"], "FIRST")
    guessed, _ = read(spark, tmp_path / "in", format="parquet", partition_types="infer")
    assert sorted(row["verdict"] for row in guessed) == ["FIRST", "REPEAT", "REPEAT"]
    assert spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled") == inferred


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_values_of_partition_folders_are_text_in_text_formats_too(spark, tmp_path, format):
    for value in ("001", "1"):
        (tmp_path / "in" / f"device={value}").mkdir(parents=True)
        text = '{"ts": 5}\n' if format == "jsonl" else "ts\n5\n"
        (tmp_path / "in" / f"device={value}" / f"x.{format}").write_text(text)
    rows, _ = read(spark, tmp_path / "in", format=format)
    assert {row["device"]: row["verdict"] for row in rows} == {"001": "FIRST", "1": "FIRST"}


def test_each_csv_file_is_read_by_its_own_header(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("device,ts,value\na,1,x\n")
    (tmp_path / "in" / "2.csv").write_text("ts,device\n2,a\n3,b\n")
    (tmp_path / "in" / "3.csv").write_text("\n\ndevice,ts,value\nc,7,z\n\n")
    rows, manifest = read(spark, tmp_path / "in", format="csv")
    values = sorted((row["device"], row["ts"], row["value"] or "") for row in rows)
    assert values == [("a", "1", "x"), ("a", "2", ""), ("b", "3", ""), ("c", "7", "z")]
    assert (manifest.rows, manifest.to_dict()["header"]) == (4, 3)
    assert {row["verdict"] for row in rows} == {"FIRST"}


def test_csv_options_still_work_and_say_what_they_keep_from_being_counted(spark, tmp_path):
    (tmp_path / "semicolons.csv").write_text("a;1\nb;1\n")
    names = ChainColumns(
        key=("_c0",), timestamp="_c1", sequence=None, previous_timestamp=None, previous_sequence=None, arrival=None
    )
    options = {"sep": ";", "header": "false"}
    rows, manifest = read(spark, tmp_path / "semicolons.csv", "csv", ChainsEngine(columns=names), options=options)
    assert (len(rows), manifest.rows) == (2, 2)
    (tmp_path / "notes.csv").write_text('device,ts,note\na,1,"two\nlines"\n')
    rows, manifest = read(spark, tmp_path / "notes.csv", format="csv", options={"multiLine": "true"})
    assert [row["note"] for row in rows] == ["two\nlines"]
    assert manifest.rows is None
    with pytest.raises(Misuse, match="DROPMALFORMED"):
        run(spark, tmp_path / "notes.csv", tmp_path / "not", format="csv", options={"mode": "DROPMALFORMED"})


@pytest.mark.parametrize(
    ("format", "text"),
    [("csv", "device,ts,value\na,1,x\nb,2\n"), ("jsonl", '{"device": "a", "ts": 1}\n{"device": "b"\n')],
)
def test_a_row_that_was_cut_short_is_malformed_whatever_the_session_calls_its_column(spark, tmp_path, format, text):
    (tmp_path / f"x.{format}").write_text(text)
    name = "spark.sql.columnNameOfCorruptRecord"
    spark.conf.set(name, "bad")
    try:
        for options in ({}, {"allowSingleQuotes": "true"} if format == "jsonl" else {"comment": "#"}):
            rows, _ = read(spark, tmp_path / f"x.{format}", format, options=options)
            assert sorted(row["reason"] for row in rows) == ["malformed", "new_chain"]
    finally:
        spark.conf.unset(name)
    with pytest.raises(Misuse, match="columnNameOfCorruptRecord is 'bad', but malformed rows are always kept in _corr"):
        read(spark, tmp_path / f"x.{format}", format, options={"columnNameOfCorruptRecord": "bad"})


@pytest.mark.parametrize("write", [pq.write_table, orc.write_table], ids=["parquet", "orc"])
def test_a_column_that_only_some_files_have_is_kept(spark, tmp_path, write):
    format = "parquet" if write is pq.write_table else "orc"
    (tmp_path / "in").mkdir()
    write(pa.table({"device": ["a"], "ts": pa.array([1], pa.int32())}), tmp_path / "in" / f"1.{format}")
    write(pa.table({"device": ["b"], "ts": [1 << 40], "extra": [7]}), tmp_path / "in" / f"2.{format}")
    rows, manifest = read(spark, tmp_path / "in", format=format)
    assert {row["device"]: (row["ts"], row["extra"]) for row in rows} == {"a": (1, None), "b": (1 << 40, 7)}
    assert manifest.rows == 2


def test_files_that_disagree_on_a_type_are_refused_by_name(spark, tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"device": ["a"], "ts": [1], "x": ["t"]}), tmp_path / "in" / "1.parquet")
    pq.write_table(pa.table({"device": ["b"], "ts": [1], "x": [7]}), tmp_path / "in" / "2.parquet")
    with pytest.raises(Misuse, match=r"column 'x' is (string|bigint) in .*/in/[12]\.parquet") as caught:
        run(spark, tmp_path / "in", tmp_path / "out", format="parquet")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture(params=BAD_FILES.values(), ids=list(BAD_FILES))
def bad(request, tmp_path):
    format, name, data, why = request.param
    put_good(tmp_path / "in", format)
    (tmp_path / "in" / name).write_bytes(data)
    return format, name, why


def test_a_file_that_cannot_be_read_ends_the_run_and_is_named(spark, tmp_path, bad):
    format, name, why = bad
    with pytest.raises(OSError, match=rf"cannot read .*/in/{name}: .*{why}") as caught:
        run(spark, tmp_path / "in", tmp_path / "out", format=format)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def bad_files(format):
    """Name, content and trouble of all of a format, each by a name of its own."""
    bad = enumerate(BAD_FILES.values())
    return [(f"{n} {name}", data, why) for n, (kind, name, data, why) in bad if kind == format]


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_files_that_cannot_be_read_can_be_set_aside_and_are_named(spark, tmp_path, format):
    put_good(tmp_path / "in", format)
    bad = bad_files(format)
    for name, data, _ in bad:
        (tmp_path / "in" / name).write_bytes(data)
    rows, manifest = read(spark, tmp_path / "in", format=format, bad_files="set_aside")
    assert (len(rows), manifest.rows) == (2, 2)
    aside = {file["path"].rpartition("/")[2]: file for file in manifest.to_dict()["set_aside"]}
    assert {name: file["size"] for name, file in aside.items()} == {name: len(data) for name, data, _ in bad}
    assert all(re.search(why, aside[name]["trouble"]) for name, _, why in bad)


def test_files_that_were_set_aside_are_a_line_of_the_books(spark, tmp_path):
    put_good(tmp_path / "in", "jsonl")
    (tmp_path / "in" / "empty.jsonl").touch()
    result = run(spark, tmp_path / "in", tmp_path / "out", bad_files="set_aside")
    assert (result.tally.received, result.manifest.rows) == (2, 2)
    (aside,) = json.loads((tmp_path / "out" / "run.json").read_text())["manifest"]["set_aside"]
    assert aside["path"].endswith("/in/empty.jsonl")


def test_a_page_of_a_parquet_file_that_is_damaged_ends_the_run_and_names_the_file(spark, tmp_path):
    (tmp_path / "in").mkdir()
    good = pa.table({"device": [f"d{i}" for i in range(1000)], "ts": list(range(1000))})
    pq.write_table(good, tmp_path / "in" / "x.parquet", use_dictionary=False)
    data = bytearray((tmp_path / "in" / "x.parquet").read_bytes())
    data[100:2000] = b"\xff" * 1900
    (tmp_path / "in" / "x.parquet").write_bytes(data)
    with pytest.raises(OSError, match=r"cannot read .*/in/x\.parquet") as caught:
        run(spark, tmp_path / "in", tmp_path / "out", format="parquet")
    assert "\n" not in str(caught.value)


def test_every_run_keeps_a_manifest_of_its_files_with_rows_counted_without_the_reader(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text("\n".join(GOOD) + "\n\n")
    (tmp_path / "in" / "2.jsonl.gz").write_bytes(gzip.compress(GOOD_LINES))
    result = run(spark, tmp_path / "in", tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert [(line["path"], line["rows"], line["blank"]) for line in lines] == [
        (str(tmp_path / "in" / "1.jsonl"), 3, 1),
        (str(tmp_path / "in" / "2.jsonl.gz"), 3, 0),
    ]
    assert [line["size"] for line in lines] == [path.stat().st_size for path in sorted((tmp_path / "in").iterdir())]
    assert result.tally.received == result.manifest.rows == 6


def meddling(spark, tmp_path, change):
    """A run of two files, one of which is changed when the source has been opened and the judging begins."""
    (tmp_path / "in").mkdir()
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / "in" / name).write_text("\n".join(GOOD) + "\n")
    source = SourceSpec(path=str(tmp_path / "in"), format="jsonl")

    def say(step):
        if step == "judging":
            change(tmp_path / "in" / "2.jsonl")

    return jobs.run(spark, source, DEVICES, str(tmp_path / "out"), say=say)


def test_a_manifest_takes_any_name_of_a_file():
    names = ("a\u2028b", "a\x85b", "a\nb", "a:/b", os.fsdecode(b"\xff"))
    manifest = Manifest(tuple(SourceFile(f"file:/in/{name}", 1, 1, rows=1) for name in sorted(names)))
    assert Manifest.from_lines(manifest.lines()) == manifest


def test_a_reader_that_loses_rows_is_convicted_and_the_file_is_named(spark, tmp_path):
    with pytest.raises(AuditFailed, match=r"/in/2\.jsonl holds 3 rows, 1 were read"):
        meddling(spark, tmp_path, lambda file: file.write_text(GOOD[0] + "\n"))
    assert not (tmp_path / "out" / "run.json").exists()


def test_a_file_that_grows_while_it_is_judged_is_named_and_no_trouble(spark, tmp_path):
    result = meddling(spark, tmp_path, lambda file: file.write_text("\n".join(GOOD) + "\n" + GOOD[0] + "\n"))
    assert result.tally.received in (6, 7)  # the reader may take the line after the end that it was told
    (line,) = json.loads((tmp_path / "out" / "run.json").read_text())["manifest"]["changed"]
    assert line.startswith(f"{tmp_path}/in/2.jsonl has grown from ")


@given(
    st.lists(st.sampled_from([b"a", b"bc", b" ", b"\t", b"\n", b"\r", b"\r\n", b"\x00"]), max_size=30),
    st.integers(1, 7),
)
def test_lines_are_counted_the_same_in_whatever_pieces_they_come(pieces, size):
    from onefold.spark.files import counted

    data = b"".join(pieces)
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    assert counted(chunks, b" \t") == (len(lines), sum(1 for line in lines if line.strip(b" \t")))


def test_a_stream_of_json_lines_refuses_to_fail_fast_which_it_could_not_do(spark, tmp_path):
    put_good(tmp_path / "in", "jsonl")
    with pytest.raises(Misuse, match='mode is "FAILFAST", but a stream rejects malformed lines'):
        stream(spark, tmp_path, "jsonl", options={"mode": "FAILFAST"})


def test_an_odd_line_in_a_stream_is_rejected_with_its_text_also_in_a_file_that_comes_later(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text(GOOD_LINES.decode())
    assert stream(spark, tmp_path, "jsonl").tally.received == 3
    (tmp_path / "in" / "2.jsonl").write_text("\n".join([*ODD.values(), "", " ", GOOD[0]]) + "\n")
    progress = stream(spark, tmp_path, "jsonl")
    texts = {row["_corrupt_record"] for row in streamed(tmp_path) if row["reason"] == "malformed"}
    assert texts == set(ODD.values())
    assert progress.tally.received == 3 + len(ODD) + 1


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_files_that_cannot_be_read_end_a_stream_by_name_at_every_start_until_they_are_set_aside(
    spark, tmp_path, format
):
    put_good(tmp_path / "in", format)
    bad = bad_files(format)
    for name, data, _ in bad:
        (tmp_path / "in" / name).write_bytes(data)
    troubles = "|".join(rf"{name}: .*{why}" for name, _, why in bad)
    for _ in range(2):
        with pytest.raises(OSError, match=rf"cannot read .*/in/({troubles})") as caught:
            stream(spark, tmp_path, format)
        assert "\n" not in str(caught.value)
    for _ in range(2):
        progress = stream(spark, tmp_path, format, bad_files="set_aside")
        assert sorted(file["path"].rpartition("/")[2] for file in progress.set_aside) == [name for name, *_ in bad]
        assert progress.tally.received == 2
    assert len(streamed(tmp_path)) == 2


def test_the_end_of_a_query_that_set_a_file_aside_is_not_taken_for_that_of_the_next(spark, tmp_path, monkeypatch):
    """Events of a query come after it has ended: here late enough to come in the middle of the next one."""
    put_good(tmp_path / "in", "jsonl")
    (tmp_path / "in" / "bad.jsonl").write_bytes(b"")

    def late(seconds, handle):
        def handle_late(watcher, event):
            time.sleep(seconds)
            handle(watcher, event)

        return handle_late

    monkeypatch.setattr(Watcher, "onQueryTerminated", late(1.5, Watcher.onQueryTerminated))
    monkeypatch.setattr(Watcher, "onQueryProgress", late(0.5, Watcher.onQueryProgress))
    progress = stream(spark, tmp_path, "jsonl", bad_files="set_aside")
    assert (progress.batch, progress.rows, len(progress.set_aside)) == (0, 2, 1)


def test_a_csv_file_with_another_header_ends_a_stream_by_name_or_is_set_aside(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("device,ts\na,1\n")
    assert stream(spark, tmp_path, "csv").tally.received == 1
    (tmp_path / "in" / "2.csv").write_text("ts,device\n1,b\n")
    with pytest.raises(Misuse, match=r"/in/1\.csv and .*/in/2\.csv have different header lines"):
        stream(spark, tmp_path, "csv")
    (tmp_path / "in" / "3.csv").write_text("device,ts\nc,1\n")
    progress = stream(spark, tmp_path, "csv", bad_files="set_aside")
    assert [file["trouble"] for file in progress.set_aside] == [
        "its header line is 'ts,device', and the stream reads 'device,ts'"
    ]
    assert sorted(row["device"] for row in streamed(tmp_path)) == ["a", "c"]


def test_a_file_that_is_written_again_after_a_stream_has_read_it_is_named(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text(GOOD_LINES.decode())
    assert stream(spark, tmp_path, "jsonl").changed == ()
    with (tmp_path / "in" / "1.jsonl").open("a") as file:
        file.write(GOOD[0] + "\n")
    later_ns = (tmp_path / "in" / "1.jsonl").stat().st_mtime_ns + 2_000_000_000
    os.utime(tmp_path / "in" / "1.jsonl", ns=(later_ns, later_ns))
    progress = stream(spark, tmp_path, "jsonl")
    (line,) = progress.changed
    assert line.startswith(f"{tmp_path}/in/1.jsonl changed after it was found: it has ")
    assert progress.tally.received == 3
