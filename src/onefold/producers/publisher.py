"""Publishes the lines of a file, each once; the program may be killed and restarted at any time. PIP-6's own example.

The sequence id of a line is its offset in the file, so the topic itself knows how far it got. It does not know the rest
of the file, so a digest of everything read is kept in a state file, which is written before any of it is sent. With it
a rotated or rewritten file is recognised, even if a line of it is at the same offset as before.

    start     ask for the last stored id; compare the digest of what was read then with the file
              go to that offset, and send that line *again*
              REPEAT: it is the same line at the same offset; continue after it
              another digest, a conflict, no line begins there, the file is shorter: not the file that was published
    continue  send line after line, many in flight at once
    end       a last line without a newline is a line; with ``wait`` only once its newline has come

A payload is a line without its newline, byte for byte; an empty line is a message too. A line that is too long for the
topic stops the publisher: nothing is skipped silently.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from onefold.errors import BadInput, Misuse
from onefold.producers.client import Producer
from onefold.producers.records import NAME_BYTES_MAX, RULES
from onefold.producers.requests import Receipt
from onefold.verdict import Answer, Verdict

BLOCK_BYTES: Final = 1 << 20
POLL_S: Final = 0.2
"""How often a followed file is polled; `tail -f` polls every second."""


def producer_name(path: Path) -> str:
    """The producer name for a file: the same for the same path.

    >>> producer_name(Path("/var/log/app.log"))
    'file:/var/log/app.log'
    """
    data = os.fsencode(os.path.abspath(path))
    try:
        name = f"file:{data.decode()}"
        if len(name.encode()) <= NAME_BYTES_MAX:
            return name
    except UnicodeDecodeError:
        pass
    return f"file:sha256:{sha256(data).hexdigest()}"


def state_file(to: str, topic: str, name: str) -> Path:
    """The state file for what is published under a name, in the user's XDG state folder."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    where = to if "://" in to else os.path.abspath(to)
    digest = sha256("\0".join((where, topic, name)).encode(errors="surrogateescape")).hexdigest()
    return Path(home) / "onefold" / "publish" / f"{digest[:32]}.json"


class Prefix:
    """A digest of the beginning of a file, up to where it was read, with its state file."""

    def __init__(self, keep: Path | None) -> None:
        self._keep = keep
        self._hash = sha256()
        self.size = 0

    def recall(self) -> tuple[int, str] | None:
        if self._keep is None:
            return None
        try:
            document = json.loads(self._keep.read_text(encoding="utf-8"))
            size, digest = document["bytes"], document["sha256"]
            if type(size) is not int or size < 0 or type(digest) is not str:
                raise ValueError(f"{size!r} bytes")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{self._keep}: does not say what was published: {error}", path=str(self._keep)) from error
        return size, digest

    def read(self, file: BinaryIO, size: int) -> str:
        """Continue to this size, or to the end of the file; returns the digest of everything read."""
        file.seek(self.size)
        while self.size < size and (block := file.read(min(BLOCK_BYTES, size - self.size))):
            self._add(block)
        return self._hash.hexdigest()

    def grow(self, at: int, block: bytes, path: Path) -> None:
        new = block[self.size - at :]
        if not new:
            return
        self._add(new)
        if self._keep is not None:
            document = {"file": os.fspath(path.absolute()), "bytes": self.size, "sha256": self._hash.hexdigest()}
            self._keep.parent.mkdir(parents=True, exist_ok=True)
            draft = self._keep.with_suffix(f".{os.getpid()}.new")
            draft.write_text(json.dumps(document), encoding="utf-8")
            os.replace(draft, self._keep)

    def _add(self, block: bytes) -> None:
        self._hash.update(block)
        self.size += len(block)


