"""The broker's entities, which refer to each other: virtual hosts and queues, connections, channels and consumers.

A dispatch policy has a queue's consumers in the order they came, and the spools of its messages. `dispatch` takes
messages and assigns them to consumers; the caller numbers and sends them before it requests the next share.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from lbg_broker.core.arguments import ArgumentReader, QueueArguments
from lbg_broker.core.effects import Effect
from lbg_broker.core.errors import ChannelRefusal
from lbg_broker.core.exchange import PREDECLARED, Binding, Exchange
from lbg_broker.core.message import Message, Origin, Place
from lbg_broker.core.spool import ATTENDED_LINES_MAX, UNLIMITED_BYTES, Spool
from lbg_core.amqp import Event, FieldValue, ReplyCode, Table

UNLIMITED: Final = 1 << 30
NO_LIMIT: Final = 1 << 62

DEAD_LETTERS_SUFFIX: Final = ".dlx"

ROUTES_MAX: Final = 20_000
"""Routes remembered per vhost. Keys with a free last part may be without number, so all are dropped then."""

Share: TypeAlias = "tuple[Spool, Consumer, list[Message], int]"
"""Messages of a line for a consumer; the first n of them may have been delivered before."""

Unsettled: TypeAlias = "tuple[Spool, Message, Consumer | None]"
"""A delivery that awaits its ack, and the line it returns to; without a consumer it was fetched by basic.get."""


class Consumer:
    """Made by basic.consume, gone with basic.cancel, its channel or its queue.

    `prefetch` is the most unsettled messages it may hold, 0 for no limit; `outstanding` is how many it holds.
    `prefetch_bytes` and `outstanding_bytes` are the same of their bodies.
    """

    __slots__ = (
        "arguments",
        "channel",
        "exclusive",
        "no_ack",
        "outstanding",
        "outstanding_bytes",
        "prefetch",
        "prefetch_bytes",
        "queue",
        "tag",
    )

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        prefetch_bytes: int,
        arguments: dict[str, object],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.prefetch_bytes = prefetch_bytes
        self.arguments = arguments
        self.outstanding = 0
        self.outstanding_bytes = 0

    def credit(self) -> int:
        """Number of messages that it may still be sent now."""
        channel = self.channel
        if channel.closing or channel.connection.paused:
            return 0
        if self.no_ack:
            return UNLIMITED
        credit = self.prefetch - self.outstanding if self.prefetch else UNLIMITED
        if channel.prefetch_total:
            credit = min(credit, channel.prefetch_total - channel.outstanding)
        if (self.prefetch_bytes or channel.prefetch_bytes_total) and self.credit_bytes() <= 0:
            return 0
        return credit if credit > 0 else 0

    @property
    def limits_bytes(self) -> bool:
        return bool(self.prefetch_bytes or self.channel.prefetch_bytes_total)

    def credit_bytes(self) -> int:
        """Bytes below which it may still be sent messages now: the last one may exceed them. So a message that is
        larger than the whole limit passes alone."""
        credit = UNLIMITED_BYTES
        if self.no_ack:
            return credit
        channel = self.channel
        if self.prefetch_bytes:
            credit = self.prefetch_bytes - self.outstanding_bytes
        if channel.prefetch_bytes_total:
            credit = min(credit, channel.prefetch_bytes_total - channel.outstanding_bytes)
        return credit

    def add_unsettled(self, count: int, size_bytes: int) -> None:
        """Adds unsettled messages to its window."""
        channel = self.channel
        self.outstanding += count
        self.outstanding_bytes += size_bytes
        channel.outstanding += count
        channel.outstanding_bytes += size_bytes

    def remove_unsettled(self, count: int, size_bytes: int) -> None:
        """Removes settled or reassigned messages from its window."""
        self.add_unsettled(-count, -size_bytes)


class DispatchPolicy:
    """Policy by which a queue dispatches its messages. `consumers` are in the order they came."""

    supports_get = True
    """True if basic.get makes sense on such a queue."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []

    def admit(self, consumer: Consumer, arguments: ArgumentReader) -> None:
        """Read the kind's own arguments of a basic.consume, and refuse a consumer that cannot be. Changes nothing:
        others may still refuse it. Raises `Refusal`."""

    def add(self, consumer: Consumer) -> None:
        """A consumer comes, behind those that are there."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Removes a consumer. Its messages are settled or requeued later, or were before."""
        self.consumers.remove(consumer)

    def is_active(self, consumer: Consumer) -> bool:
        """True if messages may go to it."""
        return True

    def dispatch(self) -> Iterator[Share]:
        """Assigns what may be delivered now to consumers."""
        raise NotImplementedError

    def answered(self, consumer: Consumer) -> None:
        """A consumer has answered a recall (`settle.recall_from`): what had not begun is requeued. The queue is
        dispatched after this."""

    def resize(self, consumer: Consumer, groups: int) -> None:
        """A consumer works on so many groups at a time as of now: the queue is dispatched after this."""

    def ring(self) -> None:
        """A time set with `State.wake_at` has come, or may have: the queue is dispatched after this."""

    def perform(self, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out an action of the management API and give its answer as JSON. Raises `Refusal`."""
        raise ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"this type of queue has no action '{action}'")

    def describe(self) -> Mapping[str, Any]:
        """Fields of the queue type in the queue's JSON of the management API."""
        return {}

    def stored_state(self) -> Mapping[str, Any]:
        """State of the queue type that must survive a restart, as JSON; `State.redefine` stores it."""
        return {}


class Queue:
    """`durable`: it and its messages survive the process. An exclusive queue never does, because its
    owner does not.

    `due`: it is in the list of queues that may have something to deliver. `policy` is set by the maker of the queue,
    and `lines` change only with `State.add_line` and `State.drop_line`. `spool` is the first line: the only one of a
    plain queue. `shut`: its ingress is closed.
    """

    __slots__ = (
        "_room_bytes",
        "_room_messages",
        "alarm_at",
        "append",
        "arguments",
        "auto_delete",
        "bindings",
        "declared_durable",
        "due",
        "durable",
        "limited",
        "lines",
        "name",
        "owner",
        "policy",
        "rules",
        "shut",
        "spool",
        "used_at",
        "vhost",
        "where",
    )

    def __init__(
        self,
        vhost: Vhost,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        owner: Connection | None,
        arguments: Table,
        rules: QueueArguments,
        lines: list[Spool],
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.where = f"queue '{name}' in vhost '{vhost.name}'"
        self.durable = durable
        self.declared_durable = durable
        self.auto_delete = auto_delete
        self.owner = owner
        self.arguments: dict[str, FieldValue] = dict(arguments)
        self.rules = rules
        self.limited = rules.limited or rules.kind is not None
        """True if it may refuse a message: because of a limit, or because it is shut."""
        self.shut = False
        self.lines = lines
        self.spool = lines[0]
        for line in lines:
            line.queue = self
        self.append: Callable[[Origin, bytes, bytes], None] = self.spool.append
        """Put a message at the end. A kind of queue with several lines chooses among them here."""
        self.policy: DispatchPolicy
        self.bindings: dict[Binding, None] = {}
        self.due = False
        self.alarm_at = math.inf
        """Time of the alarm that looks for expired messages."""
        self.used_at: float | None = None
        """Time of the last use, of a queue that expires; None: not since the broker's start."""
        self._room_messages = self._room_bytes = 0  # for so many more there is room for sure

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self.messages_ready} ready, {self.messages_unacknowledged} unacknowledged)"

    @property
    def messages_ready(self) -> int:
        """Messages that wait, in memory and in the store."""
        return sum([line.ready for line in self.lines])

    @property
    def messages_unacknowledged(self) -> int:
        """Unsettled messages."""
        return sum([line.outstanding for line in self.lines])

    @property
    def bytes_ready(self) -> int:
        """Bytes of the bodies that wait."""
        return sum([line.ready_bytes for line in self.lines])

    @property
    def bytes_unacknowledged(self) -> int:
        """Bytes of the bodies of unsettled messages; none of a stream, where they are ready too."""
        return sum([line.outstanding_bytes for line in self.lines if not line.keeps_messages])

    def attend(self) -> None:
        """Gives the spools the larger window if they have consumers, and are not too many for that."""
        attended = bool(self.policy.consumers) and len(self.lines) <= ATTENDED_LINES_MAX
        for line in self.lines:
            line.attended = attended

    def is_full_for(self, size_bytes: int) -> bool:
        """True if one more message of this size would be over a limit. If not, it is appended next. Limits count what
        waits, as RabbitMQ's."""
        if self._room_messages > 0 and self._room_bytes >= size_bytes:
            self._room_messages -= 1
            self._room_bytes -= size_bytes
            return False
        return self._is_full_by_count(size_bytes)

    def forget_room(self) -> None:
        """Forgets the result of `is_full_for`: the waiting messages have changed."""
        self._room_messages = 0

    def _is_full_by_count(self, size_bytes: int) -> bool:
        """Count what waits in all lines, and remember what there is room for: it can only become more."""
        rules = self.rules
        messages = NO_LIMIT if rules.max_length is None else rules.max_length - self.messages_ready
        size = NO_LIMIT if rules.max_length_bytes is None else rules.max_length_bytes - self.bytes_ready
        self._room_messages, self._room_bytes = messages - 1, size - size_bytes
        return messages < 1 or size < size_bytes

    def is_over(self) -> bool:
        """True if what waits is over a limit now."""
        rules = self.rules
        if rules.max_length is not None and self.messages_ready > rules.max_length:
            return True
        return rules.max_length_bytes is not None and self.bytes_ready > rules.max_length_bytes

    def has_idle_consumer(self) -> bool:
        """True if a message that comes now would go out at once."""
        if self.messages_ready:
            return False
        policy = self.policy
        return any(policy.is_active(consumer) and consumer.credit() for consumer in policy.consumers)


