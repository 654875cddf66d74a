"""Differences of the two brokers, with their reasons.

What the embedded broker does not do, it refuses with the reason: an ignored wish would be a broken promise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.engines import Engine, Inbox, drain, refusal

Action = Callable[[BlockingChannel, str], Any]
UNSUPPORTED = ("channel", 406, "PRECONDITION_FAILED")


def declare(**arguments: Any) -> Action:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return lambda channel, name: channel.queue_declare(name, durable=True, arguments=named)


def publish_expiring(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration="1000"))


def consume_with_priority(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, auto_delete=True)
    channel.basic_consume(name, print, arguments={"x-priority": 5})


ACTIONS: dict[str, tuple[Action, tuple[str, int, str]]] = {
    "message priorities": (declare(x_max_priority=5), UNSUPPORTED),
    "an argument nobody knows": (declare(x_nobody_knows=1), UNSUPPORTED),
    "expiring messages": (publish_expiring, UNSUPPORTED),
    "consumer priorities": (consume_with_priority, UNSUPPORTED),
    "headers exchanges": (
        lambda channel, name: channel.exchange_declare(name, "headers"),
        ("connection", 540, "NOT_IMPLEMENTED"),
    ),
    "transactions": (lambda channel, _name: channel.tx_select(), ("connection", 540, "NOT_IMPLEMENTED")),
}


@pytest.mark.parametrize("what", ACTIONS)
def test_it_is_refused_and_never_ignored(
    rabbit_engine: Engine, embedded_engine: Engine, unique: str, what: str
) -> None:
    action, expected = ACTIONS[what]
    with rabbit_engine.connected() as connection:
        channel = connection.channel()
        assert refusal(lambda: action(channel, unique)) is None
        connection.channel().queue_delete(unique)
    with embedded_engine.connected() as connection:
        channel = connection.channel()
        assert refusal(lambda: action(channel, unique)) == expected


def test_a_requeued_message_over_the_limit_is_dropped_by_rabbitmq_though_a_consumer_waits_for_it(
    rabbit_engine: Engine, embedded_engine: Engine, unique: str
) -> None:
    """The embedded broker hands it out instead: what somebody can take need not be lost."""
    found = {}
    for engine in (rabbit_engine, embedded_engine):
        with engine.connected() as connection:
            channel = connection.channel()
            channel.queue_declare(unique, exclusive=True, arguments={"x-max-length": 1})
            inbox = Inbox(channel, unique)
            for number in range(3):
                channel.basic_publish("", unique, b"%d" % number)
            inbox.wait(3)
            channel.basic_nack(0, multiple=True)
            inbox.wait(4)
            inbox.stays_at(6)
            found[engine.name] = inbox.bodies[3:]
            assert drain(channel, unique) == []
    assert found == {"rabbitmq": [b"2"], "embedded": [b"0", b"1", b"2"]}


def test_a_quorum_queue_without_a_delivery_limit_requeues_at_its_tail_before_4_3(
    rabbit_engine: Engine, embedded_engine: Engine, unique: str
) -> None:
    """Requeueing would lose order: so a member settles by ack or by closing its channel.

    What a limit changes in that is in tests/rabbitmq/test_facts_of_counting.py.
    """
    unlimited = {"x-queue-type": "quorum"} | ({"x-delivery-limit": -1} if rabbit_engine.is_4 else {})
    found = {}
    for engine in (rabbit_engine, embedded_engine):
        with engine.connected() as connection:
            channel = connection.channel()
            channel.queue_declare(unique, durable=True, arguments=unlimited)
            for number in range(3):
                channel.basic_publish("", unique, b"%d" % number)
            channel.basic_qos(prefetch_count=1)
            inbox = Inbox(channel, unique)
            inbox.wait(1)
            channel.basic_nack(inbox.tags[0])
            for count in (2, 3, 4):
                inbox.wait(count)
                channel.basic_ack(inbox.tags[-1])
            found[engine.name] = inbox.bodies
            channel.queue_delete(unique)
    at_front, at_tail = [b"0", b"0", b"1", b"2"], [b"0", b"1", b"2", b"0"]
    assert found == {"rabbitmq": at_front if rabbit_engine.is_4_3 else at_tail, "embedded": at_front}


def test_direct_reply_to_is_refused_in_words(rabbit_engine: Engine, embedded_engine: Engine) -> None:
    with rabbit_engine.connected() as connection:
        Inbox(connection.channel(), "amq.rabbitmq.reply-to", auto_ack=True)
    with (
        embedded_engine.connected() as connection,
        pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused,
    ):
        Inbox(connection.channel(), "amq.rabbitmq.reply-to", auto_ack=True)
    assert refused.value.reply_code == 406
    assert "direct reply-to is not supported" in refused.value.reply_text
