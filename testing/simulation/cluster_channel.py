"""A channel at a RabbitMQ node, with the methods that members and publishers use, mailboxes, and last wills."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from lbg_core.amqp import AckEvent, Event, MethodEvent, PublishEvent
from lbg_core.amqp.events import DeliverEvent
from lbg_core.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from lbg_core.group import Names
from testing.simulation.embedded import SimAuthority
from testing.simulation.network import Connection
from testing.simulation.queue_log import Majority, NodeState, QueueClient, QueueLog
from testing.simulation.quorum_queue import Batch, QueueConsumer, StoredMessage

PERMISSION_CACHED_S = 1.0
"""A busy channel retains a withdrawn permission (tests/rabbitmq/test_facts_of_permissions.py:
test_a_busy_channel_keeps_a_withdrawn_permission_and_a_new_one_does_not_get_it)."""


class ClusterEntities(Majority, Protocol):
    """The part of a cluster that a channel has."""

    names: Names
    authority: SimAuthority
    logs: dict[str, QueueLog]
    wills: dict[str, WillQueue]

    def tell(self, channel: BrokerChannel, event: Any) -> None: ...
    def reaches(self, one: NodeState, other: NodeState) -> bool: ...
    def routed(self, exchange: str, key: str) -> list[QueueLog]: ...
    def bind(self, queue: str, key: str, *, exchange: str) -> None: ...
    def channel_down(self, node: NodeState, log: QueueLog, consumer: QueueConsumer) -> None: ...
    def declare_mailbox(self, name: str, channel: BrokerChannel) -> bool: ...
    def delete_mailbox(self, name: str) -> None: ...
    def bind_mailbox(self, name: str, key: str) -> bool: ...
    def consume_mailbox(self, name: str, consumer_tag: str, channel: BrokerChannel) -> bool: ...
    def mailboxes_of(self, key: str) -> list[Mailbox | WillQueue]: ...
    def declare_wills(self, name: str, node: NodeState) -> WillQueue: ...
    def delete_wills(self, queue: WillQueue) -> None: ...
    def deliver_will(self, consumer: WillConsumer, message: StoredMessage) -> None: ...


class BrokerChannel:
    """`unacked`: what it has delivered, by tag. `is_busy`: it waits for a queue, and reads nothing meanwhile."""

    def __init__(
        self, cluster: ClusterEntities, node: NodeState, connection: Connection, number: int
    ) -> None:
        self.cluster = cluster
        self.node = node
        self.connection = connection
        self.number = number
        self.is_open = True
        self.is_busy = self.is_confirming = False
        self.prefetch = 0
        self.last_tag = self.last_publish = 0
        self.published_at = float("-inf")
        self.unacked: dict[int, tuple[QueueClient, QueueConsumer, bytes, float]] = {}
        self.clients: dict[str, QueueClient] = {}
        self.consumers: dict[str, tuple[QueueClient, QueueConsumer]] = {}
        self.waiting: deque[Event] = deque()
        self.wills: dict[str, tuple[WillQueue, WillConsumer]] = {}
        """Consumers of last wills, by their tags."""

    def hear(self, event: Event) -> None:
        if not self.is_open:
            return
        if self.is_busy:
            self.waiting.append(event)
            return
        if type(event) is AckEvent:
            self._ack(event.delivery_tag, event.multiple)
        elif type(event) is PublishEvent:
            self._publish(event)
        else:
            assert type(event) is MethodEvent
            self._method(event.method)

    def answer(self, method: Method, *content: bytes) -> None:
        self.cluster.tell(self, (self.number, method, *content))

    def refuse(self, code: int, text: str) -> None:
        """A channel error."""
        self.end()
        self.answer(ChannelClose(code, text, 0, 0))

    def end(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.waiting.clear()
        for client in self.clients.values():
            client.close()
            client.log.clients.pop(client, None)
        for client, consumer in self.consumers.values():
            self.cluster.channel_down(self.node, client.log, consumer)
        for wills, watcher in self.wills.values():
            wills.remove(watcher)

    def _method(self, method: Method) -> None:
        match method:
            case ChannelOpen():
                self.answer(ChannelOpenOk())
            case ConfirmSelect():
                self.is_confirming = True
                self.answer(ConfirmSelectOk())
            case BasicQos():
                self.prefetch = method.prefetch_count
                self.answer(BasicQosOk())
            case QueueDeclare():
                self._declare(method)
            case QueueBind() if method.queue in self.cluster.logs:
                self.cluster.bind(method.queue, method.routing_key, exchange=method.exchange)
                self.cluster.history.repartitions.bound(method)
                self.answer(QueueBindOk())
            case QueueBind() if self.cluster.bind_mailbox(method.queue, method.routing_key):
                self.answer(QueueBindOk())
            case QueueBind():
                self.refuse(404, f"NOT_FOUND - no queue '{method.queue}'")
            case QueueDelete():
                self.cluster.delete_mailbox(method.queue)
                self.answer(QueueDeleteOk(0))
            case BasicConsume():
                self._consume(method)
            case BasicCancel():
                found = self.consumers.get(method.consumer_tag)
                if found is not None:
                    found[0].cancel(found[1])
                if (wills := self.wills.pop(method.consumer_tag, None)) is not None:
                    wills[0].remove(wills[1])
                self.answer(BasicCancelOk(method.consumer_tag))
            case ChannelClose():
                self.end()
                self.answer(ChannelCloseOk())
            case ChannelCloseOk():
                pass
            case _:
                raise AssertionError(f"{method} is not simulated: members and publishers do not send it")

    def _declare(self, method: QueueDeclare) -> None:
        cluster = self.cluster
        if method.passive:
            log = cluster.logs.get(method.queue)
            if log is None:
                self.refuse(404, f"NOT_FOUND - no queue '{method.queue}'")
                return
            # 0 of a queue that does not answer (tests/rabbitmq/test_facts_of_counting.py:
            # test_a_passive_declare_counts_0_of_a_queue_that_does_not_answer_and_the_api_tells_who_is_not_online).
            answers = self.node.is_seen and cluster.has_majority
            ready, consumers = log.queue.counts if answers else (0, 0)
            self.answer(QueueDeclareOk(method.queue, ready, consumers))
        elif method.auto_delete:
            wills = cluster.declare_wills(method.queue, self.node)
            if cluster.reaches(self.node, wills.node):
                self.answer(QueueDeclareOk(method.queue, 0, len(wills.consumers)))
            else:
                self.refuse(404, f"NOT_FOUND - home node of queue '{method.queue}' is down or inaccessible")
        elif cluster.declare_mailbox(method.queue, self):
            self.answer(QueueDeclareOk(method.queue, 0, 0))
        else:
            self.refuse(405, f"RESOURCE_LOCKED - cannot obtain exclusive access to '{method.queue}'")

    def _consume(self, method: BasicConsume) -> None:
        log = self.cluster.logs.get(method.queue)
        wills = self.cluster.wills.get(method.queue)
        if wills is not None and self.cluster.reaches(self.node, wills.node):
            watcher = WillConsumer(self, method.consumer_tag, method.no_ack)
            self.wills[method.consumer_tag] = wills, watcher
            self.answer(BasicConsumeOk(method.consumer_tag))
            wills.consume(watcher)
            return
        if log is None:
            if self.cluster.consume_mailbox(method.queue, method.consumer_tag, self):
                self.answer(BasicConsumeOk(method.consumer_tag))
            else:
                self.refuse(404, f"NOT_FOUND - no queue '{method.queue}'")
            return
        client = self.client_of(log)
        consumer = QueueConsumer(self, method.consumer_tag, self.prefetch or 2000)
        self.consumers[method.consumer_tag] = client, consumer
        self.is_busy = True

        def attached() -> None:
            self.answer(BasicConsumeOk(method.consumer_tag))
            self.is_busy = False
            waiting, self.waiting = self.waiting, deque()
            for event in waiting:
                self.hear(event)

        client.attach(consumer, attached)

    def client_of(self, log: QueueLog) -> QueueClient:
        client = self.clients.get(log.queue.name)
        if client is None or client.log is not log:  # the queue was deleted, and declared again
            client = self.clients[log.queue.name] = QueueClient(log, self)
            log.clients[client] = None
        return client

    def _ack(self, tag: int, multiple: bool) -> None:
        if any(watcher.held.pop(tag, None) for _, watcher in self.wills.values()):
            return
        tags = [one for one in self.unacked if one <= tag] if multiple else [tag]
        if not multiple and tag not in self.unacked:
            self.refuse(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
            return
        by_consumer: dict[QueueConsumer, list[int]] = {}
        clients: dict[QueueConsumer, QueueClient] = {}
        for one in tags:
            client, consumer, _, _ = self.unacked.pop(one)
            by_consumer.setdefault(consumer, []).append(one)
            clients[consumer] = client
        for consumer, settled in by_consumer.items():
            clients[consumer].settle(consumer, tuple(settled))

    def _publish(self, event: PublishEvent) -> None:
        cluster = self.cluster
        is_busy = cluster.now - self.published_at < PERMISSION_CACHED_S
        self.published_at = cluster.now
        user = self.connection.client.process.name
        if not is_busy and not cluster.authority.can(user, "/", "write", event.exchange):
            self.refuse(403, f"ACCESS_REFUSED - write access to exchange '{event.exchange}' refused")
            return
        self.last_publish += 1
        tag = self.last_publish
        logs = cluster.routed(event.exchange, event.routing_key)
        if event.exchange == cluster.names.members and not logs:
            self._post(event, tag)
            return
        if not logs:
            if event.mandatory:
                self.answer(BasicReturn(312, "NO_ROUTE", event.exchange, event.routing_key), event.body)
            self._confirm(tag, True)
            return
        answers: list[bool] = []

        def answered(is_ok: bool) -> None:
            answers.append(is_ok)
            if len(answers) == len(logs):
                self._confirm(tag, all(answers))

        for log in logs:
            message = StoredMessage(event.exchange, event.routing_key, event.header, event.body)
            self.client_of(log).enqueue(message, answered)

    def _post(self, event: PublishEvent, tag: int) -> None:
        """To members' mailboxes. A mandatory one to a mailbox that is gone is returned, one to a node that is down is
        refused (tests/rabbitmq/test_cluster.py:
        test_a_mailbox_outlives_its_node_since_4_3_and_a_message_to_it_is_refused_and_not_returned)."""
        found = self.cluster.mailboxes_of(event.routing_key)
        if not found and event.mandatory:
            self.answer(BasicReturn(312, "NO_ROUTE", event.exchange, event.routing_key), event.body)
        reached = [one for one in found if self.cluster.reaches(self.node, one.node)]
        for mailbox in reached:
            mailbox.enqueue(StoredMessage(event.exchange, event.routing_key, event.header, event.body))
        self._confirm(tag, len(reached) == len(found))

    def _confirm(self, tag: int, is_ok: bool) -> None:
        if self.is_open and self.is_confirming:
            self.answer(BasicAck(tag, False) if is_ok else BasicNack(tag, False, False))

    def deliver(self, log: QueueLog, consumer: QueueConsumer, batch: Batch) -> None:
        if not (self.is_open and batch):
            return
        client, now = self.clients[log.queue.name], self.cluster.now
        events = []
        for tag, message in batch:
            self.unacked[tag] = client, consumer, message.body, now
            events.append(delivery(self.number, consumer.tag, tag, message))
        self.cluster.tell(self, events)

    @property
    def held_since(self) -> float:
        return min((at for _, _, _, at in self.unacked.values()), default=float("inf"))


def delivery(channel: int, consumer_tag: str, tag: int, message: StoredMessage) -> DeliverEvent:
    event = DeliverEvent.__new__(DeliverEvent)
    event.channel, event.consumer_tag, event.delivery_tag = channel, consumer_tag, tag
    event.redelivered = message.returns > 0
    event.exchange, event.routing_key = message.exchange, message.routing_key
    event.header, event.body = message.header, message.body
    return event


class Mailbox:
    """An exclusive queue, which ends with its connection (tests/rabbitmq/test_facts.py:
    test_a_process_that_is_killed_frees_its_exclusive_queue_without_heartbeats)."""

    def __init__(self, channel: BrokerChannel) -> None:
        self.channel = channel
        self.keys: set[str] = set()
        self.consumer_tag: str | None = None
        self._kept: list[StoredMessage] = []

    @property
    def node(self) -> NodeState:
        return self.channel.node

    def enqueue(self, message: StoredMessage) -> None:
        if self.consumer_tag is None:
            self._kept.append(message)
            return
        channel = self.channel
        channel.last_tag += 1
        channel.cluster.tell(
            channel, [delivery(channel.number, self.consumer_tag, channel.last_tag, message)]
        )

    def consume(self, consumer_tag: str) -> None:
        self.consumer_tag = consumer_tag
        kept, self._kept = self._kept, []
        for message in kept:
            self.enqueue(message)


@dataclass(slots=True, eq=False)
class WillConsumer:
    channel: BrokerChannel
    tag: str
    no_ack: bool
    held: dict[int, StoredMessage] = field(default_factory=dict)


class WillQueue:
    """Last wills: a durable classic queue on one node, deleted with its last consumer.

    `consumers`: the active one first. What it does is what tests show on nodes: the first consumer is the active one
    (tests/oracle/test_single_active_consumer.py: test_only_the_first_consumer_is_given_messages), what a channel holds
    that ends goes to the next (test_a_cut_connection_hands_over_too), and the queue goes with its last consumer
    (tests/oracle/test_declaring.py: test_an_auto_delete_queue_goes_with_its_last_consumer).
    """

    def __init__(self, cluster: ClusterEntities, name: str, node: NodeState) -> None:
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
