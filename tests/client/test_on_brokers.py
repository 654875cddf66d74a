"""The client on RabbitMQ and on the embedded broker: declaring, publishing, consuming, and moving queues."""

import asyncio

import pytest

from lbg_broker.amqp.methods import BasicConsume, BasicConsumeOk
from lbg_broker.client import (
    AccessRefused,
    AckBatcher,
    AuthenticationError,
    BasicProperties,
    ChannelClosed,
    ConnectionClosed,
    ConnectRefused,
    Nacked,
    NotFound,
    PreconditionFailed,
    Publisher,
    ResourceLocked,
    Unroutable,
    connect,
)

QUORUM = {"x-queue-type": "quorum", "x-single-active-consumer": True}
PERSISTENT = BasicProperties(delivery_mode=2)


class Collector:
    """A consumer that keeps what it gets, and can be waited on."""

    def __init__(self):
        self.deliveries = []
        self.batches = 0
        self._grown = asyncio.Event()

    def __call__(self, deliveries):
        self.deliveries += deliveries
        self.batches += 1
        self._grown.set()

    @property
    def bodies(self):
        return [delivery.body for delivery in self.deliveries]

    async def reach(self, count):
        while len(self.deliveries) < count:
            self._grown.clear()
            await self._grown.wait()


async def publish_numbers(connection, queue, count):
    publisher = await Publisher.open(connection)
    for number in range(count):
        publisher.publish_soon("", queue, b"%d" % number, properties=PERSISTENT)
    await publisher.flush()
    await publisher.channel.close()


def confirms_of(channel):
    """A function that waits for so many confirms."""
    upto = 0
    news = asyncio.Event()

    def on_confirm(tag, multiple, ok):
        nonlocal upto
        upto = tag if multiple else upto + 1
        news.set()

    async def confirmed(count):
        while upto < count:
            news.clear()
            await news.wait()

    channel.on_confirm = on_confirm
    return confirmed


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


# Declaring


async def test_queues_and_exchanges_come_and_go(channel):
    await channel.exchange_declare("e", "topic", durable=True)
    await channel.exchange_declare("e", passive=True)
    declared = await channel.queue_declare("q", durable=True, arguments=QUORUM)
    assert (declared.queue, declared.message_count, declared.consumer_count) == ("q", 0, 0)
    await channel.queue_bind("q", "e", "a.#")
    await channel.exchange_declare("inner", "fanout")
    await channel.exchange_bind("inner", "e", "b.#")
    await channel.confirm_select()
    confirmed = confirms_of(channel)
    channel.publish("e", "a.b", b"1")
    channel.publish("e", "a.c", b"2")
    await confirmed(2)
    await channel.queue_unbind("q", "e", "a.#")
    await channel.exchange_unbind("inner", "e", "b.#")
    assert await channel.queue_purge("q") == 2
    assert await channel.queue_delete("q") == 0
    await channel.exchange_delete("e")
    with pytest.raises(NotFound):
        await channel.exchange_declare("e", passive=True)


async def test_the_broker_makes_up_a_name_when_asked(channel):
    declared = await channel.queue_declare(exclusive=True)
    assert declared.queue.startswith("amq.gen-")


async def test_a_difference_is_a_failed_precondition_and_closes_the_channel_only(connection, channel):
    await channel.queue_declare("q", durable=True)
    with pytest.raises(PreconditionFailed, match="inequivalent arg"):
        await channel.queue_declare("q", durable=False)
    assert not channel.is_open
    other = await connection.open_channel()
    assert await other.queue_delete("q") == 0


async def test_an_exclusive_queue_of_another_connection_is_locked(connection, channel, broker_url):
    await channel.queue_declare("claim", exclusive=True)
    other = await connect(broker_url)
    with pytest.raises(ResourceLocked):
        await (await other.open_channel()).queue_declare("claim", exclusive=True)
    await connection.close()
    taken = await (await other.open_channel()).queue_declare("claim", exclusive=True)
    assert taken.queue == "claim"
    await other.close()


async def test_a_name_that_is_reserved_is_refused(channel):
    with pytest.raises(AccessRefused):
        await channel.queue_declare("amq.mine")


async def test_delete_if_empty_and_if_unused(connection):
    channel = await connection.open_channel()
    await channel.queue_declare("q", durable=True)
    await publish_numbers(connection, "q", 1)
    with pytest.raises(PreconditionFailed):
        await channel.queue_delete("q", if_empty=True)
    channel = await connection.open_channel()
    await channel.consume("q", Collector())
    other = await connection.open_channel()
    with pytest.raises(PreconditionFailed):
        await other.queue_delete("q", if_unused=True)


# Connecting


