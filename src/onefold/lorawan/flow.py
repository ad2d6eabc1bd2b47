"""The service: every reception gets one answer, and one server answers the device.

    a link parses it -> the registry knows the address -> the MIC is right under one counter -> level 1 -> validation
    -> the claim, with others, in a thread -> settled -> into the log, with others, in a thread -> the acknowledgement

How a reception is judged is in `judging`. Here is what surrounds it: what is in hand, how much of that there may be,
and that each reception comes to its end, whatever goes wrong on its way.

The acknowledgement of a confirmed uplink: made with the counter that the claim gave, sent through the station that
heard the winning reception, and looked after until that station says that it was on the air.

A device listens twice after it has sent: ``rx_delay_s`` later on the first window's frequency, a second later on the
other's. What is not at the station by then is not sent: it would disturb others and reach nobody.

How long decisions take: counts by upper bound, as Prometheus wants them, at the price of one bisection each.

What goes upstream: one JSON object for each message, the same for every protocol that brought it in.

Every bound of the gateway's server on one page.

What a gateway's server is called, and how it judges.

The way upstream: records into the durable log, many with one sync, and whoever waits for that is told.

The server is the producer; its records are numbered without gaps from where the log ends. A write that fails is tried
again with the same numbers until it works, so nothing is stored twice and nothing is left out; meanwhile what is in
hand grows, and the server stops to read.

What was decided goes where it belongs: into the books, into the log, and back to the device.

The order is the guarantee. An acknowledgement tells the device that its frame is safe, so it is sent when the frame is
in the durable log, and not before; also where this reception stores nothing itself, because an earlier one did.

After a start: what an earlier run heard is known, and what it won and did not store is stored.

The counters are in their store, so only the memory of level 1 is gone. The log has it: whatever was stored within the
expiry was heard. And a run that died between winning a frame and storing it left the record with the store of the
claim, for by then all other servers had lost that frame.

Some of what it left is in the log, if it died before it could say so. A record is found there by what was heard, where
and when, whatever the clock said when it was written: the log is read from well before, and never less than a server
can have left behind.

What cannot be read, of another version or damaged, is nobody's: in the log it is passed over, in the store it stays.

Whose frame is it, under which counter, and does it count? All that happens between a link and the books.

Up to the MIC nothing changes, whatever is sent. Judging is quick and done on the event loop, in the order of arrival;
what needs a store waits for its desk (`claiming`), and goes on when that tells.

A device that was not heard since the start is looked up first, so a restart forgets no counter. It is looked up again,
not too often, when a frame does not fit its counter: another server may have counted on, or heard that it began again.
Its counters live in the shared store, or in this server's own where only this server may serve the device; at first
sight both are asked, for it may have been otherwise before.

Many devices may share an address, and then only the code tells whose a frame is. All of them are looked up with one
question, and a frame costs one pass over their codes; if it is nobody's, those that were not looked up for a while are,
once, and there is one more pass. Whoever sends forged frames to such an address must not keep a core busy: codes that
fail are counted by station and address, and too many in a short while mean that no more are looked at (`MicBudget`).
"""

import asyncio
import json
import logging
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, monotonic_ns, perf_counter
from typing import Any, Final, NamedTuple

from onefold.clock import Clock, wall_ms
from onefold.errors import Busy, Misuse, StoreFailed
from onefold.lorawan.claims import FINISHED_MAX, ClaimDesk, WhenDown
from onefold.lorawan.frames import DataUp, JoinRequest
from onefold.lorawan.mic import ack_down, find_owner, join_mic
from onefold.lorawan.radio import EU868, Downlink, Reception, Region
from onefold.lorawan.registry import DeviceSession, FrameInFlight, Question, Registry, RegistryEntry, Sessions, expected
from onefold.lorawan.rules import (
    BAD_MIC,
    COORDINATOR_DOWN,
    COUNTER_GAP,
    MIC_BUDGET,
    NOWHERE,
    OLD_COUNTER,
    OTHER_GATEWAY,
    UNKNOWN_DEVICE,
    Claim,
    Claimed,
    Counters,
    Judged,
    NetworkServer,
    Sightings,
    Stations,
    Status,
    Unfinished,
)
from onefold.lorawan.stores.port import CounterStore
from onefold.net.limits import HttpLimits
from onefold.producers.log.port import LogRecord
from onefold.producers.topic import NAME, Topic, Topics
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

OUTSTANDING_MAX: Final = 100_000
SECOND_WINDOW_MS: Final = 1_000


