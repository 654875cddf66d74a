from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from testing.admin.group_on_broker import declare_group
from testing.member.group_load import Load, group_spec, load_on
from testing.member.place import Place


@pytest.fixture
async def place(rabbit_vhost: str, unique: str) -> Place:
    """A group of four queues on a node that all tests share."""
    spec = group_spec(unique)
    await declare_group(rabbit_vhost, spec)
    return Place("rabbitmq", rabbit_vhost, spec)


@pytest.fixture
async def load(place: Place) -> AsyncIterator[Load]:
    async with load_on(place.url, place.spec.name) as load:
        yield load
