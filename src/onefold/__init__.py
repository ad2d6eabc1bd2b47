"""onefold makes every message count once, and proves it."""

import sys
from typing import TYPE_CHECKING

from onefold.chains import ChainDetector, Event, Number, OrderedChain, Released, Resend, Unfillable
from onefold.errors import BadInput, Misuse, OnefoldError, StoreFailed
from onefold.ids import IdDetector
from onefold.moved import MovedFinder, loaded_on_use
from onefold.outbox import Message, Out, Outcome
from onefold.producers import Sequences
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

if TYPE_CHECKING:
    from onefold.cli.main import main
    from onefold.outbox.endpoint import Endpoint
    from onefold.producers.client import Producer
    from onefold.producers.records import Kind
    from onefold.producers.topic import Topics
    from onefold.reconcile import ItemSet, Session
    from onefold.report import RunReport

__version__ = "0.2.0"

__all__ = [
    "Answer",
    "BadInput",
    "ChainDetector",
    "Endpoint",
    "Event",
    "IdDetector",
    "ItemSet",
    "Kind",
    "Message",
    "Misuse",
    "Number",
    "OnefoldError",
    "OrderedChain",
    "Out",
    "Outcome",
    "Producer",
    "Released",
    "Resend",
    "RunReport",
    "Sequences",
    "Session",
    "StoreFailed",
    "Tally",
    "Topics",
    "Unfillable",
    "Verdict",
    "__version__",
    "main",
]

__getattr__ = loaded_on_use(
    __name__,
    {
        "Endpoint": "outbox.endpoint",
        "ItemSet": "reconcile",
        "Kind": "producers.records",
        "Producer": "producers.client",
        "RunReport": "report",
        "Session": "reconcile",
        "Topics": "producers.topic",
        "main": "cli.main",
    },
)

sys.meta_path.append(MovedFinder())
