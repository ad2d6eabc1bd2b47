import base64
import gzip
import json
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from onefold.engines.lorawan import DataUp, parse
from onefold.errors import Misuse
from onefold.services.topics import Topics
from onefold.spark.reception_fields import eui
from onefold.spark.reception_reading import read_receptions, read_rows
from onefold.spark.receptions import TYPES, not_receptions, receptions, recognised
from tests.spark import reception_files as files
from tests.spark.reception_files import DEV_ADDR, DEV_EUI, START_MS, A, B, stored, world

VECTORS = Path(__file__).parents[1] / "vectors" / "lorawan.json"
SHAPES = ["onefold", "lns", "bridge 3", "bridge 4", "chirpstack 3", "chirpstack 4"]
DAY_MS = 86_400_000
DAYS = {shape: START_MS + n * DAY_MS for n, shape in enumerate(SHAPES)}


def texts(spark, rows):
    return spark.createDataFrame([(row if isinstance(row, str) else json.dumps(row),) for row in rows], "value string")


@pytest.fixture(scope="module")
def mixed(spark, tmp_path_factory):
    """The receptions of a packed file in which every shape has a day of its own."""
    file = tmp_path_factory.mktemp("mixed") / "all.ndjson.gz"
    every = [row for shape, start_ms in DAYS.items() for row in stored(shape, start_ms)]
    file.write_bytes(gzip.compress(files.lines(every).encode()))
    found = read_receptions(spark, str(file))
    assert found.columns == list(TYPES)
    return found.orderBy("time_ms", "station").collect()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_tells_the_same_of_the_same_receptions(mixed, shape):
    rows = [row for row in mixed if DAYS[shape] <= row.time_ms < DAYS[shape] + DAY_MS]
    heard = [one for one in world(DAYS[shape]) if shape != "chirpstack 4" or isinstance(one.frame, DataUp)]
    source = shape.split()[0]
    assert {(row.source, row["_corrupt_record"]) for row in rows} == {(source, None)}
    for row, one in zip(rows, heard, strict=True):
        data = isinstance(one.frame, DataUp)
        said = (row.kind, row.station, row.time_ms, row.own_time, row.rssi, row.snr, row.fcnt, row.confirmed)
        assert said == (
            "data" if data else "join", f"{one.station:016x}", one.at_ms, True, -100.0, one.snr,
            one.fcnt if data else None, one.fcnt == 2,
        )  # fmt: skip
        assert row.payload == (one.frame.payload.hex() if isinstance(one.frame, DataUp) else None)
        by_address = data and source in ("lns", "bridge")
        assert row.device == (f"{DEV_ADDR:08x}" if by_address else f"{DEV_EUI:016x}")
        if source != "chirpstack":
            assert row.frame == one.frame.key.hex()
    assert len({row.frame for row in rows}) == len({one.frame.key for one in heard})


def test_events_with_their_fields_as_columns_are_the_same(spark, mixed, tmp_path):
    (tmp_path / "events.json").write_text(files.lines(stored("chirpstack 3", DAYS["chirpstack 3"])))
    spark.read.json(str(tmp_path / "events.json")).write.parquet(str(tmp_path / "events"))
    rows = read_receptions(spark, str(tmp_path / "events")).orderBy("time_ms", "station").collect()
    start_ms = DAYS["chirpstack 3"]
    assert rows == [row for row in mixed if start_ms <= row.time_ms < start_ms + DAY_MS]


def test_our_own_log_is_read_from_its_folder_and_what_its_server_found_forged_is_no_frame(spark, tmp_path):
    forged = {**files.onefold(world()[0]), "verdict": "REJECT", "reason": "bad_mic"}
    refused = {"v": 1, "kind": None, "station": "ab", "received_ms": 5, "verdict": "REJECT", "reason": "malformed"}
    with Topics(tmp_path / "log") as topics:
        said = [json.dumps(row).encode() for row in (*stored("onefold"), forged, refused)]
        topics.topic("receptions").publish("s", list(enumerate([*said, b"\xff not json"])))
        rows = read_receptions(spark, str(tmp_path / "log" / "receptions")).collect()
    good = [row for row in rows if row["_corrupt_record"] is None]
    assert sorted(row.frame for row in good) == sorted(one.frame.key.hex() for one in world())
    assert len(rows) == len(good) + 3