async def test_a_wrong_password_is_an_authentication_error(broker_url):
    with pytest.raises(AuthenticationError, match="ACCESS_REFUSED"):
        await connect(broker_url.replace("guest:guest", "guest:wrong"))


async def test_a_missing_virtual_host_is_refused(broker_url):
    with pytest.raises(ConnectRefused, match="vhost nowhere not found"):
        await connect(f"{broker_url.rpartition('/')[0]}/nowhere")


async def test_the_broker_says_what_it_is(connection):
    assert connection.server_properties["product"]
    assert connection.server_properties["capabilities"]["publisher_confirms"] is True


async def test_a_protocol_error_of_ours_closes_the_connection_with_its_code(connection):
    channel = await connection.open_channel()
    await channel.queue_declare("q", durable=True)
    await channel.consume("q", Collector(), consumer_tag="same")
    with pytest.raises(ConnectionClosed, match="530 NOT_ALLOWED - attempt to reuse consumer tag") as caught:
        await channel.call(BasicConsume("q", "same"), BasicConsumeOk)
    assert caught.value.by_broker
    assert isinstance(await connection.closed, ConnectionClosed)


# Publishing


async def test_a_confirmed_message_is_in_the_queue(connection, channel):
    await channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    publisher = await Publisher.open(connection)
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


async def test_quorum_queues_with_a_single_active_consumer_do_not_answer_get(rabbit_vhost):
    connection = await connect(rabbit_vhost)
    channel = await connection.open_channel()
    await channel.queue_declare("q", durable=True, arguments=QUORUM)
    with pytest.raises(ResourceLocked, match="not supported"):
        await channel.basic_get("q")
    await connection.close()


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
    publisher = await Publisher.open(connection)
    await publisher.publish("", "q", b"x" * size)
    got = await channel.basic_get("q")
    assert got is not None
    assert got.body == b"x" * size


async def test_a_mandatory_message_without_a_queue_is_unroutable(connection):
    publisher = await Publisher.open(connection)
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
    publisher = await Publisher.open(connection)
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
    publisher = await Publisher.open(connection)
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
    publisher = await Publisher.open(connection)
    with pytest.raises(NotFound, match="no exchange 'missing'"):
        await publisher.publish("missing", "k", b"")
    with pytest.raises(NotFound):
        publisher.publish_soon("missing", "k", b"")
    assert connection.is_open


async def test_a_publisher_waits_for_room_in_bytes(connection, channel):
    await channel.queue_declare("q", durable=True, arguments=QUORUM)
    publisher = await Publisher.open(connection, max_unconfirmed_bytes=2000)
    most = 0
    for _ in range(100):
        await publisher.drain()
        publisher.publish_soon("", "q", b"x" * 500)
        most = max(most, publisher.unconfirmed_bytes)
    await publisher.flush()
    assert 2000 <= most < 2600


async def test_cancelling_a_publish_does_not_disturb_the_others(connection, channel):
    await channel.queue_declare("q", exclusive=True)
    publisher = await Publisher.open(connection)
    first = asyncio.ensure_future(publisher.publish("", "q", b"1"))
    await asyncio.sleep(0)
    first.cancel()
    await publisher.publish("", "q", b"2")
    assert publisher.unconfirmed_count == 0


# Consuming


async def test_deliveries_come_in_lists_and_are_acknowledged_in_batches(connection, channel):
    await channel.queue_declare("q", durable=True, arguments=QUORUM)
    await publish_numbers(connection, "q", 2000)
    acks = AckBatcher(channel)
    collector = Collector()

    def on_deliveries(deliveries):
        collector(deliveries)
        for delivery in deliveries:
            acks.settle(delivery.delivery_tag)

    await channel.consume("q", on_deliveries, prefetch_count=200)
    await collector.reach(2000)
    acks.flush()
    await channel.close()
    assert collector.bodies == numbers(0, 2000)
    assert not any(delivery.redelivered for delivery in collector.deliveries)
    assert acks.frames_sent < 500
    other = await connection.open_channel()
    assert (await other.queue_declare("q", passive=True)).message_count == 0


@pytest.mark.parametrize("arguments", [QUORUM, {"x-single-active-consumer": True}], ids=["quorum", "classic"])
async def test_closing_the_channel_gives_everything_unsettled_to_the_next_in_order(connection, arguments):
    first, second = await connection.open_channel(), await connection.open_channel()
    await first.queue_declare("q", durable=True, arguments=arguments)
    await publish_numbers(connection, "q", 300)
    active, waiting = Collector(), Collector()
    acks = AckBatcher(first)
    await first.consume("q", active, prefetch_count=100)
    await second.consume("q", waiting, prefetch_count=1000)
    await active.reach(100)
    assert waiting.deliveries == []
    for delivery in active.deliveries[:40]:
        acks.settle(delivery.delivery_tag)
    acks.settle(active.deliveries[60].delivery_tag)  # out of order: it comes again
    acks.flush()
    await first.close()
    await waiting.reach(260)
    assert waiting.bodies == numbers(40, 300)
    redelivered = [delivery.redelivered for delivery in waiting.deliveries]
    assert redelivered == sorted(redelivered, reverse=True)
    assert redelivered.count(True) >= 60  # what the acks made room for may have been on its way, too


