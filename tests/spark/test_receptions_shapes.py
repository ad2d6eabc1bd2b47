import base64
import gzip
import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.lorawan import DataUp, parse
from onefold.producers.topic import Topics
from onefold.spark.receptions.reading import (
    TYPES,
    content,
    eui,
    instant,
    read_receptions,
    read_rows,
    receptions,
    recognised,
)
from tests.lib import reception_files as files
from tests.lib.reception_files import DEV_ADDR, DEV_EUI, START_MS, A, B, stored, world

SHAPES = ["onefold", "lns", "bridge 3", "bridge 4", "chirpstack 3", "chirpstack 4"]


def texts(spark, rows):
    return spark.createDataFrame([(text(row),) for row in rows], "value string")


def text(row):
    return row if isinstance(row, str) else json.dumps(row)


@pytest.fixture(scope="module")
def said(spark, tmp_path_factory):
    """What all rows of this file are read as, in one go: of each table, the rows that came of each of its rows."""
    file = tmp_path_factory.mktemp("mixed") / "all.ndjson.gz"
    file.write_bytes(gzip.compress("".join(text(row) + "\n" for rows in TABLES.values() for row in rows).encode()))
    found = recognised(read_rows(spark, str(file)))
    assert found.columns == [*TYPES, "_place", "text"]
    each = list[list[Row]]()
    for row in found.collect():  # a packed file is one partition: they come in its order
        if not row["_place"]:  # every row of the source once
            each.append([])
        each[-1].append(row)
    assert len(each) == sum(map(len, TABLES.values()))
    came = iter(each)
    return {name: [next(came) for _ in rows] for name, rows in TABLES.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_tells_the_same_of_the_same_receptions(said, shape):
    rows = [row for each in said[shape] for row in each if row.source != "not_reception"]
    heard = [one for one in world() if shape != "chirpstack 4" or isinstance(one.frame, DataUp)]
    source = shape.split()[0]
    assert {(row.source, row["_corrupt_record"]) for row in rows} == {(source, None)}
    for row, one in zip(rows, heard, strict=True):
        data = isinstance(one.frame, DataUp)
        told = (row.kind, row.station, row.time_ms, row.own_time, row.rssi, row.snr, row.fcnt, row.confirmed)
        assert told == (
            "data" if data else "join", f"{one.station:016x}", one.at_ms, True, -100.0, one.snr,
            one.fcnt if data else None, one.fcnt == 2,
        )  # fmt: skip
        assert row.payload == (one.frame.payload.hex() if isinstance(one.frame, DataUp) else None)
        by_address = data and source in ("lns", "bridge")
        assert row.device == (f"{DEV_ADDR:08x}" if by_address else f"{DEV_EUI:016x}")
        if source != "chirpstack":
            assert row.frame == one.frame.key.hex()
    assert len({row.frame for row in rows}) == len({one.frame.key for one in heard})


def test_events_with_their_fields_as_columns_are_the_same(spark, said, tmp_path):
    pq.write_table(pa.Table.from_pylist(stored("chirpstack 3")), tmp_path / "events.parquet")
    rows = read_receptions(spark, str(tmp_path / "events.parquet")).collect()
    assert [row.asDict() for row in rows] == [
        {name: row[name] for name in TYPES} for each in said["chirpstack 3"] for row in each
    ]


def test_our_own_log_is_read_from_its_folder_and_a_frame_whose_code_is_wrong_or_unchecked_is_none(spark, tmp_path):
    forged = {**files.onefold(world()[0]), "verdict": "REJECT", "reason": "bad_mic"}
    unchecked = {**forged, "reason": "mic_budget"}
    refused = {"v": 1, "kind": None, "station": "ab", "received_ms": 5, "verdict": "REJECT", "reason": "malformed"}
    with Topics(tmp_path / "log") as topics:
        said = [json.dumps(row).encode() for row in (*stored("onefold"), forged, unchecked, refused)]
        topics.topic("receptions").publish("s", list(enumerate([*said, b"\xff not json"])))
        rows = read_receptions(spark, str(tmp_path / "log" / "receptions")).collect()
    good = [row for row in rows if row["_corrupt_record"] is None]
    assert sorted(row.frame for row in good) == sorted(one.frame.key.hex() for one in world())
    assert len(rows) == len(good) + 4


NORMAL: list[
    tuple[tuple[Any, ...], tuple[Any, ...]]
] = [  # frame, station, time, kind, source, own_time, fcnt, snr, received; then what it is read as
    (("f1", "a", 5.0, "data", None, None, 1, 5.0, None), ("data", 5, True, 1, 5.0, None)),
    (("f1", "Roof", 1e12, None, "x", False, 1 << 40, "NaN", 9), ("data", 10**12, False, None, None, 9)),
    (("f2", "a", "NaN", "join", "not_reception", True, None, "Infinity", None), ("join", None, True, None, None, None)),
    (("f2", "a", "-Infinity", "data", "x", True, 0, None, None), ("data", None, True, 0, None, None)),
    (("f2", "a", 1e12, "data", "x", True, 0, None, 2 * 10**12), ("data", 10**12, True, 0, None, 2 * 10**12)),
]
_NORMAL = {"frame": "binary", "station": "string", "time_ms": "double", "kind": "string", "source": "string",
           "own_time": "boolean", "fcnt": "long", "snr": "double", "received_ms": "long"}  # fmt: skip


def test_a_table_in_the_normal_form_stays_as_it_is_in_columns_and_as_lines(spark, said):
    rows = [
        (f.encode(), station, float(ms), kind, source, own, fcnt, None if snr is None else float(snr), received)
        for (f, station, ms, kind, source, own, fcnt, snr, received), _ in NORMAL
    ]
    table = spark.createDataFrame(rows, ", ".join(map(" ".join, _NORMAL.items()))).coalesce(1)
    assert [row for (row,) in said["normal"]][-1]["_corrupt_record"]
    for found in (receptions(table).collect(), [row for (row,) in said["normal"]][:-1]):
        told = [(row.kind, row.time_ms, row.own_time, row.fcnt, row.snr, row.received_ms) for row in found]
        assert told == [wanted for _, wanted in NORMAL]
        assert [row.station for row in found] == [row[1] for row in rows]
        assert [row.frame for row in found] == [row[0].hex() for row in rows]
        assert {(row.source, row.clock_off_ms, row["_corrupt_record"]) for row in found} == {("table", None, None)}


STATUS = {"devEUI": "d1", "margin": 4, "batteryLevel": 0, "_timestamp": START_MS}
NOTHING = [
    STATUS,
    {**STATUS, "rxInfo": []},
    {"deviceInfo": {"devEui": "d1"}, "time": "2023-06-23T10:01:56Z", "devAddr": "26011bda"},
    {"station": "::1", "message": {"msgtype": "version", "station": "2.0.6"}},
    {"msgtype": "dntxed", "diid": 1, "DevEui": "00-00-00-00-00-00-00-01"},
    {"phyPayload": base64.b64encode(b"\xe0 proprietary!").decode(), "rxInfo": {"gatewayId": "0000000000000001"}},
    {"phyPayload": base64.b64encode(b"\xe0 proprietary!").decode(), "rxInfo": [{"gatewayId": "1"}, {"gatewayId": "2"}]},
    {**files.bridge(world()[0]), "rxInfo": {"gatewayId": "0000000000000001", "crcStatus": "BAD_CRC"}},
    {**stored("chirpstack 4")[0], "rxInfo": [{"gatewayId": "1", "crcStatus": "BAD_CRC"}] * 2},
    {},
    {"something": "else"},
]


def test_what_is_no_reception_is_told_apart_and_counted_by_rows(said):
    for row, found in zip(NOTHING, said["nothing"], strict=True):
        assert [(one.source, one.text) for one in found] == [("not_reception", json.dumps(row))]


GOOD = files.lns(world()[0])
UPDF = GOOD["message"]
BROKEN = [
    '{"devEUI": "d1", "rxInfo": [{"gat',
    "no json at all",
    "[1, 2]",
    "",
    {"devEUI": "d1", "fCnt": 1, "data": "", "rxInfo": "nobody"},
    {"devEUI": "d1", "fCnt": "many", "data": "", "rxInfo": [{"gatewayID": "ab", "time": "2023-06-23T10:01:56Z"}]},
    {"devEUI": "d1", "fCnt": -1, "data": "", "rxInfo": [{"gatewayID": "ab"}]},
    {"fCnt": 1, "data": "", "rxInfo": [{"gatewayID": "ab"}]},
    {"devEUI": "d1", "fCnt": 1, "data": "", "rxInfo": [{"rssi": 5}]},
    {"devEUI": "d1", "fCnt": 1, "data": "", "rxInfo": [7]},
    {"devEUI": "d1", "fCnt": 1, "data": "", "rxInfo": [{"gatewayID": "ab"}, None]},
    {"phyPayload": "!!!", "rxInfo": {"gatewayId": "0000000000000001"}},
    {"phyPayload": base64.b64encode(b"\x40 short").decode(), "rxInfo": {"gatewayId": "0000000000000001"}},
    {"phyPayload": base64.b64encode(b"\x40aaaa\x0fbb1234").decode(), "rxInfo": {"gatewayId": "0000000000000001"}},
    {"phyPayload": base64.b64encode(b"\x41aaaa\x00bb1234").decode(), "rxInfo": {"gatewayId": "0000000000000001"}},
    {"phyPayload": base64.b64encode(b"\x00aaaa\x00bb1234").decode(), "rxInfo": {"gatewayId": "0000000000000001"}},
    {**stored("onefold")[0], "key": "abc"},
    {**stored("onefold")[0], "station": None},
    {**stored("onefold")[0], "fcnt": None},
    {**GOOD, "station": None},
    *({**GOOD, "message": {**UPDF, name: value}} for name, value in (
        ("MHdr", 300), ("MHdr", 0x41), ("FCtrl", 300), ("FCtrl", 3), ("FCnt", -164), ("FCnt", 65_536), ("FOpts", 5),
        ("FPort", 300), ("FPort", -2), ("FPort", -1), ("FRMPayload", 5), ("FRMPayload", None), ("FRMPayload", "xy"),
        ("MIC", 5.5), ("MIC", "5"), ("MIC", 1 << 32), ("DevAddr", -(1 << 31) - 1), ("DevAddr", None),
    )),
    *({**GOOD, "message": {**files.lns(world()[-1])["message"], name: value}} for name, value in (
        ("MHdr", 300), ("JoinEui", "4762"), ("DevEui", "8527C1DFEEA4169E"), ("DevNonce", -1), ("MIC", "x"),
    )),
]  # fmt: skip


def corrupt_records(rows):
    # In a list that can be read, an entry that cannot be stands for itself.
    own = {8: ['{"rssi":5}'], 9: ["7"], 10: [None, "null"]}
    return [own.get(n, [text(row)]) for n, row in enumerate(rows)]


def test_what_should_be_a_reception_and_cannot_be_read_is_kept_with_its_text(spark, said):
    kept = [[one["_corrupt_record"] for one in found] for found in said["broken"]]
    assert kept == corrupt_records(BROKEN)
    by_name = receptions(texts(spark, BROKEN[:11]), "chirpstack").collect()
    wanted = [one for each in corrupt_records(BROKEN[:11]) for one in each]
    assert sorted(str(row["_corrupt_record"]) for row in by_name) == sorted(map(str, wanted))


VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "lorawan.json").read_text())["station_capture"][
    "messages"
]


