"""The handler on trial: it must be a function of state and message, without side effects.

For each input the handler is called twice, and the two results must be equal. During the calls, Python's *audit events*
show files, sockets and processes: a handler that writes, connects or starts something does it again with each call, and
a crash does not undo it. A *profile function* sees calls of clocks and random numbers; such a handler is called
`CHANCE_CALLS` times, because two results may be equal by luck.

Not seen: what a library written in C does by itself (libpq connects unseen), and what other threads do.
"""

from __future__ import annotations

import inspect
import json
import linecache
import logging
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import date
from functools import cache, wraps
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final, NamedTuple

from onefold.outbox.explore.topology import Wrong
from onefold.outbox.plans import Asked, Call, Handle, Handled, HandlerFailed, Handling, Message, pack
from onefold.outbox.runner import HandlerCalls, Loop, Work

FINDINGS_MAX: Final = 5
CHANCE_CALLS: Final = 100


class HandlerWrong(Exception):
    """What is wrong with the handler, in one sentence."""

    def __init__(self, wrong: Wrong, text: str) -> None:
        super().__init__(text)
        self.wrong = wrong


class Deed(NamedTuple):
    """A side effect of a handler."""

    what: str
    where: str
    wrong: Wrong | None
    """None: it only read something."""

    def __str__(self) -> str:
        return f"{self.what} at {self.where}"


class Handlers:
    def __init__(self) -> None:
        self._findings: dict[str, None] = {}
        self._answers: dict[tuple[Any, ...], Handled | Asked] = {}
        """By handler, queue, name and body of the message, state, answers. Not by its token, which differs between
        attempts, so that the result is the same as without faults."""
        self._outside: dict[str, Any] = {}
        """The response to each key: a provider that honours keys repeats it."""
        _listen()

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(self._findings)[:FINDINGS_MAX]

    def answer(self, handling: Handling, message: Message, step: Handle) -> Handled | Asked:
        asked = pack(step.state), pack(dict(step.answers))
        key = (handling.call, message.to, message.token.partition("@")[0], pack(message.body), *asked)
        if key not in self._answers:
            self._answers[key] = self._tried(handling, message, *asked)
        return self._answers[key]

    def outside(self, handling: Handling, message: Message, step: Call) -> Any:
        """The response of an external call, which is made once per message and name, and not watched."""
        key = f"{message.token.partition('@')[0]}:{step.name}"
        if key not in self._outside:
            self._outside[key] = _call(handling, message, step, {}, _unwatched)
        return self._outside[key]

    def handled(self, handling: Handling, message: Message, state: Any) -> Handled:
        """The handler's result, after all its external calls."""
        answers: dict[str, Any] = {}
        while not isinstance(done := self.answer(handling, message, Handle(state, 0, answers)), Handled):
            step = Call(done.name, f"{message.token}:{done.name}", done.call)
            answers[done.name] = self.outside(handling, message, step)
        return done

    def _tried(self, handling: Handling, message: Message, state: str, answers: str) -> Handled | Asked:
        deeds: dict[Deed, None] = {}
        first: Handled | Asked | None = None
        calls = 2
        while calls:
            calls -= 1
            try:
                answer = _call(handling, message, Handle(json.loads(state), 0, json.loads(answers)), deeds, _watching)
            finally:  # also if the call failed: a side effect may be the reason
                for deed in deeds:
                    if deed.wrong is Wrong.ACTS:
                        why = "each call does it again, and a crash does not undo it"
                        raise HandlerWrong(Wrong.ACTS, f"the handler {deed}: {why}") from None
            if first is None:
                first = answer
                if any(deed.wrong is Wrong.CHANCE for deed in deeds):
                    calls = CHANCE_CALLS
            elif answer != first and not (_describe(answer) == _describe(first) and isinstance(answer, Asked)):
                by = f" ({'; '.join(map(str, deeds))})" if deeds else ""
                where = f"{message.to}: for {pack(message.body)} with the state {state}"
                answers = f"it returned {_describe(first)}, then {_describe(answer)}"
                raise HandlerWrong(Wrong.CHANCE, f"the handler depends on more than its input{by}: {where} {answers}")
        assert first is not None
        for deed in deeds:
            many = f" ({CHANCE_CALLS} more results were equal)" if deed.wrong else ""
            self._findings[f"{message.to}: the handler {deed}{many}"] = None
        return first


Watch = Callable[[dict["Deed", None]], AbstractContextManager[None]]


def _call(handling: Handling, message: Message, step: Handle | Call, deeds: dict[Deed, None], watch: Watch) -> Any:
    @wraps(handling.call)  # keeps the signature
    def watched(*values: Any, **named: Any) -> Any:
        with watch(deeds):
            answer = handling.call(*values, **named)
        return awaited(answer) if inspect.iscoroutine(answer) else answer

    async def awaited(answer: Any) -> Any:
        with watch(deeds):
            return await answer

    _, copy = handling.read(message._replace(body=json.loads(pack(message.body))))
    try:
        with closing(Loop()) as loop:
            answer = HandlerCalls(loop)(Work(copy, None, handling._replace(call=watched)), step)
            return answer.result() if isinstance(answer, Future) else answer
    except HandlerFailed as failed:
        error = failed.__cause__
        text = str(error) if type(error).__module__.startswith("onefold") else f"{type(error).__name__}: {error}"
        where = f"with the state {pack(step.state)}" if isinstance(step, Handle) else f"calling {step.name} outside"
        raise HandlerWrong(Wrong.HANDLER, f"the handler fails on {pack(message.body)} {where}: {text}") from error


