"""One chain, judged message by message: which messages count, which are copies, which are missing.

Run it: python examples/chain_detector.py
"""

from onefold import ChainDetector, Number, Tally

ARRIVALS: list[tuple[Number | None, Number]] = [
    (None, (1000, 0)),  # the first of the chain has no previous message
    ((1000, 0), (1000, 1)),  # in the same millisecond: the sequence goes up
    ((4000, 1), (4000, 2)),  # it overtook others
    ((1000, 1), (2500, 0)),
    ((1000, 1), (2500, 0)),  # a copy
    ((4000, 0), (4000, 1)),
    ((4000, 2), (4000, 2)),  # it names itself
]


def main() -> None:
    """Judge all arrivals, print the state after each, then the tally."""
    detector, tally = ChainDetector(), Tally()
    for previous, number in ARRIVALS:
        tally.arrive()
        answer = detector.judge(previous, number)
        tally.judge(answer)
        print(f"{answer!s:<22} {detector}")
    print(tally.check())
    for first, last in detector.missing():
        print(f"ask for {first} to {last}")
    # After a restart, or on another machine: the snapshot is the whole state, with its settings.
    again = ChainDetector.restore(detector.snapshot())
    print(again.judge((1000, 0), (1000, 1)))


if __name__ == "__main__":
    main()
