"""Release over members' mailboxes: past the backlog of a queue, to the member that serves it.

What goes to a mailbox is a hint. The member delivers the copy if it serves the queue and the message is the next of its
key, as if the queue had delivered it, and drops it otherwise. The copy leaves the parking queue when the message is
settled. So a copy may get lost on the way, come twice, or come to a member that does not serve the queue any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from lbg_core.admin.dead_letters.letter import DeadLetter
from lbg_core.admin.dead_letters.queue import DeadQueue
from lbg_core.admin.parked_messages.queue import identity_of
from lbg_core.admin.parked_messages.stream import ParkedStream
from lbg_core.client import BasicProperties, Channel, Delivery
from lbg_core.group import HEADER_ROUTING_KEY, queue_of
from lbg_core.group.parked_keys import KeyState
from lbg_core.group.sequences import MessageIdentity

Copy = tuple[DeadLetter, Delivery]

AHEAD_MESSAGES = 256
AHEAD_BYTES = 8 * 1024 * 1024
"""Copies that are at members and not processed: their mailboxes are in the broker's memory."""

STILL_S = 10.0
"""Without a processed message for so long, copies may be lost: the round ends, and the next one sends them again."""

ROUND_MAX_S = 600.0
"""RabbitMQ closes a channel with a message unacknowledged for `consumer_timeout`, 30 min by default."""


class MailboxRelease:
    """Of one release. The members that serve queues are remembered until nothing comes of it."""

    def __init__(self, stream: ParkedStream, properties: Callable[[Delivery], BasicProperties]) -> None:
        self._stream = stream
        self._properties = properties
        self._members: Mapping[int, int] = {}

    async def split(self, copies: Sequence[Copy]) -> tuple[list[Copy], list[Copy]]:
        """Copies to publish, and those of queues with a backlog that a member serves. In an empty queue a copy is the
        next delivery, and no member may know that it serves it. Raises ClientError."""
        queues = {self._queue(delivery) for _, delivery in copies}
        channel = await self._stream.connection.open_channel()
        ready = {
            queue: (await channel.queue_declare(self._stream.names.queue(queue), passive=True)).message_count
            for queue in sorted(queues)
        }
        await channel.close()
        behind = {queue for queue, count in ready.items() if count}
        if behind - self._members.keys():
            self._members = await self._serving()
        past = behind & self._members.keys()
        to_publish = [copy for copy in copies if self._queue(copy[1]) not in past]
        return to_publish, [copy for copy in copies if self._queue(copy[1]) in past]

    async def deliver(self, queue: DeadQueue, copies: Sequence[Copy], deadline: float) -> int:
        """Sends the copies in this order, and deletes each when its message is settled. Returns how many; the others
        stay. Raises ClientError, EntryError."""
        stream, loop = self._stream, asyncio.get_running_loop()
        channel = await stream.connection.open_channel()
        ended_at = min(deadline, loop.time() + ROUND_MAX_S)
        still_at = loop.time() + STILL_S
        to_send, sent = deque(copies), list[Copy]()
        delivered: set[MessageIdentity] = set()
        while to_send or sent:
            ahead_bytes = sum(len(delivery.body) for _, delivery in sent)
            while to_send and len(sent) < AHEAD_MESSAGES and ahead_bytes < AHEAD_BYTES:
                copy = to_send.popleft()
                if self._is_released(copy):
                    self._send(channel, copy[1])
                    ahead_bytes += len(copy[1].body)
                    sent.append(copy)
            await stream.wait(max(0.01, min(still_at, ended_at) - loop.time()))
            for _, delivery in sent:
                if stream.keys.is_settled(identity_of(delivery)):
                    queue.ack(delivery)
                    delivered.add(identity_of(delivery))
                    still_at = loop.time() + STILL_S
            sent = [copy for copy in sent if self._is_released(copy)]
            if loop.time() >= min(still_at, ended_at):
                self._members = {}
                break
        await channel.close()
        return len(delivered)

    def _is_released(self, copy: Copy) -> bool:
        letter, delivery = copy
        keys, key = self._stream.keys, letter.key or ""
        return keys.state(key) is KeyState.RELEASED and keys.is_parked(key, identity_of(delivery))

    def _send(self, channel: Channel, delivery: Delivery) -> None:
        properties = self._properties(delivery)
        properties.headers = {**(properties.headers or {}), HEADER_ROUTING_KEY: delivery.routing_key}
        channel.publish(
            self._stream.names.members,
            str(self._members[self._queue(delivery)]),
            bytes(delivery.body),
            properties=properties,
        )

    def _queue(self, delivery: Delivery) -> int:
        return queue_of(identity_of(delivery)[1], self._stream.spec.queue_count)

    async def _serving(self) -> Mapping[int, int]:
        """Index of the member that serves each queue, as members report it."""
        return {
            queue.queue: report.index
            for report in await self._stream.reports()
            for queue in report.queues
            if queue.active
        }