def _unwatched(deeds: dict[Deed, None]) -> AbstractContextManager[None]:
    return nullcontext()


def _describe(answer: Handled | Asked) -> str:
    if isinstance(answer, Asked):
        return f"by calling {answer.name} outside"
    messages = [f"{out.to} {pack(out.body)}" for out in answer.outgoing]
    return f"{pack(answer.state)} and sent {', '.join(messages) or 'nothing'}"


_deeds: Final[ContextVar[dict[Deed, None] | None]] = ContextVar("deeds", default=None)


@contextmanager
def _watching(deeds: dict[Deed, None]) -> Iterator[None]:
    profile, token = sys.getprofile(), _deeds.set(deeds)
    sys.setprofile(_on_call)
    try:
        yield
    finally:
        sys.setprofile(profile)
        _deeds.reset(token)


@cache
def _listen() -> None:
    """Once per process: an audit hook cannot be removed."""
    sys.addaudithook(_on_event)


def _on_event(event: str, values: tuple[Any, ...]) -> None:
    if (words := _EVENTS.get(event)) is None or (deeds := _deeds.get()) is None:
        return
    token = _deeds.set(None)  # this function's own file accesses do not count
    try:
        is_write, what = words(*values) if callable(words) else (True, f"{words} {values[0]!r:.200}")
        if what and (where := _place(sys._getframe(1))):
            deeds[Deed(what, where, Wrong.ACTS if is_write else None)] = None
    finally:
        _deeds.reset(token)


def _opens(path: Any, mode: str | None, flags: int) -> tuple[bool, str]:
    if isinstance(path, int) or path == os.devnull:
        return False, ""
    is_write = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
    return is_write, f"{'writes' if is_write else 'reads'} the file {os.fsdecode(path)!r}"


def _connects(socket: object, address: object) -> tuple[bool, str]:
    return True, f"calls {address!r}"


def _starts(program: object, arguments: object, *_: object) -> tuple[bool, str]:
    return True, f"starts {arguments!r:.200}"


def _joins(path: Any) -> tuple[bool, str]:
    return True, "" if path in (":memory:", b":memory:") else f"opens the database {path!r}"


def _forks(*_: object) -> tuple[bool, str]:
    return True, "starts a process"


def _requests(url: object, data: object, headers: object, method: str) -> tuple[bool, str]:
    return True, f"calls {method} {url}"


_EVENTS: Final[Mapping[str, str | Callable[..., tuple[bool, str]]]] = MappingProxyType({
    "open": _opens, "os.remove": "removes", "os.rename": "renames", "os.mkdir": "makes the folder",
    "os.rmdir": "removes the folder", "os.link": "links", "os.symlink": "links", "os.truncate": "cuts",
    "os.chmod": "changes the mode of", "os.chown": "changes the owner of", "os.utime": "changes the time of",
    "sqlite3.connect": _joins, "urllib.Request": _requests, "socket.connect": _connects,
    "socket.sendto": _connects, "socket.sendmsg": _connects, "socket.bind": _connects,
    "socket.getaddrinfo": "looks up the host", "socket.gethostbyname": "looks up the host",
    "subprocess.Popen": _starts, "os.posix_spawn": _starts, "os.system": "starts", "os.exec": "starts",
    "os.fork": _forks, "os.forkpty": _forks, "os.kill": "sends a signal to the process",
})  # fmt: skip

_CLOCKS: Final = (time.time, time.time_ns)
_SHARED_CHANCE: Final = getattr(random.random, "__self__", None)


def _on_call(frame: FrameType, event: str, function: Any) -> None:
    if event != "c_call" or (deeds := _deeds.get()) is None:
        return
    owner = getattr(function, "__self__", None)
    if function is os.urandom or (owner is _SHARED_CHANCE and owner is not None):
        what = "draws random numbers"
    elif function in _CLOCKS or (isinstance(owner, type) and issubclass(owner, date) and function.__name__ in _NOW):
        what = "reads the clock"
    else:
        return
    if where := _place(frame):
        deeds[Deed(what, where, Wrong.CHANCE)] = None


_NOW: Final = frozenset({"now", "utcnow", "today"})
_LIBRARIES: Final = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib")})
_HERE: Final = f"{Path(__file__).parents[2]}{os.sep}"
_INNOCENT: Final = frozenset({logging.__file__, linecache.__file__})
"""Logging does not count as a side effect, and printing a traceback reads source files."""


def _place(frame: FrameType | None) -> str:
    """The line in the user's code; empty for what Python does by itself: an import, a log line."""
    place, file = "", ""
    while frame is not None and file != __file__:
        code = frame.f_code
        file = code.co_filename
        if file in _INNOCENT or file.startswith("<frozen importlib"):
            return ""
        if not place and not file.startswith(("<frozen", _HERE, *_LIBRARIES)):
            near = os.path.relpath(file) if file.startswith(f"{Path.cwd()}{os.sep}") else os.path.basename(file)
            place = f"{near}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return place or "a library"