@dataclass(slots=True, frozen=True, eq=False)
class Route:
    """Queues that a publish to an exchange with a key reaches, until the topology changes."""

    origin: Origin
    queues: tuple[Queue, ...]
    durable: bool
    """True if any of the queues is: then a confirm waits for the disk."""
    plain: bool
    """True if no queue has a limit, so that nothing can be refused or dropped."""

    @classmethod
    def to(cls, origin: Origin, queues: tuple[Queue, ...]) -> Route:
        """The route to these queues."""
        return cls(
            origin,
            queues,
            any(queue.durable for queue in queues),
            not any(queue.limited for queue in queues),
        )


def queue_of(spool: Spool) -> Queue:
    """The queue that a spool belongs to."""
    return cast(Queue, spool.queue)


class Vhost:
    """`generation` grows whenever a route may have changed. `wide` has the exchanges of all virtual hosts in which one
    message may take long."""

    def __init__(self, name: str, wide: set[tuple[str, str]]) -> None:
        self.name = name
        self.generation = 0
        self.exchanges: dict[str, Exchange] = {
            name: Exchange(name, kind, durable=True) for name, kind in PREDECLARED
        }
        self.queues: dict[str, Queue] = {}
        self._wide = wide
        self._letter_exchanges: Counter[str] = Counter()  # by the queues that name them
        self._routes: dict[tuple[str, str], Route] = {}

    def add_queue(self, queue: Queue) -> None:
        """Add a queue, whose arguments do not change from now on."""
        self.queues[queue.name] = queue
        self._letter_exchanges.update(_letter_exchange_of(queue))

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue that has no bindings."""
        del self.queues[queue.name]
        self._letter_exchanges -= Counter(_letter_exchange_of(queue))
        self.changed()

    def changed(self) -> None:
        """The topology is different now."""
        self.generation += 1
        self._routes.clear()

    def route(self, exchange: Exchange, routing_key: str) -> Route:
        """The route from an exchange, cached after its first use."""
        key = (exchange.name, routing_key)
        route = self._routes.get(key)
        if route is None:
            place = Place.LETTER if self._is_dead_letter_exchange(exchange) else Place.NONE
            origin = Origin.of(exchange.name, routing_key, place=place)
            route = Route.to(origin, self._find(exchange, routing_key))
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[key] = route
        return route

    def _is_dead_letter_exchange(self, exchange: Exchange) -> bool:
        """True if an exchange is one of dead letters: a queue names it as its own, or its name ends in `.dlx`, as of
        groups, whose members publish the letters themselves."""
        return exchange.name.endswith(DEAD_LETTERS_SUFFIX) or exchange.name in self._letter_exchanges

    def _find(self, exchange: Exchange, routing_key: str) -> tuple[Queue, ...]:
        queues: dict[Queue, None] = {}
        visited = {exchange.name}
        todo = [exchange]
        while todo:
            place = todo.pop()
            onward: list[str] = []
            if place.name == "":
                queue = self.queues.get(routing_key)
                if queue is not None:
                    queues[queue] = None
            else:
                matched = False
                for binding in place.match(routing_key):
                    matched = True
                    if binding.kind == "queue":
                        queues[self.queues[binding.destination]] = None
                    else:
                        onward.append(binding.destination)
                if not matched and place.alternate is not None:
                    onward.append(place.alternate)
            for name in onward:
                if name not in visited and name in self.exchanges:
                    visited.add(name)
                    todo.append(self.exchanges[name])
        return tuple(queues)

    def bind(self, binding: Binding) -> bool:
        """Add a binding whose ends exist; False if it is there already."""
        if not self.exchanges[binding.source].bind(binding):
            return False
        if binding.kind == "queue":
            self.queues[binding.destination].bindings[binding] = None
        else:
            self.exchanges[binding.destination].feeders[binding] = None
        self._bound(binding)
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False if there is none."""
        if not self.exchanges[binding.source].unbind(binding):
            return False
        if binding.kind == "queue":
            del self.queues[binding.destination].bindings[binding]
        else:
            del self.exchanges[binding.destination].feeders[binding]
        self._bound(binding)
        return True

    def _bound(self, binding: Binding) -> None:
        ends = (binding.source,) if binding.kind == "queue" else (binding.source, binding.destination)
        for name in ends:
            change = self._wide.add if self.exchanges[name].is_wide else self._wide.discard
            change((self.name, name))
        self.changed()

    def is_durable(self, binding: Binding) -> bool:
        """True if both ends are, so that the binding is kept too."""
        ends = self.queues if binding.kind == "queue" else self.exchanges
        return self.exchanges[binding.source].durable and ends[binding.destination].durable


