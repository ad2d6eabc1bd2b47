"""Runs with a memory: which files the next run reads, and as which version of the memory.

    MEMORY/_versions/000000000012.json    what version 12 reads: its files, and the time that counts as now

The document is written before the version is judged, as Spark logs a batch before running it. So a run that died is
repeated with the same files, whatever arrived since: it judges the same rows from the same memory, and publishes them
as the same version. A version counts once it is published, and the output knows its last version. A file that a
published version has read (same path, size and time) is not read again. A changed file is; rows seen before are then
repeats. For a Kafka topic, ranges of offsets take the place of files. Any other source that is not made of files is
read whole every time.

Every 64th version also lists the files of all versions before it, so that a start reads few of these documents.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse, OnefoldError
from onefold.spark.files import SourceFile
from onefold.spark.memory import ALL, MemoryFolder, Storage, signature

FOLDER: Final = "_versions"
WHOLE_EVERY: Final = 64


class FileKey(NamedTuple):
    """A file in the state in which it was read."""

    path: str
    size: int
    modified_ms: int

    @classmethod
    def of(cls, file: SourceFile) -> FileKey:
        return cls(file.path, file.size, file.modified_ms)


class NothingNew(OnefoldError):
    """Published versions have read all files of the source."""

    def __init__(self, version: int) -> None:
        super().__init__(f"nothing new: version {version} has the last of these files", version=version)
        self.version = version


@dataclass(frozen=True, slots=True)
class Version:
    """A version that is to be judged and published."""

    number: int
    files: tuple[str, ...] | None
    """The paths that it reads; None: the source is not made of files and is read whole."""
    now_ms: int
    left: int = 0
    """How many files arrived after it was begun: the next version reads them."""
    document: Mapping[str, Any] | None = None
    """The document to write; None: it was begun before."""


class VersionLog:
    """The log of what each version of a memory reads."""

    def __init__(self, memory: str) -> None:
        self._storage = Storage(memory)
        signed = signature(self._storage)
        self.id = None if signed is None else str(signed["id"])
        """The id of the memory; None: there is no memory yet."""

    def next(self, last: int | None, listed: Sequence[SourceFile] | None, wanted: int | None = None) -> Version:
        """The next version: one that was begun and not published, if its files still exist, else a new one.

        ``last``: the last published version. ``listed``: the files of the source; None: not made of files. ``wanted``:
        the version that the caller asks for. Raise `NothingNew` if everything is published, `Misuse` if ``wanted`` was
        published from other files.
        """
        number = 0 if last is None else last + 1
        self._check_memory(last)
        there = None if listed is None else {FileKey.of(file) for file in listed}
        read = self._read(last) if last is not None else {}
        if wanted is not None and wanted != number:
            raise self._again(wanted, number, there, read)
        begun = self._document(number)
        if begun is not None and there is not None and begun["files"] is not None:
            same = {FileKey(*file) for file in begun["files"]}
            if same <= there:
                left = len(there - same - read.keys())
                return Version(number, tuple(sorted(file.path for file in same)), int(begun["now_ms"]), left)
        new = None if there is None else sorted(there - read.keys())
        if new is not None and not new and read:
            raise NothingNew(max(read[file] for file in there or () if file in read) if there else number - 1)
        now_ms = time.time_ns() // 1_000_000
        document: dict[str, Any] = {"version": number, "now_ms": now_ms, "files": new}
        if number % WHOLE_EVERY == WHOLE_EVERY - 1:
            document["before"] = sorted((*file, version) for file, version in read.items())
        return Version(number, None if new is None else tuple(file.path for file in new), now_ms, document=document)

    def read(self, last: int | None) -> set[FileKey]:
        """The files of the published versions, and of one that was begun."""
        begun = self._document(0 if last is None else last + 1)
        files = {FileKey(*file) for file in (begun or {}).get("files") or ()}
        return files if last is None else files | self._read(last).keys()

    def begin(self, version: Version) -> None:
        """Write the document of a version, before anything is judged."""
        if version.document is not None:
            MemoryFolder.anywhere(self._storage.url).drop_from(version.number)  # left by an attempt with other files
            self._storage.write(_name(version.number), json.dumps(version.document, indent=1).encode())

    def _check_memory(self, last: int | None) -> None:
        """Raise `Misuse` if memory and output do not belong together."""
        newest = -1
        if self.id is not None:
            runs = MemoryFolder.anywhere(self._storage.url).newest(ALL)
            newest = max((int(run.header["version"]) for run in runs.values()), default=-1)
        if newest > (0 if last is None else last + 1):
            there = "none" if last is None else f"only those up to {last}"
            raise Misuse(
                f"{self._storage.url} remembers versions up to {newest}, but the output has {there}: use the output"
                " that they were published to, or an empty memory and an empty output",
                path=self._storage.url,
            )
        if self.id is None and last is not None:
            raise Misuse(
                f"there is no memory at {self._storage.url}, but the output has versions up to {last}: use the memory"
                " that they were judged by, or an empty output",
                path=self._storage.url,
            )

    def _again(self, wanted: int, number: int, there: set[FileKey] | None, read: Mapping[FileKey, int]) -> OnefoldError:
        """The error for a wanted version that is not the next one."""
        if wanted > number:
            return Misuse(f"version {wanted} leaves a hole: {number} is the next", version=wanted)
        if there is None:
            return Misuse(
                f"version {wanted} is published; whether from this source is unknown, as it is not made of files",
                version=wanted,
            )
        missing = {file for file, version in read.items() if version == wanted} - there
        new = there - read.keys()
        if not missing and not new:
            return NothingNew(wanted)
        file, what = (min(missing), "has changed or is gone") if missing else (min(new), "is new")
        return Misuse(
            f"version {wanted} is published, from other files: {file.path.removeprefix('file:')} {what}", version=wanted
        )

    def _read(self, last: int) -> dict[FileKey, int]:
        """The files read up to a version, each with the version that read it."""
        read: dict[FileKey, int] = {}
        for number in range(last, -1, -1):
            document = self._document(number)
            if document is None:
                raise BadInput(f"{self._storage.url}/{_name(number)} is missing: which files it read is not known")
            for file in document["files"] or ():
                read.setdefault(FileKey(*file), number)
            if "before" in document:
                for *file, version in document["before"]:
                    read.setdefault(FileKey(*file), int(version))
                break
        return read

    def _document(self, number: int) -> dict[str, Any] | None:
        path = f"{self._storage.url}/{_name(number)}"
        try:
            document = read_json(bytes(self._storage.read(_name(number))), path)
        except FileNotFoundError:
            return None
        if not isinstance(document, dict) or not {"files", "now_ms"} <= document.keys():
            raise BadInput(f"{path} does not say what version {number} reads", path=path)
        return document


def _name(number: int) -> str:
    return f"{FOLDER}/{number:012}.json"
