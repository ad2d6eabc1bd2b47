"""Traffic is right if its truth is what an honest judge finds by itself."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold import ChainDetector
from onefold.chains.rules import just_above
from onefold.errors import Misuse
from onefold.testing.faults import NONE, Faults
from onefold.testing.traffic import KEY, KINDS, Made, Traffic, TrafficPart, make, schema, write
from tests.lib.examples import examples

JUMP_MAX_MS = 900_000

rates = st.sampled_from([0.0, 0.01, 0.1, 0.5])
faults = st.builds(
    Faults,
    copies=rates | st.just(1.0),
    copy_delay_ms=st.sampled_from([0, 100, 60_000]),
    reorder=rates | st.just(1.0),
    reorder_ms=st.sampled_from([0, 100, 60_000]),
    losses=rates | st.just(0.9),
    late_heads=rates | st.just(1.0),
    no_previous=rates | st.just(1.0),
    poisoned=rates,
    malformed=st.sampled_from([0.0, 0.05, 0.2]),
)
traffics = st.builds(
    Traffic,
    seed=st.integers(0, 2**63 - 1),
    rows=st.integers(50, 400),
    chains=st.integers(1, 20),
    skew=st.sampled_from([0.0, 0.7, 2.0]),
    ties=st.sampled_from([0.0, 0.3, 0.9]),
    interval_ms=st.sampled_from([1, 1_000]),
    text_numbers=st.booleans(),
    faults=faults,
)
EVERYTHING = Traffic(
    rows=3_000, chains=40, skew=0.5, faults=Faults(losses=0.05, no_previous=0.2, poisoned=0.5, malformed=0.1)
)


def rows_of(made: Made) -> list[dict[str, Any]]:
    """The messages as they arrived, numbers as ints wherever they are whole numbers."""
    rows: list[dict[str, Any]] = made.messages.to_pylist()
    for row in rows:
        for name, value in row.items():
            if name.endswith(("timestamp", "sequence")) and isinstance(value, str) and re.fullmatch(r"-?\d+", value):
                row[name] = int(value)
    return rows


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def number(row: dict[str, Any], prefix: str = "") -> tuple[Any, Any] | None:
    pair = row[f"{prefix}timestamp"], row[f"{prefix}sequence"]
    return None if pair == (None, None) else pair


def refusal(row: dict[str, Any]) -> str | None:
    """Why a row must be refused, by the letter of the rules; None if it must not."""
    mine, previous = number(row), number(row, "previous_")
    if None in key(row):
        return "null_key"
    if mine is None or any(type(part) is not int or part < 0 for part in (*mine, *(previous or ()))):
        return "bad_number"
    if mine[0] >= 2**43 or mine[1] >= 2**20:
        return "number_out_of_range"
    if previous is not None and previous >= mine:
        return "bad_numbering"
    return "jump_too_far" if mine[0] - row["arrival"] > JUMP_MAX_MS else None


def judged_by_a_set(made: Made) -> list[tuple[str, str | None]]:
    seen = set()
    answers: list[tuple[str, str | None]] = []
    for row in rows_of(made):
        identity = key(row), number(row)
        reason = refusal(row)
        answers.append(("REJECT", reason) if reason else ("REPEAT" if identity in seen else "FIRST", None))
        if reason is None:
            seen.add(identity)
    return answers


def truth_of(made: Made) -> list[tuple[str, str | None]]:
    return [(row["verdict"], row["reason"]) for row in made.truth.rows.to_pylist()]


def by_chain(table: pa.Table) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    chains = defaultdict(list)
    for row in table.to_pylist():
        chains[key(row)].append(row)
    return chains


def delivered_by_chain(made: Made) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The rows that are no damage."""
    return by_chain(made.messages.filter(pc.not_equal(made.truth.rows["verdict"], "REJECT")))


