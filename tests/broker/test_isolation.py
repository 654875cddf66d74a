"""A fault in any step of one session ends that session alone."""

from __future__ import annotations

import ast
import asyncio
import errno
import inspect
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from lbg_broker import Server, session
from lbg_broker.core.effects import Revoke
from lbg_broker.handshake import Handshake
from lbg_broker.session import ReadPause, Session
from lbg_core.amqp import PROTOCOL_HEADER
from lbg_core.amqp import Connection as Wire
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    BasicConsume,
    BasicPublish,
    ChannelOpen,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    Method,
    QueueDeclare,
)
from lbg_core.client import ConfirmingPublisher, connect
from testing.amqp.memory_transport import MemoryTransport
from testing.broker.embedded import in_process
from testing.waiting import GUARD_S, until

TREE = ast.parse(inspect.getsource(session))
OWNERS = {
    "wire": Wire,
    "self._wire": Wire,
    "transport": MemoryTransport,
    "self._transport": MemoryTransport,
    "self._read_pause": ReadPause,
    "handshake": Handshake,
    "self._handshake": Handshake,
}
"""Parts of a session alone that its steps call, by the names that they have in the module."""


def calls_of_sessions() -> list[tuple[type, str]]:
    """Every method of these that the module uses."""
    found = {
        (OWNERS[ast.unparse(node.value)], node.attr)
        for node in ast.walk(TREE)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in OWNERS
    }
    return sorted(
        ((owner, name) for owner, name in found if callable(getattr(owner, name, None))),
        key=lambda call: (call[0].__name__, call[1]),
    )


SHARED = (
    "broker.apply ConnectionOpened",
    "broker.apply Received",
    "broker.apply Paused",
    "broker.apply ConnectionLost",
    "content_memory.update",
    "content_memory.forget",
    "_back_pressure.read",
    "_back_pressure.forget",
    "logins.check",
)
"""Parts that a session shares with the others: the fault is in the call for this one."""


def method(channel: int, what: Method) -> bytes:
    return encode_frame(1, channel, what.encode())


def login(password: str) -> bytes:
    start = ConnectionStartOk(
        {"capabilities": {"authentication_failure_close": True}}, "PLAIN", b"\0guest\0" + password.encode()
    )
    opening = (start, ConnectionTuneOk(2047, 131072, 60), ConnectionOpen("/"))
    return PROTOCOL_HEADER + b"".join(method(0, one) for one in opening)


def publish(exchange: str, key: str, body: bytes, *, sent: int, mandatory: bool = False) -> bytes:
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
    return (
        method(1, BasicPublish(exchange, key, mandatory))
        + encode_frame(2, 1, header)
        + encode_frame(3, 1, body[:sent])
    )


class Fault:
    """Raises in place of one method, for one session."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_met = False

    def put_into(self, owner: Any, name: str, concerns: Callable[..., bool] = lambda *_: True) -> None:
        right = getattr(owner, name)

        def faulty(*arguments: Any, **named: Any) -> Any:
            if concerns(*arguments):
                self.is_met = True
                raise self.error
            return right(*arguments, **named)

        setattr(owner, name, faulty)


Put: TypeAlias = Callable[[Fault, Session, MemoryTransport], None]


class Neighbours:
    """A publisher and a consumer on sockets of their own, of a fanout exchange whose messages the victim gets too."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.socket = socket.socket()
        self.received: list[bytes] = []
        self.confirmed: list[bytes] = []

    async def start(self) -> None:
        url = f"amqp://guest:guest@127.0.0.1:{self.server.port}/"
        self.connections = [await connect(url, name=name) for name in ("publisher", "consumer")]
        channel = await self.connections[1].open_channel()
        await channel.exchange_declare("e", "fanout", durable=True)
        for queue in ("own", "victim"):
            await channel.queue_declare(queue, durable=True)
            await channel.queue_bind(queue, "e", "")
        await channel.consume("own", lambda batch: self.received.extend(bytes(one.body) for one in batch))
        self.publisher = await ConfirmingPublisher.open(self.connections[0])

    async def go_on(self) -> None:
        """A message is confirmed, and delivered. Raises TimeoutError."""
        body = str(len(self.confirmed)).encode()
        async with asyncio.timeout(GUARD_S):
            await self.publisher.publish("e", "", body)
        self.confirmed.append(body)
        await until(lambda: self.received == self.confirmed, what="each confirmed message is delivered")

    async def stop(self) -> None:
        for connection in self.connections:
            await connection.close()
        self.socket.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with in_process(tmp_path / "data", unsent_max_bytes=0) as server:
        server.users.log_in("guest", "guest", loopback=True)  # is answered at once from now on
        yield server


@pytest.fixture
async def neighbours(server: Server) -> AsyncIterator[Neighbours]:
    made = Neighbours(server)
    await made.start()
    yield made
    await made.stop()


