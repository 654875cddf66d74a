"""Addresses that the operator connects to for a Broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lbg_core.admin import ProvisioningError
from lbg_core.admin.errors import Unreachable
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.client import ConnectError, ConnectionSettings, connect
from lbg_operator.reconcile.broker_pool import Access, BrokerAddresses, BrokerPool


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "100.100.100.200",
    ],
)
@pytest.mark.parametrize("networks", [(), ("0.0.0.0/0", "::/0")])
def test_metadata_services_are_refused(address: str, networks: tuple[str, ...]) -> None:
    assert not BrokerAddresses(networks).permit(address)


def test_a_network_inside_a_refused_one_permits_its_part() -> None:
    addresses = BrokerAddresses(["169.254.7.0/24"])
    assert addresses.permit("169.254.7.9")
    assert not addresses.permit("169.254.169.254")


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", "2001:db8::1"])
def test_without_a_list_other_addresses_are_permitted(address: str) -> None:
    assert BrokerAddresses().permit(address)


def test_a_list_permits_its_networks_only() -> None:
    addresses = BrokerAddresses(["10.0.0.0/8", "fd12::/16"])
    assert addresses.permit("10.200.0.1")
    assert addresses.permit("::ffff:10.200.0.1")
    assert addresses.permit("fd12::7")
    assert not addresses.permit("192.168.0.1")
    assert not addresses.permit("fd13::7")


class Listener:
    """Counts the connections to a port of this machine."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    def connected(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.connected, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    yield listener
    server.close()
    await server.wait_closed()


@pytest.fixture
def rebound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name broker.example resolves to this machine."""
    getaddrinfo = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        return getaddrinfo("127.0.0.1" if host == "broker.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.usefixtures("rebound")
@pytest.mark.parametrize("host", ["127.0.0.1", "broker.example"])
async def test_no_connection_is_made_to_an_address_that_is_not_permitted(
    tmp_path: Path, listener: Listener, host: str
) -> None:
    pool = BrokerPool(tmp_path, BrokerAddresses(["10.0.0.0/8"]))
    place = f"{host}:{listener.port}"
    access = Access((f"amqp://{place}",), (f"http://{place}",), "user", "password", is_named=True)
    admin = await pool.admin("main", access)
    with pytest.raises(
        (ProvisioningError, ConnectError), match=r"connections to 127\.0\.0\.1 are not permitted"
    ):
        await admin.check()
    await pool.close()
    assert listener.connections == 0


@pytest.mark.usefixtures("rebound")
async def test_a_permitted_address_is_connected_to(listener: Listener) -> None:
    permits = BrokerAddresses(["127.0.0.0/8"]).permit
    with pytest.raises(ConnectError, match=r"broker\.example"):  # it is no broker
        await connect(ConnectionSettings(host="broker.example", port=listener.port, permits=permits))
    assert listener.connections == 1


@pytest.mark.usefixtures("rebound")
@pytest.mark.parametrize("host", ["127.0.0.1", "broker.example"])
async def test_the_management_api_has_the_same_rule(listener: Listener, host: str) -> None:
    where = ManagementSettings.parse(f"http://{host}:{listener.port}")
    api = ManagementApi(where, permits=BrokerAddresses(["10.0.0.0/8"]).permit)
    with pytest.raises(Unreachable, match="not permitted"):
        await api.get("/api/overview")
    await api.close()
    assert listener.connections == 0


async def test_a_redirect_is_not_followed(listener: Listener) -> None:
    async def redirect(_request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://127.0.0.1:{listener.port}/latest/meta-data")

    app = web.Application()
    app.router.add_get("/api/overview", redirect)
    async with TestServer(app) as server:
        api = ManagementApi(ManagementSettings.parse(str(server.make_url("/"))))
        with pytest.raises(Unreachable, match="redirects"):
            await api.get("/api/overview")
        await api.close()
    assert listener.connections == 0
