"""Names of a group's objects on a broker, and the address of each of its messages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lbg_core.group.errors import SpecError

HEADER_KEY = "lbg-key"
HEADER_PUBLISHER = "lbg-publisher"
HEADER_SEQ = "lbg-seq"
HEADER_TS = "lbg-ts"
"""Integer microseconds since the epoch, stamped by the publisher."""

# Added by a member that republishes what it received for the validator.
HEADER_HASH = "lbg-hash"
HEADER_QUEUE = "lbg-queue"
HEADER_MEMBER = "lbg-member"
HEADER_MEMBER_NAME = "lbg-member-name"
HEADER_REDELIVERED = "lbg-redelivered"
HEADER_DELIVERED_AT = "lbg-delivered-at"
"""Integer microseconds since the epoch."""
HEADER_INCARNATION = "lbg-incarnation"
"""Of the member: another one with each connection."""
HEADER_STARTED_AT = "lbg-started-at"
HEADER_FINISHED_AT = "lbg-finished-at"
"""The time in which the application had it, over all attempts: integer microseconds since the epoch."""
HEADER_RELEASED = "lbg-released"
"""The application had it, and its verdict came too late: the message was requeued, and is delivered again."""

# A message's number in its session, from 1, the broker's life in which it was given, and that it is the session's last:
# the embedded broker's own.
HEADER_SESSION_SEQ = "x-session-seq"
HEADER_SESSION_EPOCH = "x-session-epoch"
HEADER_SESSION_END = "x-session-end"
# Added by a member that republishes what it received in mode Sessions.
HEADER_SESSION = "lbg-session"

# Added by a member that makes a message a dead letter, with its queue, its member and the application's time as above.
HEADER_REASON = "lbg-reason"
HEADER_ATTEMPTS = "lbg-attempts"

# Added when a dead letter is published again: who it was before.
HEADER_ORIGINAL_PUBLISHER = "lbg-original-publisher"
HEADER_ORIGINAL_SEQ = "lbg-original-seq"

# Of a group's record: who owns the group (`lbg_core.admin.record`).
HEADER_OWNER = "lbg-owner"

# … and the LoadBalancedGroup, NAMESPACE/NAME, where the group's name does not follow from it.
HEADER_OBJECT = "lbg-object"

# Of a group's record: the user of its publishers, and that members may publish too.
HEADER_PUBLISHER_USER = "lbg-publisher-user"
HEADER_MEMBERS_PUBLISH = "lbg-members-publish"

# Of a group's record: what is paused, words with commas between them.
HEADER_PAUSED = "lbg-paused"

# Of a released copy of a parked message that comes to a member's mailbox: the routing key of the message.
HEADER_ROUTING_KEY = "lbg-routing-key"

# Of a group's record: it has a parking queue.
HEADER_PARKING = "lbg-parking"

# … and its members read the stream of parked keys from the snapshot at this place on.
HEADER_PARKED_FROM = "lbg-parked-from"

# Of a message in the parking queue: id of this copy, which its entry in the stream has too.
HEADER_PARKED_COPY = "lbg-parked-copy"

# Of a group's record: id of the change of the number of queues that is on its way (`lbg_core.group.key_moves`).
HEADER_KEY_MOVE = "lbg-key-move"

# Of a fence, a message in a queue that keys leave: id of the change.
HEADER_FENCE = "lbg-fence"

MEMBERS_VERSION = 1
"""Version of the messages on the members exchange: their field `v`. A newer one is refused."""

TO_ALL = "all"
"""Routing key on the members exchange that reaches every mailbox; `str(index)` reaches one."""

TO_MOVES = "moves"
"""Routing key on the members exchange that reaches the stream of a change of the number of queues."""

TO_OBSERVERS = "status"
"""Routing key on the members exchange of the members' status reports: bound by observers, and by no mailbox."""

IDENTITY_BYTES = 16
"""Random bytes of an identity: of a publisher, a member, a temporary queue. Of 4 bytes, two in 77,000 are as likely the
same as not, and members drop what the second publisher sends as repeats of the first one's."""

ROUTING_KEY_MAX_BYTES = 255
"""AMQP 0-9-1, section 4.2.5.3: a short string."""

GROUP_NAME_RULE = (
    "must be a DNS label: 1 to 63 characters a-z, 0-9 and -, beginning and ending with a letter or digit"
)
_GROUP_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


GROUP_NAME_MAX = 63
GROUP_NAME_ANNOTATION = "lbg.dev/group-name"
"""Of a LoadBalancedGroup: its group's name on the broker, once it is chosen."""
_DIGEST_CHARS = 8


def default_group_name(namespace: str, name: str) -> str:
    """Name of the group that a Kubernetes object asks for without a name of its own.

    `team`/`a-orders` and `team-a`/`orders` differ by the digest, however much of the names there is room for.
    """
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:_DIGEST_CHARS]
    stem = f"{namespace}-{name}"[: GROUP_NAME_MAX - _DIGEST_CHARS - 1].rstrip("-")
    return f"{stem}-{digest}"


def group_name_of(manifest: Mapping[str, Any]) -> str:
    """Name on the broker of the group that a LoadBalancedGroup asks for, as the API server gives it.

    That of its manifest, or else the one that was chosen before, or else the default one.
    """
    metadata = manifest.get("metadata", {})
    given = (
        manifest.get("spec", {}).get("groupName"),
        (metadata.get("annotations") or {}).get(GROUP_NAME_ANNOTATION),
    )
    chosen = next((one for one in given if isinstance(one, str) and one), None)
    return chosen or default_group_name(metadata.get("namespace", "default"), str(metadata.get("name", "")))


