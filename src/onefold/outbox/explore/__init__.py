"""The explorer tries every crash, every order and every late write in a small system, on the real plans and store.

topology    what is explored: stages, messages, budgets of faults; the shipped plans, and the specimens
handlers    the handler on trial, and what it does besides returning an answer
system      the states, and every possible next move in each
search      breadth-first, equal states merged; an error as a history in words
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