@dataclass
class Downlinks:
    """Sends acknowledgements, and counts what becomes of them."""

    region: Region
    rx_delay_s: int
    next_number: int
    """Unique in this server also over restarts, where it begins with the time."""
    lost_ms: int = 30_000
    sent: int = 0
    transmitted: int = 0
    lost: int = 0
    """Sent, and no station said that it was on the air."""
    late: int = 0
    """Not sent, for the device does not listen any more."""
    gone: int = 0
    """Not sent, for the station is not there any more."""

    def __post_init__(self) -> None:
        self._outstanding: OrderedDict[int, int] = OrderedDict()

    def acknowledge(self, reception: Reception, entry: RegistryEntry, fcnt_down: int, now_ms: int) -> bool:
        """Confirm this uplink; whether a station has it in hand now."""
        frame, radio, device = reception.frame, reception.radio, entry.device
        if not isinstance(frame, DataUp) or entry.nwk_skey is None:
            return False
        if device.device_class == "A" and now_ms - reception.received_ms > 1_000 * self.rx_delay_s + SECOND_WINDOW_MS:
            self.late += 1
            return False
        downlink = Downlink(
            pdu=ack_down(nwk_skey=entry.nwk_skey, dev_addr=frame.dev_addr, fcnt=fcnt_down),
            dev_eui=device.dev_eui,
            device_class=device.device_class,
            rx_delay_s=self.rx_delay_s,
            rx1=self.region.rx1(radio.frequency_hz, radio.data_rate),
            rx2=self.region.rx2,
            number=self.next_number,
        )
        self.next_number += 1
        if reception.back is None or not reception.back.send(downlink):
            self.gone += 1
            return False
        self.sent += 1
        self._outstanding[downlink.number] = now_ms
        self.expire(now_ms)
        return True

    def was_transmitted(self, number: int) -> None:
        """A station says that it was on the air."""
        if self._outstanding.pop(number, None) is not None:
            self.transmitted += 1

    def expire(self, now_ms: int) -> None:
        """Give up those of which nobody said anything for too long; so do those that a clock which was ahead dated."""
        waiting = self._outstanding
        while waiting and (len(waiting) > OUTSTANDING_MAX or abs(now_ms - next(iter(waiting.values()))) > self.lost_ms):
            waiting.popitem(last=False)
            self.lost += 1

    def figures(self) -> dict[str, int]:
        """What became of them."""
        return {name: getattr(self, name) for name in ("sent", "transmitted", "lost", "late", "gone")}


BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


class Latency:
    """A histogram.

    >>> latency = Latency((0.1, 1.0))
    >>> for seconds in (0.05, 0.1, 0.3, 7.0):
    ...     latency.note(seconds)
    >>> latency.buckets(), round(latency.sum_s, 2)
    ([('0.1', 2), ('1.0', 3), ('+Inf', 4)], 7.45)
    """

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        self._bounds = tuple(bounds_s)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """One more took so long."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """How many took at most so long, by bound."""
        found, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found


FORMAT: Final = 1
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def record(server: str, reception: Reception, dev_eui: int | None, judged: Judged) -> bytes:
    """One reception and what became of it; ``dev_eui`` None: it is nobody's that we know."""
    frame, radio = reception.frame, reception.radio
    name = None if dev_eui is None else f"{dev_eui:016x}"
    row: dict[str, Any]
    if isinstance(frame, DataUp):
        row = {
            "v": FORMAT,
            "kind": "data",
            "key": frame.key.hex(),
            "dev_eui": name,
            "dev_addr": f"{frame.dev_addr:08x}",
            "fcnt": judged.fcnt,
            "fport": frame.fport,
            "payload": frame.payload.hex(),
            "confirmed": frame.confirmed,
            "adr": frame.adr,
        }
    else:
        row = {
            "v": FORMAT,
            "kind": "join",
            "key": frame.key.hex(),
            "dev_eui": f"{frame.dev_eui:016x}",
            "join_eui": f"{frame.join_eui:016x}",
            "dev_nonce": frame.dev_nonce,
        }
    row["server"] = server
    row["station"] = reception.station
    row["time_ms"] = radio.time_ms
    row["received_ms"] = reception.received_ms
    row["rssi"] = radio.rssi
    row["snr"] = radio.snr
    row["frequency"] = radio.frequency_hz
    row["dr"] = radio.data_rate
    row["verdict"], row["reason"] = judged.answer
    row["status"] = None if dev_eui is None else judged.status  # refused before it had one
    if judged.route.marked:
        row["dup_msg"] = True
    return _encode(row).encode()


def refused(server: str, station: str, received_ms: int, verdict: str, reason: str, told: str) -> bytes:
    """Something that was no reception."""
    row = {"v": FORMAT, "kind": None, "server": server, "station": station, "received_ms": received_ms,
           "verdict": verdict, "reason": reason, "told": told}  # fmt: skip
    return _encode(row).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits(HttpLimits):
    """What stations may ask of the server, and how much it keeps in hand."""

    connections_max: int = 1_000
    """A network of 1,000 stations is a large one; each holds a websocket."""
    message_bytes_max: int = 16 << 10
    """Of a websocket message. A frame of 255 bytes makes 900 bytes of JSON; a version message may have more."""
    queued_max: int = 1_024
    """Messages that wait to be sent to one station; beyond, it is one that does not read, and it is cut off."""
    write_s: float = 20
    """For one message to leave; beyond, the same."""
    in_hand_max: int = 20_000
    """Receptions that were taken and are not done; beyond, sockets are not read and datagrams are dropped."""
    parked_max: int = 10_000
    """Claims that wait for a coordinator that is down; beyond, the oldest become unsure."""
    batch_max: int = 512
    """Claims, or records, in one go: ten milliseconds of a busy server."""
    mic_failures_max: int = 100_000
    """Wrong codes from one station for one address within ``mic_window_s``; beyond, its frames for that address are not
    looked at. Some 0.2 s of a core. As fail2ban counts failures of one source in a window, but work, not tries: on
    an address of one device these are tens of thousands of forged frames, on one of 1,000 devices about fifty."""
    mic_window_s: float = 60
    """Begins with the first wrong code; so long at most is a true device not heard through a station that is abused."""
    lost_s: float = 30
    """A downlink that no station said to have transmitted in this time counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The choices of one server; those that share a coordinator differ in their name."""

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
    """Store every reception, also what is dropped or rejected."""
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise Misuse(f"name is {self.name!r}, must be 1 to 100 of A-Z a-z 0-9 . _ -, the first a letter or digit",
                         name=self.name)  # fmt: skip


