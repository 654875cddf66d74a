"""A group's topology on a broker, and its queues read back: without provisioning and without members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lbg_core.client import (
    BasicProperties,
    Channel,
    ClientConnection,
    ConfirmingPublisher,
    Delivery,
    connect,
)
from lbg_core.group import (
    HEADER_KEY,
    HEADER_PUBLISHER,
    HEADER_SEQ,
    HEADER_TS,
    Engine,
    GroupSpec,
    Names,
    topology_of,
)
from testing.waiting import GUARD_S


@dataclass(frozen=True)
class Seen:
    """One delivery of a group's message."""

    queue: int
    hash: int
    seq: int
    key: str | None
    publisher: str
    ts: int
    body: bytes
    redelivered: bool

    @classmethod
    def of(cls, queue: int, delivery: Delivery) -> Seen:
        headers = delivery.headers
        key, publisher = headers.get(HEADER_KEY), headers[HEADER_PUBLISHER]
        seq, ts = headers[HEADER_SEQ], headers[HEADER_TS]
        assert isinstance(seq, int)
        assert isinstance(ts, int)
        assert isinstance(publisher, str)
        assert key is None or isinstance(key, str)
        hash_ = int(delivery.routing_key.split(".")[1])
        return cls(queue, hash_, seq, key, publisher, ts, bytes(delivery.body), delivery.redelivered)


async def declare_group(url: str, spec: GroupSpec) -> None:
    connection = await connect(url)
    channel = await connection.open_channel()
    topology = topology_of(spec, _engine_of(connection))
    for exchange in topology.exchanges:
        await channel.exchange_declare(
            exchange.name, exchange.type, durable=True, arguments=dict(exchange.arguments)
        )
    for queue in topology.queues:
        await channel.queue_declare(queue.name, durable=queue.durable, arguments=dict(queue.arguments))
    for binding in topology.bindings:
        await channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)
    publisher = await ConfirmingPublisher.open(connection)
    properties = BasicProperties(delivery_mode=2)
    await publisher.publish("", Names(spec.name).config, spec.to_record().encode(), properties=properties)
    await connection.close()


def _engine_of(connection: ClientConnection) -> Engine:
    properties = connection.server_properties
    return Engine.parse(str(properties["product"]), str(properties["version"]))


class Drain:
    """Consumes every queue of a group and acknowledges everything; `seen` is in the order of each queue.

    `each` may be an async function that is awaited before a delivery is acknowledged: a slow consumer.
    """

    def __init__(self, url: str, spec: GroupSpec, *, delay_s: float = 0.0, prefetch_count: int = 200) -> None:
        self.seen: list[Seen] = []
        self._url = url
        self._spec = spec
        self._delay_s = delay_s
        self._prefetch_count = prefetch_count
        self._came = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._connection: ClientConnection | None = None

    async def __aenter__(self) -> Drain:
        self._connection = await connect(self._url)
        for queue in range(self._spec.queue_count):
            channel = await self._connection.open_channel()
            inbox: asyncio.Queue[Delivery] = asyncio.Queue()
            self._tasks.append(asyncio.create_task(self._work(queue, channel, inbox)))
            await channel.consume(
                Names(self._spec.name).queue(queue), _putter(inbox), prefetch_count=self._prefetch_count
            )
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._connection is not None
        await self._connection.close()

    async def _work(self, queue: int, channel: Channel, inbox: asyncio.Queue[Delivery]) -> None:
        while True:
            delivery = await inbox.get()
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            self.seen.append(Seen.of(queue, delivery))
            channel.ack(delivery.delivery_tag)
            self._came.set()

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = GUARD_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._came.clear()
                await self._came.wait()

    def distinct(self) -> set[tuple[str, int, int]]:
        return {(each.publisher, each.hash, each.seq) for each in self.seen}

    def inversions(self) -> list[Seen]:
        """Those whose first sight comes before that of an earlier one of their publisher and key."""
        first: dict[tuple[str, int, int], int] = {}
        for at, each in enumerate(self.seen):
            first.setdefault((each.publisher, each.hash, each.seq), at)
        latest: dict[tuple[str, str], int] = {}
        early = []
        by_seq = sorted(
            ((self.seen[at], at) for at in first.values()), key=lambda pair: (pair[0].hash, pair[0].seq)
        )
        for each, at in by_seq:
            if each.key is None:
                continue
            if at < latest.get((each.publisher, each.key), -1):
                early.append(each)
            latest[each.publisher, each.key] = max(at, latest.get((each.publisher, each.key), -1))
        return early

    def bodies_differ(self) -> bool:
        bodies: dict[tuple[str, int, int], bytes] = {}
        return any(
            bodies.setdefault((each.publisher, each.hash, each.seq), each.body) != each.body
            for each in self.seen
        )


def _putter(inbox: asyncio.Queue[Delivery]) -> Callable[[list[Delivery]], None]:
    def put(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            inbox.put_nowait(delivery)

    return put
