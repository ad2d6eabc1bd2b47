"""The gateway service: every reception gets one answer, and one server answers the device.

    a link parses it -> the registry knows the address -> the MIC is right under one counter -> level 1 -> validation
    -> the claim (in a batch, in a thread) -> settle -> the log (in a batch, in a thread) -> the acknowledgement

`GatewayService._take` is that path: one coroutine per reception, from arrival to answer. It awaits three kinds of
`Reply`: what a store knows of a device, the result of a claim (both from `ClaimDesk`), and that a record is durable
(`Upstream`). Between two awaits it runs without a break, and frames continue in the order of their arrival.

**Device and counter.** Nothing changes before the MIC is verified. A device is looked up when it is first heard after a
start, so a restart forgets no counter; and again, not too often, when a frame does not fit its counter, because another
server may have counted on, or seen the device restart. The counters are in the shared store, or in this server's local
store if only this server may serve the device; the first look-up asks both, since that setting may have changed.
Devices that share an address are looked up in one query, and a frame costs one pass over their MICs; if none fits, the
devices whose last look-up is old are looked up again, followed by one more pass. Failed MICs are counted per station
and address, or a sender of forged frames would keep a core busy (`MicBudget`).

**Acknowledge after the log.** An acknowledgement tells the device that its frame is safe, so it is sent only when the
frame is durable in the log; also when this reception stores nothing itself because an earlier one did.

**After a start** the service knows again what the last run heard, and stores what it won but did not store
(`Recovery`).
"""

import asyncio
import json
import logging
import re
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic, monotonic_ns, perf_counter
from typing import Any, Final, NamedTuple, Protocol

from onefold.clock import Clock, wall_ms
from onefold.errors import Busy, Misuse, StoreFailed
from onefold.lorawan import rules
from onefold.lorawan.claims import FINISHED_MAX, ClaimDesk, Lookup, Reply, WhenDown
from onefold.lorawan.frames import DataUp, JoinRequest
from onefold.lorawan.mic import ack_down, find_owner, join_mic
from onefold.lorawan.ports import CounterStore
from onefold.lorawan.radio import EU868, Downlink, Reception, Region
from onefold.lorawan.registry import DeviceSession, Registry, RegistryEntry, Sessions, expected
from onefold.lorawan.rules import Counters, Judged, NetworkServer, Sightings, Stations, Unfinished
from onefold.net.limits import HttpLimits
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

log: Final = logging.getLogger("onefold.gateway")

GATEWAY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits(HttpLimits):
    connections_max: int = 1_000
    """A network of 1,000 stations is a large one; each holds a websocket."""
    message_bytes_max: int = 16 << 10
    """Of a websocket message. A frame of 255 bytes makes 900 bytes of JSON; a version message may have more."""
    queued_max: int = 1_024
    """Messages queued for one station; beyond, the station does not read, and its connection is cut."""
    write_s: float = 20
    """For sending one message; beyond, the connection is cut, too."""
    in_hand_max: int = 20_000
    """Receptions in progress; beyond, sockets are not read and datagrams are dropped."""
    parked_max: int = 10_000
    """Claims that wait for a coordinator that is down; beyond, the oldest become unsure."""
    batch_max: int = 512
    """Claims, or records, in one batch: ten milliseconds of a busy server."""
    mic_failures_max: int = 100_000
    """Wrong MICs from one station for one address within ``mic_window_s``; beyond, its frames for that address are
    refused unchecked. Some 0.2 s of a core. Like fail2ban, which counts failures of one source in a window, but this
    counts MICs, not frames: tens of thousands of forged frames for an address of one device, about fifty for an
    address of 1,000 devices."""
    mic_window_s: float = 60
    """From the first wrong MIC; a genuine device is unheard through an abused station for no longer than this."""
    lost_s: float = 30
    """A downlink whose transmission no station confirmed in this time counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The settings of one server. Servers that share a coordinator need different names."""

    name: str = "a"
    region: Region = EU868
    when_down: WhenDown = "park"
    expiry_ms: int = 60_000
    """The ADR's minute."""
    sliding: bool = True
    strict_adr: bool = False
    """Forget as the ADR does: the last frame of a device after the expiry, a DevNonce after five minutes."""
    echo_ms: int = 0
    rx_delay_s: int = 1
    """The default of LoRaWAN; The Things Network uses 5."""
    keep_all: bool = False
    """Store every reception, dropped and rejected ones too."""
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    def __post_init__(self) -> None:
        if not GATEWAY_NAME.fullmatch(self.name):
            raise Misuse(f"name is {self.name!r}, must be 1 to 100 of A-Z a-z 0-9 . _ -, the first a letter or digit",
                         name=self.name)  # fmt: skip


BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


class Latency:
    """A histogram.

    >>> latency = Latency()
    >>> for seconds in (0.05, 10.0, 30.0, 70.0):
    ...     latency.note(seconds)
    >>> latency.buckets()[-3:], latency.sum_s
    ([('10.0', 2), ('60.0', 3), ('+Inf', 4)], 110.05)
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, int]]:
        return list(zip((*map(str, BOUNDS_S), "+Inf"), accumulate(self._counts), strict=True))


OUTSTANDING_MAX: Final = 100_000
SECOND_WINDOW_MS: Final = 1_000


class Downlinks:
    """Sends acknowledgements, and counts their outcomes.

    ``number`` is that of the first one. Numbers must be unique across restarts of this server, so it is made of the
    time of the start.
    """

    def __init__(self, settings: GatewaySettings, number: int) -> None:
        self.region, self.rx_delay_s = settings.region, settings.rx_delay_s
        self.outcomes = dict.fromkeys(("sent", "transmitted", "lost", "late", "gone"), 0)
        """Lost: no station confirmed the transmission. Late (the device no longer listens) and gone (the station is
        not connected) were never sent."""
        self._lost_ms = round(1_000 * settings.limits.lost_s)
        self._next_number = number
        self._outstanding: OrderedDict[int, int] = OrderedDict()

    def acknowledge(self, reception: Reception, entry: RegistryEntry, fcnt_down: int, now_ms: int) -> bool:
        """Confirm this uplink; True if a station took the frame."""
        frame, radio, device = reception.frame, reception.radio, entry.device
        if not isinstance(frame, DataUp) or entry.nwk_skey is None:
            return False
        if device.device_class == "A" and now_ms - reception.received_ms > 1_000 * self.rx_delay_s + SECOND_WINDOW_MS:
            self.outcomes["late"] += 1
            return False
        downlink = Downlink(
            pdu=ack_down(nwk_skey=entry.nwk_skey, dev_addr=frame.dev_addr, fcnt=fcnt_down),
            dev_eui=device.dev_eui,
            device_class=device.device_class,
            rx_delay_s=self.rx_delay_s,
            rx1=self.region.rx1(radio.frequency_hz, radio.data_rate),
            rx2=self.region.rx2,
            number=self._next_number,
        )
        self._next_number += 1
        if reception.back is None or not reception.back(downlink):
            self.outcomes["gone"] += 1
            return False
        self.outcomes["sent"] += 1
        self._outstanding[downlink.number] = now_ms
        self.expire(now_ms)
        return True

    def transmitted(self, number: int) -> None:
        if self._outstanding.pop(number, None) is not None:
            self.outcomes["transmitted"] += 1

    def expire(self, now_ms: int) -> None:
        """Give up downlinks that are unconfirmed for too long, or dated in the future by a clock that was ahead."""
        outstanding, lost_ms = self._outstanding, self._lost_ms
        while outstanding and (
            len(outstanding) > OUTSTANDING_MAX or abs(now_ms - next(iter(outstanding.values()))) > lost_ms
        ):
            outstanding.popitem(last=False)
            self.outcomes["lost"] += 1


PAIRS_MAX: Final = 10_000
"""Pairs of station and address with recent MIC failures; beyond, the oldest are forgotten. Some 200 bytes each."""


class MicBudget:
    """Bounds how many MICs may fail per station and address in a window.

    >>> budget = MicBudget(failures_max=3, window_ms=1_000)
    >>> budget.spend("s", 1, 4, 0)
    >>> budget.spent("s", 1, 999), budget.spent("t", 1, 999), budget.spent("s", 1, 1_000)
    (True, False, False)
    """

    def __init__(self, *, failures_max: int, window_ms: int, pairs_max: int = PAIRS_MAX) -> None:
        self._failures_max, self._window_ms, self._pairs_max = failures_max, window_ms, pairs_max
        self._windows: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()  # start, failures

    def spend(self, station: str, dev_addr: int, codes: int, now_ms: int) -> None:
        pair = station, dev_addr
        since_ms, failures = self._windows.get(pair, (now_ms, 0))
        if now_ms - since_ms >= self._window_ms:
            since_ms, failures = now_ms, 0
            del self._windows[pair]
        self._windows[pair] = since_ms, failures + codes  # in the order in which their windows begin
        if len(self._windows) > self._pairs_max:
            self._windows.popitem(last=False)

    def spent(self, station: str, dev_addr: int, now_ms: int) -> bool:
        since_ms, failures = self._windows.get((station, dev_addr), (0, 0))
        return failures > self._failures_max and now_ms - since_ms < self._window_ms


FORMAT: Final = 1
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def record(server: str, reception: Reception, dev_eui: int | None, judged: Judged) -> bytes:
    """One reception and its answer, as JSON; ``dev_eui`` is None if no known device sent it."""
    frame, radio = reception.frame, reception.radio
    row: dict[str, Any] = {"v": FORMAT, "kind": "data", "key": frame.key.hex()}
    if isinstance(frame, DataUp):
        row |= {
            "dev_eui": None if dev_eui is None else f"{dev_eui:016x}",
            "dev_addr": f"{frame.dev_addr:08x}",
            "fcnt": judged.fcnt,
            "fport": frame.fport,
            "payload": frame.payload.hex(),
            "confirmed": frame.confirmed,
            "adr": frame.adr,
        }
    else:
        row |= {
            "kind": "join",
            "dev_eui": f"{frame.dev_eui:016x}",
            "join_eui": f"{frame.join_eui:016x}",
            "dev_nonce": frame.dev_nonce,
        }
    row |= {
        "server": server, "station": reception.station, "time_ms": radio.time_ms, "received_ms": reception.received_ms,
        "rssi": radio.rssi, "snr": radio.snr, "frequency": radio.frequency_hz, "dr": radio.data_rate,
    }  # fmt: skip
    row["verdict"], row["reason"] = judged.answer
    row["status"] = None if dev_eui is None else judged.status  # None: refused before level 1
    if judged.route.marked:
        row["dup_msg"] = True
    return _encode(row).encode()


UPLINKS: Final = "uplinks"
RECEPTIONS: Final = "receptions"
"""The topic of all receptions, with ``keep_all``."""
MESSAGE_KIND: Final = 0
"""The kind of a topic's records that hold a message."""
RETRY_S: Final = (0.05, 2.0)
"""The first wait and the longest; in between it doubles."""
LINGER_S: Final = 0.01
"""How long a record waits for others to share its sync. Devices listen a second later, and the claims use the same
disk: with fewer syncs of the log, claims are decided sooner."""
TAIL_STEP: Final = 10_000