RETRY_S: Final = (0.05, 2.0)
"""The first wait and the longest; in between it doubles."""
LINGER_S: Final = 0.01
"""A record waits so long for others to share its sync. Devices listen a second later, and the disk is the claims' too:
with fewer syncs of the log, decisions are quicker."""
TAIL_STEP: Final = 10_000
MESSAGE_KIND: Final = 0
log: Final = logging.getLogger("onefold.gateway")


class Upstream:
    """One topic, written by one server. Lives on one event loop."""

    def __init__(
        self,
        topic: Topic,
        producer: str,
        stored: Callable[[Any], None],
        lost: Callable[[Any], None],
        *,
        batch_max: int = 512,
        queued_max: int | None = None,
    ) -> None:
        self.problem: str | None = None
        """Why nothing can be stored; None: it can."""
        self.unstored = 0
        """Records that were given up at the end."""
        self.refused = 0
        """Records that were not taken, for too many were queued."""
        self.topic = topic
        self._producer = producer
        self._stored = stored
        self._lost = lost
        self._batch_max = batch_max
        self._queued_max = queued_max
        self._began = topic.log.end
        self._next = topic.last_sequence_id(producer) + 1
        self._queue: deque[tuple[bytes | None, Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="onefold-upstream")
        self._worker: asyncio.Task[None] | None = None
        self._enough = asyncio.Event()

    def put(self, record: bytes | None, item: Any = None) -> None:
        """Store a record; then ``stored`` is called with the item, or ``lost`` if it had to be given up at the end.

        None: there is nothing to store, only to wait for all before it. Beyond ``queued_max`` nothing is taken."""
        if self._queued_max is not None and len(self._queue) >= self._queued_max:
            self.refused += 1
            return
        self._queue.append((record, item))
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())

    def __len__(self) -> int:
        return len(self._queue)

    async def close(self, seconds: float) -> None:
        """Store what is queued, for so long at most."""
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=seconds)
        self._enough.set()
        while self._worker is not None:
            await asyncio.wait([self._worker])
        self._pool.shutdown(wait=False)

    def tail(self, since_ms: int, least: int = 0) -> Iterator[LogRecord]:
        """The messages that earlier runs have stored since, and some before; at least so many of the last records.

        Oldest first. Blocks."""
        records = self.topic.log
        start = self._began
        if records.start >= start:  # all of it is gone by retention
            return
        while start > records.start:
            start = max(records.start, start - TAIL_STEP)
            first = next(iter(records.read(start, start + 1)))
            if first.time_ms < since_ms and self._began - start >= least:
                break
        yield from (record for record in records.read(start, self._began) if record.kind == MESSAGE_KIND)

    async def _work(self) -> None:
        try:
            while self._queue:
                if len(self._queue) < self._batch_max and not self._enough.is_set():
                    await asyncio.sleep(LINGER_S)
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))]
                records = [record for record, _ in batch if record is not None]
                tell = self._stored
                if records and not await self._store(records):
                    self.unstored += len(records)
                    log.error("%d records were not stored: %s", len(records), self.problem)
                    tell = self._lost
                for _, item in batch:
                    if item is not None:
                        self._tell(tell, item)
        finally:
            self._worker = None

    @staticmethod
    def _tell(tell: Callable[[Any], None], item: Any) -> None:
        """Whatever becomes of one, the others are told, too."""
        try:
            tell(item)
        except Exception as error:
            log.error("upstream: unexpected: %s: %s", type(error).__name__, error)

    async def _store(self, records: list[bytes]) -> bool:
        messages = list(zip(range(self._next, self._next + len(records)), records, strict=True))
        wait = RETRY_S[0]
        while True:
            try:
                await self._loop.run_in_executor(self._pool, self._publish, messages)
            except Exception as error:  # of whatever kind: it is not stored, and must be
                if self.problem is None:
                    log.error("nothing can be stored: %s: %s", type(error).__name__, error)
                self.problem = str(error) or type(error).__name__
                if self._enough.is_set():
                    return False
                await asyncio.sleep(wait)
                wait = min(2 * wait, RETRY_S[1])
                continue
            if self.problem is not None:
                log.error("records are stored again")
                self.problem = None
            self._next += len(records)
            return True

    def _publish(self, messages: list[tuple[int, bytes]]) -> None:
        for receipt in self.topic.publish(self._producer, messages):
            # A repeat is what an earlier try of the same batch stored.
            if receipt.verdict not in (Verdict.FIRST, Verdict.REPEAT):
                raise StoreFailed(f"a record was answered {receipt.verdict} {receipt.reason}")


UPLINKS: Final = "uplinks"
"""The topic of what goes upstream."""
RECEPTIONS: Final = "receptions"
"""The topic of everything, where that is kept."""


