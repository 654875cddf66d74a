"""Queues of every type, from their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lbg_broker.core.arguments import (
    MessageGroupsArguments,
    PartitionedArguments,
    QueueArguments,
    SessionsArguments,
    StreamArguments,
)
from lbg_broker.core.dead_letter import TimeToLive
from lbg_broker.core.entities import Queue, Vhost
from lbg_broker.core.queue_types.message_groups import MessageGroupsType
from lbg_broker.core.queue_types.partitioned import PartitionedType
from lbg_broker.core.queue_types.queue_type import PlainQueueType, QueueType
from lbg_broker.core.queue_types.session_distribution import SessionsType
from lbg_broker.core.queue_types.stream_log import StreamType
from lbg_broker.core.spool import Spool
from lbg_broker.core.state import State
from lbg_core.amqp import Table

if TYPE_CHECKING:
    from lbg_broker.core.entities import Connection


PLAIN: Final = PlainQueueType()
KINDS: Final[dict[type, QueueType]] = {
    MessageGroupsArguments: MessageGroupsType(),
    PartitionedArguments: PartitionedType(),
    SessionsArguments: SessionsType(),
    StreamArguments: StreamType(),
}
"""By the class of their rules."""


def queue_type_of(rules: QueueArguments) -> QueueType:
    """The queue type of these arguments."""
    return PLAIN if rules.kind is None else KINDS[type(rules.kind)]


def make_queue(
    state: State,
    vhost: Vhost,
    name: str,
    *,
    durable: bool,
    auto_delete: bool,
    owner: Connection | None,
    arguments: Table,
    rules: QueueArguments,
    lines: list[Spool],
    stored: Mapping[str, Any],
) -> Queue:
    """A queue in its virtual host. `stored`: what its policy kept before a restart; empty for a new one."""
    queue = Queue(
        vhost,
        name,
        durable=durable,
        auto_delete=auto_delete,
        owner=owner,
        arguments=arguments,
        rules=rules,
        lines=lines,
    )
    queue.policy = queue_type_of(rules).policy(state, queue, stored)
    vhost.add_queue(queue)
    if rules.message_ttl_s is not None:
        queue.append = TimeToLive(state, queue, rules.message_ttl_s).append
    if rules.message_ttl_s is not None or rules.expires_s is not None:
        queue.alarm_at = state.now  # what came back after a restart may have expired meanwhile
        state.wake_at(queue, queue.alarm_at)
    return queue
