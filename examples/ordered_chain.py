"""One chain, put in order by a small event loop; its clock is a variable, so it runs at once.

Message 3 comes late, 5 must be requested again, 7 is lost. Run it: python examples/ordered_chain.py
"""

import heapq

from onefold import Event, Number, OrderedChain, Released, Resend, Unfillable

Due = tuple[int, str, Number, Number | None]  # when, text, number, previous number

SENT = [((n, 0), (n - 1, 0) if n > 1 else None) for n in range(1, 9)]
ARRIVES_MS = {1: 0, 2: 10, 4: 20, 3: 30, 6: 40, 8: 50}
ARCHIVE = {5}  # messages that can be requested again
RESEND_MS = 25  # how long a request takes


def arrivals() -> list[Due]:
    """The messages that the network delivers by itself."""
    return [(ARRIVES_MS[n[0]], f"message {n[0]}", n, previous) for n, previous in SENT if n[0] in ARRIVES_MS]


def resent(request: Resend) -> list[Due]:
    """The messages that the archive delivers for a request."""
    wanted = [(n, p) for n, p in SENT if n[0] in ARCHIVE and request.first <= n <= request.last]
    return [(request.at_ms + RESEND_MS, f"message {n[0]} (resent)", n, previous) for n, previous in wanted]


def main() -> None:
    """Feed the chain with the messages that are due, in order of time, until nothing is left to do."""
    chain = OrderedChain[str](wait_ms=50, retry_ms=100, requests_max=2, strategy="full")
    queue = arrivals()
    heapq.heapify(queue)
    while queue or chain.due_ms is not None:
        if chain.due_ms is not None and (not queue or chain.due_ms <= queue[0][0]):
            events = chain.tick(chain.due_ms)
        else:
            now_ms, text, number, previous = heapq.heappop(queue)
            events = chain.add(previous, number, text, now_ms).events
        for event in events:
            act(event, queue)
    print(chain)


def act(event: Event[str], queue: list[Due]) -> None:
    """Handle an event of the chain."""
    match event:
        case Released(at_ms, _, message):
            print(f"{at_ms:4} ms  out: {message}")
        case Resend(at_ms, first, last):
            print(f"{at_ms:4} ms  ask for {first} to {last}")
            for due in resent(event):
                heapq.heappush(queue, due)
        case Unfillable(at_ms, lower, upper):
            print(f"{at_ms:4} ms  given up: between {lower} and {upper}")


if __name__ == "__main__":
    main()
