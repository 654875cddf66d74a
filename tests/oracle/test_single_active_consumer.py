"""A queue with a single active consumer: who is active, what a closing channel gives back, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.amqp.open_pika import OpenConnection, raw
from testing.broker.engines import Engine, Inbox, close_at_once, cut, drain, eventually, pump, refusal

SINGLE: dict[str, Any] = {"x-single-active-consumer": True}


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.fixture(params=["classic", "quorum"])
def queue(
    engine: Engine, channel: BlockingChannel, unique: str, request: pytest.FixtureRequest
) -> Iterator[str]:
    arguments = SINGLE | {"x-queue-type": request.param}
    channel.queue_declare(unique, durable=True, arguments=arguments)
    yield unique
    with engine.connected() as connection:
        connection.channel().queue_delete(unique)


@pytest.fixture
def classic(channel: BlockingChannel, unique: str) -> str:
    channel.queue_declare(unique, exclusive=True, arguments=SINGLE)
    return unique


def publish(channel: BlockingChannel, queue: str, first: int, end: int) -> None:
    for number in range(first, end):
        channel.basic_publish("", queue, b"%d" % number)


def consumer(connection: pika.BlockingConnection, queue: str, prefetch: int = 100, **settings: Any) -> Inbox:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    return Inbox(channel, queue, **settings)


def test_only_the_first_consumer_is_given_messages(connection: pika.BlockingConnection, queue: str) -> None:
    inboxes = [consumer(connection, queue) for _ in range(3)]
    publish(connection.channel(), queue, 0, 10)
    assert inboxes[0].wait(10) == numbered(0, 10)
    assert inboxes[1].stays_at(0)
    assert inboxes[2].stays_at(0)


def test_a_full_prefetch_window_does_not_activate_another(
    connection: pika.BlockingConnection, queue: str
) -> None:
    first, second = consumer(connection, queue, 2), consumer(connection, queue)
    publish(connection.channel(), queue, 0, 5)
    first.wait(2)
    assert second.stays_at(0)
    assert first.stays_at(2)


def test_closing_the_active_channel_hands_its_rest_to_the_next_in_order(
    connection: pika.BlockingConnection, queue: str
) -> None:
    first, second, third = (consumer(connection, queue, 5) for _ in range(3))
    publish(connection.channel(), queue, 0, 8)
    first.wait(5)
    first.channel.basic_ack(first.tags[1], multiple=True)
    assert first.wait(7) == numbered(0, 7)
    close_at_once(first.channel)
    assert second.wait(5) == numbered(2, 7)
    assert second.redelivered == [True] * 5
    second.channel.basic_ack(second.tags[4], multiple=True)
    assert second.wait(6) == numbered(2, 8)
    assert second.redelivered[-1] is False
    assert third.stays_at(0)


def test_a_released_consumer_that_comes_back_stands_behind_the_waiting_ones(
    connection: pika.BlockingConnection, queue: str
) -> None:
    first, second = consumer(connection, queue), consumer(connection, queue)
    close_at_once(first.channel)
    first_again = consumer(connection, queue)
    publish(connection.channel(), queue, 0, 2)
    assert second.wait(2) == numbered(0, 2)
    second.channel.basic_ack(second.tags[0])
    close_at_once(second.channel)
    assert first_again.wait(1) == numbered(1, 2)


def test_a_waiting_consumer_that_leaves_is_passed_over(
    connection: pika.BlockingConnection, queue: str
) -> None:
    first, second, third = (consumer(connection, queue) for _ in range(3))
    second.channel.basic_cancel(second.tag)
    publish(connection.channel(), queue, 0, 3)
    first.wait(3)
    close_at_once(first.channel)
    assert third.wait(3) == numbered(0, 3)
    assert second.stays_at(0)


def test_cancelling_the_active_one_starts_the_next_past_what_is_unacknowledged(
    connection: pika.BlockingConnection, queue: str
) -> None:
    # No message is left ready at the cancel: a classic queue of RabbitMQ whose active consumer is cancelled with
    # its window full stalls for good.
    first, second = consumer(connection, queue), consumer(connection, queue)
    publish(connection.channel(), queue, 0, 2)
    first.wait(2)
    raw(first.channel).basic_cancel(first.tag)
    publish(connection.channel(), queue, 2, 4)
    assert second.wait(2) == numbered(2, 4)
    close_at_once(first.channel)
    assert second.wait(4) == [*numbered(2, 4), *numbered(0, 2)]


def test_a_cut_connection_hands_over_too(
    engine: Engine, connection: pika.BlockingConnection, queue: str
) -> None:
    lost = OpenConnection(engine.parameters())
    first = consumer(lost, queue)
    second = consumer(connection, queue)
    publish(connection.channel(), queue, 0, 20)
    first.wait(20)
    cut(lost)
    assert second.wait(20) == numbered(0, 20)


def test_a_nacked_message_goes_back_to_the_active_consumer(
    connection: pika.BlockingConnection, classic: str
) -> None:
    first, second = consumer(connection, classic, 1), consumer(connection, classic, 1)
    publish(connection.channel(), classic, 0, 2)
    first.wait(1)
    first.channel.basic_nack(first.tags[0])
    assert first.wait(2)[-1] == b"0"
    assert first.redelivered[-1] is True
    assert second.stays_at(0)


def test_handing_over_many_times_loses_nothing_and_reorders_nothing(
    connection: pika.BlockingConnection, queue: str
) -> None:
    total = 60
    publish(connection.channel(), queue, 0, total)
    waiting = [consumer(connection, queue, 10) for _ in range(3)]
    settled: list[bytes] = []
    while len(settled) < total:
        active = waiting.pop(0)
        active.wait(min(10, total - len(settled)))
        active.channel.basic_ack(active.tags[3], multiple=True)  # one cumulative ack of the contiguous prefix
        settled += active.bodies[:4]
        assert pump(active.channel, lambda: True)
        close_at_once(active.channel)
        waiting.append(consumer(connection, queue, 10))
    assert settled == numbered(0, total)


def test_an_exclusive_consumer_is_not_let_in(connection: pika.BlockingConnection, classic: str) -> None:
    channel = connection.channel()
    assert refusal(lambda: channel.basic_consume(classic, print, exclusive=True)) == (
        "channel",
        403,
        "ACCESS_REFUSED",
    )


def test_getting_beside_consumers_is_allowed(connection: pika.BlockingConnection, classic: str) -> None:
    consumer(connection, classic, 1)
    channel = connection.channel()
    assert drain(channel, classic) == []


def test_each_queue_has_an_active_consumer_of_its_own(
    connection: pika.BlockingConnection, unique: str
) -> None:
    channel = connection.channel()
    queues = [f"{unique}.{index}" for index in range(4)]
    for queue in queues:
        channel.queue_declare(queue, exclusive=True, arguments=SINGLE)
    members = [{queue: consumer(connection, queue) for queue in queues} for _ in range(2)]
    close_at_once(members[0][queues[2]].channel)
    for queue in queues:
        publish(channel, queue, 0, 1)
    for queue, owner in zip(queues, (0, 0, 1, 0), strict=True):
        assert members[owner][queue].wait(1) == [b"0"]
        if queue != queues[2]:
            assert members[1 - owner][queue].stays_at(0)


def test_the_count_of_consumers_includes_the_waiting(connection: pika.BlockingConnection, queue: str) -> None:
    for _ in range(3):
        consumer(connection, queue)
    channel = connection.channel()
    assert eventually(lambda: channel.queue_declare(queue, passive=True).method.consumer_count >= 1)
    assert channel.queue_delete(queue).method.message_count == 0


def test_every_consumer_is_told_that_the_queue_is_gone(
    connection: pika.BlockingConnection, queue: str
) -> None:
    inboxes = [consumer(connection, queue) for _ in range(3)]
    connection.channel().queue_delete(queue)
    for inbox in inboxes:
        assert pump(inbox.channel, lambda inbox=inbox: inbox.cancelled)
