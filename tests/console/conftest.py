"""An embedded broker in this process, a group on it, and a console."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lbg_broker import Address, ServerSettings, running
from lbg_console.application import Console
from lbg_core.admin.groups import create_group
from lbg_core.admin.management import ManagementSettings
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
from testing.admin.place import Place
from testing.console import Client, client_of, console_of
from testing.waiting import until

PASSWORD = "a password"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    anywhere = Address("127.0.0.1", 0)
    async with running(ServerSettings(tmp_path / "data", listen=anywhere, management=anywhere)) as server:
        yield Place(
            ConnectionSettings(host="127.0.0.1", port=server.port),
            ManagementSettings.parse(f"http://{server.management_address}"),
        )


@pytest.fixture
def orders() -> GroupSpec:
    return GroupSpec("orders", "orders", hash_count=8, queue_count=2, queue_size_mb=10)


@pytest.fixture
async def groups(place: Place, orders: GroupSpec) -> tuple[GroupSpec, GroupSpec]:
    """Two groups, each with a user of its own, whose password is `PASSWORD`."""
    payments = GroupSpec("payments", "payments", hash_count=8, queue_count=2, queue_size_mb=10)
    async with place.administered() as admin:
        for spec in (orders, payments):
            await create_group(admin, spec, password=PASSWORD)
    return orders, payments


@pytest.fixture
async def console(
    place: Place, groups: tuple[GroupSpec, GroupSpec], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Console]:
    monkeypatch.setattr("lbg_console.views.RECHECK_EVERY_S", 0.2)
    monkeypatch.setattr("lbg_console.survey.EVERY_S", 0.5)
    async with console_of(place) as console:
        await until(lambda: console.survey.groups.keys() == {"orders", "payments"}, what="the survey")
        yield console


@pytest.fixture
async def client(console: Console) -> AsyncIterator[Client]:
    async with client_of(console) as client:
        yield client


@pytest.fixture
async def lone_client(place: Place) -> AsyncIterator[Client]:
    """Of a console of a broker without groups."""
    async with console_of(place) as console, client_of(console) as client:
        yield client