def test_a_table_in_the_normal_form_stays_as_it_is(spark):
    types = "frame string, station string, time_ms long, device string, fcnt int"
    table = spark.createDataFrame([("f", "a", 5, "d", 1), ("f", "b", None, "d", 1)], types)
    first, second = receptions(table).orderBy("station").collect()
    assert (first.kind, first.own_time, first.time_ms, first.fcnt, first.source) == ("data", True, 5, 1, "table")
    assert second.time_ms is None  # the judge says bad_time


STATUS = {"devEUI": "d1", "margin": 4, "batteryLevel": 0, "_timestamp": START_MS}
NOTHING = [
    STATUS,
    {**STATUS, "rxInfo": []},
    {"deviceInfo": {"devEui": "d1"}, "time": "2023-06-23T10:01:56Z", "devAddr": "26011bda"},
    {"station": "::1", "message": {"msgtype": "version", "station": "2.0.6"}},
    {"msgtype": "dntxed", "diid": 1, "DevEui": "00-00-00-00-00-00-00-01"},
    {"phyPayload": base64.b64encode(b"\xe0 proprietary!").decode(), "rxInfo": {"gatewayId": "0000000000000001"}},
    {**files.bridge(world()[0]), "rxInfo": {"gatewayId": "0000000000000001", "crcStatus": "BAD_CRC"}},
    {},
    {"something": "else"},
]


def test_what_is_no_reception_is_told_apart_and_counted(spark):
    df = texts(spark, [*NOTHING, *stored("chirpstack 3")])
    rows = recognised(df).collect()
    others = [row for row in rows if row.source == "not_reception"]
    assert (len(others), len(rows) - len(others)) == (len(NOTHING), 7)
    assert all(row.text for row in others)
    assert sum(not row["_place"] for row in rows) == len(NOTHING) + 4  # every row of the source once
    assert not_receptions(df).columns == ["text"]


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


@pytest.mark.parametrize("shape", ["auto", "chirpstack"])
def test_what_should_be_a_reception_and_cannot_be_read_is_kept_with_its_text(spark, shape):
    rows = BROKEN if shape == "auto" else BROKEN[:10]
    kept = [row["_corrupt_record"] for row in receptions(texts(spark, rows), shape).collect()]
    said = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    # In a list that can be read, an entry that cannot be stands for itself.
    said[8:10] = ['{"rssi":5}', "7"]
    assert sorted(map(str, kept)) == sorted(said)


def test_real_stations_are_read_as_the_engine_reads_them(spark):
    vectors = json.loads(VECTORS.read_text())["station_capture"]["messages"]
    rows = receptions(texts(spark, [{**said, "n": n} for n, said in enumerate(vectors)])).collect()
    assert len(rows) == sum(said["message"]["msgtype"] in ("updf", "jreq") for said in vectors)
    assert not [row for row in rows if row["_corrupt_record"]]
    assert {row.device for row in rows if row.kind == "data"} == {
        said["expect"]["dev_addr_hex"] for said in vectors if "dev_addr_hex" in said["expect"]
    }


def event(time, received=START_MS, **more):
    said = {"devEUI": "d1", "fCnt": 1, "data": "", "_timestamp": received, **more}
    return {**said, "rxInfo": [{"gatewayID": "ab", "time": time}]}


CLOCKS = {  # what the clock says -> time, whether it is the clock's own, how far off it was
    files.iso(START_MS - 250): (START_MS - 250, True, -250),
    files.iso(START_MS - 30_000): (START_MS - 30_000, True, -30_000),
    files.iso(START_MS - 30_001): (START_MS, False, -30_001),
    files.iso(START_MS + 30_001): (START_MS, False, 30_001),
    files.iso(5_000): (START_MS, False, None),
    **dict.fromkeys((None, "", "soon", "9999999-01-01T00:00:00Z", True), (START_MS, False, None)),
}


