"""What only RabbitMQ has: virtual hosts of one's own, and policies."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lbg_broker.client import ConnectionSettings
from lbg_broker.group import GroupSpec
from lbg_broker.provisioning.errors import Taken, Unsupported
from lbg_broker.provisioning.live import LiveAdmin
from lbg_broker.provisioning.management import ManagementApi, ManagementSettings, path
from lbg_broker.provisioning.provisioner import create_group, delete_group
from support.rabbitmq import RabbitNode


@pytest.fixture
def settings(rabbit_vhost: str) -> ConnectionSettings:
    return ConnectionSettings.parse(rabbit_vhost)


@pytest.fixture
async def api(rabbitmq: RabbitNode) -> AsyncIterator[ManagementApi]:
    api = ManagementApi(ManagementSettings.parse(rabbitmq.management_url))
    yield api
    await api.close()


@pytest.fixture
async def admin(settings: ConnectionSettings, rabbitmq: RabbitNode) -> AsyncIterator[LiveAdmin]:
    admin = LiveAdmin(settings, ManagementApi(ManagementSettings.parse(rabbitmq.management_url)))
    yield admin
    await admin.close()


@pytest.fixture
def orders(unique: str) -> GroupSpec:
    """Users belong to the whole node, so their names must differ from test to test."""
    return GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=10, client_username=unique
    )


async def test_a_group_of_the_same_name_in_another_virtual_host_keeps_its_user(
    admin: LiveAdmin, orders: GroupSpec, rabbitmq: RabbitNode, api: ManagementApi
) -> None:
    await create_group(admin, orders)
    elsewhere = LiveAdmin(
        ConnectionSettings.parse(rabbitmq.new_vhost()),
        ManagementApi(ManagementSettings.parse(rabbitmq.management_url)),
    )
    with pytest.raises(Taken, match="is that of group 'orders of virtual host test-"):
        await create_group(elsewhere, orders)
    await create_group(elsewhere, orders, with_user=False)
    await delete_group(elsewhere, "orders")
    assert await api.get(path("users", orders.client_username)) is not None
    await elsewhere.close()


async def test_a_policy_with_a_delivery_limit_is_refused(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi, settings: ConnectionSettings
) -> None:
    policy = {"pattern": "^lbg\\.", "definition": {"delivery-limit": 20}, "apply-to": "queues", "priority": 0}
    await api.put(path("policies", settings.vhost, "limit"), policy)
    with pytest.raises(Unsupported, match="policy 'limit' sets delivery-limit 20 on queue"):
        await create_group(admin, orders)
