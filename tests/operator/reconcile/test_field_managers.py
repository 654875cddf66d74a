"""`spec.queues.count` is the field of Argo CD, which applies the manifest: the operator never writes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_core.admin.actions import DeclareQueue
from lbg_core.group import GroupSpec, recounted, topology_of
from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import GROUP
from lbg_operator.resources.names import MANAGER
from testing.kubernetes.managed_cluster import ManagedCluster, Path
from testing.kubernetes.manifests import consumer
from testing.operator.operated import SETTLED_S, Place, wall_clock
from testing.virtual_time import in_virtual_time

ARGO = "argocd-controller"
ORDERS = (GROUP, "shop", "orders")
COUNT: Path = ("spec", "queues", "count")
LATER_S = 700.0
"""By then what failed was tried again, and the cluster listed anew."""


class GitOps(Place):
    """`git`: the manifest that Argo CD syncs."""

    def __init__(self) -> None:
        self.managed = ManagedCluster(wall_clock)
        super().__init__(cluster=self.managed)
        spec = {
            "brokerRef": {"name": "main"},
            "groupName": "shop-orders",
            "queues": {"count": 8},
            "replicas": 2,
            "consumer": consumer(),
        }
        metadata = {"name": "orders", "namespace": "shop"}
        self.git: dict[str, Any] = {
            "apiVersion": GROUP.api_version,
            "kind": GROUP.kind,
            "metadata": metadata,
            "spec": spec,
        }

    def sync(self) -> None:
        """Without force: a conflict is an error."""
        self.managed.apply_as(ARGO, self.git)

    def is_in_sync(self) -> bool:
        before = self.seen(GROUP)["metadata"]["resourceVersion"]
        self.sync()
        return bool(self.seen(GROUP)["metadata"]["resourceVersion"] == before)

    @property
    def generation(self) -> int:
        return int(self.seen(GROUP)["metadata"]["generation"])

    def owned_by_the_operator(self) -> set[Path]:
        return {path[:2] for path, names in self.managed.owners[ORDERS].items() if MANAGER in names}

    async def repartition(self, count: int) -> None:
        """State that `lbg group repartition` leaves on the broker."""
        group = "shop-orders"
        spec = recounted(GroupSpec.from_record(self.broker.records[group], name=group), count)
        topology = topology_of(spec, self.broker.engine)
        for queue in topology.queues:
            if queue.name not in self.broker.queues:
                await self.broker.perform(DeclareQueue(queue))
        self.broker.bindings = set(topology.bindings)
        self.broker.records[group] = spec.to_record()

    async def provisioned(self) -> None:
        self.apply_broker()
        await self.start()
        self.sync()
        await asyncio.sleep(SETTLED_S)
        assert self.conditions()["Ready"] == ("True", "Served")


@pytest.mark.parametrize("is_by_hand", [True, False], ids=["by hand", "in Git"])
@in_virtual_time
async def test_the_number_of_queues_stays_argo_cds_before_during_and_after_a_change(is_by_hand: bool) -> None:
    """The manifest decides: the operator changes a number back that the command line has set."""
    async with GitOps() as place:
        await place.provisioned()
        assert place.managed.owners[ORDERS][COUNT] == {ARGO}
        assert place.is_in_sync()

        if is_by_hand:
            await place.repartition(12)
        else:
            place.git["spec"]["queues"]["count"] = 12
            place.sync()
        generation, count = place.generation, place.git["spec"]["queues"]["count"]
        assert place.is_in_sync(), "nobody fights over it while both differ"
        await place.restart()
        await asyncio.sleep(LATER_S)
        assert (place.generation, place.seen(GROUP)["spec"]["queues"]["count"]) == (generation, count)
        assert (
            GroupSpec.from_record(place.broker.records["shop-orders"], name="shop-orders").queue_count
            == count
        )
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.generation == generation
        assert place.is_in_sync()
        assert place.managed.owners[ORDERS][COUNT] == {ARGO}
        assert {path[0] for path in place.owned_by_the_operator()} == {"metadata", "status"}
        assert ("metadata", "finalizers") in place.owned_by_the_operator()


@in_virtual_time
async def test_a_number_that_somebody_else_applied_is_a_conflict_of_the_two_and_not_the_operators() -> None:
    async with GitOps() as place:
        await place.provisioned()
        other = {**place.git, "spec": {**place.git["spec"], "queues": {"count": 4}}}
        with pytest.raises(ClusterError, match="queues") as error:
            place.managed.apply_as("kubectl", other)
        assert error.value.status == 409
        place.managed.apply_as("kubectl", other, force=True)
        await asyncio.sleep(LATER_S)
        assert place.seen(GROUP)["spec"]["queues"]["count"] == 4
        assert place.managed.owners[ORDERS][COUNT] == {"kubectl"}
        place.managed.apply_as(ARGO, place.git, force=True)  # as Argo CD syncs
        await asyncio.sleep(LATER_S)
        assert place.managed.owners[ORDERS][COUNT] == {ARGO}
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        assert place.is_in_sync()
