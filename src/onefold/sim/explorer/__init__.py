"""The explorer: every crash, every order and every late write of a small world, tried on the real plans and store.

moves     lease, step, die, lease runs out, copy, chore    crews, transport, system
world     a database in memory, at any content             images, content
worker    a generator that is led to a place again         places, parcels
right     the books, and all orders without faults         worlds, orders, verdicts
search    nearest first, equal states merged               search, rounds, words
"""

from onefold.sim.explorer.exploring import STATES_MAX, Convicted, Exploration, explored, together
from onefold.sim.explorer.specimens import SPECIMENS, Specimen
from onefold.sim.explorer.topologies import TOPOLOGIES
from onefold.sim.explorer.topology import MIXED, SHIPPED, Algorithm, Chore, Handling, Source, Stage, Topology
from onefold.sim.explorer.verdicts import Offence, Wrong

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
    "Source",
    "Specimen",
    "Stage",
    "Topology",
    "Wrong",
    "explored",
    "together",
]
