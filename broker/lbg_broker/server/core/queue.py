"""A queue: its name and rules, its lines of messages, and its consumers."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lbg_broker.amqp import FieldValue, Table
from lbg_broker.server.core.arguments import QueueArguments
from lbg_broker.server.core.dealing import Policy
from lbg_broker.server.core.exchange import Binding
from lbg_broker.server.core.message import Origin
from lbg_broker.server.core.spool import Spool
from lbg_broker.server.core.window import ATTENDED_LINES_MAX

if TYPE_CHECKING:
    from lbg_broker.server.core.connection import Connection
    from lbg_broker.server.core.vhost import Vhost

__all__ = ["Queue"]

UNLIMITED: Final = 1 << 62


class Queue:
    """`durable`: it and its messages survive the process. An exclusive queue never does, whatever was asked,
    because its owner does not.

    `due`: it is in the list of queues that may have something to deliver. `policy` is set by who makes the queue, and
    `lines` change only with `State.add_line` and `State.drop_line`. `spool` is the first line: the only one of a plain
    queue. `shut`: it takes no messages for now, whatever room it has.
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
        vhost: "Vhost",
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        owner: "Connection | None",
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
        """Whether it may refuse a message: because of a limit, or because it is shut."""
        self.shut = False
        self.lines = lines
        self.spool = lines[0]
        for line in lines:
            line.queue = self
        self.append: Callable[[Origin, bytes, bytes], None] = self.spool.append
        """Put a message at the end. A kind of queue with several lines chooses among them here."""
        self.policy: Policy
        self.bindings: dict[Binding, None] = {}
        self.due = False
        self.alarm_at = math.inf
        """When the alarm rings that looks for what has expired."""
        self.used_at: float | None = None
        """When it was last used, of a queue that expires; None: not since the broker's start."""
        self._room_messages = self._room_bytes = 0  # for so many more there is room for sure

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self.messages_ready} ready, {self.messages_unacknowledged} unacknowledged)"

    @property
    def messages_ready(self) -> int:
        """Messages that wait, in memory and in the store."""
        return sum([line.ready for line in self.lines])

    @property
    def messages_unacknowledged(self) -> int:
        """Messages given out and not settled."""
        return sum([line.outstanding for line in self.lines])

    @property
    def bytes_ready(self) -> int:
        """Bytes of the bodies that wait."""
        return sum([line.ready_bytes for line in self.lines])

    @property
    def bytes_unacknowledged(self) -> int:
        """Bytes of the bodies given out and not settled."""
        return sum([line.outstanding_bytes for line in self.lines])

    def attend(self) -> None:
        """Give the lines the larger window if somebody consumes from them, and they are not too many for that."""
        attended = bool(self.policy.consumers) and len(self.lines) <= ATTENDED_LINES_MAX
        for line in self.lines:
            line.attended = attended

    def is_full_for(self, size_bytes: int) -> bool:
        """Whether one more message of this size would be over a limit. If not, it is appended next. Limits count what
        waits, as RabbitMQ's."""
        if self._room_messages > 0 and self._room_bytes >= size_bytes:
            self._room_messages -= 1
            self._room_bytes -= size_bytes
            return False
        return self._is_full_by_count(size_bytes)

    def forget_room(self) -> None:
        """Something else than a message for which `is_full_for` was asked waits now."""
        self._room_messages = 0

    def _is_full_by_count(self, size_bytes: int) -> bool:
        """Count what waits in all lines, and remember what there is room for: it can only become more."""
        rules = self.rules
        messages = UNLIMITED if rules.max_length is None else rules.max_length - self.messages_ready
        size = UNLIMITED if rules.max_length_bytes is None else rules.max_length_bytes - self.bytes_ready
        self._room_messages, self._room_bytes = messages - 1, size - size_bytes
        return messages < 1 or size < size_bytes

    def is_over(self) -> bool:
        """Whether what waits is over a limit now."""
        rules = self.rules
        if rules.max_length is not None and self.messages_ready > rules.max_length:
            return True
        return rules.max_length_bytes is not None and self.bytes_ready > rules.max_length_bytes

    def has_idle_consumer(self) -> bool:
        """Whether a message that comes now would go out at once."""
        if self.messages_ready:
            return False
        policy = self.policy
        return any(policy.is_active(consumer) and consumer.credit() for consumer in policy.consumers)