class FrameDelivery:
    """The books, the log and the downlinks of a server.

    ``done`` is called when nothing is left to do for an item, with False if its record could not be stored.
    """

    def __init__(
        self, settings: GatewaySettings, topics: Topics, clock: Clock, done: Callable[[FrameInFlight, bool], None]
    ) -> None:
        limits = settings.limits
        self.tally = Tally()
        self.statuses: Counter[tuple[Answer, str]] = Counter()
        """As the tally, by status too; empty: it was refused before it had one."""
        self.latency = Latency()
        """From the arrival of a reception to its answer."""
        self.downlinks = Downlinks(
            settings.region, settings.rx_delay_s, clock() << 10, lost_ms=round(1_000 * limits.lost_s)
        )
        self._server = settings.name
        self._grace_s = limits.grace_s
        self._clock = clock
        self._done = done
        self._uplinks = Upstream(
            topics.topic(UPLINKS), settings.name, self._stored, self._lost, batch_max=limits.batch_max
        )
        self._all: Upstream | None = None
        if settings.keep_all:
            self._all = Upstream(
                topics.topic(RECEPTIONS), settings.name, _nothing, _nothing, batch_max=4 * limits.batch_max,
                queued_max=limits.in_hand_max,
            )  # fmt: skip

    def record(self, item: FrameInFlight, judged: Judged) -> bytes:
        """What is stored of it."""
        device = None if item.session is None else item.session.entry.device.dev_eui
        return record(self._server, item.reception, device, judged)

    def restore(self, record: bytes, then: Callable[[], None]) -> None:
        """Store what an earlier run had won; it is in that run's books."""
        self._uplinks.put(record, then)

    def decided(self, item: FrameInFlight, judged: Judged) -> None:
        """This is final."""
        item.judged = judged
        item.decided = True
        self._book(judged.answer, judged.status if item.session is not None else "")
        self.latency.note(perf_counter() - item.at)
        up, down, record = judged.route.up, judged.route.down, None
        if up or self._all is not None:
            won = item.claimed is not None and item.claimed.won
            record = item.record if won and item.record is not None else self.record(item, judged)
            if self._all is not None:
                self._all.put(record)
        if up or down:
            self._uplinks.put(record if up else None, item)
        else:
            self._done(item, True)

    def give_up(self, item: FrameInFlight) -> None:
        """It cannot be decided, by an error of ours: it goes nowhere. What it won, the next start will find."""
        item.decided = True
        self._book(COORDINATOR_DOWN, "")

    def refused(self, station: str, answer: Answer, told: str) -> None:
        """Something came in that is no reception."""
        self._book(answer, "")
        if self._all is not None:
            self._all.put(refused(self._server, station, self._clock(), *answer, told))

    def _book(self, answer: Answer, status: str) -> None:
        self.tally.judge(answer)
        self.statuses[answer, status] += 1

    def _stored(self, item: FrameInFlight | Callable[[], None]) -> None:
        if not isinstance(item, FrameInFlight):
            item()
            return
        judged, claimed, session = item.judged, item.claimed, item.session
        try:
            if judged and judged.route.down and claimed is not None and claimed.fcnt_down and session is not None:
                self.downlinks.acknowledge(item.reception, session.entry, claimed.fcnt_down, self._clock())
        finally:
            self._done(item, True)

    def _lost(self, item: FrameInFlight | Callable[[], None]) -> None:
        if isinstance(item, FrameInFlight):
            self._done(item, False)

    def tail(self, since_ms: int, least: int = 0) -> Iterator[LogRecord]:
        """What went upstream in earlier runs since, and some before; at least so many of the last records. Blocks."""
        return self._uplinks.tail(since_ms, least)

    def problems(self) -> dict[str, str]:
        """What cannot be stored, and why."""
        found = {UPLINKS: self._uplinks.problem, RECEPTIONS: None if self._all is None else self._all.problem}
        return {name: problem for name, problem in found.items() if problem is not None}

    @property
    def unstored(self) -> int:
        """Records that were given up at the end."""
        return self._uplinks.unstored + (0 if self._all is None else self._all.unstored)

    @property
    def unkept(self) -> int:
        """Receptions that were to be kept, but too many waited for the disk: what goes upstream comes first."""
        return 0 if self._all is None else self._all.refused

    def tend(self) -> None:
        """What the topics owe by the clock alone. Blocks."""
        for upstream in (self._uplinks, self._all):
            if upstream is not None:
                upstream.topic.tend()

    async def close(self) -> None:
        """Store what is queued; the topics are their owner's."""
        for upstream in (self._uplinks, self._all):
            if upstream is not None:
                await upstream.close(self._grace_s)


def _nothing(item: object) -> None:
    """Nobody waits for what is stored of everything."""


MARGIN_MS: Final = 600_000
"""A clock that was set may be off by so much."""
LEAST: Final = 2 * FINISHED_MAX
"""Records that are looked at in any case: what was not finished yet, with as much again that had no claim."""
KEY: Final = b'"key":"'
KEY_DIGITS: Final = 64


