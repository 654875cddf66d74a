"""An application that connects over a WebSocket (docs/app-channels.md).

One application is connected at a time. Messages without an answer at the end of its connection are delivered again, in
order and without counting as an attempt, to the next connection or, after a grace, to other members.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import WSCloseCode, WSMsgType, web

from lbg_core.counted_nouns import counted
from lbg_core.http_listener import report
from lbg_sidecar.app.channel import REQUESTED_AGAIN, AppChannel, Calls, Extension
from lbg_sidecar.app.cloudevents import message_json
from lbg_sidecar.app.websocket_protocol import SUBPROTOCOL, Conversation, Hello, messages_frame, read_hello
from lbg_sidecar.core.limits import ConcurrencyLimit
from lbg_sidecar.errors import StreamError
from lbg_sidecar.message import INTERRUPTED, Message, retry

TOO_LATE = 4408
"""A close code of our own, after HTTP's 408; RFC 6455, 7.4.2 leaves 4000 to 4999 to applications."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """One stream.

    - `concurrency`: messages that may be unanswered, whatever credit the application grants.
    - `reconnect_grace_s`: how long no application may be connected before other members get the queues. 1 s outlasts an
      application that connects anew, and is less than one that starts anew.
    - `hello_limit_s`: how long a connection may wait with its first frame.
    - `cancel_limit_s`: how long the application may take to confirm a cancel before its connection is closed. 2 s
      leaves a handoff (3 s) time to end.
    - `heartbeat_s`: an application that was silent for so long is pinged. With no message to work on it must answer
      within half of that; with one it may be busy in blocking code, and has the time of a call.
    - `frame_bytes`: a frame with messages is not filled beyond this; a single message may be longer.
    - `answer_max_bytes`: the longest frame that the application may send.
    """

    concurrency: int
    reconnect_grace_s: float = 1.0
    hello_limit_s: float = 5.0
    cancel_limit_s: float = 2.0
    heartbeat_s: float = 5.0
    frame_bytes: int = 256 * 1024
    answer_max_bytes: int = 1024 * 1024


class Disconnected(Exception):
    """The other side closed, or is dead: the text gives the cause."""


class Ended(Exception):
    """This side closes the connection."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason


