"""Both engines, each empty, and who provisions on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from lbg_broker import Address, ServerSettings, running
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.io import startup
from testing.admin.place import Place
from testing.rabbitmq.node import RabbitNode


@pytest.fixture(params=["embedded", "rabbitmq"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "rabbitmq":
        settings = ConnectionSettings.parse(request.getfixturevalue("rabbit_vhost"))
        node: RabbitNode = request.getfixturevalue("rabbitmq")
        yield Place(settings, ManagementSettings.parse(node.management_url))
        return
    anywhere = Address("127.0.0.1", 0)
    async with running(ServerSettings(tmp_path / "data", listen=anywhere, management=anywhere)) as server:
        yield Place(
            ConnectionSettings(host="127.0.0.1", port=server.port),
            ManagementSettings.parse(f"http://{server.management_address}"),
        )


@pytest.fixture
def settings(place: Place) -> ConnectionSettings:
    return place.settings


@pytest.fixture
async def api(place: Place) -> AsyncIterator[ManagementApi]:
    api = ManagementApi(place.management)
    yield api
    await api.close()


@pytest.fixture
async def admin(place: Place) -> AsyncIterator[LiveAdmin]:
    async with place.administered() as admin:
        yield admin


@pytest.fixture
def orders(unique: str) -> GroupSpec:
    """Users belong to the whole node, so their names must differ from test to test."""
    return GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=10, client_username=unique
    )


@pytest.fixture(autouse=True)
def _quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members report five times as often, and commands listen to them for as much less."""
    monkeypatch.setattr(startup, "Timings", partial(Timings, report_s=0.05, changed_report_s=0.2))
    for command in ("key_move", "repartition"):
        monkeypatch.setattr(f"lbg_core.admin.{command}.LISTEN_S", 0.3)