class Recovery:
    """The bridge between two runs of one server. ``ticks`` is the clock of level 1, which nobody sets."""

    def __init__(self, sightings: Sightings, delivery: FrameDelivery, clock: Clock, ticks: Clock) -> None:
        self.recovered = 0
        """Records that were won and had not been stored."""
        self.unreadable = 0
        """Those that cannot be read, and are still where they were."""
        self._sightings = sightings
        self._delivery = delivery
        self._clock = clock
        self._ticks = ticks

    def remember(self, since_ms: int) -> None:
        """A frame that was stored since then and comes again is no new one. Blocks."""
        for stored in self._delivery.tail(since_ms):
            heard = _Heard.of(stored.payload)
            if heard is not None and stored.time_ms >= since_ms:
                self._see(heard)

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[[ClaimDesk], None]:
        """Which of these are stored, and which are not? Blocks; what comes of it is for the event loop."""
        if not unfinished:
            return _nothing_left
        left = [(each, heard) for each in unfinished if (heard := _Heard.of(each.body.encode())) is not None]
        stored = self._stored([heard for _, heard in left])
        missing: list[tuple[Unfinished, _Heard]] = []
        for each, heard in left:  # a station may hear one frame twice in a millisecond: which of them is stored?
            body = each.body.encode()
            if body in stored.get(heard, ()):
                stored[heard].remove(body)
            else:
                missing.append((each, heard))
        missing = [(each, heard) for each, heard in missing if not (stored.get(heard) and stored[heard].pop())]
        return partial(self._recover, unfinished, left, {each.number for each, _ in missing})

    def _stored(self, wanted: Sequence["_Heard"]) -> dict["_Heard", list[bytes]]:
        """The records of these receptions."""
        found: dict[_Heard, list[bytes]] = {heard: [] for heard in wanted}
        if not found:
            return found
        keys = {heard.key.encode() for heard in found}
        for record in self._delivery.tail(min(heard.received_ms for heard in found) - MARGIN_MS, LEAST):
            at = record.payload.find(KEY) + len(KEY)
            if record.payload[at : at + KEY_DIGITS] in keys:  # all others need not be parsed
                heard = _Heard.of(record.payload)
                if heard in found:
                    found[heard].append(record.payload)
        return found

    def _recover(
        self, unfinished: Sequence[Unfinished], left: Sequence[tuple[Unfinished, "_Heard"]], missing: set[int],
        desk: ClaimDesk,
    ) -> None:  # fmt: skip
        """Store what was won and is not in the log; then the store need not keep it."""
        bad = {each.number for each in unfinished} - {each.number for each, _ in left}
        if bad:
            self.unreadable += len(bad)
            log.error("store %s: %d messages of an earlier run cannot be read, and stay there; the first is number %d",
                      desk.name, len(bad), min(bad))  # fmt: skip
        for each, heard in left:
            self._see(heard)
            if each.number in missing:
                self.recovered += 1
                self._delivery.restore(each.body.encode(), partial(desk.finish, each.number))
            else:
                desk.finish(each.number)

    def _see(self, heard: "_Heard") -> None:
        """By our clock it was so long ago; not in the future, whatever that clock said then."""
        ago_ms = max(0, self._clock() - heard.received_ms)
        self._sightings.see(bytes.fromhex(heard.key), heard.station, self._ticks() - ago_ms)


class _Heard(NamedTuple):
    """One reception; what became of it may differ between two records of it."""

    key: str
    station: str
    received_ms: int

    @classmethod
    def of(cls, record: bytes) -> "_Heard | None":
        """None: it is nothing that we have written."""
        try:
            row = json.loads(record)
            if row["v"] != FORMAT:
                return None
            heard = cls(row["key"], row["station"], row["received_ms"])
            good = len(bytes.fromhex(heard.key)) == KEY_DIGITS // 2 and type(heard.received_ms) is int
            return heard if good and isinstance(heard.station, str) else None
        except (ValueError, TypeError, LookupError, RecursionError):
            return None


def _nothing_left(desk: ClaimDesk) -> None:
    """There was nothing left."""


ASK_S: Final = 10.0
"""A device whose frames do not fit its counter is looked up again, this often at most."""
PAIRS_MAX: Final = 10_000
"""Stations and addresses between which codes failed of late; beyond, the oldest are forgotten. Some 200 bytes each."""


class MicBudget:
    """How many codes may fail between one station and one address.

    >>> budget = MicBudget(failures_max=3, window_ms=1_000)
    >>> budget.spend("s", 1, 4, 0)
    >>> budget.spent("s", 1, 999), budget.spent("t", 1, 999), budget.spent("s", 1, 1_000)
    (True, False, False)
    """

    def __init__(self, *, failures_max: int, window_ms: int, pairs_max: int = PAIRS_MAX) -> None:
        self._failures_max, self._window_ms, self._pairs_max = failures_max, window_ms, pairs_max
        self._windows: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()  # since when, how many

    def spend(self, station: str, dev_addr: int, codes: int, now_ms: int) -> None:
        """So many codes were tried for nothing."""
        pair = station, dev_addr
        since_ms, failures = self._windows.get(pair, (now_ms, 0))
        if now_ms - since_ms >= self._window_ms:
            since_ms, failures = now_ms, 0
            del self._windows[pair]
        self._windows[pair] = since_ms, failures + codes  # in the order in which their windows begin
        if len(self._windows) > self._pairs_max:
            self._windows.popitem(last=False)

    def spent(self, station: str, dev_addr: int, now_ms: int) -> bool:
        """Were there too many within the window?"""
        since_ms, failures = self._windows.get((station, dev_addr), (0, 0))
        return failures > self._failures_max and now_ms - since_ms < self._window_ms


