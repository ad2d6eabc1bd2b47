"""``onefold log``: inspect the logs of topics, also while a server writes them; only ``reset-producer`` writes."""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from rich.markup import escape
from typer import Argument, Exit, Option

from onefold.cli.output import AsJson, json_text, people, tell, until_nobody_reads
from onefold.clock import wall_ms
from onefold.errors import Misuse, OnefoldError
from onefold.producers.documents import record_document
from onefold.producers.log import salvage as repair
from onefold.producers.log.disk import REAL, Snapshots
from onefold.producers.log.reader import LogReader
from onefold.producers.ports import LogRecord
from onefold.producers.records import MESSAGES, Kind
from onefold.producers.requests import entries
from onefold.producers.rules import recover
from onefold.producers.topic import FILE, Topics, memory_of, topic_names
from onefold.report.text import table
from onefold.text import printable

ROOT: Final = Path("./onefold-log")
POLL_S: Final = 0.2
TAIL_COUNT: Final = 10
"""As `tail` has it."""

Folder: TypeAlias = Annotated[Path, Argument(exists=True, file_okay=False, help="The folder of one topic.")]


def ls(
    root: Annotated[Path, Argument(exists=True, file_okay=False, help="A folder of topics.")] = ROOT,
    json: AsJson = False,
) -> None:
    """List the topics of a folder: which offsets they hold, their size, and when they were last written."""
    topics = [_look(root / name) for name in topic_names(root)]
    rows = table("topic", ">start", ">end", ">bytes", "last record", no_wrap=True)
    for topic in topics:
        figures = (f"{topic[key]:,}" if key in topic else "" for key in ("start", "end", "bytes"))
        rows.add_row(topic["topic"], *figures, _clock(topic.get("last_ms")))
    people.print(rows if topics else f"no topics in {root}", markup=False, soft_wrap=not topics)
    problems = [f"{topic['topic']}: {topic['problem']}" for topic in topics if "problem" in topic]
    tell(problems, {"root": str(root), "topics": topics}, json)


def _look(folder: Path) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in folder.glob("*.log"))
    try:
        reader = LogReader(folder)
        start, end = reader.start, reader.end
        last = next(reader.read(end - 1, end)).time_ms if end > start else None
    except OnefoldError as error:  # still list the others
        return {"topic": folder.name, "bytes": size, "problem": str(error)}
    return {"topic": folder.name, "start": start, "end": end, "bytes": size, "last_ms": last}


def tail(
    topic: Folder,
    start: Annotated[int | None, Option("--from", min=0, help="First offset; by default near the end.")] = None,
    since: Annotated[datetime | None, Option(help="First time, in UTC, such as 2026-01-31T12:00:00.")] = None,
    count_max: Annotated[
        int | None, Option("--max", min=1, help="How many to show; default 10, or all with --from.")
    ] = None,
    follow: Annotated[bool, Option("--follow", help="Wait for more; stop with Ctrl-C.")] = False,
    everything: Annotated[
        bool, Option("--all", help="Also the topic's own records: openings, conflicts, purges, switches.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print a line of JSON per record on standard output.")] = False,
) -> None:
    """Show the messages of a topic."""
    reader = LogReader(topic)
    if since is not None:
        if start is not None:
            raise Misuse("--from and --since: give only one of them", start=start)
        start = reader.offset_at(round(since.replace(tzinfo=UTC).timestamp() * 1_000))
    if start is None:
        count_max = count_max if follow else count_max or TAIL_COUNT
        start = _near_end(reader, count_max or TAIL_COUNT, everything)
    records = _following(reader, start) if follow else reader.read(start)
    with until_nobody_reads():
        for record in islice(_wanted(records, everything), count_max):
            if not json:
                people.lines(_line(record))
                continue
            document = record_document(record)  # as from the server; with the text if it is UTF-8
            if "payload_base64" in document:
                with suppress(UnicodeDecodeError):
                    document["text"] = record.payload.decode()
            print(json_text(document), flush=True)


def _near_end(reader: LogReader, count: int, everything: bool) -> int:
    """The offset of the first of the last ``count`` wanted records."""
    start, end, window = reader.start, reader.end, count
    while True:
        begin = max(start, end - window)
        offsets = [record.offset for record in _wanted(reader.read(begin, end), everything)][-count:]
        if len(offsets) == count or begin == start:
            return offsets[0] if offsets else end
        window *= 4


