"""Radio traffic from one seed, with the truth beside it: devices, gateways, the air between them.

`RadioPlan` says what to make, `make` makes it, `writing.write` puts it into a folder, `score` holds verdicts to it.
"""

from onefold.sim.radio.plan import QUIET, RadioPlan
from onefold.sim.radio.traffic import RadioTraffic, make

__all__ = ["QUIET", "RadioPlan", "RadioTraffic", "make"]
