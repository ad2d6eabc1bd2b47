"""Workers that die: an attempt that is led up to a step, and no further."""

from onefold import Endpoint
from onefold.outbox import PLANS, handled
from onefold.outbox.plans import Dispatch, Handle, unpack_message


def cut_off(app: Endpoint, queue: str, before: type = Dispatch, lease_ms: int = 1) -> str:
    """Lease one message, process it until just before such a step, and die; its token."""
    [delivery] = app.world.queue.lease([queue], 1, lease_ms)
    work = app.work(unpack_message(delivery.payload))
    assert work.key is not None
    attempt = PLANS[app.plan](work.key, work.message)
    step = next(attempt)
    while not isinstance(step, before):
        if isinstance(step, Handle):
            answer = handled(work.handling.call(step.state, work.message), work.message)
        else:
            [answer] = app.world.perform(type(step), [step])
        step = attempt.send(answer)
    return work.message.token
