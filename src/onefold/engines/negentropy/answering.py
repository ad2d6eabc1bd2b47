"""The server's side: a message in, a message out, and nothing remembered in between.

A fingerprint that differs is answered by splitting that range, a list by what differs in it (or by all of ours); what
agrees is skipped. With a frame limit, the ranges that fit are answered, and then the rest of what was asked is put into
one last range, from the last bound that was *written*: its fingerprint, or an empty list if we have nothing there. If
the rest agrees on both sides the client drops it, else it asks again. So nothing is lost, whatever did not fit.
"""

from __future__ import annotations

import numpy as np

from onefold.engines.negentropy.arrays import Ints, flagged
from onefold.engines.negentropy.ranges import Mode, Ranges, no_ranges, split
from onefold.engines.negentropy.received import Received
from onefold.engines.negentropy.setting import Setting
from onefold.engines.negentropy.wire import Replying
from onefold.engines.negentropy.writing import HEAD_MIN


def answer(setting: Setting, message: bytes) -> bytes:
    """The server's reply to a message."""
    start = setting.wire.body(message, initiator=False)
    if start is None:
        return setting.wire.head
    received = Received.of(setting, message, start, initiator=False)
    replies, whole = _replies(received)
    if not len(replies):
        return setting.wire.head
    writer, room = setting.writer(), setting.room()
    if not room:
        return setting.wire.head + writer.write(replies).data
    cut = writer.cut_to_fit(replies, room)
    data, sent = writer.write_some(cut, room)
    if whole and len(sent) == len(replies) and sent.last[-1] == replies.last[-1]:
        return setting.wire.head + data
    rest = _rest(received, sent)
    return setting.wire.head + data + writer.write(rest, after=sent.upper.take(slice(-1, None))).data


def _replies(received: Received) -> tuple[Ranges, bool]:
    """What there is to answer, in order, and whether that is all; if not, it is more than fits into a frame."""
    setting = received.setting
    differing, lists, whole = _within_frame(received, received.differing(), received.of_mode(Mode.ID_LIST))
    pieces, source = split(setting.items, received.ranges.take(differing), setting.split, setting.list_below)
    if not len(lists):
        return pieces, whole
    how = Replying(setting.reply == "sparse", setting.room(), setting.split, setting.list_below)
    told, told_source = setting.wire.replies(setting.items, received.listed(lists), how)
    order = np.argsort(np.concatenate((differing[source], lists[told_source])), kind="stable")
    return Ranges.join([pieces, told]).take(order), whole


def _within_frame(received: Received, differing: Ints, lists: Ints) -> tuple[Ints, Ints, bool]:
    """The first ranges to split and the first lists to answer, hardly more than a frame can take; are these all?

    So that a short message cannot make us look at all our records: a list that lacks more of ours than fit into a frame
    is split like a fingerprint that differs.
    """
    setting, sizes, room = received.setting, received.ranges.sizes(), received.setting.room()
    if not room:
        return differing, lists, True
    id_size = setting.items.id_size
    lacking = np.maximum(sizes[lists] - received.incoming.counts(lists), 0) * id_size
    huge = lacking > room
    differing = np.sort(np.concatenate((differing, lists[huge])))
    lists, lacking = lists[~huge], lacking[~huge]
    least = np.zeros(len(sizes), dtype=np.int64)
    few = sizes[differing] < setting.list_below
    pieces = setting.split * (HEAD_MIN + setting.wire.fingerprint_size(id_size))
    least[differing] = np.where(few, HEAD_MIN + 1 + sizes[differing] * id_size, pieces)
    least[lists] = lacking
    end = np.searchsorted(least.cumsum(), room)
    kept = differing[differing <= end], lists[lists <= end]
    return *kept, len(kept[0]) == len(differing) and len(kept[1]) == len(lists)


def _rest(received: Received, sent: Ranges) -> Ranges:
    """One range from what was written to the end of what was asked."""
    asked = flagged(received.ranges.modes != Mode.SKIP)[-1:]
    end = received.ranges.take(asked)
    start = sent.tail(len(sent) - 1)
    if start.upper.equal(end.upper).all():
        return no_ranges(received.setting.items.id_size)
    mode = Mode.FINGERPRINT if end.last[0] > start.last[0] else Mode.ID_LIST
    return Ranges(start.upper, end.upper, np.array([mode], dtype=np.uint8), start.last, end.last)