class StoredMessage(Protocol):
    @property
    def time_ms(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class MessageLog(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def read(self, start: int, end: int | None = None) -> Iterator[StoredMessage]: ...


class DurableTopic(Protocol):
    """A topic of `onefold.producers`, whose sequence ids make a repeated write harmless.

    ``publish`` stores what is new and returns a receipt (``verdict``, ``reason``) for each message; ``tend`` does what
    the clock alone makes due: snapshots, retention. It blocks.
    """

    @property
    def log(self) -> MessageLog: ...
    def last_sequence_id(self, producer: str) -> int: ...
    def publish(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> Sequence[Any]: ...
    def tend(self) -> None: ...


class Upstream:
    """Writes one server's records to one topic, many per sync. Lives on one event loop.

    The server is the producer; its records are numbered from the end of the log on. A failed write is retried with the
    same numbers until it succeeds, so nothing is stored twice or left out; meanwhile receptions pile up, and the server
    stops reading.
    """

    def __init__(
        self, topic: DurableTopic, producer: str, *, batch_max: int = 512, queued_max: int | None = None
    ) -> None:
        self.problem: str | None = None
        """Why nothing can be stored; None if it can."""
        self.unstored = 0
        """Records given up at shutdown."""
        self.refused = 0
        """Records refused because too many were queued."""
        self.topic = topic
        self._producer = producer
        self._batch_max = batch_max
        self._queued_max = queued_max
        self._start = topic.log.end  # of this run
        self._next = topic.last_sequence_id(producer) + 1
        self._queue: deque[tuple[bytes | None, Reply[bool]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="onefold-upstream")
        self._worker: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def put(self, record: bytes | None) -> Reply[bool]:
        """Store a record (None: only wait for all before it). The reply is True when it is durable, False if it was
        given up at shutdown, or refused because ``queued_max`` are queued."""
        reply: Reply[bool] = Reply()
        if self._queued_max is not None and len(self._queue) >= self._queued_max:
            self.refused += 1
            reply.resolve(False)
            return reply
        self._queue.append((record, reply))
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())
        return reply

    async def close(self, seconds: float) -> None:
        """Store what is queued, and give up after so long."""
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=seconds)
        self._closing.set()
        while self._worker is not None:
            await asyncio.wait([self._worker])
        self._pool.shutdown(wait=False)

    def tail(self, since_ms: int, least: int = 0) -> Iterator[StoredMessage]:
        """The messages of earlier runs from this time on (and some older ones), oldest first; not fewer than the last
        ``least`` records. Blocks."""
        records, start = self.topic.log, self._start
        if records.start >= start:  # retention has removed all of them
            return
        while start > records.start:
            start = max(records.start, start - TAIL_STEP)
            first = next(iter(records.read(start, start + 1)))
            if first.time_ms < since_ms and self._start - start >= least:
                break
        yield from (record for record in records.read(start, self._start) if record.kind == MESSAGE_KIND)

    async def _work(self) -> None:
        try:
            while self._queue:
                if len(self._queue) < self._batch_max and not self._closing.is_set():
                    await asyncio.sleep(LINGER_S)
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))]
                records = [record for record, _ in batch if record is not None]
                stored = not records or await self._store(records)
                if not stored:
                    self.unstored += len(records)
                    log.error("%d records were not stored: %s", len(records), self.problem)
                for _, reply in batch:
                    reply.resolve(stored)
        finally:
            self._worker = None

    async def _store(self, records: list[bytes]) -> bool:
        messages = list(enumerate(records, self._next))
        self._next += len(records)  # also if they are given up: the log may have them under these numbers
        wait = RETRY_S[0]
        while True:
            try:
                await self._loop.run_in_executor(self._pool, self._publish, messages)
            except Exception as error:  # whatever it is, the records must be stored
                if self.problem is None:
                    log.error("nothing can be stored: %s: %s", type(error).__name__, error)
                self.problem = str(error) or type(error).__name__
                if self._closing.is_set():
                    return False
                await asyncio.sleep(wait)
                wait = min(2 * wait, RETRY_S[1])
                continue
            if self.problem is not None:
                log.error("records are stored again")
                self.problem = None
            return True

    def _publish(self, messages: list[tuple[int, bytes]]) -> None:
        for receipt in self.topic.publish(self._producer, messages):
            # A repeat was stored by an earlier try of the same batch.
            if receipt.verdict not in (Verdict.FIRST, Verdict.REPEAT):
                raise StoreFailed(f"a record was answered {receipt.verdict} {receipt.reason}")


