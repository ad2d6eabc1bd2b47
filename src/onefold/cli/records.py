"""``onefold records``: what is in a store of records, and how it gets in and out.

A record is a line without its newline, byte for byte; an empty line is a record too. Its time is a field of it, if it
is JSON, else 0. Or the line names a record whose bytes are elsewhere: ``timestamp,id in hex``.
"""

import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import numpy as np
from typer import Argument, Option

from onefold.cli.options import NewStore, RecordStore, file_of, opened_records, read_id
from onefold.cli.output import AsJson, emit_json, fail, people, progress, tell, until_nobody_reads
from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.reconcile.codec import hashed
from onefold.reconcile.items import INFINITY
from onefold.reconcile.records import Record, Records, Snapshot, record
from onefold.report.text import foreign, many, table
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

LINE_BYTES_MAX: Final = 512 << 10
"""As much as a server takes as one record, unless it is told otherwise: longer ones could not be exchanged."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a line is read; `BadInput` with a ``reason``, one of a few, if it is no record.

    >>> Form(32, time="at").read(b'{"at": 5, "what": "coffee"}').timestamp
    5
    >>> Form(32, time="at").read(b'{"at": "noon"}')
    Traceback (most recent call last):
    onefold.errors.BadInput: at is 'noon', must be a whole number from 0 to 2^64 - 2
    """

    id_size: int
    time: str | None = None
    """The field of a JSON object that holds the time."""
    ids: bool = False
    """Lines are ``timestamp,id``."""

    def read(self, line: bytes) -> Record:
        if len(line) > LINE_BYTES_MAX:
            raise BadInput(f"more than {LINE_BYTES_MAX:,} bytes", reason="too_long")
        if self.ids:
            return self._named(line)
        if self.time is None:
            return record(0, line, self.id_size)
        try:
            document = read_json(line, "the line")
        except BadInput:
            raise BadInput(f"no JSON: {line[:80]!r}", reason="no_json") from None
        if not isinstance(document, dict) or self.time not in document:
            raise BadInput(f"no JSON object with a field {self.time!r}: {line[:80]!r}", reason="no_time")
        value = document[self.time]
        if type(value) is not int or not 0 <= value < INFINITY:
            wrong = f"{self.time} is {value!r:.80}, must be a whole number from 0 to 2^64 - 2"
            raise BadInput(wrong, reason="bad_time")
        return record(value, line, self.id_size)

    def _named(self, line: bytes) -> Record:
        stamp, comma, id = line.rstrip(b"\r").partition(b",")
        if not comma or not stamp.isdigit() or len(stamp) > 20 or int(stamp) >= INFINITY:
            wrong = f"{line[:80]!r} begins with no whole number from 0 to 2^64 - 2 and a comma"
            raise BadInput(wrong, reason="bad_time")
        try:
            return Record(int(stamp), read_id(id.decode("ascii", "replace"), self.id_size))
        except Misuse as error:
            raise BadInput(str(error), reason="bad_id") from None


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Every line and its number, without its newline; of one that is too long only the beginning is held."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 2):
        number += 1
        yield number, line.removesuffix(b"\n")
        while len(line) == LINE_BYTES_MAX + 2 and not line.endswith(b"\n"):  # the rest of it
            line = file.readline(LINE_BYTES_MAX + 2)


BATCH_RECORDS: Final = 10_000
BATCH_BYTES: Final = 16 << 20
"""Of one transaction: large enough to be fast, small enough to be held twice."""
SHOWN_MAX: Final = 20
"""Bad lines that are shown one by one; ten times as many in JSON."""
STORED: Final = Answer(Verdict.FIRST, "stored")
KNOWN: Final = Answer(Verdict.REPEAT, "known")


