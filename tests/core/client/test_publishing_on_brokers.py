"""The client on RabbitMQ and on the embedded broker: publishing with confirms, returns and limits."""

import asyncio

import pytest

from lbg_core.client import BasicProperties, ConfirmingPublisher, Nacked, NotFound, Unroutable
from testing.amqp.numbered import PERSISTENT, QUORUM, Collector, numbers, publish_numbers


async def test_a_confirmed_message_is_in_the_queue(connection, channel):
    await channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    publisher = await ConfirmingPublisher.open(connection)
    properties = BasicProperties(
        delivery_mode=2, message_id="m-1", headers={"lbg-seq": 2**40, "lbg-key": "N1"}
    )
    await publisher.publish("", "q", b"body", properties=properties)
    got = await channel.basic_get("q")
    assert got is not None
    assert (got.body, got.exchange, got.routing_key, got.redelivered, got.message_count) == (
        b"body",
        "",
        "q",
        False,
        0,
    )
    assert (got.properties.delivery_mode, got.properties.message_id) == (2, "m-1")
    assert got.headers["lbg-seq"] == 2**40  # RabbitMQ adds an x-delivery-count here
    channel.ack(got.delivery_tag)
    assert await channel.basic_get("q") is None


async def test_many_messages_are_confirmed_in_order_with_few_waits(connection, channel):
    await channel.queue_declare("q", durable=True, arguments=QUORUM)
    await publish_numbers(connection, "q", 3000)
    collector = Collector()
    await channel.consume("q", collector, no_ack=True)
    await collector.reach(3000)
    assert collector.bodies == numbers(0, 3000)


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 1_000_000])
async def test_a_message_of_any_size_survives(connection, channel, size):
    await channel.queue_declare("q", exclusive=True)
    publisher = await ConfirmingPublisher.open(connection)
    await publisher.publish("", "q", b"x" * size)
    got = await channel.basic_get("q")
    assert got is not None
    assert got.body == b"x" * size


async def test_a_mandatory_message_without_a_queue_is_unroutable(connection):
    publisher = await ConfirmingPublisher.open(connection)
    with pytest.raises(Unroutable, match="NO_ROUTE") as caught:
        await publisher.publish("amq.topic", "no.where", b"body", mandatory=True, properties=PERSISTENT)
    assert caught.value.returned.body == b"body"
    assert caught.value.returned.properties == PERSISTENT
    await publisher.publish("amq.topic", "no.where", b"body")  # without mandatory it is confirmed and gone


async def test_a_return_comes_before_its_confirm(channel):
    await channel.confirm_select()
    story = []
    done = asyncio.Event()

    def on_confirm(tag, multiple, ok):
        story.append(("confirm", tag, ok))
        done.set()

    channel.on_confirm = on_confirm
    channel.on_return = lambda returned: story.append(("return", returned.routing_key))
    assert channel.publish("amq.direct", "nowhere", b"", mandatory=True) == 1
    await done.wait()
    assert story == [("return", "nowhere"), ("confirm", 1, True)]


async def test_of_many_on_the_way_the_right_ones_are_unroutable(connection, channel):
    await channel.queue_declare("q", exclusive=True)
    publisher = await ConfirmingPublisher.open(connection)
    futures = [
        publisher.publish_soon("", "q" if number % 3 else "nowhere", b"%d" % (number // 6), mandatory=True)
        for number in range(60)
    ]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(outcome, Unroutable) for outcome in outcomes] == [
        number % 3 == 0 for number in range(60)
    ]
    assert publisher.unconfirmed_bytes == publisher.unconfirmed_count == 0


async def test_a_full_queue_refuses(connection, channel):
    await channel.queue_declare(
        "q", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    publisher = await ConfirmingPublisher.open(connection)
    await publisher.publish("", "q", b"fits")
    with pytest.raises(Nacked) as caught:
        await publisher.publish("", "q", b"does not")
    assert caught.value.retryable
    assert caught.value.delivery_tag == 2


async def test_confirm_select_may_come_again_and_the_count_goes_on(channel):
    await channel.confirm_select()
    assert channel.publish("", "nowhere", b"") == 1
    await channel.confirm_select()
    assert channel.publish("", "nowhere", b"") == 2


async def test_publishing_to_a_missing_exchange_closes_the_channel_and_fails_what_waits(connection):
    publisher = await ConfirmingPublisher.open(connection)
    with pytest.raises(NotFound, match="no exchange 'missing'"):
        await publisher.publish("missing", "k", b"")
    with pytest.raises(NotFound):
        publisher.publish_soon("missing", "k", b"")
    assert connection.is_open


async def test_a_publisher_waits_for_room_in_bytes(connection, channel):
    await channel.queue_declare("q", durable=True, arguments=QUORUM)
    publisher = await ConfirmingPublisher.open(connection, max_unconfirmed_bytes=2000)
    most = 0
    for _ in range(100):
        await publisher.drain()
        publisher.publish_soon("", "q", b"x" * 500)
        most = max(most, publisher.unconfirmed_bytes)
    await publisher.flush()
    assert 2000 <= most < 2600


async def test_cancelling_a_publish_does_not_disturb_the_others(connection, channel):
    await channel.queue_declare("q", exclusive=True)
    publisher = await ConfirmingPublisher.open(connection)
    first = asyncio.ensure_future(publisher.publish("", "q", b"1"))
    await asyncio.sleep(0)
    first.cancel()
    await publisher.publish("", "q", b"2")
    assert publisher.unconfirmed_count == 0
