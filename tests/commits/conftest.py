from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.embedded import EmbeddedBroker
from support.group_load import group_spec
from support.group_on_broker import declare_group
from support.member_place import Place


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
async def place(embedded: EmbeddedBroker, unique: str) -> Place:
    spec = group_spec(unique)
    await declare_group(embedded.url, spec)
    return Place("embedded", embedded.url, spec)