class FilePublisher:
    def __init__(
        self,
        path: Path,
        producer: Producer,
        *,
        keep: Path | None = None,
        tell: Callable[["FilePublisher"], object] = lambda publisher: None,
    ) -> None:
        """``tell`` is called with the publisher from time to time, when its figures have changed.

        ``keep``: a state file, by which another file at the same path is recognised; see `state_file`. None: only the
        last stored line is compared.
        """
        self.path = path
        self._prefix = Prefix(keep)
        self.stored = 0
        """Lines stored by this run."""
        self.repeats = 0
        """Lines that were sent again and were stored already."""
        self.resumed_at: int | None = None
        """The offset of the last line that an earlier run stored; None: there was none."""
        self.answered = 0
        """The offset up to which everything is stored."""
        self.size = 0
        """Size of the file when it was last polled."""
        self._producer = producer
        self._tell = tell
        self._pending: deque[tuple[int, int, Future[Receipt]]] = deque()

    def run(self, wait: Callable[[float], bool] | None = None) -> None:
        """Publish the file to its end; with ``wait``, which sleeps and returns whether to stop, follow its growth."""
        with self.path.open("rb") as file:
            if not file.seekable():
                raise Misuse(f"{self.path}: is not seekable, so it cannot be published once")
            self.size = file.seek(0, os.SEEK_END)
            start = self._start(file)
            try:
                for offset, line in self._lines(file, start, wait):
                    if offset == self.resumed_at:
                        self._check(offset, len(line), self._producer.send(line, offset))
                        continue
                    self._pending.append((offset, len(line), self._producer.send_async(line, offset)))
                    self._take_answers(only_done=True)
            except Misuse:  # of a line: store those before it first
                with suppress(Misuse):
                    self._take_answers()
                raise
            except KeyboardInterrupt:  # count what is known to be stored; the next run continues
                self._take_answers(only_done=True)
                raise
            self._take_answers()

    def _start(self, file: BinaryIO) -> int:
        last, floor = self._producer.last_sequence_id, self._producer.floor
        if floor > last:
            text = f"{self.path}: the topic has forgotten what {self._producer.name!r}, or a name like it, stored up"
            why = f"to {floor:,}: publish the file under another name, if none of it is stored"
            raise Misuse(f"{text} {why}", floor=floor)
        if last < 0:
            return 0
        size = self.size
        if (prefix := self._prefix.recall()) is not None and self._prefix.read(file, prefix[0]) != prefix[1]:
            text = f"{self.path}: is not the file that was published as {self._producer.name!r}: its first"
            why = "bytes are not those that were read then; a rotated or rewritten file needs another name (--name)"
            raise Misuse(f"{text} {prefix[0]:,} {why}", path=str(self.path), size=size)
        if last >= size:
            raise self._other(last, f"and the file ends at {size}")
        if last > 0:
            file.seek(last - 1)
            if file.read(1) != b"\n":
                raise self._other(last, "and no line of the file begins there")
        self.resumed_at = last
        self._prefix.read(file, last)
        return last

    def _lines(self, file: BinaryIO, at: int, wait: Callable[[float], bool] | None) -> Iterator[tuple[int, bytes]]:
        file.seek(at)
        rest = b""
        while True:
            while block := file.read(BLOCK_BYTES):
                self._prefix.grow(file.tell() - len(block), block, self.path)
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield at, self._short(at, line)
                    at += len(line) + 1
                self._short(at, rest)
            now, position = os.fstat(file.fileno()), file.tell()
            self.size = now.st_size
            self._take_answers(only_done=True)
            if wait is None:
                break
            if now.st_size < position:
                raise Misuse(f"{self.path}: was cut to {now.st_size} bytes, {position} were read", path=str(self.path))
            try:
                same = os.path.samestat(now, self.path.stat())
            except FileNotFoundError:
                same = False
            if not same and now.st_size == position:
                raise Misuse(f"{self.path}: is another file now; the old one is published up to byte {position}")
            if wait(POLL_S):
                return
        if rest:
            yield at, rest

    def _short(self, offset: int, line: bytes) -> bytes:
        if len(line) > self._producer.message_bytes_max:
            text = f"{self.path}: the line at byte {offset} is longer than the"
            why = "bytes that a message may have; nothing was published from there on"
            raise Misuse(f"{text} {self._producer.message_bytes_max:,} {why}", path=str(self.path), offset=offset)
        return line

    def _take_answers(self, *, only_done: bool = False) -> None:
        before = self.answered
        while self._pending and (not only_done or self._pending[0][2].done()):
            offset, length, future = self._pending.popleft()
            self._check(offset, length, future.result())
        if self.answered != before:
            self._tell(self)

    def _check(self, offset: int, length: int, receipt: Receipt) -> None:
        """Count the line; an answer other than FIRST and REPEAT stops the publisher."""
        if receipt.reason == "conflict":
            raise self._other(offset, "with another text than the file has there")
        if receipt.verdict not in (Verdict.FIRST, Verdict.REPEAT):
            why = RULES.get(Answer(*receipt[:2]), "")  # type: ignore[call-overload] # equal to its plain form
            text = f"{self.path}: the line at byte {offset}: {receipt.verdict} {receipt.reason}. {why}"
            raise Misuse(text.rstrip(), path=str(self.path), offset=offset)
        self.stored += offset != self.resumed_at
        self.repeats += receipt.verdict == Verdict.REPEAT
        self.answered = offset + length

    def _other(self, offset: int, how: str) -> Misuse:
        text = f"{self.path}: is not the file that was published as {self._producer.name!r}: the topic holds a line of"
        return Misuse(f"{text} byte {offset}, {how}", path=str(self.path), offset=offset)