def add(
    store: NewStore,
    files: Annotated[list[Path], Argument(metavar="FILE", help="Files; - is standard input.")],
    time: Annotated[str | None, Option(metavar="FIELD", help="Lines are JSON, and this is their time; else 0.")] = None,
    ids: Annotated[
        bool,
        Option(
            "--ids", help='Lines are "timestamp,id in hex". Ids that are no hashes and not random hide differences.'
        ),
    ] = False,
    id_size: Annotated[int | None, Option(min=8, max=32, help="Of a new store: bytes of an id. By default 32.")] = None,
    as_json: AsJson = False,
) -> int:
    """Keep every line of these files as a record. A line that is there already is not kept twice.

    A record is a line without its newline; its id is the SHA-256 of its time and its bytes. Lines that are no records
    are named, and the others are kept: exit 1.
    """
    if ids and time is not None:
        raise Misuse("--ids and --time: a line with an id has its time before it")
    for file in files:  # before the first one is read
        if str(file) != "-" and (not file.exists() or file.is_dir()):
            raise Misuse(f"{file}: {'is a folder' if file.is_dir() else 'is not there'}, must be a file")
    with opened_records(store, make=True, id_size=id_size) as records:
        adding = Adding(records, Form(records.id_size, time, ids))
        try:
            with progress(people, "reading", spark=False) as show:
                for file in files:
                    for _ in adding.read(file):
                        show(f"{file}: {adding.tally.received:,} lines, {adding.tally.count(Verdict.FIRST):,} new")
        except KeyboardInterrupt:
            return fail(f"interrupted: {many(adding.tally.judged, 'line')} done; to add them again does no harm", 130)
        size = len(records)
    tally = adding.tally.check()
    rejected = tally.count(Verdict.REJECT)
    if rejected > SHOWN_MAX:
        people.lines(f"and {many(rejected - SHOWN_MAX, 'more line')} that are no records")
    sums = f"{many(tally.count(Verdict.FIRST), 'record')} stored, {tally.count(Verdict.REPEAT):,} known"
    text = f"{sums}, {many(rejected, 'line')} rejected; {store} holds {size:,} now"
    tell(text, {"store": store, "records": size, "tally": tally.to_dict(), "rejected": adding.rejected}, as_json)
    return 1 if rejected else 0


class Adding:
    def __init__(self, records: Records, form: Form) -> None:
        self.tally = Tally()
        self.rejected: list[dict[str, Any]] = []
        """The first bad lines: file, line, reason and text."""
        self._records, self._form = records, form
        self._batch: dict[bytes, Record] = {}
        self._bytes = self._count = 0

    def read(self, file: Path) -> Iterator[None]:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as opened:
            for number, line in lines(opened):
                self.tally.arrive()
                try:
                    record = self._form.read(line)
                    first = self._batch.setdefault(record.id, record)
                    if first.timestamp != record.timestamp:
                        times = f"the time {record.timestamp} here, and {first.timestamp} before"
                        raise BadInput(f"id {record.id.hex()} has {times}", reason="other_time")
                    self._count += 1
                    self._bytes += len(record.body or b"")
                except BadInput as error:
                    reason = error.values["reason"]
                    self.tally.judge(Answer(Verdict.REJECT, reason))
                    if len(self.rejected) < SHOWN_MAX:
                        people.lines(foreign(f"{file}:{number}: {error}", 300))
                    if len(self.rejected) < 10 * SHOWN_MAX:
                        document = {"file": str(file), "line": number, "reason": reason, "text": str(error)}
                        self.rejected.append(document)
                if len(self._batch) >= BATCH_RECORDS or self._bytes >= BATCH_BYTES:
                    self._store()
                    yield
        self._store()
        yield

    def _store(self) -> None:
        new = sum(self._records.add(list(self._batch.values()))) if self._batch else 0
        self.tally.judge(STORED, new)
        self.tally.judge(KNOWN, self._count - new)
        self._batch, self._bytes, self._count = {}, 0, 0


