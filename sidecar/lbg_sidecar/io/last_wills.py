"""Last wills: the broker reports the end of a member at once, also in a group without messages.

A member holds a message of its own queue, its last will, unacknowledged. When its connection goes, the broker requeues
the message and delivers it to the next consumer of that queue, which is the member before it in the ring. The name and
the idea are of MQTT (5.0, section 3.1.2.5); AMQP 0-9-1 has the parts of it: what is unacknowledged is requeued, and a
single active consumer has successors.

A will is a hint: the member that receives it pings the mailbox, whose return is the proof. A will that is lost, or
cannot be left, costs time: the next ping of the ring finds out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from lbg_core.client import Channel, ChannelClosed, ClientConnection, ClientError, Delivery
from lbg_core.group import Names, last_will_of

log = logging.getLogger("lbg.member")

ANSWERS_S = 5.0
AGAIN_S = 30.0
"""Between two looks at what it holds and watches, if nothing changes."""

REFUSED_S = 0.5
"""After a failure, doubled each time up to AGAIN_S. The reason may be gone at once: a queue that is deleted with its
last consumer can go between our declaration and our consumer (404)."""

CANCEL_WITH_QUEUE = {"x-cancel-on-ha-failover": True}
"""RabbitMQ before 4 consumes again on our behalf when a queue is gone, in case its mirror took over. If another member
made the queue anew by then, that consumer is the active one and what is delivered to it is dropped: no will would be
left or come. With this argument it cancels the consumer instead."""

HELD_S = 2.0
"""For the broker to deliver a member its own will. After that it leaves another one: where the queue was made anew, a
watcher may have become the active consumer and received it."""

RENEW_MAX_S = 300.0
RENEW_SHARE = 0.25
"""Of the broker's consumer timeout: a delivery that is unacknowledged for longer closes its channel, so the will is
replaced before. RabbitMQ looks once a minute."""

STEP_BACK_S = 5.0
"""A watcher that received the will of a live member was the active consumer in its place, and lets it go first."""

HELD_MAX = 8
"""Prefetch: room for a new will beside the one that it replaces."""


class LastWills:
    """`publish` publishes an empty message to the members exchange with a routing key; it raises ClientError.
    `on_will` is called with the index of a member whose will has come, `on_watched` when the member whose will this one
    would receive is another one, or none. `consumer_timeout_s`: as in the settings."""

    def __init__(
        self,
        connection: ClientConnection,
        names: Names,
        index: int,
        *,
        publish: Callable[[str], object],
        on_will: Callable[[int], None],
        on_watched: Callable[[int | None], None] = lambda index: None,
        consumer_timeout_s: float,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._connection = connection
        self._names = names
        self._index = index
        self._publish = publish
        self._on_will = on_will
        self._on_watched = on_watched
        self._uniform = uniform
        self._channel: Channel | None = None
        self._held: int | None = None
        self._renew_s = min(RENEW_MAX_S, RENEW_SHARE * consumer_timeout_s)
        self._renew_at = 0.0
        self._wanted: int | None = None
        self.watched: int | None = None
        """The member whose will this one would receive."""
        self._watch_tag = ""
        self._unwatched: int | None = None
        self._unwatched_until = 0.0
        self._watch_refused_s = REFUSED_S
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def is_left(self) -> bool:
        """True while it holds its own will."""
        return self._held is not None

    def watch(self, index: int | None) -> None:
        """Receive the will of this member, and of no other."""
        self._wanted = index
        self._changed.set()

    def close(self) -> None:
        """Its connection ends, or has ended."""
        self._task.cancel()

    async def _run(self) -> None:
        refused_s = REFUSED_S
        while True:
            self._changed.clear()
            again_s = min(AGAIN_S, self._renew_s)
            try:
                async with asyncio.timeout(ANSWERS_S):
                    await self._adjust()
                refused_s = REFUSED_S
                if self._held is None:
                    again_s = min(again_s, HELD_S)
            except (ClientError, TimeoutError) as error:
                log.debug("last wills of %s: %r", self._names.group, error)
                self._drop()
                await asyncio.sleep(self._spread(refused_s))
                refused_s = min(AGAIN_S, 2 * refused_s)
                continue
            due = self._loop.time() + self._spread(again_s)
            if self._unwatched is not None:
                due = min(due, self._unwatched_until)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    async def _adjust(self) -> None:
        channel = self._channel
        if channel is None or not channel.is_open:
            self._drop()
            self._channel = channel = await self._connection.open_channel()
            await self._consume(channel, self._index, self._on_own, prefetch_count=HELD_MAX)
        now = self._loop.time()
        if now >= self._unwatched_until:
            self._unwatched = None
        wanted = self._wanted if self._wanted != self._unwatched else None
        if self.watched != wanted:
            try:
                await self._watch(channel, wanted)
            except ChannelClosed as error:
                log.debug("last will of member %s: %s", wanted, error)
                self._leave_unwatched(wanted, self._spread(self._watch_refused_s))
                self._watch_refused_s = min(AGAIN_S, 2 * self._watch_refused_s)
                self._drop()
                return  # its own will, at once, without this watch: the node of the other queue may be gone
        if self._held is None or now >= self._renew_at:
            self._renew_at = now + self._spread(self._renew_s)
            self._publish(self._names.last_will_key(self._index))

    async def _watch(self, channel: Channel, index: int | None) -> None:
        if self.watched is not None:
            self._note_watched(None)
            await channel.cancel(self._watch_tag)
        if index is not None:
            self._watch_tag = await self._consume(
                channel, index, lambda deliveries: self._on_will_of(index, deliveries), no_ack=True
            )
            self._watch_refused_s = REFUSED_S
            self._note_watched(index)

    def _note_watched(self, index: int | None) -> None:
        if index != self.watched:
            self.watched = index
            self._on_watched(index)

    async def _consume(
        self,
        channel: Channel,
        index: int,
        on_deliveries: Callable[[list[Delivery]], None],
        *,
        no_ack: bool = False,
        prefetch_count: int | None = None,
    ) -> str:
        will, binding = last_will_of(self._names, index)
        await channel.queue_declare(will.name, durable=True, auto_delete=True, arguments=dict(will.arguments))
        await channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)
        return await channel.consume(
            will.name,
            on_deliveries,
            no_ack=no_ack,
            prefetch_count=prefetch_count,
            arguments=CANCEL_WITH_QUEUE,
            on_cancelled=lambda: self._cancelled(channel),
        )

    def _on_own(self, deliveries: list[Delivery]) -> None:
        """The newest is held; the ones before it are dropped."""
        for delivery in deliveries:
            if self._held is not None and self._channel is not None:
                with suppress(ClientError):
                    self._channel.ack(self._held)
            self._held = delivery.delivery_tag

    def _on_will_of(self, index: int, deliveries: list[Delivery]) -> None:
        self._leave_unwatched(index, STEP_BACK_S)
        self._on_will(index)

    def _leave_unwatched(self, index: int | None, seconds: float) -> None:
        """Do not watch this member for so long."""
        self._unwatched, self._unwatched_until = index, self._loop.time() + seconds
        self._changed.set()

    def _spread(self, seconds: float) -> float:
        return seconds * (0.8 + 0.4 * self._uniform())

    def _cancelled(self, channel: Channel) -> None:
        """The broker cancelled a consumer: its queue was deleted, or its node is gone."""
        if channel is self._channel:
            self._drop()
            self._changed.set()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close_soon()
        self._channel = self._held = None
        self._note_watched(None)
