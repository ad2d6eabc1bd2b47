"""Whether two places overlap: they are one, or one lies inside the other, however they are spelled.

What is written over its own source destroys it, and what is written inside it is read again by the next run. So every
job asks before it writes anything. Nothing here needs a Spark: a mistake in the settings costs no start of one.

    data/../data/in/   in -> data/in   file:data   file:///data   the same place, through dots, links and spellings
    s3://b/x   s3a://b/x               the same: some schemes are several names of one store
    data/*/in   data/{a,b}             a pattern overlaps whatever it could match, now or later

Local paths are compared with their links resolved and, where both are there, as the file system itself compares them.
"""

import os
import re
from collections.abc import Iterable, Iterator
from glob import iglob
from itertools import islice, product
from pathlib import Path
from typing import Final, NamedTuple

from onefold.errors import Misuse

PATTERN: Final = re.compile(r"[*?\[{]")
"""What makes a path a pattern to Hadoop."""
BRACES_MAX: Final = 1_000
"""Paths that the braces of a pattern may stand for; of one with more only what is before the braces counts."""
MATCHES_MAX: Final = 10_000
"""Paths that are there and match a pattern, and whose links are followed."""

_NOBODYS: Final = "_onefold_nobodys"  # a name that nothing has: what is below a place is inside of whatever holds both
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.S)
_ONE_STORE: Final = {"s3n": "s3", "s3a": "s3", "abfss": "abfs", "wasbs": "wasb"}


class _Where(NamedTuple):
    """A place: the store that it is in, and the way to it; a part of the way may be a pattern."""

    scheme: str
    host: str
    """Empty: the store's usual one, which may be any."""
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        return "/" + "/".join(self.parts)


def refuse_overlap(reads: Iterable[tuple[str, str]], writes: Iterable[tuple[str, str]]) -> None:
    """Raise `Misuse` that names both if what is written overlaps what is read; each is (what it is, its path).

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


def overlaps(source: str, target: str) -> bool:
    """Whether what is read at ``source``, which may be a pattern, is at, above or below ``target``.

    >>> overlaps("data/in", "data/in/../in/out"), overlaps("s3a://b/x/", "s3://b/x"), overlaps("data/a", "data/ab")
    (True, True, False)
    >>> overlaps("data/*/in", "data/out"), overlaps("data/[0-9]*", "data/out"), overlaps("data/{a,b}/c", "data/b")
    (True, False, True)
    """
    return any(_meet(one, other) for one in _read(source) for other in _written(target))


def refuse_inside(outer: tuple[str, str], inner: tuple[str, str]) -> None:
    """Raise `Misuse` that names both if the one place is the other or lies inside it, where Spark would see it.

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


def _meet(one: _Where, other: _Where) -> bool:
    if one.scheme != other.scheme or (one.host != other.host and one.host and other.host):
        return False
    if all(_matches(a, b) for a, b in zip(one.parts, other.parts, strict=False)):
        return True
    return one.scheme == "file" and not PATTERN.search(one.path) and _same_by_inode(one.path, other.path)


def _same_by_inode(one: str, other: str) -> bool:
    """Whether one is the other or above it in the file system's own eyes: of bind mounts, or where case is ignored."""
    for above, below in ((one, other), (other, one)):
        try:
            above_stat = os.stat(above)
        except OSError:
            continue
        for folder in (Path(below), *Path(below).parents):
            try:
                if os.path.samestat(os.stat(folder), above_stat):
                    return True
            except OSError:  # not there yet
                continue
    return False


def _read(path: str) -> Iterator[_Where]:
    scheme, host, way = _split(path)
    for each in _without_braces(way):
        yield from _resolved(scheme, host, each)
        if scheme == "file" and PATTERN.search(each):
            for found in islice(iglob(each), MATCHES_MAX):  # whatever is matched may be a link to elsewhere
                yield from _resolved(scheme, host, os.path.realpath(found))


def _written(path: str) -> Iterator[_Where]:
    """Nothing is a pattern in a path that is written to: its signs are themselves."""
    scheme, host, way = _split(path)
    real = os.path.realpath(way) if scheme == "file" else os.path.normpath("/" + way)
    yield _Where(scheme, host, _parts(real))


def _split(path: str) -> tuple[str, str, str]:
    found = _SCHEME.fullmatch(path)
    if found is None:
        return "file", "", path
    scheme, host, way = found[1].lower(), (found[2] or "").lower(), found[3]
    if scheme == "file":
        return "file", "", way
    return _ONE_STORE.get(scheme, scheme), host.rpartition("@")[2].partition(":")[0], way


def _resolved(scheme: str, host: str, way: str) -> Iterator[_Where]:
    parts = way.split("/")
    fixed = next((i for i, part in enumerate(parts) if PATTERN.search(part)), len(parts))
    start, rest = "/".join(parts[:fixed]) or ("/" if way.startswith("/") else "."), [p for p in parts[fixed:] if p]
    if ".." in rest:  # behind a pattern it may lead anywhere below what is fixed
        rest = []
    real = os.path.realpath(start) if scheme == "file" else os.path.normpath("/" + start)
    yield _Where(scheme, host, (*_parts(real), *(part for part in rest if part != ".")))


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _without_braces(path: str) -> list[str]:
    """All paths that the braces of a pattern stand for."""
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


def _matches(pattern: str, name: str) -> bool:
    if not PATTERN.search(pattern):
        return pattern == name
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    text = re.sub(r"\\\[(.*?)\\\]", lambda group: _any_of(group[1]), text)
    try:
        return re.fullmatch(text, name, re.S) is not None
    except re.error:  # not a pattern to us: it may match anything
        return True


def _any_of(escaped: str) -> str:
    inside = re.sub(r"\\(.)", r"\1", escaped)
    negated = inside[:1] in ("!", "^")
    return f"[{'^' * negated}{inside[negated:]}]".replace("\\", "\\\\")
