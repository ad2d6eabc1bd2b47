"""The explorer: every crash, every order and every late write of a small world, tried on the real plans and store.

topology    what is explored: stages, messages, budgets of faults; the shipped plans, and the specimens
system      the states, and everything that can happen next in each
search      nearest first, equal states merged; what is wrong, as a history
"""

from onefold.outbox.explore.search import STATES_MAX, Convicted, Exploration, explored, together
from onefold.outbox.explore.topology import SHIPPED, SPECIMENS, TOPOLOGIES, Algorithm, Topology, Wrong

__all__ = [
    "SHIPPED",
    "SPECIMENS",
    "STATES_MAX",
    "TOPOLOGIES",
    "Algorithm",
    "Convicted",
    "Exploration",
    "Topology",
    "Wrong",
    "explored",
    "together",
]
