"""RabbitMQ on a permission withdrawn under an open channel: the base of repartitioning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lbg_core.admin.actions import PutPermissions, PutUser
from lbg_core.admin.ingress_permissions import without
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.client import (
    AccessRefused,
    ClientConnection,
    ConfirmingPublisher,
    ConnectionClosed,
    ConnectionSettings,
    connect,
)
from lbg_core.group import Permissions
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S, until_answer

pytestmark = pytest.mark.slow

EXCHANGE = "amq.topic"
SILENT_S = 4.0
"""A channel hibernates after one second of silence at the least, and a busy machine takes longer."""


@pytest.fixture
async def admin(rabbitmq: RabbitNode, rabbit_vhost: str) -> AsyncIterator[LiveAdmin]:
    api = ManagementApi(ManagementSettings.parse(rabbitmq.management_url))
    admin = LiveAdmin(ConnectionSettings.parse(rabbit_vhost), api)
    yield admin
    await admin.close()


@pytest.fixture
async def client(admin: LiveAdmin, rabbit_vhost: str, unique: str) -> AsyncIterator[ClientConnection]:
    """Of a user who may do everything."""
    await admin.perform(PutUser(unique, "secret", "orders"))
    await admin.perform(PutPermissions(unique, Permissions(".*", ".*", ".*")))
    connection = await connect(
        rabbit_vhost.replace("guest:guest", f"{unique}:secret"), name="lbg publish orders a"
    )
    yield connection
    await connection.close()


async def withdraw(admin: LiveAdmin, user: str) -> None:
    await admin.perform(PutPermissions(user, Permissions(".*", without(".*", EXCHANGE), ".*")))


async def test_a_busy_channel_keeps_a_withdrawn_permission_and_a_new_one_does_not_get_it(
    admin: LiveAdmin, client: ClientConnection, unique: str
) -> None:
    busy, idle = await ConfirmingPublisher.open(client), await ConfirmingPublisher.open(client)
    for publisher in (busy, idle):
        await publisher.publish(EXCHANGE, "a", b"")
    await withdraw(admin, unique)
    for _ in range(100):
        await busy.publish(EXCHANGE, "a", b"")
    with pytest.raises(AccessRefused):
        await (await ConfirmingPublisher.open(client)).publish(EXCHANGE, "a", b"")
    await asyncio.sleep(SILENT_S)
    with pytest.raises(AccessRefused):
        await idle.publish(EXCHANGE, "a", b"")


async def test_the_management_api_closes_a_connection_from_its_first_sample_on(
    admin: LiveAdmin, client: ClientConnection, unique: str
) -> None:
    management = admin.management_for("connections")
    (name,) = await until_answer(lambda: management.connections_of(unique))
    assert await until_answer(lambda: management.connection_name(name)) == client.name
    await management.close_connection(name, reason="for a reason")
    async with asyncio.timeout(GUARD_S):
        closed = await client.closed
    assert isinstance(closed, ConnectionClosed)
    assert closed.reply_text == "CONNECTION_FORCED - for a reason"