def _letter_exchange_of(queue: Queue) -> tuple[str, ...]:
    """The exchange of its dead letters, if it has one with a name."""
    name = queue.rules.dead_letter_exchange
    return (name,) if name else ()


class Channel:
    """One open channel of a connection.

    `stalled`: the answer to its last command waits for the disk; later commands wait in `backlog`, so that
    replies keep their order.
    """

    __slots__ = (
        "backlog",
        "closing",
        "confirmed",
        "confirms",
        "connection",
        "consumers",
        "emptied",
        "fenced",
        "instant",
        "last_queue",
        "next_tag",
        "number",
        "outstanding",
        "outstanding_bytes",
        "prefetch",
        "prefetch_bytes",
        "prefetch_bytes_total",
        "prefetch_total",
        "published",
        "recalled",
        "revoked",
        "routes",
        "routes_generation",
        "stalled",
        "unsettled",
        "user",
        "vhost",
        "waiting",
    )

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.user = connection.user
        self.vhost = connection.vhost
        self.number = number
        self.closing = False
        self.stalled = False
        self.backlog: deque[Event] = deque()
        self.consumers: dict[str, Consumer] = {}
        self.last_queue = ""  # the name an empty queue name stands for (AMQP 0-9-1, queue.bind)
        # deliveries
        self.next_tag = 1
        self.unsettled: dict[int, Unsettled] = {}
        self.recalled: dict[int, Consumer] = {}  # recalled with basic.revoke, and not answered yet
        self.revoked: dict[int, tuple[Consumer, int]] = {}
        """Reassigned, and not yet acknowledged: the former consumer, and how many bytes."""
        self.emptied = 1  # bodies of deliveries with tags below have left memory, as far as possible
        self.outstanding = 0  # of consumers; what basic.get fetched does not count against a limit
        self.outstanding_bytes = 0
        self.prefetch = 0  # basic.qos global=false: each consumer made from now on
        self.prefetch_bytes = 0
        self.prefetch_total = 0  # basic.qos global=true: all consumers of the channel together
        self.prefetch_bytes_total = 0
        # publishes
        self.confirms = False
        self.published = 0
        self.confirmed = 0
        self.waiting = 0  # the highest publish whose confirm waits for the disk
        self.instant: list[int] = []  # publishes to confirm at the end of this turn
        self.fenced: set[Queue] = set()  # queues that refused a publish (ordered refusal)
        self.routes: dict[tuple[str, str], Route] = {}
        self.routes_generation = -1

    @property
    def limits_all(self) -> bool:
        """True if its consumers share a limit, so that room for one is room for all."""
        return bool(self.prefetch_total or self.prefetch_bytes_total)

    @property
    def owner(self) -> Connection:
        """Owner of what is declared exclusive here."""
        return self.connection


