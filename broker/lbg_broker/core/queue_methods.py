"""queue.declare, queue.delete and queue.purge."""

from __future__ import annotations

from lbg_broker.core.arguments import ARGUMENTS as PARTITIONED
from lbg_broker.core.arguments import (
    STREAM,
    QueueArguments,
    group_header,
    inequivalent,
    same_arguments,
)
from lbg_broker.core.dead_letter import renew_lease
from lbg_broker.core.definitions import define_queue
from lbg_broker.core.entities import Queue
from lbg_broker.core.errors import ChannelRefusal, ConnectionRefusal
from lbg_broker.core.exchange_methods import remove_binding
from lbg_broker.core.queue_factory import make_queue, queue_type_of
from lbg_broker.core.resources import (
    Principal,
    check_not_reserved,
    check_owner,
    check_permission,
    find_queue,
    locked,
    queue_name,
)
from lbg_broker.core.spool import Spool
from lbg_broker.core.state import State
from lbg_core.amqp import ReplyCode
from lbg_core.amqp.methods import (
    BasicCancel,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)

COMPARED = (
    "x-single-active-consumer",
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-delivery-limit",
    "x-max-age",
    *PARTITIONED,
)
"""Arguments in which a second declaration must agree with the first; queue-type has a default on top."""

PROPERTIES_REFUSED = {
    "quorum": ("non-durable", "exclusive-owner", "auto-delete"),
    STREAM: ("non-durable", "exclusive-owner", "auto-delete"),
    "sessions": ("exclusive-owner", "auto-delete"),  # it waits for its sessions when it has no consumer
}
"""By queue type."""


def declare_queue(state: State, actor: Principal, method: QueueDeclare) -> QueueDeclareOk:
    """queue.declare; with passive, it only reports."""
    if method.passive:
        queue = find_queue(actor, queue_name(actor, method.queue))
        check_owner(actor, queue)
    else:
        name = method.queue or f"amq.gen-{state.new_token()}"
        check_permission(state, actor, "configure", "queue", name)
        existing = actor.vhost.queues.get(name)
        if existing is None:
            if method.queue:
                check_not_reserved("queue", name)
            queue = _create(state, actor, name, method)
        else:
            _check_equivalent(actor, existing, method)
            queue = existing
    renew_lease(state, queue)
    actor.last_queue = queue.name
    return QueueDeclareOk(queue.name, queue.messages_ready, len(queue.policy.consumers))


def delete_queue(state: State, actor: Principal, method: QueueDelete) -> QueueDeleteOk:
    """queue.delete. A queue that is not there is deleted already."""
    name = queue_name(actor, method.queue)
    check_permission(state, actor, "configure", "queue", name)
    queue = actor.vhost.queues.get(name)
    if queue is None:
        return QueueDeleteOk(0)
    check_owner(actor, queue)
    if method.if_unused and queue.policy.consumers:
        raise ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"{queue.where} in use")
    if method.if_empty and queue.messages_ready:
        raise ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"{queue.where} not empty")
    count = queue.messages_ready
    remove_queue(state, queue)
    return QueueDeleteOk(count)


def purge_queue(state: State, actor: Principal, method: QueuePurge) -> QueuePurgeOk:
    """queue.purge: ready messages are deleted; unacknowledged ones stay."""
    name = queue_name(actor, method.queue)
    check_permission(state, actor, "read", "queue", name)
    queue = find_queue(actor, name)
    check_owner(actor, queue)
    if queue.spool.keeps_messages:
        raise ConnectionRefusal(
            ReplyCode.NOT_IMPLEMENTED, f"queue.purge not supported by {STREAM} queues {queue.where}"
        )
    positions: dict[Spool, list[int]] = {line: [] for line in queue.lines}
    for connection in state.connections.values():
        for channel in connection.channels.values():
            for line, message, _ in channel.unsettled.values():
                if line in positions:
                    positions[line].append(message.position)
    state.make_due(queue)  # a change of partitions, or the end of sessions, may wait for what was purged
    return QueuePurgeOk(sum([line.purge(sorted(stay)) for line, stay in positions.items()]))


def remove_queue(state: State, queue: Queue) -> None:
    """Deletes a queue with its messages, bindings and consumers, which get basic.cancel."""
    vhost = queue.vhost
    for binding in list(queue.bindings):
        remove_binding(state, vhost, binding)
    vhost.remove_queue(queue)
    if queue.owner is not None:
        queue.owner.owned.discard(queue)
    if queue.durable:
        define_queue(state, vhost, queue, there=False)
    for line in list(queue.lines):
        state.drop_spool(line)
    for consumer in list(queue.policy.consumers):
        queue.policy.remove(consumer)
        channel = consumer.channel
        channel.consumers.pop(consumer.tag, None)
        if channel.connection.cancel_notify and not channel.closing:
            state.send(channel, BasicCancel(consumer.tag, True))


def _create(state: State, actor: Principal, name: str, method: QueueDeclare) -> Queue:
    where = f"queue '{name}' in vhost '{actor.vhost.name}'"
    rules = QueueArguments.parse(method.arguments, where=where)
    if rules.queue_type == STREAM and not method.queue:
        raise ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED,
            "Cannot declare a server-named queue for type rabbit_stream_queue",
        )
    for is_requested, property_name in (
        (not method.durable, "non-durable"),
        (method.exclusive, "exclusive-owner"),
        (method.auto_delete, "auto-delete"),
    ):
        if is_requested and property_name in PROPERTIES_REFUSED.get(rules.queue_type, ()):
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED, f"invalid property '{property_name}' for {where}"
            )
    if rules.dead_letter_exchange is not None:
        check_permission(state, actor, "read", "queue", name)
        check_permission(state, actor, "write", "exchange", rules.dead_letter_exchange)
    owner = actor.owner if method.exclusive else None
    durable = method.durable and not method.exclusive
    queue = make_queue(
        state,
        actor.vhost,
        name,
        durable=durable,
        auto_delete=method.auto_delete,
        owner=owner,
        arguments=method.arguments,
        rules=rules,
        lines=queue_type_of(rules).new_lines(state, rules, durable=durable),
        stored={},
    )
    queue.declared_durable = method.durable
    actor.vhost.changed()
    if owner is not None:
        owner.owned.add(queue)
    if durable:
        define_queue(state, actor.vhost, queue)
    return queue


def _check_equivalent(actor: Principal, queue: Queue, method: QueueDeclare) -> None:
    if queue.owner is not (actor.owner if method.exclusive else None):
        raise locked(queue)
    where = queue.where
    if method.durable != queue.declared_durable:
        raise inequivalent("durable", where, method.durable, queue.declared_durable)
    if method.auto_delete != queue.auto_delete:
        raise inequivalent("auto_delete", where, method.auto_delete, queue.auto_delete)
    rules = QueueArguments.parse(method.arguments, where=where)
    if rules.queue_type != queue.rules.queue_type:
        raise inequivalent("x-queue-type", where, rules.queue_type, queue.rules.queue_type)
    if group_header(rules.kind) != group_header(queue.rules.kind):
        raise inequivalent("x-group-header", where, group_header(rules.kind), group_header(queue.rules.kind))
    same_arguments(method.arguments, queue.arguments, names=COMPARED, where=where)
