"""Whatever bytes somebody gives us, a decoder answers with a value or with its own error, and with nothing else.

One table of all decoders of foreign or stored bytes. Each is given noise, its own samples cut, mixed and changed, and,
where it reads JSON, its own documents with something in them that no writer of ours writes. Where a checksum stands
before the rest, the changed sample is sealed again: else nothing behind it would ever be tried.
"""

import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains import ChainDetector
from onefold.chains.in_order import OrderedChain
from onefold.cli.records import Form
from onefold.decoding import read_json
from onefold.errors import BadInput, Damaged, Misuse
from onefold.lorawan import radio as radio_json
from onefold.lorawan.columns import FrameBank, ReceptionArrays, Windows
from onefold.lorawan.flow import RecordName
from onefold.lorawan.frames import parse, parse_down
from onefold.lorawan.links import lns as lns_json
from onefold.lorawan.links import mqtt as chirpstack_events
from onefold.lorawan.links import udp as semtech_packets
from onefold.lorawan.radio import EU868
from onefold.lorawan.registry import read_registry
from onefold.outbox import Entity, Entry, Key, Message, Outgoing, pack_entry, unpack_entry
from onefold.outbox.plans import pack_message, stored_entry, unpack_message
from onefold.producers import Sequences, documents
from onefold.producers import wire as batch
from onefold.producers.client import _greeted
from onefold.producers.log import disk as snapshots
from onefold.producers.log import frames
from onefold.producers.ports import Draft
from onefold.producers.records import Kind
from onefold.producers.records import SequenceEntry as Stored
from onefold.producers.rules import SequencesSnapshot
from onefold.producers.topic import memory_of
from onefold.reconcile import ItemSet, Session, exchange
from onefold.reconcile.nip77 import read_filter, read_message
from onefold.reconcile.peer import Refused
from onefold.reconcile.records import Record
from onefold.report.console.watch import Folder
from onefold.report.documents import read_document
from onefold.settings import load
from onefold.spark.memory import ItemLists, KeyRecords, RunFile, encoded
from onefold.spark.peer.index import Buckets
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict
from tests.lib.examples import examples
from tests.lib.report_documents import run

FOLDER = TemporaryDirectory()
KEY = Key("shop", "7")
UPLINK = bytes.fromhex("40da1b012600010001aabbccdd01020304")
INTS = np.array([1, 2, 3], np.int64)


class Decoder(NamedTuple):
    """What is called, samples of what it takes, and what else than `BadInput` it may raise, as its docstring says."""

    decode: Callable[[bytes], object]
    samples: list[bytes]
    raises: tuple[type[Exception], ...] = (BadInput,)
    seal: Callable[[bytes], bytes] | None = None
    """Puts the checksum right."""


def text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: decode(data.decode(errors="surrogateescape"))


