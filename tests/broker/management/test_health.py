"""Health endpoint for probes, which have no login."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from lbg_broker import Address, Server, ServerSettings, running
from lbg_broker.core.effects import Page, StoreBatch
from lbg_broker.management import application
from lbg_broker.store import DiskFullError, Store
from lbg_core.amqp.methods import QueueDeclare
from testing.broker.managed import FakeManagedBroker
from testing.waiting import GUARD_S

ANY = Address("127.0.0.1", 0)
Probe = Callable[[str], Any]


@asynccontextmanager
async def probing(server: Server) -> AsyncIterator[Probe]:
    async with ClientSession(f"http://{server.management_address}") as session:

        async def probe(path: str) -> tuple[int, dict[str, str]]:
            async with session.get(path) as answer:
                return answer.status, await answer.json()

        yield probe


async def unready(probe: Probe) -> tuple[int, dict[str, str]]:
    """The first answer that is not 200."""
    for _ in range(2000):
        answer: tuple[int, dict[str, str]] = await probe("/readyz")
        if answer[0] != 200:
            return answer
        await asyncio.sleep(0.005)
    raise AssertionError("ready all the time")


async def ready(probe: Probe) -> None:
    for _ in range(2000):
        if (await probe("/readyz"))[0] == 200:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("not ready")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_broker_that_can_write_says_so_to_everybody(broker: FakeManagedBroker, path: str) -> None:
    async with TestServer(application(broker)) as server, ClientSession() as session:
        async with session.get(server.make_url(path)) as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})
        async with session.post(server.make_url(path)) as answer:
            assert answer.status == 405
        async with session.get(server.make_url("/api/health/checks/alarms")) as answer:
            assert answer.status == 401, "what RabbitMQ asks a login for does so still"


async def test_a_full_disk_makes_it_unready_and_leaves_it_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, carry_out = True, Store.carry_out

    def full_at_first(store: Store, batch: StoreBatch) -> list[Page]:
        if is_full:
            raise DiskFullError("no space left on the device")
        return carry_out(store, batch)

    settings = ServerSettings(tmp_path / "data", listen=ANY, management=ANY, disk_retry_s=0.02)
    async with running(settings) as server, probing(server) as probe:
        monkeypatch.setattr(Store, "carry_out", full_at_first)
        declaring = asyncio.ensure_future(server.administer("guest", "/", QueueDeclare("q", durable=True)))
        assert await unready(probe) == (
            503,
            {"status": "failed", "reason": "the store cannot write: low on disk"},
        )
        assert (await probe("/healthz"))[0] == 200
        is_full = False
        await declaring
        await ready(probe)  # what is declared has a place before publishes have


async def test_a_disk_that_hangs_makes_it_unready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, carry_out = threading.Event(), Store.carry_out

    def hangs(store: Store, batch: StoreBatch) -> list[Page]:
        goes_on.wait(GUARD_S)
        return carry_out(store, batch)

    settings = ServerSettings(tmp_path / "data", listen=ANY, management=ANY, disk_silent_s=0.05)
    async with running(settings) as server, probing(server) as probe:
        await server.committed()
        monkeypatch.setattr(Store, "carry_out", hangs)
        declaring = asyncio.ensure_future(server.administer("guest", "/", QueueDeclare("q", durable=True)))
        assert (await unready(probe))[1]["reason"] == "the disk has not answered for 0 s"
        goes_on.set()
        await declaring
        assert (await probe("/readyz"))[0] == 200


async def test_the_path_of_the_console_leads_to_the_console_if_there_is_one() -> None:
    for url, status in (("https://console.example.org", 307), (None, 404)):
        app = application(FakeManagedBroker(), console_url=url)
        async with (
            TestServer(app) as server,
            ClientSession() as session,
            session.get(server.make_url("/console"), allow_redirects=False) as answer,
        ):
            assert answer.status == status
            assert answer.headers.get("Location") == url
