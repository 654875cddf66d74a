"""Consumers in mode Sessions: fewer of them once the sessions of those that are to go are over."""

from __future__ import annotations

import asyncio
import copy
import logging

from lbg_broker.provisioning import ProvisioningError
from lbg_broker.provisioning.native import SessionsSeen
from lbg_broker.provisioning.provisioner import close_group

from ..cluster.kinds import GROUP, POD, STATEFUL_SET
from ..manifests import GroupManifest
from ..status.judging import ScaleIn
from .planning import Object
from .sessions import SessionPlan, plan_sessions, told
from .store import Key
from .world import World, broker_key

log = logging.getLogger("lbg.operator")

ENDING = "lbg.dev/session-ending"
"""An annotation of a pod whose session was told to end. When it is over the sidecar stays out of the group for as long
as the pod lives, and nothing else tells such a pod from one that is starting."""

RETRY_S = 2.0
LIMIT_S = 20.0
"""For closing one session."""


class SessionScaling:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[Key, ScaleIn] = {}

    def waiting(self, key: Key) -> ScaleIn | None:
        """What fewer consumers wait for."""
        return self._waiting.get(key)

    def forget(self, key: Key) -> None:
        self._waiting.pop(key, None)

    async def paced(self, key: Key, group: GroupManifest, stateful_set: Object) -> tuple[Object, float]:
        """The StatefulSet to apply now, and in how many seconds to ask again or infinity. Raises ClusterError."""
        name, wanted = stateful_set["metadata"]["name"], stateful_set["spec"]["replicas"]
        there = self._world.store.get(STATEFUL_SET, Key(key.namespace, name))
        has = 0 if there is None else there["replicas"]
        seen = await self._sessions(key, is_fresh=wanted < has)
        if seen is None:
            if wanted >= has:
                self._waiting.pop(key, None)
                return stateful_set, float("inf")
            self._waiting[key] = ScaleIn(wanted, "")
            return _with_replicas(stateful_set, has), RETRY_S
        pods = {
            pod: ENDING in one["metadata"].get("annotations", {})
            for pod, one in self._world.store.pods(key).items()
        }
        plan = plan_sessions(name, wanted, seen, pods)
        await self._follow(key, group, plan)
        if plan.replicas == wanted:
            self._waiting.pop(key, None)
            return stateful_set, RETRY_S if plan.renew else float("inf")
        self._waiting[key] = ScaleIn(wanted, told(plan.waits_for))
        return _with_replicas(stateful_set, plan.replicas), RETRY_S

    async def _sessions(self, key: Key, *, is_fresh: bool) -> SessionsSeen | None:
        looks = self._world.looks
        look = await looks.fresh(key) if is_fresh else looks.latest(key)
        native = None if look is None or look.description is None else look.description.native
        return native if isinstance(native, SessionsSeen) else None

    async def _follow(self, key: Key, group: GroupManifest, plan: SessionPlan) -> None:
        cluster = self._world.cluster
        for marked, mark in ((plan.mark, "true"), (plan.unmark, None)):  # before the session is told
            for pod in marked:
                patch = {"metadata": {"annotations": {ENDING: mark}}}
                await cluster.merge(POD, key.namespace, pod, patch)
        for session in plan.close:
            await self._close(key, group, session)
        for pod in plan.renew:
            # By its uid: the store may have one that is gone, and the pod in its place is not the one that is over.
            if (there := self._world.store.pods(key).get(pod)) is not None:
                await cluster.delete(POD, key.namespace, pod, uid=there["metadata"]["uid"])

    async def _close(self, key: Key, group: GroupManifest, session: str) -> None:
        reach = self._world.reach.get(broker_key(group))
        if reach is None:
            return
        try:
            async with asyncio.timeout(LIMIT_S):
                await close_group(reach.admin, group.spec.name, session=session)
        except (TimeoutError, ProvisioningError) as error:  # the next round sees how it is, and tries again
            log.warning("%s: session %s could not be closed: %s", key, session, error or "no answer")
            return
        if (manifest := self._world.store.get(GROUP, key)) is not None:
            message = f"session {session} gets nothing new: its consumer is to go when it is worked off"
            self._world.announce(manifest, type="Normal", reason="SessionClosed", message=message)


def _with_replicas(stateful_set: Object, replicas: int) -> Object:
    kept = copy.deepcopy(stateful_set)
    kept["spec"]["replicas"] = replicas
    return kept
