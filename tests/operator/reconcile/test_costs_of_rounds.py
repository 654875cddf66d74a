"""Cost of reconciles while nothing changes, and of hundreds of groups at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lbg_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT
from lbg_operator.reconcile import group as rounds
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.reconcile.provision import LIMIT_S, PROVISIONED_AT_ONCE
from testing.operator.operated import SETTLED_S, Place
from testing.virtual_time import in_virtual_time


@in_virtual_time
async def test_nothing_is_rendered_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []
    children_of = rounds.children_of

    def counting(group: Any, *args: Any, **kwargs: Any) -> Any:
        rendered.append(group.metadata.name)
        return children_of(group, *args, **kwargs)

    monkeypatch.setattr(rounds, "children_of", counting)
    async with Place() as place:
        await place.ready()
        await asyncio.sleep(SETTLED_S)
        before = len(rendered)
        await asyncio.sleep(300)
        assert len(rendered) == before
        place.cluster.edit(CONFIG_MAP, "shop", "orders-lbg", {"data": {"queue-count": "9"}})
        await asyncio.sleep(1)
        assert place.seen(CONFIG_MAP, "orders-lbg")["data"]["queue-count"] == "8"
        assert len(rendered) > before
        place.edit_group({"replicas": 3})
        await asyncio.sleep(SETTLED_S)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 3


@pytest.mark.long
@in_virtual_time
async def test_a_broker_makes_a_few_groups_at_a_time_and_so_each_within_its_limit() -> None:
    """All at once, each was as slow as all together, none was done in time, and they began again for ever."""
    async with Place() as place:
        place.apply_broker()
        await place.start()
        making, most, lock = 0, 0, place.broker.lock

        @asynccontextmanager
        async def slow(group: str) -> AsyncIterator[None]:
            nonlocal making, most
            async with lock(group):
                making += 1
                most = max(most, making)
                try:
                    await asyncio.sleep(making * LIMIT_S / (PROVISIONED_AT_ONCE + 2))  # one disk for all
                    yield
                finally:
                    making -= 1

        place.broker.lock = slow
        names = [f"g{number}" for number in range(3 * PROVISIONED_AT_ONCE)]
        for name in names:
            place.apply_group(name, replicas=0)
        await asyncio.sleep(200)
        assert {place.conditions(Key("shop", name))["Provisioned"][0] for name in names} == {"True"}
        assert most == PROVISIONED_AT_ONCE
