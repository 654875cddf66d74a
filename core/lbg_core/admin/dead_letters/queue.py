"""The queue `lbg.G.dead`, read from its oldest message on; unacknowledged letters return to their place.

One consumer reads at a time, because RabbitMQ returns the unacknowledged messages of one consumer in order. Each
basic.get is a consumer of its own to a quorum queue, and messages of several return in any order (rabbit_fifo).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from itertools import islice

from lbg_core.admin.dead_letters.letter import PAGE_MESSAGES, DeadLetter, ReadWindow
from lbg_core.admin.errors import RecordUnavailable
from lbg_core.admin.record import read_group
from lbg_core.client import Channel, ClientConnection, ConnectionSettings, Delivery, connect_any
from lbg_core.client.ack_window import APPLIED_AFTER_S
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.group import GroupSpec, Names

Copy = tuple[DeadLetter, Delivery]
"""A letter, and the message that it was read from."""

Page = list[Copy]

TURN_S = 900.0
"""RabbitMQ closes a channel with a message unacknowledged for `consumer_timeout`, 30 min by default: before, everything
is returned and read again from the oldest on."""


class DeadQueue:
    """`name`: of the queue, that of the dead letters or one like it. `total`: letters that were there at the start.
    Later ones are not read, or a member that refuses what is replayed would make a replay endless. `unread`: another
    consumer has them."""

    def __init__(
        self,
        connection: ClientConnection,
        channel: Channel,
        spec: GroupSpec,
        total: int,
        *,
        turn_s: float = TURN_S,
        name: str = "",
    ) -> None:
        self.connection = connection
        self.names = Names(spec.name)
        self.name = name or self.names.dead
        self.spec = spec
        self.total = total
        self._channel = channel
        self._turn_s = turn_s
        self._left = total  # of those that were there, without those acknowledged here
        self._selected: deque[Copy] = deque()
        self._arrived = asyncio.Event()
        self._begin(channel)

    @property
    def unread(self) -> int:
        return self._left - self._read_count

    def ack(self, message: Delivery) -> None:
        self._channel.ack(message.delivery_tag)
        self._acked += 1
        if message.delivery_tag > self._window_began_at:
            self._windows.acked()

    async def pages(self, selection: Container[DeadLetter]) -> AsyncIterator[Page]:
        """Those selected, oldest first; to be called again only after `turn`. Letters of a page that are not
        acknowledged when the next is requested stay. In memory are those received and not yet requested, never those
        passed over. Raises ClientError."""
        self._selection = selection
        while True:
            while self._selected:
                count = min(PAGE_MESSAGES, len(self._selected))
                yield [self._selected.popleft() for _ in range(count)]
            if self._read_count >= self._left:
                return
            self._arrived.clear()
            if not self._channel.is_open:
                raise self._channel.why_closed()
            if self._acked and asyncio.get_running_loop().time() - self._turn_began_at > self._turn_s:
                await self.turn()
            elif self._windows.is_crowded:
                await self._open_window()
            else:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        await self._arrived.wait()
                except TimeoutError:
                    if self._acked == self._acks_applied:
                        return  # another consumer has the rest
                    await self._await_acks()

    async def close(self) -> None:
        """Everything acknowledged is so at the broker, and the rest is back in its place."""
        if not self._channel.is_open:
            return
        if self._consumer is not None:
            await self._channel.cancel(self._consumer)
        if self._acked:
            # A channel that closes can discard acknowledgements behind 32 others. When it has answered basic.cancel the
            # queue has applied those 32, and the rest is on its way to it.
            await asyncio.sleep(APPLIED_AFTER_S)
        await self._channel.close()

    async def _await_acks(self) -> None:
        """A channel of RabbitMQ does one thing after another, and for an ack it goes through all that it holds: behind
        30,000 letters that takes milliseconds. Nothing comes meanwhile, and no answer before it is through."""
        acked = self._acked
        await self._channel.queue_declare(self.name, passive=True)
        self._acks_applied = acked

    async def turn(self) -> None:
        """Returns everything that is not acknowledged; `pages` then begins with the oldest."""
        await self.close()
        self._left -= self._acked
        self._selected.clear()
        self._begin(await self.connection.open_channel())

    def _begin(self, channel: Channel) -> None:
        self._channel = channel
        self._windows = ReadWindow()
        self._window_began_at = 0
        self._consumer: str | None = None
        self._read_count = 0
        self._acked = 0
        self._acks_applied = 0
        self._turn_began_at = asyncio.get_running_loop().time()
        channel.closed.add_done_callback(lambda _: self._arrived.set())

    async def _open_window(self) -> None:
        """The one before keeps what it holds and gets nothing more, so it holds what comes before this one."""
        channel = self._channel
        if self._consumer is not None:
            await channel.cancel(self._consumer)
        self._window_began_at = channel.last_delivery_tag
        size = self._windows.open()
        self._consumer = await channel.consume(
            self.name,
            self._on_deliveries,
            prefetch_count=size,
            consumer_tag=f"lbg.dead.{self._windows.opened:06}",  # by its name it has its place in the order
        )

    def _on_deliveries(self, messages: list[Delivery]) -> None:
        for message in islice(messages, self._left - self._read_count):
            self._read_count += 1
            self._windows.received(len(message.body))
            letter = DeadLetter.of(message)
            if letter in self._selection:
                self._selected.append((letter, message))
        self._arrived.set()


@asynccontextmanager
async def open_dead_queue(
    places: Sequence[ConnectionSettings], group: str, *, turn_s: float = TURN_S, is_unrouted: bool = False
) -> AsyncIterator[DeadQueue]:
    """The group's dead letters, or with `is_unrouted` the messages that no queue of it took.

    Raises GroupNotFound and the other errors of `read_group`, and ClientError."""
    connection = await connect_any(places, name=f"lbg {'unrouted' if is_unrouted else 'dead'} {group}")
    try:
        channel = await connection.open_channel()
        spec = await read_group(channel, group)
        name = Names(group).unrouted if is_unrouted else Names(group).dead
        try:
            async with asyncio.timeout(ANSWER_S):
                total = (await channel.queue_declare(name, passive=True)).message_count
        except TimeoutError:
            raise RecordUnavailable(group, cause=f"queue {name} gives no answer in {ANSWER_S:g} s") from None
        queue = DeadQueue(connection, channel, spec, total, turn_s=turn_s, name=name)
        try:
            yield queue
        finally:
            await queue.close()
    finally:
        await connection.close()
