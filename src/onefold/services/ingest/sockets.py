"""The websocket: requests come pipelined and are stored in the order in which they came.

What was read while the last round was being stored makes the next round: one submit, so that all of it is judged in one
go. No request is judged while an earlier one on its connection waits for the disk. If it were, and the earlier one's
write failed in between, the later message would be stored without the earlier one; and the retry of that, below the
highest stored sequence by then, would be taken for a repeat: lost.

After a request that could not be answered for good (unsure, busy, failed) nothing more is judged: everything that was
sent behind it gets "try again", and the connection is closed with 1013. The client connects again, which gives it a new
epoch, and sends what has no receipt.
"""

import asyncio
import json
from typing import Final, NamedTuple

from starlette.websockets import WebSocket, WebSocketDisconnect

from onefold.errors import BadInput, Busy
from onefold.links.batch import BatchRequest, Status, decode_request, encode_reply, request_number
from onefold.services.ingest.committing import Desk
from onefold.services.ingest.guard import refusal
from onefold.services.ingest.service import Service
from onefold.services.requests import Message, Session
from onefold.verdict import Verdict

TRY_AGAIN: Final = 1013
RESTART: Final = 1012
BAD_DATA: Final = 1007
NOT_BINARY: Final = 1003
BEHIND: Final = "not judged: a request before it has to be sent again"


async def serve(websocket: WebSocket, service: Service, desk: Desk, name: str | None) -> None:
    """Open a session and answer its requests until one side has enough."""
    service.check_open()
    session = await desk.connect(name)
    await websocket.accept()
    limits = service.limits
    sizes = {"message_bytes_max": desk.topic.settings.message_bytes_max, "batch_messages_max": limits.messages_max,
             "batch_bytes_max": limits.body_bytes_max}  # fmt: skip
    await websocket.send_text(json.dumps({**session._asdict(), **sizes}))
    connection = _Connection(websocket, service, desk, session)
    service.sockets.add(connection)
    if service.closing:  # since a moment ago
        connection.stop()
    try:
        await connection.run()
    finally:
        service.sockets.discard(connection)


class _Asked(NamedTuple):
    """A request that was read: its number, and its messages or why there are none."""

    number: int
    size: int
    messages: list[Message]
    wrong: str | None = None
    busy: bool = False


class _Connection:
    def __init__(self, websocket: WebSocket, service: Service, desk: Desk, session: Session) -> None:
        self._websocket = websocket
        self._budget = service.budget
        self._limits = service.limits
        self._desk = desk
        self._session = session
        self._read: list[_Asked] = []  # not judged yet
        self._round: list[_Asked] = []  # judged, not answered yet
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._end: tuple[int, str] | None = None  # of the reading: what is read is still answered
        self._reader: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Read no more; answer what was read, then close."""
        self._finish(RESTART, "the server is shutting down")

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._reading())
        try:
            code, reason = await self._answering()
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass  # the other side has gone: starlette and uvicorn say so in these ways
        finally:
            self._reader.cancel()
            for asked in self._round + self._read:
                self._budget.give(asked.size)

    # --- reading ------------------------------------------------------------------------------------------------

    async def _reading(self) -> None:
        try:
            await self._read_on()
        finally:
            self._finish(1011, "")  # does nothing where the reason is known

    async def _read_on(self) -> None:
        while self._end is None:
            while self._full():
                self._room.clear()
                await self._room.wait()
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._finish(1000, "")
                return
            data = message.get("bytes")
            if data is None:
                self._finish(NOT_BINARY, "a request is binary")
                return
            asked = self._asked(data)
            self._read.append(asked)
            self._news.set()
            if asked.wrong is not None:
                return

    def _full(self) -> bool:
        in_hand = self._read + self._round
        limits = self._limits
        return len(in_hand) >= limits.outstanding_max or sum(asked.size for asked in in_hand) > limits.body_bytes_max

    def _finish(self, code: int, reason: str) -> None:
        self._end = self._end or (code, reason)
        self._news.set()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()

    def _asked(self, data: bytes) -> _Asked:
        number = request_number(data)
        try:
            self._budget.take(len(data))
        except Busy as error:
            return _Asked(number, 0, [], str(error), busy=True)
        limits = self._limits
        try:
            request = decode_request(data, messages_max=limits.messages_max, bytes_max=limits.body_bytes_max)
            self._own(request)
        except BadInput as error:
            return _Asked(number, len(data), [], str(error))
        return _Asked(number, len(data), request.messages)

    def _own(self, request: BatchRequest) -> None:
        name, epoch, _, _ = self._session
        if request.producer != name:
            raise BadInput(f"the producer is {request.producer!r}, this session's is {name!r}")
        if request.epoch != epoch:
            raise BadInput(f"the epoch is {request.epoch or 0}, this session's is {epoch}")

    # --- answering ----------------------------------------------------------------------------------------------

    async def _answering(self) -> tuple[int, str]:
        """Answer round after round; how it ends."""
        while True:
            while not self._read:
                if self._end is not None:
                    return self._end
                self._news.clear()
                await self._news.wait()
            self._round, self._read = self._read, []
            stopped = await self._answer([asked for asked in self._round if asked.wrong is None])
            if stopped is None and self._round[-1].wrong is not None:
                stopped = await self._refuse(self._round[-1])
            if stopped is not None:
                return stopped
            self._settle()

    def _settle(self) -> None:
        for asked in self._round:
            self._budget.give(asked.size)
        self._round = []
        self._room.set()

    async def _answer(self, together: list[_Asked]) -> tuple[int, str] | None:
        """Store a round and tell; how the connection must end if it was not all answered for good."""
        if not together:
            return None
        name, epoch, _, _ = self._session
        self._desk.topic.arrive(sum(len(asked.messages) for asked in together))
        try:
            receipts = await self._desk.publish(name, [m for asked in together for m in asked.messages], epoch)
        except Exception as error:
            status, told = (Status.BUSY, str(error)) if isinstance(error, Busy) else (Status.FAILED, refusal(error)[1])
            for asked in together:
                await self._reply(asked, status, told)
            return await self._give_up(status)
        at = 0
        for asked in together:
            end = at + len(asked.messages)
            await self._websocket.send_bytes(encode_reply(asked.number, Status.OK, receipts[at:end]))
            at = end
        if any(receipt.verdict == Verdict.UNSURE for receipt in receipts):
            return await self._give_up(Status.BUSY)
        return None

    async def _give_up(self, status: Status) -> tuple[int, str]:
        """Tell everybody behind that they were not judged."""
        self._finish(TRY_AGAIN, "try again")
        refused = [asked for asked in self._round if asked.wrong is not None]
        for asked in refused + self._read:
            await self._reply(asked, status, BEHIND)
        return TRY_AGAIN, "try again"

    async def _refuse(self, asked: _Asked) -> tuple[int, str]:
        status = Status.BUSY if asked.busy else Status.REFUSED
        await self._reply(asked, status, asked.wrong or "")
        return (TRY_AGAIN, "try again") if asked.busy else (BAD_DATA, "refused")

    async def _reply(self, asked: _Asked, status: Status, text: str) -> None:
        await self._websocket.send_bytes(encode_reply(asked.number, status, (), text))
