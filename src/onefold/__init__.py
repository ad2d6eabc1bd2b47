"""onefold makes every message count once, and proves it."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from onefold.chains import ChainDetector, Number, OrderedChain
from onefold.moved import MovedFinder
from onefold.outbox import Message, Out, Outcome
from onefold.producers import Sequences
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

if TYPE_CHECKING:
    from onefold.outbox.endpoint import Endpoint
    from onefold.producers.client import Producer
    from onefold.producers.topic import Topics
    from onefold.reconcile import ItemSet, Session

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "ChainDetector",
    "Endpoint",
    "ItemSet",
    "Message",
    "Number",
    "OrderedChain",
    "Out",
    "Outcome",
    "Producer",
    "Sequences",
    "Session",
    "Tally",
    "Topics",
    "Verdict",
    "__version__",
]

_HOMES = {  # loaded when first used
    "Endpoint": "onefold.outbox.endpoint",
    "ItemSet": "onefold.reconcile",
    "Producer": "onefold.producers.client",
    "Session": "onefold.reconcile",
    "Topics": "onefold.producers.topic",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


sys.meta_path.append(MovedFinder())
