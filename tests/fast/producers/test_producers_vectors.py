"""The published cases, played against the engine by a small model of a broker."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onefold.producers import Cadence, Kind, SequenceEntry, Sequences, SequencesSnapshot, recover

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "producers.json").read_text(encoding="utf-8"))["broker"]
WORDS = {
    "NotDup": ("FIRST", None),
    "Dup": ("REPEAT", "behind_highest"),
    "Unknown": ("UNSURE", "in_flight"),
    "Fenced": ("UNSURE", "fenced"),
}
MINUTE_MS = 60_000

# Where onefold differs on purpose, and why. Everything else in these cases must hold as written.
LAST_ID_IS_PERSISTED = {
    # An application that goes on after a pushed id would lose that write when it fails.
    "edge_last_sequence_id_is_pushed_not_persisted": {1: 0},
    "inactive_producer_remove": {1: -1},
}
PURGED = {
    # Recovered producers that stay away are purged like all others: the regression is not copied.
    "edge_recovered_producer_never_purged": {"pushed": {}, "persisted": {}},
    # What is pending is not purged: its write may still succeed, and then it must be known.
    "inactive_producer_remove": {"pushed": {"test1": 2, "test2": 2, "test3": 2}},
}
NO_POSITIONS = {
    # There are no keys for replication positions: the producer's own sequence is replayed, so the message that the
    # published broker stores twice is a repeat.
    "edge_replication_state_not_replayed"
}


@dataclass
class Broker:
    config: dict
    now_ms: int = 0
    log: list = field(default_factory=list)  # every record, our own included
    stored: list = field(default_factory=list)  # (producer, sequence) of the messages
    written: dict = field(default_factory=dict)  # id -> what is on its way
    snapshot: SequencesSnapshot | None = None

    def __post_init__(self):
        self.settings = {"producers_max": self.config["max_producers"]}
        self.sequences = Sequences(**self.settings)
        self.cadence = Cadence(self.config["entries_interval"], 2**62)

    def append(self, entry):
        self.log.append(entry)
        return entry

    def publish(self, producer, seq, highest=None, chunk=None, **_):
        if chunk is not None and chunk[0] + 1 < chunk[1]:  # only the last chunk is judged
            return None
        return self.sequences.push(producer, seq, high=highest)

    def persisted(self, op):
        producer, seq, judged = op["producer"], op["seq"], op["judged"]
        kind = Kind.MESSAGE if judged else Kind.CONFLICT  # a chunk before the last is on record, and changes nothing
        self.append(SequenceEntry(kind, producer, seq, time_ms=self.now_ms))
        self.stored.append([producer, seq])
        if judged:
            self.sequences.persist(producer, seq, time_ms=self.now_ms)
        if self.sequences.switched_on:
            self.cadence.note(1, self.now_ms)
        if self.cadence.due(self.now_ms):
            self.take_snapshot()

    def take_snapshot(self):
        self.snapshot = SequencesSnapshot(len(self.log), self.sequences.snapshot())
        self.cadence.done(self.now_ms)

    def crash_and_recover(self):
        self.written.clear()
        tail = list(enumerate(self.log))[self.snapshot.position if self.snapshot else 0 :]
        recovered = recover(self.snapshot, tail, **self.settings)
        assert recovered.sequences == self.sequences
        self.sequences = recovered.sequences
        self.cadence = Cadence(self.config["entries_interval"], 2**62)
        self.cadence.note(recovered.since_snapshot, self.now_ms)

    def purge(self):
        before = self.now_ms - self.config["inactivity_minutes"] * MINUTE_MS
        self.sequences.apply(self.append(SequenceEntry(Kind.PURGE, sequence=before)))

    def switch(self, on):
        self.sequences.apply(self.append(SequenceEntry(Kind.SWITCH, sequence=on)))
        if on:
            self.take_snapshot()
        else:
            self.snapshot = None


def play(case):
    broker = Broker(case["config"])
    for place, op in enumerate(case["ops"]):
        kind = op["op"]
        if kind == "publish":
            answer = broker.publish(**{key: value for key, value in op.items() if key not in ("op", "id")})
            verdict, reason = WORDS[op["expect"]]
            if case["id"] in NO_POSITIONS and place == 6:
                assert answer == ("REPEAT", "behind_highest")
                continue
            if answer is not None:
                assert answer.verdict == verdict, (place, op, answer)
                assert reason is None or answer.reason == reason, (place, op, answer)
            if verdict == "FIRST":
                broker.written[op["id"]] = {**op, "judged": answer is not None}
        elif kind == "persisted":
            if op["id"] in broker.written:
                broker.persisted(broker.written.pop(op["id"]))
            else:
                assert case["id"] in NO_POSITIONS
        elif kind == "failed":
            failed = broker.written.pop(op["id"])
            broker.sequences.fail(failed["producer"], failed["seq"])
        elif kind == "connect":
            yield "last", place, broker.sequences.last_sequence_id(op["producer"]), op["expect_last_sequence_id"]
        elif kind == "check":
            yield "check", place, broker, op
        elif kind == "advance_minutes":
            broker.now_ms += int(op["minutes"] * MINUTE_MS)
        elif kind in ("enable", "disable"):
            broker.switch(kind == "enable")
        elif kind == "snapshot":
            broker.take_snapshot()
        elif kind != "disconnect":
            getattr(broker, kind)()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_published_case_holds(case):
    name = case["id"]
    connects = 0
    last_check = max((i for i, op in enumerate(case["ops"]) if op["op"] == "check"), default=-1)
    for kind, place, found, wanted in play(case):
        if kind == "last":
            connects += 1
            assert found == LAST_ID_IS_PERSISTED.get(name, {}).get(connects, wanted), place
        else:
            check(name, found, wanted | (PURGED.get(name, {}) if place == last_check else {}))


def check(name, broker, op):
    log = op["log"][:2] if name in NO_POSITIONS else op["log"]
    assert broker.stored == log
    for view, found in (("pushed", broker.sequences.pushed), ("persisted", broker.sequences.persisted)):
        assert found == {key: value for key, value in op[view].items() if not key.endswith(("_LID", "_EID"))}
    assert set(broker.sequences.pushed) >= set(broker.sequences.persisted)
    if op["snapshot"] is None:  # off: there is none, and none is due
        assert broker.snapshot is None
        return
    before = broker.log[: broker.snapshot.position] if broker.snapshot else []
    messages = [entry for entry in before if entry.kind not in (Kind.PURGE, Kind.SWITCH)]
    assert len(messages) - 1 == op["snapshot"]["mark_delete_index"]
    if broker.snapshot:
        if name in NO_POSITIONS:
            assert Sequences.restore(broker.snapshot.state).persisted == {"pulsar.repl.r1-->r2": 0}
        else:
            assert Sequences.restore(broker.snapshot.state).persisted == op["snapshot"]["map"]
    if name not in NO_POSITIONS:
        assert broker.cadence.count == op["entries_since_snapshot"]


def test_there_are_cases_and_every_difference_names_one():
    names = {case["id"] for case in CASES}
    assert len(CASES) >= 11
    assert names >= {*LAST_ID_IS_PERSISTED, *PURGED, *NO_POSITIONS}
