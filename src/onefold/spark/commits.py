"""Commits by one put, for object stores, where renaming a folder is not atomic.

    PATH/_commits/000000000012.json    what batch 12 published: each file, where it was written and its final name
    PATH/_commit.json                  the same for a batch run, until it is carried out
    PATH/_staging/...                  the files of attempts; only files that a commit names count

Each attempt writes into a folder of its own in ``_staging``. Then one put writes the commit, which publishes everything
at once: readers that use the commits (`files_of`, `onefold.spark.published`) see all of it from then on, and nothing
before. After that the commit is carried out: the store copies each file to its final name, the documents are written,
and last the one that marks the folder as complete (``tally.json`` of a batch, ``run.json`` of a run). If this is
interrupted, the next start does it again, including copies that were done before.

So a final name never holds a row that is not committed, even for readers that ignore commits; while a commit is carried
out, these may see a part of it, until its last document is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from onefold.errors import Misuse, StaleWrite
from onefold.spark import objects
from onefold.spark.files import THREADS_MAX, Place

COMMIT: Final = "_commit.json"
COMMITS: Final = "_commits"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Commit:
    """What is published: files and documents; names are relative to the output's folder."""

    files: Mapping[str, str]
    """From final names to the names under which they were written."""
    documents: Mapping[str, Any] = field(default_factory=dict)
    """In writing order, each bytes (as text in a commit that was read) or a dict, which becomes JSON."""

    @classmethod
    def of(cls, root: Place, parts: Mapping[str, Place], folder: str, documents: Mapping[str, Any]) -> Commit:
        """A commit of these parts, folders written below ``root``, to be published in ``folder`` of it."""
        files = {}
        for name, part in parts.items():
            if part.by_spark:
                urls = [f"{part}/{file}" for file in part.files() if _is_rows(file)]
            else:
                urls = [file.url for file in objects.written(str(part))]
            for url in urls:
                files[f"{folder}{name}/{url.rpartition('/')[2]}"] = url.removeprefix(f"{root}/")
        return cls(files, documents)

    def put(self, file: Place, *, new: bool = False) -> None:
        """Write the commit, which publishes everything in it. ``new``: `StaleWrite` if the file exists already."""
        own = {"format": FORMAT, "put": uuid4().hex}  # makes the bytes unique, see `objects.put_new`
        data = json.dumps({**own, "files": self.files, "documents": self._texts()}).encode()
        if not new:
            file.write_bytes(data)
        elif not file.write_new(data):
            raise StaleWrite(f"{file.shown} was published by somebody else in between", path=file.shown)

    def _texts(self) -> dict[str, Any]:
        return {
            name: document.decode(errors="surrogateescape") if isinstance(document, bytes) else document
            for name, document in self.documents.items()
        }

    @classmethod
    def read(cls, file: Place) -> Commit | None:
        """The commit in a file; None: there is none."""
        if not file.exists():
            return None
        document = file.read_json()
        return cls(document["files"], document["documents"])

    def carry_out(self, root: Place) -> None:
        """Copy all files to their final names and write the documents; idempotent, also for two at once."""
        in_threads(lambda pair: (root / pair[1]).settle_as(root / pair[0]), self.files.items())
        for name, document in self.documents.items():
            if isinstance(document, dict):
                (root / name).write_json(document)
            else:
                text = document.encode(errors="surrogateescape") if isinstance(document, str) else document
                (root / name).write_bytes(text)

    def where(self, root: Place) -> dict[str, str]:
        """The current URL of each file by its final name; `FileNotFoundError` if a file is in neither place."""

        def url(pair: tuple[str, str]) -> str:
            place = next((place for name in reversed(pair) if (place := root / name).exists()), None)
            if place is None:
                raise FileNotFoundError(f"{root}/{pair[0]} is committed, and is not there any more: read again")
            return str(place)

        return dict(zip(self.files, in_threads(url, self.files.items()), strict=True))


def in_threads(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Map a function over items in threads; calls to a store are mostly waiting."""
    with ThreadPoolExecutor(max_workers=THREADS_MAX) as pool:
        return list(pool.map(function, items))


def batch_numbers(root: Place) -> list[int]:
    """The numbers of the committed batches."""
    names = (root / COMMITS).names()
    if stranger := next((name for name in names if not re.fullmatch(r"\d{12}\.json", name)), None):
        raise Misuse(f"{root / COMMITS} holds {stranger!r}, which is no commit: move it away", path=str(root))
    return sorted(int(name.removesuffix(".json")) for name in names)


def commit_of(root: Place, batch: int) -> Place:
    return root / COMMITS / f"{batch:012}.json"


def files_of(root: Place, names: Iterable[str], *, batches: str, whole: str) -> list[str]:
    """The published Parquet files of all folders with these names, of a run or of all batches of a stream.

    ``batches``: the folder of the batches; ``whole``: the document that marks a batch as carried out.
    """
    wanted = set(names)
    numbers, run = batch_numbers(root), Commit.read(root / COMMIT)
    if run is not None:
        return sorted(url for final, url in run.where(root).items() if final.split("/")[0] in wanted)
    if not numbers:
        return [f"{root}/{name}/{file}" for name in sorted(wanted) for file in (root / name).files() if _is_rows(file)]
    last = f"{numbers[-1]:012}"
    commit = None if (root / batches / last / whole).exists() else Commit.read(commit_of(root, numbers[-1]))
    moving = {} if commit is None else commit.where(root)
    urls = [url for final, url in moving.items() if final.split("/")[2] in wanted]
    committed = {f"{number:012}" for number in numbers} - ({last} if moving else set())
    for file in (root / batches).files():
        batch, _, rest = file.partition("/")
        if batch in committed and rest.partition("/")[0] in wanted and _is_rows(rest):
            urls.append(f"{root}/{batches}/{file}")
    return sorted(urls)


def _is_rows(file: str) -> bool:
    return file.endswith(".parquet")
