"""A broker that is killed and started again, under clients that come back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aio_pika
import pytest

from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.partitioned_clients import (
    KEYS,
    declare,
    eventually,
    is_balanced,
    is_in_order,
    pika_channel,
    publish,
    statuses,
)
from testing.broker_core.sessions import act_on, queue_json
from testing.waiting import until

pytestmark = pytest.mark.process


def test_a_kill_loses_nothing_and_everybody_goes_on_with_what_he_had(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        declare(broker, "q", **{"x-rebalance-delay": 2000})
        with pika_channel(broker) as one, pika_channel(broker) as two:
            one.basic_consume("q", lambda *_: None, consumer_tag="one")
            two.basic_consume("q", lambda *_: None, consumer_tag="two")
            eventually(lambda: is_balanced(broker, "q"))
            publish(broker, "q")
            before = [partition["consumer_tag"] for partition in queue_json(broker, "q")["partitions"]]
            act_on(broker, "ingress", "q", open=False)
            broker.kill()
        broker.start()
        described = queue_json(broker, "q")
        assert (described["messages"], described["ingress"]) == (60, False)
        assert statuses(broker, "q") == ["Unbound"] * 4
        with pika_channel(broker) as one, pika_channel(broker) as two:
            got: list[bytes] = []
            one.basic_consume("q", lambda *told: got.append(told[3]), consumer_tag="one")
            two.basic_consume("q", lambda *told: got.append(told[3]), consumer_tag="two")
            assert is_balanced(broker, "q")
            after = [partition["consumer_tag"] for partition in queue_json(broker, "q")["partitions"]]
            assert after == before
            while len(got) < 60:
                for channel in (one, two):
                    channel.connection.process_data_events(time_limit=0.02)
            assert is_in_order(got)


def test_aio_pikas_robust_connection_has_its_partitions_again_as_soon_as_it_is_back(tmp_path: Path) -> None:
    async def play(broker: EmbeddedBroker) -> None:
        got: list[bytes] = []

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            got.append(message.body)
            await message.ack()

        connection = await aio_pika.connect_robust(broker.url, reconnect_interval=0.05)
        channel = await connection.channel()
        queue = await channel.declare_queue("q", passive=True)
        await queue.consume(on_message)
        other = await aio_pika.connect(broker.url)
        lost = await (await other.channel()).get_queue("q", ensure=False)
        await lost.consume(on_message)
        await until(lambda: is_balanced(broker, "q"), every_s=0.05, what="two consumers with their shares")
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        # It has its own, and those of the one that does not come back wait for the end of the delay.
        await until(
            lambda: sorted(statuses(broker, "q")) == ["Ready", "Ready", "Unbound", "Unbound"], every_s=0.05
        )
        await asyncio.to_thread(publish, broker, "q")
        await until(lambda: len(got) == 60)
        assert statuses(broker, "q") == ["Ready"] * 4
        assert is_in_order(got)
        await connection.close()

    with EmbeddedBroker(tmp_path / "data") as broker:
        declare(broker, "q", **{"x-rebalance-delay": 2000})
        asyncio.run(play(broker))


def test_kills_while_keys_move_to_other_partitions_lose_nothing_and_keep_each_key_in_order(
    tmp_path: Path,
) -> None:
    async def play(broker: EmbeddedBroker) -> None:
        first: dict[bytes, None] = {}

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            first[message.body] = None
            await asyncio.sleep(0.005)
            with suppress(aio_pika.exceptions.AMQPError):
                await message.ack()

        async with AsyncExitStack() as stack:
            for _ in range(2):
                connection = await aio_pika.connect_robust(broker.url, reconnect_interval=0.05)
                stack.push_async_callback(connection.close)
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=8)
                await (await channel.declare_queue("q", passive=True)).consume(on_message)
            for count, published in ((6, 15), (3, 35)):
                act_on(broker, "repartition", "q", count=count)
                await asyncio.to_thread(publish, broker, "q", first=published, rounds=20)
                await until(lambda rounds=published: len(first) >= len(KEYS) * rounds)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            await until(lambda: queue_json(broker, "q")["messages"] == 0, what="all messages to be processed")
        assert queue_json(broker, "q")["moving_keys"] is None
        assert len(first) == len(KEYS) * 55
        assert is_in_order(list(first))

    with EmbeddedBroker(tmp_path / "data") as broker:
        declare(broker, "q")
        publish(broker, "q", rounds=15)
        asyncio.run(play(broker))
