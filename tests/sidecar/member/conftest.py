from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lbg_core.group import EXCLUSIVE
from testing.admin.group_on_broker import declare_group
from testing.member.group_load import Load, group_spec, load_on
from testing.member.place import Place


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    """Of the group of `place`: Exclusive, or a parameter of the test."""
    return getattr(request, "param", EXCLUSIVE)


@pytest.fixture(params=["embedded", "rabbitmq"])
async def place(process: None, request: pytest.FixtureRequest, unique: str, mode: str) -> Place:
    """A group of four queues, on either engine."""
    spec = group_spec(unique, mode=mode)
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbit_vhost")
    else:
        url = request.getfixturevalue("embedded").url
    await declare_group(url, spec)
    return Place(request.param, url, spec)


@pytest.fixture
async def load(place: Place) -> AsyncIterator[Load]:
    async with load_on(place.url, place.spec.name) as load:
        yield load
