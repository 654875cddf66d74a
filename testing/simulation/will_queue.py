"""Queues of last wills at RabbitMQ: durable classic queues on one node, deleted with their last consumer.

What they do is what tests show on nodes: the first consumer is the active one
(tests/oracle/test_single_active_consumer.py: test_only_the_first_consumer_is_given_messages), what a channel holds that
ends goes to the next (test_a_cut_connection_hands_over_too), and the queue goes with its last consumer
(tests/oracle/test_declaring.py: test_an_auto_delete_queue_goes_with_its_last_consumer).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lbg_core.amqp.methods import BasicCancel
from testing.simulation.quorum_queue import StoredMessage

if TYPE_CHECKING:
    from testing.simulation.cluster import Cluster, Node
    from testing.simulation.cluster_channel import BrokerChannel


@dataclass(slots=True, eq=False)
class WillConsumer:
    channel: BrokerChannel
    tag: str
    no_ack: bool
    held: dict[int, StoredMessage] = field(default_factory=dict)


class WillQueue:
    """`consumers`: the active one first."""

    def __init__(self, cluster: Cluster, name: str, node: Node) -> None:
        self.name = name
        self.node = node
        self.keys: set[str] = set()
        self.consumers: list[WillConsumer] = []
        self._cluster = cluster
        self._messages: deque[StoredMessage] = deque()

    def enqueue(self, message: StoredMessage) -> None:
        self._messages.append(message)
        self._dispatch()

    def consume(self, consumer: WillConsumer) -> None:
        self.consumers.append(consumer)
        self._dispatch()

    def remove(self, consumer: WillConsumer, *, is_cancelled: bool = False) -> None:
        """Its channel has ended, or its node is gone; `is_cancelled`: the broker notifies it."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        for message in reversed(consumer.held.values()):
            message.returns += 1
            self._messages.appendleft(message)
        consumer.held.clear()
        if is_cancelled and consumer.channel.is_open:
            consumer.channel.answer(BasicCancel(consumer.tag, True))
        if self.consumers:
            self._dispatch()
        else:
            self._cluster.delete_wills(self)

    def lose(self) -> None:
        """Its node is down, and with it what was not persistent, as wills are."""
        self._messages.clear()
        for consumer in list(self.consumers):
            consumer.held.clear()
            self.remove(consumer, is_cancelled=True)

    def _dispatch(self) -> None:
        while self._messages and self.consumers:
            self._cluster.deliver_will(self.consumers[0], self._messages.popleft())
