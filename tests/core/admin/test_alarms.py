"""Alarms of a broker's nodes, as an administrator sees them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lbg_broker import Address, ServerSettings, running
from lbg_broker.core.effects import Page, StoreBatch
from lbg_broker.store import DiskFullError, Store
from lbg_core.admin import Unsupported
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.amqp.methods import QueueDeclare
from lbg_core.client import ConnectionSettings
from testing.rabbitmq.alarm import ALARMS, alarm
from testing.rabbitmq.node import RabbitNode

ANY = Address("127.0.0.1", 0)


async def told(admin: LiveAdmin, *, wanted: str) -> tuple[str, ...]:
    """The alarms, once one says `wanted`; RabbitMQ takes a moment."""
    for _ in range(400):
        found = await admin.management_for("alarms can only be read").alarms()
        if any(wanted in one for one in found):
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"nobody says {wanted!r}")


async def none_told(admin: LiveAdmin) -> None:
    """RabbitMQ samples its nodes, so one that is over is told for up to 5 s."""
    for _ in range(400):
        if await admin.management_for("alarms can only be read").alarms() == ():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still told: {await admin.management_for('alarms can only be read').alarms()}")


@pytest.mark.parametrize("kind", ALARMS)
async def test_rabbitmqs_alarms_are_told_while_they_last(rabbitmq: RabbitNode, kind: str) -> None:
    settings = ConnectionSettings.parse(rabbitmq.amqp_url)
    admin = LiveAdmin(settings, ManagementApi(ManagementSettings.parse(rabbitmq.management_url)))
    try:
        await none_told(admin)  # of another test on this node
        async with alarm(rabbitmq, kind):
            (one,) = await told(admin, wanted=f"is short of {kind}")
            assert one.endswith(f"@localhost is short of {kind}")
        await none_told(admin)
    finally:
        await admin.close()


async def test_the_embedded_brokers_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, carry_out = False, Store.carry_out

    def full(store: Store, batch: StoreBatch) -> list[Page]:
        if is_full:
            raise DiskFullError("no space left on the device")
        return carry_out(store, batch)

    monkeypatch.setattr(Store, "carry_out", full)
    settings = ServerSettings(tmp_path / "data", listen=ANY, management=ANY, disk_retry_s=0.02)
    async with running(settings) as server:
        where = ManagementSettings.parse(f"http://{server.management_address}")
        admin = LiveAdmin(ConnectionSettings(port=server.port), ManagementApi(where))
        assert await admin.management_for("alarms can only be read").alarms() == ()
        is_full = True
        declaring = asyncio.ensure_future(server.administer("guest", "/", QueueDeclare("q", durable=True)))
        (one,) = await told(admin, wanted="is short of disk")
        assert one.endswith(" is short of disk")
        is_full = False
        await declaring  # which is written on the reserve; whether publishes have room is tried later
        await none_told(admin)
        await admin.close()


async def test_without_a_management_api_nobody_knows() -> None:
    admin = LiveAdmin(ConnectionSettings())
    with pytest.raises(Unsupported, match="alarms can only be read"):
        await admin.management_for("alarms can only be read").alarms()