@settings(deadline=None)
@given(traffics)
def test_the_same_settings_make_the_same_traffic(traffic: Traffic) -> None:
    one, other = make(traffic), make(traffic)
    assert one.messages.equals(other.messages)
    assert one.truth.rows.equals(other.truth.rows)
    assert one.truth.lost.equals(other.truth.lost)
    assert one.truth.missing.equals(other.truth.missing)


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_the_same_seed_writes_the_same_bytes_and_another_seed_other_bytes(format: Any, tmp_path: Path) -> None:
    for name, seed in [("one", 7), ("same", 7), ("other", 8)]:
        write(make(replace(EVERYTHING, seed=seed)), tmp_path / name, format, files=2)
    files = [file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*.*")]
    assert len(files) == 2 + 4
    for file in files:
        one, same, other = ((tmp_path / name / file).read_bytes() for name in ("one", "same", "other"))
        assert one == same
        assert one != other


@settings(deadline=None)
@given(traffics)
def test_the_rows_made_are_exactly_the_rows_asked_for_in_arrival_order(traffic: Traffic) -> None:
    messages = make(traffic).messages
    assert messages.schema == schema(text_numbers=traffic.text_numbers)
    assert messages["offset"].to_pylist() == list(range(traffic.rows))
    arrivals = messages["arrival"].to_pylist()
    assert arrivals == sorted(arrivals)


@settings(deadline=None)
@given(traffics)
def test_the_truth_is_what_a_plain_set_says_in_arrival_order(traffic: Traffic) -> None:
    made = make(traffic)
    assert truth_of(made) == judged_by_a_set(made)


@settings(deadline=None)
@given(traffics)
def test_every_chain_delivers_something_and_nothing_before_it_was_sent(traffic: Traffic) -> None:
    made = make(replace(traffic, text_numbers=False))
    chains = delivered_by_chain(made)
    assert len(chains) == traffic.chains
    assert all(row["arrival"] > row["timestamp"] for rows in chains.values() for row in rows)


@settings(deadline=None)
@given(traffics)
def test_delivered_and_lost_messages_together_are_unbroken_chains(traffic: Traffic) -> None:
    made = make(replace(traffic, text_numbers=False))
    lost = by_chain(made.truth.lost)
    assert len(lost) <= traffic.chains
    for chain, rows in delivered_by_chain(made).items():
        gone = {number(row) for row in lost.get(chain, [])}
        previous_of = {number(row): number(row, "previous_") for row in rows}
        assert gone.isdisjoint(previous_of)
        numbers: list[Any] = sorted({*gone, *previous_of})
        names_any = any(previous_of.values())
        for before, mine in pairwise([None, *numbers]):
            if mine in previous_of:
                assert previous_of[mine] == (before if names_any else None)
            tied = before is not None and before[0] == mine[0]
            assert mine[1] == (before[1] + 1 if tied else 0)


@settings(deadline=None, max_examples=examples(200))
@given(traffics)
def test_the_chain_engine_agrees_with_the_truth_where_every_chain_names_its_predecessors(traffic: Traffic) -> None:
    made = make(replace(traffic, faults=replace(traffic.faults, no_previous=0)))
    detectors: dict[Any, ChainDetector] = {}
    for row, answer in zip(rows_of(made), truth_of(made), strict=True):
        if answer[1] in ("null_key", "number_out_of_range"):
            continue  # the scalar engine has no key and no limit of 63 bits
        own = ChainDetector(floor="open", jump_max_ms=JUMP_MAX_MS)
        detector = detectors.setdefault(key(row), own)
        said = detector.judge(number(row, "previous_"), number(row), row["arrival"])  # type: ignore[arg-type]
        assert (said.verdict, said.reason if said.verdict == "REJECT" else None) == answer
    missing = {chain: [known(row) for row in rows] for chain, rows in by_chain(made.truth.missing).items()}
    assert {chain: d.missing() for chain, d in detectors.items() if d.missing()} == missing


def known(row: dict[str, Any]) -> tuple[Any, Any]:
    """A missing range of the truth, as the engine lists it: both ends inclusive."""
    lower = number(row, "lower_")
    return (0, 0) if lower is None else just_above(lower), number(row, "upper_")


def test_a_chain_that_names_nothing_is_missing_nothing() -> None:
    made = make(Traffic(faults=Faults(losses=0.2, no_previous=1)))
    assert len(made.truth.lost) > 1_000
    assert len(made.truth.missing) == 0
    assert made.messages["previous_timestamp"].null_count == len(made.messages)


@pytest.mark.parametrize("text_numbers", [False, True])
def test_every_kind_of_damage_occurs_and_is_refused_for_its_reason(text_numbers: bool) -> None:
    made = make(replace(EVERYTHING, text_numbers=text_numbers))
    reasons = defaultdict(set)
    for row, truth in zip(rows_of(made), made.truth.rows.to_pylist(), strict=True):
        if truth["damage"]:
            reasons[truth["damage"]].add((truth["reason"], refusal(row)))
    expected = {
        "poisoned": "jump_too_far",
        "null_key": "null_key",
        "null_number": "bad_number",
        "negative_number": "bad_number",
        "bad_previous": "bad_numbering",
        "far_future": "jump_too_far",
        "big_sequence": "number_out_of_range",
        "big_timestamp": "number_out_of_range",
        "text_number": "bad_number",
    }
    if not text_numbers:
        del expected["text_number"]
    assert reasons == {damage: {(reason, reason)} for damage, reason in expected.items()}


def test_every_key_column_and_every_number_column_is_damaged_somewhere() -> None:
    made = make(replace(EVERYTHING, text_numbers=True, faults=Faults(malformed=0.4)))
    damage = made.truth.rows["damage"]
    null_keys = made.messages.filter(pc.equal(damage, "null_key"))
    assert all(null_keys[name].null_count for name in KEY)
    texts = made.messages.filter(pc.equal(damage, "text_number"))
    for name in ("timestamp", "sequence", "previous_timestamp", "previous_sequence"):
        assert {"abc", "12.5", ""} <= set(texts[name].to_pylist())


def test_the_shares_of_rows_are_the_shares_asked_for() -> None:
    made = make(Traffic(rows=20_000, chains=200, faults=Faults(copies=0.2, losses=0.1, poisoned=0.5, malformed=0.05)))
    counts = {row["values"]: row["counts"] for row in made.truth.rows["verdict"].value_counts().to_pylist()}
    assert counts["REJECT"] == 100 + 1_000
    assert len(made.truth.lost) == pytest.approx(0.1 * (counts["FIRST"] + len(made.truth.lost)), abs=1)
    copied = sum(len(rows) > len({number(row) for row in rows}) for rows in delivered_by_chain(made).values())
    assert copied == 200
    assert counts["REPEAT"] == pytest.approx(0.2 * 1.25 * counts["FIRST"], rel=0.01)


def test_without_faults_every_message_arrives_once_and_each_chain_in_order() -> None:
    made = make(Traffic(rows=2_000, chains=20, faults=NONE))
    assert set(truth_of(made)) == {("FIRST", None)}
    for rows in by_chain(made.messages).values():
        assert rows == sorted(rows, key=lambda row: (row["timestamp"], row["sequence"]))


@pytest.mark.parametrize(("share", "chains"), [(0.0, 0), (0.3, 15), (1.0, 50)])
@pytest.mark.parametrize("losses", [0.0, 0.6])
def test_late_heads_arrive_after_a_successor_and_no_others_do(share: float, chains: int, losses: float) -> None:
    made = make(Traffic(rows=1_000, chains=50, faults=Faults(late_heads=share, reorder=0, losses=losses)))
    orders = [[number(row, "previous_") for row in rows] for rows in by_chain(made.messages).values()]
    assert sum(None in previous and previous[0] is not None for previous in orders) == chains


def test_reordered_messages_arrive_after_their_successors_where_the_delay_allows_it() -> None:
    calm = Faults(copies=0, losses=0, late_heads=0, reorder=0.1, reorder_ms=5_000)
    made = make(Traffic(rows=5_000, chains=10, faults=calm))
    overtaken = 0
    for rows in by_chain(made.messages).values():
        arrival = {number(row): row["offset"] for row in rows}
        overtaken += sum(arrival[previous] > row["offset"] for row in rows if (previous := number(row, "previous_")))
    # Half of those whose successor is late as well stay in order. Delays left to chance would overtake 20 % less.
    assert overtaken == pytest.approx(0.95 * 0.1 * 5_000, rel=0.1)


def test_copies_have_the_payload_of_their_message_and_other_messages_have_another() -> None:
    made = make(replace(EVERYTHING, faults=Faults(copies=0.5)))
    payloads = defaultdict(set)
    for row in made.messages.to_pylist():
        payloads[key(row), number(row)].add(row["payload"])
    assert all(len(own) == 1 for own in payloads.values())
    assert len(set.union(*payloads.values())) == len(payloads)
    assert set(pc.utf8_length(made.messages["payload"]).to_pylist()) == {40}


def test_skew_makes_few_chains_long_and_keeps_all() -> None:
    sizes = [len(rows) for rows in by_chain(make(Traffic(skew=1.0, faults=NONE)).messages).values()]
    assert len(sizes) == 100
    assert max(sizes) > 1_500
    assert min(sizes) < 30


def test_as_many_chains_as_rows_is_one_message_each() -> None:
    made = make(Traffic(rows=500, chains=500))
    assert set(truth_of(made)) == {("FIRST", None)}
    assert len(by_chain(made.messages)) == 500


def test_a_poisoned_row_names_a_true_number_of_its_chain() -> None:
    made = make(Traffic(rows=1_000, chains=50, faults=Faults(poisoned=1, losses=0)))
    true = {chain: {number(row) for row in rows} for chain, rows in delivered_by_chain(made).items()}
    poisoned = made.messages.filter(pc.equal(made.truth.rows["damage"], TrafficPart.POISONED.name.lower())).to_pylist()
    assert {key(row) for row in poisoned} == set(true)
    assert all(number(row, "previous_") in true[key(row)] for row in poisoned)


def test_parquet_files_read_back_equal(tmp_path: Path) -> None:
    made = make(EVERYTHING)
    write(made, tmp_path / "deep" / "out", files=3)
    parts = sorted((tmp_path / "deep" / "out" / "messages").iterdir())
    assert [part.name for part in parts] == [f"part-0000{i}.parquet" for i in range(3)]
    assert pa.concat_tables(pq.read_table(part) for part in parts).equals(made.messages)
    for name in ("rows", "lost", "missing"):
        assert pq.read_table(tmp_path / "deep" / "out" / "truth" / f"{name}.parquet").equals(getattr(made.truth, name))
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["out"]


@pytest.mark.parametrize("text_numbers", [False, True])
def test_json_lines_read_back_equal(text_numbers: bool, tmp_path: Path) -> None:
    made = make(replace(EVERYTHING, text_numbers=text_numbers))
    write(made, tmp_path / "out", format="jsonl", files=4)
    parts = sorted((tmp_path / "out" / "messages").iterdir())
    assert [json.loads(line) for part in parts for line in part.read_text().splitlines()] == made.messages.to_pylist()
    options = pj.ParseOptions(explicit_schema=made.messages.schema)
    assert pa.concat_tables(pj.read_json(part, parse_options=options) for part in parts).equals(made.messages)


def test_the_settings_are_written_and_make_the_traffic_again(tmp_path: Path) -> None:
    made = make(EVERYTHING)
    write(made, tmp_path / "out")
    asked = json.loads((tmp_path / "out" / "truth" / "traffic.json").read_text())
    again = Traffic(**{**asked, "faults": Faults(**asked["faults"])})
    assert again == EVERYTHING
    assert make(again).messages.equals(made.messages)


def test_more_files_than_rows_are_written_empty(tmp_path: Path) -> None:
    made = make(Traffic(rows=2, chains=1))
    for format in ("parquet", "jsonl"):
        write(made, tmp_path / format, format, files=5)
        assert len(list((tmp_path / format / "messages").iterdir())) == 5
    assert pq.read_table(tmp_path / "parquet" / "messages").num_rows == 2


def test_nothing_is_written_over_what_is_there(tmp_path: Path) -> None:
    made = make(Traffic(rows=10, chains=1))
    (tmp_path / "empty").mkdir()
    write(made, tmp_path / "empty")
    (tmp_path / "file").touch()
    for taken in (tmp_path / "empty", tmp_path / "file"):
        with pytest.raises(Misuse, match=re.escape(str(taken))):
            write(made, taken)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("onefold.testing.traffic.asdict", full)
    with pytest.raises(OSError, match="disk full"):
        write(make(Traffic(rows=10, chains=1)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("field", "value"), [("format", "csv"), ("files", 0), ("files", 10_001), ("files", 1.0)])
def test_writing_refuses_what_it_cannot_do(field: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=f"{field} is {re.escape(repr(value))}"):
        write(make(Traffic(rows=10, chains=1)), tmp_path / "out", **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1), ("seed", 1.5), ("rows", 0), ("rows", 10**9), ("rows", True), ("chains", 0), ("chains", 10_001),
        ("skew", -0.1), ("skew", float("nan")), ("ties", 1), ("interval_ms", 0), ("interval_ms", 80_000_000),
        ("text_numbers", "yes"),
    ],
)  # fmt: skip
def test_wrong_traffic_is_refused_by_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(Misuse, match=f"^{field} is {re.escape(repr(value))}, must") as error:
        Traffic(**{field: value})
    assert list(error.value.values) == [field]


@pytest.mark.parametrize("field", Faults.__dataclass_fields__)
@pytest.mark.parametrize("value", [-1, 10**12, "some"])
def test_wrong_faults_are_refused_by_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(Misuse, match=f"^{field} is {value!r}, must") as error:
        Faults(**{field: value})
    assert error.value.values == {field: value}


def test_rows_that_cannot_hold_the_damage_and_the_chains_are_refused() -> None:
    with pytest.raises(Misuse, match="rows is 10, must hold 10 poisoned"):
        Traffic(rows=10, chains=10, faults=Faults(poisoned=1))


def test_every_part_has_a_place_in_the_truth() -> None:
    assert [part.value for part in TrafficPart] == list(range(len(TrafficPart)))
    assert {TrafficPart.ORIGINAL, TrafficPart.COPY, TrafficPart.POISONED, *KINDS} == set(TrafficPart)