def _wanted(records: Iterator[LogRecord], everything: bool) -> Iterator[LogRecord]:
    return (record for record in records if everything or record.kind in MESSAGES)


def _following(reader: LogReader, start: int) -> Iterator[LogRecord]:
    while True:
        end = reader.end
        yield from reader.read(start, end)
        start = end
        while reader.end == end:
            time.sleep(POLL_S)


def _line(record: LogRecord) -> str:
    kind = "" if record.kind == Kind.MESSAGE else f" {Kind(record.kind).name.lower()}"
    text = record.payload.decode("utf-8", errors="backslashreplace")
    line = f"{record.offset} {_clock(record.time_ms)} {record.producer} {record.sequence}{kind}  {text}"
    return printable(line, keep="")  # one line per record


def producers(topic: Folder, json: AsJson = False) -> None:
    """Show the producers of a topic: last stored sequence id, epoch, and when each was last seen."""
    reader = LogReader(topic)
    snapshot = Snapshots(REAL, str(topic), 1).newest()
    records = reader.read(reader.start if snapshot is None else snapshot.position)
    memory = recover(snapshot, entries(records), memory=memory_of(topic)).sequences
    states = sorted(memory.producers.items(), key=lambda item: item[0])
    documents = []
    rows = table("producer", ">last sequence id", ">epoch", "last seen", no_wrap=True)
    for name, state in states:
        figures = {"last_sequence_id": state.head, "epoch": state.epoch, "last_seen_ms": state.time_ms}
        documents.append({"name": name, **figures})
        rows.add_row(escape(name), str(state.head), str(state.epoch), _clock(state.time_ms))
    people.print(rows if states else "no producers")
    note = [] if memory.switched_on else ["deduplication is off: stored sequences are not remembered"]
    tell(note, {"topic": str(topic), "deduplicate": memory.switched_on, "producers": documents}, json)


def verify(topic: Folder, json: AsJson = False) -> None:
    """Read a topic's whole log, and name every damaged place. Exit 1 if there is one, 0 if not."""
    findings = repair.verify(topic, now_ms=wall_ms())
    outcome = "all is whole" if findings.ok else "damaged: `onefold log salvage` saves the rest"
    tell([str(findings), outcome], _findings_document(findings), json)
    if not findings.ok:
        raise Exit(1)


def reset_producer(
    topic: Folder,
    name: Annotated[str, Argument(help="The producer's name; `onefold log producers` shows them.")],
    json: AsJson = False,
) -> None:
    """Forget the sequences of one producer: its next one is new, whatever it is. No server may have the topic open.

    For a producer that stored a wrong sequence far ahead, after which all honest ones are repeats or jumps. Stored
    messages stay, and the reset is a record in the log. Exit 2 if the topic does not know the producer, 3 if another
    process writes the topic.
    """
    folder = topic.absolute()
    memory_of(folder)  # refuse a folder that is no topic before writing to it
    with Topics(folder.parent) as topics:
        opened = topics.topic(folder.name, create=False)
        last, floor = opened.last_sequence_id(name), opened.floor(name)
        if last < 0 and floor < 0:
            raise Misuse(f"{topic}: no sequence of a producer {name!r} is remembered", producer=name)
        opened.reset(name)
    document = {"topic": str(topic), "producer": name, "last_sequence_id": last, "floor": floor}
    tell(f"{name}: forgotten, up to sequence {max(last, floor)}; its next one is new", document, json)


def salvage(
    topic: Folder,
    to: Annotated[Path, Argument(help="The folder for the new log: new or empty.")],
    json: AsJson = False,
) -> None:
    """Copy all whole records of a damaged log into a new one, and name the lost ones. The old log stays unchanged."""
    findings = repair.salvage(topic, to)
    if (topic / FILE).is_file():
        shutil.copy(topic / FILE, to / FILE)  # last: this makes it a topic
    saved = f"{findings.records:,} records saved in {to}"
    tell([str(findings), saved], _findings_document(findings) | {"to": str(to)}, json)


def _findings_document(findings: repair.Findings) -> dict[str, Any]:
    return {**asdict(findings), "ok": findings.ok, "can_go_on": findings.can_go_on}


def _clock(time_ms: int | None) -> str:
    return "" if time_ms is None else repair.moment(time_ms)
