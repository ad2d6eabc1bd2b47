"""The frame counter: 32 bits in the device and under the MIC, 16 bits on the air.

The missing upper half is guessed from the last counter that was heard of the device, and the MIC says which guess is
right. Most often the frame is the next one: the smallest counter at or above the last that ends in these 16 bits, also
across a roll-over. If that is wrong, it may be a late or replayed frame from below, or the device began again at zero.

Cost: three guesses at most, one MIC each.
"""

LOW_BITS = 16
EPOCH = 1 << LOW_BITS
COUNTER_MAX = (1 << 32) - 1


def candidates(last: int | None, fcnt: int) -> tuple[int, ...]:
    """The counters that these 16 bits can stand for, most likely first.

    >>> candidates(None, 7), candidates(6, 7), candidates(65_535, 0)
    ((7,), (7,), (65536, 0))
    >>> candidates(200_000, 3_392), candidates(200_000, 3_391)
    ((200000, 134464, 3392), (265535, 199999, 3391))
    """
    if last is None:
        return (fcnt,)
    ahead = last - last % EPOCH + fcnt
    if ahead < last:
        ahead += EPOCH
    below = ahead - EPOCH
    if ahead > COUNTER_MAX:
        return (below, fcnt) if below != fcnt else (fcnt,)
    if below < 0:
        return (ahead,)
    return (ahead, below, fcnt) if below != fcnt else (ahead, below)
