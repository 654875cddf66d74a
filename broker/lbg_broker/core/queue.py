"""A queue: arguments, spools, consumers and dispatch policy.

A policy has the queue's consumers in the order they came, and the spools of its messages. `dispatch` takes messages
and assigns them to consumers; the caller numbers and sends them before it requests the next share.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lbg_broker.core.arguments import ArgumentReader, QueueArguments
from lbg_broker.core.consumer import Consumer
from lbg_broker.core.errors import ChannelRefusal
from lbg_broker.core.exchange import Binding
from lbg_broker.core.message import Message, Origin
from lbg_broker.core.spool import ATTENDED_LINES_MAX, Spool
from lbg_core.amqp import FieldValue, ReplyCode, Table

if TYPE_CHECKING:
    from lbg_broker.core.connection import Connection
    from lbg_broker.core.vhost import Vhost


Share = tuple[Spool, Consumer, list[Message], int]
"""Messages of a line for a consumer; the first n of them may have been delivered before."""


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


class SingleActive(DispatchPolicy):
    """The first consumer gets everything; the others wait in the order they came."""

    def __init__(self, spool: Spool) -> None:
        super().__init__()
        self._spool = spool

    def is_active(self, consumer: Consumer) -> bool:
        return self.consumers[0] is consumer

    def dispatch(self) -> Iterator[Share]:
        if not self.consumers:
            return
        spool = self._spool
        if not spool.ready:
            return
        consumer = self.consumers[0]
        while spool.ready and (credit := consumer.credit()):
            messages, redelivered = spool.take(credit, consumer.credit_bytes())
            if not messages:
                return
            yield spool, consumer, messages, redelivered


class Competing(DispatchPolicy):
    """Each message goes to the next consumer in turn that has credit."""

    def __init__(self, spool: Spool) -> None:
        super().__init__()
        self._spool = spool
        self._turn: deque[Consumer] = deque()

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._turn.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        self._turn.remove(consumer)

    def dispatch(self) -> Iterator[Share]:
        turn, spool = self._turn, self._spool
        if len(turn) == 1:
            consumer = turn[0]
            while spool.ready and (credit := consumer.credit()):
                messages, redelivered = spool.take(credit, consumer.credit_bytes())
                if not messages:
                    return
                yield spool, consumer, messages, redelivered
            return
        refused = 0
        while spool.ready and refused < len(turn):
            consumer = turn[0]
            turn.rotate(-1)
            if not consumer.credit():
                refused += 1
                continue
            messages, redelivered = spool.take(1)
            if not messages:
                turn.rotate(1)
                return
            refused = 0
            yield spool, consumer, messages, redelivered


UNLIMITED: Final = 1 << 62


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
        messages = UNLIMITED if rules.max_length is None else rules.max_length - self.messages_ready
        size = UNLIMITED if rules.max_length_bytes is None else rules.max_length_bytes - self.bytes_ready
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
