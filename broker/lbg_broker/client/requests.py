"""What every use of a channel rests on: its life, and requests answered in the order they were made."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from lbg_broker.amqp import ChannelFault, ChannelState, Connection, Method
from lbg_broker.amqp.methods import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from lbg_broker.client.errors import ChannelClosed, ClientError, channel_closed

__all__ = ["Carrier", "RequestingChannel"]

REQUEST_BYTES = 128  # what a request adds to the output, roughly: only used to decide when to write

_AnswerT = TypeVar("_AnswerT")


class Carrier(Protocol):
    """The connection, as its channels see it."""

    def wrote(self, size_bytes: int) -> None: ...
    def before_writing(self, callback: Callable[[], None]) -> None: ...
    async def drain(self) -> None: ...
    def check_open(self) -> None: ...
    def release(self, number: int) -> None: ...


class RequestingChannel:
    """A channel that asks and awaits answers. `closed` gets None after its own `close`, else the error."""

    def __init__(self, carrier: Carrier, machine: Connection, number: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._carrier = carrier
        self._machine = machine
        self.number = number
        self.is_open = False
        self.closed: asyncio.Future[ClientError | None] = self._loop.create_future()
        self._waiters: deque[tuple[tuple[type, ...], asyncio.Future[object]]] = deque()
        self._reason: ClientError | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number} {'open' if self.is_open else 'closed'}>"

    async def open(self) -> None:
        """Open it. Called once, by the connection."""
        try:
            await self._request(ChannelOpen(), ChannelOpenOk)
        except asyncio.CancelledError:
            self.is_open = self._machine.channel_state(self.number) in (
                ChannelState.OPENING,
                ChannelState.OPEN,
            )
            self.close_soon()
            raise

    def close_soon(self) -> None:
        """Send channel.close, at the end of this loop turn; from now on the channel is closed to us.

        It goes out directly, never after a basic.cancel: the broker then puts what was delivered and not
        acknowledged back at the head of the queue before another consumer gets anything. Later deliveries are
        dropped.
        """
        if self.is_open:
            self.is_open = False
            self._machine.send(self.number, ChannelClose(200, "goodbye"))
            self._carrier.wrote(REQUEST_BYTES)

    async def close(self) -> None:
        """`close_soon`, and await the broker's answer. Never raises."""
        self.close_soon()
        if not self.closed.done():
            await asyncio.shield(self.closed)

    async def drain(self) -> None:
        """As the connection's `drain`. Raises `ChannelClosed` or `ConnectionLost`."""
        self.check_open()
        await self._carrier.drain()
        self.check_open()

    def before_writing(self, callback: Callable[[], None]) -> None:
        """Call once at the end of this loop turn, before its output is written in one piece."""
        self._carrier.before_writing(callback)

    def check_open(self) -> None:
        """Raises why the channel is closed, if it is."""
        if not self.is_open:
            raise self.why_closed()

    async def call(self, request: Method, answer: type[_AnswerT]) -> _AnswerT:
        """Send a request and await its answer. Raises `ChannelClosed` or `ConnectionLost`."""
        self.check_open()
        return await self._request(request, answer)

    async def _request(self, request: Method, *answers: type[_AnswerT]) -> _AnswerT:
        self._carrier.check_open()
        self._machine.send(self.number, request)
        self._carrier.wrote(REQUEST_BYTES)
        waiter: asyncio.Future[object] = self._loop.create_future()
        self._waiters.append((answers, waiter))
        answer = await waiter
        assert isinstance(answer, answers)
        return answer

    def _answer(self, answer: object) -> None:
        if self._waiters and isinstance(answer, self._waiters[0][0]):
            _, waiter = self._waiters.popleft()
            if not waiter.done():  # whoever asked may have been cancelled
                waiter.set_result(answer)

    def on_method(self, method: Method) -> None:
        """A method from the broker."""
        match method:
            case ChannelClose():
                self._machine.send(self.number, ChannelCloseOk())
                self._carrier.wrote(REQUEST_BYTES)
                self._finish(channel_closed(method.reply_code, method.reply_text))
            case ChannelCloseOk():
                self._finish(None)
            case ChannelOpenOk():
                self.is_open = True
                self._answer(method)
            case _:
                self._answer(method)

    def on_fault(self, fault: ChannelFault) -> None:
        """The broker broke the protocol on this channel. The machine has closed it and awaits the answer."""
        self._end(channel_closed(fault.reply_code, fault.reply_text))

    def on_connection_lost(self, reason: ClientError) -> None:
        """The connection is gone, or closed by us."""
        self._end(reason)

    def why_closed(self) -> ClientError:
        """The error that a use of the closed channel raises."""
        return self._reason or ChannelClosed(200, "closed by us")

    def _finish(self, reason: ClientError | None) -> None:
        self._carrier.release(self.number)
        self._end(reason)

    def _end(self, reason: ClientError | None) -> None:
        if self.closed.done():
            return
        self.is_open = False
        self._reason = reason
        self.closed.set_result(reason)
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self.why_closed())
