"""Actions on a broker, one change at a time, and the action that undoes each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from lbg_core.admin.record import Record
from lbg_core.counted_nouns import counted
from lbg_core.group import GroupSpec, Permissions
from lbg_core.group.key_moves import Entry
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Message
from lbg_core.group.topology import Binding, Exchange, Queue, Topology


@dataclass(frozen=True, slots=True)
class Action:
    """A change on a broker. `text`: line for people, of its fields."""

    text: ClassVar[str]

    def __str__(self) -> str:
        return self.text.format(self)


@dataclass(frozen=True, slots=True)
class DeclareExchange(Action):
    """`is_new`: it was not there when the plan was made, so taking the plan back deletes it."""

    exchange: Exchange
    is_new: bool = True
    text = "declare exchange {0.exchange.name}"


@dataclass(frozen=True, slots=True)
class DeclareQueue(Action):
    queue: Queue
    is_new: bool = True
    text = "declare queue {0.queue.name}"


@dataclass(frozen=True, slots=True)
class CheckPolicies(Action):
    """Changes nothing, and fails if a policy that loses messages is in force on a queue.

    A broker reports the policies of a queue only once it exists.
    """

    group: str
    topology: Topology
    text = "check the policies over the queues of group {0.group}"


@dataclass(frozen=True, slots=True)
class Bind(Action):
    """All bindings of one queue, requested at once: one by one takes long on a broker that writes each to disk."""

    queue: str
    bindings: tuple[Binding, ...]
    is_new: bool = True

    def __str__(self) -> str:
        return f"bind {self.queue} ({counted(len(self.bindings), 'routing key')})"


@dataclass(frozen=True, slots=True)
class Unbind(Action):
    queue: str
    bindings: tuple[Binding, ...]

    def __str__(self) -> str:
        return f"unbind {self.queue} ({counted(len(self.bindings), 'routing key')})"


@dataclass(frozen=True, slots=True)
class PutUser(Action):
    """Create a user or set its password, and mark it as made for `group`."""

    name: str
    password: str = field(repr=False)
    group: str
    is_new: bool = True

    def __str__(self) -> str:
        return f"{'create user' if self.is_new else 'set the password of user'} {self.name}"


@dataclass(frozen=True, slots=True)
class PutPermissions(Action):
    """`before` is what the user had, None for nothing."""

    user: str
    permissions: Permissions
    before: Permissions | None = None
    text = "grant user {0.user} its permissions"


@dataclass(frozen=True, slots=True)
class RevokePermissions(Action):
    user: str
    text = "revoke the permissions of user {0.user}"


_RECORDED = {
    "key_move": "the change of the number of queues",
    "has_parking": "the parking queue",
    "paused": "the pause",
    "parked_from": "the first entry of parked keys to be read",
    "publishers": "the users",
    "owner": "the owner",
    "object_name": "the object",
}
"""Changes of a record that leave its text as it is, the first of which is named."""


@dataclass(frozen=True, slots=True)
class WriteRecord(Action):
    """`before` is the record that this one replaces, None for none to restore."""

    group: str
    record: Record
    before: Record | None = None

    @property
    def is_final(self) -> bool:
        """False for the record of a group that is being made."""
        return GroupSpec.from_unfinished(self.record.text, name=self.group) is None

    def __str__(self) -> str:
        if self.before is not None and self.before.text == self.record.text:
            fields = (name for name in _RECORDED if getattr(self.before, name) != getattr(self.record, name))
            return f"record {_RECORDED[next(fields, 'owner')]} of group {self.group}"
        verb_phrase = "write the record of" if self.is_final else "record the attributes of the unfinished"
        return f"{verb_phrase} group {self.group}"


@dataclass(frozen=True, slots=True)
class ActOnQueue(Action):
    """Action of a queue type that only the embedded broker has: `close`, `close-session`, `ingress`,
    `repartition` (docs/embedded-broker.md)."""

    queue: str
    action: str
    arguments: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = "".join(f" {name}={value}" for name, value in self.arguments.items())
        return f"{self.action}{arguments} on queue {self.queue}"


@dataclass(frozen=True, slots=True)
class DeleteExchange(Action):
    name: str
    text = "delete exchange {0.name}"


@dataclass(frozen=True, slots=True)
class DeleteQueue(Action):
    """`only_idle`: refuse (StillInUse) when it has messages or consumers after all; `only_empty`: when it has
    messages."""

    name: str
    only_idle: bool = False
    only_empty: bool = False
    text = "delete queue {0.name}"


@dataclass(frozen=True, slots=True)
class DeleteUser(Action):
    name: str
    text = "delete user {0.name}"


@dataclass(frozen=True, slots=True)
class OpenIngress(Action):
    """Give everybody back what repartitioning took: the permission to publish to the group."""

    group: str
    text = "permit publishing to group {0.group}"


ADMINISTRATOR: Final = Identity(0, "administrator", "")
"""The sender of announcements and requests that is no member."""


@dataclass(frozen=True, slots=True)
class Announce(Action):
    """A message to all members that are there."""

    group: str
    message: Message

    def __str__(self) -> str:
        return f"announce {type(self.message).__name__} to the members of group {self.group}"


@dataclass(frozen=True, slots=True)
class AppendEntry(Action):
    """An entry of the stream of a change of the number of queues (`lbg_core.group.key_moves`)."""

    group: str
    entry: Entry

    def __str__(self) -> str:
        kind = type(self.entry).__name__.removesuffix("Entry").lower()
        return f"append {kind} to the change of queues of group {self.group}"


@dataclass(frozen=True, slots=True)
class PutFence(Action):
    """A fence of the change `move` behind all messages of a queue."""

    queue: str
    move: str
    text = "put a fence into queue {0.queue}"


@dataclass(frozen=True, slots=True)
class PassFences(Action):
    """In place of a member, for a queue that none serves: the fences at its head are passed. Nothing is done if another
    message is there, or a consumer serves the queue."""

    group: str
    number: int
    move: str
    text = "pass the fence in queue {0.number} of group {0.group}"


@dataclass(frozen=True, slots=True)
class ReturnMessages(Action):
    """Publishes messages that are left in a queue that is too many, and that nobody consumes, to the group again."""

    group: str
    number: int
    text = "publish what is left in queue {0.number} to group {0.group} again"


def undo_of(action: Action) -> Action | None:
    """The action that takes `action` back; None where there is nothing to take back.

    A first record goes with its queue. A password that was set anew cannot be taken back: plans put it last.
    """
    match action:
        case DeclareExchange(exchange, is_new=True):
            return DeleteExchange(exchange.name)
        case DeclareQueue(queue, is_new=True):
            return DeleteQueue(queue.name)
        case Bind(queue, bindings, is_new=True):
            return Unbind(queue, bindings)
        case PutUser(name, is_new=True):
            return DeleteUser(name)
        case PutPermissions(user, _, before=None):
            return RevokePermissions(user)
        case PutPermissions(user, now, before=before) if before is not None:
            return PutPermissions(user, before, now)
        case WriteRecord(group, _, before=before) if before is not None:
            return WriteRecord(group, before)
        case _:
            return None
