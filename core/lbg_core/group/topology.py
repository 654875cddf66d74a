"""Exchanges, queues, bindings and permissions of a group, as a pure function of spec and engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from lbg_core.group.errors import SpecError
from lbg_core.group.hashing import queue_of
from lbg_core.group.names import HEADER_KEY, TO_ALL, Names, binding_key
from lbg_core.group.spec import BALANCED, MESSAGE_GROUPS, NATIVE_MODES, PARTITIONED, SESSIONS, GroupSpec

RABBITMQ = "RabbitMQ"
EMBEDDED = "LBG"
"""`product` in the server properties of connection.start (AMQP 0-9-1, section 1.4.2.1)."""

OLDEST_RABBITMQ = (3, 10)
"""The oldest RabbitMQ that is tested (docs/rabbitmq.md, "Versions")."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A broker product and its version (major, minor, patch)."""

    product: str
    version: tuple[int, int, int]

    @classmethod
    def parse(cls, product: str, version: str) -> Engine:
        """From the properties that a broker announces when a connection starts; raises SpecError for an unknown one."""
        if product not in (RABBITMQ, EMBEDDED):
            raise SpecError("engine", product, f"must be {RABBITMQ} or {EMBEDDED}")
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
        if match is None:
            raise SpecError("engine version", version, "must begin with numbers, as 4.0.5 does")
        return cls(product, (int(match[1]), int(match[2]), int(match[3] or 0)))

    @classmethod
    def announced(cls, properties: Mapping[str, object]) -> Engine:
        """From the server properties of connection.start; raises SpecError for an unknown one."""
        return cls.parse(str(properties.get("product", "")), str(properties.get("version", "")))

    @property
    def is_rabbitmq(self) -> bool:
        return self.product == RABBITMQ

    @property
    def is_too_old(self) -> bool:
        """True if no new group should be made there."""
        return self.is_rabbitmq and self.version[:2] < OLDEST_RABBITMQ

    @property
    def counts_for_owners_only(self) -> bool:
        """True if a passive declare needs the permission to configure, as in one release (rabbitmq-server#16085)."""
        return self.is_rabbitmq and self.version == (4, 3, 0)

    @property
    def waits_for_disconnected(self) -> bool:
        """True if quorum queues wait for consumers of a node that is gone before they requeue what these hold."""
        return self.is_rabbitmq and self.version >= (4, 3, 0)

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"


Argument = str | int | bool

MEMBER_CHANNELS = 16
"""Channels of a member's connection that are not of a queue: mailbox, last will, counts, the record, streams of parked
keys and of a change, and some that close."""

DISCONNECTED_MS = 1000
"""Milliseconds that a group's queue waits for a consumer whose node is gone; RabbitMQ's own default is a minute. Not 0:
a short partition of nodes has no effect then (docs/adr/0050-requirements-of-rabbitmq-4-3.md)."""


LEADER_LOCATOR = "x-queue-leader-locator"
"""Argument of a quorum queue: the rule by which RabbitMQ chooses the node of its first leader."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange; `type` is topic, fanout or direct."""

    name: str
    type: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue; a durable one unless it is `exclusive`, which lives and dies with its connection."""

    name: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    exclusive: bool = False

    @property
    def durable(self) -> bool:
        return not self.exclusive


@dataclass(frozen=True, slots=True)
class Binding:
    exchange: str
    queue: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Permissions:
    """Anchored patterns in RabbitMQ's permissions model: what a user may configure, write and read."""

    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class Publishers:
    """Login of a group's publishers (docs/adr/0059-publishers-and-members-have-users-of-their-own.md).

    `username` is empty in a group of one user, whose members and publishers log in as the same user. `members_publish`:
    the members' user may publish to the group as well, as in each group of one user.
    """

    username: str = ""
    members_publish: bool = True


ONE_USER = Publishers()


@dataclass(frozen=True, slots=True)
class Topology:
    """Objects of a group on a broker, in the order in which to declare them: exchanges, queues, bindings.

    `permissions` are those of the group's user, as which members log in, and in a group of one user publishers too.
    `publisher_permissions` are those of the publishers' user, None in a group of one user.
    """

    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]
    permissions: Permissions
    publisher_permissions: Permissions | None = None


def is_native(spec: GroupSpec, engine: Engine) -> bool:
    """True if the group is one queue, of a type that implements the group's mode."""
    return spec.mode in NATIVE_MODES and not engine.is_rabbitmq


def has_partitions(spec: GroupSpec, engine: Engine) -> bool:
    """True if the group is one queue whose partitions the broker moves."""
    return spec.mode == PARTITIONED and is_native(spec, engine)


def stream_queues(spec: GroupSpec, engine: Engine) -> tuple[str, ...]:
    """The queues that carry the group's messages to its members."""
    names = Names(spec.name)
    if is_native(spec, engine):
        return (names.parent,)
    return tuple(names.queue(number) for number in range(spec.queue_count))


