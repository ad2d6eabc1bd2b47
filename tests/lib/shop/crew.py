"""Processes that run the shop, and what is done to them: killed, stopped in their tracks, started again."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from tests.lib.shop.counting import Books, Place

ROOT = Path(__file__).parents[3]
STAGES = ("orders", "payments", "shipping")
POLL_S = 0.05
START_S = 60
NO_SERVER = 3
"""The exit code of a command that could not be completed."""
AIMED = 0.7
"""So many of the kills wait for the moment when something is in the worker's outbox; the others come at any time."""
AIM_S = 0.3
LEASE_S = 1.0
"""Short: what a killed process had in hand waits so long."""
Say = Callable[[str], None]


class Worker:
    """One process of the shop, through all its lives."""

    def __init__(self, name: str, words: Iterable[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.name, self.lives, self.vain = name, 0, 0
        self._command = [sys.executable, *words]
        self._environ = {**os.environ, **environ}
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        self.vain += self.ended == NO_SERVER
        self.lives += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environ, cwd=ROOT)

    def up(self) -> None:
        """Wait until it works: a consumer says so, the till does from the beginning."""
        until = monotonic() + START_S
        while (
            self.name != "till" and self._log.read_text(errors="replace").count(" consumes ") < self.lives - self.vain
        ):
            assert monotonic() < until, self.last_words()
            if self.ended == NO_SERVER:
                self.launch()
            sleep(POLL_S)

    @property
    def ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def end(self, number: int) -> int:
        """Its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self.signal(number)
        return self._process.wait(60)

    def last_words(self) -> str:
        return f"{self.name}: " + self._log.read_text(errors="replace")[-2_000:]


@dataclass
class Trouble:
    """What is done to whom while the shop works."""

    kills: int
    freezes: int = 0
    """A worker is stopped for longer than its lease and goes on then, while another has its messages."""
    restarts: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """Servers, and how each is killed and started again."""
    restart_count: int = 0
    seed: int = 1
    done: Counter[str] = field(default_factory=Counter)
    cut_off: int = 0
    """Kills after which something was in the stage's outbox: between the effect of a message and its end.

    Where a stage has several workers it may be another one's.
    """

    def schedule(self) -> list[str]:
        """In which order, evenly mixed."""
        names = [*self.restarts] or [""]
        servers = [names[n % len(names)] for n in range(self.restart_count)]
        acts = ["kill"] * self.kills + ["freeze"] * self.freezes + servers
        random.Random(self.seed).shuffle(acts)
        return acts


class Crew:
    """The till and the consumers, so many of each stage."""

    def __init__(self, folder: Path, place: Place, many: int, customers: int, *, each: int = 1, batch: int = 64):
        self.folder, self.place, self.many, self.customers = folder, place, many, customers
        folder.mkdir(parents=True, exist_ok=True)
        environ = place.environ()
        till = ["-m", "tests.lib.shop.app", str(many), str(customers)]
        self.till = Worker("till", till, folder, environ)
        words = ["--lease-s", str(LEASE_S), "--batch", str(batch)]
        self.consumers = [
            Worker(
                f"{stage}-{n}",
                ["-m", "onefold.cli.main", "consume", f"tests.lib.shop.app:{stage}", *words],
                folder,
                environ,
            )
            for stage in STAGES
            for n in range(1, each + 1)
        ]

    def run(self, trouble: Trouble, *, within_s: float, say: Say | None = None) -> float:
        """Let them work, and do that to them, until every order is shipped and the queues are empty: the seconds."""
        rng, acts = random.Random(trouble.seed), trouble.schedule()
        began, told = monotonic(), monotonic()
        with ExitStack() as ending, Books(self.place) as books:
            ending.callback(self._end_all)
            for worker in (self.till, *self.consumers):
                worker.launch()
            made = 0
            while (shipped := books.shipped()) < self.many or acts[made:] or not books.is_quiet():
                self._look(monotonic() - began, within_s, shipped)
                if made < len(acts) and shipped >= self.many * (made + 0.5) / (len(acts) + 1):
                    self._act(acts[made], trouble, rng, books)
                    made += 1
                if say is not None and monotonic() - told > 10:
                    told = monotonic()
                    say(f"{told - began:4.0f} s  {shipped:>7,} shipped  {dict(trouble.done)}")
                sleep(POLL_S)
            assert self.till.end(signal.SIGTERM) == 0, self.till.last_words()
            for worker in self.consumers:  # 1: something was set aside
                worker.up()
                assert worker.end(signal.SIGTERM) == 0, worker.last_words()
        return monotonic() - began

    def _act(self, act: str, trouble: Trouble, rng: random.Random, books: Books) -> None:
        if act in trouble.restarts:
            trouble.restarts[act]()
            trouble.done[f"{act} restarted"] += 1
            return
        worker = rng.choice([self.till, *self.consumers] if self.till.ended is None else self.consumers)
        stage = worker.name.partition("-")[0]
        worker.up()
        if rng.random() < AIMED:
            books.await_entry(stage, AIM_S)
        else:
            sleep(rng.uniform(0, 0.1))
        if act == "freeze":
            worker.signal(signal.SIGSTOP)
            sleep(1.5 * LEASE_S)
            worker.signal(signal.SIGCONT)
        else:
            worker.end(signal.SIGKILL)
            trouble.cut_off += books.has_entry(stage)
            worker.launch()
        trouble.done[f"{stage} {'killed' if act == 'kill' else 'stopped'}"] += 1

    def _look(self, passed_s: float, within_s: float, shipped: int) -> None:
        for worker in self.consumers:
            assert worker.ended in (None, NO_SERVER), worker.last_words()
            if worker.ended is not None:  # started while a server was down: whoever runs it starts it again
                worker.launch()
        assert not self.till.ended, self.till.last_words()
        if passed_s > within_s:
            words = "\n".join(worker.last_words() for worker in (self.till, *self.consumers))
            raise AssertionError(f"{shipped} of {self.many} shipped after {passed_s:.0f} s\n{words}")

    def _end_all(self) -> None:
        for worker in (self.till, *self.consumers):
            worker.end(signal.SIGKILL)


def shop(
    root: Path, place: Place, many: int, trouble: Trouble, *, customers: int = 100, each: int = 1,
    within_s: float = 120, say: Say | None = None,
) -> tuple[str, float]:  # fmt: skip
    """Run it under that trouble, and count: what came of it in words and the seconds, or an AssertionError."""
    seconds = Crew(root / "crew", place, many, customers, each=each).run(trouble, within_s=within_s, say=say)
    with Books(place) as books:
        return books.check(many, customers), seconds
