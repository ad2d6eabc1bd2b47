"""The explorer: every crash, every order and every late write of a small world, tried on the real plans and store.

moves     lease, step, die, lease runs out, copy, chore    crews, transport, system
world     a database in memory, at any content             images, content
worker    a generator that is led to a place again         places, parcels
right     the books, and all orders without faults         worlds, orders, verdicts
search    nearest first, equal states merged               search, rounds, words
"""

from onefold.outbox.explore.search import STATES_MAX, Convicted, Exploration, explored, together
from onefold.outbox.explore.specimens import SPECIMENS, Specimen
from onefold.outbox.explore.topology import (
    MIXED,
    SHIPPED,
    TOPOLOGIES,
    Algorithm,
    Chore,
    Handling,
    Offence,
    Stage,
    Topology,
    TopologySource,
    Wrong,
)

__all__ = [
    "MIXED",
    "SHIPPED",
    "SPECIMENS",
    "STATES_MAX",
    "TOPOLOGIES",
    "Algorithm",
    "Chore",
    "Convicted",
    "Exploration",
    "Handling",
    "Offence",
    "Specimen",
    "Stage",
    "Topology",
    "TopologySource",
    "Wrong",
    "explored",
    "together",
]
