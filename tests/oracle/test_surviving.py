"""State of a killed broker after its restart."""

from __future__ import annotations

from functools import partial

import pika
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.engines import Engine, Inbox, drain, eventually, pump, refusal

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_confirmed_messages_their_order_and_the_topology_survive_a_crash(engine: Engine, unique: str) -> None:
    with engine.connected() as connection:
        channel = connection.channel()
        _declare(channel, unique)
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish(unique, f"{unique}.0.key", b"%d" % number, PERSISTENT)
        channel.basic_publish(unique, "elsewhere", b"unrouted", PERSISTENT)
        for _ in range(10):
            method, _, _ = channel.basic_get(f"{unique}.q")
        channel.basic_ack(4, multiple=True)  # of ten messages that are out
        assert method.delivery_tag == 10
        assert eventually(lambda: _count(channel, f"{unique}.q") == 40)
        channel.queue_declare(f"{unique}.transient", durable=False)
        channel.exchange_declare(f"{unique}.transient", "topic", durable=False)
        channel.queue_declare(f"{unique}.mine", exclusive=True)
        user = engine.add_user(unique, read=f"^{unique}")

        engine.crash_and_start()

    with engine.connected() as connection:
        channel = connection.channel()
        for missing in ("transient", "mine"):
            declare = partial(connection.channel().queue_declare, f"{unique}.{missing}", passive=True)
            refused = refusal(declare)
            assert refused == ("channel", 404, "NOT_FOUND")
        gone = refusal(lambda: connection.channel().exchange_declare(f"{unique}.transient", passive=True))
        if engine.is_4_3:  # Khepri keeps it, durable or not
            assert gone is None
            connection.channel().exchange_delete(f"{unique}.transient")
        else:
            assert gone == ("channel", 404, "NOT_FOUND")
        _declare(channel, unique)  # the very same, so nothing of it has changed
        channel.confirm_delivery()
        channel.basic_publish(unique, f"{unique}.0.key", b"50", PERSISTENT)
        inbox = Inbox(channel, f"{unique}.q")
        assert pump(channel, lambda: inbox.bodies[-1:] == [b"50"])
        first = int(inbox.bodies[0])
        assert first <= 4  # an ack is a promise to the broker, not by it: RabbitMQ may forget the last few
        assert inbox.bodies == [b"%d" % number for number in range(first, 51)]
        assert inbox.redelivered[-1] is False
        assert drain(channel, f"{unique}.unrouted") == [b"unrouted"]
    with engine.connected(user) as connection:
        assert drain(connection.channel(), f"{unique}.unrouted") == []
    _delete(engine, unique)


def _declare(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(f"{unique}.unrouted", "fanout", durable=True)
    channel.queue_declare(f"{unique}.unrouted", durable=True)
    channel.queue_bind(f"{unique}.unrouted", f"{unique}.unrouted", "")
    arguments = {"alternate-exchange": f"{unique}.unrouted"}
    channel.exchange_declare(unique, "topic", durable=True, arguments=arguments)
    limits = {
        "x-single-active-consumer": True,
        "x-max-length-bytes": 1_000_000,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": f"{unique}.unrouted",
    }
    channel.queue_declare(f"{unique}.q", durable=True, arguments=limits)
    channel.queue_bind(f"{unique}.q", unique, f"{unique}.0.#")


def _delete(engine: Engine, unique: str) -> None:
    with engine.connected() as connection:
        channel = connection.channel()
        for name in ("q", "unrouted"):
            channel.queue_delete(f"{unique}.{name}")
        for name in (unique, f"{unique}.unrouted"):
            channel.exchange_delete(name)
    engine.ask("DELETE", f"/users/{unique}")


def _count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)
