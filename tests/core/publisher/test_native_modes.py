"""Publishing to groups that are one queue of the embedded broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lbg_broker import Address, ServerSettings, running
from lbg_core.admin.groups import close_group, create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.client import ConnectionSettings, Delivery, connect
from lbg_core.group import GroupSpec, Names
from lbg_core.publisher import GroupClosed, GroupPublisher, PublishingSettings, events
from testing.waiting import GUARD_S, until

NAMES = Names("orders")


def spec_in(mode: str, **attributes: Any) -> GroupSpec:
    return GroupSpec(
        "orders", "orders", hash_count=16, queue_size_mb=1, client_username="guest", mode=mode, **attributes
    )


@pytest.mark.long
async def test_a_full_queue_of_partitions_is_told_of_by_its_name_and_waited_for(tmp_path: Path) -> None:
    anywhere = Address("127.0.0.1", 0)
    told: list[events.PublisherEvent] = []
    async with running(ServerSettings(tmp_path, listen=anywhere, management=anywhere)) as server:
        url = f"amqp://guest:guest@127.0.0.1:{server.port}/"
        admin = LiveAdmin(ConnectionSettings.parse(url))
        await create_group(
            admin, spec_in("Partitioned", queue_count=2, rebalance_delay_s=0.1), with_user=False
        )
        await admin.close()
        settings = PublishingSettings(window_messages=64, backoff_max_s=0.02)
        async with GroupPublisher(url, group="orders", settings=settings, on_event=told.append) as publisher:
            for number in range(150):  # 3 MB, and the two partitions hold 2
                await publisher.publish(key=f"k{number % 9}", body=b"%d" % number + bytes(20_000))
            await until(lambda: publisher.full_queues == [NAMES.parent], what="the queue to be full")
            connection = await connect(url)
            channel = await connection.open_channel()
            taken: list[bytes] = []

            def take(deliveries: list[Delivery]) -> None:
                taken.extend(bytes(one.body) for one in deliveries)
                channel.ack(deliveries[-1].delivery_tag, multiple=True)

            await channel.consume(NAMES.parent, take, prefetch_count=10)
            await publisher.flush()
            await until(lambda: len(taken) == 150, what="all messages")
            await connection.close()
        assert len(set(taken)) == 150
    assert {str(event) for event in told if isinstance(event, events.QueueFull)} == {
        "queue lbg.orders.q is full; its messages wait in order"
    }


@pytest.mark.long
async def test_a_publisher_of_a_group_that_is_closed_ends_with_the_reason(tmp_path: Path) -> None:
    anywhere = Address("127.0.0.1", 0)
    async with running(ServerSettings(tmp_path, listen=anywhere, management=anywhere)) as server:
        url = f"amqp://guest:guest@127.0.0.1:{server.port}/"
        api = ManagementApi(ManagementSettings.parse(f"http://{server.management_address}"))
        admin = LiveAdmin(ConnectionSettings.parse(url), api)
        await create_group(admin, spec_in("Sessions"), with_user=False)
        publisher = GroupPublisher(url, group="orders")

        async def publish_until_closed() -> None:
            async with publisher:
                await publisher.publish(key="a", body=b"before")
                await publisher.flush()
                await close_group(admin, "orders")
                await publisher.publish(key="a", body=b"after")
                await publisher.flush()

        with pytest.raises(GroupClosed, match="group 'orders' is closed and takes no more"):
            await asyncio.wait_for(publish_until_closed(), GUARD_S)
        assert publisher.confirmed_count == 1
        with pytest.raises(GroupClosed):
            await GroupPublisher(url, group="orders").__aenter__()
        await admin.close()