def file(name: str, decode: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A decoder of a file, or of the folder that it lies in."""

    def written(data: bytes) -> object:
        path = Path(FOLDER.name) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return decode(path)

    return written


def stream(name: str) -> Callable[[bytes], object]:
    """The report of a stream with this file in its folder."""

    def written(data: bytes) -> object:
        folder = Path(FOLDER.name) / name.replace("/", "-")
        for file, content in (
            ("stream.json", b"{}"),
            ("batches/000000000000/tally.json", as_json(TALLY)[0]),
            (name, data),
        ):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        return read_document(folder)

    return written


def run_of_a_bucket() -> bytes:
    lists = {"gaps": ItemLists(np.array([0, 2, 1]), (INTS, INTS + 1))}
    return encoded(
        {"chains": KeyRecords(INTS, INTS, {"head": INTS << 40, "heard": INTS * 0}, lists)}, b"blob", RUN_HEAD
    )


def read_run(data: bytes) -> None:
    run = RunFile(memoryview(data), "it")
    run.verify()
    run.records("chains", run.find("chains", INTS, INTS))
    run.records("chains")
    _ = run.blob


RUN_HEAD = {"version": 1, "low": 1, "before": -1, "owner": "", "rows": 3, "figures": {"keys": 3, "gaps": 3}}


def frame_bank(*, strict_adr: bool = False) -> bytes:
    bank = FrameBank(Windows(), strict_adr=strict_adr)
    bank.judge(ReceptionArrays(INTS, INTS, INTS, INTS, INTS < 0, INTS, INTS, INTS))
    return bank.snapshot()


def ordered_chain() -> bytes:
    chain: OrderedChain[Any] = OrderedChain()
    for previous, number, message in (((0, 0), (1, 0), b"a"), ((5, 0), (6, 0), {"x": [1]})):
        chain.add(previous, number, message, 0)
    return chain.snapshot()


def detector() -> bytes:
    chain = ChainDetector()
    for previous, number in (((0, 0), (1, 0)), ((5, 2), (6, 0)), (None, (9, 1))):
        chain.judge(previous, number)
    return chain.snapshot()


def producers() -> bytes:
    memory = Sequences("gaps")
    for name in ("p", "prödücer"):
        for sequence in (0, 1, 5):
            memory.apply(Stored(Kind.MESSAGE, name, sequence, 0, 7, 1_000))
    memory.apply(Stored(Kind.KEYED, "kéy", digest=7, time_ms=1_000))
    return memory.snapshot()


def sealed(start: int) -> Callable[[bytes], bytes]:
    """The CRC-32 of all behind it stands in the four bytes before ``start``."""
    return lambda data: data[: start - 4] + zlib.crc32(data[start:]).to_bytes(4, "little") + data[start:]


def sealed_frame(data: bytes) -> bytes:
    """As `frames` seals a frame at position 0 of segment 0: the head, then name and table."""
    size = frames.HEADER_BYTES
    if len(data) < size:
        return data
    _, _, _, _, _, _, count, _, _, name_length, _ = frames.HEADER.unpack_from(data)
    body = size + name_length + frames.TABLE_BYTES * count
    crc = zlib.crc32(data[size:body], zlib.crc32(data[: size - 4], 0))
    return data[: size - 4] + crc.to_bytes(4, "little") + data[size:]


def session() -> Session:
    items = ItemSet.from_arrays([1, 2, 3], [bytes([n]) * 32 for n in (1, 2, 3)])
    items.seal()
    return Session(items)


def as_json(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


RXPK = {
    "tmst": 5, "freq": 868.1, "modu": "LORA", "datr": "SF7BW125", "stat": 1, "rssi": -30, "lsnr": 5.5, "size": 17,
    "data": "QNobASYAAQABqrvM3QECAwQ=", "time": "2013-03-31T16:21:17.528002Z",
}  # fmt: skip
LNS = {
    "msgtype": "updf", "MHdr": 64, "DevAddr": 5, "FCtrl": 0, "FCnt": 1, "FOpts": "", "FPort": 1, "FRMPayload": "aabb",
    "MIC": -7, "DR": 5, "Freq": 868100000, "upinfo": {"rctx": 0, "xtime": 5, "gpstime": 0, "rssi": -30, "snr": 9.5},
}  # fmt: skip
JREQ = {"msgtype": "jreq", "MHdr": 0, "JoinEui": "00-00-00-00-00-00-00-01", "DevEui": "00-00-00-00-00-00-00-02",
        "DevNonce": 5, "MIC": 9}  # fmt: skip
CHIRPSTACK = {
    "phyPayload": "QNobASYAAQABqrvM3QECAwQ=",
    "txInfo": {"frequency": 868100000, "modulation": {"lora": {"bandwidth": 125000, "spreadingFactor": 7}}},
    "rxInfo": {"gatewayId": "0016c001ff10a235", "rssi": -30, "snr": 5, "context": "AAAA", "gwTime": "2026-01-01"},
}
CHIRPSTACK_3 = {
    "phyPayload": "QNobASYAAQABqrvM3QECAwQ=",
    "txInfo": {
        "frequency": 868100000,
        "modulation": "LORA",
        "loRaModulationInfo": {"bandwidth": 125, "spreadingFactor": 7},
    },
    "rxInfo": {"gatewayID": "ABbAAf8QojU=", "rssi": -30, "loRaSNR": 5, "context": "AAAA", "board": 0},
}
GREETING = {"name": "p", "epoch": 1, "last_sequence_id": 5, "floor": -1, "batch_messages_max": 10,
            "batch_bytes_max": 1000, "message_bytes_max": 100}  # fmt: skip
ENTRY = pack_entry(Entry((Outgoing("shipping", {"a": [1]}, "c1"),), "a1"))
TALLY = Tally(2, {Answer(Verdict.FIRST, "new"): 2}).to_dict()
TOML = b'[source]\npath = "in"\n[publish]\npath = "out"\n[judge]\nkey = ["device"]\njump_max_ms = 5\n'
REGISTRY = b"""
[[device]]
dev_eui = "0004a30b001c0530"
dev_addr = "26011bda"
nwk_skey = "000102030405060708090a0b0c0d0e0f"
fcnt_up = 7
relaxed = false
"""


def lns(data: bytes) -> object:
    kind, fields = lns_json.read_message(data.decode(errors="surrogateescape"))
    return (
        (lns_json.data_up(fields), lns_json.read_radio(fields, EU868))
        if kind != "jreq"
        else lns_json.join_request(fields)
    )


def semtech(data: bytes) -> object:
    datagram = semtech_packets.read(data)
    if datagram.kind == semtech_packets.TX_ACK:
        return semtech_packets.failure(datagram)
    push = radio_json.document(datagram.body, "PUSH_DATA")
    return [semtech_packets.read_heard(packet, EU868) for packet in semtech_packets.read_packets(push, 8)]


def nip77(data: bytes) -> object:
    verb, _, rest = read_message(data.decode(errors="surrogateescape"))
    return read_filter(rest[0]) if verb == "NEG-OPEN" else None


def told(kind: Any) -> Callable[[bytes], object]:
    return lambda data: exchange.read_document(kind, b"x" + data)


HEAD = bytes.fromhex("02 abcd 00 0016c001ff10a235")
TX_ACK = bytes.fromhex("02 abcd 05 0016c001ff10a235")
OPENING = exchange.Opening()
DECODERS: dict[str, Decoder] = {
    "chains: detector": Decoder(ChainDetector.restore, [detector()]),
    "chains: ordered": Decoder(OrderedChain.restore, [ordered_chain()]),
    "producers: memory": Decoder(lambda data: Sequences.restore(data), [producers()], seal=sealed(8)),
    "lorawan: bank": Decoder(FrameBank(Windows()).resume, [frame_bank()], seal=sealed(42)),
    "lorawan: bank, strict": Decoder(
        FrameBank(Windows(), strict_adr=True).resume, [frame_bank(strict_adr=True)], seal=sealed(34)
    ),
    "lorawan: uplink": Decoder(parse, [UPLINK, bytes(23)]),
    "lorawan: downlink": Decoder(parse_down, [b"\x60" + UPLINK[1:]]),
    "negentropy: server": Decoder(lambda data: session().reconcile(data), [session().initiate()]),
    "outbox: message": Decoder(unpack_message, [pack_message(Message("t1", "orders", {"a": [1]}, realm="r"))]),
    "outbox: entry": Decoder(text(unpack_entry), [ENTRY.encode()]),
    "stores: entry": Decoder(text(lambda data: stored_entry(KEY, "t1", data)), [ENTRY.encode()], (Damaged,)),
    "stores: entity": Decoder(
        text(lambda data: Entity.unpacked(KEY, 1, data, {})), as_json({"paid": [20]}), (Damaged,)
    ),
    "log: frames": Decoder(
        lambda data: frames.decode(data, 0, 0, 0, 9),
        [frames.encode([Draft(0, "p", n, 1, zlib.crc32(b"ab"), b"ab") for n in range(k)], 0, 5, 0, 0) for k in (1, 3)],
        seal=sealed_frame,
    ),
    "log: snapshot": Decoder(snapshots.unpack, [snapshots.pack(SequencesSnapshot(5, b"state"))], seal=sealed(8)),
    "log: topic": Decoder(file("topic/topic.json", lambda path: memory_of(path.parent)), as_json({"memory": "gaps"})),
    "links: request": Decoder(batch.decode_request, [batch.encode_request(7, "p", 1, [(0, b"ab"), (1, b"")])]),
    "links: reply": Decoder(
        batch.decode_reply, [batch.encode_reply(7, batch.WireStatus.OK, [(Verdict.FIRST, "new", 5)], "tëxt")]
    ),
    "links: opening": Decoder(told(exchange.Opening), [exchange.write_document(1, OPENING)[1:]]),
    "links: trouble": Decoder(told(exchange.Trouble), as_json({"error": "busy", "text": "later", "offset": 5})),
    "links: records": Decoder(
        lambda data: exchange.read_records(b"x" + data, 8),
        [exchange.write_records(1, [Record(5, b"a" * 8, b"coffee"), Record(6, b"b" * 8)])[1:]],
    ),
    "links: outcomes": Decoder(lambda data: exchange.read_outcomes(b"x" + data), [bytes([0, 1])]),
    "links: greeting": Decoder(lambda data: _greeted("ws://host", data), as_json(GREETING), (Misuse,)),
    "ingest: publication": Decoder(
        lambda data: documents.publication(data, 9),
        as_json(
            {"producer": "p", "epoch": 1, "messages": [{"sequence": 0, "payload": {"a": 1}}]},
            {"producer": "p", "messages": [{"sequence": 0, "payload_base64": "YWI="}]},
        ),
    ),
    "ingest: session": Decoder(documents.producer_name, as_json({"name": "p"})),
    "ingest: topic": Decoder(documents.wanted_switch, as_json({"deduplicate": True})),
    "gateway: LNS": Decoder(lns, as_json(LNS, JREQ)),
    "gateway: Semtech": Decoder(
        semtech, [HEAD + as_json({"rxpk": [RXPK]})[0], TX_ACK + as_json({"txpk_ack": {"error": "TOO_LATE"}})[0]]
    ),
    "gateway: Semtech's JSON": Decoder(lambda data: semtech(HEAD + data), as_json({"rxpk": [RXPK], "stat": {}})),
    "gateway: ChirpStack": Decoder(
        lambda data: chirpstack_events.read_heard(data, "0016c001ff10a235", EU868), as_json(CHIRPSTACK, CHIRPSTACK_3)
    ),
    "gateway: ChirpStack's answers": Decoder(
        chirpstack_events.outcome, as_json({"downlinkId": 5, "items": [{"status": "OK"}]}, {"downlinkID": "AAAA"})
    ),
    "gateway: record": Decoder(
        RecordName.of, as_json({"v": 1, "key": "ab" * 32, "station": "s", "received_ms": 5}), ()
    ),
    "gateway: registry": Decoder(file("registry/registry.toml", read_registry), [REGISTRY]),
    "reconcile: NIP-77": Decoder(nip77, as_json(["NEG-OPEN", "x", {"since": 5}, "61"]), (Refused,)),
    "desk: body": Decoder(lambda data: read_json(data, "the body"), as_json({"order": "7", "sum": [20]})),
    "records: line": Decoder(Form(32, time="at").read, as_json({"at": 5})),
    "records: id": Decoder(Form(4, ids=True).read, [b"5,61626364"]),
    "report: run": Decoder(file("run/run.json", read_document), as_json(run(chains=2, strips=2, bins=2))),
    "report: stream": Decoder(stream("batches/000000000000/tally.json"), as_json(TALLY)),
    "report: progress": Decoder(stream("progress.jsonl"), as_json({"batch": 0, "seconds": 1.5, "state_bytes": 7})),
    "console: run": Decoder(
        file("console/run.json", lambda path: Folder(path.parent).look()), as_json(run(chains=2, strips=2, bins=2)), ()
    ),
    "console: steps": Decoder(
        file("steps/progress.json", lambda path: Folder(path.parent).look()),
        as_json({"state": "running", "at_ms": 5, "steps": [["judge", 1.5], ["write", None]]}),
        (),
    ),
    "settings": Decoder(file("pipeline/pipeline.toml", lambda path: load(path, {})), [TOML], (Misuse,)),
    "spark: memory": Decoder(read_run, [run_of_a_bucket()]),
    "spark: sums of a peer": Decoder(Buckets.from_bytes, [Buckets.none(3).to_bytes()]),
    "JSON": Decoder(lambda data: read_json(data, "it"), as_json({"a": [1, {"b": None}]}, "text")),
}


def nested(value: Any, chance: random.Random) -> Any:
    """The value with something in it that it does not have, or without something that it has."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        if chance.random() < 0.15:
            return {other: value[other] for other in value if other != name}
        return {**value, name: nested(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], nested(value[at], chance), *value[at + 1 :]]
    return chance.choice(NASTY)


NASTY: list[Any] = [
    None, True, False, 0, -1, 1.5, 1e300, 2**31, 2**63, -(2**63) - 1, 2**64, 10**80, "", "x", "\ud800", "\0", "x" * 300,
    "9" * 400, [], {}, [[]], [None], {"a": 1}, [1, 2, 3], [[1, 2], [3, 4]], "@NaN@", "@-Infinity@", "@1e999@",
    "@" + "7" * 5_000 + "@",
]  # fmt: skip


def changed(sample: bytes, chance: random.Random) -> bytes:
    """The sample with bytes flipped, cut, put in, doubled or taken out."""
    data = bytearray(sample)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        at, far = chance.randrange(len(data) + 1), chance.randrange(1, 9)
        match chance.randrange(7):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + far]
            case 2:
                data[at:at] = chance.randbytes(far)
            case 3:
                data[at:at] = data[at : at + far]
            case 4 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 5:
                data[at : at + far] = bytes([chance.choice([0, 0x7F, 0x80, 0xFF])]) * far
            case _:
                number = chance.choice([-1, 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 1_000_000])
                data[at : at + 8] = struct.pack("<q", number)
    return bytes(data)


