"""The topics of a folder: one log each, opened when first asked for."""

import json
import re
import threading
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final, cast, get_args

from onefold.decoding import read_json
from onefold.engines.producers.bounds import MemoryKind
from onefold.errors import BadInput, Damaged, Misuse
from onefold.services.topic import Clock, Topic, TopicSettings, wall_ms
from onefold.stores.segments.files import REAL
from onefold.stores.segments.folder import failing
from onefold.stores.segments.log import SEGMENT_BYTES, SegmentLog

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FILE: Final = "topic.json"
"""What of a topic can be chosen once and never changed: its kind of memory."""


class Topics:
    """A folder with a folder per topic; this process alone writes there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Topics(Path(folder)) as topics:
    ...     topics.topic("orders").publish("till", [(0, b"1 coffee")])[0].offset, topics.names()
    (0, ['orders'])
    """

    def __init__(
        self, root: str | PathLike[str], defaults: TopicSettings | None = None, *, topics_max: int = 1_000,
        segment_bytes: int = SEGMENT_BYTES, clock: Clock = wall_ms, elapsed: Clock | None = None,
    ) -> None:  # fmt: skip
        self.root = Path(root)
        self.defaults = defaults or TopicSettings()
        self._topics_max = topics_max
        self._segment_bytes = segment_bytes
        self._clock, self._elapsed = clock, elapsed
        self._open: dict[str, Topic] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> "Topics":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def names(self) -> list[str]:
        """The topics that are there."""
        return topic_names(self.root)

    def topic(self, name: str, *, create: bool = True, defaults: TopicSettings | None = None) -> Topic:
        """The topic of this name; what is not there yet is made, with these defaults, unless ``create`` is False."""
        with self._opening:
            if name not in self._open:
                self._open[name] = self._load(name, create, defaults or self.defaults)
            return self._open[name]

    def _load(self, name: str, create: bool, settings: TopicSettings) -> Topic:
        folder = topic_folder(self.root, name)
        if not (folder / FILE).is_file():
            if not create:
                raise Misuse(f"there is no topic {name!r} in {self.root}", topic=name)
            if len(self.names()) >= self._topics_max:
                raise Misuse(f"there are {self._topics_max:,} topics in {self.root} already, the limit", topic=name)
            _make(folder, settings.memory)
        settings = replace(settings, memory=memory_of(folder))
        log = SegmentLog(folder, segment_bytes=self._segment_bytes)
        try:
            return Topic(log, settings, clock=self._clock, elapsed=self._elapsed)
        except BaseException:
            log.close()  # or nobody could try again
            raise

    def close(self) -> None:
        """Close all topics; if one cannot be closed well, the others are, and then it is told."""
        errors: list[BaseException] = []
        with self._opening:
            while self._open:
                try:
                    self._open.popitem()[1].close()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]


def topic_folder(root: Path, name: str) -> Path:
    """Where a topic is; a name that is no name is refused."""
    if not NAME.fullmatch(name):
        raise Misuse(f"topic {name!r}: must be 1 to 100 of A-Z a-z 0-9 . _ -, the first a letter or digit", topic=name)
    return root / name


def topic_names(root: Path) -> list[str]:
    """The topics of a folder."""
    return sorted(path.parent.name for path in root.glob(f"*/{FILE}"))


def _make(folder: Path, memory: MemoryKind) -> None:
    """Write the file of a new topic, durable before anything is stored in it."""
    if any(folder.glob("*.log")):  # to make it anew could give it another memory
        raise Damaged(f"{folder}: has a log, and its {FILE} is gone", path=str(folder))
    with failing(str(folder / FILE)):
        REAL.make_folder(str(folder))
        fresh = REAL.open(str(folder / f"{FILE}.new"), new=True)
        try:
            fresh.truncate(0)
            fresh.write(json.dumps({"format": 1, "memory": memory}).encode() + b"\n", 0)
            fresh.sync()
        finally:
            fresh.close()
        REAL.rename(str(folder / f"{FILE}.new"), str(folder / FILE))
        REAL.sync_folder(str(folder))


def memory_of(folder: Path) -> MemoryKind:
    """The kind of memory that a topic has had since it was made."""
    path = folder / FILE
    try:
        kind = read_json(path.read_bytes(), "it")["memory"]
    except (OSError, BadInput, KeyError, TypeError) as error:
        raise BadInput(f"{path}: not the file of a topic: {error}", path=str(path)) from error
    if kind not in get_args(MemoryKind):
        raise BadInput(f"{path}: memory is {kind!r}, must be one of {', '.join(get_args(MemoryKind))}", path=str(path))
    return cast(MemoryKind, kind)
