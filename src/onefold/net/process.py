"""What every long-running process needs: signals that end it, and its errors as lines."""

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from onefold.text import printable, without_logins


@contextmanager
def on_signals(act: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Call ``act`` on Ctrl-C and SIGTERM; outside the main thread, which alone gets signals, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, act) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped_by_signals(stop: threading.Event) -> AbstractContextManager[None]:
    """The first signal sets ``stop``, to end after the current work; a second one raises KeyboardInterrupt."""

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    return on_signals(ask)


@contextmanager
def one_line_errors(names: Sequence[str], level: int = logging.ERROR, *, tracebacks: bool = False) -> Iterator[None]:
    """Print the errors of these loggers to standard error, one line each, with their ``tracebacks`` if asked."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(tracebacks))
    handler.setLevel(level)
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True


class _OneLine(logging.Formatter):
    def __init__(self, tracebacks: bool) -> None:
        super().__init__("onefold: %(message)s")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        record.exc_info, record.exc_text, record.stack_info = None, None, None
        lines = [super().format(record)]
        if error and self._tracebacks:
            lines += "".join(traceback.format_exception(error)).splitlines()
        elif error:
            lines[0] += f": {type(error).__name__}: {error}"
        lines[0] = " ".join(lines[0].split())
        return "\n".join(printable(without_logins(line)) for line in lines)
