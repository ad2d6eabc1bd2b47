"""Where a worker is in its attempt: its job, and all the answers that it was given so far.

A generator cannot be copied, but it can be led to the same place again: the same answers bring it there. So a place is
the job with its answers, and has a number; the generator is run once per place, to see what it asks for next. The
handler is called at once where it is asked for: what nobody else can see needs no step of its own.
"""

from __future__ import annotations

from typing import Any

from onefold.engines.outbox.steps import Handle, Outcome
from onefold.sim.explorer.parcels import Job


class Places:
    """All places so far, by number: one list per thing that is known of each."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.answers: list[tuple[Any, ...]] = []
        self.steps: list[Any] = []
        """What is asked for; None: it has ended."""
        self.step_numbers: list[int] = []
        """Equal steps have equal numbers."""
        self.outcomes: list[Outcome | None] = []
        self.carries: list[bool] = []
        """The handler was called, and what it made is not written yet."""
        self.called: list[bool] = []
        """The handler was called on the way from the place before."""
        self._begun: dict[int, int] = {}
        self._after: dict[tuple[int, str], int] = {}
        self._numbers: dict[str, int] = {}

    def begin(self, job: Job) -> int:
        """Where a job begins."""
        if id(job) not in self._begun:
            self._begun[id(job)] = self._place(job, (), False)
        return self._begun[id(job)]

    def after(self, place: int, answer: Any, *, written: bool = False) -> int:
        """Where this answer leads; ``written``: with it, what the handler made is in the store."""
        key = (place, repr(answer))
        if key not in self._after:
            carries = self.carries[place] and not written
            self._after[key] = self._place(self.jobs[place], (*self.answers[place], answer), carries)
        return self._after[key]

    def _place(self, job: Job, answers: tuple[Any, ...], carries: bool) -> int:
        attempt, called = job.begin(), False
        step: Any = None
        outcome: Outcome | None = None
        try:
            step = attempt.send(None)
            for answer in answers:
                step = attempt.send(answer)
            while isinstance(step, Handle):
                assert job.answer is not None, "this job has nothing to handle"
                made = job.answer(step.state)
                answers, carries, called = (*answers, made), True, True
                step = attempt.send(made)
        except StopIteration as stop:
            step, outcome = None, stop.value
        attempt.close()
        return self._keep(job, answers, step, outcome, carries, called)

    def _keep(
        self, job: Job, answers: tuple[Any, ...], step: Any, outcome: Outcome | None, carries: bool, called: bool
    ) -> int:
        self.jobs.append(job)
        self.answers.append(answers)
        self.steps.append(step)
        self.step_numbers.append(self._numbers.setdefault(f"{type(step).__name__} {step!r}", len(self._numbers)))
        self.outcomes.append(outcome)
        self.carries.append(carries)
        self.called.append(called)
        return len(self.jobs) - 1