class FrameJudge:
    """Judges receptions, and hands on what is decided. Lives on one event loop; `open` gives it its desks.

    Whatever goes wrong with one reception, ``failed`` is told and the others go on.
    """

    def __init__(
        self, judge: NetworkServer, sessions: Sessions, delivery: FrameDelivery, recovery: Recovery,
        budget: MicBudget, *,
        decided: Callable[[FrameInFlight, Judged], None], failed: Callable[[FrameInFlight, Exception], None],
    ) -> None:  # fmt: skip
        self.sessions = sessions
        self.desks: tuple[ClaimDesk, ...] = ()
        self._judge = judge
        self._server = judge.name
        self._delivery = delivery
        self._recovery = recovery
        self._budget = budget
        self._copies: dict[
            str, list[tuple[FrameInFlight, Judged]]
        ] = {}  # of frames whose claim is under way, by their keys
        self._decided = decided
        self._failed = failed

    def open(self, local: ClaimDesk, shared: ClaimDesk | None) -> None:
        """Claim at these desks; without a shared one, all at the local one."""
        self._local, self._shared = local, shared or local
        self.desks = (local,) if shared is None else (local, shared)

    def take(self, item: FrameInFlight) -> None:
        """A reception has come."""
        try:
            frame = item.reception.frame
            if isinstance(frame, JoinRequest):
                self._join(item, frame)
            else:
                self._data(item, frame)
        except Exception as error:
            self._failed(item, error)

    # --- whose is it ------------------------------------------------------------------------------------------------

    def _data(self, item: FrameInFlight, frame: DataUp) -> None:
        if self._budget.spent(item.reception.station, frame.dev_addr, item.ticks_ms):
            self._refuse(item, MIC_BUDGET)
            return
        sessions = self.sessions.at(frame.dev_addr)
        ours = [session for session in sessions if session.entry.device.gateway in (None, self._server)]
        unknown = [session for session in ours if session.asking is not None or not session.loaded]
        if unknown:
            self._ask(unknown, item)
        elif sessions and not ours:  # their counters are none of our business, so their codes cannot be checked
            self._refuse(item, OTHER_GATEWAY)
        else:
            self._find(item, frame, sessions)

    def _find(
        self, item: FrameInFlight, frame: DataUp, sessions: Sequence[DeviceSession], *, down: bool = False
    ) -> None:
        """Whose frame is it, and under which counter? With ``down`` the store could not be asked."""
        if not sessions:
            self._refuse(item, UNKNOWN_DEVICE)
            return
        place, fcnt, tried = find_owner(
            ((session.entry.nwk_skey or b"", session.heard.fcnt_up) for session in sessions), frame
        )
        if fcnt is not None:
            self._uplink(item, frame, sessions[place], fcnt, down=down)
            return
        self._budget.spend(item.reception.station, frame.dev_addr, tried, item.ticks_ms)
        if down:
            self._refuse(item, COORDINATOR_DOWN)
            return
        homes = {desk for desk in self.desks if desk not in item.retried}
        due = [each for each in sessions if each.loaded and self._home(each) in homes and _due(each)]
        if due:  # their counters may have gone on without this server
            item.retried.add(self._home(due[0]))
            self._ask(due, item)
        else:
            self._refuse(item, BAD_MIC)

    def _uplink(self, item: FrameInFlight, frame: DataUp, session: DeviceSession, fcnt: int, *, down: bool) -> None:
        entry, reception = session.entry, item.reception
        item.session = session
        judged = item.judged = self._judge.uplink(
            entry.device, frame, fcnt, session.heard, reception.station, item.ticks_ms
        )
        claim, answer = judged.claim, judged.answer
        # Another server may have counted on; or heard that it began again.
        behind = answer is COUNTER_GAP or (answer is OLD_COUNTER and entry.device.relaxed)
        if claim is not None and not down:
            if claim.restarted_after is not None:
                session.fcnt_down = 0  # the device counts anew what it hears, too
            claim = claim._replace(device=entry.session, fcnt_down=session.fcnt_down)
            self._claim(item, session, judged, claim)
            self._copies.setdefault(claim.frame, [])  # its answer comes later, and ends the wait
        elif claim is not None:
            self._decided(item, self._judge.settle(judged, entry.device.strategy, None))
        elif behind and down:
            self._refuse(item, COORDINATOR_DOWN)
        elif behind and _due(session):
            self._ask([session], item)
        elif judged.route.up and (copies := self._copies.get(frame.key.hex())) is not None:
            copies.append((item, judged))  # nobody upstream is to hear of a copy before the frame itself
        else:
            self._decided(item, judged)

    def _join(self, item: FrameInFlight, request: JoinRequest) -> None:
        entry = self.sessions.registry.by_eui.get(request.dev_eui)
        if entry is None or entry.app_key is None:
            self._refuse(item, UNKNOWN_DEVICE)
        elif join_mic(entry.app_key, request.raw) != request.mic:
            self._refuse(item, BAD_MIC)
        elif entry.device.gateway not in (None, self._server):
            self._refuse(item, OTHER_GATEWAY)
        else:
            session = item.session = self.sessions.of(entry)
            judged = item.judged = self._judge.join(request, item.reception.station, item.ticks_ms)
            if judged.claim is None:
                self._decided(item, judged)
            else:
                self._claim(item, session, judged, judged.claim)

    def _claim(self, item: FrameInFlight, session: DeviceSession, judged: Judged, claim: Claim) -> None:
        """With what goes upstream if it is won: the store keeps it until it is there, whatever becomes of us."""
        if judged.route.up:
            item.record = self._delivery.record(item, judged)
            claim = claim._replace(body=item.record.decode())
        desk = item.desk = self._home(session)
        session.claims += 1
        desk.claim(claim, item)

    def _home(self, session: DeviceSession) -> ClaimDesk:
        return self._shared if session.entry.device.gateway is None else self._local

    def _ask(self, sessions: Sequence[DeviceSession], item: FrameInFlight) -> None:
        """Look these up: of those that the same store is to be asked for, all with one question.

        The answer brings the item back here if there is more to ask. The store that is a device's own comes last;
        another is not waited for."""
        question = next((session.asking for session in sessions if session.asking is not None), None)
        if question is None:
            desk, brief = self._next(sessions[0])
            same = [session for session in sessions if self._next(session) == (desk, brief)]
            question = Question(desk, tuple(session.entry.session for session in same), brief)
            for session in same:
                session.asking = question
        question.desk.ask(question.devices, item, brief=question.brief)

    def _next(self, session: DeviceSession) -> tuple[ClaimDesk, bool]:
        """Who is to be asked for it, and whether that is not its own store."""
        home = self._home(session)
        if not session.loaded:
            for desk in self.desks:
                if desk is not home and desk.name not in session.asked and desk.problem is None:
                    return desk, True
        return home, False

    def _refuse(self, item: FrameInFlight, answer: Answer) -> None:
        """It is nobody's that we know, or cannot be known to be: nothing of it goes anywhere."""
        fcnt = item.reception.frame.fcnt if isinstance(item.reception.frame, DataUp) else 0
        self._decided(item, Judged(answer, Status.NOT_DUPLICATE, NOWHERE, fcnt, None))

    # --- what the desks tell ----------------------------------------------------------------------------------------

    def known(
        self, desk: ClaimDesk, devices: Sequence[str], items: Sequence[FrameInFlight],
        counters: Sequence[Counters | None], *, down: bool,
    ) -> None:  # fmt: skip
        """Devices were looked up; who waited for that is judged now."""
        home, now_s = True, monotonic()
        low: dict[DeviceSession, list[int]] = {}
        for item in items:
            if item.judged is not None and item.session is not None:
                low.setdefault(item.session, []).append(item.judged.fcnt)
        for device, known in zip(devices, counters, strict=True):
            session = self.sessions.named(device)
            if session is None:
                continue
            home = desk is self._home(session)
            session.asking = None
            session.asked.add(desk.name)
            if home:
                session.asked_at = now_s
                self._begin_again(session, low.get(session, ()), known)
            if not down:
                session.learn(known, self._server, home=home)
                session.loaded = session.loaded or home
        for item in items:
            try:
                frame = item.reception.frame
                assert isinstance(frame, DataUp)
                if down and home:
                    self._find(item, frame, self.sessions.at(frame.dev_addr), down=True)
                else:
                    self._data(item, frame)
            except Exception as error:
                self._failed(item, error)

    def _begin_again(self, session: DeviceSession, low: Sequence[int], counters: Counters | None) -> None:
        """Has another server heard that it began again? Then a frame that was too low for us goes on from there."""
        last = session.heard.fcnt_up
        if counters is None or last is None or not session.entry.device.relaxed or session.claims:
            return
        above = expected(counters, self._server)
        if counters.server != self._server and counters.fcnt_up < last and any(above < fcnt <= last for fcnt in low):
            session.begin_again(counters)

    def claimed(self, item: FrameInFlight, claim: Claim, claimed: Claimed | None) -> None:
        """A claim was made, or nobody knows."""
        try:
            session, judged = item.session, item.judged
            assert session is not None
            assert judged is not None
            session.claims -= 1
            item.claim, item.claimed = claim, claimed
            if claimed is not None and claimed.won:
                session.fcnt_down = max(session.fcnt_down, claimed.fcnt_down)
            self._decided(item, self._judge.settle(judged, session.entry.device.strategy, claimed))
        except Exception as error:
            self._failed(item, error)
        for copy, judged in self._copies.pop(claim.frame, ()):
            try:
                self._decided(copy, judged)
            except Exception as error:
                self._failed(copy, error)

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[[ClaimDesk], None]:
        """An earlier run left something behind. Blocks."""
        return self._recovery.sort_out(unfinished)


