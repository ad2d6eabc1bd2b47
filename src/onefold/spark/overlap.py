"""A place that is written may not overlap one that is read, however the two are spelled.

A job that writes over its own source destroys it; what it writes inside, the next run reads again. So every job calls
`refuse_overlap` before it writes anything. This needs no Spark, so a mistake in the settings is found before Spark
starts. Two places overlap if they are the same, or one lies inside the other, however they are spelled:

    data/../data/in/   in -> data/in   file:data   file:///data   the same place, through dots, links and spellings
    s3://b/x   s3a://b/x               the same: some stores have several schemes
    data/*/in   data/{a,b}             a pattern overlaps whatever it could match, now or later

Local paths are compared with their links resolved and, where both exist, as the file system itself compares them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from glob import iglob
from itertools import islice, product
from pathlib import Path
from typing import Final, NamedTuple

from onefold.errors import Misuse
from onefold.spark.objects import PATTERN, matches

BRACES_MAX: Final = 1_000
"""The most paths that the braces of a pattern may expand to; beyond it, only the part before the braces counts."""
MATCHES_MAX: Final = 10_000
"""The most matches of a pattern whose links are followed."""

_NOBODYS: Final = "_onefold_nobodys"  # a name that does not exist: a path below a place overlaps only what contains it
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.S)
_ONE_STORE: Final = {"s3n": "s3", "s3a": "s3", "abfss": "abfs", "wasbs": "wasb"}


class _Location(NamedTuple):
    """A store, and a path in it whose parts may be patterns."""

    scheme: str
    host: str
    """Empty: the store's default host, which may be any."""
    parts: tuple[str, ...]


def refuse_overlap(reads: Iterable[tuple[str, str]], writes: Iterable[tuple[str, str]]) -> None:
    """Raise `Misuse` that names both if a place written overlaps a place read; each is (description, path).

    >>> refuse_overlap([("the source", "data/in")], [("the output", "data/out")])
    >>> refuse_overlap([("the source", "/data/in/*.json")], [("the output", "file:/data")])
    Traceback (most recent call last):
    onefold.errors.Misuse: the output (file:/data) overlaps the source (/data/in/*.json): choose a place outside of it
    """
    for (read, source), (written, target) in product(reads, list(writes)):
        if overlaps(source, target):
            raise Misuse(
                f"{written} ({target}) overlaps {read} ({source}): choose a place outside of it",
                source=source, target=target,
            )  # fmt: skip


def refuse_inside(outer: tuple[str, str], inner: tuple[str, str]) -> None:
    """Raise `Misuse` that names both if ``inner`` is or lies inside ``outer``, unless under a name that Spark skips.

    >>> refuse_inside(("the table", "data"), ("the index", "data/.index"))
    >>> refuse_inside(("the table", "data/t"), ("the index", "data"))
    >>> refuse_inside(("the table", "data"), ("the index", "data/index"))
    Traceback (most recent call last):
    onefold.errors.Misuse: the index (data/index) lies inside the table (data): choose a place outside of it
    """
    name = inner[1].rstrip("/").rpartition("/")[2]
    if overlaps(outer[1], f"{inner[1]}/{_NOBODYS}"):
        if name.startswith(".") and not overlaps(inner[1], f"{outer[1]}/{_NOBODYS}"):
            return
        raise Misuse(
            f"{inner[0]} ({inner[1]}) lies inside {outer[0]} ({outer[1]}): choose a place outside of it",
            outer=outer[1], inner=inner[1],
        )  # fmt: skip


def overlaps(source: str, target: str) -> bool:
    """Whether ``source``, which is read and may be a pattern, is at, above or below ``target``.

    ``target`` is written to and is never a pattern: its characters are literal.

    >>> overlaps("data/in", "data/in/../in/out"), overlaps("s3a://b/x/", "s3://b/x"), overlaps("data/a", "data/ab")
    (True, True, False)
    >>> overlaps("data/*/in", "data/out"), overlaps("data/[0-9]*", "data/out"), overlaps("data/{a,b}/c", "data/b")
    (True, False, True)
    """
    scheme, host, path = _split(target)
    written = _Location(scheme, host, _real_parts(scheme, path))
    for read in _locations(source):
        if read.scheme != scheme or (read.host != host and read.host and host):
            continue
        if all(matches(pattern, name) for pattern, name in zip(read.parts, written.parts, strict=False)):
            return True
        one, other = ("/" + "/".join(location.parts) for location in (read, written))
        if scheme == "file" and not PATTERN.search(one) and _same_by_inode(one, other):
            return True
    return False


def _same_by_inode(one: str, other: str) -> bool:
    """Whether one is at or above the other by inode: for bind mounts and case-insensitive file systems."""
    for above, below in ((one, other), (other, one)):
        with suppress(OSError):
            above_stat = os.stat(above)
            for folder in (Path(below), *Path(below).parents):
                with suppress(OSError):  # not there yet
                    if os.path.samestat(os.stat(folder), above_stat):
                        return True
    return False


def _locations(path: str) -> Iterator[_Location]:
    """The locations of a path, which may be a pattern, and of its current matches, which may be links to elsewhere."""
    scheme, host, whole = _split(path)
    for each in _without_braces(whole):
        matches = islice(iglob(each), MATCHES_MAX) if scheme == "file" and PATTERN.search(each) else ()
        for way in (each, *map(os.path.realpath, matches)):
            parts = way.split("/")
            fixed = next((i for i, part in enumerate(parts) if PATTERN.search(part)), len(parts))
            start = "/".join(parts[:fixed]) or ("/" if way.startswith("/") else ".")
            rest = [part for part in parts[fixed:] if part not in ("", ".")]
            if ".." in rest:  # after a pattern it may lead anywhere below the fixed part
                rest = []
            yield _Location(scheme, host, (*_real_parts(scheme, start), *rest))


def _split(path: str) -> tuple[str, str, str]:
    """Scheme, host and path of a path or URL."""
    url = _SCHEME.fullmatch(path)
    if url is None:
        return "file", "", path
    scheme, host, way = url[1].lower(), (url[2] or "").lower(), url[3]
    if scheme == "file":
        return "file", "", way
    return _ONE_STORE.get(scheme, scheme), host.rpartition("@")[2].partition(":")[0], way


def _real_parts(scheme: str, path: str) -> tuple[str, ...]:
    real = os.path.realpath(path) if scheme == "file" else os.path.normpath("/" + path)
    return tuple(part for part in real.split("/") if part)


def _without_braces(path: str) -> list[str]:
    """The pattern with its braces expanded."""
    paths, done = [path], []
    while paths:
        one = paths.pop()
        inner = re.search(r"\{([^{}]*)\}", one)
        if inner is None:
            done.append(one)
        else:
            paths += [one[: inner.start()] + choice + one[inner.end() :] for choice in inner[1].split(",")]
        if len(paths) + len(done) > BRACES_MAX:
            return [path.partition("{")[0].rpartition("/")[0] or "/"]
    return done
