"""Bytes, keys, codes and counters of frames."""

import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onefold.errors import BadInput, Misuse
from onefold.lorawan import DataUp, JoinRequest, candidates, data_key, join_key, parse, parse_down
from onefold.lorawan.mic import ack_down, data_mic, find_counter, join_mic, signed_join, signed_up

KEY = bytes(range(16))

u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))


@st.composite
def data_frames(draw):
    fopts = draw(st.binary(max_size=15))
    fport = draw(st.none() | u8)
    return DataUp(
        draw(st.sampled_from([0x40, 0x80])) | draw(st.integers(0, 7)) << 2,
        draw(u32),
        draw(st.integers(0, 15)) << 4 | len(fopts),
        draw(u16),
        fopts,
        fport,
        b"" if fport is None else draw(st.binary(max_size=200)),
        draw(u32),
    )


join_requests = st.builds(JoinRequest, st.integers(0, 7).map(lambda bits: bits << 2), u64, u64, u16, u32)


@given(data_frames() | join_requests)
def test_what_is_built_is_parsed_again(frame):
    assert parse(frame.phy) == frame


@given(
    st.binary(max_size=300) | st.binary(min_size=23, max_size=23) | (data_frames() | join_requests).map(lambda f: f.phy)
)
def test_bytes_are_the_frame_that_is_parsed_from_them_or_bad_input(phy):
    for parsing in (parse, parse_down):
        with suppress(BadInput):  # and nothing else
            assert parsing(phy).phy == phy


@pytest.mark.parametrize(
    ("phy", "told"),
    [
        (b"", "a frame of 0 bytes: there must be 12 to 255"),
        (bytes(11), "a frame of 11 bytes: there must be 12 to 255"),
        (b"\x40" + bytes(255), "a frame of 256 bytes: there must be 12 to 255"),
        (bytes(22), "a join request of 22 bytes: there must be 23"),
        (b"\x41" + bytes(20), "byte 0 is 0x41: major version 1, only 0 is known"),
        (b"\x20" + bytes(20), "byte 0 is 0x20: no data frame from a device and no join request"),
        (b"\xe0" + bytes(20), "byte 0 is 0xe0: no data frame from a device and no join request"),
        (b"\x40\0\0\0\0\x05" + bytes(10), "byte 5 is 0x05: 5 bytes of options, but there are 4"),
    ],
)
def test_bad_bytes_are_named_with_their_place(phy, told):
    with pytest.raises(BadInput, match=f"^{told}$"):
        parse(phy)


def test_options_may_fill_the_frame_and_a_port_may_have_no_payload():
    assert parse(b"\x40\0\0\0\0\x04\x07\0abcdMIC!")[4:7] == (b"abcd", None, b"")
    assert parse(b"\x40\0\0\0\0\x00\x07\0\x00MIC!")[4:7] == (b"", 0, b"")


def test_flags_of_a_frame():
    frame = signed_up(nwk_skey=KEY, dev_addr=1, fcnt=65_537, confirmed=True, adr=True, fopts=b"\x02")
    assert (frame.confirmed, frame.adr, frame.ack, frame.first, frame.fcnt) == (True, True, False, True, 1)
    down = parse_down(ack_down(nwk_skey=KEY, dev_addr=1, fcnt=65_538, pending=True))
    assert (down.confirmed, down.ack, down.pending, down.fcnt, down.fport) == (False, True, True, 2, None)
    assert down.mic == data_mic(KEY, down.raw, 1, 65_538, down=True) != data_mic(KEY, down.raw, 1, 65_538)
    with pytest.raises(BadInput, match="no data frame to a device"):
        parse_down(frame.phy)


@given(data_frames(), data_frames(), st.sets(st.sampled_from(DataUp._fields), min_size=1))
def test_a_frame_that_differs_in_any_field_has_another_key(frame, other, fields):
    changed = frame._replace(**{name: getattr(other, name) for name in fields})
    try:
        assume(parse(changed.phy) == changed != frame)  # the options must fit their length
    except BadInput:
        assume(False)
    assert changed.key != frame.key


@given(join_requests, join_requests)
def test_a_join_request_is_known_by_who_and_where_and_its_nonce(a, b):
    assert (a.key == b.key) == (a[1:4] == b[1:4])
    for name in ("join_eui", "dev_eui", "dev_nonce"):
        assert (a._replace(**{name: getattr(b, name)}).key == a.key) == (getattr(a, name) == getattr(b, name))
    assert a._replace(mic=b.mic).key == a.key


