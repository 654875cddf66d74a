"""x-message-ttl and x-expires: what waits too long goes, and so does what nobody uses."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.engines import Engine, Inbox, drain, eventually, refusal

GONE = ("channel", 404, "NOT_FOUND")
SHORT_MS, LONG_MS = 200, 600_000


def waiting(channel: BlockingChannel, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_expire_in_order_into_the_dead_letters(
    channel: BlockingChannel, unique: str, kind: str
) -> None:
    dead, arguments = f"{unique}.dead", {"x-queue-type": kind, "x-message-ttl": SHORT_MS}
    channel.queue_declare(dead, exclusive=True)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(unique, durable=True, arguments={**arguments, **letters})
    channel.queue_declare(unique, durable=True, arguments={**arguments, **letters})
    inbox = Inbox(channel, dead, auto_ack=True)
    for number in range(10):
        channel.basic_publish("", unique, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    assert inbox.wait(10) == [b"%d" % number for number in range(10)]
    _, properties, _ = inbox.deliveries[0]
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("expired", unique, 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [unique])
    assert properties.headers["x-first-death-reason"] == "expired"
    channel.queue_delete(unique)


def test_what_is_held_expires_when_it_comes_back(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, exclusive=True, arguments={"x-message-ttl": SHORT_MS})
    inbox = Inbox(channel, unique)
    for body in (b"0", b"1"):
        channel.basic_publish("", unique, body)
    inbox.wait(2)
    channel.basic_cancel(inbox.tag)
    channel.connection.sleep(SHORT_MS * 2 / 1000)
    channel.basic_nack(inbox.tags[1])
    assert eventually(lambda: waiting(channel, unique) == 0)
    channel.basic_ack(inbox.tags[0])  # it is still there to be acknowledged
    assert drain(channel, unique) == []


def test_without_any_time_only_a_consumer_that_waits_gets_it(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, exclusive=True, arguments={"x-message-ttl": 0})
    channel.basic_publish("", unique, b"nobody")
    assert drain(channel, unique) == []
    inbox = Inbox(channel, unique, auto_ack=True)
    channel.basic_publish("", unique, b"somebody")
    assert inbox.wait(1) == [b"somebody"]


def test_a_durable_message_expires_after_a_crash(engine: Engine, unique: str) -> None:
    with engine.connected() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(f"{unique}.short", durable=True, arguments={"x-message-ttl": 1000})
        channel.queue_declare(f"{unique}.long", durable=True, arguments={"x-message-ttl": LONG_MS})
        for name in ("short", "long"):
            channel.basic_publish("", f"{unique}.{name}", b"x", pika.BasicProperties(delivery_mode=2))
        engine.crash_and_start()
    with engine.connected() as connection:
        channel = connection.channel()
        assert eventually(lambda: waiting(channel, f"{unique}.short") == 0)
        assert waiting(channel, f"{unique}.long") == 1
        for name in ("short", "long"):
            channel.queue_delete(f"{unique}.{name}")


def test_a_queue_that_nobody_uses_goes_with_its_messages(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, arguments={"x-expires": SHORT_MS})
    channel.basic_publish("", unique, b"x")
    time.sleep(SHORT_MS * 3 / 1000)
    assert refusal(lambda: channel.queue_declare(unique, passive=True)) == GONE


def test_a_queue_with_a_consumer_stays_until_it_goes(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, arguments={"x-expires": SHORT_MS})
    inbox = Inbox(channel, unique)
    channel.connection.sleep(SHORT_MS * 3 / 1000)
    channel.basic_publish("", unique, b"x")
    inbox.wait(1)
    channel.basic_cancel(inbox.tag)
    time.sleep(SHORT_MS * 3 / 1000)
    assert refusal(lambda: channel.queue_declare(unique, passive=True)) == GONE


@pytest.mark.parametrize("name", ["x-message-ttl", "x-expires"])
def test_another_time_is_another_queue(channel: BlockingChannel, unique: str, name: str) -> None:
    same: dict[str, Any] = {"exclusive": True, "arguments": {name: LONG_MS}}
    channel.queue_declare(unique, **same)
    channel.queue_declare(unique, **same)
    different = {"exclusive": True, "arguments": {name: LONG_MS - 1}}
    assert refusal(lambda: channel.queue_declare(unique, **different)) == (
        "channel",
        406,
        "PRECONDITION_FAILED",
    )
