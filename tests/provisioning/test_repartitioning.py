"""Another number of queues on real brokers, without members and publishers of ours."""

from __future__ import annotations

import pytest

from lbg_broker.group import GroupSpec, recounted, topology_of
from lbg_broker.provisioning.live import LiveAdmin
from lbg_broker.provisioning.provisioner import create_group
from lbg_broker.provisioning.repartition.procedure import repartition_group


@pytest.mark.parametrize("count", [7, 2])
async def test_queues_bindings_and_record_are_those_of_a_group_made_with_that_many(
    admin: LiveAdmin, orders: GroupSpec, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lbg_broker.provisioning.repartition.draining.SAMPLED_S", 0.0
    )  # nobody holds anything
    await create_group(admin, orders)
    done = await repartition_group(admin, "orders", count, timeout_s=20.0)
    assert (done.was, done.now) == (4, count)
    created = await create_group(admin, recounted(orders, count))
    assert created.changes == ()
    observed = await admin.observe("orders")
    topology = topology_of(recounted(orders, count), observed.engine)
    assert observed.bindings == set(topology.bindings)
    assert {one.name for one in topology.queues} == set(observed.queues)
