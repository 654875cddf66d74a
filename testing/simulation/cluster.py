"""A cluster of three RabbitMQ nodes: connections, members' mailboxes, and the logs of quorum queues.

It has the part of AMQP 0-9-1 that members and publishers use, and the interface of `EmbeddedBroker`. Before 4.3 a node
without the others closes its connections (`pause_minority`); from 4.3 on they stay open, and its queues are silent
(docs/rabbitmq.md, "Partitions").
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from lbg_core.amqp import AckEvent, Event, MethodEvent, PublishEvent
from lbg_core.amqp.methods import (
    BasicCancel,
    ChannelOpen,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
)
from lbg_core.group import RABBITMQ, Engine, GroupSpec, topology_of
from testing.simulation.clock import Process
from testing.simulation.cluster_channel import BrokerChannel, Mailbox, WillConsumer, WillQueue, delivery
from testing.simulation.embedded import SimAuthority
from testing.simulation.judge import Judged
from testing.simulation.network import SILENCE_S, ClientEnd, Connection
from testing.simulation.queue_log import LogCommand, NodeState, QueueLog
from testing.simulation.quorum_queue import Batch, QueueConsumer, QuorumQueue, StoredMessage
from testing.simulation.stream_queue import StreamQueue

NODES = 3
VERSIONS = ((4, 0, 5), (4, 3, 6))
CONSUMER_TIMEOUT_S = 60.0
TIMEOUT_CHECKED_S = 6.0
"""As 30 minutes and 60 s, but within the time of a history."""

DISCONNECTED_S = 1.0


class Node:
    """The broker's end of its connections. `is_seen`: the other nodes can reach it, and it runs."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.process = Process(f"node {number}")
        self.is_up = self.is_seen = True
        self.is_paused = False
        self.connections: dict[int, Connection] = {}

    def hear(self, connection: Connection, events: Sequence[Event]) -> None:
        for event in events:
            self.cluster.hear(self, connection, event)

    def lost(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)
        self.cluster.connection_ended(connection)

    def close_connections(self) -> None:
        for connection in list(self.connections.values()):
            self.cluster.connection_ended(connection)
            connection.close()
        self.connections.clear()