MARGIN_MS: Final = 600_000
"""How far off a clock that is set at all may be."""
LEAST: Final = 2 * FINISHED_MAX
"""Records that are read in any case: all that may be unfinished, and as many again that had no claim."""
KEY: Final = b'"key":"'
KEY_DIGITS: Final = 64


class RecordName(NamedTuple):
    """Names the reception that a record is about. Two records of one reception may differ in its answer."""

    key: str
    station: str
    received_ms: int

    @classmethod
    def of(cls, record: bytes) -> "RecordName | None":
        """None if this version did not write the record."""
        try:
            row = json.loads(record)
            if row["v"] != FORMAT:
                return None
            name = cls(row["key"], row["station"], row["received_ms"])
            good = len(bytes.fromhex(name.key)) == KEY_DIGITS // 2 and type(name.received_ms) is int
            return name if good and isinstance(name.station, str) else None
        except (ValueError, TypeError, LookupError, RecursionError):
            return None


@dataclass(slots=True)
class Recovery:
    """What one run of a server leaves to the next. ``ticks`` is the monotonic clock of level 1.

    Level 1 is restored from the log: whatever was stored within the expiry was heard. A run that died between winning a
    frame and storing it left the record in the store of the claim (`Unfinished`). Some of these are in the log all the
    same, if the run died before it could finish them; they are found by frame, station and time of receipt. The log is
    read from well before the oldest of them, and never fewer records than a server can leave unfinished. A record that
    cannot be read (of another version, or damaged) is skipped in the log, and left in the store.
    """

    _sightings: Sightings
    _uplinks: Upstream
    _clock: Clock
    _ticks: Clock
    recovered: int = 0
    """Records that were won and not stored."""
    unreadable: int = 0
    """Records that cannot be read, and stay in the store."""

    def remember(self, since_ms: int) -> None:
        """Restore level 1 from what was stored since then. Blocks."""
        for stored in self._uplinks.tail(since_ms):
            name = RecordName.of(stored.payload)
            if name is not None and stored.time_ms >= since_ms:
                self._see(name)

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[[ClaimDesk], None]:
        """Find which of these are not in the log. Blocks; the function that it returns stores them, and must be called
        on the event loop."""
        readable = [(each, name) for each in unfinished if (name := RecordName.of(each.body.encode())) is not None]
        stored: dict[RecordName, list[bytes]] = {name: [] for _, name in readable}  # the records in the log
        if stored:
            keys = {name.key.encode() for name in stored}
            for record in self._uplinks.tail(min(name.received_ms for name in stored) - MARGIN_MS, LEAST):
                at = record.payload.find(KEY) + len(KEY)
                # Only these are parsed.
                if record.payload[at : at + KEY_DIGITS] in keys and (of := RecordName.of(record.payload)) in stored:
                    stored[of].append(record.payload)
        missing: list[tuple[Unfinished, RecordName]] = []
        for each, name in readable:  # a station may hear one frame twice in a millisecond: compare the bodies first
            body = each.body.encode()
            if body in stored[name]:
                stored[name].remove(body)
            else:
                missing.append((each, name))
        lost = {each.number for each, name in missing if not (stored[name] and stored[name].pop())}
        unreadable = {each.number for each in unfinished} - {each.number for each, _ in readable}

        async def store(won: Unfinished, desk: ClaimDesk) -> None:
            if await self._uplinks.put(won.body.encode()):  # not counted here, but in the tally of the run that won it
                desk.finish(won.number)

        def restore(desk: ClaimDesk) -> None:
            if unreadable:
                self.unreadable += len(unreadable)
                log.error("store %s: %d messages of an earlier run cannot be read, and stay there; "
                          "the first is number %d", desk.name, len(unreadable), min(unreadable))  # fmt: skip
            for each, name in readable:
                self._see(name)
                if each.number in lost:
                    self.recovered += 1
                    Reply.advance(store(each, desk))
                else:
                    desk.finish(each.number)

        return restore

    def _see(self, name: RecordName) -> None:
        """Date the sighting on the clock of level 1; never in the future, even if the clock was ahead then."""
        ago_ms = max(0, self._clock() - name.received_ms)
        self._sightings.see(bytes.fromhex(name.key), name.station, self._ticks() - ago_ms)