def test_real_stations_are_read_as_the_engine_reads_them(said):
    rows = [row for each in said["stations"] for row in each if row.source != "not_reception"]
    assert len(rows) == sum(told["message"]["msgtype"] in ("updf", "jreq") for told in VECTORS)
    assert not [row for row in rows if row["_corrupt_record"]]
    assert {row.device for row in rows if row.kind == "data"} == {
        told["expect"]["dev_addr_hex"] for told in VECTORS if "dev_addr_hex" in told["expect"]
    }


def event(time, received=START_MS, **more):
    said = {"devEUI": "d1", "fCnt": 1, "data": "", "_timestamp": received, **more}
    return {**said, "rxInfo": [{"gatewayID": "ab", "time": time}]}


CLOCKS: dict[
    Any, tuple[int, bool, int | None]
] = {  # what the clock says -> time, whether it is the clock's own, how far off it was
    files.iso(START_MS - 250): (START_MS - 250, True, -250),
    files.iso(START_MS + 30_000): (START_MS + 30_000, True, 30_000),
    files.iso(START_MS + 30_001): (START_MS, False, 30_001),
    files.iso(START_MS - 3_600_000): (START_MS - 3_600_000, True, -3_600_000),  # kept until there was a backhaul
    files.iso(START_MS - 3_600_001): (START_MS, False, -3_600_001),
    files.iso(5_000): (START_MS, False, None),
    **dict.fromkeys((None, "", "soon", "12:30", "9999999-01-01T00:00:00Z", True), (START_MS, False, None)),
}
NEVER = [None, 1 << 62, "x", START_MS // 1000, str(START_MS // 1000), "2023-11-14"]


def test_a_clock_is_believed_unless_it_is_missing_or_far_off(spark, said):
    told = [(row.time_ms, row.own_time, row.clock_off_ms) for (row,) in said["clocks"]]
    assert told == list(CLOCKS.values())
    assert [(row.time_ms, row["_corrupt_record"]) for (row,) in said["never"]] == [(None, None)] * len(NEVER)
    ahead = receptions(texts(spark, [event(files.iso(START_MS + 90_000))]), "chirpstack", clock_off_ms=100_000)
    assert [row.own_time for row in ahead.collect()] == [True]


ENCODED = base64.b64encode(b"\x50\x2b\x0c\x04").decode()
SPOILED = {**event(None), "rxInfo": [{"gatewayID": "ab"}, {"gatewayID": "cd", "crcStatus": "BAD_CRC"}, {"rssi": -3}]}
ZERO = {"deviceInfo": {"devEui": "zero"}, "rxInfo": [{"gatewayId": "ab", "rssi": -3}], "time": files.iso(START_MS)}


def test_oddities_of_events(said):
    zero, by_hex, by_base64, spoiled = said["odd"]
    (row,) = zero  # version 4 leaves out what is zero
    assert (row.kind, row.fcnt, row.snr, row.confirmed, row.payload) == ("data", 0, 0.0, False, None)
    assert {row.payload for row in (*by_hex, *by_base64)} == {"502b0c04"}
    # An entry spoils only itself; what a gateway says is damaged, it did not hear.
    assert [(row.station, row["_corrupt_record"]) for row in spoiled] == [("ab", None), (None, '{"rssi":-3}')]


DEVICES = ["0202020202020202", "AgICAgICAgI=", "02-02-02-02-02-02-02-02", "AAAAAAAAAAA=", "AAAAAAAAAaA="]


def test_frames_of_one_device_are_the_same_however_its_address_is_written(said):
    rows = [row for (row,) in said["devices"]]
    assert [row.device for row in rows] == ["02" * 8] * 3 + ["00" * 8, "00" * 6 + "01a0"]
    assert len({row.frame for row in rows[:3]}) == 1
    assert len({row.frame for row in rows[2:]}) == 3


NAMES: dict[str | None, str | None] = {
    "0016C001FF10A235": f"{A:016x}",
    "00-16-c0-01-ff-10-A2-35": f"{A:016x}",
    "00:16:c0:01:ff:10:A2:35": f"{A:016x}",
    "router-16:c001:ff10:a235": f"{A:016x}",
    "ABbAAf8QojU=": f"{A:016x}",
    "::2": f"{B:016x}",
    "16::a235": "001600000000a235",
    "489ebde27fabee5863cb111ba9720cb9": "489ebde27fabee5863cb111ba9720cb9",
    "Roof-East": "roof-east",
    "1::": "0001000000000000",
    "::": "0000000000000000",
    "router-0016C001FF10A235": f"{A:016x}",
    "Router-Roof": "router-roof",
    **{
        name: name
        for name in ("1:2:3:4:5", "a:b", "12345:1", "12345:1:1:1", "1::2::3", ":::1", "1:2:3:4::", ":1:2:3:4")
    },
    " ": None,
    None: None,
}


CONTENTS = {  # base64 if that is what it must be or may be; small letters and digits are hex
    "502b0c04": "502b0c04", "1234": "1234", "abcdef": "abcdef", "": "", "AAAA": "000000", "AAAB": "000001",
    "AABBCC": "aabbcc", "aB12": "681d76", "AQ==": "01", "AQ": "01", "_-8=": "ffef", "!!": None, None: None,
}  # fmt: skip
INSTANTS: dict[str | None, int | None] = {
    **dict.fromkeys(
        (files.iso(START_MS), "2023-11-14T22:13:20.000999999Z", "2023-11-15T00:13:20+02:00", "2023-11-15T00:13:20+0200",
         "2023-11-14 22:13:20", "2023-11-14T22:13:20.", " 1700000000000 ", "1.7E12", "1700000000000.5"), START_MS,
    ),
    "1700000000": 1_700_000_000,  # believed by nobody: see NEVER
    **dict.fromkeys(("12:30", "T12:30", "2023-11-14", "now", "today", "epoch", "-5", "9" * 20, "1e99", "NaN",
                     "2023-13-14T22:13:20", "", None)),
}  # fmt: skip


def test_texts_are_read_as_names_contents_and_times_wherever_spark_runs(spark):
    rows = [(name, content_, time) for name, content_, time in zip_longest(NAMES, CONTENTS, INSTANTS)]
    df = spark.createDataFrame(rows, "name string, content string, time string").coalesce(1)
    read = [eui(F.col("name")), content(F.col("content")), instant(F.col("time"))]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # a time without a zone is UTC all the same
    try:
        names, contents, times = zip(*df.select(*read).collect(), strict=True)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert dict(zip(NAMES, names, strict=False)) == NAMES
    assert dict(zip(CONTENTS, contents, strict=False)) == CONTENTS
    assert dict(zip(INSTANTS, times, strict=False)) == INSTANTS


FRAMES = [files.data(n, payload=bytes(range(n)), confirmed=n % 2 == 0) for n in range(60)]
FRAMES += [frame._replace(fport=None, payload=b"", fopts=b"", fctrl=0x80) for frame in FRAMES[:2]]


def test_keys_of_frames_of_every_length_are_those_of_the_engine(said):
    assert [row.frame for (row,) in said["frames"]] == [frame.key.hex() for frame in FRAMES]
    assert all(parse(frame.phy) == frame for frame in FRAMES)


TABLES = {
    **{shape: stored(shape) for shape in SHAPES},
    "nothing": NOTHING,
    "broken": BROKEN,
    "stations": VECTORS,
    "clocks": [event(time) for time in CLOCKS],
    "never": [event(None, received) for received in NEVER],
    "odd": [ZERO, event(None, data="502b0c04"), event(None, data=ENCODED), SPOILED],
    "devices": [event(None, devEUI=device) for device in DEVICES],
    "frames": [{**files.bridge(files.Heard(frame, 0, A, START_MS, 0.0)), "time": START_MS} for frame in FRAMES],
    "normal": [
        *(dict(zip(_NORMAL, (row[0].encode().hex(), *row[1:]), strict=True)) for row, _ in NORMAL),
        {"_corrupt_record": "what it was", "time_ms": 5},
    ],
}
"""All that is read as lines, by the name under which `said` tells what came of it."""


def test_a_stream_of_receptions_is_read_too(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(files.lines([*stored("lns"), STATUS]))
    stream = receptions(spark.readStream.format("text").load(str(tmp_path / "in")))
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(stored("lns"))


def test_a_folder_with_a_registry_beside_is_read_by_its_lines_only(spark, tmp_path):
    (tmp_path / "receptions.jsonl").write_text(files.lines(stored("lns")))
    (tmp_path / "devices.toml").write_text("[[device]]\n")
    (tmp_path / "truth").mkdir()
    (tmp_path / "truth" / "receptions.jsonl").write_text("{}\n")
    assert read_rows(spark, str(tmp_path)).count() == len(stored("lns"))


def table(kind, name="time_ms"):
    columns = {"frame": "string", "station": "string", "time_ms": "long", name: kind}
    return lambda spark, df: receptions(spark.createDataFrame([], ", ".join(map(" ".join, columns.items()))))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (table("date"), "column 'time_ms' is date, must be whole numbers or a timestamp"),
        (table("boolean"), "column 'time_ms' is boolean, must be"),
        (table("date", "snr"), "column 'snr' is date, must be numbers"),
        (table("array<string>", "frame"), "column 'frame' is array<string>, must be a plain value"),
        (lambda spark, df: receptions(df, "morse"), "shape is 'morse', must be auto, onefold, bridge, lns"),
        (lambda spark, df: receptions(df, clock_off_ms=-1), "clock_off_ms is -1"),
        (lambda spark, df: read_receptions(spark, "/no/such/file.json"), "there is nothing at /no/such/file.json"),
        (lambda spark, df: read_receptions(spark, "/", format="tapes"), "cannot read / as tapes"),
    ],
)
def test_misuse_is_named(spark, call, problem):
    with pytest.raises(Misuse, match=problem):
        call(spark, texts(spark, [{}]))
