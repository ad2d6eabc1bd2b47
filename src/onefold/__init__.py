"""onefold makes every message count once, and proves it."""

from onefold.engines.chains import ChainDetector, Number, OrderedChain
from onefold.engines.producers import Sequences
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

__version__ = "0.1.0"

__all__ = ["Answer", "ChainDetector", "Number", "OrderedChain", "Sequences", "Tally", "Verdict", "__version__"]