def test_a_clock_is_believed_unless_it_is_missing_or_far_off(spark):
    events = [event(time, devEUI=str(n)) for n, time in enumerate(CLOCKS)]
    never = [event(None, received, devEUI="x") for received in (None, 1 << 62, "x")]
    rows = receptions(texts(spark, [*events, *never])).collect()
    told = {row.device: (row.time_ms, row.own_time, row.clock_off_ms) for row in rows if row.device != "x"}
    assert [told[str(n)] for n in range(len(events))] == list(CLOCKS.values())
    assert [row.time_ms for row in rows if row.device == "x"] == [None] * 3
    assert not any(row["_corrupt_record"] for row in rows)
    (row,) = receptions(texts(spark, [event(files.iso(START_MS - 90_000))]), clock_off_ms=100_000).collect()
    assert row.own_time


def test_oddities_of_events(spark):
    zero = {"deviceInfo": {"devEui": "zero"}, "rxInfo": [{"gatewayId": "ab", "rssi": -3}], "time": files.iso(START_MS)}
    encoded = base64.b64encode(b"\x50\x2b\x0c\x04").decode()
    same = [event(None, devEUI="hex", data="502b0c04"), event(None, devEUI="base64", data=encoded)]
    spoiled = event(None, devEUI="spoiled")
    spoiled["rxInfo"].append({"rssi": -3})
    line = {"frame": "f", "station": "a", "time_ms": START_MS, "device": "line", "fcnt": 1, "own_time": False}
    found = receptions(texts(spark, [zero, *same, spoiled, line])).orderBy("station").collect()
    rows = {name: [row for row in found if row.device == name] for name in ("zero", "hex", "base64", "spoiled", "line")}
    (row,) = rows["zero"]  # version 4 leaves out what is zero
    assert (row.kind, row.fcnt, row.snr, row.confirmed, row.payload) == ("data", 0, 0.0, False, None)
    assert {row.payload for row in (*rows["hex"], *rows["base64"])} == {"502b0c04"}
    assert [row["_corrupt_record"] for row in rows["spoiled"]] == ['{"rssi":-3}', None]  # it spoils only itself
    (row,) = rows["line"]
    assert (row.frame, row.source, row.time_ms, row.own_time) == ("f", "table", START_MS, False)


NAMES = {
    "0016C001FF10A235": f"{A:016x}",
    "00-16-c0-01-ff-10-A2-35": f"{A:016x}",
    "00:16:c0:01:ff:10:A2:35": f"{A:016x}",
    "router-16:c001:ff10:a235": f"{A:016x}",
    "ABbAAf8QojU=": f"{A:016x}",
    "::2": f"{B:016x}",
    "16::a235": "001600000000a235",
    "489ebde27fabee5863cb111ba9720cb9": "489ebde27fabee5863cb111ba9720cb9",
    "Roof-East": "roof-east",
    "1:2:3:4:5": "1:2:3:4:5",
    " ": None,
    None: None,
}


def test_a_gateway_has_one_name_however_it_is_written(spark):
    rows = spark.createDataFrame([(name,) for name in NAMES], "t string").select("t", eui(F.col("t")).alias("name"))
    assert {row.t: row.name for row in rows.collect()} == NAMES


def test_keys_of_frames_of_every_length_are_those_of_the_engine(spark):
    frames = [files.data(n, payload=bytes(range(n)), confirmed=n % 2 == 0) for n in range(60)]
    frames += [frame._replace(fport=None, payload=b"", fopts=b"", fctrl=0x80) for frame in frames[:2]]
    heard = [files.Heard(frame, 0, A, START_MS, 0.0) for frame in frames]
    rows = [{**files.bridge(one), "time": files.iso(START_MS)} for one in heard]
    assert {row.frame for row in receptions(texts(spark, rows), "bridge").collect()} == {
        frame.key.hex() for frame in frames
    }
    assert all(parse(frame.phy) == frame for frame in frames)


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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda spark, df: receptions(df, "morse"), "shape is 'morse', must be auto, onefold, bridge, lns"),
        (lambda spark, df: receptions(df, clock_off_ms=-1), "clock_off_ms is -1"),
        (lambda spark, df: read_receptions(spark, "/no/such/file.json"), "there is nothing at /no/such/file.json"),
        (lambda spark, df: read_receptions(spark, "/", format="tapes"), "cannot read / as tapes"),
    ],
)
def test_misuse_is_named(spark, call, said):
    with pytest.raises(Misuse, match=said):
        call(spark, texts(spark, [{}]))
