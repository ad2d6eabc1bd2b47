"""The outbox as a service: handlers, and a consumer that gives each message to them exactly once.

endpoint    handlers, stores and transport, by name          calling     how a handler is called, async or not
processing  messages through their plan; `process` for one   consumer    threads, leases, waiting, the end
batches     a leased batch, and what becomes of each         books       the tally, and what is on loan
recovery    what others left unfinished                      metrics     what there is to watch
turns       which thread is at which entity                  watching    /metrics and /healthz of a consumer
"""

from onefold.services.outbox.calling import HandlerFailed, Registered
from onefold.services.outbox.consumer import Consumer, Consuming
from onefold.services.outbox.endpoint import Endpoint
from onefold.services.outbox.processing import process
from onefold.services.outbox.recovery import Recovered

__all__ = ["Consumer", "Consuming", "Endpoint", "HandlerFailed", "Recovered", "Registered", "process"]
