from __future__ import annotations

import pytest

from support.admin.group_on_broker import declare_group
from support.broker.embedded import EmbeddedBroker
from support.member.group_load import group_spec
from support.member.place import Place


@pytest.fixture
async def place(embedded: EmbeddedBroker, unique: str) -> Place:
    spec = group_spec(unique)
    await declare_group(embedded.url, spec)
    return Place("embedded", embedded.url, spec)
