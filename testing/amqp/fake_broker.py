"""A broker in the test's own loop that does what the test says: on loopback, with the machine in the server's role."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

from lbg_core.amqp import Connection, Event, HeaderEvent, Method, MethodEvent, Role
from lbg_core.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    QueueDeclare,
    QueueDeclareOk,
)


class Session(asyncio.Protocol):
    """One accepted connection. Answers what a healthy broker answers, unless the method is in `mute`."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.machine = Connection(Role.SERVER)
        self.events: list[Event] = []
        self.mute: set[type[Method]] = set(broker.mute)
        self.answers = dict(broker.answers)
        self.lost = asyncio.get_running_loop().create_future()
        self._waiters: list[tuple[type, asyncio.Future[Event]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.broker.sessions.append(self)
        self.broker.accepted.put_nowait(self)

    def data_received(self, data: bytes) -> None:
        for event in self.machine.receive_data(data):
            self.events.append(event)
            self._answer(event)
            for waiter in [waiter for waiter in self._waiters if _matches(event, waiter[0])]:
                self._waiters.remove(waiter)
                waiter[1].set_result(event)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(error)

    async def seen(self, kind: type) -> Event:
        """The next event, or method, of this type, or the first that came already."""
        for event in self.events:
            if _matches(event, kind):
                self.events.remove(event)
                return event
        waiter: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._waiters.append((kind, waiter))
        event = await waiter
        self.events.remove(event)
        return event

    def send(self, channel: int, method: Method) -> None:
        self.machine.send(channel, method)
        self.flush()

    def flush(self) -> None:
        output = self.machine.take_output()
        if output:
            self.transport.write(output)

    def _answer(self, event: Event) -> None:
        if isinstance(event, HeaderEvent):
            if ConnectionStart not in self.mute:
                self.machine.send(0, self.broker.start)
            return
        if not isinstance(event, MethodEvent) or type(event.method) in self.mute:
            return
        answer = self.answers.get(type(event.method))
        if answer is not None:
            for method in answer(event.method):
                self.machine.send(event.channel, method)


def _matches(event: Event, kind: type) -> bool:
    return isinstance(event, kind) or (isinstance(event, MethodEvent) and isinstance(event.method, kind))


Answers = dict[type[Method], Callable[[Method], list[Method]]]

ANSWERS: Answers = {
    ConnectionStartOk: lambda _: [ConnectionTune(2047, 131072, 60)],
    ConnectionOpen: lambda _: [ConnectionOpenOk()],
    ConnectionClose: lambda _: [ConnectionCloseOk()],
    ChannelOpen: lambda _: [ChannelOpenOk()],
    ChannelClose: lambda _: [ChannelCloseOk()],
    ConfirmSelect: lambda _: [ConfirmSelectOk()],
    BasicQos: lambda _: [BasicQosOk()],
    BasicConsume: lambda method: [BasicConsumeOk(cast(BasicConsume, method).consumer_tag)],
    BasicCancel: lambda method: [BasicCancelOk(cast(BasicCancel, method).consumer_tag)],
    QueueDeclare: lambda method: [QueueDeclareOk(cast(QueueDeclare, method).queue or "made-up")],
}


class FakeBroker:
    """Listens while entered. Change `mute` and `answers` before a connection comes, or on its `Session`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.start = ConnectionStart(mechanisms=b"PLAIN EXTERNAL")
        self.mute: set[type[Method]] = set()
        self.answers: Answers = dict(ANSWERS)
        self.sessions: list[Session] = []
        self.accepted: asyncio.Queue[Session] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Session(self), "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for session in self.sessions:
            session.transport.abort()
        for session in self.sessions:
            await session.lost

    @property
    def url(self) -> str:
        return f"{'amqps' if self.tls else 'amqp'}://guest:s3cret@localhost:{self.port}/"
