"""A light broker: mailboxes of members, and queues with a single active consumer each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lbg_sidecar.core.delivery import Attachment
from testing.simulation.clock import Clock, Process
from testing.simulation.large.costs import BrokerCosts
from testing.simulation.large.link import DELAY_S, Link
from testing.simulation.large.processor import Processor


@dataclass(slots=True, eq=False)
class QueueMessage:
    """Message of a queue. The queue is also its key: there is one for each."""

    queue: int
    number: int
    published_at: float


class Member(Protocol):
    """`LargeMember`, as the broker has it."""

    @property
    def index(self) -> int | None: ...
    def on_attached(self, link: Link, attachment: Attachment) -> None: ...
    def on_closed(self, link: Link, attachment: Attachment) -> None: ...
    def on_counted(self, link: Link, queue: int, ready: int, consumers: int) -> None: ...
    def on_deliveries(
        self, link: Link, attachment: Attachment, deliveries: list[tuple[int, QueueMessage, bool]]
    ) -> None: ...


@dataclass(slots=True, eq=False)
class Consumer:
    link: Link
    member: Member
    attachment: Attachment
    unacked: dict[int, tuple[QueueMessage, bool]] = field(default_factory=dict)
    """By delivery tag, in order."""
    last_tag: int = 0


@dataclass(slots=True, eq=False)
class Queue:
    """The first consumer is the active one. `ready` has each message with whether it was delivered before."""

    number: int
    ready: deque[tuple[QueueMessage, bool]] = field(default_factory=deque)
    consumers: dict[Attachment, Consumer] = field(default_factory=dict)

    @property
    def first(self) -> Consumer | None:
        return next(iter(self.consumers.values()), None)


@dataclass(slots=True)
class Counts:
    posts: int = 0
    mail: int = 0
    returns: int = 0
    refused_claims: int = 0
    consumes: int = 0
    closes: int = 0


class Broker:
    """`counts_all_consumers`: a passive declare counts them all; else at most one (RabbitMQ 3.10, single active)."""

    def __init__(
        self, clock: Clock, costs: BrokerCosts, *, queue_count: int, counts_all_consumers: bool
    ) -> None:
        self.clock = clock
        self.process = Process("broker")
        self.processor = Processor(clock, self.process, wakeup_us=costs.wakeup_us)
        self.queues = [Queue(number) for number in range(queue_count)]
        self.counts = Counts()
        self._costs = costs
        self._counts_all_consumers = counts_all_consumers
        self._mailboxes: dict[str, Link] = {}
        self._routes: dict[str, dict[str, Link]] = {}
        self._consumers: dict[Link, dict[Attachment, Consumer]] = {}
        self._watchers: dict[int, Link] = {}

    def tell(self, link: Link, action: Callable[..., None], *arguments: Any) -> None:
        """Sends it, when what was charged so far is done."""
        self._write(link)
        self.clock.at(self.processor.free_at + DELAY_S, self.process, link.reached, action, *arguments)

    def _write(self, link: Link) -> None:
        """All that is sent to a connection in one turn is one write."""
        if link.written_in_turn != self.processor.turn:
            link.written_in_turn = self.processor.turn
            self.processor.charge(self._costs.write_us)

    # Connections and mailboxes

    def connected(self, link: Link) -> None:
        self.processor.charge(self._costs.connect_us)
        self._consumers[link] = {}

    def lost(self, link: Link) -> None:
        """Its sockets are closed: mailboxes go, and queues go to the next consumers."""
        if not link.is_open:
            return
        link.is_open = False
        for name in link.mailboxes:
            del self._mailboxes[name]
            for bound in self._routes.values():
                bound.pop(name, None)
        self.processor.charge(self._costs.declare_us)
        for consumer in list(self._consumers.pop(link, {}).values()):
            self._closed(consumer)
        watcher = self._watchers.pop(link.index, None)
        if watcher is not None and watcher.is_open:
            self.tell(watcher, watcher.on_will, link.index)

    def leave_will(self, _: Link) -> None:
        """Declares, binds and consumes its queue, and publishes to it."""
        costs = self._costs
        self.processor.charge(costs.declare_us + costs.bind_us + costs.consume_us + costs.publish_us)

    def await_will(self, link: Link, index: int | None) -> None:
        """Of the member with this index, and of no other. The watcher declares, binds and consumes."""
        if self._watchers.get(link.watched) is link:
            del self._watchers[link.watched]
        link.watched = -1 if index is None else index
        if index is not None:
            self._watchers[index] = link
            self.processor.charge(self._costs.declare_us + self._costs.bind_us + self._costs.consume_us)
        self.tell(link, link.on_watched, index)

    def declare(self, link: Link, name: str) -> bool:
        """An exclusive queue; False if another connection has it."""
        self.processor.charge(self._costs.declare_us)
        if name in self._mailboxes:
            self.counts.refused_claims += 1
            return False
        self._mailboxes[name] = link
        link.mailboxes.append(name)
        return True

    def bind(self, link: Link, name: str, keys: Sequence[str]) -> None:
        """To the exchange of the members; consuming from it is included."""
        self.processor.charge(self._costs.bind_us * len(keys) + self._costs.consume_us)
        for key in keys:
            self._routes.setdefault(key, {})[name] = link

    def read_record(self, link: Link) -> None:
        """The group's record, for whether it is paused."""
        self.processor.charge(self._costs.count_us)

    # The members exchange

    def post(self, link: Link, key: str, body: bytes, mandatory: bool) -> None:
        costs, size = self._costs, len(body)
        self.counts.posts += 1
        self.processor.charge(costs.publish_us + costs.publish_byte_us * size)
        bound = self._routes.get(key)
        if bound:
            self.counts.mail += len(bound)
            self.processor.charge(len(bound) * (costs.deliver_us + costs.deliver_byte_us * size))
            for receiver in bound.values():
                self._write(receiver)
            at = self.processor.free_at + DELAY_S
            self.clock.at(at, self.process, _to_all, tuple(bound.values()), key, body)
        elif mandatory:
            self._return(link, key, body)

    def looked(self, link: Link, keys: Sequence[str], body: bytes) -> set[str]:
        """The keys without a mailbox: those whose mandatory message comes back before the answer to a request."""
        for key in keys:
            self.post(link, key, body, False)
        free = {key for key in keys if not self._routes.get(key)}
        self.processor.charge(len(free) * self._costs.deliver_us)
        return free

    def _return(self, link: Link, key: str, body: bytes) -> None:
        self.counts.returns += 1
        self.processor.charge(self._costs.deliver_us + self._costs.deliver_byte_us * len(body))
        self.tell(link, link.on_return, key, body)

    # Queues

    def publish(self, message: QueueMessage) -> None:
        self.processor.charge(self._costs.message_us)
        queue = self.queues[message.queue]
        queue.ready.append((message, False))
        self._dispatch(queue)

    def consume(self, link: Link, member: Member, attachment: Attachment) -> None:
        self.processor.charge(self._costs.consume_us)
        self.counts.consumes += 1
        queue = self.queues[attachment.queue]
        consumer = Consumer(link, member, attachment)
        queue.consumers[attachment] = consumer
        self._consumers[link][attachment] = consumer
        self.tell(link, member.on_attached, link, attachment)
        if queue.first is consumer:
            self._dispatch(queue)

    def ack(self, link: Link, attachment: Attachment, tag: int, multiple: bool) -> None:
        """Its cost is a part of that of a message."""
        consumer = self._consumers[link].get(attachment)
        if consumer is not None:
            _settle(consumer, tag, multiple=multiple)
            self._dispatch(self.queues[attachment.queue])

    def close(
        self, link: Link, attachment: Attachment, ack_tag: int | None, single_tags: Sequence[int]
    ) -> None:
        """Acks, and the channel's close, which requeues the rest in order."""
        consumer = self._consumers[link].pop(attachment, None)
        if consumer is None:
            return
        if ack_tag is not None:
            _settle(consumer, ack_tag, multiple=True)
        for tag in single_tags:
            _settle(consumer, tag, multiple=False)
        self._closed(consumer)
        self.tell(link, consumer.member.on_closed, link, attachment)

    def count(self, link: Link, member: Member, number: int) -> None:
        """A passive declare."""
        self.processor.charge(self._costs.count_us)
        queue = self.queues[number]
        consumers = len(queue.consumers) if self._counts_all_consumers else min(1, len(queue.consumers))
        self.tell(link, member.on_counted, link, number, len(queue.ready), consumers)

    def _closed(self, consumer: Consumer) -> None:
        self.processor.charge(self._costs.close_us)
        self.counts.closes += 1
        queue = self.queues[consumer.attachment.queue]
        was_active = queue.first is consumer
        del queue.consumers[consumer.attachment]
        queue.ready.extendleft((message, True) for message, _ in reversed(consumer.unacked.values()))
        if was_active:
            self._dispatch(queue)

    def _dispatch(self, queue: Queue) -> None:
        consumer = queue.first
        if consumer is None or not queue.ready:
            return
        prefetch = consumer.attachment.prefetch
        found = []
        while queue.ready and (not prefetch or len(consumer.unacked) < prefetch):
            message, redelivered = queue.ready.popleft()
            consumer.last_tag += 1
            consumer.unacked[consumer.last_tag] = (message, redelivered)
            found.append((consumer.last_tag, message, redelivered))
        if found:
            member, link = consumer.member, consumer.link
            self.tell(link, member.on_deliveries, link, consumer.attachment, found)


def _to_all(links: Sequence[Link], key: str, body: bytes) -> None:
    for link in links:
        link.reached(link.on_mail, key, body)


def _settle(consumer: Consumer, tag: int, *, multiple: bool) -> None:
    if not multiple:
        consumer.unacked.pop(tag, None)
        return
    for one in list(consumer.unacked):
        if one > tag:
            break
        del consumer.unacked[one]
