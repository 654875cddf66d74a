"""Confirmed publishing and right logins beside 1,500 connections with wrong passwords.

The connections are those of another process. Each sends a password that was never sent before, awaits the broker's
answer, and connects again at once. A publisher waits for each confirm before it publishes the next message, and is
measured without and with the connections in turns, on one broker. A right login is measured from connecting to
connection.open-ok: of a user that the broker has checked before, and of one that it has not, from the address of the
wrong passwords and from another one.
`python -m bench.logins --connections 1500 --rounds 3`.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.measurement import Measurement
from bench.workers import Worker, cpu_s, say
from lbg_core.amqp import Connection as Wire
from lbg_core.amqp import MethodEvent, Role
from lbg_core.amqp.methods import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
)
from lbg_core.client import BasicProperties, ConfirmingPublisher, connect
from lbg_core.peers import raise_descriptor_limit
from testing.broker.embedded import EmbeddedBroker

QUEUE = "bench.logins"
BODY = bytes(256)
PASSWORD = "the right one"
HOST = "127.0.0.1"
OTHER_HOST = "127.0.0.9"
"""Address of logins that do not share the attack's."""

ANSWER_WITHIN_S = 200.0
CONNECT_WITHIN_S = 10.0
"""A right login is tried again after so long, as LBG's clients do by default."""

SETTLE_S = 5.0
"""Seconds between the attack's begin and the measurement: the first burst is over."""


async def _attempt(port: int, user: str, password: str, from_host: str, within_s: float) -> bool:
    """One login; True if it was right. Raises OSError and TimeoutError."""
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(HOST, port, local_addr=(from_host, 0))
        wire = Wire(Role.CLIENT, heartbeat_s=0)
        wire.initiate()
        try:
            while True:
                writer.write(wire.take_output())
                data = await reader.read(65536)
                if not data:
                    return False
                for event in wire.receive_data(data):
                    match event:
                        case MethodEvent(method=ConnectionStart()):
                            login = f"\0{user}\0{password}".encode()
                            capabilities = {"capabilities": {"authentication_failure_close": True}}
                            wire.send(0, ConnectionStartOk(capabilities, "PLAIN", login, "en_US"))
                        case MethodEvent(method=ConnectionTune() as tune):
                            wire.send(0, wire.tune_ok(tune))
                            wire.send(0, ConnectionOpen("/"))
                        case MethodEvent(method=ConnectionOpenOk()):
                            return True
                        case MethodEvent():
                            return False
        finally:
            writer.transport.abort()


async def _request(port: int) -> None:
    """One request to the management API with a wrong password. Raises OSError and TimeoutError."""
    async with asyncio.timeout(ANSWER_WITHIN_S):
        reader, writer = await asyncio.open_connection(HOST, port)
        login = base64.b64encode(f"guest:{secrets.token_hex(8)}".encode()).decode()
        head = f"GET /api/whoami HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Basic {login}\r\n\r\n"
        try:
            writer.write(head.encode())
            await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.transport.abort()


async def wrong_logins(port: int, connections: int, management: bool) -> None:
    """Until killed; reports the number of attempts that were answered."""
    raise_descriptor_limit()
    answered = 0

    async def one() -> None:
        nonlocal answered
        while True:
            try:
                if management:
                    await _request(port)
                else:
                    await _attempt(port, "guest", secrets.token_hex(8), HOST, ANSWER_WITHIN_S)
            except (OSError, TimeoutError, EOFError):
                await asyncio.sleep(0.1)
            answered += 1

    attacking = [asyncio.create_task(one()) for _ in range(connections)]
    say("ready")
    while attacking:
        await asyncio.sleep(1)
        say("answered", count=answered)


async def confirms_a_second(url: str, seconds: float) -> float:
    connection = await connect(url, name="bench-logins")
    publisher = await ConfirmingPublisher.open(connection)
    header = BasicProperties(delivery_mode=2).encode()
    begun = time.monotonic()
    confirmed = 0
    while time.monotonic() < begun + seconds:
        await publisher.publish("", QUEUE, BODY, header=header)
        confirmed += 1
    elapsed_s = time.monotonic() - begun
    await connection.close()
    return confirmed / elapsed_s


