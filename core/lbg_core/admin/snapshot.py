"""Snapshot of a group on a broker. A failed read is `UNKNOWN`: never zero, never absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from lbg_core.admin.ingress_permissions import allows, closed, is_without, opened
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.record import INGRESS, Record
from lbg_core.counted_nouns import counted
from lbg_core.group import (
    ONE_USER,
    Engine,
    GroupSpec,
    Names,
    Permissions,
    Publishers,
    Topology,
    binding_key,
    hash_in,
    repartition_in,
    topology_of,
)
from lbg_core.group.key_moves import KeyMove
from lbg_core.group.topology import Argument, Binding

COLUMNS = "rebalance_status,ingress,handoffs,partitions,moving_keys,message_groups,closed,pool,sessions"

LIVE, AWAY, STRANDED, CLOSING = "live", "away", "stranded", "closing"

SAMPLED_S = 6.0
"""RabbitMQ counts unacknowledged messages every 5 s (tests/rabbitmq/test_facts_of_counting.py). While nothing comes in
and nothing is ready, it only gets less: a count of 0 that was taken after that began is true."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """`status` is Ready, Paused, Unassigned or Unbound, or another word of a newer broker; `consumer_tag` that of the
    consumer that has it or, where it is Unbound, had it; None where none did."""

    partition: int
    status: str
    consumer_tag: str | None
    ready: int
    unacked: int
    handoff_s: float | None = None
    """Seconds that its last handoff took, since the broker's start; None without one."""

    settled: int = 0
    """Messages that have left it since the broker's start."""

    @property
    def is_served(self) -> bool:
        return self.status in ("Ready", "Paused")


@dataclass(frozen=True, slots=True)
class MovingKeys:
    """State of a change to so many `partitions`, or separate queues, that is not over. `hashes`: those on their way;
    `messages_held` wait for earlier ones in the former partition of their key; `messages_surplus` are in partitions
    that are to go."""

    partitions: int
    hashes: int
    messages_held: int
    messages_surplus: int

    def problem(self, group: str) -> Problem:
        """The change as that for which something waits."""
        return Problem(Kind.PARTITIONS_CHANGE, Subject(group), asdict(self))


@dataclass(frozen=True, slots=True)
class MovingQueues(MovingKeys):
    """The same of separate queues. `hashes_moved` lead to their new queue, `hashes_staged` to a staging queue. Of the
    `queues` that hashes leave, all hashes of `queues_moved` lead to their new queue."""

    hashes_moved: int
    hashes_staged: int
    queues_moved: int
    queues: int

    def problem(self, group: str) -> Problem:
        begun = "moving" if self.hashes_moved or self.hashes_staged else "beginning"
        phase = {"phase": begun if self.hashes else "ending", "hashes_all": self.hashes_moved + self.hashes}
        return Problem(Kind.QUEUES_CHANGE, Subject(group), asdict(self) | phase)


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Handoffs of partitions by the embedded broker."""

    total: int
    forced: int
    messages_forced: Annotated[int, "messages delivered again for the forced ones"]


@dataclass(frozen=True, slots=True)
class PartitionsStatus:
    """`rebalance` is Ready, HoldDown or Rebalancing; `ingress` whether publishers are let in. `moving_keys`: None
    while no key moves to another partition."""

    rebalance: str
    ingress: bool
    handoffs: Handoffs
    partitions: tuple[PartitionStatus, ...]
    moving_keys: MovingKeys | None = None


@dataclass(frozen=True, slots=True)
class MessageGroupsStatus:
    """Counts of message groups: with messages or a consumer, and held by a consumer now."""

    known: int
    busy: int

    @property
    def text(self) -> str:
        return f"{counted(self.known, 'message group')}, {self.busy:,} at a member now"


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session, in mode Sessions."""

    session: str
    state: Annotated[str, "live, away, stranded (away, with messages) or closing"]
    consumer_tag: str | None
    last_sequence: Annotated[int, "the last that was given out"]
    acknowledged: Annotated[int, "the highest with all before it"]
    messages: int
    away_since: Annotated[float | None, "seconds since the epoch"]

    @property
    def is_stranded(self) -> bool:
        """True if it has messages and no consumer, closing or not: no other session gets these messages."""
        return bool(self.messages) and self.consumer_tag is None


@dataclass(frozen=True, slots=True)
class SessionsStatus:
    """`pool`: messages that no session has yet."""

    closed: bool
    pool: int
    sessions: tuple[SessionStatus, ...]

    @property
    def stranded(self) -> list[SessionStatus]:
        return [one for one in self.sessions if one.is_stranded]

    @property
    def stranded_first(self) -> list[SessionStatus]:
        return sorted(self.sessions, key=lambda one: not one.is_stranded)

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.sessions)

    def undrained(self, session: str | None = None) -> SessionsStatus:
        """With those that have messages, or the one of this name if it has."""
        left = (one for one in self.sessions if one.messages and session in (None, one.session))
        return replace(self, sessions=tuple(left))