@cache
def is_json(sample: bytes) -> bool:
    try:
        return isinstance(json.loads(sample), dict | list)
    except ValueError:
        return False


def hostile(decoder: Decoder, chance: random.Random) -> bytes:
    sample = chance.choice(decoder.samples)
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(100))
    if is_json(sample) and chance.random() < 0.7:
        document = json.loads(sample)
        for _ in range(chance.randrange(1, 4)):
            document = nested(document, chance)
        data = json.dumps(document).replace('"@', "").replace('@"', "").encode()
    else:
        data = changed(sample, chance)
    return decoder.seal(data) if decoder.seal is not None and chance.random() < 0.9 else data


def try_it(decoder: Decoder, data: bytes) -> None:
    try:
        decoder.decode(data)
    except decoder.raises as error:
        told = str(error)
        assert told, "an error says what is wrong"


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_takes_its_own_samples(name):
    decoder = DECODERS[name]
    for sample in decoder.samples:
        decoder.decode(sample)
        assert decoder.seal is None or decoder.seal(sample) == sample


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**64))
def test_a_decoder_gives_a_value_or_its_own_error(name, seed):
    chance = random.Random(seed)
    for _ in range(5):
        try_it(DECODERS[name], hostile(DECODERS[name], chance))


WORST = {
    "nothing": b"",
    "deep lists": b"[" * 100_000,
    "deep lists, closed": b"[" * 50_000 + b"]" * 50_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a number of 100,000 digits": b"7" * 100_000,
    "the same in an object": b'{"at": ' + b"7" * 100_000 + b"}",
    "no UTF-8": b'{"name": "\xff\xfe"}',
    "half of a surrogate pair": b'{"name": "\\ud800"}',
    "NaN": b"NaN",
    "null": b"null",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "deep TOML": b"a = " + b"[" * 50_000,
    "a TOML number": b"a = " + b"7" * 100_000,
}


