from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lbg_core.group import EXCLUSIVE
from testing.admin.group_on_broker import declare_group
from testing.member.group_load import Load, group_spec, load_on
from testing.member.place import Place


@pytest.fixture(params=["embedded", "rabbitmq"])
async def place(process: None, request: pytest.FixtureRequest, unique: str) -> Place:
    """A group of four queues, on either engine; `rabbitmq-Partitioned`: in that mode."""
    engine, _, mode = request.param.partition("-")
    spec = group_spec(unique, mode=mode or EXCLUSIVE)
    is_embedded = engine == "embedded"
    url = request.getfixturevalue("embedded").url if is_embedded else request.getfixturevalue("rabbit_vhost")
    await declare_group(url, spec)
    return Place(engine, url, spec)


@pytest.fixture
async def load(place: Place) -> AsyncIterator[Load]:
    async with load_on(place.url, place.spec.name) as load:
        yield load