@lru_cache(maxsize=64)
def topology_of(
    spec: GroupSpec, engine: Engine, publishers: Publishers = ONE_USER, *, has_parking: bool = False
) -> Topology:
    """Cached while a group is made or compared, which uses it several times. All of hundreds of groups would be
    10 KB for each, most of it bindings."""
    names = Names(spec.name)
    is_one_queue = is_native(spec, engine)
    return Topology(
        exchanges_of(names, has_parking=has_parking),
        queues_of(spec, engine, publishers, has_parking=has_parking),
        bindings_of(spec, engine, has_parking=has_parking),
        permissions_of(
            names,
            engine,
            is_one_queue=is_one_queue,
            may_publish=publishers.members_publish,
            has_parking=has_parking,
        ),
        publisher_permissions_of(names, engine, is_one_queue=is_one_queue) if publishers.username else None,
    )


def why_without_parking(spec: GroupSpec, engine: Engine) -> str | None:
    """Reason for which the group can have no parking queue; None if it can."""
    if spec.mode == PARTITIONED and not engine.is_rabbitmq:
        return (
            "the embedded broker moves a partition to a consumer that is active already, which would start before it "
            "has read the parked keys; mode Exclusive has parking, and so has mode Partitioned on RabbitMQ"
        )
    if spec.mode == MESSAGE_GROUPS:
        return "the broker moves a key to another consumer at any message; mode Exclusive has parking"
    if spec.mode == SESSIONS:
        return "the number of a session's message acknowledges all before it; mode Exclusive has parking"
    return None


def why_without_assignment(spec: GroupSpec, engine: Engine) -> str | None:
    """Reason for which the group cannot have its assignment; None if it can."""
    if spec.assignment == BALANCED or not is_native(spec, engine):
        return None
    return (
        f"the embedded broker assigns partitions by itself, evenly; leave out assignment {spec.assignment}, or use "
        "mode Exclusive"
    )


def exchanges_of(names: Names, *, has_parking: bool = False) -> tuple[Exchange, ...]:
    # The alternate comes first: from then on the group's exchange has somewhere to put what no queue takes.
    return (
        Exchange(names.unrouted_exchange, "fanout"),
        Exchange(names.exchange, "topic", {"alternate-exchange": names.unrouted_exchange}),
        Exchange(names.dlx, "fanout"),
        Exchange(names.members, "direct"),
        Exchange(names.validate, "fanout"),
        *((Exchange(names.parking, "fanout"), Exchange(names.parked, "fanout")) if has_parking else ()),
    )


def queues_of(
    spec: GroupSpec, engine: Engine, publishers: Publishers = ONE_USER, *, has_parking: bool = False
) -> tuple[Queue, ...]:
    names = Names(spec.name)
    safe = _safe_arguments(engine)
    limited = {**safe, "x-max-length-bytes": spec.queue_size_bytes, "x-overflow": "reject-publish"}
    return (
        *_serving(spec, engine, limited),
        # A publisher with another prefix or hash count is refused in the end; it must not fill the disk.
        Queue(names.unrouted, limited),
        # Dead letters have no limit: a full one would stop every lane that has something to refuse.
        Queue(names.dead, safe),
        # Members have limits of their own, beyond which they park nothing.
        *(
            (Queue(names.parking, safe), Queue(names.parked, {"x-queue-type": "stream"}))
            if has_parking
            else ()
        ),
        *((Queue(names.record, {"x-queue-type": "stream"}),) if publishers.username else ()),
        # With room for one, a new record takes the place of the old one. Replicated like the queues: a member that
        # starts while a node is down must be able to read it.
        Queue(names.config, {**safe, "x-max-length": 1}),
    )


def _serving(spec: GroupSpec, engine: Engine, limited: Mapping[str, Argument]) -> tuple[Queue, ...]:
    if not is_native(spec, engine):
        exclusive = {**limited, "x-single-active-consumer": True}
        if engine.waits_for_disconnected:
            exclusive["x-consumer-disconnected-timeout"] = DISCONNECTED_MS
        return tuple(Queue(name, exclusive) for name in stream_queues(spec, engine))
    # The limit of such a queue is one over all its lines.
    size_bytes = spec.queue_size_bytes * spec.queue_count
    return (Queue(Names(spec.name).parent, {**limited, "x-max-length-bytes": size_bytes, **_kind_of(spec)}),)


def _kind_of(spec: GroupSpec) -> dict[str, Argument]:
    """The arguments that set the queue type at the embedded broker (docs/embedded-broker.md)."""
    if spec.mode == PARTITIONED:
        return {
            "x-queue-type": "partitioned",
            "x-partition-count": spec.queue_count,
            "x-partition-hash": spec.hash_function,
            # hash mod QC, and the hash is H(key) mod HC: a key has the same number here as among exclusive queues.
            "x-partition-hash-count": spec.hash_count,
            "x-rebalance-delay": round(spec.rebalance_delay_s * 1000),
            "x-max-handoff-time": round(spec.max_handoff_s * 1000),
        }
    if spec.mode == MESSAGE_GROUPS:
        return {"x-group-header": HEADER_KEY}
    assert spec.mode == SESSIONS
    return {"x-queue-type": "sessions"}


