"""Has this id been seen? Answered from the ids themselves, remembered for a window of time, in slices.

An id (a UUID, an order number, a hash of columns) says nothing about the messages before it, so ids have to be
remembered one by one. A window keeps the memory small: copies share the time at which their event happened, and ids
older than the window are forgotten. Time is cut into slices, sixteen to a window; an id lies in the slice of its time,
and slices are forgotten whole. With ``window_ms=4000`` and the newest time 9,700:

    forgotten < 5,500 <= [5500] [5750] [6000] ... [9500]        a slice is 250 ms; 9,700 - 4,000 lies in the slice 5,500

The horizon is the beginning of the slice in which the window begins. For an id with the time ``t``:

    t < horizon              it may have been seen and forgotten                UNSURE forgotten
    it is in the slice       the content is the same, or is not compared        REPEAT seen
                             the content differs                                REJECT conflict, or REPEAT changed
    otherwise                it is added to the slice of ``t``                  FIRST new

So within the window the answers are those of a set of all ids, and beyond it they are UNSURE: never a REPEAT that was
not seen, never a FIRST that was. REPEAT, UNSURE and REJECT leave the ids unchanged. Without a window all ids are
remembered for ever, and times are ignored.

If copies do not share a time, the time of arrival can be used (``clock=True``): then all slices are searched, and a
copy that arrives more than the window after its first is counted again without notice.

A time far ahead of the clock would move the window and forget everything. With ``now_ms``, such a time moves the
horizon no further than a quarter of an hour ahead of the clock, and one further ahead than the window is rejected.

A name is 128 bits of hash: two of a billion ids share one with a probability of 10^-21; with 64 bits it would be 3 %,
and a false REPEAT is a lost message. Content is compared by 64 bits, which is enough among the copies of one id.

From: Azure IoT Edge LoRaWAN Starter Kit, ADR 007, level 1. Cost: O(1) per id; 16 bytes an id where it is stored, 24
with content; a Python set of the same names takes a hundred.
"""

from __future__ import annotations

import re
import struct
import zlib
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, TypeAlias

from onefold.errors import BadInput, Misuse
from onefold.verdict import Answer, Verdict

NEW: Final = Answer(Verdict.FIRST, "new")
SEEN: Final = Answer(Verdict.REPEAT, "seen")
FORGOTTEN: Final = Answer(Verdict.UNSURE, "forgotten")
NULL_ID: Final = Answer(Verdict.REJECT, "null_id")
CONFLICT: Final = Answer(Verdict.REJECT, "conflict")
CHANGED: Final = Answer(Verdict.REPEAT, "changed")
STATE_FULL: Final = Answer(Verdict.UNSURE, "state_full")
BAD_TIME: Final = Answer(Verdict.REJECT, "bad_time")
MALFORMED: Final = Answer(Verdict.REJECT, "malformed")

RULES: Final = {
    NEW: "No message with its id was seen before.",
    SEEN: "A message with its id was seen before.",
    FORGOTTEN: "It is older than the window: whether its id was seen is not remembered any more.",
    NULL_ID: "Its id, or a part of it, is null.",
    CONFLICT: "Its id was seen before, with other content.",
    CHANGED: 'Its id was seen before, with other content (on_conflict = "repeat": it is a copy all the same).',
    STATE_FULL: "Its id is new to the memory, and there is no room to remember another one within state_rows_max.",
    BAD_TIME: "Its time is null, no time, or further ahead of the clock than the window is long.",
    MALFORMED: "The row could not be read at all.",
}

ANSWERS: Final = tuple(RULES)
"""The position of an answer is its code wherever answers travel in columns: new answers go to the end."""

Id: TypeAlias = str | bytes | int | tuple["str | bytes | int | None", ...] | None
OnConflict: TypeAlias = Literal["reject", "repeat"]

SLICES: Final = 16
"""Per window: up to one slice, a sixteenth, is remembered beyond it."""
AHEAD_MS_MAX: Final = 900_000
"""A quarter of an hour, as for chains and radio frames: more than synchronised clocks differ."""
TIME_MAX: Final = 1 << 62
"""Limit of the absolute value of a time, so that differences fit into 64 bits."""

