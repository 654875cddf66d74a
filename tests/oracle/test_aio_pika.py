"""aio-pika, unmodified: the other client that the embedded broker has to carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aio_pika
import aiormq
import pytest
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from testing.broker.engines import Engine
from testing.waiting import GUARD_S


@pytest.fixture
async def link(engine: Engine) -> AsyncIterator[AbstractConnection]:
    connection = await aio_pika.connect(engine.amqp_url())
    async with connection:
        yield connection


async def test_publishes_with_confirms_and_consumes_in_order(link: AbstractConnection, unique: str) -> None:
    channel = await link.channel(publisher_confirms=True)
    await channel.set_qos(prefetch_count=10)
    exchange = await channel.declare_exchange(unique, aio_pika.ExchangeType.TOPIC, auto_delete=True)
    queue = await channel.declare_queue(unique, exclusive=True, arguments={"x-single-active-consumer": True})
    await queue.bind(exchange, "orders.#")
    sent = [
        aio_pika.Message(b"%d" % number, headers={"lbg-seq": number, "lbg-key": "k"}, delivery_mode=2)
        for number in range(100)
    ]
    await asyncio.gather(*(exchange.publish(message, "orders.0.k") for message in sent))
    got: list[AbstractIncomingMessage] = []
    async with queue.iterator() as messages:
        async for message in messages:
            got.append(message)
            await message.ack()
            if len(got) == len(sent):
                break
    assert [message.body for message in got] == [message.body for message in sent]
    assert [message.headers["lbg-seq"] for message in got] == list(range(100))


async def test_is_told_what_was_returned_and_what_was_refused(link: AbstractConnection, unique: str) -> None:
    channel = await link.channel(publisher_confirms=True, on_return_raises=True)
    with pytest.raises(aio_pika.exceptions.PublishError):
        await channel.default_exchange.publish(aio_pika.Message(b"x"), f"{unique}.none", mandatory=True)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await channel.declare_queue(unique, exclusive=True, arguments=arguments)
    await channel.default_exchange.publish(aio_pika.Message(b"1"), unique)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(b"2"), unique)


async def test_reads_an_error_as_its_code(link: AbstractConnection, unique: str) -> None:
    channel = await link.channel()
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
        await channel.get_queue(unique, ensure=True)
    await channel.reopen()
    await channel.declare_queue(unique, exclusive=True)
    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed):
        await channel.declare_queue(unique, exclusive=True, arguments={"x-max-length": 3})


async def test_is_locked_out_of_an_exclusive_queue(
    engine: Engine, link: AbstractConnection, unique: str
) -> None:
    channel = await link.channel()
    await channel.declare_queue(unique, exclusive=True)
    async with await aio_pika.connect(engine.amqp_url()) as other:
        theirs = await other.channel()
        with pytest.raises(aiormq.exceptions.ChannelLockedResource):
            await theirs.declare_queue(unique, exclusive=True)


async def test_requeues_and_dead_letters(link: AbstractConnection, unique: str) -> None:
    channel = await link.channel()
    dead = await channel.declare_queue(f"{unique}.dead", exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{unique}.dead"}
    queue = await channel.declare_queue(unique, exclusive=True, arguments=arguments)
    await channel.default_exchange.publish(aio_pika.Message(b"x"), unique)
    message = await queue.get(timeout=GUARD_S)
    await message.nack(requeue=True)
    message = await queue.get(timeout=GUARD_S)
    assert message.redelivered
    await message.reject(requeue=False)
    async with dead.iterator(timeout=GUARD_S) as messages:
        async for gone in messages:
            assert gone.headers["x-death"][0]["reason"] == "rejected"
            break


async def test_bad_credentials_are_an_authentication_error(engine: Engine) -> None:
    with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
        await aio_pika.connect(engine.amqp_url(("guest", "wrong")))


async def test_a_robust_connection_comes_back_after_it_was_closed(engine: Engine, unique: str) -> None:
    connection = await aio_pika.connect_robust(engine.amqp_url(), reconnect_interval=0.05)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(unique, auto_delete=False)
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(message: AbstractIncomingMessage) -> None:
            async with message.process():
                got.put_nowait(message.body)

        await queue.consume(take)
        await channel.default_exchange.publish(aio_pika.Message(b"before"), unique)
        assert await asyncio.wait_for(got.get(), GUARD_S) == b"before"
        back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: back.set())
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _close_all, engine)
        await asyncio.wait_for(back.wait(), GUARD_S)
        await channel.default_exchange.publish(aio_pika.Message(b"after"), unique)
        assert await asyncio.wait_for(got.get(), GUARD_S) == b"after"
        await queue.delete(if_unused=False, if_empty=False)


def _close_all(engine: Engine) -> None:
    """As an operator: RabbitMQ lists a connection a moment after it was opened."""
    from urllib.parse import quote

    from testing.broker.engines import eventually

    assert eventually(lambda: bool(engine.ask("GET", "/connections")[1]))
    for connection in engine.ask("GET", "/connections")[1]:
        engine.ask("DELETE", f"/connections/{quote(connection['name'], safe='')}")
