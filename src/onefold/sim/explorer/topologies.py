"""The worlds that the library's own plans are explored in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from onefold.engines.outbox.handling import Out
from onefold.engines.outbox.record import Message
from onefold.sim.explorer.topology import Handling, Source, Stage, Topology


def order(state: Any, message: Message) -> Any:
    """Keeps which orders it saw, and asks for the payment of each."""
    return [*(state or []), message["n"]], [Out("payment", {"n": message["n"]})]


def pay(state: Any, message: Message) -> Any:
    """Keeps which payments it saw; sends nothing."""
    return [*(state or []), message["n"]], []


def tell(state: Any, message: Message) -> Any:
    """Keeps which payments it saw, and tells a queue that nobody handles here."""
    return [*(state or []), message["n"]], [Out("told", {"n": message["n"]})]


def announce(state: Any, message: Message) -> Any:
    """Sends to two queues at once."""
    return [*(state or []), message["n"]], [Out(("payment", "told"), {"n": message["n"]})]


def close(state: Any, message: Message) -> Any:
    """The second message deletes the entity and tells what it was; the others make it or add to it."""
    if message["n"] == 2:
        return None, [Out("told", {"was": state})]
    return [*(state or []), message["n"]], []


def stage(name: str, call: Any, workers: int) -> Stage:
    """An endpoint with one handler; all its messages are for one entity."""
    return Stage(name, (Handling(name, call, lambda message: "one"),), workers)


def _sent(queue: str, many: int) -> tuple[tuple[str, Any], ...]:
    return tuple((queue, {"n": number}) for number in range(1, many + 1))


def _topologies() -> list[Topology]:
    marks = tuple((Out("payment", {"n": number}),) for number in (1, 2))
    return [
        Topology(
            "one-to-two", "one upstream worker, two consumers", (stage("order", order, 1), stage("payment", tell, 2)),
            _sent("order", 1), crashes=1, expiries=2,
        ),
        Topology(
            "two-to-one", "two upstream workers, one consumer", (stage("order", order, 2), stage("payment", pay, 1)),
            _sent("order", 1), crashes=2, expiries=1,
        ),
        Topology(
            "two-to-two", "two upstream workers, two consumers", (stage("order", order, 2), stage("payment", pay, 2)),
            _sent("order", 1), crashes=0, expiries=1,
        ),
        Topology(
            "one-entity", "two messages on one entity", (stage("payment", tell, 2),), _sent("payment", 2),
            crashes=0, expiries=1,
        ),
        Topology(
            "pumped", "two messages on one entity, and a pump", (stage("payment", tell, 2),), _sent("payment", 2),
            crashes=0, expiries=0, pumps=1,
        ),
        Topology(
            "recreated", "an entity that is deleted and made again", (stage("payment", close, 2),),
            _sent("payment", 3), crashes=0, expiries=1,
        ),
        Topology(
            "two-queues", "one message to two queues, copies, and a pump",
            (stage("order", announce, 1), stage("payment", pay, 1)), _sent("order", 1),
            crashes=1, expiries=0, copies=1, pumps=1,
        ),
        Topology(
            "source", "a source with two marks, and a pump", (), (), Source("shop", "orders.log", marks, 2),
            crashes=0, expiries=1, pumps=1,
        ),
    ]  # fmt: skip


TOPOLOGIES: Final[Mapping[str, Topology]] = MappingProxyType({each.name: each for each in _topologies()})
"""By name."""
