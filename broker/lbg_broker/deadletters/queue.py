"""`lbg.G.dead`, read from its oldest message on; what is not acknowledged goes back to its place at the end.

One consumer reads, for RabbitMQ gives back in order what one consumer held; each basic.get is a consumer of its own to
a quorum queue, and what several held comes back in any order (rabbit_fifo).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice

from lbg_broker.client import Channel, ClientConnection, ConnectionSettings, Delivery, connect_any
from lbg_broker.group import GroupSpec, Names
from lbg_broker.provisioning.errors import RecordUnavailable
from lbg_broker.provisioning.reading import read_group

from .letter import DeadLetter
from .selecting import Selection

Page = list[tuple[DeadLetter, Delivery]]

PAGE_MESSAGES = 64

WINDOW_MESSAGES = 256
"""Under way when all of them are acknowledged: what this process holds of the queue."""

WINDOW_MAX_MESSAGES = 65_535
"""A prefetch count has 16 bits (AMQP 0-9-1, basic.qos). So many that are not selected can be passed over."""

ANSWER_S = 20.0
"""A quorum queue that has its majority back answers within 15 s what it was sent without one, or never."""


class DeadQueue:
    """`total`: dead letters that were there at the start. Later ones are not looked at, or a member that refuses what
    is replayed would keep a replay going for ever. `looked_at` falls short of it when somebody else holds some, or more
    than a window of them are not selected."""

    def __init__(self, connection: ClientConnection, channel: Channel, spec: GroupSpec, total: int) -> None:
        self.connection = connection
        self.names = Names(spec.name)
        self.spec = spec
        self.total = total
        self.looked_at = 0
        self._channel = channel
        self._acked = 0

    def ack(self, message: Delivery) -> None:
        self._channel.ack(message.delivery_tag)
        self._acked += 1

    async def pages(self, selection: Selection, *, window: int = WINDOW_MAX_MESSAGES) -> AsyncIterator[Page]:
        """Those selected, oldest first; to be called once. In memory are those that came and were not yet asked for,
        never those passed over. Raises ClientError."""
        found: deque[tuple[DeadLetter, Delivery]] = deque()
        came = asyncio.Event()

        def on_deliveries(messages: list[Delivery]) -> None:
            for message in islice(messages, self.total - self.looked_at):
                self.looked_at += 1
                letter = DeadLetter.of(message)
                if letter in selection:
                    found.append((letter, message))
            came.set()

        channel = self._channel
        channel.closed.add_done_callback(lambda _: came.set())
        if self.total:
            await channel.consume(self.names.dead, on_deliveries, prefetch_count=window)
        while True:
            while found:
                yield [found.popleft() for _ in range(min(PAGE_MESSAGES, len(found)))]
            if self.looked_at >= self.total or self.looked_at - self._acked >= window:
                return
            came.clear()
            if not channel.is_open:
                raise channel.why_closed()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await came.wait()
            except TimeoutError:
                return


@asynccontextmanager
async def open_dead_queue(places: Sequence[ConnectionSettings], group: str) -> AsyncIterator[DeadQueue]:
    """Raises GroupNotFound and the other errors of `read_group`, and ClientError."""
    connection = await connect_any(places, name=f"lbg dead {group}")
    try:
        channel = await connection.open_channel()
        spec = await read_group(channel, group)
        name = Names(group).dead
        try:
            async with asyncio.timeout(ANSWER_S):
                total = (await channel.queue_declare(name, passive=True)).message_count
        except TimeoutError:
            raise RecordUnavailable(group, f"queue {name} gives no answer in {ANSWER_S:g} s") from None
        try:
            yield DeadQueue(connection, channel, spec, total)
        finally:
            # Its answer comes after every acknowledgement was taken.
            if channel.is_open:
                await channel.close()
    finally:
        await connection.close()
