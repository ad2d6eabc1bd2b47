"""What each engine promises, in a few sentences: for the foot of a report. The whole is docs/guarantees.md."""

from collections.abc import Mapping
from typing import Final

EVERYWHERE: Final = (
    "Every message gets one verdict and one reason; a run whose books do not balance does not complete.",
    "Nothing is deleted: what does not count is set aside, or marked.",
    "The audit compares what can be read in the output with what was read from the source, row by row where their "
    "fingerprints differ.",
)

ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    "chains": (
        'Exact, in any order of arrival, where each message names the one before it. With floor = "first" what is '
        "older than the first message that arrived is a repeat, as published.",
        "Messages that name no previous one are judged by their numbers alone: exactly in a table; in a stream, which "
        "cannot know them, they are unsure when they are older than the newest. A loss among them leaves no trace.",
        "Over gap_count_max the lowest gap is forgotten; what lies there is unsure, never called a repeat.",
        "After the last message of a chain nothing can tell whether more was sent.",
    ),
    "producers": (
        "Retries of what is stored are repeats, exactly, in any order.",
        'With memory = "highest" a lower sequence that was never stored is a repeat too, as published; with '
        'memory = "gaps" it counts while its gap is remembered.',
        "Forgetting makes unsure, never first.",
    ),
    "lorawan": (
        "Copies of a frame within the expiry are found exactly, by a hash of address, integrity code, bytes and "
        "counter.",
        "A copy of the frame that a device had counted last is a repeat however late it comes, and so is a copied join "
        "request; an older frame that comes again after the expiry counts again: stored counters are not validated.",
        "Lost frames are counted from the counters that were heard: before the first and after the last of a device "
        "nothing can tell.",
    ),
}

COMPARISON: Final = (
    "Two tables are called equal if they hold the same rows, as often, in whatever order.",
    "Ranges of rows are compared by fingerprints; where those differ, row by row, and exactly.",
    "Where somebody may want to hide a difference, compare with --hash sha256.",
)


def promised(engine: str) -> tuple[str, ...]:
    """What holds for a run of this engine."""
    return (*ENGINES.get(engine, ()), *EVERYWHERE)
