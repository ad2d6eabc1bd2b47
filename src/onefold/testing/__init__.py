"""For your own tests: faulty traffic with known truth, and crash tests of handlers in every order.

    from onefold.testing import explore

    def test_pay():
        explore(pay, [{"order": 7, "sum": 20}, {"order": 7, "sum": 5}], key="order")

`explore` runs the handler under the real plan, on the real SQLite store, with a few workers, and tries every order,
every crash and every expired lease, within its budgets. The final state must be as if the messages had been handled one
after the other, in some order, without a fault. A violation is reported as the shortest history that leads to it. The
plans are right, so the fault is in the handler: it raises in some order, breaks its invariant, answers differently when
called again, or writes files, calls others and starts processes by itself. Side effects that the explorer cannot see
happen once per call: at most `Exploration.calls_max` times.

    from onefold.testing import Faults, Traffic, make, write

    write(make(Traffic(rows=10_000, faults=Faults(copies=0.05))), "traffic")

makes messages with retries, losses and disorder from one seed, and the truth about them; `score` compares a run with
it. `make_readings(Readings(...))` makes numbered readings of devices that reboot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from onefold.errors import BadInput, Misuse
from onefold.moved import loaded_on_use
from onefold.outbox.explore import SHIPPED, STATES_MAX, Convicted, Exploration, Topology, Wrong, explored, together
from onefold.outbox.explore.system import Invariant
from onefold.outbox.explore.topology import Stage
from onefold.outbox.plans import Handling, check_name, check_queue

if TYPE_CHECKING:
    from onefold.testing.events import Events, MadeEvents, make_events
    from onefold.testing.faults import Faults
    from onefold.testing.readings import Readings, make_readings
    from onefold.testing.traffic import Made, Score, Traffic, make, score, write

__all__ = [
    "Convicted", "Events", "Exploration", "Faults", "Made", "MadeEvents", "Readings", "Score", "Traffic", "explore",
    "make", "make_events", "make_readings", "score", "write",
]  # fmt: skip

__getattr__ = loaded_on_use(
    __name__,
    {
        "Faults": "faults",
        **dict.fromkeys(("Made", "Score", "Traffic", "make", "score", "write"), "traffic"),
        **dict.fromkeys(("Events", "MadeEvents", "make_events"), "events"),
        **dict.fromkeys(("Readings", "make_readings"), "readings"),
    },
)

DEFAULT_BODIES: Final = ({"n": 1}, {"n": 2})


def explore(
    handler: Any,
    messages: Iterable[Any] | None = None,
    *,
    key: Any = None,
    plan: str | None = None,
    workers: int = 2,
    crashes: int = 1,
    expiries: int = 1,
    copies: int = 0,
    states_max: int = STATES_MAX,
    invariant: Invariant | None = None,
) -> Exploration:
    """Try every order and fault; raises `Convicted`, an `AssertionError`, if a result is wrong.

    ``handler`` is a function ``(state, message) -> (state, outgoing)``, or an `Endpoint`, whose handlers also get what
    they send to each other. ``messages`` are bodies, or pairs of queue and body; ``key`` names the entity as in
    `Endpoint.handler`, None: one entity for all. ``plan`` may be "all"; None: the endpoint's. ``invariant`` gets all
    states by the name of their entity after each change; it raises `AssertionError` or returns False for a bad one.

    Cost: some 20,000 states per second; each further message, worker or fault multiplies the states by about five.

    >>> def count(state, message):
    ...     return (state or 0) + message["n"], []
    >>> explore(count, crashes=0).complete
    True
    """
    plan = plan or str(getattr(handler, "plan", "transactional"))
    plans = list(SHIPPED) if plan == "all" else [plan]
    if plans[0] not in SHIPPED:
        raise Misuse(f"plan is {plan!r}, must be one of {', '.join(SHIPPED)}, or 'all'", plan=plan)
    if type(states_max) is not int or states_max < 1:
        raise Misuse(f"states_max is {states_max!r}, must be a whole number from 1 up", states_max=states_max)
    if hasattr(handler, "handlers"):
        if key is not None:
            raise Misuse("key has no effect: the handlers of an endpoint have theirs")
        handlings = tuple(handler.handlers.values())
        if not handlings:
            raise Misuse("the endpoint has no handler")
        for each in handlings:
            if each.key is None or each.takes_db:
                raise Misuse(f"{each.queue}: a handler that keeps its state in tables of your own cannot be explored")
        stage = Stage(check_name(str(getattr(handler, "name", "endpoint")), "name"), handlings, workers)
    elif callable(handler):
        name = str(getattr(handler, "__name__", "handler")).strip("_<>") or "handler"
        stage = Stage(name, (Handling(name, handler, (lambda message: "one") if key is None else key),), workers)
    else:
        raise Misuse(f"handler is {handler!r:.100}, must be a function (state, message), or an Endpoint")
    addressed = _addressed(stage, DEFAULT_BODIES if messages is None else messages)
    topology = Topology("given", stage.endpoint, (stage,), addressed, None, crashes, expiries, copies)
    try:
        parts = [
            explored(topology, SHIPPED[name], states_max=states_max, invariant=invariant, endless=True)
            for name in plans
        ]
    except Convicted as convicted:
        if messages is None and convicted.offence.wrong is Wrong.HANDLER and not convicted.states:
            raise Misuse(f"{convicted.offence.text}: pass messages= that it can take") from convicted
        raise
    except BadInput as error:
        raise Misuse(f"{error}: pass messages= that can be taken, and the key= of their entity") from error
    return parts[0] if len(parts) == 1 else together("all", parts)


def _addressed(stage: Stage, messages: Iterable[Any]) -> tuple[tuple[str, Any], ...]:
    """Each body with its queue; `Misuse` if no handler takes it."""
    queues = [handling.queue for handling in stage.handlings]
    pairs = []
    for message in messages:
        if isinstance(message, tuple) and len(message) == 2:
            queue, body = check_queue(message[0]), message[1]
        elif len(queues) > 1:
            raise Misuse(f"{stage.endpoint} handles {', '.join(queues)}: pass messages=[(queue, body), ...]")
        else:
            queue, body = queues[0], message
        if queue not in queues:
            raise Misuse(f"nobody handles {queue!r} here: there is {', '.join(queues)}")
        pairs.append((queue, body))
    if not pairs:
        raise Misuse("messages is empty: there is nothing to explore")
    return tuple(pairs)