def ls(
    store: RecordStore,
    limit: Annotated[int, Option(min=0, max=100_000, help="List so many records, the oldest first.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show how much a store holds. Two stores with the same fingerprint hold the same records."""
    with opened_records(store) as records, closing(records.snapshot()) as snapshot:
        rows = len(snapshot)
        since, until = snapshot.rows(np.array([0, rows - 1]))[0].tolist() if rows else (None, None)
        lower, upper = np.array([0]), np.array([rows])
        fingerprint = hashed(snapshot.sums(lower, upper), upper - lower)[0].tobytes().hex()
        # The file, and what SQLite keeps beside it.
        files = [file_of(store), file_of(store).with_name(file_of(store).name + "-wal")]
        size = sum(path.stat().st_size for path in files if path.exists())
        id_size, listed = records.id_size, _listed(records, snapshot, limit)
    if listed:
        lines = table(">time", "id", ">bytes")
        for each in listed:
            lines.add_row(str(each["timestamp"]), each["id"], "" if each["bytes"] is None else f"{each['bytes']:,}")
        people.print(lines)
    span = f", times {since} to {until}" if rows else ""
    text = [f"{many(rows, 'record')}{span}; the file has {size:,} bytes", f"fingerprint {fingerprint}"]
    figures = {"id_size": id_size, "records": rows, "since": since, "until": until, "fingerprint": fingerprint}
    tell(text, {"store": store, "bytes": size, **figures, **({"listed": listed} if limit else {})}, as_json)


def _listed(records: Records, snapshot: Snapshot, limit: int) -> list[dict[str, Any]]:
    stamps, rows = snapshot.rows(np.arange(min(limit, len(snapshot))))
    ids = [row[: records.id_size].tobytes() for row in rows]
    listed = []
    for at in range(0, len(ids), 100):  # bodies are read with them, and may be large
        some = ids[at : at + 100]
        for stamp, id, each in zip(stamps[at : at + 100].tolist(), some, records.read(some), strict=True):
            size = None if each is None or each.body is None else len(each.body)
            listed.append({"timestamp": stamp, "id": id.hex(), "bytes": size})
    return listed


def show(
    store: RecordStore, id: Annotated[str, Argument(metavar="ID", help="An id, in hex.")], as_json: AsJson = False
) -> int:
    """Write the bytes of a record to standard output, as they are. Exit 1 if they are not there."""
    with opened_records(store) as records:
        [each] = records.read([read_id(id, records.id_size)])
    if as_json:
        document: dict[str, Any] | None = None
        if each is not None:
            document = {"id": each.id.hex(), "timestamp": each.timestamp}
            if each.body is not None:
                document["body_base64"] = b64encode(each.body).decode()
                with suppress(UnicodeDecodeError):
                    document["text"] = each.body.decode()
        emit_json(document)
    if each is None:
        return fail(f"{store}: there is no record {id}", 1)
    if each.body is None:
        return fail(f"{store}: of {id} only the time is known, {each.timestamp}; its bytes are elsewhere", 1)
    if not as_json:
        with until_nobody_reads():
            sys.stdout.buffer.write(each.body)
            sys.stdout.buffer.flush()
    return 0


def rm(
    store: RecordStore, ids: Annotated[list[str], Argument(metavar="ID", help="Ids, in hex.")], as_json: AsJson = False
) -> int:
    """Forget records. Exit 1 if one was not there.

    A peer that still has them gives them back at the next reconciliation: remove them there too.
    """
    with opened_records(store) as records:
        wanted = list(dict.fromkeys(read_id(id, records.id_size) for id in ids))
        removed = records.remove(wanted)
        size = len(records)
    missing = len(wanted) - removed
    rest = f"; {missing:,} {'was' if missing == 1 else 'were'} not there" if missing else ""
    text = f"{many(removed, 'record')} removed{rest}; {store} holds {size:,} now"
    tell(text, {"store": store, "removed": removed, "missing": missing, "records": size}, as_json)
    return 1 if missing else 0