async def live(neighbours: Neighbours, put: Put, fault: Fault, *, password: str, end: str) -> Session:
    """A session's life, each step as the loop or the server takes it."""
    server = neighbours.server
    victim = server.new_session()
    transport = MemoryTransport(server.loop, victim)
    transport._extra["socket"] = neighbours.socket
    put(fault, victim, transport)

    async def say(*said: bytes) -> None:
        if not transport.has_ended:
            victim.data_received(b"".join(said))
        await neighbours.go_on()

    victim.connection_made(transport)
    await say(login(password))
    await until(lambda: not victim._awaits_login() or transport.has_ended)
    await say(method(1, ChannelOpen()), method(1, QueueDeclare("victim", durable=True)))
    await say(method(1, BasicConsume("victim", "c", no_ack=True)))
    await say(publish("", "nowhere", b"returned", sent=8, mandatory=True), publish("e", "", b"x", sent=0))
    for step in (victim.pause_writing, victim.resume_writing, victim.beat):
        step()
        await neighbours.go_on()
    server._back_pressure.pause((victim,))
    server._back_pressure._release()
    victim.has_input()
    victim.perform([Revoke(1, "c", False, [1], "victim", True)])
    await neighbours.go_on()
    if end == "close":
        await say(method(0, ConnectionClose(200, "bye", 0, 0)))
        victim.eof_received()
    elif end == "refuse":
        victim.refuse_content("too much")
    elif end == "expire":
        victim.expire_handshake()
    await neighbours.go_on()
    transport.close()
    await neighbours.go_on()
    return victim


LIVES = (
    {"password": "guest", "end": "close"},
    {"password": "guest", "end": "refuse"},
    {"password": "wrong", "end": "expire"},
)


async def check(neighbours: Neighbours, put: Put, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = neighbours.server.session_count
    for life in LIVES:
        fault = Fault(error)
        victim = await live(neighbours, put, fault, **life)
        await until(lambda: neighbours.server.session_count == before)
        if fault.is_met:
            break
    assert fault.is_met
    records = [one for one in caplog.records if victim.name in one.getMessage() or one.name == "asyncio"]
    assert [one.name for one in records if one.name == "asyncio"] == []
    traced = [one for one in records if one.exc_info]
    assert len(traced) == (0 if isinstance(error, OSError) else 1)


@pytest.mark.parametrize(
    ("owner", "name"),
    [pytest.param(*call, id=f"{call[0].__name__}.{call[1]}") for call in calls_of_sessions()],
)
async def test_a_fault_in_what_is_a_sessions_own_ends_this_session_alone(
    neighbours: Neighbours, owner: type, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    gone = owner is MemoryTransport
    error = OSError(errno.ENOTCONN, "gone") if gone else RuntimeError("a bug")

    def put(fault: Fault, victim: Session, transport: MemoryTransport) -> None:
        if owner is Handshake:
            made = victim.connection_made

            def connection_made(given: asyncio.BaseTransport) -> None:
                made(given)
                fault.put_into(victim._handshake, name)

            victim.connection_made = connection_made
        else:
            own = {MemoryTransport: transport, Wire: victim._wire, ReadPause: victim._read_pause}
            fault.put_into(own[owner], name)

    await check(neighbours, put, error, caplog)


@pytest.mark.parametrize("shared", SHARED)
async def test_a_fault_in_what_a_session_shares_ends_this_session_alone(
    neighbours: Neighbours, shared: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, _, command = shared.partition(" ")
    part, name = path.split(".")

    def put(fault: Fault, victim: Session, transport: MemoryTransport) -> None:
        def concerns(*arguments: Any) -> bool:
            if command:
                return type(arguments[0]).__name__ == command and arguments[0].connection == victim.number
            return part == "logins" or arguments[0] is victim

        fault.put_into(getattr(neighbours.server, part), name, concerns)

    await check(neighbours, put, RuntimeError("a bug"), caplog)


def test_whatever_the_loop_calls_of_a_session_is_isolated() -> None:
    """Its public methods are, so no timer, future or callback may be given another."""
    (kind,) = (node for node in TREE.body if isinstance(node, ast.ClassDef) and node.name == "Session")
    called = {id(node.func) for node in ast.walk(kind) if isinstance(node, ast.Call)}
    methods = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
    given = {
        node.attr
        for node in ast.walk(kind)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "self"
        and node.attr in methods
        and id(node) not in called
    }
    properties = {name for name, one in vars(Session).items() if isinstance(one, property)}
    assert {"beat", "expire_handshake", "abort", "lose", "logged_in", "connection_lost"} <= given
    assert [name for name in given if name.startswith("_")] == []
    public = {name for name in methods - properties if not name.startswith("_")}
    assert [name for name in public if not hasattr(vars(Session)[name], "__wrapped__")] == []


@pytest.mark.parametrize("logs_in", [False, True])
async def test_a_client_that_closes_its_socket_behind_its_close_stops_nobody(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture, logs_in: bool
) -> None:
    loop = neighbours.server.loop
    for _ in range(20):
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", neighbours.server.port))
            await loop.sock_sendall(client, login("guest") if logs_in else PROTOCOL_HEADER)
            received = b""
            while (b"\x00\x0a\x00\x29" if logs_in else b"\x00\x0a\x00\x0a") not in received:
                received += await loop.sock_recv(client, 65536)
            confirming = asyncio.ensure_future(neighbours.go_on())
            await asyncio.sleep(0)
            client.send(method(0, ConnectionClose(200, "bye", 0, 0)))
        await confirming
    await until(lambda: neighbours.server.session_count == 2)
    assert [one for one in caplog.records if one.exc_info or one.name == "asyncio"] == []
