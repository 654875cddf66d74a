"""Streams: a log that consumers read without taking anything out of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from testing.amqp.open_pika import OpenConnection
from testing.broker.engines import Engine, Inbox, eventually, pump, refusal

STREAM = {"x-queue-type": "stream"}
OFFSET = "x-stream-offset"


@pytest.fixture
def stream(channel: BlockingChannel, unique: str) -> str:
    """A stream, to which the channel publishes with confirms."""
    channel.queue_declare(unique, durable=True, arguments=STREAM)
    channel.confirm_delivery()
    return unique


def publish(channel: BlockingChannel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body)


def opened(connection: OpenConnection, *, prefetch: int = 10) -> BlockingChannel:
    channel: BlockingChannel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    return channel


def reader(channel: BlockingChannel, queue: str, offset: object = None, **settings: Any) -> Inbox:
    arguments = {} if offset is None else {OFFSET: offset}
    return Inbox(channel, queue, arguments=arguments, **settings)


def offsets(inbox: Inbox) -> list[int]:
    return [int(properties.headers[OFFSET]) for _, properties, _ in inbox.deliveries]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"durable": False}, "invalid property 'non-durable' for {queue}"),
        ({"exclusive": True}, "invalid property 'exclusive-owner' for {queue}"),
        ({"auto_delete": True}, "invalid property 'auto-delete' for {queue}"),
        *(
            (
                {"arguments": {name: value}},
                f"invalid arg '{name}' for {{queue}} of queue type rabbit_stream_queue",
            )
            for name, value in (
                ("x-message-ttl", 100),
                ("x-expires", 10_000),
                ("x-dead-letter-exchange", "x"),
                ("x-dead-letter-routing-key", "x"),
                ("x-max-length", 5),
                ("x-overflow", "reject-publish"),
                ("x-single-active-consumer", True),
                ("x-delivery-limit", -1),
                ("x-max-priority", 5),
                ("x-queue-mode", "lazy"),
                ("x-max-in-memory-length", 1),
            )
        ),
        ({"arguments": {"x-max-age": "1x"}}, "invalid arg 'x-max-age' for {queue}: invalid_max_age"),
    ],
)
def test_what_a_stream_cannot_be_is_refused_in_the_same_words(
    engine: Engine, channel: BlockingChannel, unique: str, settings: dict[str, Any], reason: str
) -> None:
    declared = {"durable": True, **settings, "arguments": STREAM | settings.get("arguments", {})}
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(unique, **declared)
    assert refused.value.reply_code == 406
    where = f"queue '{unique}' in vhost '/'"
    expected = "PRECONDITION_FAILED - " + reason.format(queue=where)
    assert refused.value.reply_text == expected or engine.is_4  # which words some of them in another way


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length-bytes": 1000},
        {"x-max-age": "7D"},
        {"x-stream-max-segment-size-bytes": 1000},
        {"x-initial-cluster-size": 1},
        {"x-queue-leader-locator": "client-local"},
    ],
)
def test_retention_and_placement_are_accepted(
    channel: BlockingChannel, unique: str, arguments: dict[str, Any]
) -> None:
    for _ in range(2):
        assert (
            channel.queue_declare(unique, durable=True, arguments=STREAM | arguments).method.queue == unique
        )


@pytest.mark.parametrize("arguments", [{}, STREAM | {"x-max-age": "5h"}, STREAM | {"x-max-length-bytes": 5}])
def test_a_stream_declared_differently_is_refused(
    channel: BlockingChannel, stream: str, arguments: dict[str, Any]
) -> None:
    refused = refusal(lambda: channel.queue_declare(stream, durable=True, arguments=arguments))
    assert refused == ("channel", 406, "PRECONDITION_FAILED")


def test_a_stream_without_a_name_is_refused(channel: BlockingChannel) -> None:
    refused = refusal(lambda: channel.queue_declare("", durable=True, arguments=STREAM))
    assert refused == ("channel", 406, "PRECONDITION_FAILED")


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", [0, 1, 2, 3, 4]),
        (0, [0, 1, 2, 3, 4]),
        (-1, [0, 1, 2, 3, 4]),
        (3, [3, 4]),
        ("last", [4]),
        ("next", []),
        (None, []),
        (5, []),
    ],
)
def test_a_consumer_begins_at_its_offset(
    connection: OpenConnection, channel: BlockingChannel, stream: str, offset: object, expected: list[int]
) -> None:
    publish(channel, stream, *(b"%d" % number for number in range(5)))
    inbox = reader(opened(connection), stream, offset)
    inbox.wait(len(expected))
    assert inbox.stays_at(len(expected))
    assert offsets(inbox) == expected
    assert inbox.bodies == [b"%d" % number for number in expected]
    assert not any(inbox.redelivered)
    publish(channel, stream, b"after")
    assert inbox.wait(len(expected) + 1)[-1] == b"after"


def test_an_offset_that_is_not_there_yet_is_waited_for(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    inbox = reader(opened(connection), stream, 3)
    publish(channel, stream, b"0", b"1", b"2", b"3", b"4")
    assert inbox.wait(2) == [b"3", b"4"]
    assert offsets(inbox) == [3, 4]


def test_consumers_read_the_same_messages_again_and_again(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, b"0", b"1", b"2")
    readers = [reader(opened(connection), stream, "first") for _ in range(3)]
    for inbox in readers:
        assert inbox.wait(3) == [b"0", b"1", b"2"]
        inbox.channel.basic_ack(3, multiple=True)
    assert reader(opened(connection), stream, "first").wait(3) == [b"0", b"1", b"2"]


def test_an_acknowledgement_only_gives_credit(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, *(b"%d" % number for number in range(6)))
    inbox = reader(opened(connection, prefetch=2), stream, "first")
    inbox.wait(2)
    assert inbox.stays_at(2)
    inbox.channel.basic_ack(2)
    inbox.wait(3)
    assert inbox.stays_at(3)
    inbox.channel.basic_ack(3, multiple=True)
    inbox.wait(5)
    assert inbox.stays_at(5)
    assert offsets(inbox) == [0, 1, 2, 3, 4]


def test_a_channel_that_closes_leaves_the_stream_as_it_was(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, b"0", b"1")
    inbox = reader(opened(connection), stream, "first")
    inbox.wait(2)
    inbox.channel.close()
    again = reader(opened(connection), stream, "first")
    assert again.wait(2) == [b"0", b"1"]
    assert not any(again.redelivered)


def test_headers_and_properties_stay_and_the_offset_joins_them(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    headers: Any = {"a": 1, OFFSET: 77, "b": "two"}
    properties = pika.BasicProperties(content_type="text/plain", headers=headers, message_id="m")
    channel.basic_publish("", stream, b"x", properties)
    inbox = reader(opened(connection), stream, "first")
    inbox.wait(1)
    ((method, received, _),) = inbox.deliveries
    assert (method.exchange, method.routing_key) == ("", stream)
    assert {name: received.headers[name] for name in sorted(received.headers)} == {
        "a": 1,
        "b": "two",
        OFFSET: 0,
    }
    assert (received.content_type, received.message_id) == ("text/plain", "m")


def of_a_stream(engine: Engine, name: str) -> str:
    """The words for it in a refusal to consume."""
    return f"stream queue '{name}' in vhost '/'" if engine.is_4 else f"'queue '{name}' in vhost '/''"


def test_a_consumer_without_a_prefetch_is_refused(
    engine: Engine, channel: BlockingChannel, stream: str
) -> None:
    expected = f"PRECONDITION_FAILED - consumer prefetch count is not set for {of_a_stream(engine, stream)}"
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_consume(stream, lambda *_: None)
    assert (refused.value.reply_code, refused.value.reply_text) == (406, expected)


def test_a_prefetch_of_the_channel_is_not_one_of_the_consumer_until_4_3(
    engine: Engine, channel: BlockingChannel, stream: str
) -> None:
    channel.basic_qos(prefetch_count=5, global_qos=True)
    why = refusal(lambda: channel.basic_consume(stream, lambda *_: None))
    assert why == (None if engine.is_4_3 else ("channel", 406, "PRECONDITION_FAILED"))


@pytest.mark.parametrize("attempt", ["automatic acknowledgement", "basic.get", "queue.purge"])
def test_what_would_take_messages_out_is_not_implemented(
    engine: Engine, connection: OpenConnection, channel: BlockingChannel, stream: str, attempt: str
) -> None:
    publish(channel, stream, b"0")
    reading = opened(connection)
    attempts: dict[str, Callable[[], Any]] = {
        "automatic acknowledgement": lambda: reading.basic_consume(stream, lambda *_: None, auto_ack=True),
        "basic.get": lambda: reading.basic_get(stream),
        "queue.purge": lambda: reading.queue_purge(stream),
    }
    what = f"stream queues queue '{stream}' in vhost '/'"
    if attempt == "automatic acknowledgement" and engine.is_4:
        what = of_a_stream(engine, stream)
    with pytest.raises(ConnectionClosedByBroker) as refused:
        attempts[attempt]()
    assert refused.value.reply_code == 540
    assert refused.value.reply_text == f"NOT_IMPLEMENTED - {attempt} not supported by {what}"


def test_a_nack_is_not_implemented_and_makes_room_since_4_0(
    engine: Engine, connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, b"0", b"1")
    inbox = reader(opened(connection, prefetch=1), stream, "first")
    inbox.wait(1)
    inbox.channel.basic_nack(1, requeue=False)
    if engine.is_4:
        assert inbox.wait(2) == [b"0", b"1"]
    else:
        with pytest.raises(ConnectionClosedByBroker) as refused:
            inbox.wait(2)
        assert refused.value.reply_code == 540
        assert refused.value.reply_text == (
            "NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues "
            f"queue '{stream}' in vhost '/'"
        )


def test_a_consumer_cannot_exclude_the_others(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, b"0")
    inboxes = [
        reader(opened(connection), stream, "first", exclusive=exclusive) for exclusive in (True, True, False)
    ]
    assert [inbox.wait(1) for inbox in inboxes] == [[b"0"]] * 3


def test_messages_are_counted_also_those_that_were_read(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, b"0", b"1", b"2")
    inbox = reader(opened(connection), stream, "first")
    inbox.wait(3)
    inbox.channel.basic_ack(1)
    # RabbitMQ counts a stream's messages every few seconds.
    assert eventually(lambda: channel.queue_declare(stream, passive=True).method.message_count == 3)


def test_the_management_api_lists_a_stream(
    engine: Engine, connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, b"0", b"1")
    inbox = reader(opened(connection), stream, "first")
    inbox.wait(2)

    def counts() -> tuple[Any, ...]:
        _, queue = engine.ask("GET", f"/queues/%2F/{stream}")
        names = ("type", "durable", "messages", "messages_ready", "messages_unacknowledged", "consumers")
        return tuple(queue.get(name) for name in names)

    assert eventually(lambda: counts() == ("stream", True, 2, 2, 0, 1)), counts()
    assert engine.ask("DELETE", f"/queues/%2F/{stream}/contents")[0] == 400


def test_a_user_with_read_reads_the_last_message_and_destroys_nothing(
    engine: Engine, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, b"0", b"1")
    login = engine.add_user(f"{stream}.reader", read=".*")
    with engine.connected(login) as connection:
        inbox = reader(opened(connection), stream, "last")
        assert inbox.wait(1) == [b"1"]
        inbox.channel.basic_ack(1)
    for destroy in ("delete", "purge", "publish"):
        with engine.connected(login) as connection:
            mine = connection.channel()
            mine.confirm_delivery()
            actions = {
                "delete": lambda mine=mine: mine.queue_delete(stream),
                "purge": lambda mine=mine: mine.queue_purge(stream),
                "publish": lambda mine=mine: mine.basic_publish("", stream, b"2"),
            }
            refused = refusal(actions[destroy])
            assert refused is not None
            assert refused[1] == (540 if destroy == "purge" else 403)
    with engine.connected() as connection:
        assert reader(opened(connection), stream, "first").wait(2) == [b"0", b"1"]


def test_a_deleted_stream_cancels_its_consumers(
    connection: OpenConnection, channel: BlockingChannel, stream: str
) -> None:
    inbox = reader(opened(connection), stream)
    channel.queue_delete(stream)
    assert pump(inbox.channel, lambda: inbox.cancelled)


@pytest.mark.parametrize("offset", ["sometime", True])
def test_an_offset_that_is_none_is_refused(connection: OpenConnection, stream: str, offset: object) -> None:
    assert refusal(lambda: reader(opened(connection), stream, offset)) is not None


@pytest.mark.parametrize("offset", ["1h", datetime(2020, 1, 1)])
def test_a_time_as_an_offset_is_for_rabbitmq_only(
    engine: Engine, connection: OpenConnection, channel: BlockingChannel, stream: str, offset: object
) -> None:
    publish(channel, stream, b"0")
    if engine.name == "rabbitmq":
        assert reader(opened(connection), stream, offset).wait(1) == [b"0"]
        return
    with pytest.raises(ChannelClosedByBroker) as refused:
        reader(opened(connection), stream, offset)
    assert "give first, last, next or an offset, not a time" in refused.value.reply_text
