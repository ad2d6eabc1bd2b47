"""Texts for people about each engine: the rule behind every answer, the word for its keys, and its promises.

Reports, the page and the commands look them up in `ENGINES` by the engine's name. The promises are printed at the foot
of a report; docs/guarantees.md has all of them.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from onefold import chains, ids, lorawan, producers


class EngineWords(NamedTuple):
    rules: Mapping[Any, str]
    key: str
    remembers: str
    """Plural of what a stream remembers."""
    arrival_is_time: bool
    """Whether the order of judgement must be a time; else it may be any number."""
    promises: tuple[str, ...]


ENGINES: Final[Mapping[str, EngineWords]] = {
    "chains": EngineWords(
        rules=chains.RULES,
        key="chain",
        remembers="chains",
        arrival_is_time=True,
        promises=(
            'Exact, in any order of arrival, where each message names the one before it. With floor = "first" what is '
            "older than the first message that arrived is a repeat, as published.",
            "Messages that name no previous one are judged by their numbers alone: exactly in a table; in a stream, "
            "which cannot know them, they are unsure when they are older than the newest. A loss among them leaves no "
            "trace.",
            "Over gap_count_max the lowest gap is forgotten; what lies there is unsure, never called a repeat.",
            "After the last message of a chain nothing can tell whether more was sent.",
        ),
    ),
    "producers": EngineWords(
        rules=producers.RULES,
        key="producer",
        remembers="producers",
        arrival_is_time=False,
        promises=(
            "Retries of what is stored are repeats, exactly, in any order.",
            'With memory = "highest" a lower sequence that was never stored is a repeat too, as published; with '
            'memory = "gaps" it counts while its gap is remembered.',
            "Forgetting makes unsure, never first.",
            "With a time, by which counters may restart: exact in a table if the clock of a producer never steps back; "
            "what was lost right before or after a restart leaves no trace.",
        ),
    ),
    "ids": EngineWords(
        rules=ids.RULES,
        key="id",
        remembers="ids",
        arrival_is_time=False,
        promises=(
            "In a table the copies of an id are found exactly. In a stream, or from run to run, exactly within the "
            "window, by the time that copies share; what is older is unsure, never called first or repeat.",
            "Without a time that copies share the clock of the batches stands in: a copy that comes later than the "
            "window counts again, and nothing shows it.",
            "Ids are told apart by 128 bits of hash. What was lost leaves no trace: an id says nothing of the others.",
        ),
    ),
    "lorawan": EngineWords(
        rules=lorawan.RULES,
        key="device",
        remembers="frames",
        arrival_is_time=True,
        promises=(
            "Copies of a frame within the expiry are found exactly, by a hash of address, integrity code, bytes and "
            "counter.",
            "A copy of the frame that a device had counted last is a repeat however late it comes, and so is a copied "
            "join request; an older frame that comes again after the expiry counts again: stored counters are not "
            "validated.",
            "Lost frames are counted from the counters that were heard: before the first and after the last of a "
            "device nothing can tell.",
        ),
    ),
}
