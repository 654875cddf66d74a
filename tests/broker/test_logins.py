"""Logins beside the work of the broker: no hash in the event loop, one log line, names that forge none."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from lbg_broker import Address, Server, ServerSettings, running
from lbg_broker.core.permissions import User
from lbg_broker.logins import LoginLimits, Logins, LoginUnchecked, Outcome
from lbg_core.amqp import PROTOCOL_HEADER
from lbg_core.amqp.frames import METHOD, encode_frame
from lbg_core.amqp.methods import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
    ConnectionTuneOk,
    QueueDeclare,
    QueueDeclareOk,
)
from lbg_core.passwords import hash_password
from testing.amqp.plain_client import ClosedError, PlainClient
from testing.aside import aside
from testing.broker.embedded import in_process
from testing.waiting import GUARD_S, until


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    settings = {"management": Address("127.0.0.1", 0), "close_timeout_s": 0.1}
    async with in_process(tmp_path / "data", **settings) as server:
        yield server


class Hashes:
    """Hashes of passwords: the threads that computed them, which wait while `gate` is closed."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def scrypt(self, password: bytes, **options: Any) -> bytes:
        self.threads.append(threading.get_ident())
        assert self.gate.wait(GUARD_S)
        return _SCRYPT(password, **options)


_SCRYPT = hashlib.scrypt


@pytest.fixture
def hashes(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashes]:
    hashes = Hashes()
    monkeypatch.setattr("hashlib.scrypt", hashes.scrypt)
    yield hashes
    hashes.gate.set()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def refused(port: int, user: str, password: str) -> None:
    with pytest.raises(ClosedError):
        PlainClient(port, user=user, password=password)


@pytest.mark.long
async def test_no_password_is_hashed_in_the_event_loop(server: Server, hashes: Hashes) -> None:
    await aside(refused, server.port, "guest", "wrong")
    await aside(refused, server.port, "nobody", "wrong")
    (await aside(PlainClient, server.port)).close()
    api = f"http://{server.management_address}/api"
    async with ClientSession() as session:
        assert (await session.get(f"{api}/whoami", headers=basic("guest", "other"))).status == 401
        told = {"password": "secret", "tags": "management"}
        made = await session.put(f"{api}/users/ada", json=told, headers=basic("guest", "guest"))
        assert made.status == 201
        assert (await session.get(f"{api}/whoami", headers=basic("ada", "secret"))).status == 200
    assert len(hashes.threads) == 6
    assert threading.get_ident() not in hashes.threads


@pytest.mark.long
async def test_a_password_that_was_wrong_or_right_before_takes_no_hash(
    server: Server, hashes: Hashes
) -> None:
    for _ in range(3):
        await aside(refused, server.port, "guest", "wrong")
        (await aside(PlainClient, server.port)).close()
    assert len(hashes.threads) == 2


@pytest.mark.long
async def test_the_broker_works_and_lets_in_whom_it_knows_while_wrong_passwords_wait(
    server: Server, hashes: Hashes
) -> None:
    publisher = await aside(PlainClient, server.port)
    hashes.gate.clear()
    waiting = [
        asyncio.create_task(asyncio.to_thread(refused, server.port, "guest", f"wrong {number}"))
        for number in range(3)
    ]
    await until(lambda: len(hashes.threads) == 2)
    assert (await aside(publisher.ask, QueueDeclare("q"), QueueDeclareOk)).queue == "q"
    (await aside(PlainClient, server.port)).close()
    assert len(hashes.threads) == 2, "one at a time"
    hashes.gate.set()
    await asyncio.gather(*waiting)
    publisher.close()