@dataclass(slots=True, frozen=True)
class Peer:
    """Description of the other end, for display; only its capabilities change anything."""

    name: str
    host: str = ""
    port: int = 0
    tls: bool = False
    client_properties: Mapping[str, object] = field(default_factory=dict)

    def has(self, capability: str) -> bool:
        """True if the client announced this capability."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, Mapping) and capabilities.get(capability) is True


class Connection:
    """`paused`: the peer reads too slowly, so nothing is delivered until its buffer has drained. `is_blocked`: it
    published while the store had no room, and is not read from until there is some."""

    __slots__ = (
        "byte_credit",
        "cancel_notify",
        "channels",
        "closing",
        "id",
        "is_blocked",
        "opened_at",
        "ordered_refusal",
        "out",
        "owned",
        "paused",
        "peer",
        "revocable",
        "user",
        "vhost",
    )

    def __init__(self, number: int, user: str, vhost: Vhost, *, peer: Peer, opened_at: float) -> None:
        self.id = number
        self.user = user
        self.vhost = vhost
        self.peer = peer
        self.opened_at = opened_at
        self.ordered_refusal = peer.has("lbg.ordered_refusal")
        self.cancel_notify = peer.has("consumer_cancel_notify")
        self.revocable = peer.has("lbg.revoke")
        self.byte_credit = peer.has("lbg.prefetch_size")
        self.channels: dict[int, Channel] = {}
        self.owned: set[Queue] = set()  # exclusive queues, which die with it
        self.paused = False
        self.is_blocked = False
        self.closing = False
        self.out: list[Effect] = []
