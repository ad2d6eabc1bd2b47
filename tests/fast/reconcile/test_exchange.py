"""The frames of a reconciliation: what is written is read, and foreign bytes are refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import BadInput
from onefold.reconcile import exchange
from onefold.reconcile.exchange import ERROR, OPEN, PUSH, RECORDS, Opening, OpenReply, Trouble
from onefold.reconcile.items import INFINITY
from onefold.reconcile.records import Record, record

SIZES = st.sampled_from([8, 16, 32])


def records_of(id_size):
    stamps = st.integers(0, INFINITY - 1)
    ids, bodies = st.binary(min_size=id_size, max_size=id_size), st.none() | st.binary(max_size=50)
    return st.lists(st.builds(Record, stamps, ids, bodies), max_size=8)


@given(SIZES.flatmap(lambda size: st.tuples(st.just(size), records_of(size))))
def test_records_are_read_as_they_were_written(drawn):
    id_size, records = drawn
    frame = exchange.write_records(PUSH, records)
    assert exchange.read_records(frame, id_size) == records
    assert len(frame) == 1 + sum(map(exchange.size_of, records))


@given(SIZES, st.lists(st.binary(min_size=32, max_size=32), max_size=8))
def test_ids_are_read_as_they_were_written(id_size, ids):
    cut = [id[:id_size] for id in ids]
    assert exchange.read_ids(exchange.write_ids(cut), id_size) == cut


def refused_at(read, *arguments):
    """The byte at which something is refused; None if it is not."""
    try:
        read(*arguments)
    except BadInput as error:
        return error.values["offset"]
    return None


@given(st.binary(max_size=300), SIZES)
def test_any_bytes_are_read_or_refused_with_a_place_in_them(data, id_size):
    for read in (exchange.read_records, exchange.read_ids):
        assert 0 <= (refused_at(read, b"P" + data, id_size) or 0) <= len(data) + 1
    for kind in (Opening, OpenReply, Trouble):
        assert refused_at(exchange.read_document, kind, b"O" + data) in (None, 0, 1)


def test_a_frame_that_is_cut_anywhere_is_refused_or_holds_whole_records():
    frame = exchange.write_records(RECORDS, [record(5, b"coffee"), record(6, b"tea")])
    whole = {1, 1 + exchange.size_of(record(5, b"coffee"))}
    for end in range(1, len(frame)):
        at = refused_at(exchange.read_records, frame[:end], 32)
        assert at is None if end in whole else at is not None and at < end


def test_the_reserved_timestamp_is_refused():
    with pytest.raises(BadInput, match="reserved"):
        exchange.read_records(exchange.write_records(PUSH, [Record(INFINITY, b"a" * 32, b"")]), 32)


@pytest.mark.parametrize("said", [Opening(since=5, wire="xor", id_size=16), Trouble(error="time", text="é", offset=3)])
def test_what_is_told_as_json_is_read_as_it_was_told(said):
    assert exchange.read_document(type(said), exchange.write_document(OPEN, said)) == said


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"wire": "v2"}, "wire is 'v2'"),
        ({"since": True}, "since is True"),
        ({"since": -1}, "since is -1"),
        ({"until": 2**64}, "until is 18446744073709551616"),
        ({"since": 1.5}, "since is 1.5"),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"": 1}, "unknown field ''"),
        ([], "not a JSON object"),
    ],
)
def test_a_field_that_is_wrong_is_named(document, named):
    with pytest.raises(BadInput, match=named):
        exchange.read_document(Opening, b"O" + json.dumps(document).encode())


def test_a_missing_field_is_named():
    with pytest.raises(BadInput, match="text"):
        exchange.read_document(Trouble, b'e{"error":"x"}')


def test_long_and_deep_json_is_not_read():
    with pytest.raises(BadInput, match="the limit is 4096"):
        exchange.read_document(Opening, b"O" + b" " * 5_000)
    with pytest.raises(BadInput):
        exchange.read_document(Opening, b"O" + b"[" * 4_000)


def test_outcomes_are_read_as_they_were_told_and_unknown_ones_refused():
    assert exchange.read_outcomes(exchange.write_outcomes(exchange.OUTCOMES)) == list(exchange.OUTCOMES)
    with pytest.raises(BadInput, match="unknown outcome"):
        exchange.read_outcomes(b"p\x09")


def test_a_record_is_genuine_if_its_bytes_and_its_time_hash_to_its_id():
    true = record(5, b"coffee")
    assert true.genuine
    assert not true._replace(body=b"tea").genuine
    assert not true._replace(timestamp=6).genuine
    assert not true._replace(body=None).genuine
    with pytest.raises(BadInput, match="timestamp -1"):
        record(-1, b"")


def test_an_error_frame_has_its_kind():
    assert exchange.write_document(ERROR, Trouble(error="busy", text="later"))[0] == ERROR
