"""Progress: on a terminal a live line with Spark's tasks, elsewhere one plain line per step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.text import Text

REFRESH_S = 0.25


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that says which step has begun."""
    if not console.is_terminal:
        yield lambda step: console.print(f"{step} ...", highlight=False)
        return
    state = {"step": "starting"}
    done = threading.Event()
    started = monotonic()
    with console.status(state["step"]) as status:

        def refresh() -> None:
            while not done.wait(REFRESH_S):
                status.update(f"{state['step']}{_tasks()}  [dim]{monotonic() - started:.0f} s[/]")

        watcher = threading.Thread(target=refresh, daemon=True)
        watcher.start()
        try:
            yield lambda step: state.update(step=step)
        finally:
            done.set()
            watcher.join()


def _tasks() -> str:
    from onefold.spark.session import running_tasks

    finished, total = running_tasks()
    return f"  {finished} of {total} tasks" if total else ""


@contextmanager
def one_line(console: Console, first: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line in the place of the one before; only on a terminal, and without Spark."""
    if not console.is_terminal:
        yield lambda line: None
        return
    shown_at = monotonic()
    with console.status(Text(first)) as status:

        def show(line: str) -> None:
            nonlocal shown_at
            if monotonic() - shown_at >= REFRESH_S:
                shown_at = monotonic()
                status.update(Text(line))

        yield show
