"""A page of what a topic has stored. It reads files: call it in a thread."""

from typing import Any, Final

from onefold.engines.producers.records import MESSAGES
from onefold.errors import BadInput
from onefold.services.ingest.documents import record_document
from onefold.services.topic import Topic

LOOKED_MAX: Final = 100_000
"""Records that are looked at for one page, wanted or not."""


def page(topic: Topic, start: int, *, count_max: int, bytes_max: int, everything: bool) -> dict[str, Any]:
    """The records from an offset on (-1: the first), within the limits but at least one, and where to go on."""
    begin, end = topic.log.start, topic.log.end
    start = begin if start < 0 else start
    if not begin <= start <= end:
        raise BadInput(f"from: is {start}, what is kept goes from {begin} to {end}", start=begin, end=end)
    found: list[dict[str, Any]] = []
    size, at = 0, start
    for record in topic.log.read(start, min(end, start + LOOKED_MAX)):
        if everything or record.kind in MESSAGES:
            size += len(record.payload)
            if len(found) == count_max or (found and size > bytes_max):
                break
            found.append(record_document(record))
        at = record.offset + 1
    return {"records": found, "next": at, "start": begin, "end": end}