Native: TypeAlias = PartitionsStatus | MessageGroupsStatus | SessionsStatus


def native_of(fields: Mapping[str, Any]) -> Native | None:
    """From a queue's JSON; None for a queue of no such kind."""
    if "partitions" in fields:
        return PartitionsStatus(
            rebalance=str(fields["rebalance_status"]),
            ingress=bool(fields["ingress"]),
            handoffs=_read(Handoffs, fields["handoffs"]),
            partitions=tuple(map(_partition, fields["partitions"])),
            moving_keys=None if (moving := fields.get("moving_keys")) is None else _read(MovingKeys, moving),
        )
    if "message_groups" in fields:
        return _read(MessageGroupsStatus, fields["message_groups"])
    if "sessions" in fields:
        sessions = tuple(_read(SessionStatus, one) for one in fields["sessions"])
        return SessionsStatus(bool(fields["closed"]), int(fields["pool"]), sessions)
    return None


def native_json(native: Native) -> dict[str, Any]:
    """As the broker reports it, for `--json`."""
    match native:
        case PartitionsStatus(moving_keys=moving):
            return {
                "rebalance_status": native.rebalance,
                "ingress": native.ingress,
                "handoffs": asdict(native.handoffs),
                "moving_keys": None if moving is None else asdict(moving),
            }
        case MessageGroupsStatus():
            return {"message_groups": asdict(native)}
        case SessionsStatus():
            return {**asdict(native), "sessions": list(map(asdict, native.sessions))}


S = TypeVar("S", Handoffs, MovingKeys, MessageGroupsStatus, SessionStatus)


def _read(kind: type[S], status: Mapping[str, Any]) -> S:
    """A status from the broker's JSON, by the names of its fields."""
    return kind(**{one.name: status[one.name] for one in fields(kind) if one.name in status})


def _partition(fields: Mapping[str, Any]) -> PartitionStatus:
    return PartitionStatus(
        partition=int(fields["partition"]),
        status=str(fields["status"]),
        consumer_tag=fields["consumer_tag"],
        ready=int(fields["messages_ready"]),
        unacked=int(fields["messages_unacknowledged"]),
        handoff_s=fields["last_handoff_seconds"],
        settled=int(fields["messages_settled"]),
    )


