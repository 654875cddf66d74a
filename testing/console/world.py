"""Groups with a fault each, for drills and pictures of the console: real members, messages and faults."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lbg_console.application import Console, ConsoleSettings
from lbg_core.admin import GroupAdmin, connect_admin
from lbg_core.client import BasicProperties, BrokerAddress, ConfirmingPublisher
from lbg_core.client.connect import connect
from lbg_core.group import (
    HEADER_KEY,
    HEADER_PUBLISHER,
    HEADER_SEQ,
    HEADER_TS,
    GroupSpec,
    Mode,
    Names,
    hash_of,
    routing_key,
)
from lbg_core.publisher import GroupPublisher, Identity
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry
from testing.command_line import clean_environment

HASHES = 16
QUEUES = 4
KEYS = tuple(f"account-{number}" for number in range(24))
MODES: dict[str, tuple[Mode, ...]] = {
    "embedded": ("Exclusive", "Partitioned", "MessageGroups", "Sessions"),
    "rabbitmq": ("Exclusive", "Partitioned"),
}
"""docs/modes.md."""

Handler = Callable[[Message], Awaitable[Verdict | None]]


async def at_once(message: Message) -> None:
    """An application that has nothing to do."""


def refusing(key: str, reason: str) -> Handler:
    """An application that fails with messages of this key."""

    async def handle(message: Message) -> Verdict | None:
        return retry(reason) if message.key == key else None

    return handle


def taking(seconds: float) -> Handler:
    """An application whose calls last so long."""

    async def handle(message: Message) -> None:
        await asyncio.sleep(seconds)

    return handle


@dataclass
class World:
    """A broker with groups. Everything ends with `stack`."""

    engine: str
    url: str
    management_url: str
    stack: AsyncExitStack
    admin: GroupAdmin
    specs: dict[str, GroupSpec] = field(default_factory=dict)

    @property
    def modes(self) -> tuple[Mode, ...]:
        return MODES[self.engine]

    async def console(self, **settings: Any) -> Console:
        address = BrokerAddress((self.url,), (self.management_url,))
        return await self.stack.enter_async_context(Console(ConsoleSettings(address, port=0, **settings)))

    async def group(self, name: str, mode: Mode = "Exclusive", **attributes: Any) -> GroupSpec:
        counted: dict[str, Any] = {} if mode in ("MessageGroups", "Sessions") else {"queue_count": QUEUES}
        if mode == "Partitioned":
            counted["rebalance_delay_s"] = 0.0
        given: dict[str, Any] = {"hash_count": HASHES, "queue_size_mb": 8, **counted, **attributes}
        self.specs[name] = spec = GroupSpec(name, mode=mode, **given)
        await self.admin.create_group(spec, with_user=False)
        return spec

    async def member(self, group: str, name: str, handler: Handler = at_once, **settings: Any) -> Member:
        """In this process."""
        delay = {} if self.specs[group].mode == "Partitioned" else {"rebalance_delay_s": 0.0}
        given: dict[str, Any] = {"shutdown_grace_s": 0.0, "retry_first_s": 0.05, **delay, **settings}
        told = MemberSettings(broker=self.url, group=group, name=name, **given)
        return await self.stack.enter_async_context(Member(told, handler))

    async def process(self, *arguments: str) -> asyncio.subprocess.Process:
        """`lbg ARGUMENTS` as a process of its own."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lbgroup", *arguments, "--broker", self.url),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=clean_environment() | {"LBG_MANAGEMENT": self.management_url},
        )
        self.stack.push_async_callback(end, process)
        return process

    async def publish(self, group: str, count: int, *, keys: tuple[str, ...] = KEYS) -> None:
        """So many messages, of the keys in turn."""
        async with GroupPublisher(self.url, group=group, identity=Identity("shop")) as publisher:
            for number in range(count):
                await publisher.publish(key=keys[number % len(keys)], body=b'{"amount": %d}' % number)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Until the world ends."""
        task = asyncio.create_task(work)
        self.stack.callback(task.cancel)

    async def publish_steadily(self, group: str, rate_hz: float) -> None:
        async with GroupPublisher(self.url, group=group, identity=Identity("shop")) as publisher:
            for number in itertools.count():
                await publisher.publish(key=KEYS[number % len(KEYS)], body=b'{"amount": %d}' % number)
                await asyncio.sleep(1 / rate_hz)

    async def publish_by_hand(self, spec: GroupSpec, key: str, publisher: str, numbers: list[int]) -> int:
        """By a publisher of another make, which leaves out the numbers that are not given. Returns the hash."""
        hash_ = hash_of(key, spec.hash_count, spec.hash_function)
        connection = await connect(self.url)
        try:
            confirming = await ConfirmingPublisher.open(connection)
            for number in numbers:
                headers: dict[str, str | int] = {
                    HEADER_KEY: key,
                    HEADER_PUBLISHER: publisher,
                    HEADER_SEQ: number,
                }
                headers[HEADER_TS] = time.time_ns() // 1000
                properties = BasicProperties(
                    delivery_mode=2, headers=headers, message_id=f"{publisher}-{hash_}-{number}"
                )
                to = routing_key(spec.hash_prefix, hash_, "")
                await confirming.publish(Names(spec.name).exchange, to, b"{}", properties=properties)
        finally:
            await connection.close()
        return hash_


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


@asynccontextmanager
async def world_of(engine: str, url: str, management_url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(connect_admin(url, management_url))
        yield World(engine, url, management_url, stack, admin)
