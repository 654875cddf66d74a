"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lbg_broker.client import Channel, ClientConnection, connect
from support.fake_broker import FakeBroker, Session


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


@pytest.fixture
async def rabbit(rabbit_vhost: str) -> AsyncIterator[ClientConnection]:
    """A connection to RabbitMQ, to an empty virtual host."""
    connection = await connect(rabbit_vhost, name="test")
    yield connection
    await connection.close()


@pytest.fixture
async def channel(rabbit: ClientConnection) -> Channel:
    """A channel of `rabbit`."""
    return await rabbit.open_channel()
