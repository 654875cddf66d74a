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
    engine: Engine, connection: pika.BlockingConnection, unique: str, what: str
) -> None:
    action, expected = ACTIONS[what]
    refused = refusal(lambda: action(connection.channel(), unique))
    assert refused == (None if engine.name == "rabbitmq" else expected)
    if refused is None:
        connection.channel().queue_delete(unique)


def test_a_requeued_message_over_the_limit_is_dropped_by_rabbitmq_though_a_consumer_waits_for_it(
    engine: Engine, channel: BlockingChannel, unique: str
) -> None:
    """The embedded broker hands it out instead: what somebody can take need not be lost."""
    channel.queue_declare(unique, exclusive=True, arguments={"x-max-length": 1})
    inbox = Inbox(channel, unique)
    for number in range(3):
        channel.basic_publish("", unique, b"%d" % number)
    inbox.wait(3)
    channel.basic_nack(0, multiple=True)
    inbox.wait(4)
    inbox.stays_at(6)
    assert inbox.bodies[3:] == {"rabbitmq": [b"2"], "embedded": [b"0", b"1", b"2"]}[engine.name]
    assert drain(channel, unique) == []


def test_a_quorum_queue_without_a_delivery_limit_requeues_at_its_tail_before_4_3(
    engine: Engine, channel: BlockingChannel, unique: str
) -> None:
    """Requeueing would lose order: so a member settles by ack or by closing its channel.

    What a limit changes in that is in tests/rabbitmq/test_facts_of_counting.py.
    """
    unlimited = {"x-queue-type": "quorum"} | ({"x-delivery-limit": -1} if engine.is_4 else {})
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
    is_in_front = engine.name == "embedded" or engine.is_4_3
    assert inbox.bodies == ([b"0", b"0", b"1", b"2"] if is_in_front else [b"0", b"1", b"2", b"0"])
    channel.queue_delete(unique)


def test_direct_reply_to_is_refused_in_words(engine: Engine, channel: BlockingChannel) -> None:
    if engine.name == "rabbitmq":
        Inbox(channel, "amq.rabbitmq.reply-to", auto_ack=True)
        return
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        Inbox(channel, "amq.rabbitmq.reply-to", auto_ack=True)
    assert refused.value.reply_code == 406
    assert "direct reply-to is not supported" in refused.value.reply_text
