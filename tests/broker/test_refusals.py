"""Refusals of the broker, with their codes and texts, and the state after them."""

from typing import Any

import pytest

from lbg_broker.core.permissions import Open, Permission
from lbg_core.amqp.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicReject,
    ChannelCloseOk,
    ChannelFlow,
    ChannelOpenOk,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    QueueUnbindOk,
    TxSelect,
)
from testing.broker_core.world import World


def refused(world: World, method: Method, **capabilities: bool) -> tuple[int, str] | None:
    client = world.client(**capabilities)
    client.say(method)
    world.commit()
    return client.refusal


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (QueueDeclare("none", True), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (QueuePurge("none"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (BasicConsume("none"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (BasicGet("none"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        *(
            (
                method,
                406,
                "PRECONDITION_FAILED - direct reply-to is not supported: declare a queue for replies and name it in "
                "place of 'amq.rabbitmq.reply-to'",
            )
            for method in (
                BasicConsume("amq.rabbitmq.reply-to", no_ack=True),
                BasicGet("amq.rabbitmq.reply-to"),
                QueueDeclare("amq.rabbitmq.reply-to", True),
            )
        ),
        (QueueBind("none", "amq.topic"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (QueueBind("q", "none"), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (QueueBind(""), 404, "NOT_FOUND - no previously declared queue"),
        (ExchangeDeclare("none", passive=True), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (QueueBind("q", ""), 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (
            ExchangeBind("", "amq.topic"),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            ExchangeBind("amq.topic", ""),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (ExchangeDelete(""), 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (
            ExchangeDelete("amq.topic"),
            403,
            "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed",
        ),
        (
            QueueDeclare("amq.mine"),
            403,
            "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        (
            ExchangeDeclare("amq.mine"),
            403,
            "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        (
            QueueDeclare("q"),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but "
            "current is 'true'",
        ),
        (
            QueueDeclare("q", durable=True, arguments={"x-max-length": 5}),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value "
            "'5' of type 'signedint' but current is none",
        ),
        (
            QueueDeclare("q", durable=True, arguments={"x-single-active-consumer": True}),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'q' in vhost '/': received "
            "the value 'true' of type 'bool' but current is none",
        ),
        (
            ExchangeDeclare("amq.topic", "direct", durable=True),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.topic' in vhost '/': received 'direct' "
            "but current is 'topic'",
        ),
        (BasicAck(7), 406, "PRECONDITION_FAILED - unknown delivery tag 7"),
        (BasicAck(7, True), 406, "PRECONDITION_FAILED - unknown delivery tag 7"),
        (BasicNack(1), 406, "PRECONDITION_FAILED - unknown delivery tag 1"),
        (BasicReject(1), 406, "PRECONDITION_FAILED - unknown delivery tag 1"),
        (QueueDelete("q", if_empty=True), 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"),
        (QueueDelete("q", if_unused=True), 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"),
        (
            QueueDeclare("new", arguments={"x-max-priority": 1}),
            406,
            "PRECONDITION_FAILED - arg 'x-max-priority' for queue 'new' in vhost '/' is not supported",
        ),
        (
            QueueDeclare("new", durable=True, arguments={"x-queue-type": "jms"}),
            406,
            "PRECONDITION_FAILED - arg 'x-queue-type' for queue 'new' in vhost '/' is not supported: 'jms' "
            "is not one of classic, quorum, partitioned, sessions, stream",
        ),
        (
            QueueDeclare("new", arguments={"x-max-length": -1}),
            406,
            "PRECONDITION_FAILED - invalid arg 'x-max-length' for queue 'new' in vhost '/': -1 is less than 0",
        ),
        (
            QueueDeclare("new", exclusive=True, durable=True, arguments={"x-queue-type": "quorum"}),
            406,
            "PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue 'new' in vhost '/'",
        ),
        (
            BasicConsume("q", "c", arguments={"x-priority": 1}),
            406,
            "PRECONDITION_FAILED - arg 'x-priority' for consumer 'c' of queue 'q' in vhost '/' is not supported",
        ),
        (BasicConsume("q", exclusive=True), 403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"),
        (TxSelect(), 540, "NOT_IMPLEMENTED - method tx.select"),
        (BasicQos(1, 1), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)"),
        (BasicRecover(False), 540, "NOT_IMPLEMENTED - requeue=false"),
        (ChannelFlow(False), 540, "NOT_IMPLEMENTED - active=false"),
        (
            ExchangeDeclare("h", "headers"),
            540,
            "NOT_IMPLEMENTED - exchange type 'headers' of exchange 'h' in vhost '/'",
        ),
        (ExchangeDeclare("h", "odd"), 503, "COMMAND_INVALID - unknown exchange type 'odd'"),
    ],
    ids=lambda value: value.NAME if isinstance(value, Method) else "",
)
def test_a_refusal_has_the_code_and_the_text_clients_know(method: Method, code: int, text: str) -> None:
    world = World()
    owner = world.client()
    owner.queue("q")
    owner.publish(b"x", b"y")
    owner.consume("q", prefetch=1)
    assert refused(world, method) == (code, text)
    assert world.queue("q").messages_ready == 1


def test_another_connections_exclusive_queue_is_locked_for_everything() -> None:
    world = World()
    owner = world.client()
    owner.queue("mine", exclusive=True, durable=False)
    text = (
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )
    for method in (
        QueueDeclare("mine", exclusive=True),
        QueueDeclare("mine", True),
        QueueDeclare("mine"),
        QueueBind("mine", "amq.topic"),
        QueueUnbind("mine", "amq.topic"),
        QueuePurge("mine"),
        QueueDelete("mine"),
        BasicConsume("mine"),
        BasicGet("mine"),
    ):
        assert refused(world, method) == (405, text), method.NAME
    owner.lose()
    assert refused(world, QueueDeclare("mine", exclusive=True)) is None


def test_an_exclusive_queue_is_free_the_moment_its_owner_is_gone() -> None:
    world = World()
    owner, heir = world.client(), world.client()
    owner.queue("index.0", exclusive=True, durable=False)
    owner.lose()
    assert heir.ask(QueueDeclare("index.0", exclusive=True), QueueDeclareOk).message_count == 0


def test_reusing_a_consumer_tag_closes_the_connection() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.consume(tag="c")
    client.consume(tag="c")
    assert client.refusal == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'")
    assert world.broker.state.connections == {}


def test_a_refused_command_gives_back_what_its_channel_held_and_leaves_other_channels_alone() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.open(2)
    client.publish(b"a", b"b")
    client.consume(prefetch=1)
    client.consume(channel=2, tag="other", prefetch=1)
    client.take()
    client.ack(99)
    assert [delivery.body for delivery in client.take()] == []
    client.ack(1, channel=2)
    world.commit()
    (delivery,) = client.take()
    assert (delivery.body, delivery.redelivered, delivery.consumer_tag) == (b"a", True, "other")
    client.say(ChannelCloseOk())
    client.open(1)
    assert client.said(ChannelOpenOk) == [ChannelOpenOk(), ChannelOpenOk()]


def test_unbinding_what_is_not_bound_is_no_error() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.ask(QueueUnbind("q", "amq.topic", "nothing"), QueueUnbindOk)
    client.ask(QueueUnbind("q", "missing", "nothing"), QueueUnbindOk)


def test_the_old_access_request_is_answered() -> None:
    world = World()
    assert world.client().ask(AccessRequest(), AccessRequestOk).ticket == 1


class Only(Open):
    """An authority that allows a list of things, and its administrator everything."""

    def __init__(self, *allowed: tuple[str, str]) -> None:
        self.allowed = set(allowed)

    def can(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        return user == "admin" or (permission, name) in self.allowed


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        (QueueDeclare("q", durable=True), [("configure", "q")]),
        (QueueDelete("q"), [("configure", "q")]),
        (QueuePurge("q"), [("read", "q")]),
        (BasicConsume("q"), [("read", "q")]),
        (BasicGet("q"), [("read", "q")]),
        (QueueBind("q", "amq.topic"), [("write", "q"), ("read", "amq.topic")]),
        (QueueUnbind("q", "amq.topic"), [("write", "q"), ("read", "amq.topic")]),
        (ExchangeDeclare("e"), [("configure", "e")]),
        (ExchangeDelete("e"), [("configure", "e")]),
        (
            ExchangeDeclare("e", arguments={"alternate-exchange": "a"}),
            [("configure", "e"), ("read", "e"), ("write", "a")],
        ),
        (
            QueueDeclare("new", arguments={"x-dead-letter-exchange": "d"}),
            [("configure", "new"), ("read", "new"), ("write", "d")],
        ),
        (BasicPublish("amq.topic"), [("write", "amq.topic")]),
        (BasicPublish(""), [("write", "")]),
    ],
    ids=lambda value: value.NAME if isinstance(value, Method) else "",
)
def test_a_command_needs_each_of_its_permissions(method: Method, needed: list[tuple[str, str]]) -> None:
    for missing in [None, *needed]:
        authority = Only(*(permission for permission in needed if permission != missing))
        world = World(authority)
        world.administer(QueueDeclare("q", durable=True))
        world.commit()
        client = world.client()
        if isinstance(method, BasicPublish):
            client.publish(b"x", exchange=method.exchange)
        else:
            client.say(method)
        world.commit()
        assert client.refusal == _expected(missing), (method, missing)


def _expected(missing: Any) -> tuple[int, str] | None:
    if missing is None:
        return None
    name = missing[1]
    kind = "queue" if name in ("q", "new") else "exchange"
    return (
        403,
        f"ACCESS_REFUSED - access to {kind} '{name or 'amq.default'}' in vhost '/' refused for user 'guest'",
    )


def test_a_permission_taken_away_counts_for_the_next_publish() -> None:
    authority = Only(("write", ""), ("configure", "q"))
    world = World(authority)
    client = world.client()
    client.queue()
    client.publish(b"x")
    authority.allowed.discard(("write", ""))
    authority.generation += 1
    client.publish(b"y")
    assert client.refusal is not None
    assert client.refusal[0] == 403
    assert world.queue().messages_ready == 1
