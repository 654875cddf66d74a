"""Publishing through the sidecar to a group whose ingress is paused."""

from __future__ import annotations

from lbg_core.admin.groups import create_group
from lbg_core.admin.ingress import pause_ingress
from lbg_core.admin.management import ManagementSettings
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
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


async def test_new_events_are_503_with_the_reason_and_accepted_ones_wait_for_the_end(
    own_broker: EmbeddedBroker,
) -> None:
    spec = GroupSpec(
        "orders", "orders", hash_count=8, queue_count=2, queue_size_mb=1, client_username="orders"
    )
    place = Place(
        ConnectionSettings.parse(own_broker.url), ManagementSettings.parse(own_broker.management_url)
    )
    async with place.administered() as admin:
        await create_group(admin, spec, password="secret")
        url = own_broker.url.replace("guest:guest", "orders:secret")
        async with serving(url) as endpoint:
            assert (await endpoint.post("{}", event(0)))[0] == 200
            await pause_ingress(admin, "orders")
            endpoint.answers_within(0.3)
            status, told = await endpoint.post("{}", event(1))
            assert status == 503
            assert "they wait and may still be published" in told["detail"], "the refusal was not known yet"
            while (answer := await endpoint.post("{}", event(2)))[1]["detail"] != (
                "ingress of group orders is paused: nothing was published"
            ):
                assert answer[0] == 503
            endpoint.answers_within(GUARD_S)
            await pause_ingress(admin, "orders", is_paused=False)
            while (answer := await endpoint.post("{}", event(3)))[0] == 503:
                pass
            assert answer[0] == 200
            async with Drain(own_broker.url, spec) as drained:
                await until(lambda: {0, 1} < {one.seq for one in drained.seen}, what="the events")
            assert [one.seq for one in drained.seen] == list(range(len(drained.seen)))


async def test_a_pause_survives_a_restart_of_the_broker(own_broker: EmbeddedBroker) -> None:
    spec = GroupSpec(
        "orders", "orders", hash_count=8, queue_count=2, queue_size_mb=1, client_username="orders"
    )
    place = Place(
        ConnectionSettings.parse(own_broker.url), ManagementSettings.parse(own_broker.management_url)
    )
    async with place.administered() as admin:
        await create_group(admin, spec, password="secret")
        await pause_ingress(admin, "orders")
    own_broker.kill()
    own_broker.start()
    url = own_broker.url.replace("guest:guest", "orders:secret")
    async with place.administered() as admin, serving(url) as endpoint:
        status, told = await endpoint.post("{}", event(0))
        assert (status, told["detail"]) == (503, "ingress of group orders is paused: nothing was published")
        await pause_ingress(admin, "orders", is_paused=False)
        while (answer := await endpoint.post("{}", event(0)))[0] == 503:
            pass
        assert answer[0] == 200