class StreamConnection:
    """One connection after its hello: a reader, and a writer that takes no message while the last frame is unsent."""

    def __init__(self, calls: Calls, settings: StreamSettings, hello: Hello) -> None:
        self._loop = asyncio.get_running_loop()
        self.conversation: Conversation[Message] = Conversation(hello)
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._calls = calls
        self._settings = settings
        self._woken = asyncio.Event()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._to_cancel: list[int] = []
        self._limits: set[asyncio.TimerHandle] = set()
        self._is_silent = False

    def wake(self) -> None:
        self._woken.set()

    def cancel(self, messages: Collection[Message], *, must_confirm: bool = True) -> None:
        """Requests the application to stop these; if it `must_confirm` and does not in time, the connection ends."""
        meant = {message.in_flight for message in messages}

        def is_meant(message: Message) -> bool:
            return message.in_flight in meant

        if numbers := self.conversation.cancel(is_meant):
            self._to_cancel += numbers
            self.wake()
        if must_confirm and (numbers := self.conversation.numbers(is_meant)):
            self._limits.add(self._loop.call_later(self._settings.cancel_limit_s, self._too_late, numbers))

    def end(self, code: int, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(Ended(code, reason))

    async def live(self, socket: web.WebSocketResponse) -> None:
        """Runs until one side ends the connection. Raises the cause."""
        reader = self._loop.create_task(self._read(socket))
        writer = self._loop.create_task(self._write(socket))
        watch = self._loop.create_task(self._watch(socket))
        parts = {reader, writer, watch, self._ended}
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for limit in self._limits:
                limit.cancel()
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _read(self, socket: web.WebSocketResponse) -> None:
        while True:
            self._answered(await text_frame(socket, self._received))
            self.wake()

    def _answered(self, text: str) -> None:
        """Refers to no message once it returns, so that a connection that waits occupies no body's memory."""
        for message, answer in self.conversation.answer(text):
            if isinstance(answer, Extension):
                message.extend(*answer)
            else:
                self._calls.end(message, answer)

    def _received(self) -> None:
        self._is_silent = False

    async def _watch(self, socket: web.WebSocketResponse) -> None:
        """Finds an application that is dead on an open connection. One that works on a message in blocking code cannot
        answer a ping: its calls have the member's limit, which cancels them, and an unconfirmed cancel ends this."""
        interval_s = self._settings.heartbeat_s
        while True:
            self._is_silent = True
            await asyncio.sleep(interval_s)
            if not self._is_silent:
                continue
            await socket.ping()
            await asyncio.sleep(interval_s / 2)
            while self._is_silent:
                if not self.conversation.out:
                    raise Disconnected(f"it answered no ping for {interval_s / 2:g} s")
                await asyncio.sleep(interval_s / 2)

    async def _write(self, socket: web.WebSocketResponse) -> None:
        welcome: dict[str, object] = {"concurrency": self._settings.concurrency}
        if self._calls.session is not None:
            welcome["session"] = self._calls.session
        await socket.send_str(json.dumps({"welcome": welcome}))
        while True:
            if self._to_cancel:
                numbers, self._to_cancel = self.conversation.unanswered(self._to_cancel), []
                if numbers:
                    await socket.send_str(json.dumps({"cancel": numbers}))
            frame = self._frame()
            if frame is not None:
                await socket.send_str(frame)
            elif not self._to_cancel:
                self._woken.clear()
                await self._woken.wait()

    def _frame(self) -> str | None:
        """As many messages as there are, as are allowed, and as fit."""
        take = self._calls.take
        messages: list[Message] = []
        texts: list[str] = []
        size = 0
        room = self.conversation.room(self._settings.concurrency)
        while len(messages) < room and size < self._settings.frame_bytes:
            message = take()
            if message is None:
                break
            try:
                text = message_json(message)
            except OSError as error:
                why = f"its body cannot be read: {error}"
                self._loop.call_soon(self._calls.end, message, retry(why))
                continue
            size += len(text)
            messages.append(message)
            texts.append(text)
        return messages_frame(self.conversation.send(messages), texts) if messages else None

    def _too_late(self, numbers: list[int]) -> None:
        late = self.conversation.unanswered(numbers)
        if late:
            limit_s = self._settings.cancel_limit_s
            self.end(
                TOO_LATE,
                f"{counted(len(late), 'cancelled message was', 'cancelled messages were')} not confirmed within "
                f"{limit_s:g} s",
            )


async def text_frame(socket: web.WebSocketResponse, received: Callable[[], None] = lambda: None) -> str:
    """The next text frame; pings are answered. `received` is called for each frame of any kind."""
    while True:
        message = await socket.receive()
        received()
        if message.type is WSMsgType.TEXT:
            text: str = message.data
            return text
        if message.type is WSMsgType.BINARY:
            raise StreamError("a binary frame, where frames are JSON text")
        if message.type is WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is not WSMsgType.PONG:
            raise Disconnected("the application closed it")


log = logging.getLogger("lbg.member")

PATH = "/v1/stream"
NOBODY = "no application is connected"

BAD_FRAME = 4400
"""A close code of our own, after HTTP's 400, like `TOO_LATE`."""

_REASON_MAX_BYTES = 123  # RFC 6455, 5.5: a control frame has at most 125 bytes, two of which are the code
_CLOSE_S = 1.0


class StreamChannel(AppChannel):
    """Its `routes` belong on the sidecar's local listener."""

    limit = ConcurrencyLimit

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self.concurrency = settings.concurrency
        self._calls: Calls | None = None
        self._connection: StreamConnection | None = None
        self._is_occupied = False  # by a connection, perhaps before its hello
        self._grace: asyncio.TimerHandle | None = None
        self._connections = 0
        self._refused_frames = 0

    @property
    def routes(self) -> list[web.RouteDef]:
        return [web.get(PATH, self.serve)]

    async def start(self, calls: Calls) -> None:
        self._calls = calls
        calls.ready(False, NOBODY)

    def wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()

    def abort(self, messages: Collection[Message]) -> None:
        if self._connection is not None:
            self._connection.cancel(messages)

    def withdraw(self, messages: Collection[Message], *, reassigned: bool) -> None:
        """Cancels messages. A message that was sent has begun: a connection whose application goes on with it is not
        closed, because other messages would be processed twice."""
        if reassigned and self._connection is not None:
            self._connection.cancel(messages, must_confirm=False)

    async def stop(self, grace_s: float) -> None:
        self._calls = None
        if self._grace is not None:
            self._grace.cancel()
        connection = self._connection
        if connection is not None:
            connection.end(WSCloseCode.GOING_AWAY, "the member has left")
            await asyncio.wait([connection.over], timeout=grace_s)

    def request_position(self) -> bool:
        """By the hello of its next connection."""
        if self._calls is not None:
            self._calls.ready(False, REQUESTED_AGAIN)
        if self._connection is not None:
            self._connection.end(
                WSCloseCode.SERVICE_RESTART, "connect again, with the committed position in the hello"
            )
        return True

    def describe(self) -> dict[str, object]:
        conversation = self._connection.conversation if self._connection is not None else None
        return {
            "channel": "stream",
            "connected": conversation is not None,
            "connections": self._connections,
            "credit": conversation.credit if conversation is not None else 0,
            "running": conversation.out if conversation is not None else 0,
            "refused_frames": self._refused_frames,
        }

    async def serve(self, request: web.Request) -> web.StreamResponse:
        offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if SUBPROTOCOL not in offered:
            return web.Response(status=400, text=f"request a WebSocket with subprotocol {SUBPROTOCOL}\n")
        if self._calls is None:
            return web.Response(status=503, text="the member is not running; try again later\n")
        if self._is_occupied:
            return web.Response(status=409, text="another application is connected; try again later\n")
        self._is_occupied = True
        try:
            socket = web.WebSocketResponse(
                protocols=(SUBPROTOCOL,),
                autoping=False,
                max_msg_size=self._settings.answer_max_bytes,
                timeout=_CLOSE_S,
                compress=False,
            )
            await socket.prepare(request)
            await self._converse(request, socket)
            return socket
        finally:
            self._is_occupied = False

    async def _converse(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        connection: StreamConnection | None = None
        try:
            try:
                async with asyncio.timeout(self._settings.hello_limit_s):
                    hello = read_hello(await text_frame(socket))
            except TimeoutError:
                await _close(request, socket, TOO_LATE, "no hello in time")
                return
            calls = self._calls
            if calls is None:
                await _close(request, socket, WSCloseCode.GOING_AWAY, "the member has left")
                return
            connection = self._connected(StreamConnection(calls, self._settings, hello), calls, hello)
            await connection.live(socket)
        except StreamError as error:
            self._refused_frames += 1
            report(request, f"the application's stream is closed: {error}")
            await _close(request, socket, BAD_FRAME, str(error))
        except Ended as end:
            await _close(request, socket, end.code, end.reason)
        except (Disconnected, ConnectionError) as end:
            log.debug("the application's stream has ended: %s", end)
            await _close(request, socket, WSCloseCode.GOING_AWAY, "")
        finally:
            if connection is not None:
                self._disconnected(connection)

    def _connected(self, connection: StreamConnection, calls: Calls, hello: Hello) -> StreamConnection:
        self._connections += 1
        self._connection = connection
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        # Whoever connects again and again must not fill the log: the driver logs whether the application is ready.
        log.debug("an application is connected, with a credit of %d", hello.credit)
        if hello.processed:
            calls.processed(hello.processed)
        if hello.committed is not None:
            calls.committed(*hello.committed)
        calls.ready(True)
        return connection

    def _disconnected(self, connection: StreamConnection) -> None:
        self._connection = None
        returned = connection.conversation.close()
        calls = self._calls
        if calls is not None:
            for message in returned:
                calls.end(message, INTERRUPTED)
            log.debug(
                "no application is connected; %s returned",
                counted(len(returned), "message is", "messages are"),
            )
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(self._settings.reconnect_grace_s, self._grace_ended)
        connection.over.set_result(None)

    def _grace_ended(self) -> None:
        self._grace = None
        if self._calls is not None:
            self._calls.ready(False, NOBODY)


async def _close(request: web.Request, socket: web.WebSocketResponse, code: int, reason: str) -> None:
    """Also when the other side reads nothing any more: then the close frame is not waited for."""
    text = reason.encode()[:_REASON_MAX_BYTES].decode(errors="ignore").encode()
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(2 * _CLOSE_S):
            await socket.close(code=code, message=text)
    transport = request.transport
    if isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size():
        transport.abort()
