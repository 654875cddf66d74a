"""A quorum queue, by default with a single active consumer: its order of delivery, and what it takes back. Pure.

What it does is what tests show on nodes of RabbitMQ (docs/internals/rabbitmq.md); each method names its test, in
tests/rabbitmq/ or tests/oracle/.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True, eq=False)
class StoredMessage:
    """`returns`: how often it came back (test_facts_of_counting.py:
    test_each_return_by_a_close_is_a_delivery_that_a_quorum_queue_counts)."""

    exchange: str
    routing_key: str
    header: bytes
    body: bytes
    returns: int = 0


class ConsumerEnd(Protocol):
    """A channel at a node; its delivery tags count up."""

    last_tag: int


@dataclass(slots=True, eq=False)
class QueueConsumer:
    """`is_cancelled`: it gets nothing any more, and holds what it has. `is_suspected`: its node cannot be seen."""

    channel: ConsumerEnd
    tag: str
    prefetch: int
    unacked: dict[int, StoredMessage] = field(default_factory=dict)
    is_cancelled: bool = False
    is_suspected: bool = False


Batch = list[tuple[int, StoredMessage]]
"""Delivery tags and messages."""


class QuorumQueue:
    """`consumers`: the active one first, then those that wait, in the order of their arrival
    (test_facts.py: test_the_waiting_are_served_in_the_order_they_came_and_each_wrong_one_is_a_hop)."""

    def __init__(self, name: str, *, is_single_active: bool = True) -> None:
        self.name = name
        self.is_single_active = is_single_active
        self.messages: deque[StoredMessage] = deque()
        self.returned: deque[StoredMessage] = deque()
        self.consumers: list[QueueConsumer] = []
        self.cancelled: list[QueueConsumer] = []

    @property
    def ready_count(self) -> int:
        return len(self.returned) + len(self.messages)

    @property
    def counts(self) -> tuple[int, int]:
        """As a passive declare has them: ready messages, and consumers, of which it counts one at most
        (`lbg_sidecar.core.queue_consumers.Sweep`)."""
        return self.ready_count, min(1, len(self.consumers))

    @property
    def unacked_count(self) -> int:
        return sum(len(one.unacked) for one in (*self.consumers, *self.cancelled))

    @property
    def active(self) -> QueueConsumer | None:
        return next((one for one in self.consumers if not one.is_suspected), None)

    def bodies(self) -> set[bytes]:
        """All of its messages, ready or unacknowledged."""
        held = (one for each in (*self.consumers, *self.cancelled) for one in each.unacked.values())
        return {one.body for one in (*self.returned, *self.messages, *held)}

    def enqueue(self, message: StoredMessage) -> None:
        self.messages.append(message)

    def attach(self, consumer: QueueConsumer) -> None:
        self.consumers.append(consumer)

    def settle(self, consumer: QueueConsumer, tags: Iterable[int]) -> None:
        """Tags of messages that were taken back have no effect (test_cluster.py:
        test_a_partition_that_heals_loses_and_reorders_nothing_and_what_two_do_at_once_is_bounded)."""
        for tag in tags:
            consumer.unacked.pop(tag, None)

    def cancel(self, consumer: QueueConsumer) -> None:
        """basic.cancel: the next one starts past what this one holds (test_single_active_consumer.py:
        test_cancelling_the_active_one_starts_the_next_past_what_is_unacknowledged)."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            consumer.is_cancelled = True
            self.cancelled.append(consumer)

    def detach(self, consumer: QueueConsumer) -> None:
        """Its channel is gone: its messages are returned in order, and the next one is active
        (test_facts.py: test_closing_gives_the_rest_back_in_order_and_activates_the_next)."""
        for among in (self.consumers, self.cancelled):
            if consumer in among:
                among.remove(consumer)
        self._take_back(consumer)

    def suspect(self, consumer: QueueConsumer) -> list[int]:
        """Nobody sees its node: its messages are returned, and it is not notified. Returns their tags (test_cluster.py:
        test_since_4_3_a_queue_waits_for_a_consumer_whose_node_is_gone_and_a_groups_queue_for_a_second)."""
        consumer.is_suspected = True
        tags = list(consumer.unacked)
        self._take_back(consumer)
        return tags

    def restore(self, consumer: QueueConsumer) -> None:
        """Its node is seen again: it waits behind the others."""
        consumer.is_suspected = False
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.consumers.append(consumer)

    def next_batch(self) -> tuple[QueueConsumer, Batch] | None:
        """Messages for the active consumer, as many as its window has room for; those that were returned come first."""
        active = self.active if self.is_single_active else self._next_competing()
        if active is None:
            return None
        batch: Batch = []
        while len(active.unacked) < active.prefetch and not (batch and not self.is_single_active):
            if self.returned:
                message = self.returned.popleft()
            elif self.messages:
                message = self.messages.popleft()
            else:
                break
            active.channel.last_tag += 1
            active.unacked[active.channel.last_tag] = message
            batch.append((active.channel.last_tag, message))
        return (active, batch) if batch else None

    def _next_competing(self) -> QueueConsumer | None:
        """Without a single active one, consumers get messages in turn."""
        for consumer in self.consumers:
            if not consumer.is_suspected and len(consumer.unacked) < consumer.prefetch:
                self.restore(consumer)
                return consumer
        return None

    def _take_back(self, consumer: QueueConsumer) -> None:
        """Behind what was returned before (test_facts.py:
        test_a_quorum_queue_puts_what_a_narrower_window_gives_back_behind_what_came_back_before)."""
        for message in consumer.unacked.values():
            message.returns += 1
            self.returned.append(message)
        consumer.unacked.clear()
