"""Confirms in every shape a broker may send them: single, cumulative, out of order, refused."""

import asyncio

import pytest

from lbg_core.amqp import BasicProperties, PublishEvent
from lbg_core.amqp.methods import BasicAck, BasicNack
from lbg_core.client import ClientError, ConfirmingPublisher, Nacked
from testing.growth import growth
from testing.needs import repeated
from testing.waiting import passes


@pytest.fixture
async def publishing(pair):
    connection, session = pair
    publisher = await ConfirmingPublisher.open(connection)
    futures = [publisher.publish_soon("e", "k", b"%d" % number) for number in range(1, 11)]
    for _ in futures:
        await session.seen(PublishEvent)
    return publisher, session, futures


async def settled(futures, count):
    """Wait until so many are done; their numbers."""
    await passes(lambda: sum(future.done() for future in futures) >= count)
    return [number for number, future in enumerate(futures, 1) if future.done()]


async def test_a_single_confirm_confirms_one(publishing):
    publisher, session, futures = publishing
    session.send(publisher.channel.number, BasicAck(4))
    assert await settled(futures, 1) == [4]
    assert publisher.unconfirmed_count == 9


async def test_a_cumulative_confirm_confirms_everything_before(publishing):
    publisher, session, futures = publishing
    session.send(publisher.channel.number, BasicAck(2))
    session.send(publisher.channel.number, BasicAck(5, multiple=True))
    assert await settled(futures, 5) == [1, 2, 3, 4, 5]
    session.send(publisher.channel.number, BasicAck(9))
    session.send(publisher.channel.number, BasicAck(6))
    session.send(publisher.channel.number, BasicAck(10, multiple=True))
    assert len(await settled(futures, 10)) == 10
    assert publisher.unconfirmed_count == publisher.unconfirmed_bytes == 0
    await publisher.flush()


async def test_a_refusal_can_be_cumulative_too(publishing):
    publisher, session, futures = publishing
    session.send(publisher.channel.number, BasicAck(1))
    session.send(publisher.channel.number, BasicNack(3, multiple=True))
    outcomes = await asyncio.gather(*futures[:3], return_exceptions=True)
    assert outcomes[0] is None
    assert [outcome.delivery_tag for outcome in outcomes[1:] if isinstance(outcome, Nacked)] == [2, 3]


async def test_a_confirm_of_what_was_never_published_is_ignored(publishing):
    publisher, session, futures = publishing
    session.send(publisher.channel.number, BasicAck(99))
    session.send(publisher.channel.number, BasicAck(10, multiple=True))
    assert len(await settled(futures, 10)) == 10


@pytest.mark.long
@pytest.mark.parametrize("times", repeated([8, 32]))
async def test_the_time_for_cumulative_confirms_grows_with_their_number_and_not_with_the_square(pair, times):
    connection, session = pair
    publisher = await ConfirmingPublisher.open(connection)
    last = 0

    def work(count):
        nonlocal last
        futures = [publisher.publish_soon("e", "k", b"") for _ in range(count)]
        first, last = last + 1, last + count

        async def run():
            for tag in range(first, last + 1):
                session.machine.send(publisher.channel.number, BasicAck(tag, multiple=True))
            session.flush()
            await asyncio.gather(*futures)

        return run

    assert await growth(work, 500, times) < 1.35
    assert publisher.unconfirmed_count == 0


async def test_a_publisher_needs_a_confirming_channel(pair):
    connection, _ = pair
    with pytest.raises(ClientError, match="confirm_select"):
        ConfirmingPublisher(await connection.open_channel())


async def test_properties_or_an_encoded_header_make_the_same_message(pair):
    connection, session = pair
    publisher = await ConfirmingPublisher.open(connection)
    properties = BasicProperties(delivery_mode=2, headers={"lbg-seq": 5})
    publisher.publish_soon("e", "k", b"x", properties=properties)
    publisher.publish_soon("e", "k", b"x", header=properties.encode())
    first, second = await session.seen(PublishEvent), await session.seen(PublishEvent)
    assert first == second


async def test_what_one_loop_turn_publishes_is_one_write(pair):
    connection, session = pair
    channel = await connection.open_channel()
    reads = []
    received = session.data_received
    session.transport.set_protocol(Recorder(reads, received))
    for _ in range(100):
        channel.publish("e", "k", b"x" * 10)
    await passes(lambda: reads)
    session.transport.set_protocol(session)
    assert len(reads) == 1


class Recorder(asyncio.Protocol):
    def __init__(self, reads, received):
        self.reads, self.received = reads, received

    def data_received(self, data):
        self.reads.append(data)
        self.received(data)