class Cluster:
    """`is_calm`: no more faults; what has no leader gets one."""

    refuses_in_order = False
    is_up = True

    def __init__(self, history: Judged, spec: GroupSpec) -> None:
        self.history = history
        self.names = history.names
        self.engine = Engine(RABBITMQ, VERSIONS[history.seed % len(VERSIONS)])
        self.authority = SimAuthority(self.names.exchange)
        self.process = Process("cluster")
        self.nodes = [Node(self, number) for number in range(NODES)]
        self.logs: dict[str, QueueLog] = {}
        self.bindings: dict[str, dict[str, None]] = {}
        self.commit_s = 0.003
        self.is_calm = False
        self._channels: dict[int, dict[int, BrokerChannel]] = {}
        self._mailboxes: dict[str, Mailbox] = {}
        self.wills: dict[str, WillQueue] = {}
        self._numbers = itertools.count(1)
        self._is_alarmed = False
        self._undelivered: list[tuple[QueueLog, QueueConsumer, Batch]] = []
        """To nodes that cannot be seen: they fetch it when they are back."""
        self._unread: dict[int, list[Event]] = {}
        """Events of connections that publish, during an alarm."""
        topology = topology_of(spec, self.engine, has_parking=history.setting.has_parking)
        for queue in topology.queues:
            self.declare(queue.name)
        for one in topology.bindings:
            self.bind(one.queue, one.routing_key, exchange=one.exchange)
        self.at(TIMEOUT_CHECKED_S, self._check_timeouts)

    # Time and chance

    @property
    def now(self) -> float:
        return self.history.clock.now

    def random(self) -> float:
        return self.history.random.random()

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        self.history.clock.at(when, self.process, action, *arguments)

    # Objects

    def declare(self, queue: str) -> None:
        leader = int(self.random() * NODES)
        if queue in self.logs:
            return
        if queue == self.names.parked:
            log = QueueLog(self, StreamQueue(queue, self.history.parkings.appended), leader)
        elif queue == self.names.moves:
            log = QueueLog(self, StreamQueue(queue, lambda body: None), leader)
        else:
            log = QueueLog(self, QuorumQueue(queue, is_single_active=self.names.is_served(queue)), leader)
        self.logs[queue] = log

    def delete(self, queue: str) -> None:
        log = self.logs.pop(queue, None)
        for consumer in log.queue.consumers if log is not None else ():
            channel = consumer.channel
            assert isinstance(channel, BrokerChannel)
            if channel.is_open:
                channel.answer(BasicCancel(consumer.tag, True))

    def bind(self, queue: str, key: str, *, exchange: str) -> None:
        self.bindings.setdefault(_route(exchange, key), {})[queue] = None

    def unbind(self, queue: str, key: str, *, exchange: str) -> None:
        self.bindings.get(_route(exchange, key), {}).pop(queue, None)

    def routed(self, exchange: str, key: str) -> list[QueueLog]:
        """By the key's first two words, which are all of a binding of a group; what has no binding is unrouted."""
        if exchange == "":
            return [self.logs[key]] if key in self.logs else []
        if exchange == self.names.members:
            return [
                self.logs[name] for name in self.bindings.get(_route(exchange, key), ()) if name in self.logs
            ]
        is_stream = exchange == self.names.exchange
        found = self.bindings.get(_route(exchange, key if is_stream else ""))
        names = found or {self.names.unrouted: None}
        return [self.logs[name] for name in names if name in self.logs]

    def depths(self) -> dict[str, tuple[int, int]]:
        """Ready and unacknowledged messages of each queue."""
        return {name: (one.queue.ready_count, one.queue.unacked_count) for name, one in self.logs.items()}

    def consumers(self, queue: str) -> int:
        return len(self.logs[queue].queue.consumers)

    def bodies(self) -> set[bytes]:
        return {body for log in self.logs.values() for body in log.queue.bodies()}

    def has_queue(self, name: str) -> bool:
        return name in self._mailboxes or name in self.logs

    # Mailboxes

    def declare_mailbox(self, name: str, channel: BrokerChannel) -> bool:
        if name in self._mailboxes:
            return False
        self._mailboxes[name] = Mailbox(channel)
        return True

    def delete_mailbox(self, name: str) -> None:
        self._mailboxes.pop(name, None)

    def bind_mailbox(self, name: str, key: str) -> bool:
        """False if there is no such queue."""
        found = self._mailboxes.get(name) or self.wills.get(name)
        if found is not None:
            found.keys.add(key)
        return found is not None

    def consume_mailbox(self, name: str, consumer_tag: str, channel: BrokerChannel) -> bool:
        mailbox = self._mailboxes.get(name)
        if mailbox is None:
            return False
        mailbox.channel = channel
        mailbox.consume(consumer_tag)
        return True

    def mailboxes_of(self, key: str) -> list[Mailbox | WillQueue]:
        return [one for one in (*self._mailboxes.values(), *self.wills.values()) if key in one.keys]

    def _drop_mailboxes(self, gone: Callable[[Mailbox], bool]) -> None:
        for name in [name for name, one in self._mailboxes.items() if gone(one)]:
            del self._mailboxes[name]

    # Last wills

    def declare_wills(self, name: str, node: NodeState) -> WillQueue:
        if name not in self.wills:
            self.wills[name] = WillQueue(self, name, node)
        return self.wills[name]

    def delete_wills(self, queue: WillQueue) -> None:
        if queue.node.is_up and self.wills.get(queue.name) is queue:
            del self.wills[queue.name]

    def deliver_will(self, consumer: WillConsumer, message: StoredMessage) -> None:
        channel = consumer.channel
        channel.last_tag += 1
        if not consumer.no_ack:
            consumer.held[channel.last_tag] = message
        self.tell(channel, [delivery(channel.number, consumer.tag, channel.last_tag, message)])

    def _lose_wills(self, node: Node) -> None:
        """A node is down, or nobody sees it any more."""
        for queue in list(self.wills.values()):
            if queue.node is node and not node.is_up:
                queue.lose()
            for consumer in list(queue.consumers):
                if not self.reaches(consumer.channel.node, queue.node):
                    queue.remove(consumer, is_cancelled=True)

    # Connections

    def connect(self, client: ClientEnd, name: str) -> Connection | None:
        """To a node by chance, as `lbg consume` and `lbg publish` choose one of many addresses."""
        node = self.nodes[int(self.random() * NODES)]
        if not node.is_seen or not self.has_majority or node.process.frozen_until > self.now:
            return None
        connection = Connection(self.history, next(self._numbers), client, node)
        node.connections[connection.number] = connection
        self._channels[connection.number] = {}
        if self._is_alarmed:
            connection.tell((0, ConnectionBlocked("low on memory")))
        return connection

    def hear(self, node: Node, connection: Connection, event: Event) -> None:
        unread = self._unread.get(connection.number)
        if unread is not None:
            unread.append(event)
            return
        if self._is_alarmed and type(event) is PublishEvent:
            self._unread[connection.number] = [event]
            return
        channels = self._channels.get(connection.number)
        if channels is None or type(event) not in (AckEvent, PublishEvent, MethodEvent):
            return
        number: int = event.channel
        channel = channels.get(number)
        if channel is None or (not channel.is_open and type(event.method) is ChannelOpen):
            channel = channels[number] = BrokerChannel(self, node, connection, number)
        channel.hear(event)

    def answers(self, connection: Connection) -> bool:
        """True if a read of the group's record is answered: a quorum queue is silent without a majority."""
        node = connection.broker
        assert isinstance(node, Node)
        return connection.is_open and node.is_seen and self.has_majority

    def tell(self, channel: BrokerChannel, event: Any) -> None:
        """Sends now, or when a node that stands still goes on."""
        process = channel.node.process
        if process.frozen_until > self.now:
            self.history.clock.at(self.now, process, channel.connection.tell, event)
        else:
            channel.connection.tell(event)

    def connection_ended(self, connection: Connection) -> None:
        """Unacknowledged messages may be repeated from now on."""
        history = self.history
        self._unread.pop(connection.number, None)
        member = history.member_of(connection.client)
        if member is not None:
            history.judge.cut(member)
        channels = self._channels.pop(connection.number, {}).values()
        for channel in channels:
            history.judge.unacknowledged(body for _, _, body, _ in channel.unacked.values())
            channel.end()
        node = connection.broker
        assert isinstance(node, Node)
        if node.is_up or not self.engine.waits_for_disconnected:
            self._drop_mailboxes(lambda one: one.channel.connection is connection)

    def connections(self) -> Iterator[Connection]:
        for node in self.nodes:
            yield from node.connections.values()

    def close_connections(self, reason: str, chosen: Iterable[Connection] | None = None) -> None:
        for connection in list(self.connections() if chosen is None else chosen):
            node = connection.broker
            assert isinstance(node, Node)
            if node.connections.pop(connection.number, None) is not None:
                connection.tell((0, ConnectionClose(320, f"CONNECTION_FORCED - {reason}", 0, 0)))
                self.connection_ended(connection)
                connection.close()

    def unread(self, connection: Connection, is_unread: bool) -> None:
        """Nothing: RabbitMQ delivers what a client does not read."""

    # Queues

    def deliver(self, log: QueueLog, consumer: QueueConsumer, batch: Batch) -> None:
        channel = consumer.channel
        assert isinstance(channel, BrokerChannel)
        if channel.node.is_seen:
            channel.deliver(log, consumer, batch)
        else:
            self._undelivered.append((log, consumer, batch))

    def channel_down(self, node: NodeState, log: QueueLog, consumer: QueueConsumer) -> None:
        """Before 4.3 a queue requeues at once what consumers of a node hold that is gone, from then on after a second
        (tests/rabbitmq/test_cluster.py:
        test_since_4_3_a_queue_waits_for_a_consumer_whose_node_is_gone_and_a_groups_queue_for_a_second)."""
        down = LogCommand(None, lambda: log.queue.detach(consumer))
        if node.is_seen or not self.engine.waits_for_disconnected:
            log.append(down)
        else:
            self.at(self.now + DISCONNECTED_S, log.append, down)

    def a_seen_node(self) -> int | None:
        seen = [one.number for one in self.nodes if one.is_seen]
        return seen[int(self.random() * len(seen))] if seen else None

    @property
    def has_majority(self) -> bool:
        return sum(one.is_seen for one in self.nodes) > NODES // 2

    def reaches(self, one: NodeState, other: NodeState) -> bool:
        return one.is_up and other.is_up and (one is other or (one.is_seen and other.is_seen))

    def _check_timeouts(self) -> None:
        """Closes channels that hold a delivery for too long (tests/rabbitmq/test_consumer_timeout.py:
        test_what_the_broker_says_when_a_delivery_was_held_for_too_long_is_understood)."""
        self.at(self.now + TIMEOUT_CHECKED_S, self._check_timeouts)
        for channels in list(self._channels.values()):
            for channel in list(channels.values()):
                if channel.is_open and self.now - channel.held_since > CONSUMER_TIMEOUT_S:
                    bodies = [body for _, _, body, _ in channel.unacked.values()]
                    self.history.judge.displaced(
                        channel.connection.client, channel.number, bodies, last_tag=channel.last_tag
                    )
                    channel.refuse(
                        406,
                        "PRECONDITION_FAILED - delivery acknowledgement on channel "
                        f"{channel.number} timed out. Timeout value used: {CONSUMER_TIMEOUT_S * 1000:.0f} ms",
                    )

    # Alarms

    def alarm(self, is_on: bool) -> None:
        """Connections that publish are not read from (test_alarms.py)."""
        if self._is_alarmed == is_on:
            return
        self._is_alarmed = is_on
        for connection in list(self.connections()):
            connection.tell((0, ConnectionBlocked("low on memory") if is_on else ConnectionUnblocked()))
        if not is_on:
            unread, self._unread = self._unread, {}
            for number, events in unread.items():
                for node in self.nodes:
                    connection_of = node.connections.get(number)
                    if connection_of is not None:
                        for event in events:
                            self.history.clock.after(
                                0.0, node.process, self._late, node, connection_of, event
                            )

    def _late(self, node: Node, connection: Connection, event: Event) -> None:
        if connection.is_open:
            self.hear(node, connection, event)

    # Nodes

    def kill(self, node: Node, *, election_s: float) -> None:
        """kill -9."""
        if not node.is_up:
            return
        node.is_up = node.is_seen = False
        node.process.alive = False
        node.close_connections()
        self._lose_wills(node)
        self._moved_from(node, election_s=election_s)

    def start(self, node: Node | None = None) -> None:
        for one in self.nodes if node is None else [node]:
            if not one.is_up:
                one.process = Process(f"node {one.number}")
                one.is_up = one.is_seen = True
                self._drop_mailboxes(partial(_is_of, one))
                self._seen_again()

    def kill_all(self) -> None:
        """At once, so that messages without a confirm may be lost."""
        for node in self.nodes:
            node.is_up = node.is_seen = False
            node.process.alive = False
        self.history.judge.unacknowledged(self.bodies())
        for node in self.nodes:
            node.close_connections()
            self._lose_wills(node)
        for log in self.logs.values():
            log.crash()

    def cut(self, node: Node, *, election_s: float) -> None:
        """A partition: nobody sees the node, and its connections stay or are closed (tests/rabbitmq/test_cluster.py:
        test_a_partition_that_heals_loses_and_reorders_nothing_and_what_two_do_at_once_is_bounded)."""
        if not node.is_seen:
            return
        node.is_seen = False
        detected_s = DISCONNECTED_S if self.engine.waits_for_disconnected else 0.2 + self.random()
        self.at(self.now + detected_s, self._suspect, node)
        if not self.engine.waits_for_disconnected:
            self.at(self.now + detected_s + self.random(), self._pause, node)
        self._moved_from(node, election_s=detected_s + election_s)

    def heal(self, node: Node) -> None:
        if node.is_seen or not node.is_up:
            return
        node.is_seen = True
        undelivered, self._undelivered = self._undelivered, []
        for log, consumer, batch in undelivered:
            self.deliver(log, consumer, [one for one in batch if one[0] in consumer.unacked])
        for log in self.logs.values():
            for consumer in list(log.queue.consumers):
                if consumer.is_suspected and _node_of(consumer) is node:
                    log.append(LogCommand(None, partial(log.queue.restore, consumer)))
            for client in list(log.clients):
                if client.channel.node is node:
                    self.at(self.now + self.random(), client.send_held, client.turn)
        self._seen_again()

    def _suspect(self, node: Node) -> None:
        if node.is_seen or not self.has_majority:
            return
        self._lose_wills(node)
        for log in self.logs.values():
            for consumer in list(log.queue.consumers):
                if _node_of(consumer) is node:
                    log.append(LogCommand(None, partial(self._take_back, log, consumer)))

    def _take_back(self, log: QueueLog, consumer: QueueConsumer) -> None:
        channel = consumer.channel
        assert isinstance(channel, BrokerChannel)
        if channel.node.is_seen:
            return
        bodies = [one.body for one in consumer.unacked.values()]
        log.queue.suspect(consumer)
        self.history.judge.displaced(
            channel.connection.client, channel.number, bodies, last_tag=channel.last_tag
        )

    def _pause(self, node: Node) -> None:
        if node.is_up and not node.is_seen:
            node.close_connections()

    def _moved_from(self, node: Node, *, election_s: float) -> None:
        for log in self.logs.values():
            if log.leader == node.number:
                log.elect(election_s)

    def _seen_again(self) -> None:
        """Queues without a majority have a leader again."""
        if sum(one.is_seen for one in self.nodes) == NODES // 2 + 1:
            for log in self.logs.values():
                log.elect(0.2 + self.random())
            for node in self.nodes:
                if node.is_up and not node.is_seen:
                    self.at(self.now + DISCONNECTED_S, self._suspect, node)

    def freeze(self, node: Node, seconds: float) -> None:
        """SIGSTOP."""
        clock = self.history.clock
        node.process.frozen_until = max(node.process.frozen_until, clock.now + seconds)
        if seconds > SILENCE_S:
            for connection in list(node.connections.values()):
                clock.after(SILENCE_S, connection.client.process, connection.client_lost, "no heartbeat")
        if seconds > 1.0:
            self._moved_from(node, election_s=1.0 + self.random())

    def calm(self) -> None:
        """The end of all faults."""
        self.is_calm = True
        self.alarm(False)
        self.commit_s = 0.003
        for node in self.nodes:
            self.heal(node)
        self.start()
        for log in self.logs.values():
            log.fill(False)


def _is_of(node: Node, mailbox: Mailbox) -> bool:
    return mailbox.channel.node is node


def _route(exchange: str, key: str) -> str:
    return f"{exchange} {'.'.join(key.split('.')[:2])}"


def _node_of(consumer: QueueConsumer) -> NodeState:
    channel = consumer.channel
    assert isinstance(channel, BrokerChannel)
    return channel.node
