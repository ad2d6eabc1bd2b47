"""What a handler returns is refused while it can still be told: behind that it would fail those beside it, too."""

import pytest

from onefold.errors import BadInput
from onefold.outbox import Entry, Message, Out, Outgoing, handled, pack, pack_entry
from onefold.outbox.plans import Packed, outgoings, pack_message, unpack_entry, unpack_message

MESSAGE = Message("t1", "orders", {})


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def accepts(levels: int) -> bool:
    try:
        handled((nested(levels), [Out("shipping", nested(levels))]), MESSAGE)
    except BadInput:
        return False
    return True


def called(levels: int, work):
    return work() if levels == 0 else called(levels - 1, work)


def test_the_deepest_value_that_is_accepted_can_be_stored_and_sent_and_read_by_whoever_calls():
    deepest = max(levels for levels in range(1_100) if accepts(levels))
    assert deepest > 500
    entry = Entry((Outgoing("shipping", nested(deepest), "t2"),), "a1")
    (message,) = entry.messages("t1")
    assert called(50, lambda: unpack_entry(pack_entry(entry))) == entry
    assert called(50, lambda: unpack_message(pack_message(message))) == message
    assert called(50, lambda: pack(nested(deepest)))


@pytest.mark.parametrize("origin", ["my desk/1", "/1", "desk\0/1", "x" * 201])
def test_a_reply_to_what_can_be_no_queue_is_refused(origin):
    with pytest.raises(BadInput, match="the name of a queue"):
        outgoings([Out.reply(1)], "orders", origin)
    assert outgoings([Out("shipping", 1)], "orders", origin) == (Outgoing("shipping", Packed("1")),)


def test_one_out_alone_is_not_taken_for_state_and_outgoing():
    with pytest.raises(BadInput, match=r"not \(state, outgoing\)"):
        handled(Out("shipping", {}), MESSAGE)
