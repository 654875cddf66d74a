"""One application's connection, from its hello to its end: what is read becomes verdicts, what is taken is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from ..errors import StreamError
from ..message import Message
from .channel import Calls
from .conversation import Conversation, Hello, messages_frame
from .message_json import message_json

TOO_LATE = 4408
"""A close code of our own, after HTTP's 408; RFC 6455, 7.4.2 leaves 4000 to 4999 to applications."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """One stream.

    - `concurrency`: messages that may be out unanswered, whatever credit the application gives.
    - `reconnect_grace_s`: how long nobody may be connected before the queues go to others. 1 s outlasts an
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


class Gone(Exception):
    """The other side closed, or is dead: the text says which."""


class Ended(Exception):
    """This side wants to close."""

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
        """Ask the application to stop these; if it `must_confirm`, the connection ends when it does not in time."""
        meant = {message.held for message in messages}
        numbers = self.conversation.cancel(lambda message: message.held in meant)
        if numbers:
            self._to_cancel += numbers
            if must_confirm:
                self._limits.add(
                    self._loop.call_later(self._settings.cancel_limit_s, self._too_late, numbers)
                )
            self.wake()

    def end(self, code: int, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(Ended(code, reason))

    async def live(self, socket: web.WebSocketResponse) -> None:
        """Until one side wants no more. Raises what ended it."""
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
        calls, conversation = self._calls, self.conversation
        while True:
            for message, verdict in conversation.answer(await text_frame(socket, self._received)):
                calls.end(message, verdict)
            self.wake()

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
                    raise Gone(f"it answered no ping for {interval_s / 2:g} s")
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
        taken: list[Message] = []
        texts: list[str] = []
        size = 0
        room = self.conversation.room(self._settings.concurrency)
        while len(taken) < room and size < self._settings.frame_bytes:
            message = take()
            if message is None:
                break
            text = message_json(message)
            size += len(text)
            taken.append(message)
            texts.append(text)
        return messages_frame(self.conversation.give(taken), texts) if taken else None

    def _too_late(self, numbers: list[int]) -> None:
        late = self.conversation.unanswered(numbers)
        if late:
            limit_s = self._settings.cancel_limit_s
            self.end(TOO_LATE, f"{len(late)} cancelled messages were not confirmed within {limit_s:g} s")


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
            raise Gone("the other side closed it")