def bindings_of(spec: GroupSpec, engine: Engine, *, has_parking: bool = False) -> tuple[Binding, ...]:
    """Bindings of all queues, striped as in "Sticky Load Balancing"; a single queue takes all hashes.

    Queue q takes hashes q, q + QC, q + 2 QC ….
    """
    names = Names(spec.name)
    hashes = (
        [0]
        if is_native(spec, engine)
        else [
            hash_
            for number in range(spec.queue_count)
            for hash_ in range(number, spec.hash_count, spec.queue_count)
        ]
    )
    return (
        *(binding_of(spec, engine, hash_) for hash_ in hashes),
        Binding(names.unrouted_exchange, names.unrouted, ""),
        Binding(names.dlx, names.dead, ""),
        *(Binding(name, name, "") for name in (names.parking, names.parked) if has_parking),
    )


def binding_of(spec: GroupSpec, engine: Engine, hash_: int) -> Binding:
    """The one through which messages of `hash_` come to their queue."""
    names = Names(spec.name)
    if is_native(spec, engine):
        return Binding(names.exchange, names.parent, f"{spec.hash_prefix}.#")
    key = binding_key(spec.hash_prefix, hash_)
    return Binding(names.exchange, names.queue(queue_of(hash_, spec.queue_count)), key)


def mailbox_of(names: Names, index: int) -> tuple[Queue, tuple[Binding, ...]]:
    """The exclusive queue whose declaration claims `index`, and its bindings."""
    mailbox = names.mailbox(index)
    return (
        Queue(mailbox, exclusive=True),
        (Binding(names.members, mailbox, TO_ALL), Binding(names.members, mailbox, str(index))),
    )


LAST_WILL_EXPIRES_MS = 60_000
"""Milliseconds after which a queue that nobody consumes is deleted, if a restart of the broker left it behind."""


def last_will_of(names: Names, index: int) -> tuple[Queue, Binding]:
    """The queue of the last will of the member with this index, to be declared auto-delete, and its binding."""
    name = names.last_will(index)
    arguments: dict[str, Argument] = {
        "x-queue-type": "classic",
        "x-single-active-consumer": True,
        "x-expires": LAST_WILL_EXPIRES_MS,
    }
    return Queue(name, arguments), Binding(names.members, name, names.last_will_key(index))


def permissions_of(
    names: Names,
    engine: Engine,
    *,
    is_one_queue: bool,
    may_publish: bool = True,
    has_parking: bool = False,
) -> Permissions:
    """Permissions that a member needs, and no more; with `may_publish` those that a publisher needs too.

    A mailbox is declared (configure), bound (write on it, read on the exchange) and consumed from (read). RabbitMQ from
    4.3.1 on counts a queue for those alone who have any permission on it. For dead letters and unrouted messages it is
    write, which lets in nothing that the group's exchanges do not (docs/adr/0050-requirements-of-rabbitmq-4-3.md).
    """
    mailboxes = re.escape(names.mailbox(0)[:-1]) + "[0-9]+"
    counted = (names.dead, names.unrouted) if engine.is_rabbitmq else ()
    published = (names.exchange,) if may_publish else ()
    parking = (names.parking, names.parked) if has_parking else ()
    # The stream of a change of the number of queues: members read it, and write to it by way of the members exchange.
    moves = () if is_one_queue else (names.moves,)
    return Permissions(
        configure=_anchored(mailboxes),
        write=_anchored(
            mailboxes,
            *map(re.escape, (*published, names.members, names.dlx, names.validate, *counted, *parking)),
        ),
        read=_anchored(
            mailboxes,
            _served(names, is_one_queue=is_one_queue),
            *map(re.escape, (names.members, names.config, *parking[1:], *moves)),
        ),
    )


def publisher_permissions_of(names: Names, engine: Engine, *, is_one_queue: bool) -> Permissions:
    """Permissions that a publisher needs, and no more: to publish to the group, and to read the copies of its record.

    From a stream a user with the permission to read can consume, and cannot remove anything. To count a queue, which
    RabbitMQ from 4.3.1 on permits those alone who have any permission on it, it is write: without read on an exchange
    it permits nothing else.
    """
    counted = (_served(names, is_one_queue=is_one_queue),) if engine.is_rabbitmq else ()
    return Permissions(
        configure="^$",
        write=_anchored(re.escape(names.exchange), *counted),
        read=_anchored(re.escape(names.record)),
    )


def _served(names: Names, *, is_one_queue: bool) -> str:
    return re.escape(names.parent) if is_one_queue else re.escape(names.queue(0)[:-1]) + "[0-9]+"


def _anchored(*patterns: str) -> str:
    return f"^({'|'.join(patterns)})$"


def _safe_arguments(engine: Engine) -> dict[str, Argument]:
    if not engine.is_rabbitmq:
        return {}
    # Without it the leaders of all queues are on the node to which the administrator happens to be connected.
    arguments: dict[str, Argument] = {"x-queue-type": "quorum", LEADER_LOCATOR: "balanced"}
    if engine.version >= (4, 0, 0):
        # 4.x drops a message at its 21st return by default, and each handoff is one; on 3.x -1 drops at once.
        arguments["x-delivery-limit"] = -1
    return arguments