class Unknown(Enum):
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("unknown is neither yes nor no: compare with `is UNKNOWN`")


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class ExchangeState:
    """An exchange that is there; without the management API only that much is known."""

    type: str | Unknown = UNKNOWN
    arguments: Mapping[str, Argument] | Unknown = UNKNOWN


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue that is there. `ready` and `unacked` count messages; `active_consumer` is a consumer tag.

    `policy` names the user's policy in force, as of now; `effective` is the management API's result of all
    policies together, sampled every 5 s. `native` is the embedded broker's status of a queue type of its own, None for
    any other queue. `is_down`: most of its nodes are, and RabbitMQ counts 0 of it. `bytes_ready`: bodies of the
    messages that wait. `leader`: the node that leads a quorum queue, None where there is none or it is not known;
    `nodes`: those that have a replica of it.
    """

    ready: int | Unknown = UNKNOWN
    unacked: int | Unknown = UNKNOWN
    consumers: int | Unknown = UNKNOWN
    active_consumer: str | Unknown | None = UNKNOWN
    arguments: Mapping[str, Argument] | Unknown = UNKNOWN
    policy: str | Unknown | None = UNKNOWN
    effective: Mapping[str, object] | Unknown = UNKNOWN
    native: Native | Unknown | None = UNKNOWN
    is_down: bool = False
    bytes_ready: int | Unknown = UNKNOWN
    leader: str | None = None
    nodes: tuple[str, ...] = ()

    def counted(self, now: QueueStatus | Unknown | None) -> QueueStatus:
        """With the counts of AMQP in `now`. A queue that is down has no counts, and neither has one that the management
        API lists and AMQP does not find: AMQP's answer when the leader's node is down."""
        if now is UNKNOWN:
            return replace(self, ready=UNKNOWN, consumers=UNKNOWN)
        if self.is_down or now is None:
            return replace(
                self, ready=UNKNOWN, unacked=UNKNOWN, consumers=UNKNOWN, bytes_ready=UNKNOWN, is_down=True
            )
        return replace(self, ready=now.ready, consumers=now.consumers)


@dataclass(frozen=True, slots=True)
class UserState:
    """`made_for` names the group that the user was made for, None for a user that provisioning did not make.

    `password_hash` is as the broker stores it, empty where it does not report it."""

    name: str
    made_for: str | None = None
    password_hash: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of a virtual host (RabbitMQ's guide "Parameters and Policies")."""

    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: Mapping[str, object]
    of_operator: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group as one round of reading found it.

    Names map to None where the broker has no such object. `exchanges` and `queues` have at
    least every requested name and, where the management API lists them, whatever else is the group's.
    `record` is the message of the record's queue, None when that is missing or empty. `users` are all of the
    broker's, by name, and `connections` counts those of each user; they are only read while the group has more
    than one user. `permissions` are those of the user in the desired or the recorded attributes,
    `publisher_permissions` those of the publishers' user, if the record names one. `prefixes`
    maps every other group to its hash prefix; they are only read for a group that is to be made and has no record.
    `is_driven`: a command goes on with the change of the number of separate queues; None: not known.
    `channel_max`: channels that the broker allows on a connection; None: not read.
    `has_parked_stream`: there is no record, and a stream of parked keys, which a group gets with its parking queue.
    `why` has the reason of each UNKNOWN, by the parts and objects that it is of.
    """

    engine: Engine
    record: Record | Unknown | None = UNKNOWN
    exchanges: Mapping[str, ExchangeState | Unknown | None] = field(default_factory=dict)
    queues: Mapping[str, QueueStatus | Unknown | None] = field(default_factory=dict)
    bindings: frozenset[Binding] | Unknown = UNKNOWN
    users: Mapping[str, UserState] | Unknown = UNKNOWN
    connections: Mapping[str, int] | Unknown = UNKNOWN
    permissions: Permissions | Unknown | None = UNKNOWN
    publisher_permissions: Permissions | Unknown | None = UNKNOWN
    policies: tuple[Policy, ...] | Unknown = UNKNOWN
    prefixes: Mapping[str, str] | Unknown = UNKNOWN
    has_parked_stream: bool = False
    channel_max: int | None = None
    is_driven: bool | None = None
    why: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if the broker has no object of any of the names."""
        return self.record is None and not self.there

    @property
    def there(self) -> dict[str, ExchangeState | QueueStatus | Unknown]:
        """Objects that the broker has, or may have."""
        objects = {**self.exchanges, **self.queues}
        return {name: one for name, one in objects.items() if one is not None}

    def partitions(self, group: str) -> PartitionsStatus | None:
        """Those of the group's one queue, which the broker moves; None where there are none, or they are unknown."""
        status = self.queues.get(Names(group).parent)
        native = status.native if isinstance(status, QueueStatus) else None
        return native if isinstance(native, PartitionsStatus) else None

    def is_unusable(self, group: str) -> bool:
        """True if the broker refuses publishes to the group's one queue of partitions."""
        partitions = self.partitions(group)
        return partitions is not None and not partitions.ingress

    @property
    def queue_count_to_be(self) -> int | None:
        """Number of queues that the group is to have, while it is changed; else None."""
        return repartition_in(self.record.text) if isinstance(self.record, Record) else None

    def key_move(self, group: str) -> KeyMove | None:
        """Online change of the number of separate queues that is on its way, as the record states it."""
        if not isinstance(self.record, Record) or not self.record.key_move:
            return None
        spec = self.record.spec_of(group)
        return None if spec is None else KeyMove.of_id(self.record.key_move, spec.hash_count)

    def is_key_move_left(self, group: str) -> bool:
        """True if an online change of the number of separate queues is on its way, or has left something."""
        is_recorded = isinstance(self.record, Record) and bool(self.record.key_move)
        return is_recorded or self.queues.get(Names(group).moves) is not None

    def moving_keys(self, group: str) -> MovingKeys | None:
        """State of that change, or of one of partitions. A hash whose binding is not known counts as one that moves."""
        if (partitions := self.partitions(group)) is not None:
            return partitions.moving_keys
        move = self.key_move(group)
        return None if move is None else self.moving_queues(group, move)

    def moving_queues(self, group: str, move: KeyMove) -> MovingQueues:
        names = Names(group)
        held = surplus = 0
        for name, status in self.queues.items():
            number = names.number_of(name)
            count = status.ready if isinstance(status, QueueStatus) else UNKNOWN
            if number is None or count is UNKNOWN:
                continue
            if number in move.sources:
                held += count
            elif number >= move.new:
                surplus += count
        arrived, staged = set[int](), set[int]()
        for one in () if self.bindings is UNKNOWN else self.bindings:
            hash_ = hash_in(one.routing_key)
            if one.exchange == names.exchange and hash_ is not None and move.moves(hash_):
                number = names.number_of(one.queue)
                if number == hash_ % move.new:
                    arrived.add(hash_)
                elif number in move.sources:
                    staged.add(hash_)
        left = [hash_ for hash_ in move.hashes if hash_ not in arrived]
        queues_left = {hash_ % move.old for hash_ in left}
        return MovingQueues(
            partitions=move.new,
            hashes=len(left),
            messages_held=held,
            messages_surplus=surplus,
            hashes_moved=len(arrived),
            hashes_staged=len(staged - arrived),
            queues_moved=len(move.staging) - len(queues_left),
            queues=len(move.staging),
        )

    @property
    def owner(self) -> str:
        """Owner of the group as its record has it; empty where none is recorded, or it was not read."""
        return self.record.owner if isinstance(self.record, Record) else ""

    @property
    def object_name(self) -> str:
        """NAMESPACE/NAME of the LoadBalancedGroup, as the record has it for a group with a name of its own."""
        return self.record.object_name if isinstance(self.record, Record) else ""

    @property
    def publishers(self) -> Publishers:
        """Login of the group's publishers as its record has it; that of members where no record was read."""
        return self.record.publishers if isinstance(self.record, Record) else ONE_USER

    @property
    def paused(self) -> frozenset[str] | None:
        """Words for what is paused, as the record has them; None where it was not read."""
        return self.record.paused if isinstance(self.record, Record) else None

    @property
    def has_parking(self) -> bool:
        """True if the group has a parking queue, as its record states, or its stream of parked keys where the record
        is lost."""
        return self.record.has_parking if isinstance(self.record, Record) else self.has_parked_stream

    def topology_of(self, spec: GroupSpec, publishers: Publishers | None = None) -> Topology:
        """Topology of the group, with these attributes and its present users, or these. While ingress is paused, no
        user may publish. While keys move between separate queues, it has no bindings of theirs."""
        topology = topology_of(spec, self.engine, publishers or self.publishers, has_parking=self.has_parking)
        if (move := self.key_move(spec.name)) is not None:
            exchange = Names(spec.name).exchange
            moving = {binding_key(spec.hash_prefix, hash_) for hash_ in move.hashes}
            bindings = (
                one for one in topology.bindings if one.exchange != exchange or one.routing_key not in moving
            )
            topology = replace(topology, bindings=tuple(bindings))
        if not isinstance(self.record, Record) or not self.record.is_ingress_paused:
            return topology
        exchange, of_publishers = Names(spec.name).exchange, topology.publisher_permissions
        return replace(
            topology,
            permissions=closed(topology.permissions, exchange),
            publisher_permissions=None if of_publishers is None else closed(of_publishers, exchange),
        )

    def is_ingress_paused(self, group: str) -> bool | None:
        """True if the record states it, or, where the record is not read, if the group's users may not publish; None
        where neither is known."""
        if self.paused is not None:
            return INGRESS in self.paused
        known = [
            one for one in (self.permissions, self.publisher_permissions) if isinstance(one, Permissions)
        ]
        if not known:
            return None
        return any(is_without(one.write, Names(group).exchange) for one in known)

    def without_pause(
        self, present: Permissions | Unknown | None, group: str
    ) -> Permissions | Unknown | None:
        """Permissions to compare with those of `topology_of`: where the record was not read, ingress may be paused."""
        if self.paused is None and isinstance(present, Permissions):
            return opened(present, Names(group).exchange)
        return present

    def is_served(self, group: str) -> bool:
        """True if the group's queues have consumers, as far as their counts are known. A reader of the record counts as
        its consumer for a moment, and is none."""
        names = Names(group)
        served = (one for name, one in self.queues.items() if names.is_served(name))
        return any(
            one is UNKNOWN or one.consumers is UNKNOWN or one.consumers > 0
            for one in served
            if one is not None
        )

    def user(self, name: str) -> UserState | Unknown | None:
        return UNKNOWN if self.users is UNKNOWN else self.users.get(name)

    def users_of(self, group: str) -> list[str]:
        """The names of the users that were made for `group`, as far as users are known."""
        users = {} if self.users is UNKNOWN else self.users
        return sorted(name for name, user in users.items() if user.made_for == group)


def listed_publishers(
    spec: GroupSpec, queues: Mapping[str, QueueStatus | Unknown | None], granted: Permissions | Unknown | None
) -> Publishers:
    """Login of the publishers of a group whose record is not read: the stream of copies shows that there is one, and
    the permissions of the members' user whether it may publish."""
    names = Names(spec.name)
    if queues.get(names.record) is None:
        return ONE_USER
    may_publish = True
    if isinstance(granted, Permissions):  # ingress may be paused
        may_publish = allows(opened(granted, names.exchange).write, names.exchange)
    return Publishers(names.publisher_user, members_publish=may_publish)
