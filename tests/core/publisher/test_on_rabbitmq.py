"""The publisher on a real RabbitMQ: a queue that fills up, a node that is killed."""

from __future__ import annotations

import asyncio

import pytest

from lbg_core.group import GroupSpec
from lbg_core.publisher import (
    GroupPublisher,
    PublisherEvent,
    PublishingReport,
    PublishingSettings,
    SizeRefused,
    events,
)
from testing.admin.group_on_broker import Drain, declare_group
from testing.rabbitmq.alarm import alarm
from testing.rabbitmq.message_size import messages_of_at_most
from testing.rabbitmq.node import RabbitNode
from testing.waiting import until


def spec_of(name: str, *, queue_size_mb: int = 1) -> GroupSpec:
    return GroupSpec(
        name, name, hash_count=16, queue_count=2, queue_size_mb=queue_size_mb, client_username="guest"
    )


async def publish_into_a_full_queue(
    url: str, spec: GroupSpec, *, one_per_key: bool
) -> tuple[PublishingReport, Drain]:
    """1,500 messages of 4 kB to a group whose two queues hold 1 MB each, and a consumer that comes when one is full and
    is slower."""
    settings = PublishingSettings(one_per_key=one_per_key, backoff_max_s=0.05)
    await declare_group(url, spec)

    async def publish(publisher: GroupPublisher) -> None:
        for number in range(1500):
            await publisher.publish(key=f"k{number % 40}", body=b"%06d" % number + bytes(4000))
        await publisher.flush()

    async with GroupPublisher(url, group=spec.name, settings=settings) as publisher:
        publishing = asyncio.create_task(publish(publisher))
        await until(lambda: publisher.report().refused, what="a full queue")
        async with Drain(url, spec, delay_s=0.0005, prefetch_count=20) as drain:
            await publishing
            await drain.until(lambda: len(drain.distinct()) == 1500)
            return publisher.report(), drain


async def test_a_full_queue_loses_nothing_and_every_inversion_was_reported(
    rabbit_vhost: str, unique: str
) -> None:
    report, drain = await publish_into_a_full_queue(rabbit_vhost, spec_of(unique), one_per_key=False)
    assert (report.confirmed, report.maybe_twice) == (1500, 0)
    assert len(drain.seen) == 1500
    assert len(drain.inversions()) <= report.inverted <= report.accepted_after_gap
    print(f"{report.refused} refused, {report.accepted_after_gap} behind a gap, {report.inverted} inverted")


async def test_one_per_key_keeps_order_on_a_full_queue(rabbit_vhost: str, unique: str) -> None:
    report, drain = await publish_into_a_full_queue(rabbit_vhost, spec_of(unique), one_per_key=True)
    assert (report.confirmed, report.inverted) == (1500, 0)
    assert drain.inversions() == []


@pytest.mark.rabbitmq
@pytest.mark.slow
async def test_a_node_that_is_killed_under_load_loses_and_reorders_nothing(
    unique: str,
) -> None:
    """A node of its own: that of all tests has a virtual host of each test, and takes minutes to come back.

    `tests/rabbitmq/test_restarts.py` shows it with members beside the publisher.
    """
    with RabbitNode() as node:
        told: list[PublisherEvent] = []
        spec = spec_of(unique, queue_size_mb=100)
        await declare_group(node.amqp_url, spec)
        async with GroupPublisher(node.amqp_url, group=unique, on_event=told.append) as publisher:
            for number in range(6000):
                await publisher.publish(key=f"k{number % 40}", body=b"%06d" % number)
                if number == 3000:
                    await asyncio.sleep(0.01)
                    node.kill()
                    node.start()
            await publisher.flush()
            report = publisher.report()
        assert (report.confirmed, report.inverted) == (6000, 0)
        assert report.maybe_twice > 0
        assert any(isinstance(event, events.Disconnected) for event in told)
        async with Drain(node.amqp_url, spec) as drain:
            await drain.until(lambda: len(drain.distinct()) == 6000)
            await asyncio.sleep(0.2)
        assert drain.inversions() == []
        assert not drain.bodies_differ()
        assert len(drain.seen) - 6000 <= report.maybe_twice


async def test_a_broker_that_blocks_publishers_is_waited_for_and_told(
    rabbitmq: RabbitNode, unique: str
) -> None:
    told: list[PublisherEvent] = []
    spec = spec_of(unique)
    await declare_group(rabbitmq.amqp_url, spec)
    async with GroupPublisher(rabbitmq.amqp_url, group=unique, on_event=told.append) as publisher:
        await publisher.publish(key="k", body=b"1")
        await publisher.flush()
        async with alarm(rabbitmq, "disk"):
            await publisher.publish(key="k", body=b"2")
            await until(lambda: any(isinstance(event, events.Blocked) for event in told))
            for _ in range(100):
                await publisher.publish(key="k", body=b"3")
            assert publisher.confirmed_count < 102
        await publisher.flush()
    assert any(isinstance(event, events.Unblocked) for event in told)
    assert publisher.report().maybe_twice == 0
    async with Drain(rabbitmq.amqp_url, spec) as drain:
        await drain.until(lambda: len(drain.seen) == 102)
    assert drain.inversions() == []


async def test_a_message_over_the_nodes_limit_ends_the_publisher_with_the_sizes(
    rabbitmq: RabbitNode, rabbit_vhost: str, unique: str
) -> None:
    await declare_group(rabbit_vhost, spec_of(unique))
    with messages_of_at_most(rabbitmq, 70_000), pytest.raises(SizeRefused) as refused:
        await publish_sizes(rabbit_vhost, unique, [70_000, 70_001])
    assert "70001 bytes" in str(refused.value)
    assert "its max_message_size is 70000" in str(refused.value)
    assert (refused.value.size_bytes, refused.value.limit_bytes) == (70_001, 70_000)


async def publish_sizes(url: str, group: str, sizes: list[int]) -> None:
    async with GroupPublisher(url, group=group) as publisher:
        for size in sizes:
            await publisher.publish(key="k", body=b"a" * size)
            await publisher.flush()
