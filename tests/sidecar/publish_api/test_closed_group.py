"""Publishing through the sidecar to a group that takes no more."""

from __future__ import annotations

from lbg_core.admin.groups import close_group, create_group
from lbg_core.admin.management import ManagementSettings
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
from testing.admin.place import Place
from testing.broker.embedded import EmbeddedBroker
from testing.sidecar.publish_endpoint import serving


async def test_a_closed_group_is_403_with_the_reason_and_no_reason_to_come_again(
    own_broker: EmbeddedBroker,
) -> None:
    spec = GroupSpec(
        "orders", "orders", hash_count=8, queue_size_mb=1, client_username="guest", mode="Sessions"
    )
    place = Place(
        ConnectionSettings.parse(own_broker.url), ManagementSettings.parse(own_broker.management_url)
    )
    admin = place.admin()
    await create_group(admin, spec, with_user=False)
    async with serving(own_broker.url) as endpoint:
        assert (await endpoint.post("{}"))[0] == 200
        await close_group(admin, "orders")

        status, told = await endpoint.post("{}")

        assert status == 403
        assert told["detail"].startswith("group 'orders' is closed and takes no more messages")
    await admin.close()
