"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lbg_core.client import Channel, ClientConnection, connect
from testing.amqp.fake_broker import FakeBroker, Session
from testing.broker.embedded import in_process


@pytest.fixture
async def fake() -> AsyncIterator[FakeBroker]:
    """A broker that does what the test says."""
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def pair(fake: FakeBroker) -> AsyncIterator[tuple[ClientConnection, Session]]:
    """A connection to the fake broker, and its other end."""
    connection = await connect(fake.url, name="test")
    yield connection, await fake.accepted.get()
    connection.abort()
    await connection.closed


@pytest.fixture(params=["rabbitmq", "embedded"])
async def broker_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """An empty RabbitMQ virtual host, then an empty embedded broker."""
    if request.param == "rabbitmq":
        yield request.getfixturevalue("rabbit_vhost")
    else:
        async with in_process(tmp_path / "data") as server:
            yield f"amqp://guest:guest@127.0.0.1:{server.port}/"


@pytest.fixture
async def connection(broker_url: str) -> AsyncIterator[ClientConnection]:
    """A connection to the broker of `broker_url`."""
    connection = await connect(broker_url, name="test")
    yield connection
    await connection.close()


@pytest.fixture
async def channel(connection: ClientConnection) -> Channel:
    """A channel of `connection`."""
    return await connection.open_channel()
