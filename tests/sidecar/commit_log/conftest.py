from __future__ import annotations

import pytest

from support.embedded import EmbeddedBroker
from support.group_load import group_spec
from support.group_on_broker import declare_group
from support.member_place import Place


@pytest.fixture
async def place(embedded: EmbeddedBroker, unique: str) -> Place:
    spec = group_spec(unique)
    await declare_group(embedded.url, spec)
    return Place("embedded", embedded.url, spec)