FORMAT: Final = 1
_MAGIC: Final = b"OFid"
_HEAD: Final = struct.Struct("<4sHBxqqqI")  # magic, format, flags, window, newest, most ids, count of slices
_SLICE: Final = struct.Struct("<qI")
_CRC: Final = struct.Struct("<I")
_WINDOW, _NEWEST, _CLOCK, _REPEAT, _DIGESTS, _BOUND = 1, 2, 4, 8, 16, 32
NAME_BYTES: Final = 16
_DIGEST_BYTES: Final = 8
_NO_DIGEST: Final = bytes(_DIGEST_BYTES)


def name_of(id: Id) -> bytes | None:
    """The 128-bit name of an id; None if the id or a part of it is null.

    Types and parts count: the text "1" is not the number 1, and ("ab", "c") is not ("a", "bc").

    >>> name_of("a") == name_of("a"), name_of("1") == name_of(1), name_of(("a", None)), len(name_of(("a", 1)))
    (True, False, None, 16)
    """
    parts = id if isinstance(id, tuple) else (id,)
    hashed = blake2b(digest_size=NAME_BYTES)
    for part in parts:
        if part is None:
            return None
        if isinstance(part, str):
            kind, data = b"t", part.encode("utf-8", "surrogatepass")
        elif isinstance(part, bytes):
            kind, data = b"y", part
        elif type(part) is int:
            kind, data = b"i", str(part).encode()
        else:
            raise Misuse(f"an id is {part!r}, must be text, bytes, a whole number, or several of them", id=part)
        hashed.update(kind + len(data).to_bytes(8, "little") + data)
    return hashed.digest() if parts else None


def digest_of(content: str | bytes | None) -> bytes:
    """The digest of a message's content; without content a value that matches any."""
    if content is None:
        return _NO_DIGEST
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    digest = blake2b(data, digest_size=_DIGEST_BYTES).digest()
    return digest if digest != _NO_DIGEST else b"\1" * _DIGEST_BYTES


