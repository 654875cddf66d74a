"""Partitioned queues with the clients that others have, and what the management API tells and does."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Callable
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.partitioned_clients import (
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


def test_two_consumers_of_pika_share_the_keys(shared_broker: EmbeddedBroker, unique: str) -> None:
    declare(shared_broker, unique)
    with pika_channel(shared_broker) as one, pika_channel(shared_broker) as two:
        got: dict[int, list[bytes]] = {1: [], 2: []}

        def taker(number: int) -> Callable[..., None]:
            def on_message(channel: BlockingChannel, method: Any, _: Any, body: bytes) -> None:
                got[number].append(body)
                channel.basic_ack(method.delivery_tag)

            return on_message

        one.basic_consume(unique, taker(1))
        two.basic_consume(unique, taker(2))
        eventually(lambda: is_balanced(shared_broker, unique))
        publish(shared_broker, unique)
        while len(got[1]) + len(got[2]) < 60:
            for channel in (one, two):
                channel.connection.process_data_events(time_limit=0.02)
        assert all(is_in_order(bodies) for bodies in got.values())
        keys = [{body.split()[0] for body in bodies} for bodies in got.values()]
        assert all(keys)
        assert not keys[0] & keys[1]


def test_pika_is_refused_basic_get(shared_broker: EmbeddedBroker, unique: str) -> None:
    declare(shared_broker, unique)
    with (
        pika_channel(shared_broker) as channel,
        pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused,
    ):
        channel.basic_get(unique)
    assert refused.value.reply_code == 540
    assert "partitioned" in refused.value.reply_text


def test_an_exclusive_consumer_has_them_all_and_no_other_comes_beside_it(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    declare(shared_broker, unique)
    with pika_channel(shared_broker) as channel, pika_channel(shared_broker) as other:
        channel.basic_consume(unique, lambda *_: None, exclusive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            other.basic_consume(unique, lambda *_: None)
        assert refused.value.reply_code == 403
        eventually(lambda: statuses(shared_broker, unique) == ["Ready"] * 4)


def test_aio_pika_goes_on_at_once_with_the_mapping_that_the_management_api_told(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    async def play() -> None:
        got: list[bytes] = []

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            got.append(message.body)
            await message.ack()

        connections = [await aio_pika.connect(shared_broker.url) for _ in range(2)]
        for number, connection in enumerate(connections):
            channel = await connection.channel()
            queue = await channel.get_queue(unique, ensure=False)
            await queue.consume(on_message, consumer_tag=f"first {number}")
        await until(lambda: len(set(tags())) == 2)
        had = [number for number, tag in enumerate(tags()) if tag == "first 0"]
        handoffs = queue_json(shared_broker, unique)["handoffs"]
        await connections[0].close()
        await until(lambda: statuses(shared_broker, unique).count("Unbound") == 2)
        connection = await aio_pika.connect(shared_broker.url)
        channel = await connection.channel()
        queue = await channel.get_queue(unique, ensure=False)
        await queue.consume(on_message, arguments={"x-partitions": had})
        described = queue_json(shared_broker, unique)
        assert described["rebalance_status"] == "Ready"
        assert described["handoffs"] == handoffs
        await asyncio.to_thread(publish, shared_broker, unique, header="ce-partitionkey")
        await until(lambda: len(got) == 60)
        assert is_in_order(got)
        for each in (connection, connections[1]):
            await each.close()

    def tags() -> list[str]:
        return [partition["consumer_tag"] for partition in queue_json(shared_broker, unique)["partitions"]]

    declare(shared_broker, unique, **{"x-rebalance-delay": 2000})
    asyncio.run(play())


class TestManagement:
    """The queue's JSON, and its two actions."""

    def test_tells_of_each_partition(self, shared_broker: EmbeddedBroker, unique: str) -> None:
        declare(shared_broker, unique)
        publish(shared_broker, unique)
        described = queue_json(shared_broker, unique)
        assert described["type"] == "partitioned"
        assert described["rebalance_status"] == "Ready"
        assert described["ingress"] is True
        assert described["handoffs"] == {"total": 0, "forced": 0, "messages_forced": 0}
        assert [set(partition) for partition in described["partitions"]] == [
            {
                *("partition", "status", "consumer_tag", "messages_ready", "messages_unacknowledged"),
                *("messages_settled", "last_handoff_seconds"),
            }
        ] * 4
        assert sum(partition["messages_ready"] for partition in described["partitions"]) == 60
        assert described["messages_ready"] == 60

    def test_repartitions_as_the_document_has_it(self, shared_broker: EmbeddedBroker, unique: str) -> None:
        declare(shared_broker, unique)
        publish(shared_broker, unique)
        assert act_on(shared_broker, "ingress", unique, open=False) == {"ingress": False}
        with pytest.raises(pika.exceptions.NackError):
            publish(shared_broker, unique)
        with pika_channel(shared_broker) as channel:
            seen: list[bytes] = []

            def on_message(_: Any, method: Any, __: Any, body: bytes) -> None:
                seen.append(body)
                channel.basic_ack(method.delivery_tag)

            channel.basic_consume(unique, on_message)
            while len(seen) < 60:
                channel.connection.process_data_events(time_limit=0.1)
            eventually(lambda: queue_json(shared_broker, unique)["messages"] == 0)
            answer = act_on(shared_broker, "repartition", unique, count=6)
            assert answer == {"partitions": 6, "discarded": 0}
            eventually(lambda: statuses(shared_broker, unique) == ["Ready"] * 6)
            act_on(shared_broker, "ingress", unique, open=True)
            publish(shared_broker, unique)
            while len(seen) < 120:
                channel.connection.process_data_events(time_limit=0.1)
            assert is_in_order(seen[60:])

    def test_says_why_it_refuses(self, shared_broker: EmbeddedBroker, unique: str) -> None:
        declare(shared_broker, unique)
        with pytest.raises(urllib.error.HTTPError) as refused:
            act_on(shared_broker, "repartition", unique, count=0)
        assert refused.value.code == 400
        assert "count must be a number from 1 to 4096, not 0" in refused.value.read().decode()