async def test_twenty_moves_under_load_lose_repeat_and_reorder_nothing(connection):
    declaring = await connection.open_channel()
    await declaring.queue_declare("q", durable=True, arguments=QUORUM)
    total, moves = 4000, 20
    publisher = await Publisher.open(connection)
    done: list[bytes] = []
    moved = asyncio.Event()

    async def publish():
        for number in range(total):
            await publisher.drain()
            publisher.publish_soon("", "q", b"%d" % number, properties=PERSISTENT)
            if number % 20 == 0:
                await asyncio.sleep(0.002)
        await publisher.flush()

    async def attach():
        channel = await connection.open_channel()
        acks = AckBatcher(channel)

        def on_deliveries(deliveries):
            for delivery in deliveries:
                done.append(delivery.body)
                acks.settle(delivery.delivery_tag)
            moved.set()

        await channel.consume("q", on_deliveries, prefetch_count=50)
        return channel, acks

    publishing = asyncio.ensure_future(publish())
    active = await attach()
    waiting = await attach()
    for _ in range(moves):
        await moved.wait()
        await asyncio.sleep(0.01)
        moved.clear()
        channel, acks = active
        acks.flush()
        await channel.close()
        active, waiting = waiting, await attach()
    await publishing
    while len(done) < total:
        moved.clear()
        await moved.wait()
    assert done == numbers(0, total)


async def test_nack_and_reject_put_back_or_drop(connection, channel):
    await channel.queue_declare("q", exclusive=True)
    await publish_numbers(connection, "q", 3)
    collector = Collector()
    await channel.consume("q", collector, prefetch_count=3)
    await collector.reach(3)
    first, second, third = collector.deliveries
    channel.nack(first.delivery_tag, requeue=True)
    channel.reject(second.delivery_tag, requeue=False)
    channel.ack(third.delivery_tag)
    await collector.reach(4)
    again = collector.deliveries[3]
    assert (again.body, again.redelivered) == (b"0", True)


async def test_a_consumer_learns_that_its_queue_is_gone(connection, channel):
    await channel.queue_declare("q")
    gone = asyncio.Event()
    await channel.consume("q", Collector(), on_cancelled=gone.set)
    await (await connection.open_channel()).queue_delete("q")
    await gone.wait()
    assert channel.is_open


async def test_cancelling_a_consumer_leaves_what_it_holds(connection, channel):
    await channel.queue_declare("q", durable=True)
    await publish_numbers(connection, "q", 10)
    collector = Collector()
    tag = await channel.consume("q", collector, prefetch_count=4)
    await collector.reach(4)
    await channel.cancel(tag)
    channel.ack(collector.deliveries[-1].delivery_tag, multiple=True)
    state = await channel.queue_declare("q", passive=True)
    assert (state.message_count, state.consumer_count) == (6, 0)
    assert len(collector.deliveries) == 4


async def test_two_consumers_of_one_channel_get_their_own(connection, channel):
    for queue in ("a", "b"):
        await channel.queue_declare(queue, exclusive=True)
    collectors = {"a": Collector(), "b": Collector()}
    for queue, collector in collectors.items():
        await channel.consume(queue, collector, prefetch_count=10)
    channel_b = await connection.open_channel()
    for number in range(50):
        channel_b.publish("", "ab"[number % 2], b"%d" % number)
    await collectors["a"].reach(10)
    await collectors["b"].reach(10)
    assert channel.prefetch_count == 20
    assert collectors["a"].bodies == [b"%d" % n for n in range(0, 20, 2)]
    assert collectors["b"].bodies == [b"%d" % n for n in range(1, 20, 2)]


async def test_an_unknown_delivery_tag_closes_the_channel(channel):
    channel.ack(99)
    error = await channel.closed
    assert isinstance(error, PreconditionFailed)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 99"):
        channel.ack(100)


async def test_consuming_a_missing_queue_fails(channel):
    with pytest.raises(NotFound):
        await channel.consume("missing", Collector())
    with pytest.raises(ChannelClosed):
        await channel.basic_get("missing")


async def test_many_channels_share_a_connection(connection):
    channels = await asyncio.gather(*(connection.open_channel() for _ in range(100)))
    assert len({channel.number for channel in channels}) == 100
    await asyncio.gather(*(channel.close() for channel in channels))
    assert connection.channel_count == 0
    again = await connection.open_channel()
    assert again.number == 1
