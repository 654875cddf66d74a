"""Any input of a broker, in any order and pieces, ends the client with its own error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.frames import HEARTBEAT_FRAME, encode_frame
from lbg_core.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    BasicQosOk,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelOpenOk,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionStart,
    ConnectionTune,
    ConnectionUnblocked,
    ConnectionUpdateSecretOk,
    Method,
)
from lbg_core.client import ClientError, ConnectionSettings
from lbg_core.client.channel import Channel
from lbg_core.client.connection import ClientConnection
from testing.amqp.memory_transport import MemoryTransport
from testing.amqp.wire import ALL_METHODS, methods_of
from testing.exploration import example_count


def method(channel: int, what: Method) -> bytes:
    return encode_frame(1, channel, what.encode())


def content(channel: int, what: Method, size: int, *, announced: int | None = None) -> bytes:
    length = size if announced is None else announced
    header = b"\x00\x3c\x00\x00" + length.to_bytes(8, "big") + BasicProperties().encode()
    body = encode_frame(3, channel, b"b" * size) if size else b""
    return method(channel, what) + encode_frame(2, channel, header) + body


GREETING = [
    method(0, ConnectionStart(mechanisms=b"PLAIN", locales=b"en_US")),
    method(0, ConnectionTune(2047, 131072, 0)),
    method(0, ConnectionOpenOk()),
]
TOO_LARGE = content(1, BasicDeliver("c", 1, False, "", "q"), 0, announced=1 << 40)
SAYINGS = [
    *(
        frame
        for channel in (1, 2)
        for frame in (
            method(channel, ChannelOpenOk()),
            method(channel, ChannelClose(404, "NOT_FOUND", 50, 10)),
            method(channel, ChannelCloseOk()),
            method(channel, ConfirmSelectOk()),
            method(channel, BasicQosOk()),
            method(channel, BasicConsumeOk("c")),
            method(channel, BasicCancel("c")),
            method(channel, BasicAck(1, False)),
            method(channel, BasicNack(3, True)),
            method(channel, ChannelFlow(False)),
            content(channel, BasicDeliver("c", 1, False, "", "q"), 10),
            content(channel, BasicReturn(312, "NO_ROUTE", "", "q"), 0),
        )
    ),
    TOO_LARGE,
    method(0, ConnectionBlocked("disk")),
    method(0, ConnectionUnblocked()),
    method(0, ConnectionUpdateSecretOk()),
    method(0, ConnectionSecure(b"?")),
    method(0, ConnectionClose(320, "CONNECTION_FORCED", 0, 0)),
    method(0, ConnectionCloseOk()),
    HEARTBEAT_FRAME,
    *GREETING,
]


class Loop:
    """An event loop, and what it was told of errors that nobody caught."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))

    def hear(self, frames: list[bytes], cuts: list[int], waits: list[bool]) -> None:
        self.errors.clear()
        self.loop.run_until_complete(self._hear(b"".join(frames), cuts, waits))
        assert self.errors == []

    async def _hear(self, said: bytes, cuts: list[int], waits: list[bool]) -> None:
        connection = ClientConnection(ConnectionSettings(heartbeat_s=0), name="any")
        transport = MemoryTransport(self.loop, connection)
        connection.connection_made(transport)
        users = [asyncio.ensure_future(self._use(connection)) for _ in range(2)]
        for cut, waits_then in zip(cuts, waits, strict=False):
            read, said = said[:cut], said[cut:]
            if read and not transport.is_closing():
                connection.data_received(read)
            for _ in range(3 if waits_then else 0):
                await asyncio.sleep(0)
        if said and not transport.is_closing():
            connection.data_received(said)
        for _ in range(5):
            await asyncio.sleep(0)
        connection.abort()
        await asyncio.gather(*users)
        assert connection.closed.done()

    async def _use(self, connection: ClientConnection) -> None:
        """As an application would: every error it sees is one of the client's."""
        with suppress(ClientError):
            await connection.opened
            channel = await connection.open_channel()
            await channel.confirm_select()
            await self._talk(channel)

    async def _talk(self, channel: Channel) -> None:
        channel.publish("", "q", b"1")
        await channel.consume(
            "q", lambda deliveries: channel.ack(deliveries[-1].delivery_tag), consumer_tag="c"
        )
        channel.publish("", "q", b"2")
        await channel.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.loop.close()


sayings = st.lists(st.sampled_from(SAYINGS), max_size=14)
any_methods = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(ALL_METHODS).flatmap(methods_of)).map(
        lambda said: method(*said)
    ),
    max_size=3,
)
cuts = st.lists(st.integers(0, 300), max_size=12)
waits = st.lists(st.booleans(), min_size=12, max_size=12)
OPENED = [method(1, ChannelOpenOk()), method(2, ChannelOpenOk())]
CANCEL = method(1, BasicCancel("c"))


@settings(
    max_examples=example_count(600),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(st.booleans(), sayings, any_methods, st.integers(0, 14), cuts, waits)
@example(True, [CANCEL, TOO_LARGE, method(1, ChannelCloseOk())], [], 0, [], [])
@example(
    True,
    [method(1, ChannelFlow(True)), method(1, ChannelClose()), method(0, ConnectionClose())],
    [],
    0,
    [],
    [],
)
@example(False, [GREETING[0], method(0, ConnectionClose(530, "NOT_ALLOWED", 0, 0))], [], 0, [], [])
@example(
    False,
    [*GREETING[:2], method(0, ConnectionClose(530, "NOT_ALLOWED", 0, 0))],
    [],
    0,
    [36, 500],
    [True] * 12,
)
def test_a_broker_that_says_anything_is_understood_or_left(
    loop: Loop,
    is_open: bool,
    said: list[bytes],
    other: list[bytes],
    place: int,
    cuts: list[int],
    waits: list[bool],
) -> None:
    script = [*said[:place], *other, *said[place:]]
    if is_open:
        answers = [*(method(1, one) for one in (ConfirmSelectOk(), BasicConsumeOk("c")))]
        lengths = [len(frame) for frame in (*GREETING, *OPENED, *answers)]
        loop.hear([*GREETING, *OPENED, *answers, *script], [*lengths, *cuts], [True] * 7 + waits)
    else:
        loop.hear(script, cuts, waits)