ASK_S: Final = 10.0
"""Between two look-ups of a device whose frames do not fit its counter."""
NUMBER_BITS: Final = 10
"""Claims and downlinks are numbered from the start time in 1/1024 ms: only a million a second would reach the numbers
of the next run."""


def ticks_ms() -> int:
    """The monotonic clock of level 1: with the wall clock, a wrong hour would stop the expiry."""
    return monotonic_ns() // 1_000_000


class GatewayService:
    """Takes receptions of any protocol. Lives on one event loop.

    ``topic`` opens a topic by its name. ``shared`` keeps the counters of devices that any server may serve, ``local``
    those of devices that only this server may serve.
    """

    def __init__(
        self, settings: GatewaySettings, registry: Registry, topic: Callable[[str], DurableTopic], *,
        shared: CounterStore | None, local: CounterStore, clock: Clock = wall_ms, ticks: Clock = ticks_ms,
    ) -> None:  # fmt: skip
        limits = settings.limits
        self.settings = settings
        self.region = settings.region
        self.sessions = Sessions(registry)
        self.tally = Tally()
        self.arrive = self.tally.arrive  # called by the links; `_book` counts the answers
        self.statuses: Counter[tuple[Answer, str]] = Counter()
        """The tally by answer and status; the status is empty where level 1 was not reached."""
        self.latency = Latency()
        self.downlinks = Downlinks(settings, clock() << NUMBER_BITS)
        self.transmitted = self.downlinks.transmitted
        self.in_hand = 0
        self.failed = 0
        self.closing = False
        self._undecided = 0
        self._waiting = 0  # receptions that wait for room
        self._clock = clock
        self._ticks = ticks
        self._changed = asyncio.Event()
        self._copies: dict[str, Reply[None]] = {}  # by frame with a pending claim; resolved when that is upstream
        self._uplinks = Upstream(topic(UPLINKS), settings.name, batch_max=limits.batch_max)
        self._upstreams, self._everything = [self._uplinks], None
        if settings.keep_all:
            batch_max, queued_max = 4 * limits.batch_max, limits.in_hand_max
            self._everything = Upstream(topic(RECEPTIONS), settings.name, batch_max=batch_max, queued_max=queued_max)
            self._upstreams.append(self._everything)
        self._sightings = Sightings(expiry_ms=settings.expiry_ms, sliding=settings.sliding)
        self._recovery = Recovery(self._sightings, self._uplinks, clock, ticks)
        self._recovery.remember(clock() - settings.expiry_ms)
        stations = Stations(self._sightings, echo_ms=settings.echo_ms)
        self._rules = NetworkServer(settings.name, stations, strict_adr=settings.strict_adr)
        self._budget = MicBudget(failures_max=limits.mic_failures_max, window_ms=round(1_000 * limits.mic_window_s))
        self._local = self._desk("local", local, "park")
        self._shared = self._local if shared is None else self._desk("shared", shared, settings.when_down)
        self._desks = (self._local,) if shared is None else (self._local, self._shared)

    def _desk(self, name: str, store: CounterStore, when_down: WhenDown) -> ClaimDesk:
        limits = self.settings.limits
        return ClaimDesk(
            name, store, self.settings.name, self._recovery.sort_out, number=self._clock() << NUMBER_BITS,
            when_down=when_down, batch_max=limits.batch_max, parked_max=limits.parked_max,
        )  # fmt: skip

    def hear(self, reception: Reception) -> None:
        """Take a reception; `Busy` if there is no room, and it was not taken."""
        if self.in_hand >= self.settings.limits.in_hand_max:
            raise Busy(f"{self.in_hand:,} receptions are in hand, the limit", in_hand=self.in_hand)
        if self.closing:
            raise Busy("the server is shutting down")
        self.in_hand += 1
        self._undecided += 1
        Reply.advance(self._take(reception))

    def refuse(self, station: str, answer: Answer, problem: str) -> None:
        """Count something from this station that is no valid reception, with what was wrong."""
        self._book(answer, "")
        if self._everything is not None:
            row: dict[str, Any] = {"v": FORMAT, "kind": None, "server": self.settings.name, "station": station}
            row |= {"received_ms": self._clock(), "verdict": answer.verdict, "reason": answer.reason, "told": problem}
            self._everything.put(_encode(row).encode())

    async def room(self) -> None:
        """Wait until a reception can be taken; for ever if the server is shutting down."""
        self._waiting += 1
        try:
            while self.closing or self.in_hand >= self.settings.limits.in_hand_max:
                await self._change()
        finally:
            self._waiting -= 1

    async def _take(self, reception: Reception) -> None:
        """One reception from its arrival to its answer. An error ends this reception only."""
        began, now_ms, frame = perf_counter(), self._ticks(), reception.frame
        decided = stored = False
        record, claimed, number, desk, claiming = b"", None, 0, self._local, ""
        try:
            if isinstance(frame, JoinRequest):
                session, judged = self._judge_join(frame, reception.station, now_ms)
            else:
                session, judged = await self._judge_data(frame, reception.station, now_ms)

            if session is not None and (claim := judged.claim) is not None:
                if judged.route.up:  # the store keeps it until it is upstream, also if this process dies
                    record = self._record(reception, session, judged)
                    claim = claim._replace(body=record.decode())
                if (claiming := claim.frame) and claiming not in self._copies:  # a join request has none
                    self._copies[claiming] = Reply()
                desk = self._home(session)  # a reload of the registry may change it before the claim is finished
                session.claims += 1
                number, claimed = await desk.claim(claim)
                session.claims -= 1
                settled = self._rules.settle(judged, session.entry.device.strategy, claimed)
                if settled.answer is not judged.answer:
                    record = b""  # it has the answer of before the claim
                judged = settled
                if claimed is not None and claimed.won:
                    session.fcnt_down = max(session.fcnt_down, claimed.fcnt_down)
            elif judged.route.up and (first := self._copies.get(frame.key.hex())) is not None:
                await first  # upstream must not see a copy before the frame itself

            decided = True
            self._undecided -= 1
            self._book(judged.answer, judged.status if session is not None else "")
            self.latency.note(perf_counter() - began)
            up, down = judged.route.up, judged.route.down
            if up or self._everything is not None:
                record = record or self._record(reception, session, judged)
                if self._everything is not None:
                    self._everything.put(record)
            durable = self._uplinks.put(record if up else None) if up or down else None
            self._release_copies(claiming)
            stored = durable is None or await durable
            if stored and down and session is not None and claimed is not None and claimed.fcnt_down:
                self.downlinks.acknowledge(reception, session.entry, claimed.fcnt_down, self._clock())
        except Exception as error:  # unexpected: this reception ends here, and stays in the tally
            self.failed += 1
            log.error("a reception of station %s: unexpected: %s: %s", reception.station, type(error).__name__, error)
            if not decided:  # it goes nowhere; if its claim was won, the next start stores it
                self._undecided -= 1
                self._book(rules.COORDINATOR_DOWN, "")
            self._release_copies(claiming)
        if stored and number and (claimed is None or claimed.won):
            desk.finish(number)
        self.in_hand -= 1
        self._changed.set()

    async def _judge_data(self, frame: DataUp, station: str, now_ms: int) -> tuple[DeviceSession | None, Judged]:
        """Find the device and the 32-bit counter of a frame, and judge it; the session is None if no device fits."""
        retried: set[ClaimDesk] = set()  # asked once more because no MIC fitted
        down = False  # the devices' store could not be asked
        while True:
            sessions = self.sessions.at(frame.dev_addr)
            if not down:
                if self._budget.spent(station, frame.dev_addr, now_ms):
                    return None, _refusal(rules.MIC_BUDGET, frame)
                ours = [session for session in sessions if session.entry.device.gateway in (None, self.settings.name)]
                unknown = [session for session in ours if session.lookup is not None or not session.loaded]
                if unknown:
                    down = await self._look_up(unknown)
                    continue
                if sessions and not ours:  # without their counters the MIC cannot be checked
                    return None, _refusal(rules.OTHER_GATEWAY, frame)
            if not sessions:
                return None, _refusal(rules.UNKNOWN_DEVICE, frame)
            owner, fcnt, tried = find_owner(
                ((session.entry.nwk_skey or b"", session.heard.fcnt_up) for session in sessions), frame
            )
            if fcnt is None:
                self._budget.spend(station, frame.dev_addr, tried, now_ms)
                if down:
                    return None, _refusal(rules.COORDINATOR_DOWN, frame)
                due = [each for each in sessions if each.loaded and self._home(each) not in retried and _due(each)]
                if not due:
                    return None, _refusal(rules.BAD_MIC, frame)
                retried.add(self._home(due[0]))
                down = await self._look_up(due)  # another server may have counted on
                continue
            session = sessions[owner]
            device = session.entry.device
            judged = self._rules.uplink(device, frame, fcnt, session.heard, station, now_ms)
            if judged.claim is not None:
                if down:
                    return session, self._rules.settle(judged, device.strategy, None)
                if judged.claim.restarted_after is not None:
                    session.fcnt_down = 0  # the device restarts its down counter, too
                claim = judged.claim._replace(device=session.entry.session, fcnt_down=session.fcnt_down)
                return session, judged._replace(claim=claim)
            # Another server may have counted on, or seen the device restart.
            behind = judged.answer is rules.COUNTER_GAP or (judged.answer is rules.OLD_COUNTER and device.relaxed)
            if behind and down:
                return session, _refusal(rules.COORDINATOR_DOWN, frame)
            if not behind or not _due(session):
                return session, judged
            down = await self._look_up([session], fcnt)

    def _judge_join(self, request: JoinRequest, station: str, now_ms: int) -> tuple[DeviceSession | None, Judged]:
        entry = self.sessions.registry.by_eui.get(request.dev_eui)
        if entry is None or entry.app_key is None:
            return None, _refusal(rules.UNKNOWN_DEVICE, request)
        if join_mic(entry.app_key, request.raw) != request.mic:
            return None, _refusal(rules.BAD_MIC, request)
        if entry.device.gateway not in (None, self.settings.name):
            return None, _refusal(rules.OTHER_GATEWAY, request)
        return self.sessions.of(entry), self._rules.join(request, station, now_ms)

    async def _look_up(self, sessions: Sequence[DeviceSession], fcnt: int | None = None) -> bool:
        """Look up these devices, or those of them that one query can get; True if their own store is down.

        ``fcnt``: a frame of the one device has this counter, which is below the last one that this server heard."""
        session = next((each for each in sessions if each.lookup is not None), None)
        if session is not None and session.lookup is not None:
            lookup = session.lookup
            counters = await lookup.desk.ask(lookup)
            return counters is None and lookup.desk is self._home(session)
        desk, brief = self._next_desk(sessions[0])
        same = [each for each in sessions if self._next_desk(each) == (desk, brief)]
        lookup = Lookup(desk, tuple(each.entry.session for each in same), brief=brief)
        for each in same:
            each.lookup = lookup
        counters = await desk.ask(lookup)
        for each in same:  # the first waiter continues first, and does this for the others
            each.lookup = None
        for each, stored in zip(same, counters or [None] * len(same), strict=True):
            home = desk is self._home(each)
            each.asked.add(desk.name)
            if home:
                each.asked_at = monotonic()
                if stored is not None and fcnt is not None and self._restarted_elsewhere(each, fcnt, stored):
                    each.heard, each.fcnt_down = rules.Heard(), stored.fcnt_down
            if counters is not None:
                each.learn(stored, self.settings.name, home=home)
                each.loaded = each.loaded or home
        return counters is None and desk is self._home(same[0])

    def _next_desk(self, session: DeviceSession) -> tuple[ClaimDesk, bool]:
        """The desk to ask next, and whether it is another than the device's own, which is asked last."""
        home = self._home(session)
        if not session.loaded:
            for desk in self._desks:
                if desk is not home and desk.name not in session.asked and desk.problem is None:
                    return desk, True
        return home, False

    def _restarted_elsewhere(self, session: DeviceSession, fcnt: int, counters: Counters) -> bool:
        """Did another server see the device restart, so that a frame with this counter is not too low?"""
        last, server = session.heard.fcnt_up, self.settings.name
        if last is None or not session.entry.device.relaxed or session.claims or counters.server == server:
            return False
        return counters.fcnt_up < last and expected(counters, server) < fcnt <= last

    def _home(self, session: DeviceSession) -> ClaimDesk:
        return self._shared if session.entry.device.gateway is None else self._local

    def _record(self, reception: Reception, session: DeviceSession | None, judged: Judged) -> bytes:
        return record(self.settings.name, reception, None if session is None else session.entry.device.dev_eui, judged)

    def _book(self, answer: Answer, status: str) -> None:
        self.tally.judge(answer)
        self.statuses[answer, status] += 1

    def _release_copies(self, frame: str) -> None:
        """Let the copies of this frame continue, whatever the result of its claim."""
        if (copies := self._copies.pop(frame, None)) is not None:
            copies.resolve(None)

    def figures(self) -> dict[str, int]:
        self.downlinks.expire(self._clock())
        return {
            "in_hand": self.in_hand,
            "in_flight": self._undecided,
            "claiming": sum(desk.waiting for desk in self._desks),
            "parked": sum(desk.parked for desk in self._desks),
            "devices": len(self.sessions.registry),
            "sessions": len(self.sessions),
            "sightings": len(self._sightings),
            "evicted": self._sightings.evicted,
            "unstored": sum(upstream.unstored for upstream in self._upstreams),
            "unkept": 0 if self._everything is None else self._everything.refused,
            "recovered": self._recovery.recovered,
            "unreadable": self._recovery.unreadable,
            "failed": self.failed,
            "arrived": self.tally.received,
            "unaccounted": self.unaccounted,
        }

    @property
    def unaccounted(self) -> int:
        """Arrivals minus verdicts when nothing is in progress: not 0 is an error of this server."""
        return self.tally.pending if not (self.in_hand or self._waiting) else 0

    def problems(self) -> dict[str, str]:
        parts = [(desk.name, desk.problem) for desk in self._desks]
        parts += [("books", str(self.tally) if self.unaccounted else None)]
        parts += zip((UPLINKS, RECEPTIONS), (upstream.problem for upstream in self._upstreams), strict=False)
        return {name: problem for name, problem in parts if problem is not None}

    def tend(self) -> None:
        for upstream in self._upstreams:
            upstream.topic.tend()

    async def idle(self) -> None:
        while self.in_hand:
            await self._change()

    async def drain(self, seconds: float) -> None:
        """Decide and store the receptions in progress and acknowledge them; what is undecided by then is unsure."""
        self.closing = True
        try:
            async with asyncio.timeout(seconds):
                await self.idle()
        except TimeoutError:
            for desk in self._desks:
                desk.give_up()

    async def close(self) -> None:
        """Finish, and close the stores; the topics belong to the caller."""
        self.closing = True
        for desk in self._desks:
            await desk.settle()
        for upstream in self._upstreams:
            await upstream.close(self.settings.limits.grace_s)
        for desk in self._desks:
            await desk.close()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _refusal(answer: Answer, frame: DataUp | JoinRequest) -> Judged:
    """The judgement of a frame whose device is unknown or cannot be checked: it goes nowhere."""
    return Judged(answer, rules.NOT_DUPLICATE, rules.NOWHERE, frame.fcnt if isinstance(frame, DataUp) else 0, None)


def _due(session: DeviceSession) -> bool:
    return monotonic() - session.asked_at >= ASK_S
