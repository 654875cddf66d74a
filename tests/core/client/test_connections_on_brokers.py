"""The client on RabbitMQ and on the embedded broker: connections and channels, opened, refused and closed."""

import asyncio

import pytest

from lbg_core.amqp.methods import BasicConsume, BasicConsumeOk
from lbg_core.client import AuthenticationError, ConnectionClosed, ConnectRefused, connect
from testing.amqp.numbered import Collector


@pytest.mark.long
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


async def test_many_channels_share_a_connection(connection):
    channels = await asyncio.gather(*(connection.open_channel() for _ in range(100)))
    assert len({channel.number for channel in channels}) == 100
    await asyncio.gather(*(channel.close() for channel in channels))
    assert connection.channel_count == 0
    again = await connection.open_channel()
    assert again.number == 1
