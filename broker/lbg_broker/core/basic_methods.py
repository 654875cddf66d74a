"""basic.publish, basic.consume, basic.cancel, basic.get and basic.qos."""

from __future__ import annotations

from dataclasses import replace

from lbg_broker.core.arguments import ArgumentReader
from lbg_broker.core.dead_letter import dead_letter, enforce_limit, expire_messages, renew_lease
from lbg_broker.core.effects import SendContent
from lbg_broker.core.entities import Channel, Consumer, Queue, Route
from lbg_broker.core.errors import ChannelRefusal, ConnectionRefusal
from lbg_broker.core.message import Origin
from lbg_broker.core.queue_methods import remove_queue
from lbg_broker.core.resources import (
    DIRECT_REPLY_TO,
    check_owner,
    check_permission,
    find_exchange,
    find_queue,
    no_direct_reply_to,
    queue_name,
)
from lbg_broker.core.state import State
from lbg_core.amqp import PublishEvent, ReplyCode
from lbg_core.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicCapacity,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicReturn,
)


def consume(state: State, channel: Channel, method: BasicConsume) -> None:
    """basic.consume: add a consumer behind those the queue has."""
    tag = method.consumer_tag or f"amq.ctag-{state.new_token()}"
    if tag in channel.consumers:
        raise ConnectionRefusal(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    name = queue_name(channel, method.queue)
    check_permission(state, channel, "read", "queue", name)
    queue = find_queue(channel, name)
    check_owner(channel, queue)
    others = queue.policy.consumers
    if queue.spool.keeps_messages:
        pass  # each reads for itself: RabbitMQ ignores `exclusive` there, which would shut others out
    elif (method.exclusive and (others or queue.rules.single_active_consumer)) or any(
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
        prefetch_bytes=channel.prefetch_bytes,
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
    """basic.cancel: no further deliveries; unacknowledged ones stay with the channel."""
    consumer = channel.consumers.get(method.consumer_tag)
    if consumer is not None:
        remove_consumer(state, consumer)
    state.reply(channel, BasicCancelOk(method.consumer_tag), nowait=method.nowait)


def capacity(state: State, channel: Channel, method: BasicCapacity) -> None:
    """basic.capacity: how many groups a consumer works on at a time. One that is gone meanwhile is none's."""
    if method.groups < 1:
        raise ChannelRefusal(ReplyCode.PRECONDITION_FAILED, "basic.capacity must be of at least 1 group")
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
    check_permission(state, channel, "read", "queue", name)
    queue = find_queue(channel, name)
    check_owner(channel, queue)
    if not queue.policy.supports_get:
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
    """basic.qos, with RabbitMQ's meaning of global: false for each consumer made later, true for the channel.

    A prefetch size is refused as RabbitMQ does, unless the client announced that it reckons with one.
    """
    if method.prefetch_size and not channel.connection.byte_credit:
        raise ConnectionRefusal(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.prefetch_total = method.prefetch_count
        channel.prefetch_bytes_total = method.prefetch_size
        for consumer in channel.consumers.values():
            state.make_due(consumer.queue)
    else:
        channel.prefetch = method.prefetch_count
        channel.prefetch_bytes = method.prefetch_size
    state.send(channel, BasicQosOk())


# Property flags that mean work (AMQP 0-9-1 section 4.2.6.1): the first octet's last bits are reply-to and expiration,
# and in the second octet user-id.
REPLY_TO = 0x02
EXPIRATION = 0x01
USER_ID = 0x10

_DIRECT_REPLY_TO = DIRECT_REPLY_TO.encode()


def publish(state: State, channel: Channel, event: PublishEvent) -> None:
    """Carry out one basic.publish.

    A confirm is sent at the end of this turn when nothing waits for the disk, else with the batch.
    """
    vhost = channel.vhost
    if channel.routes_generation != vhost.generation:
        channel.routes.clear()
        channel.routes_generation = vhost.generation
    route = channel.routes.get((event.exchange, event.routing_key))
    if route is None:
        route = _route(state, channel, event)
    header = event.header
    if (
        header[0] & EXPIRATION
        or header[1] & USER_ID
        or event.immediate
        or (header[0] & REPLY_TO and _DIRECT_REPLY_TO in header)
    ):
        _check(channel, event)
    if b"\x02CC" in header or b"\x03BCC" in header:
        route, header = _with_copies(channel, route, event)
    state.counters.published += 1
    refused = False
    if route.plain:
        origin, body = route.origin, event.body
        for queue in route.queues:
            queue.append(origin, header, body)
            if not queue.due:
                state.make_due(queue)
    else:
        refused = _append_limited(state, channel, route, header, event.body)
    if not route.queues:
        _unroutable(state, channel, event)
    if channel.confirms:
        channel.published += 1
        if refused:
            state.send(channel, BasicNack(channel.published, False, False))
        elif route.durable:
            pending = state.pending
            promised = pending.letters if route.origin.place else pending.confirms
            promised[channel] = channel.waiting = channel.published
        else:
            if not channel.instant:
                state.confirming.append(channel)
            channel.instant.append(channel.published)
    if state.blocked_reason is not None:
        _block_publisher(state, channel, route)


def _block_publisher(state: State, channel: Channel, route: Route) -> None:
    """Blocks a connection whose publish needs room. What needs neither disk nor more memory is accepted, so members
    find each other and backlogs move."""
    if route.origin.place and not state.letters_wait:
        return
    if route.durable or any(line.overflows for queue in route.queues for line in queue.lines):
        state.block(channel.connection)


def confirm_instantly(state: State) -> None:
    """Confirm what was published in this turn and waits for nothing."""
    channels, state.confirming = state.confirming, []
    for channel in channels:
        tags, channel.instant = channel.instant, []
        if channel.closing or not tags:
            continue
        if channel.waiting == 0:
            # Everything before the last one is confirmed or refused already, so it may stand for all.
            state.send(channel, BasicAck(tags[-1], len(tags) > 1))
        else:
            for tag in tags:
                state.send(channel, BasicAck(tag, False))


def _route(state: State, channel: Channel, event: PublishEvent) -> Route:
    """The route of a publish this channel has not made before, or not since something changed."""
    vhost = channel.vhost
    # First, as RabbitMQ does: who may not publish is not told which exchanges there are.
    check_permission(state, channel, "write", "exchange", event.exchange)
    exchange = find_exchange(channel, event.exchange)
    if exchange.internal:
        raise ChannelRefusal(
            ReplyCode.ACCESS_REFUSED,
            f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost.name}'",
        )
    route = vhost.route(exchange, event.routing_key)
    if len(channel.routes) >= ROUTES_MAX:
        channel.routes.clear()
    channel.routes[event.exchange, event.routing_key] = route
    return route


ROUTES_MAX = 4096
"""Routes remembered per channel."""


def _check(channel: Channel, event: PublishEvent) -> None:
    """Refuse what would otherwise be ignored in silence."""
    if event.immediate:
        raise ConnectionRefusal(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
    properties = event.properties
    if properties.expiration is not None:
        raise ChannelRefusal(ReplyCode.PRECONDITION_FAILED, "property 'expiration' is not supported")
    if properties.reply_to == DIRECT_REPLY_TO:
        raise no_direct_reply_to()
    user = channel.connection.user
    if properties.user_id is not None and properties.user_id != user:
        raise ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED,
            f"user_id property set to '{properties.user_id}' but authenticated user was '{user}'",
        )


def _with_copies(channel: Channel, route: Route, event: PublishEvent) -> tuple[Route, bytes]:
    """The route of a publish that may name further keys in its CC and BCC headers, and its header without BCC
    (RabbitMQ's «Sender-Selected Distribution»)."""
    headers = dict(event.headers)
    exchange = channel.vhost.exchanges[event.exchange]
    queues = dict.fromkeys(route.queues)
    hidden: tuple[str, ...] = ()
    for name in ("CC", "BCC"):
        keys = headers.get(name, [])
        if not isinstance(keys, list) or not all(isinstance(key, str) and _fits(key) for key in keys):
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED, f"header '{name}' is not a list of routing keys"
            )
        hidden = tuple(keys)
        for key in keys:
            queues.update(dict.fromkeys(channel.vhost.route(exchange, key).queues))
    origin, header = route.origin, event.header
    if headers.pop("BCC", None) is not None:
        header = replace(event.properties, headers=headers).encode()
        origin = Origin.of(origin.exchange, origin.routing_key, hidden)
    return Route.to(origin, tuple(queues)), header


def _fits(key: str) -> bool:
    """True if a routing key fits a short string."""
    return len(key.encode("utf-8", "surrogateescape")) <= 255


def _append_limited(state: State, channel: Channel, route: Route, header: bytes, body: bytes) -> bool:
    """Append where a queue has a limit; whether any refused."""
    refused = False
    for queue in route.queues:
        if queue.limited and not _admits(state, channel, queue, route.origin, header, body):
            refused = True
            continue
        queue.append(route.origin, header, body)
        state.make_due(queue)
        if queue.limited:
            enforce_limit(state, queue)
    return refused


def _admits(state: State, channel: Channel, queue: Queue, origin: Origin, header: bytes, body: bytes) -> bool:
    """True if a queue takes this message; with drop-head it does unless it is shut."""
    if not queue.shut and (queue.rules.overflow == "drop-head" or not queue.rules.limited):
        return True
    if queue not in channel.fenced and not queue.shut:
        size = len(body)
        if not queue.is_full_for(size):
            return True
        if queue.due:  # what waits may be on its way out
            state.dispatch()
            if not queue.is_full_for(size):
                return True
        if queue.has_idle_consumer():
            return True
    if channel.confirms and channel.connection.ordered_refusal:
        channel.fenced.add(queue)
    state.counters.refused += 1
    if queue.rules.overflow == "reject-publish-dlx":
        dead_letter(state, queue, origin, header, body, reason="maxlen")
    return False


def _unroutable(state: State, channel: Channel, event: PublishEvent) -> None:
    state.counters.unroutable += 1
    if event.mandatory:
        method = BasicReturn(ReplyCode.NO_ROUTE, "NO_ROUTE", event.exchange, event.routing_key)
        state.emit(channel.connection, SendContent(channel.number, method, event.header, event.body))
