"""Any input of a client, in any order and pieces, is answered by the protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lbg_broker import Address, ServerSettings
from lbg_broker.server import Server
from lbg_core.amqp import PROTOCOL_HEADER, BasicProperties
from lbg_core.amqp.frames import HEARTBEAT_FRAME, encode_frame
from lbg_core.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    Method,
    QueueDeclare,
    QueueDelete,
    TxSelect,
    decode_method,
)
from testing.amqp.memory_transport import MemoryTransport
from testing.amqp.wire import ALL_METHODS, methods_of
from testing.exploration import example_count
from testing.waiting import until

MESSAGE_MAX_BYTES = 1000
LOGIN = ConnectionStartOk(
    {"capabilities": {"authentication_failure_close": True, "publisher_confirms": True}},
    "PLAIN",
    b"\0guest\0guest",
    "en_US",
)


def method(channel: int, what: Method) -> bytes:
    return encode_frame(1, channel, what.encode())


def publish(channel: int, key: str, size: int) -> bytes:
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + BasicProperties(delivery_mode=2).encode()
    body = encode_frame(3, channel, b"b" * size) if size else b""
    return method(channel, BasicPublish("", key)) + encode_frame(2, channel, header) + body


GREETING = [
    PROTOCOL_HEADER,
    method(0, LOGIN),
    method(0, ConnectionTuneOk(2047, 131072, 0)),
    method(0, ConnectionOpen("/")),
]
SAYINGS = [
    *(
        frame
        for channel in (1, 2)
        for frame in (
            method(channel, ChannelOpen()),
            method(channel, ChannelClose(200, "bye", 0, 0)),
            method(channel, ChannelCloseOk()),
            method(channel, QueueDeclare("kept", durable=True)),
            method(channel, QueueDeclare("own", exclusive=True)),
            method(channel, QueueDeclare("missing", passive=True)),
            method(channel, QueueDelete("kept")),
            method(channel, BasicConsume("kept", "c")),
            method(channel, BasicConsume("own", "c", nowait=True)),
            method(channel, BasicGet("kept")),
            method(channel, BasicAck(1, False)),
            method(channel, BasicAck(0, True)),
            method(channel, ConfirmSelect()),
            method(channel, TxSelect()),
            publish(channel, "kept", 10),
            publish(channel, "own", 0),
            publish(channel, "kept", MESSAGE_MAX_BYTES + 1),
            method(channel, BasicPublish("", "own")),
        )
    ),
    method(0, ConnectionUpdateSecret(b"secret", "because")),
    method(0, ConnectionClose(200, "bye", 0, 0)),
    method(0, ConnectionCloseOk()),
    HEARTBEAT_FRAME,
]


class Broker:
    """A server in this process, and everything that it or its loop logged as an error."""

    def __init__(self, data_dir: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = Server(
            ServerSettings(data_dir, listen=Address("127.0.0.1", 0), message_max_bytes=MESSAGE_MAX_BYTES)
        )
        self.loop.run_until_complete(self.server.start())
        # A login that was right before is answered at once, and not when a thread has computed its hash.
        self.server.users.log_in("guest", "guest", loopback=True)
        self.errors: list[str] = []
        self._handler = logging.Handler(logging.ERROR)
        self._handler.emit = lambda record: self.errors.append(record.getMessage())
        for name in ("lbg.broker", "asyncio"):
            logging.getLogger(name).addHandler(self._handler)

    def stop(self) -> None:
        for name in ("lbg.broker", "asyncio"):
            logging.getLogger(name).removeHandler(self._handler)
        self.loop.run_until_complete(self.server.stop())
        self.loop.close()

    async def settle(self) -> None:
        """Until all that was said is answered: what is durable waits for the store."""
        await asyncio.sleep(0)
        await self.server.committed()
        await asyncio.sleep(0)

    async def hear(self, frames: list[bytes], cuts: list[int], waits: list[bool]) -> MemoryTransport:
        """One connection, whose client says these frames; each read holds so many bytes of them, and after some reads
        the broker has time to answer."""
        self.errors.clear()
        session = self.server.new_session()
        transport = MemoryTransport(self.loop, session)
        session.connection_made(transport)
        said = b"".join(frames)
        for cut, waits_then in zip(cuts, waits, strict=False):
            read, said = said[:cut], said[cut:]
            if read and not transport.is_closing():
                session.data_received(read)
            if waits_then:
                await self.settle()
        if said and not transport.is_closing():
            session.data_received(said)
        await self.settle()
        answers = names_in(bytes(transport.written))
        is_open = "connection.open-ok" in answers and "connection.close" not in answers
        if is_open and not transport.has_ended and is_whole(b"".join(frames)):
            await self.require_an_answer(session, transport)
        if not transport.is_closing():
            session.eof_received()
            transport.close()
        await self.settle()
        assert self.errors == []
        return transport

    async def require_an_answer(self, session, transport: MemoryTransport) -> None:
        """The connection is open: so it answers on a channel that was not used."""
        before = len(transport.written)
        session.data_received(method(9, ChannelOpen()) + method(9, QueueDeclare("", exclusive=True)))
        await self.settle()
        assert {"channel.open-ok", "queue.declare-ok"} <= set(names_in(bytes(transport.written[before:])))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("any") / "data")
    yield made
    made.stop()


sayings = st.lists(st.sampled_from(SAYINGS), max_size=14)
any_methods = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(ALL_METHODS).flatmap(methods_of)).map(
        lambda said: method(*said)
    ),
    max_size=3,
)
cuts = st.lists(st.integers(0, 300), max_size=12)
waits = st.lists(st.booleans(), min_size=12, max_size=12)
OPEN_1 = method(1, ChannelOpen())
TOO_LARGE = publish(1, "kept", MESSAGE_MAX_BYTES + 1)
CLOSED_1 = method(1, ChannelCloseOk())


@settings(
    max_examples=example_count(600),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(sayings, any_methods, st.integers(0, 14), cuts, waits)
@example([method(0, ConnectionUpdateSecret()), method(0, ConnectionClose())], [], 0, [], [])
@example([OPEN_1, TOO_LARGE, CLOSED_1], [], 0, [], [])
@example([OPEN_1, method(1, QueueDeclare("kept", durable=True)), TOO_LARGE, CLOSED_1, OPEN_1], [], 0, [], [])
@example([OPEN_1, method(1, TxSelect()), method(0, ConnectionUpdateSecret())], [], 0, [], [])
def test_a_client_that_says_anything_gets_an_answer_by_the_protocol(
    broker: Broker, said: list[bytes], other: list[bytes], place: int, cuts: list[int], waits: list[bool]
) -> None:
    script = [*said[:place], *other, *said[place:]]
    broker.loop.run_until_complete(
        broker.hear(GREETING + script, [len(one) for one in GREETING] + cuts, [False] * 4 + waits)
    )


@settings(
    max_examples=example_count(300),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(sayings, st.data())
def test_a_client_whose_bytes_are_damaged_gets_an_answer_by_the_protocol(
    broker: Broker, said: list[bytes], draws: st.DataObject
) -> None:
    frames = [*GREETING, OPEN_1, *said]
    index = draws.draw(st.integers(0, len(frames) - 1))
    damaged = bytearray(frames[index])
    for _ in range(draws.draw(st.integers(1, 3))):
        damaged[draws.draw(st.integers(0, len(damaged) - 1))] = draws.draw(st.integers(0, 255))
    frames[index] = bytes(damaged)
    broker.loop.run_until_complete(broker.hear(frames, draws.draw(cuts), draws.draw(waits)))


@settings(
    max_examples=example_count(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(sayings, cuts, waits)
@example([], [], [])
def test_a_client_that_waits_for_no_answer_is_let_in_whatever_a_read_holds(
    broker: Broker, said: list[bytes], cuts: list[int], waits: list[bool]
) -> None:
    """AMQP 0-9-1 section 2.2.4: the grammar says who speaks next, and some clients write their whole part at once."""
    whole = [OPEN_1, method(1, QueueDeclare("", exclusive=True))]
    transport = broker.loop.run_until_complete(broker.hear(GREETING + whole, cuts, waits))
    assert names_in(transport.take())[:5] == [
        "connection.start",
        "connection.tune",
        "connection.open-ok",
        "channel.open-ok",
        "queue.declare-ok",
    ]
    broker.loop.run_until_complete(broker.hear(GREETING + said, cuts, waits))


def test_each_method_of_a_handshake_in_one_read_is_answered_in_turn(broker: Broker) -> None:
    session = broker.server.new_session()
    transport = MemoryTransport(broker.loop, session)

    async def talk() -> None:
        session.connection_made(transport)
        session.data_received(b"".join([*GREETING, OPEN_1]))
        await until(lambda: len(names_in(bytes(transport.written))) == 4)

    broker.loop.run_until_complete(talk())
    assert names_in(transport.take()) == [
        "connection.start",
        "connection.tune",
        "connection.open-ok",
        "channel.open-ok",
    ]
    transport.close()
    broker.loop.run_until_complete(broker.settle())


def test_a_wrong_password_ends_a_handshake_in_one_read_with_its_reason(broker: Broker) -> None:
    wrong = [PROTOCOL_HEADER, method(0, replace(LOGIN, response=b"\0guest\0wrong")), *GREETING[2:]]
    session = broker.server.new_session()
    transport = MemoryTransport(broker.loop, session)

    async def talk() -> None:
        session.connection_made(transport)
        session.data_received(b"".join([*wrong, OPEN_1]))
        await until(lambda: len(names_in(bytes(transport.written))) == 2)

    broker.loop.run_until_complete(talk())
    assert names_in(transport.take()) == ["connection.start", "connection.close"]
    transport.close()
    broker.loop.run_until_complete(broker.settle())


def is_whole(said: bytes) -> bool:
    """True if it ends with a frame: the broker waits for the rest of one that it does not have."""
    at = len(PROTOCOL_HEADER)
    while at < len(said):
        at += 8 + int.from_bytes(said[at + 3 : at + 7], "big")
    return at == len(said)


def names_in(output: bytes) -> list[str]:
    """The methods that the broker said."""
    found = []
    while output:
        end = 8 + int.from_bytes(output[3:7], "big")
        if output[0] == 1:
            found.append(decode_method(output[7 : end - 1]).NAME)
        output = output[end:]
    return found
