"""basic.consume, basic.cancel, basic.get, basic.qos."""

from lbg_broker.amqp import ReplyCode
from lbg_broker.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicCapacity,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicQos,
    BasicQosOk,
)
from lbg_broker.server.core.channel import Channel
from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.effects import SendContent
from lbg_broker.server.core.errors import ChannelRefusal, ConnectionRefusal
from lbg_broker.server.core.expiry import expire_messages, renew_lease
from lbg_broker.server.core.naming import check_owner, find_queue, queue_name, require
from lbg_broker.server.core.queueing import remove_queue
from lbg_broker.server.core.reading_arguments import ArgumentReader
from lbg_broker.server.core.state import State

__all__ = ["cancel", "capacity", "consume", "get", "qos", "remove_consumer"]


def consume(state: State, channel: Channel, method: BasicConsume) -> None:
    """basic.consume: add a consumer behind those the queue has."""
    tag = method.consumer_tag or f"amq.ctag-{state.new_token()}"
    if tag in channel.consumers:
        raise ConnectionRefusal(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    name = queue_name(channel, method.queue)
    require(state, channel, "read", "queue", name)
    queue = find_queue(channel, name)
    check_owner(channel, queue)
    others = queue.policy.consumers
    if (method.exclusive and (others or queue.rules.single_active_consumer)) or any(
        other.exclusive for other in others
    ):
        raise ChannelRefusal(ReplyCode.ACCESS_REFUSED, f"{queue.where} in exclusive use")
    consumer = Consumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        prefetch=channel.prefetch,
        arguments=dict(method.arguments),
    )
    arguments = ArgumentReader(method.arguments, f"consumer '{tag}' of {queue.where}")
    arguments.flag("x-cancel-on-ha-failover")  # a node fails over to nowhere: there is nothing to cancel on
    queue.policy.admit(consumer, arguments)
    arguments.finish()
    channel.consumers[tag] = consumer
    queue.policy.add(consumer)
    queue.attend()
    state.make_due(queue)
    state.reply(channel, BasicConsumeOk(tag), nowait=method.nowait)


def cancel(state: State, channel: Channel, method: BasicCancel) -> None:
    """basic.cancel: no further deliveries; what is given out stays with the channel."""
    consumer = channel.consumers.get(method.consumer_tag)
    if consumer is not None:
        remove_consumer(state, consumer)
    state.reply(channel, BasicCancelOk(method.consumer_tag), nowait=method.nowait)


def capacity(state: State, channel: Channel, method: BasicCapacity) -> None:
    """basic.capacity: how many groups a consumer works on at a time. One that is gone meanwhile is none's."""
    if method.groups < 1:
        raise ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED, "basic.capacity of 0 groups: at least 1 is worked on"
        )
    consumer = channel.consumers.get(method.consumer_tag)
    if consumer is not None:
        consumer.queue.policy.resize(consumer, method.groups)
        state.make_due(consumer.queue)


def remove_consumer(state: State, consumer: Consumer) -> None:
    """Take a consumer off its queue and channel; the next in line takes over, or an auto-delete queue goes."""
    queue = consumer.queue
    del consumer.channel.consumers[consumer.tag]
    queue.policy.remove(consumer)
    queue.attend()
    state.make_due(queue)
    if not queue.policy.consumers:
        renew_lease(state, queue)
    if queue.auto_delete and not queue.policy.consumers and not queue.spool.dropped:
        remove_queue(state, queue)


def get(state: State, channel: Channel, method: BasicGet) -> None:
    """basic.get: one message, or none. When the head of the queue must first be read, the channel waits."""
    name = queue_name(channel, method.queue)
    require(state, channel, "read", "queue", name)
    queue = find_queue(channel, name)
    check_owner(channel, queue)
    if not queue.policy.takes_get:
        kind = queue.rules.kind.kind if queue.rules.kind is not None else "plain"
        raise ConnectionRefusal(
            ReplyCode.NOT_IMPLEMENTED, f"basic.get not supported by {kind} queues {queue.where}"
        )
    renew_lease(state, queue)
    expire_messages(state, queue)
    messages, redelivered = queue.spool.take(1)
    if not messages:
        if queue.spool.awaits_store:
            state.retry(channel, method)
        else:
            state.send(channel, BasicGetEmpty())
        return
    message = messages[0]
    tag = channel.next_tag
    channel.next_tag += 1
    state.counters.delivered += 1
    if method.no_ack:
        queue.spool.settle(message)
    else:
        channel.unsettled[tag] = (queue.spool, message, None)
    origin = message.origin
    answer = BasicGetOk(tag, redelivered > 0, origin.exchange, origin.routing_key, queue.messages_ready)
    state.emit(channel.connection, SendContent(channel.number, answer, message.header, message.body))


def qos(state: State, channel: Channel, method: BasicQos) -> None:
    """basic.qos, with RabbitMQ's meaning of global: false for each consumer made later, true for the channel."""
    if method.prefetch_size:
        raise ConnectionRefusal(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.prefetch_total = method.prefetch_count
        for consumer in channel.consumers.values():
            state.make_due(consumer.queue)
    else:
        channel.prefetch = method.prefetch_count
    state.send(channel, BasicQosOk())