def _due(session: DeviceSession) -> bool:
    return monotonic() - session.asked_at >= ASK_S


NUMBER_BITS: Final = 10
"""Claims are numbered from the time of the start on: a million a second would be needed to run into the next start."""


def ticks_ms() -> int:
    """A clock that nobody sets, in milliseconds: what level 1 goes by, or one wrong hour would stop its expiry."""
    return monotonic_ns() // 1_000_000


class GatewayService:
    """Takes receptions of any protocol. Lives on one event loop.

    ``shared`` keeps the counters of devices that any server may serve, ``local`` those that only this one may.
    """

    def __init__(
        self, settings: GatewaySettings, registry: Registry, topics: Topics, *, shared: CounterStore | None,
        local: CounterStore, clock: Clock = wall_ms, ticks: Clock = ticks_ms,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.region = settings.region
        self.sessions = Sessions(registry)
        self.in_hand = 0
        """Receptions that were taken and are not done."""
        self.failed = 0
        """Those that ended in an error of ours."""
        self.closing = False
        self.delivery = FrameDelivery(settings, topics, clock, self._done)
        self._undecided = 0
        self._waiting = 0  # receptions that came and for which there was no room
        self._clock = clock
        self._ticks = ticks
        self._changed = asyncio.Event()
        self._sightings = Sightings(expiry_ms=settings.expiry_ms, sliding=settings.sliding)
        self._recovery = Recovery(self._sightings, self.delivery, clock, ticks)
        self._recovery.remember(clock() - settings.expiry_ms)
        stations = Stations(self._sightings, echo_ms=settings.echo_ms)
        judge = NetworkServer(settings.name, stations, strict_adr=settings.strict_adr)
        limits = settings.limits
        budget = MicBudget(failures_max=limits.mic_failures_max, window_ms=round(1_000 * limits.mic_window_s))
        self._judging = FrameJudge(
            judge, self.sessions, self.delivery, self._recovery, budget, decided=self._decided, failed=self._failed
        )
        self._local = self._desk("local", local, "park")
        self._shared = self._local if shared is None else self._desk("shared", shared, settings.when_down)
        self._desks = (self._local,) if shared is None else (self._local, self._shared)
        self._judging.open(self._local, None if shared is None else self._shared)

    def _desk(self, name: str, store: CounterStore, when_down: WhenDown) -> ClaimDesk:
        limits = self.settings.limits
        return ClaimDesk(
            name, store, self.settings.name, self._judging, number=self._clock() << NUMBER_BITS, when_down=when_down,
            batch_max=limits.batch_max, parked_max=limits.parked_max,
        )  # fmt: skip

    @property
    def tally(self) -> Tally:
        """The books: all that came in, and all that was decided."""
        return self.delivery.tally

    # --- what links call ------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Something came in, and is to be heard or refused: the one side of the books, `delivery` keeps the other."""
        self.tally.arrive()

    def hear(self, reception: Reception) -> None:
        """Take a reception, at once; `Busy`: too much is in hand, and it was not taken."""
        if self.in_hand >= self.settings.limits.in_hand_max:
            raise Busy(f"{self.in_hand:,} receptions are in hand, the limit", in_hand=self.in_hand)
        if self.closing:
            raise Busy("the server is shutting down")
        self.in_hand += 1
        self._undecided += 1
        self._judging.take(FrameInFlight(reception, self._ticks()))

    def refuse(self, station: str, answer: Answer, told: str) -> None:
        """Something came from this station that is no reception: it is counted, with what was wrong."""
        self.delivery.refused(station, answer, told)

    def transmitted(self, number: int) -> None:
        """A station says that this downlink was on the air."""
        self.delivery.downlinks.was_transmitted(number)

    async def room(self) -> None:
        """Wait until a reception can be taken; for ever, if the server is about to end."""
        self._waiting += 1
        try:
            while self.closing or self.in_hand >= self.settings.limits.in_hand_max:
                await self._change()
        finally:
            self._waiting -= 1

    def use(self, registry: Registry) -> None:
        """Judge by another registry from now on."""
        self.sessions.use(registry)

    # --- deciding -------------------------------------------------------------------------------------------------

    def _decided(self, item: FrameInFlight, judged: Judged) -> None:
        self._undecided -= 1
        self.delivery.decided(item, judged)

    def _failed(self, item: FrameInFlight, error: Exception) -> None:
        """Something that nobody has thought of: this reception ends here, and is in the books."""
        self.failed += 1
        log.error("a reception of station %s: unexpected: %s: %s", item.reception.station, type(error).__name__, error)
        if not item.decided:
            self._undecided -= 1
            self.delivery.give_up(item)
        self._done(item, False)

    def _done(self, item: FrameInFlight, stored: bool) -> None:
        if item.done:
            return
        item.done = True
        if stored and item.owes and item.desk is not None:
            item.desk.finish(item.owes)
        self.in_hand -= 1
        self._changed.set()

    # --- watching and ending ----------------------------------------------------------------------------------------

    def figures(self) -> dict[str, int]:
        """What there is to watch, beside the tally, the statuses, the latency and the downlinks."""
        self.delivery.downlinks.expire(self._clock())
        return {
            "in_hand": self.in_hand,
            "in_flight": self._undecided,
            "claiming": sum(desk.waiting for desk in self._desks),
            "parked": sum(desk.parked for desk in self._desks),
            "devices": len(self.sessions.registry),
            "sessions": len(self.sessions),
            "sightings": len(self._sightings),
            "evicted": self._sightings.evicted,
            "unstored": self.delivery.unstored,
            "unkept": self.delivery.unkept,
            "recovered": self._recovery.recovered,
            "unreadable": self._recovery.unreadable,
            "failed": self.failed,
            "arrived": self.tally.received,
            "unaccounted": self.unaccounted,
        }

    @property
    def unaccounted(self) -> int:
        """Receptions that came in and have no verdict though nothing is under way; below 0: they have one too many."""
        return self.tally.pending if not (self.in_hand or self._waiting) else 0

    def problems(self) -> dict[str, str]:
        """What is wrong; empty: nothing is known to be."""
        found = {desk.name: desk.problem for desk in self._desks if desk.problem is not None}
        if self.unaccounted:
            found["books"] = str(self.tally)
        return found | self.delivery.problems()

    async def idle(self) -> None:
        """Wait until nothing is in hand."""
        while self.in_hand:
            await self._change()

    async def drain(self, seconds: float) -> None:
        """Decide and store what is in hand and send its acknowledgements; what cannot be decided in time is unsure."""
        self.closing = True
        try:
            async with asyncio.timeout(seconds):
                await self.idle()
        except TimeoutError:
            for desk in self._desks:
                desk.give_up()

    async def close(self) -> None:
        """Finish, and let go of the stores; the topics are their owner's."""
        self.closing = True
        for desk in self._desks:
            await desk.settle()
        await self.delivery.close()
        for desk in self._desks:
            await desk.close()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
