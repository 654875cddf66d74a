from __future__ import annotations

import pytest

from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import group_spec
from testing.member.place import Place


@pytest.fixture
async def place(embedded: EmbeddedBroker, unique: str) -> Place:
    spec = group_spec(unique)
    await declare_group(embedded.url, spec)
    return Place("embedded", embedded.url, spec)
