"""A channel to a peer in this process: what is sent is answered at once, and the answer waits to be received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from onefold.errors import Misuse


class Pipe:
    """Both ends of a conversation in one thread, without a socket.

    >>> pipe = Pipe(bytes.upper)
    >>> pipe.send(b"first"); pipe.send(b"second")
    >>> pipe.receive(), pipe.receive()
    (b'FIRST', b'SECOND')
    """

    def __init__(self, answer: Callable[[bytes], bytes], close: Callable[[], None] = lambda: None) -> None:
        self._answer = answer
        self._close = close
        self._answers: deque[bytes] = deque()
        self._closed = False

    def send(self, data: bytes) -> None:
        """Have it answered."""
        if self._closed:
            raise ConnectionError("the pipe is closed")
        self._answers.append(self._answer(data))

    def receive(self) -> bytes:
        """The oldest answer; `Misuse` if nothing was sent for it, because then none will ever come."""
        if self._closed:
            raise ConnectionError("the pipe is closed")
        if not self._answers:
            raise Misuse("nothing was sent that has no answer yet")
        return self._answers.popleft()

    def close(self) -> None:
        """Close the other end too. May be called twice."""
        if not self._closed:
            self._closed = True
            self._close()
