"""onefold makes every message count once, and proves it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onefold.engines.chains import ChainDetector, Number, OrderedChain
from onefold.engines.outbox import Message, Out, Outcome
from onefold.engines.producers import Sequences
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

if TYPE_CHECKING:
    from onefold.engines.negentropy import ItemSet, Session
    from onefold.services.outbox.endpoint import Endpoint
    from onefold.services.producer import Producer
    from onefold.services.topics import Topics

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
    "Endpoint": "onefold.services.outbox.endpoint",
    "ItemSet": "onefold.engines.negentropy",
    "Producer": "onefold.services.producer",
    "Session": "onefold.engines.negentropy",
    "Topics": "onefold.services.topics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
