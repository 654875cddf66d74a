"""Asyncio in a history: the product's procedures and channels, in virtual time over a simulated connection."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

from lbg_broker.core.effects import Revoke
from lbg_core.amqp import NO_PROPERTIES, ChannelState, ContentEvent, MethodEvent, Table
from lbg_core.amqp import Connection as ConnectionMachine
from lbg_core.amqp.methods import (
    BasicAck,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicReturn,
    BasicRevoke,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
)
from lbg_core.client import Channel, ClientError, ConnectionClosed, ConnectionLost, ConnectionSettings
from lbg_core.group import TO_ALL
from testing.simulation.clock import Process
from testing.simulation.embedded import ack_event, publish_event
from testing.simulation.judge import Judged
from testing.simulation.network import HEARTBEAT_S, Connection

T = TypeVar("T")

FRAME_MAX_BYTES = 131_072
RECORD_TAG = 1 << 60
"""Delivery tag of the group's record: that it is given back is no matter of a broker's."""

TASKS_MIN = 64
CLOSES_MAX = 16
"""Awaits behind a `finally` of one task that is ended."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Time, tasks and futures of asyncio on the clock of a history, for a process that may be killed."""

    def __init__(self, history: Judged, process: Process) -> None:
        self._clock = history.clock
        self._history = history
        self.process = process
        self._tasks: list[asyncio.Task[Any]] = []
        """None of them is closed before the history ends: a process that is killed runs nothing."""
        self._tasks_max = TASKS_MIN
        history.on_end.append(self.end)

    def time(self) -> float:
        return self._clock.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._clock.at(self._clock.now, self.process, self._call, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.at(when, self.process, self._call, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, steps: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
        task = asyncio.Task(steps, loop=self, **options)
        task._log_destroy_pending = False  # a process that dies runs nothing
        if len(self._tasks) >= self._tasks_max:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._tasks_max = 2 * len(self._tasks) + TASKS_MIN
        self._tasks.append(task)
        return task

    def end(self) -> None:
        """The history is over: tasks that wait are ended, whatever they do about it."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                self.run_now(_close, task)

    def run_now(self, callback: Callable[..., T], *args: Any) -> T:
        """Calls back as a callback of the loop."""
        former = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return callback(*args)
        finally:
            asyncio._set_running_loop(former)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and isinstance(error, BaseException):
            raise error  # of a callback
        if isinstance(error, Exception) and not isinstance(error, ClientError):
            self._history.judge.violation(f"a task of {self.process.name} failed: {error!r}")

    def _call(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.run_now(handle._run)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: the clock finds it cancelled."""


def _close(task: asyncio.Task[Any]) -> None:
    steps = task.get_coro()
    assert isinstance(steps, Coroutine)
    for _ in range(CLOSES_MAX):
        with suppress(BaseException):
            steps.close()
            return


NOWHERE = "nowhere"
"""A routing key of no queue."""


class Watch(Protocol):
    """Parts that a judge is to see of a connection. `is_mute`: what it sends to all members is lost."""

    @property
    def is_mute(self) -> bool: ...
    def ended(self, connection: SimConnection) -> None: ...
    def channel_closed(self, connection: SimConnection, number: int) -> None: ...
    def dead_letter(self, body: bytes) -> None: ...


class SimConnection:
    """`lbg_core.client.ClientConnection`, as far as the product uses it, over a simulated network.

    Its channels are the product's own. What they send is on its way at once.
    """

    def __init__(
        self,
        history: Judged,
        loop: VirtualLoop,
        settings: ConnectionSettings | None = None,
        *,
        name: str,
        watch: Watch | None = None,
    ) -> None:
        engine = history.broker.engine
        self.process = loop.process
        self.name = name
        self.settings = settings or ConnectionSettings()
        self.server_properties: Table = {
            "product": engine.product,
            "version": ".".join(map(str, engine.version)),
        }
        self.heartbeat_s = HEARTBEAT_S
        self.frame_max_bytes = FRAME_MAX_BYTES
        self.is_blocked = False
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None
        self.closed: asyncio.Future[ClientError | None] = loop.create_future()
        self.wire: Connection
        self._history = history
        self._has_extensions = not engine.is_rabbitmq
        self._loop = loop
        self._watch = watch
        self._channels: dict[int, Channel] = {}
        self._letters: dict[int, deque[tuple[int, bytes]]] = {}
        """By channel, tags and bodies of dead letters that are not confirmed."""
        self._letter_tag: dict[int, int] = {}
        self._why: ClientError | None = None

    @classmethod
    def connected(cls, history: Judged, loop: VirtualLoop, name: str, **options: Any) -> SimConnection | None:
        """None while the broker refuses connections."""
        connection = cls(history, loop, name=name, **options)
        wire = history.broker.connect(connection, loop.process.name)
        if wire is None:
            return None
        connection.wire = wire
        return connection

    @property
    def is_open(self) -> bool:
        return self._why is None

    def has(self, capability: str) -> bool:
        return self._has_extensions and capability.startswith("lbg.")

    async def open_channel(self, *, spare: int = 0) -> Channel:
        """There is room for any number. Raises ClientError."""
        self.check_open()
        number = next(one for one in itertools.count(1) if one not in self._channels)
        # A cast: this is the transport of its channels, and in the place of the machine that encodes what they send.
        channel = Channel(self, cast(ConnectionMachine, self), number)
        self._channels[number] = channel
        await channel.open()
        return channel

    def abort(self) -> None:
        if self._why is None:
            self.wire.abort()
            self._end(ConnectionLost("the connection was aborted"))

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """Ends it: all that was sent before arrives."""
        if self._why is None:
            self.wire.abort()
            self._end(ConnectionClosed(200, "goodbye", by_broker=False))
        await asyncio.wait([self.closed])

    # The transport of its channels

    def check_open(self) -> None:
        if self._why is not None:
            raise self._why

    def wrote(self, size_bytes: int) -> None:
        """Nothing: there is no buffer."""

    def flush(self) -> None:
        """Nothing."""

    def before_writing(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    async def drain(self) -> None:
        self.check_open()

    def release(self, number: int) -> None:
        self._channels.pop(number, None)
        self._letters.pop(number, None)
        if self._watch is not None:
            self._watch.channel_closed(self, number)

    # The machine of its channels

    def channel_state(self, number: int) -> ChannelState:
        return ChannelState.OPEN if number in self._channels else ChannelState.CLOSED

    def send(self, number: int, method: Method) -> None:
        if type(method) is BasicGet:
            self._get(number, method.queue)
        elif type(method) is not BasicNack or method.delivery_tag != RECORD_TAG:
            self.wire.say(MethodEvent(number, method))

    def ack(self, number: int, tag: int, *, multiple: bool) -> None:
        self.wire.say(ack_event(number, tag, multiple=multiple))

    def publish(
        self, number: int, exchange: str, key: str, header: bytes, body: bytes, *, mandatory: bool
    ) -> None:
        if self._watch is not None and exchange == self._history.names.dlx:
            tag = self._letter_tag[number] = self._letter_tag.get(number, 0) + 1
            self._letters.setdefault(number, deque()).append((tag, body))
        is_hint = exchange == self._history.names.members and key == TO_ALL
        if is_hint and self._watch is not None and self._watch.is_mute:
            key = NOWHERE
        self.wire.say(publish_event(number, exchange, key, header=header, body=body, mandatory=mandatory))

    # The group's record, which is no message of the simulated brokers

    def _get(self, number: int, queue: str) -> None:
        assert queue == self._history.names.config, (
            f"{queue} is not simulated: the record is all that members get"
        )
        self.wire.ask(self._read_record, number)

    def _read_record(self, number: int) -> None:
        history = self._history
        if history.broker.answers(self.wire):
            header, body = history.repartitions.record_message()
            got = BasicGetOk(RECORD_TAG, False, "", history.names.config, 0)
            self.wire.tell(ContentEvent(number, got, header, body))

    # From the network

    def hear(self, event: Any) -> None:
        self._loop.run_now(self._dispatch, event)

    def _dispatch(self, event: Any) -> None:
        kind = type(event)
        if kind is list:
            channel = self._channels.get(event[0].channel)
            if channel is not None:
                channel.on_batch(event[0].consumer_tag, event)
        elif kind is Revoke:
            channel = self._channels.get(event.channel)
            if channel is not None and event.is_supported:
                channel.on_method(BasicRevoke(event.consumer_tag, event.taken, tuple(event.delivery_tags)))
        elif kind is ContentEvent:
            channel = self._channels.get(event.channel)
            if channel is not None:
                channel.on_content(event)
        else:
            self._method(event[0], event[1], event[2:])

    def _method(self, number: int, method: Method, content: tuple[bytes, ...]) -> None:
        channel = self._channels.get(number)
        if channel is None:
            if number == 0:
                self._connection_method(method)
        elif type(method) is BasicReturn:
            channel.on_content(ContentEvent(number, method, NO_PROPERTIES, content[0]))
        else:
            if number in self._letters and isinstance(method, BasicAck | BasicNack):
                self._letters_answered(number, method)
            channel.on_method(method)

    def _letters_answered(self, number: int, method: BasicAck | BasicNack) -> None:
        letters, tag = self._letters[number], method.delivery_tag
        answered = [one for one in letters if one[0] == tag or (method.multiple and one[0] < tag)]
        for one in answered:
            letters.remove(one)
            if self._watch is not None and type(method) is BasicAck:
                self._watch.dead_letter(one[1])

    def _connection_method(self, method: Method) -> None:
        match method:
            case ConnectionBlocked(reason):
                self.is_blocked = True
                if self.on_blocked is not None:
                    self.on_blocked(reason)
            case ConnectionUnblocked():
                self.is_blocked = False
                if self.on_unblocked is not None:
                    self.on_unblocked()
            case ConnectionClose(code, text):
                self._end(ConnectionClosed(code, text, by_broker=True))
                self.wire.client_lost(text)

    def lost(self, why: str) -> None:
        self._end(ConnectionLost(why))

    def _end(self, why: ClientError) -> None:
        """Waits of a process that lives fail; of one that was killed nothing runs any more."""
        if self._why is not None:
            return
        self._why = why
        if self.process.alive:
            if self._watch is not None:
                self._watch.ended(self)
            self._loop.run_now(self._lose, why)

    def _lose(self, why: ClientError) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.on_connection_lost(why)
        is_by_us = isinstance(why, ConnectionClosed) and not why.by_broker
        self._loop.call_soon(self.closed.set_result, None if is_by_us else why)
