"""Asyncio in a history: the product's procedures and channels, in virtual time over a simulated connection."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lbg_core.amqp import BasicProperties, ChannelState, MethodEvent, Table
from lbg_core.amqp import Connection as ConnectionMachine
from lbg_core.amqp.methods import BasicReturn, Method
from lbg_core.client import Channel, ConnectionLost, ConnectionSettings, Returned
from lbg_core.group import Engine
from testing.simulation.client import Client
from testing.simulation.clock import Process
from testing.simulation.embedded import ack_event, publish_event

if TYPE_CHECKING:
    from testing.simulation.history import History

T = TypeVar("T")


class VirtualLoop(asyncio.AbstractEventLoop):
    """Time, tasks and futures of asyncio on the clock of a history, for a process that may be killed."""

    def __init__(self, history: History, process: Process) -> None:
        self._clock = history.clock
        self._process = process
        self._tasks: list[asyncio.Task[Any]] = []
        """None of them is closed before the history ends: a process that is killed runs nothing."""

    def time(self) -> float:
        return self._clock.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_at(self._clock.now, callback, *args, context=context)

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
        self._clock.at(when, self._process, self._call, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, steps: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
        task = asyncio.Task(steps, loop=self, **options)
        task._log_destroy_pending = False  # a process that dies runs nothing
        self._tasks.append(task)
        return task

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
        if "handle" in context and isinstance(error := context.get("exception"), BaseException):
            raise error  # of a callback; one that nobody has awaited concerns nobody

    def _call(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.run_now(handle._run)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: the clock finds it cancelled."""


class LoopConnection:
    """The part of `lbg_core.client.ClientConnection` that opens channels, which are the product's own. What they send
    is on its way at once."""

    def __init__(self, client: Client, loop: VirtualLoop, engine: Engine) -> None:
        self.server_properties: Table = {
            "product": engine.product,
            "version": ".".join(map(str, engine.version)),
        }
        self.settings = ConnectionSettings()
        self._client = client
        self._loop = loop
        self._channels: dict[int, Channel] = {}
        self._why: ConnectionLost | None = None
        client.foreign = self

    @property
    def is_open(self) -> bool:
        return self._why is None

    @property
    def is_blocked(self) -> bool:
        return self._client.is_blocked

    async def open_channel(self) -> Channel:
        """Raises `ConnectionLost`."""
        self.check_open()
        number = self._client.take_number()
        # A cast: this is the transport of its channels, and in the place of the machine that encodes what they send.
        channel = Channel(self, cast(ConnectionMachine, self), number)
        self._channels[number] = channel
        await channel.open()
        return channel

    def abort(self) -> None:
        self._client.abort()

    async def close(self) -> None:
        self._client.abort()

    # The transport of its channels

    def check_open(self) -> None:
        if self._why is not None:
            raise self._why

    def wrote(self, size_bytes: int) -> None:
        """Nothing: there is no buffer."""

    def before_writing(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    async def drain(self) -> None:
        self.check_open()

    def release(self, number: int) -> None:
        self._channels.pop(number, None)

    # The machine of its channels

    def channel_state(self, number: int) -> ChannelState:
        return ChannelState.OPEN if number in self._channels else ChannelState.CLOSED

    def send(self, number: int, method: Method) -> None:
        self._client.connection.say(MethodEvent(number, method))

    def ack(self, number: int, tag: int, *, multiple: bool) -> None:
        self._client.connection.say(ack_event(number, tag, multiple=multiple))

    def publish(
        self, number: int, exchange: str, key: str, header: bytes, body: bytes, *, mandatory: bool
    ) -> None:
        event = publish_event(number, exchange, key, header=header, body=body, mandatory=mandatory)
        self._client.connection.say(event)

    # From the connection

    def has(self, number: int) -> bool:
        return number in self._channels

    def hear(self, number: int, event: Any) -> None:
        self._loop.run_now(self._dispatch, self._channels[number], event)

    def _dispatch(self, channel: Channel, event: Any) -> None:
        if type(event) is list:
            channel.on_batch(event[0].consumer_tag, event)
        elif type(event[1]) is BasicReturn:
            method, body = event[1], event[2]
            names = (method.reply_code, method.reply_text, method.exchange, method.routing_key)
            if channel.on_return is not None:
                channel.on_return(Returned(*names, BasicProperties().encode(), body))
        else:
            channel.on_method(event[1])

    def lost(self, why: str) -> None:
        """Waits of a process that lives fail; of one that was killed nothing runs any more."""
        if self._why is None:
            self._why = ConnectionLost(why)
            channels, self._channels = list(self._channels.values()), {}
            for channel in channels:
                if self._client.process.alive:
                    self._loop.run_now(channel.on_connection_lost, self._why)
                else:
                    channel.is_open = False
