"""Publishing through the sidecar while the group is given another number of queues."""

from __future__ import annotations

import asyncio

from lbg_core.admin.groups import create_group
from lbg_core.admin.management import ManagementSettings
from lbg_core.admin.progress import Progress, Stage
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec, recounted
from testing.admin.group_on_broker import Drain
from testing.admin.place import Place
from testing.broker.embedded import EmbeddedBroker
from testing.sidecar.publish_endpoint import serving
from testing.waiting import GUARD_S, until


def event(number: int) -> dict[str, str]:
    return {
        "ce-id": f"e{number}",
        "ce-source": "/shop",
        "ce-type": "order",
        "ce-specversion": "1.0",
        "ce-partitionkey": "k",
    }


async def test_a_request_waits_is_told_to_come_again_and_finds_its_event_published_once(
    own_broker: EmbeddedBroker,
) -> None:
    spec = GroupSpec(
        "orders", "orders", hash_count=8, queue_count=2, queue_size_mb=1, client_username="orders"
    )
    place = Place(
        ConnectionSettings.parse(own_broker.url), ManagementSettings.parse(own_broker.management_url)
    )
    admin = place.admin()
    await create_group(admin, spec, password="secret")
    url = own_broker.url.replace("guest:guest", "orders:secret")
    async with serving(url) as endpoint:
        assert (await endpoint.post("{}", event(0)))[0] == 200
        steps: list[Progress] = []
        change = asyncio.create_task(
            repartition_group(admin, "orders", 5, timeout_s=GUARD_S, offline=True, report=steps.append)
        )
        await until(lambda: any(one.stage is Stage.WAITING for one in steps), what="the drain")
        endpoint.answers_within(0.3)
        status, told = await endpoint.post("{}", event(1))
        assert status == 503
        endpoint.answers_within(GUARD_S)
        assert "sent again with the same id, an event is not published a second time" in told["detail"]
        async with Drain(own_broker.url, spec) as before:
            await until(lambda: len(before.seen) == 1)
            await change
        while (answer := await endpoint.post("{}", event(1)))[0] == 503:
            pass
        status, receipt = answer
        assert (status, receipt["seq"]) == (200, 1)
        async with Drain(own_broker.url, recounted(spec, 5)) as after:
            # Who still drains the former queues may get it there.
            await until(lambda: len(before.seen) + len(after.seen) == 2)
        first, second = (*before.seen, *after.seen)
        assert (first.seq, second.seq) == (0, 1)
        assert second.queue == second.hash % 5
    await admin.close()
