"""An application that connects to the sidecar and is sent messages over a WebSocket (docs/app-channels.md).

One application is connected at a time. What it has not answered when its connection ends is given again, in order and
without counting as an attempt, to the next connection or, after a grace, to other members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from aiohttp import WSCloseCode, web

from ..consuming.concurrency_limit import ConcurrencyLimit
from ..errors import StreamError
from ..message import Message
from ..verdict import INTERRUPTED
from .channel import Calls
from .conversation import SUBPROTOCOL, Hello, read_hello
from .stream_connection import TOO_LATE, Ended, Gone, StreamConnection, StreamSettings, text_frame

log = logging.getLogger("lbg.member")

PATH = "/v1/stream"
NOBODY = "no application is connected"

BAD_FRAME = 4400
"""A close code of our own, after HTTP's 400, like `TOO_LATE`."""

_REASON_MAX_BYTES = 123  # RFC 6455, 5.5: a control frame has at most 125 bytes, two of which are the code
_CLOSE_S = 1.0


class StreamChannel:
    """Its `routes` belong on the sidecar's local listener."""

    limit = ConcurrencyLimit

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self.concurrency = settings.concurrency
        self._calls: Calls | None = None
        self._connection: StreamConnection | None = None
        self._is_taken = False  # by a connection that may not have said hello yet
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

    def withdraw(self, messages: Collection[Message], *, taken: bool) -> None:
        """What was sent has begun. A connection whose application goes on with it is not closed for that: others'
        messages would be processed twice."""
        if taken and self._connection is not None:
            self._connection.cancel(messages, must_confirm=False)

    async def stop(self, grace_s: float) -> None:
        self._calls = None
        if self._grace is not None:
            self._grace.cancel()
        connection = self._connection
        if connection is not None:
            connection.end(WSCloseCode.GOING_AWAY, "the member has left")
            await asyncio.wait([connection.over], timeout=grace_s)

    def ask_again(self) -> None:
        """By the hello of its next connection."""
        if self._calls is not None:
            self._calls.ready(False, "it is asked anew how far its session is")
        if self._connection is not None:
            self._connection.end(
                WSCloseCode.SERVICE_RESTART, "connect again, and say how far your session is"
            )

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
            return web.Response(status=400, text=f"ask for a WebSocket of subprotocol {SUBPROTOCOL}\n")
        if self._calls is None:
            return web.Response(status=503, text="the member is not running; try again later\n")
        if self._is_taken:
            return web.Response(status=409, text="another application is connected; try again later\n")
        self._is_taken = True
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
            self._is_taken = False

    async def _converse(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        connection: StreamConnection | None = None
        try:
            try:
                async with asyncio.timeout(self._settings.hello_limit_s):
                    hello = read_hello(await text_frame(socket))
            except TimeoutError:
                await _close(request, socket, TOO_LATE, "no hello came in time")
                return
            calls = self._calls
            if calls is None:
                await _close(request, socket, WSCloseCode.GOING_AWAY, "the member has left")
                return
            connection = self._connected(StreamConnection(calls, self._settings, hello), calls, hello)
            await connection.live(socket)
        except StreamError as error:
            self._refused_frames += 1
            log.warning("the application's stream is closed: %s", error)
            await _close(request, socket, BAD_FRAME, str(error))
        except Ended as end:
            await _close(request, socket, end.code, end.reason)
        except (Gone, ConnectionError) as end:
            log.info("the application's stream is over: %s", end)
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
        log.info("an application is connected, with a credit of %d", hello.credit)
        if hello.processed:
            calls.processed(hello.processed)
        if hello.committed is not None:
            calls.committed(*hello.committed)
        calls.ready(True)
        return connection

    def _disconnected(self, connection: StreamConnection) -> None:
        self._connection = None
        taken_back = connection.conversation.taken_back()
        calls = self._calls
        if calls is not None:
            for message in taken_back:
                calls.end(message, INTERRUPTED)
            log.info("no application is connected; %d messages are taken back", len(taken_back))
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(self._settings.reconnect_grace_s, self._nobody_came)
        connection.over.set_result(None)

    def _nobody_came(self) -> None:
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
