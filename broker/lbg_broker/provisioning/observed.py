"""What one look at a broker found of a group. A failed look is `UNKNOWN`: never zero, never "not there"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from lbg_broker.group import Engine, Names, Permissions, repartition_in
from lbg_broker.group.topology import Argument, Binding

from .native import Native, PartitionsSeen


class Unknown(Enum):
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("unknown is neither yes nor no: compare with `is UNKNOWN`")


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class ExchangeSeen:
    """An exchange that is there; without the management API only that much is known."""

    type: str | Unknown = UNKNOWN
    arguments: Mapping[str, Argument] | Unknown = UNKNOWN


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A queue that is there. `ready` and `unacked` count messages; `active_consumer` is a consumer tag.

    `policy` names the user's policy in force, as of now; `effective` is what the management API says all policies
    together set, which it samples every 5 s. `native` is what the embedded broker says of a queue of a kind of its own,
    None for any other queue. `is_down`: most of its nodes are, and RabbitMQ counts 0 of it.
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

    def counted(self, now: QueueSeen | Unknown | None) -> QueueSeen:
        """With what AMQP counts `now`: nothing is known of a queue that is down, whatever is counted of it, nor of one
        that the management API lists and AMQP does not find, which is what it says when the leader's node is down."""
        if now is UNKNOWN:
            return replace(self, ready=UNKNOWN, consumers=UNKNOWN)
        if self.is_down or now is None:
            return replace(self, ready=UNKNOWN, unacked=UNKNOWN, consumers=UNKNOWN, is_down=True)
        return replace(self, ready=now.ready, consumers=now.consumers)


@dataclass(frozen=True, slots=True)
class UserSeen:
    """`made_for` names the group that the user was made for, None for a user that provisioning did not make.

    `password_hash` is as the broker keeps it, empty where it does not tell."""

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
class Observed:
    """A group as one round of reading found it.

    Names map to None where the broker said that there is no such object. `exchanges` and `queues` hold at
    least every name that was asked for and, where the management API lists them, whatever else is the group's.
    `record` is the text of the config record, None when the queue is missing or empty. `users` are all of the
    broker's, by name, and `connections` counts those of each user; they are only looked at while the group has more
    than one user. `permissions` are those of the user that the wanted or the recorded attributes name. `prefixes`
    maps every other group to its hash prefix; they are only looked at for a group that is to be made and has no record.
    `why` says, for what is UNKNOWN, why.
    """

    engine: Engine
    record: str | Unknown | None = UNKNOWN
    exchanges: Mapping[str, ExchangeSeen | Unknown | None] = field(default_factory=dict)
    queues: Mapping[str, QueueSeen | Unknown | None] = field(default_factory=dict)
    bindings: frozenset[Binding] | Unknown = UNKNOWN
    users: Mapping[str, UserSeen] | Unknown = UNKNOWN
    connections: Mapping[str, int] | Unknown = UNKNOWN
    permissions: Permissions | Unknown | None = UNKNOWN
    policies: tuple[Policy, ...] | Unknown = UNKNOWN
    prefixes: Mapping[str, str] | Unknown = UNKNOWN
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the broker said of every name that it is free."""
        seen = [*self.exchanges.values(), *self.queues.values()]
        return self.record is None and all(one is None for one in seen)

    def takes_nothing(self, group: str) -> bool:
        """Whether the broker is known to refuse what is published to the group's one queue of partitions."""
        seen = self.queues.get(Names(group).parent)
        native = seen.native if isinstance(seen, QueueSeen) else None
        return isinstance(native, PartitionsSeen) and not native.ingress

    @property
    def queue_count_to_be(self) -> int | None:
        """How many queues the group is to have, while somebody changes it; None when nobody is known to."""
        return repartition_in(self.record) if isinstance(self.record, str) else None

    def is_served(self, group: str) -> bool:
        """Whether somebody consumes from the group's queues, as far as is known. Who has just read the record counts as
        its consumer for a moment, and is none."""
        names = Names(group)
        served = (one for name, one in self.queues.items() if names.is_served(name))
        return any(
            one is UNKNOWN or one.consumers is UNKNOWN or one.consumers > 0
            for one in served
            if one is not None
        )

    def user(self, name: str) -> UserSeen | Unknown | None:
        return UNKNOWN if self.users is UNKNOWN else self.users.get(name)

    def users_of(self, group: str) -> list[str]:
        """The names of the users that were made for `group`, as far as users are known."""
        users = {} if self.users is UNKNOWN else self.users
        return sorted(name for name, user in users.items() if user.made_for == group)
