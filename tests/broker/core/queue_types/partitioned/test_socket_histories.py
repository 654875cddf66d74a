"""Random histories of a partitioned queue on a running broker, over real sockets and with real time.

Nobody sees both ends at once here, so the laws are those that clients can see: a key's messages come in order, first
deliveries never go back, nobody is given a partition of which another still holds something unless the handoff's limit
has passed, nothing confirmed is missing, and in the end the loads are balanced.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import zlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lbg_core.client import (
    BasicProperties,
    Channel,
    ClientConnection,
    ConfirmingPublisher,
    Delivery,
    connect,
)
from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.sessions import queue_json
from testing.exploration import over_seeds
from testing.waiting import until

PARTITIONS, KEYS = 4, [f"key-{number}" for number in range(8)]
DELAY_S, HANDOFF_S = 0.06, 0.4
STALL_S = 0.1
"""Shortest stop of this process that makes its measured times worthless."""
STEPS = (
    "publish",
    "publish",
    "join",
    "join",
    "rejoin",
    "close",
    "abort",
    "cancel",
    "hold",
    "work",
    "wait",
    "wait",
)


@dataclass
class Member:
    """A consumer with a connection of its own. `works`: it acknowledges what it gets, at once."""

    name: str
    connection: ClientConnection
    channel: Channel
    works: bool = True
    held: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Tags it has not acknowledged, with their partition and when they came."""

    def acknowledge(self) -> None:
        if self.held:
            self.channel.ack(max(self.held), multiple=True)
            self.held.clear()


class History:
    def __init__(self, broker: EmbeddedBroker, queue: str) -> None:
        self.broker, self.queue = broker, queue
        self.members: list[Member] = []
        self.lost: list[list[int]] = []
        self.published: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.first: dict[str, int] = dict.fromkeys(KEYS, -1)
        self.seen: set[tuple[str, int]] = set()
        self.joined = 0
        self.broken: list[str] = []
        self.early: list[tuple[float, float]] = []
        """From when to when somebody held what another one was given then."""
        self.stalls: list[tuple[float, float]] = []

    async def play(self, steps: list[str]) -> None:
        watch = asyncio.create_task(self.watch())
        try:
            await self.live(steps)
            await asyncio.sleep(STALL_S / 2)  # so that the last stall is known
        finally:
            watch.cancel()
        for since, till in self.early:
            stalled = any(start < till and end > since - STALL_S for start, end in self.stalls)
            assert stalled, "a partition was taken from who held messages of it before the limit"

    async def watch(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            last, before = time.monotonic(), last
            if last - before > STALL_S / 2:
                self.stalls.append((before, last))

    async def live(self, steps: list[str]) -> None:
        connection = await connect(self.broker.url, name="history")
        arguments: dict[str, object] = {
            "x-queue-type": "partitioned",
            "x-partition-count": PARTITIONS,
            "x-rebalance-delay": int(DELAY_S * 1000),
            "x-max-handoff-time": int(HANDOFF_S * 1000),
        }
        channel = await connection.open_channel()
        await channel.queue_declare(self.queue, durable=True, arguments=arguments)
        self.publisher = await ConfirmingPublisher.open(connection)
        await self.join()
        for step in steps:
            await self.perform(step)
        for member in self.members:
            member.works = True
            member.acknowledge()
        if not self.members:
            await self.join()
        wanted = {(key, number) for key, count in self.published.items() for number in range(count)}
        await until(lambda: self.seen == wanted or self.broken, what="every message")
        for _ in range(600):
            if self.broken or await self.is_settled():
                break
            await asyncio.sleep(0.03)
        assert not self.broken
        assert await self.is_settled()
        for member in self.members:
            await member.connection.close()
        await connection.close()

    async def perform(self, step: str) -> None:
        member = self.members[self.joined % len(self.members)] if self.members else None
        match step:
            case "publish":
                for key in KEYS:
                    header = BasicProperties(headers={"lbg-key": key}, delivery_mode=2).encode()
                    body = f"{key} {self.published[key]}".encode()
                    self.publisher.publish_soon("", self.queue, body, header=header)
                    self.published[key] += 1
                await self.publisher.flush()
            case "join":
                await self.join()
            case "rejoin":
                await self.join(self.lost.pop() if self.lost else None)
            case "close" | "abort" | "cancel" if member is not None:
                self.lost.append([n for n, tag in enumerate(await self.tags()) if tag == member.name])
                if step == "cancel":
                    await member.channel.cancel(member.name)
                    member.acknowledge()
                self.members.remove(member)
                member.held.clear()
                if step == "abort":
                    member.connection.abort()
                else:
                    await member.connection.close()
            case "hold" if member is not None:
                member.works = False
            case "work" if member is not None:
                member.works = True
                member.acknowledge()
            case "wait":
                await asyncio.sleep(DELAY_S)

    async def join(self, claim: list[int] | None = None) -> None:
        self.joined += 1
        connection = await connect(self.broker.url, name="history")
        member = Member(f"m{self.joined}", connection, await connection.open_channel())
        self.members.append(member)
        await member.channel.consume(
            self.queue,
            partial(self.on_deliveries, member),
            prefetch_count=20,
            consumer_tag=member.name,
            arguments={} if claim is None else {"x-partitions": claim},
        )

    def on_deliveries(self, member: Member, deliveries: list[Delivery]) -> None:
        if member not in self.members:
            return  # it is gone, and what its socket still holds is on its way to another
        now = time.monotonic()
        for delivery in deliveries:
            key, number = delivery.body.decode().split()
            partition = zlib.crc32(key.encode()) % PARTITIONS
            self.judge(member, partition, now)
            if int(number) > self.first[key] + 1:
                self.broken.append(f"{key}: {number} after {self.first[key]}")
            if int(number) <= self.first[key] and not delivery.redelivered:
                self.broken.append(f"{key}: {number} a second time, and not marked")
            self.first[key] = max(self.first[key], int(number))
            self.seen.add((key, int(number)))
            member.held[delivery.delivery_tag] = (partition, now)
        if member.works:
            member.acknowledge()

    def judge(self, member: Member, partition: int, now: float) -> None:
        for other in self.members:
            if other is not member:
                for tag, (held, since) in list(other.held.items()):
                    if held == partition:
                        del other.held[tag]
                        if now - since < HANDOFF_S - STALL_S:
                            self.early.append((since, now))

    async def described(self) -> dict[str, Any]:
        return await asyncio.to_thread(queue_json, self.broker, self.queue)

    async def tags(self) -> list[str | None]:
        return [partition["consumer_tag"] for partition in (await self.described())["partitions"]]

    async def is_settled(self) -> bool:
        described = await self.described()
        tags = [partition["consumer_tag"] for partition in described["partitions"]]
        loads = [tags.count(member.name) for member in self.members]
        is_fair = sum(loads) == PARTITIONS and max(loads) - min(loads) <= 1
        return described["rebalance_status"] == "Ready" and is_fair and described["messages"] == 0


@over_seeds(8)
def test_the_laws_hold_over_real_sockets(shared_broker: EmbeddedBroker, seed: int) -> None:
    rng = random.Random(seed)
    steps = rng.choices(STEPS, k=rng.randint(8, 16))
    asyncio.run(History(shared_broker, f"history-{secrets.token_hex(4)}").play(steps))
