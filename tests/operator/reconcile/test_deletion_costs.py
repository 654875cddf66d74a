"""Deletion costs of pods, by members and broker: the pod with the least load goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.describe import Description
from lbg_core.admin.groups import show_group
from lbg_core.admin.snapshot import UNKNOWN
from lbg_operator.reconcile.desired import deletion_costs
from testing.admin.native_groups import made


def beat(index: int, in_flight: int) -> dict[str, Any]:
    queue = {
        "queue": 0,
        "role": "primary",
        "active": True,
        "status": "Ready",
        "in_flight": in_flight,
        "delivered": 9,
    }
    about = {"index": index, "name": f"m{index}", "incarnation": "a", "rebalance": "Ready", "counts": {}}
    return {**about, "queues": [queue]}


async def shown(mode: str) -> Description:
    admin = await made(mode)
    parent = "lbg.orders.q"
    admin.queues[parent] = replace(admin.queues[parent], consumers=3)
    admin.beats = [beat(0, 4), beat(1, 0), beat(2, 9)]
    return await show_group(admin, "orders")


async def test_of_one_queue_for_all_it_is_what_a_member_has_in_hand() -> None:
    costs = deletion_costs(await shown("MessageGroups"), ["m0", "m1", "m2", "new"])
    assert costs == {"m0": 4, "m1": 0, "m2": 9, "new": 0}


async def test_of_partitions_it_is_how_many_the_broker_says_a_member_has() -> None:
    assert deletion_costs(await shown("Partitioned"), ["m0", "m1", "m2"]) == {"m0": 0, "m1": 1, "m2": 0}


async def test_nobody_is_weighed_by_what_nobody_knows() -> None:
    with pytest.raises(ValueError, match="could not be read"):
        deletion_costs(replace(await shown("MessageGroups"), members=UNKNOWN), ["m0"])