def require_group_name(name: object, *, field: str = "name") -> str:
    """`name`, if it can name a group (RFC 1123 label, so no dots); raises SpecError."""
    if not isinstance(name, str) or _GROUP_NAME.fullmatch(name) is None:
        raise SpecError(field, name, GROUP_NAME_RULE)
    return name


@dataclass(frozen=True, slots=True)
class Names:
    """The names of all that `group` has on a broker; raises SpecError when no group can be called so."""

    group: str

    def __post_init__(self) -> None:
        require_group_name(self.group)

    @property
    def exchange(self) -> str:
        return f"lbg.{self.group}"

    def queue(self, number: int) -> str:
        return f"lbg.{self.group}.q.{number}"

    @property
    def parent(self) -> str:
        """The one queue of a group that is one queue on its broker."""
        return f"lbg.{self.group}.q"

    def number_of(self, queue: str) -> int | None:
        """The number of the queue of this name; None where it is none of the numbered ones."""
        number = queue.removeprefix(f"{self.parent}.")
        return int(number) if number != queue and number.isdecimal() else None

    def is_served(self, queue: str) -> bool:
        """True if the queue of this name carries the group's messages to its members."""
        return queue == self.parent or self.number_of(queue) is not None

    @property
    def unrouted_exchange(self) -> str:
        return f"lbg.{self.group}.unrouted"

    @property
    def unrouted(self) -> str:
        return f"lbg.{self.group}.unrouted"

    @property
    def dlx(self) -> str:
        return f"lbg.{self.group}.dlx"

    @property
    def dead(self) -> str:
        return f"lbg.{self.group}.dead"

    @property
    def parking(self) -> str:
        """Exchange and queue of the messages of parked keys."""
        return f"lbg.{self.group}.parking"

    @property
    def parked(self) -> str:
        """Exchange and stream of the entries of parked keys (`lbg_core.group.parked_keys`)."""
        return f"lbg.{self.group}.parked"

    @property
    def moves(self) -> str:
        """Stream of the entries of a change of the number of queues (`lbg_core.group.key_moves`)."""
        return f"lbg.{self.group}.moves"

    @property
    def config(self) -> str:
        return f"lbg.{self.group}.config"

    @property
    def record(self) -> str:
        """Stream with copies of the record for the publishers' user, who can read it and nothing else."""
        return f"lbg.{self.group}.record"

    @property
    def publisher_user(self) -> str:
        """User of the publishers, where they have one of their own and no other name is given."""
        return f"{self.group}.publisher"

    @property
    def members(self) -> str:
        return f"lbg.{self.group}.members"

    def mailbox(self, index: int) -> str:
        return f"lbg.{self.group}.member.{index}"

    def last_will(self, index: int) -> str:
        """Queue of the last will of the member with this index. It is called as the mailbox of an index that no member
        has, which the members' user may declare, bind and consume."""
        return self.mailbox(LAST_WILL_FIRST + index)

    def last_will_key(self, index: int) -> str:
        """Routing key of it, at the members exchange."""
        return str(LAST_WILL_FIRST + index)

    @property
    def validate(self) -> str:
        return f"lbg.{self.group}.validate"

    @property
    def validation(self) -> str:
        return f"lbg.{self.group}.validation"


SERVED_QUEUE = re.compile(r"lbg\.[a-z0-9-]+\.q(\.[0-9]+)?")
"""Names of the queues that carry messages to members: those of which `Names.is_served` is true for some group."""

LAST_WILL_FIRST = 1 << 41
"""Number of the first last will, above every index of a member and every number of a temporary mailbox."""


def group_in(name: str) -> str:
    """The group whose queue or exchange is called so."""
    return name.split(".")[1]


def binding_key(prefix: str, hash_: int) -> str:
    """The topic pattern that takes every message of `hash_`."""
    return f"{prefix}.{hash_}.#"


def routing_key(prefix: str, hash_: int, topic: str) -> str:
    """`{prefix}.{hash}.{topic}`; an empty topic leaves `{prefix}.{hash}`.

    Raises SpecError when it takes more than 255 bytes of UTF-8 or is no Unicode text.
    """
    key = f"{prefix}.{hash_}.{topic}" if topic else f"{prefix}.{hash_}"
    # A character takes at most 4 bytes, so most keys need no second look.
    if len(key) * 4 > ROUTING_KEY_MAX_BYTES or not key.isascii():
        try:
            size_bytes = len(key.encode())
        except UnicodeEncodeError:
            raise SpecError("topic", topic, "must be Unicode text without unpaired surrogates") from None
        if size_bytes > ROUTING_KEY_MAX_BYTES:
            raise SpecError(
                "topic",
                topic,
                f"makes a routing key of {size_bytes} bytes of UTF-8; at most {ROUTING_KEY_MAX_BYTES} fit",
            )
    return key


def forwarded_key(queue: int) -> str:
    """Routing key on the members exchange that reaches a queue, while keys move between queues."""
    return f"q.{queue}"


def hash_in(routing_key: str) -> int | None:
    """The hash of `{prefix}.{hash}.{topic}`; None when there is none."""
    _, _, rest = routing_key.partition(".")
    hash_ = rest.partition(".")[0]
    return int(hash_) if hash_.isascii() and hash_.isdecimal() else None
