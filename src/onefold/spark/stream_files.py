"""The files of a stream: each is looked at before its batch is judged, and again when it should not change any more.

Spark reads a file of a stream's folder once. One that cannot be read ends the stream, at every start again; one that
grows or is written anew after that is never looked at. So before a batch is judged its files are opened by other means
(`files`): the bad ones are named, and the stream ends, or goes on without them if the settings say so. What was set
aside is kept in the checkpoint, so that each start leaves out the same. And the times of all files that were read,
which Spark keeps in the checkpoint, are compared with those in the folder: what changed is named.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from onefold.errors import OnefoldError
from onefold.spark.files import File, cannot_read, plain_path
from onefold.spark.ingest import OpenedStream, Source, open_stream
from onefold.spark.judging import Named
from onefold.spark.place import Place
from onefold.spark.watching import Progress

KEPT: Final = "onefold_files.json"
"""In the checkpoint: the files that were set aside."""
LOOK_S: Final = 10.0
"""How often the times of files that were read are compared with those in the folder, at most."""


class SetAside(OnefoldError):
    """A file of the batch cannot be read and was set aside: the batch is to be begun again, without it."""


class StreamFiles:
    """The files of a stream, by its checkpoint and its folder. For a source that is no files there is nothing to do."""

    def __init__(self, spark: SparkSession, source: Source, columns: Named, checkpoint: Place) -> None:
        self._spark, self._source, self._columns, self._checkpoint = spark, source, columns, checkpoint
        self._opened: OpenedStream | None = None
        self._looked_s = 0.0
        kept = (checkpoint / KEPT).read_json() if (checkpoint / KEPT).exists() else {"set_aside": []}
        self.aside = [File.from_dict(line) for line in kept["set_aside"]]
        """Files that were set aside, by this start or one before."""
        self.changed: list[str] = []
        """Files that are no longer what was read, one line each."""

    def table(self) -> DataFrame:
        """The source as a stream, without the files that were set aside."""
        self._opened = open_stream(self._spark, self._source, self._columns, self.aside)
        return self._opened.rows

    def check(self, batch: int) -> None:
        """Look at the files of a batch before it is judged: raise `OSError` that names those that cannot be read, or
        set them aside and raise `SetAside`.
        """
        if self._opened is None or self._opened.files is None:
            return
        known = {file.path for file in self.aside}
        paths = [path for path in self._paths(batch) if path not in known]
        bad = [file for file in map(self._opened.judged, self._opened.files.looked_at(paths)) if file.trouble]
        if bad and self._source.bad_files == "stop":
            raise OSError(cannot_read(bad))
        if bad:
            self.aside += bad
            lines = [{**file.to_dict(), "metadata_path": file.metadata_path} for file in self.aside]
            (self._checkpoint / KEPT).write_json({"set_aside": lines})
            raise SetAside(f"batch {batch}: {len(bad)} files were set aside")
        if time.monotonic() - self._looked_s >= LOOK_S:
            self.look()

    def _paths(self, batch: int) -> list[str]:
        """The files of a batch, from the log that Spark keeps in the checkpoint."""
        last, before = (self._offset(number) for number in (batch, batch - 1))
        log = self._checkpoint / "sources" / "0"
        found: list[str] = []
        for number in range(before + 1, last + 1):
            found += [entry["path"] for entry in self._entries(log, number) if entry["batchId"] == number]
        return [plain_path(url) for url in found]

    def _offset(self, batch: int) -> int:
        place = self._checkpoint / "offsets" / str(batch)
        if batch < 0 or not place.exists():
            return -1
        last = place.read_bytes().decode().splitlines()[2]
        if last == "-":  # nothing had been found by then
            return -1
        return int(json.loads(last)["logOffset"]) if last.startswith("{") else int(last)

    def _entries(self, log: Place, number: int) -> list[dict[str, Any]]:
        for name in (str(number), f"{number}.compact"):
            if (log / name).exists():
                return [json.loads(line) for line in (log / name).read_bytes().decode().splitlines()[1:]]
        return []

    def look(self) -> None:
        """Compare the times of all files that were read with those in the folder."""
        if self._opened is None or self._opened.files is None:
            return
        self._looked_s = time.monotonic()
        log = self._checkpoint / "sources" / "0"
        names = log.names()
        compact = max((int(name.removesuffix(".compact")) for name in names if name.endswith(".compact")), default=-1)
        read: dict[str, int] = {}
        for number in sorted({int(name.removesuffix(".compact")) for name in names}):
            if number >= compact:
                read |= {plain_path(entry["path"]): entry["timestamp"] for entry in self._entries(log, number)}
        self.changed = [
            f"{file.shown} changed after it was found: it has {file.size:,} bytes now, and is not read again"
            for file in self._opened.files.listed()
            if file.modified_ms > read.get(file.path, file.modified_ms)
        ]

    def noted(self, progress: Progress) -> Progress:
        """The progress of the stream, with what is to be known of its files."""
        aside = tuple(file.to_dict() for file in self.aside)
        return replace(progress, set_aside=aside, changed=tuple(self.changed))