async def login_s(port: int, user: str, from_host: str) -> float:
    """Seconds until a right login is in, with what it has to try again."""
    begun = time.monotonic()
    while True:
        with suppress(OSError, TimeoutError):
            if await _attempt(port, user, PASSWORD, from_host, CONNECT_WITHIN_S):
                break
    return time.monotonic() - begun


@dataclass
class Logins:
    """Seconds of right logins: by what they are."""

    took_s: dict[str, list[float]] = field(default_factory=dict)

    async def measure(self, port: int, users: Iterator[str], count: int) -> None:
        known = next(users)
        await login_s(port, known, HOST)
        for _ in range(count):
            for what, user, host in (
                ("checked before", known, HOST),
                ("not checked before, from the address of the wrong passwords", next(users), HOST),
                ("not checked before, from another address", next(users), OTHER_HOST),
            ):
                self.took_s.setdefault(what, []).append(await login_s(port, user, host))


async def measure(
    broker: EmbeddedBroker, connections: int, rounds: int, seconds: float, logins: int, *, management: bool
) -> None:
    port = broker.management_port if management else broker.port
    wrong = {"port": port, "connections": connections, "management": management}
    names = [f"user-{number}" for number in range(rounds * (2 * logins + 1))]
    for name in names:
        await asyncio.to_thread(broker.put, f"users/{name}", password=PASSWORD, tags="")
        grant = {"configure": ".*", "write": ".*", "read": ".*"}
        await asyncio.to_thread(broker.put, f"permissions/%2F/{name}", **grant)
    connection = await connect(broker.url, name="bench-declare")
    channel = await connection.open_channel()
    await channel.queue_declare(QUEUE, durable=True, arguments={"x-max-length": 1000})
    await connection.close()
    users = iter(names)
    alone, beside, attempts, shares, right = [], [], [], [], Logins()
    for _ in range(rounds):
        alone.append(await confirms_a_second(broker.url, seconds))
        attack = await Worker.start("logins", role="wrong", **wrong)
        try:
            await attack.answer("ready")
            await asyncio.sleep(SETTLE_S)
            before, cpu, begun = attack.last("answered")["count"], cpu_s(broker.pid), time.monotonic()
            beside.append(await confirms_a_second(broker.url, seconds))
            took_s = time.monotonic() - begun
            attempts.append((attack.last("answered")["count"] - before) / took_s)
            shares.append((cpu_s(broker.pid) - cpu) / took_s)
            await right.measure(broker.port, users, logins)
        finally:
            await attack.kill()
        await asyncio.sleep(SETTLE_S)
    print("| | confirms/s, rounds | median |\n|---|---|---|")
    for what, rates in (("alone", alone), (f"beside {connections:,} connections", beside)):
        print(f"| {what} | {', '.join(f'{rate:,.0f}' for rate in rates)} | {statistics.median(rates):,.0f} |")
    kept = statistics.median(beside) / statistics.median(alone)
    print(f"\nkept: {kept:.0%}; {statistics.median(attempts):.0f} attempts a second were answered; ", end="")
    print(f"the broker used {statistics.median(shares):.0%} of a core with both\n")
    print("| right login | median ms | longest ms |\n|---|---|---|")
    for what, took in right.took_s.items():
        print(f"| {what} | {statistics.median(took) * 1e3:,.0f} | {max(took) * 1e3:,.0f} |")


def main() -> None:
    parser = Measurement(__doc__, workers={"wrong": wrong_logins})
    parser.add_argument("--connections", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of publishing, in each half of a round")
    parser.add_argument("--management", action="store_true", help="wrong passwords to the management API")
    parser.add_argument("--logins", type=int, default=20, help="right logins of each kind in a round")
    told = parser.asked()
    with (
        tempfile.TemporaryDirectory(prefix="lbg-bench-") as directory,
        EmbeddedBroker(Path(directory) / "data") as broker,
    ):
        counts = (told.connections, told.rounds, told.seconds, told.logins)
        asyncio.run(measure(broker, *counts, management=told.management))


if __name__ == "__main__":
    main()
