"""Fewer consumers: the pods that serve the fewest queues go first, and nobody goes while nobody knows who serves."""

from __future__ import annotations

import copy
import logging

from ..cluster.kinds import DEPLOYMENT, POD
from .planning import DELETION_COST, Object, deletion_costs
from .store import Key
from .world import World

log = logging.getLogger("lbg.operator")

PATIENCE_S = 60.0
"""A scale-in waits this long for a look that shows who serves what, and then goes on without."""
RETRY_S = 2.0


class Scaling:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting_since: dict[Key, float] = {}

    async def paced(self, key: Key, deployment: Object) -> tuple[Object, float]:
        """The Deployment to apply now, and in how many seconds to ask again or infinity. Raises ClusterError."""
        there = self._world.store.get(DEPLOYMENT, key)
        wanted = deployment["spec"]["replicas"]
        has = None if there is None else there["replicas"]
        if has is None or wanted >= has:
            self._waiting_since.pop(key, None)
            return deployment, float("inf")
        if await self._weigh(key):
            self._waiting_since.pop(key, None)
            return deployment, float("inf")
        since = self._waiting_since.setdefault(key, self._world.now())
        if self._world.now() - since >= PATIENCE_S:
            log.warning("%s: scaled in to %d without knowing who serves which queue", key, wanted)
            return deployment, float("inf")
        kept = copy.deepcopy(deployment)
        kept["spec"]["replicas"] = has
        return kept, RETRY_S

    async def _weigh(self, key: Key) -> bool:
        """Write into each pod what its going costs; False when that is not known."""
        look = await self._world.looks.fresh(key)
        if look is None or look.description is None:
            return False
        pods = self._world.store.pods(key)
        try:
            costs = deletion_costs(look.description, pods)
        except ValueError:
            return False
        for pod, cost in costs.items():
            was = pods[pod]["metadata"].get("annotations", {}).get(DELETION_COST, "0")
            if was != str(cost):
                patch = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
                await self._world.cluster.merge(POD, key.namespace, pod, patch)
        return True

    def forget(self, key: Key) -> None:
        self._waiting_since.pop(key, None)
