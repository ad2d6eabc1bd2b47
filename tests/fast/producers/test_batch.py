import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onefold.errors import BadInput, Misuse
from onefold.producers.wire import (
    BatchReply,
    BatchRequest,
    WireStatus,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    request_number,
)
from onefold.verdict import Verdict

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)
REQUESTS = st.tuples(U32, NAMES, U32, st.lists(st.tuples(I64, st.binary(max_size=30)), max_size=8))
REASONS = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz_"), max_size=20)
RECEIPTS = st.lists(st.tuples(st.sampled_from(list(Verdict)), REASONS, I64), max_size=8)
REPLIES = st.tuples(U32, st.sampled_from(list(WireStatus)), RECEIPTS, st.text(st.characters(exclude_categories=["Cs"])))
WHOLE = encode_request(7, "tïll", 3, [(0, b"one"), (1, b""), (5, b"three")])
ANSWER = encode_reply(7, WireStatus.OK, [(Verdict.FIRST, "new", 12), (Verdict.REPEAT, "seen", -1)], "fine")


@given(REQUESTS)
def test_a_request_comes_out_as_it_went_in(request):
    number, name, epoch, messages = request
    assert decode_request(encode_request(*request)) == BatchRequest(number, name, epoch or None, messages)


@given(REPLIES)
def test_a_reply_comes_out_as_it_went_in(reply):
    assert decode_reply(encode_reply(*reply)) == BatchReply(*reply)


def test_the_bytes_are_those_of_the_contract():
    assert encode_request(1, "p", None, [(2, b"xy")]) == struct.pack(
        "<4sIIHI1sqI2s", b"OFB1", 1, 0, 1, 1, b"p", 2, 2, b"xy"
    )
    answer = encode_reply(1, WireStatus.FAILED, [(Verdict.UNSURE, "in_flight", -1)], "é")
    assert answer == struct.pack("<4sIBIBqB9s2s", b"OFR1", 1, 2, 1, 2, -1, 9, b"in_flight", "é".encode())


def within(decode, data):
    """What is read, or None for bad input that names a byte of the data."""
    try:
        return decode(data)
    except BadInput as error:
        offset = error.values["offset"]
    assert 0 <= offset <= len(data)
    return None


@given(st.binary(max_size=200) | st.binary(max_size=60).map(b"OFB1".__add__))
@example(b"OFB1" + bytes(14))
@example(struct.pack("<4sIIHI1s", b"OFB1", 0, 0, 1, 2**32 - 1, b"p"))
def test_any_bytes_are_a_request_or_bad_input(data):
    read = within(decode_request, data)
    assert read is None or encode_request(*read) == data


@given(st.binary(max_size=200) | st.binary(max_size=60).map(b"OFR1".__add__))
def test_any_bytes_are_a_reply_or_bad_input(data):
    read = within(decode_reply, data)
    assert read is None or encode_reply(*read) == data


@given(REQUESTS, st.data())
def test_a_changed_byte_gives_another_request_or_bad_input(request, choose):
    data = bytearray(encode_request(*request))
    data[choose.draw(st.integers(0, len(data) - 1))] ^= choose.draw(st.integers(1, 255))
    read = within(decode_request, bytes(data))
    assert read is None or encode_request(*read) == data


def test_no_cut_request_or_reply_is_taken_for_a_whole_one():
    for end in range(len(WHOLE)):
        with pytest.raises(BadInput, match=r"^byte "):
            decode_request(WHOLE[:end])
    for end in range(len(ANSWER) - len("fine")):
        with pytest.raises(BadInput, match=r"^byte "):
            decode_reply(ANSWER[:end])


def put(data: bytes, at: int, shape: str, value: object) -> bytes:
    return data[:at] + struct.pack(shape, value) + data[at + struct.calcsize(shape) :]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "byte 0: a head has 18 bytes, there are 0"),
        (b"GET / HTTP/1.1\r\nxx", "byte 0: begins with b'GET ', must begin with b'OFB1'"),
        (put(WHOLE, 12, "<H", 0), "byte 12: the name has 0 bytes, must be 1 to 200"),
        (put(WHOLE, 12, "<H", 201), "byte 12: the name has 201 bytes, must be 1 to 200"),
        (put(WHOLE, 14, "<I", 10_001), "byte 14: 10,001 messages, at most 10,000 are allowed"),
        (put(WHOLE, 14, "<I", 9_999), "byte 18: 119993 bytes of name and table must follow, there are 49"),
        (put(WHOLE, 19, "<B", 0xFF), "byte 19: the name is not UTF-8"),
        (put(WHOLE, 31, "<I", 2**32 - 1), "byte 59: 4294967300 bytes of payload must follow, there are 8"),
        (WHOLE + b"x", "byte 59: 8 bytes of payload must follow, there are 9"),
        (WHOLE + bytes(4 << 20), "byte 0: 4,194,371 bytes, at most 4,194,304 are allowed"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told_with_its_byte(data, told):
    with pytest.raises(BadInput) as caught:
        decode_request(data)
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (put(ANSWER, 8, "<B", 4), "byte 8: the status is 4, must be 0 to 3"),
        (put(ANSWER, 9, "<I", 2**31), "byte 9: 2,147,483,648 receipts, at most 10,000 are allowed"),
        (put(ANSWER, 13, "<B", 4), "byte 13: the verdict is 4, must be 0 to 3"),
        (put(ANSWER, 22, "<B", 200), "byte 23: the reason must have 200 bytes, there are 21"),
        (put(ANSWER, 23, "<B", 0xC3), "byte 23: the reason is not ASCII"),
        (put(ANSWER, 9, "<I", 3), "byte 40: receipt 2 of 3 is cut off"),
        (ANSWER + b"\xff", "byte 44: the text is not UTF-8"),
        (ANSWER + bytes(5_000), "byte 40: 5,004 bytes of text, at most 4,096 are allowed"),
    ],
)
def test_a_wrong_reply_is_told_with_its_byte(data, told):
    with pytest.raises(BadInput) as caught:
        decode_reply(data)
    assert str(caught.value) == told


def test_what_does_not_fit_a_field_is_misuse_of_the_one_who_encodes():
    with pytest.raises(Misuse, match="request 1 of 'p'"):
        encode_request(1, "p", None, [(2**63, b"")])
    with pytest.raises(Misuse, match="request -1 of 'p'"):
        encode_request(-1, "p", None, [])


def test_a_long_text_is_cut_between_characters():
    assert decode_reply(encode_reply(1, WireStatus.REFUSED, (), "é" * 3_000)).text == "é" * 2_048


def test_the_number_of_a_wrong_request_is_still_read():
    assert (request_number(WHOLE[:-1]), request_number(b"OFB1"), request_number(b"")) == (7, 0, 0)