@pytest.mark.parametrize("worst", WORST)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_survives_the_worst(name, worst):
    try_it(DECODERS[name], WORST[worst])


@cache
def sums_bomb() -> bytes:
    file = BytesIO()
    np.savez_compressed(file, counts=np.zeros(100 << 17))
    return file.getvalue()


def test_sums_that_were_deflated_have_an_end():
    bomb = sums_bomb()
    tracemalloc.start()
    try:
        with pytest.raises(BadInput):
            Buckets.from_bytes(bomb)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20, "it is refused before it is made"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"a": 1, "a": 1}', 'it is not JSON that can be read: the name "a" is there twice in one object'),
        (
            b'[{"x": {"a": 1, "b": 2, "a": 3}}]',
            'it is not JSON that can be read: the name "a" is there twice in one object',
        ),
        (b'{"a": 1, "\\u0061": 2}', 'it is not JSON that can be read: the name "a" is there twice in one object'),
        (b"[1e5, NaN]", "it is not JSON that can be read: NaN is not a number"),
        (b"[" * 100_000, "it is not JSON that can be read: it is nested too deep"),
        (b'"\xff"', "it is not UTF-8: byte 1"),
        (b"{", "it is not JSON: Expecting property name enclosed in double quotes at character 1"),
    ],
)
def test_json_that_two_readers_would_understand_differently_is_refused(body, told):
    with pytest.raises(BadInput) as refused:
        read_json(body, "it")
    assert str(refused.value) == told


def test_a_server_that_lets_a_producer_send_nothing_is_refused():
    for count in (0, -1):
        greeting = json.dumps({**GREETING, "batch_messages_max": count})
        with pytest.raises(Misuse, match="not an ingest server"):
            _greeted("ws://host", greeting)


def test_a_name_that_is_there_twice_is_found_in_linear_time():
    names = 200_000  # 3 MB, less than a server takes; comparing each name with all others takes minutes
    body = "{" + ",".join(f'"name {i}":0' for i in range(names)) + f',"name {names - 1}":0}}'
    started = process_time()
    with pytest.raises(BadInput, match='"name 199999" is there twice'):
        read_json(body, "it")
    assert process_time() - started < 20


def test_surrogate_pairs_and_equal_names_in_two_objects_are_json():
    assert read_json(b'[{"a": "\\ud83d\\ude00"}, {"a": {"a": 1}}]', "it") == [{"a": "\U0001f600"}, {"a": {"a": 1}}]
