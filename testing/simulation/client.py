"""One connection as a client has it: channels, answers in their order, deliveries, confirms."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from lbg_core.amqp import MethodEvent
from lbg_core.amqp.events import DeliverEvent
from lbg_core.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
)
from testing.simulation.clock import Process, Task
from testing.simulation.context import Context
from testing.simulation.embedded import ack_event, publish_event
from testing.simulation.network import Connection


class ChannelRefused(Exception):
    """The broker closed the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Channel:
    """`on_closed` is called once, with the refusal, or None for an end that was asked for."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.number = number
        self.is_open = True
        self.next_tag = 1
        self.awaited: deque[Callable[[Any], None] | None] = deque()
        """Receivers of the answers to come, or of a refusal."""
        self.on_deliveries: Callable[[list[DeliverEvent]], None] | None = None
        self.on_confirm: Callable[[int, bool, bool], None] | None = None
        self.on_return: Callable[[str, str, bytes], None] | None = None
        self.on_closed: Callable[[ChannelRefused | None], None] | None = None

    def send(self, method: Method) -> None:
        if self.is_open:
            self.client.connection.say(MethodEvent(self.number, method))

    def ack(self, tag: int, *, multiple: bool) -> None:
        if self.is_open:
            self.client.connection.say(ack_event(self.number, tag, multiple=multiple))

    def ask(self, method: Method) -> Asked:
        """A wait for the answer."""
        return Asked(self, method)

    def ask_soon(self, method: Method, on_answer: Callable[[Any], None] | None = None) -> None:
        """Without `on_answer` the answer is passed over."""
        self.awaited.append(on_answer)
        self.send(method)

    def publish(
        self, exchange: str, key: str, body: bytes, *, header: bytes = b"\x00\x00", mandatory: bool = False
    ) -> int:
        """Returns the delivery tag, for a channel with confirms."""
        tag = self.next_tag
        self.next_tag += 1
        if self.is_open:
            self.client.connection.say(
                publish_event(self.number, exchange, key, header=header, body=body, mandatory=mandatory)
            )
        return tag

    def close(self) -> None:
        if self.is_open:
            self.client.connection.say(MethodEvent(self.number, ChannelClose(200, "", 0, 0)))
            self.is_open = False

    def ended(self, refusal: ChannelRefused | None) -> None:
        self.is_open = False
        for waiter in self.awaited:
            if waiter is not None:
                waiter(refusal or ChannelRefused(200, "closed"))
        self.awaited.clear()
        if (callback := self.on_closed) is not None:
            self.on_closed = None
            callback(refusal)


class Asked:
    def __init__(self, channel: Channel, method: Method) -> None:
        self._channel = channel
        self._method = method

    def begin(self, task: Task) -> None:
        if not self._channel.is_open:
            task.clock.after(0.0, task.process, task.resume, task.turn, ChannelRefused(200, "closed"))
            return
        self._channel.awaited.append(partial(task.resume, task.turn))
        self._channel.send(self._method)


class Client:
    """`on_lost` is called once, when the connection has ended by itself."""

    def __init__(self, process: Process, on_lost: Callable[[str], None]) -> None:
        self.process = process
        self.is_blocked = False
        self.on_blocked: Callable[[bool], None] | None = None
        self._on_lost = on_lost
        self._channels: dict[int, Channel] = {}
        self._next = 1
        self.is_open = True
        self.connection: Connection

    @classmethod
    def connected(
        cls, history: Context, process: Process, name: str, on_lost: Callable[[str], None]
    ) -> Client | None:
        client = cls(process, on_lost)
        connection = history.broker.connect(client, name)
        if connection is None:
            return None
        client.connection = connection
        return client

    def open_channel(self) -> Channel:
        number = self._next
        self._next += 1
        channel = self._channels[number] = Channel(self, number)
        channel.awaited.append(None)
        self.connection.say(MethodEvent(channel.number, ChannelOpen()))
        return channel

    def hear(self, event: Any) -> None:
        if type(event) is list:
            channel = self._channels.get(event[0].channel)
            if channel is not None and channel.is_open and channel.on_deliveries is not None:
                channel.on_deliveries(event)
            return
        number, method = event[0], event[1]
        channel = self._channels.get(number)
        if channel is None:
            if number == 0:
                self._hear_connection(method)
            return
        if type(method) is BasicAck:
            if channel.on_confirm is not None:
                channel.on_confirm(method.delivery_tag, method.multiple, True)
            return
        match method:
            case BasicNack(tag, multiple):
                if channel.on_confirm is not None:
                    channel.on_confirm(tag, multiple, False)
            case BasicReturn():
                if channel.on_return is not None:
                    channel.on_return(method.routing_key, method.reply_text, event[2])
            case ChannelClose(code, text):
                self.connection.say(MethodEvent(number, ChannelCloseOk()))
                if channel.is_open:
                    del self._channels[number]
                    channel.ended(ChannelRefused(code, text))
            case ChannelCloseOk():
                del self._channels[number]
                channel.ended(None)
            case _:
                if not channel.awaited:
                    return
                waiter = channel.awaited.popleft()
                if waiter is not None:
                    waiter(method)

    def _hear_connection(self, method: Method) -> None:
        match method:
            case ConnectionBlocked() | ConnectionUnblocked():
                self.is_blocked = isinstance(method, ConnectionBlocked)
                if self.on_blocked is not None:
                    self.on_blocked(self.is_blocked)
            case ConnectionClose(_, text):
                self.connection.client_lost(text)

    def lost(self, why: str) -> None:
        if self.is_open:
            self.is_open = False
            self._on_lost(why)

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            self.connection.abort()


__all__ = ["Channel", "ChannelOpenOk", "ChannelRefused", "Client"]
