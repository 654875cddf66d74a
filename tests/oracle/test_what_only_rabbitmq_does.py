"""What the embedded broker does not do, it refuses with the reason: an ignored wish would be a broken promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support.engines import Engine, refusal

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
    "message time to live": (declare(x_message_ttl=1000), UNSUPPORTED),
    "queue time to live": (declare(x_expires=1000), UNSUPPORTED),
    "message priorities": (declare(x_max_priority=5), UNSUPPORTED),
    "streams": (declare(x_queue_type="stream"), UNSUPPORTED),
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