@given(u32, u32, st.binary(max_size=50), u16)
def test_a_signed_number_has_the_key_of_the_unsigned_one(dev_addr, mic, payload, fcnt):
    def signed(value):
        return value - (1 << 32) if value >> 31 else value

    plain = data_key(dev_addr=dev_addr, mic=mic, payload=payload, fcnt=fcnt)
    assert data_key(dev_addr=signed(dev_addr), mic=signed(mic), payload=payload, fcnt=fcnt) == plain


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"fcnt": 65_536}, "fcnt is 65536, must be a whole number of 16 bits"),
        ({"fcnt": -1}, "fcnt is -1, must be a whole number of 16 bits"),
        ({"dev_addr": 1 << 32}, "dev_addr is 4294967296, must be a whole number of 32 bits"),
        ({"mic": -(1 << 31) - 1}, "mic is -2147483649, must be a whole number of 32 bits"),
        ({"mic": 1.0}, "mic is 1.0, must be a whole number of 32 bits"),
    ],
)
def test_a_number_that_does_not_fit_a_key_is_named(wrong, told):
    with pytest.raises(Misuse, match=f"^{told}$"):
        data_key(**{"dev_addr": 1, "mic": 2, "payload": b"", "fcnt": 3, **wrong})


@pytest.mark.parametrize("wrong", [{"join_eui": -1}, {"dev_eui": 1 << 64}, {"dev_nonce": 65_536}])
def test_a_number_that_does_not_fit_a_join_key_is_named(wrong):
    with pytest.raises(Misuse, match=next(iter(wrong))):
        join_key(**{"join_eui": 1, "dev_eui": 2, "dev_nonce": 3, **wrong})


def test_keys_need_no_cryptography():
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from onefold.lorawan import data_key, NetworkServer\n"
        "print(len(data_key(dev_addr=1, mic=2, payload=b'', fcnt=3)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("32\n", "")


@given(u32, u16)
def test_candidates_are_the_next_one_up_then_down_then_from_zero(last, fcnt):
    found = candidates(last, fcnt)
    assert all(counter & 0xFFFF == fcnt and 0 <= counter < 1 << 32 for counter in found)
    assert len(set(found)) == len(found) <= 3
    assert fcnt in found
    above = [counter for counter in found if counter >= last]
    assert above in ([], [found[0]])
    if above:
        assert above[0] - last < 65_536
    else:
        assert last > (1 << 32) - 65_536  # the device has used up its counter
    if last >= 65_536:
        assert any(0 < last - counter <= 65_536 or counter == last for counter in found)


@given(u32, st.integers(0, 65_535))
def test_the_counter_is_found_over_any_roll_over(last, lost):
    counter = last + lost
    assume(counter < 1 << 32)
    frame = signed_up(nwk_skey=KEY, dev_addr=7, fcnt=counter, payload=b"21.5", fport=2)
    assert find_counter(KEY, frame, last) == counter
    assert find_counter(bytes(16), frame, last) is None


def test_a_late_frame_and_a_restart_are_found_under_their_own_counter():
    for counter in (199_999, 140_000, 0, 1, 3_000):
        assert find_counter(KEY, signed_up(nwk_skey=KEY, dev_addr=7, fcnt=counter), 200_000) == counter
    two_epochs_old = signed_up(nwk_skey=KEY, dev_addr=7, fcnt=70_000)
    assert find_counter(KEY, two_epochs_old, 200_000) is None


def test_a_join_request_is_signed_over_its_bytes():
    request = signed_join(app_key=KEY, join_eui=1, dev_eui=2, dev_nonce=3)
    assert request.mic == join_mic(KEY, request.raw) != join_mic(bytes(16), request.raw)


def test_a_key_of_the_wrong_length_is_told_by_its_length_alone():
    with pytest.raises(Misuse, match=r"^a key of 3 bytes: there must be 16$") as caught:
        join_mic(b"abc", b"")
    assert caught.value.values == {"length": 3}
    with pytest.raises(Misuse, match=r"^a frame without a port has no payload$"):
        signed_up(nwk_skey=KEY, dev_addr=1, fcnt=1, payload=b"x", fport=None)