@pytest.mark.long
async def test_a_management_client_that_leaves_ends_its_login_and_one_that_waits_wakes_nobody(
    server: Server, hashes: Hashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.management_address
    assert address is not None
    host, _, port = address.rpartition(":")
    answers: list[asyncio.Future[Outcome]] = []
    delays: list[float] = []
    check, loop = server.logins.check, asyncio.get_running_loop()
    call_later = loop.call_later

    def noting_check(*login: str, **peer: Any) -> asyncio.Future[Outcome]:
        answers.append(check(*login, **peer))
        return answers[-1]

    def noting_call_later(delay: float, *call: Any, **settings: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return call_later(delay, *call, **settings)

    monkeypatch.setattr(server.logins, "check", noting_check)
    monkeypatch.setattr(loop, "call_later", noting_call_later)
    hashes.gate.clear()
    clients = []
    for number in range(3):
        reader, writer = await asyncio.open_connection(host, int(port))
        login = basic("guest", f"wrong {number}")["Authorization"]
        writer.write(f"GET /api/whoami HTTP/1.1\r\nHost: {host}\r\nAuthorization: {login}\r\n\r\n".encode())
        clients.append((reader, writer))
        await until(lambda: len(answers) == number + 1)  # noqa: B023  # it is awaited in its turn
    for _, writer in clients[:2]:
        writer.close()
    await until(lambda: [answer.cancelled() for answer in answers] == [True, True, False])
    hashes.gate.set()
    assert (await clients[2][0].readline()).startswith(b"HTTP/1.1 401")
    clients[2][1].close()
    assert [delay for delay in delays if 1 < delay < 50] == []


@pytest.mark.long
async def test_a_login_that_is_not_checked_in_time_is_no_refusal(tmp_path: Path) -> None:
    """A client that is told that its password is wrong may give up for good."""
    gate = threading.Event()

    def never(password: bytes, **options: Any) -> bytes:
        assert gate.wait(GUARD_S)
        return _SCRYPT(password, **options)

    settings = {"management": Address("127.0.0.1", 0), "close_timeout_s": 0.1}
    async with in_process(tmp_path / "data", **settings) as server:
        server.logins.close()
        server.logins = Logins(server.users, limits=LoginLimits(longest_wait_s=0.1))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("hashlib.scrypt", never)
            client = await aside(lambda: PlainClient(server.port, password="wrong", log_in=False))
            with pytest.raises((ClosedError, ConnectionError)):
                await aside(client.log_in)
            assert client.events == []
            client.close()
            async with ClientSession() as session:
                url = f"http://{server.management_address}/api/whoami"
                assert (await session.get(url, headers=basic("guest", "other"))).status == 503
            gate.set()


async def test_a_burst_of_right_passwords_takes_one_hash(server: Server, hashes: Hashes) -> None:
    """Thousands of members that reconnect at once from one address have the same password."""
    server.users.put(User("ada", hash_password("secret")))
    hashes.threads.clear()
    hashes.gate.clear()

    def check(password: str) -> asyncio.Future[Outcome]:
        return server.logins.check("ada", password, peer="test", address="192.0.2.1", loopback=False)

    answers = [check("secret") for _ in range(300)] + [check(f"wrong {number}") for number in range(300)]
    await until(lambda: hashes.threads)
    hashes.gate.set()
    assert {type(await answer) for answer in answers[:300]} == {User}
    assert len(hashes.threads) < 10
    for answer in answers[300:]:
        answer.cancel()


@pytest.mark.long
async def test_a_password_that_changes_while_the_old_one_is_checked_counts_at_once(
    server: Server, hashes: Hashes
) -> None:
    new = User("ada", hash_password("new"))
    server.users.put(User("ada", hash_password("old")))
    hashes.threads.clear()
    hashes.gate.clear()
    answers = [
        server.logins.check("ada", password, peer="test", address="192.0.2.1", loopback=False)
        for password in ("new", "old")
    ]
    await until(lambda: hashes.threads)
    server.users.put(new)
    hashes.gate.set()
    outcomes = [await answer for answer in answers]
    assert outcomes[0] == new
    assert outcomes[1] != new


async def test_a_login_that_cannot_be_checked_holds_up_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hashlib.scrypt", _memory_is_used_up)
    answers = [
        server.logins.check("guest", password, peer="test", address=address, loopback=True)
        for password, address in (("one", "192.0.2.1"), ("two", "192.0.2.2"))
    ]
    assert [type(await answer) for answer in answers] == [LoginUnchecked] * 2
    assert caplog.text.count("test: its login cannot be checked") == 2


def _memory_is_used_up(*_: object, **__: object) -> bytes:
    raise MemoryError


@pytest.mark.long
async def test_wrong_passwords_of_an_address_are_one_line_and_a_count(
    server: Server, hashes: Hashes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(4):
        await aside(refused, server.port, "guest", "wrong")
    lines = [message for message in caplog.messages if "wrong password" in message]
    assert len(lines) == 1
    assert lines[0].endswith("refused: wrong password for user 'guest'")
    await server.stop()
    lines = [message for message in caplog.messages if "wrong password" in message]
    assert len(lines) == 2
    assert lines[1].startswith("127.0.0.1: 3 more in 60 s, the last: 127.0.0.1:")


@pytest.mark.long
async def test_a_line_end_in_a_name_begins_no_line_in_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await aside(refused, server.port, "eve\n2026-01-01 INFO all is well", "wrong")
    (line,) = [message for message in caplog.messages if "refused" in message]
    assert "\n" not in line
    assert "eve\\n2026-01-01 INFO all is well" in line


async def test_a_client_may_send_its_whole_handshake_at_once(server: Server, hashes: Hashes) -> None:
    methods = (
        ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
        ConnectionTuneOk(2047, 131072, 0),
        ConnectionOpen("/"),
    )
    hashes.gate.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(PROTOCOL_HEADER + b"".join(encode_frame(METHOD, 0, method.encode()) for method in methods))
    await until(lambda: hashes.threads)
    hashes.gate.set()
    await asyncio.wait_for(reader.readuntil(encode_frame(METHOD, 0, ConnectionOpenOk().encode())), GUARD_S)
    writer.close()


@pytest.mark.parametrize("password", ["guest", "wrong"])
async def test_a_client_that_leaves_before_its_login_is_answered_leaves_nothing(
    server: Server, hashes: Hashes, password: str
) -> None:
    hashes.gate.clear()
    client = await aside(lambda: PlainClient(server.port, password=password, log_in=False))
    trying = asyncio.create_task(asyncio.to_thread(_end_of, client))
    await until(lambda: hashes.threads)
    client.socket.shutdown(2)
    await until(lambda: server.session_count == 0)
    hashes.gate.set()
    await trying
    (await aside(PlainClient, server.port)).close()
    client.close()


def _end_of(client: PlainClient) -> None:
    with pytest.raises((ClosedError, OSError)):
        client.log_in()


async def test_a_page_that_was_rebound_to_loopback_is_refused_by_the_management_api(server: Server) -> None:
    url = f"http://{server.management_address}/api/whoami"
    async with ClientSession(headers=basic("guest", "guest")) as session:
        assert (await session.get(url)).status == 200
        assert (await session.get(url, headers={"Host": "localhost:15672"})).status == 200
        assert (await session.get(url, headers={"Host": "evil.example:15672"})).status == 421
        assert (await session.get(url, headers={"Origin": "https://evil.example"})).status == 403


async def test_listeners_without_tls_off_loopback_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    anywhere = Address("0.0.0.0", 0)
    async with running(ServerSettings(tmp_path / "open", listen=anywhere, management=anywhere)):
        pass
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(" has no TLS")[0] for line in warned] == [
        "AMQP on 0.0.0.0:0",
        "the management API on 0.0.0.0:0",
    ]
    caplog.clear()
    local = Address("127.0.0.1", 0)
    async with running(ServerSettings(tmp_path / "local", listen=local, management=local)):
        pass
    assert [record for record in caplog.records if record.levelno == logging.WARNING] == []