_UNITS: Final = {
    "ms": 1, "millisecond": 1, "s": 1_000, "second": 1_000, "min": 60_000, "minute": 60_000, "h": 3_600_000,
    "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip


def window_of(value: str | int | None) -> int | None:
    """A window in ms; text is parsed.

    >>> window_of("7 days"), window_of("1 hour 30 minutes"), window_of("250ms"), window_of(None)
    (604800000, 5400000, 250, None)
    """
    if value is None or type(value) is int:
        return value
    parts = re.findall(r"([0-9]+)\s*([A-Za-z]+)\s*", value) if isinstance(value, str) else []
    names = [unit.lower() for _, unit in parts]
    units = [_UNITS.get(name) or _UNITS.get(name.removesuffix("s")) for name in names]
    whole = "".join(f"{number}{unit}" for number, unit in parts) == "".join(str(value).split())
    if not parts or not whole or None in units:
        raise Misuse(f'window is {value!r}, must be a time such as "7 days", "12 hours" or "90 minutes"', window=value)
    return sum(int(number) * (unit or 0) for (number, _), unit in zip(parts, units, strict=True))


class IdSettings(NamedTuple):
    window_ms: int | None = None
    clock: bool = False
    """Whether times are arrival times, which copies do not share."""
    on_conflict: OnConflict = "reject"
    ids_max: int | None = None

    def checked(self) -> IdSettings:
        """Return self if every setting makes sense; else raise `Misuse` naming the first that does not."""
        for name, value in (("window_ms", self.window_ms), ("ids_max", self.ids_max)):
            if value is not None and (type(value) is not int or not 1 <= value <= TIME_MAX):
                raise Misuse(f"{name} is {value!r}, must be a whole number of at least 1, or None", **{name: value})
        if self.on_conflict not in ("reject", "repeat"):
            raise Misuse(f'on_conflict is {self.on_conflict!r}, must be "reject" or "repeat"')
        return self

    @property
    def slice_ms(self) -> int:
        """How long a slice is, in ms: a sixteenth of the window, rounded up."""
        return 1 if self.window_ms is None else -(-self.window_ms // SLICES)

    def slice_of(self, time_ms: int) -> int:
        """The number of the slice of a time; without a window there is only slice 0."""
        return 0 if self.window_ms is None else time_ms // self.slice_ms

    def horizon(self, newest: int | None) -> int | None:
        """The time below which nothing is remembered; None: nothing was forgotten.

        >>> IdSettings(4000).horizon(9700), IdSettings().horizon(9700)
        (5500, None)
        """
        if self.window_ms is None or newest is None:
            return None
        return self.slice_of(newest - self.window_ms) * self.slice_ms

    def ahead(self, now_ms: int) -> tuple[int, int]:
        """The latest time that may move the horizon, and the latest that is accepted at all."""
        return now_ms + AHEAD_MS_MAX, now_ms + max(AHEAD_MS_MAX, self.window_ms or 0)

    @property
    def differs(self) -> Answer:
        """The answer to a copy with other content."""
        return CONFLICT if self.on_conflict == "reject" else CHANGED


class IdDetector:
    """Judges messages by their ids.

    >>> ids = IdDetector()
    >>> [str(ids.judge(id)) for id in ("a", "b", "a", None)]
    ['FIRST new', 'FIRST new', 'REPEAT seen', 'REJECT null_id']
    >>> ids = IdDetector(window_ms=1600)
    >>> [str(ids.judge(id, time)) for id, time in (("a", 1000), ("b", 5000), ("a", 1000), ("b", 5000))]
    ['FIRST new', 'FIRST new', 'UNSURE forgotten', 'REPEAT seen']
    >>> str(ids)
    'forgot 3400 [5000, 5100) 1'
    """

    def __init__(
        self,
        window_ms: int | None = None,
        *,
        clock: bool = False,
        on_conflict: OnConflict = "reject",
        ids_max: int | None = None,
    ) -> None:
        """``window_ms``: None remembers all ids. ``clock``: times are arrival times. ``ids_max``: how many ids to
        remember; beyond it new ones are UNSURE, and not remembered. None: no limit.
        """
        self.settings = IdSettings(window_ms, clock, on_conflict, ids_max).checked()
        self.newest: int | None = None
        """The newest time, of those that may move the horizon."""
        self._slices: dict[int, dict[bytes, bytes]] = {}  # slice to names, with a digest of their content

    def judge(
        self, id: Id, time_ms: int | None = None, *, content: str | bytes | None = None, now_ms: int | None = None
    ) -> Answer:
        """``time_ms``: when the event happened, the same for all copies (with ``clock``: when it arrived); needed only
        with a window. ``content``: what copies must share. ``now_ms``: the current time, to reject wrong times.
        """
        name = name_of(id)
        if name is None:
            return NULL_ID
        settings = self.settings
        if settings.window_ms is None:
            time_ms = 0
        elif type(time_ms) is not int or not -TIME_MAX < time_ms < TIME_MAX:
            return BAD_TIME
        elif settings.clock:
            time_ms = time_ms if self.newest is None else max(time_ms, self.newest)  # a clock that is set back stands
            self._move(time_ms)
        elif now_ms is not None and time_ms > settings.ahead(now_ms)[1]:
            return BAD_TIME
        elif (horizon := self.horizon) is not None and time_ms < horizon:
            return FORGOTTEN
        own, digest = settings.slice_of(time_ms), digest_of(content)
        for slice_ in self._slices if settings.clock else (own,):
            known = self._slices.get(slice_, {}).get(name)
            if known is not None:
                return settings.differs if _NO_DIGEST not in (known, digest) and known != digest else SEEN
        if settings.window_ms is not None:  # also if there is no room: it makes room
            self._move(time_ms if now_ms is None else min(time_ms, settings.ahead(now_ms)[0]))
        if settings.ids_max is not None and len(self) >= settings.ids_max:
            return STATE_FULL
        self._slices.setdefault(own, {})[name] = digest
        return NEW

    def _move(self, time_ms: int) -> None:
        """Move the end of the window to this time, if it is newer."""
        if self.newest is not None and time_ms <= self.newest:
            return
        self.newest = time_ms
        horizon = self.horizon
        if horizon is not None:
            for old in [each for each in self._slices if each < self.settings.slice_of(horizon)]:
                del self._slices[old]

    @property
    def horizon(self) -> int | None:
        """The time below which nothing is remembered; None: nothing was forgotten."""
        return self.settings.horizon(self.newest)

    def __len__(self) -> int:
        """How many ids are remembered."""
        return sum(map(len, self._slices.values()))

    def merge(self, other: IdDetector) -> IdDetector:
        """Add what another detector saw; what either forgot stays UNSURE. Returns self. Cost: O(their ids)."""
        if other.settings[:2] != self.settings[:2]:
            raise Misuse(f"a memory of {other.settings} cannot be merged with one of {self.settings}")
        for slice_, names in other._slices.items():
            self._slices[slice_] = names | self._slices.get(slice_, {})
        if other.newest is not None:
            self._move(other.newest)
        if self.newest is not None and self.horizon is not None:  # what came from the other may lie below it
            first = self.settings.slice_of(self.horizon)
            self._slices = {slice_: names for slice_, names in self._slices.items() if slice_ >= first}
        return self

    def snapshot(self) -> bytes:
        """The state with its settings: 16 bytes per id, 8 more with content.

        Magic, format, flags, window, newest time, ids_max, count of slices; per slice its number, the count of its
        names, the sorted names, their digests; at the end a checksum.
        """
        window_ms, clock, on_conflict, ids_max = self.settings
        digests = any(digest != _NO_DIGEST for names in self._slices.values() for digest in names.values())
        flags = (
            (window_ms is not None) * _WINDOW
            | (self.newest is not None) * _NEWEST
            | clock * _CLOCK
            | (on_conflict == "repeat") * _REPEAT
            | digests * _DIGESTS
            | (ids_max is not None) * _BOUND
        )
        slices = {slice_: names for slice_, names in sorted(self._slices.items()) if names}
        head = _HEAD.pack(_MAGIC, FORMAT, flags, window_ms or 0, self.newest or 0, ids_max or 0, len(slices))
        parts = [head]
        for slice_, names in slices.items():
            order = sorted(names)
            parts += [_SLICE.pack(slice_, len(names)), *order]
            parts += [names[name] for name in order] if digests else []
        data = b"".join(parts)
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def restore(cls, data: bytes) -> IdDetector:
        """A detector that continues exactly from ``snapshot``; foreign bytes raise `BadInput`."""
        body, end = data[: -_CRC.size], data[-_CRC.size :]
        if len(data) < _HEAD.size + _CRC.size or data[:4] != _MAGIC:
            raise BadInput(f"not a snapshot of ids: it begins {data[:8].hex() or 'with nothing'}")
        if _CRC.unpack(end)[0] != zlib.crc32(body):
            raise BadInput("a damaged snapshot of ids: its checksum differs")
        _, format_, flags, window, newest, most, count = _HEAD.unpack_from(body)
        if format_ != FORMAT:
            raise BadInput(f"a snapshot of ids of format {format_}, this is format {FORMAT}")
        try:
            detector = cls(
                window if flags & _WINDOW else None,
                clock=bool(flags & _CLOCK),
                on_conflict="repeat" if flags & _REPEAT else "reject",
                ids_max=most if flags & _BOUND else None,
            )
            detector.newest = newest if flags & _NEWEST else None
            width = NAME_BYTES + (_DIGEST_BYTES if flags & _DIGESTS else 0)
            at = _HEAD.size
            for _ in range(count):
                slice_, size = _SLICE.unpack_from(body, at)
                at += _SLICE.size
                rows = body[at : at + width * size]
                if len(rows) != width * size:
                    raise BadInput(f"a damaged snapshot of ids: {size} names in {len(rows)} bytes")
                names = [rows[i : i + NAME_BYTES] for i in range(0, NAME_BYTES * size, NAME_BYTES)]
                rest = rows[NAME_BYTES * size :]
                digests = [rest[i : i + _DIGEST_BYTES] for i in range(0, len(rest), _DIGEST_BYTES)]
                detector._slices[slice_] = dict(zip(names, digests or [_NO_DIGEST] * size, strict=True))
                at += width * size
        except (Misuse, ValueError, struct.error) as error:
            raise BadInput(f"a damaged snapshot of ids: {error}") from error
        if at != len(body) or detector.snapshot() != data:
            raise BadInput("a damaged snapshot of ids: `snapshot` would not write it")
        return detector

    def __str__(self) -> str:
        if self.settings.window_ms is None:
            return f"{len(self)}"
        horizon, length = self.horizon, self.settings.slice_ms
        forgot = [] if horizon is None else [f"forgot {horizon}"]
        slices = (f"[{s * length}, {(s + 1) * length}) {len(n)}" for s, n in sorted(self._slices.items()) if n)
        return " ".join([*forgot, *slices])

    def __repr__(self) -> str:
        return f"<IdDetector {self}>"
