"""Scaling in: pods that serve the fewest queues go first, sessions end before their pods.

A session's messages are for nobody else, so a pod goes when its session is over: it is given nothing new, its pod works
off what it has, and the sidecar leaves at the End-of-Session and stays out (ADR 34).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lbg_core.admin import ProvisioningError
from lbg_core.admin.groups import close_group
from lbg_core.admin.snapshot import CLOSING, LIVE, SessionsStatus, SessionStatus
from lbg_core.counted_nouns import counted
from lbg_operator.crds import GroupManifest
from lbg_operator.kube.kinds import DEPLOYMENT, GROUP, POD, STATEFUL_SET
from lbg_operator.reconcile.context import ReconcileContext, broker_key
from lbg_operator.reconcile.desired import DELETION_COST, Object, deletion_costs
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.status.condition_rules import ScaleIn

log = logging.getLogger("lbg.operator")

PATIENCE_S = 60.0
"""A scale-in waits this long for a survey that shows the active members, and then goes on without."""
RETRY_S = 2.0


class DeploymentScaling:
    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._waiting_since: dict[Key, float] = {}

    async def paced(self, key: Key, deployment: Object) -> tuple[Object, float]:
        """The Deployment to apply now, and in how many seconds to ask again or infinity. Raises ClusterError."""
        existing = self._context.store.get(DEPLOYMENT, key)
        desired = deployment["spec"]["replicas"]
        current = None if existing is None else existing["replicas"]
        if current is None or desired >= current:
            self._waiting_since.pop(key, None)
            return deployment, float("inf")
        if await self._write_deletion_costs(key):
            self._waiting_since.pop(key, None)
            return deployment, float("inf")
        since = self._waiting_since.setdefault(key, self._context.now())
        if self._context.now() - since >= PATIENCE_S:
            log.warning("%s: scaled in to %d while the active members are unknown", key, desired)
            return deployment, float("inf")
        held_back = copy.deepcopy(deployment)
        held_back["spec"]["replicas"] = current
        return held_back, RETRY_S

    async def _write_deletion_costs(self, key: Key) -> bool:
        """Writes the deletion cost of each pod; False when that is unknown."""
        survey = await self._context.surveys.fresh(key)
        if survey is None or survey.description is None:
            return False
        pods = self._context.store.pods(key)
        try:
            costs = deletion_costs(survey.description, pods)
        except ValueError:
            return False
        for pod, cost in costs.items():
            former = pods[pod]["metadata"].get("annotations", {}).get(DELETION_COST, "0")
            if former != str(cost):
                patch = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
                await self._context.cluster.merge(POD, key.namespace, pod, patch)
        return True

    def forget(self, key: Key) -> None:
        self._waiting_since.pop(key, None)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """- `replicas`: of the StatefulSet now.
    - `close`: sessions that are to be given nothing new.
    - `mark`, `unmark`: pods whose session is ending, and pods of which that was thought and is not so.
    - `renew`: pods whose session is over and that are wanted again, which they are as new ones only.
    - `waits_for`: the sessions that more pods are kept for than were asked for.
    """

    replicas: int
    close: tuple[str, ...] = ()
    mark: tuple[str, ...] = ()
    unmark: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()
    waits_for: tuple[SessionStatus, ...] = ()


def plan_sessions(
    stateful_set: str, desired: int, status: SessionsStatus, pods: Mapping[str, bool]
) -> SessionPlan:
    """`pods` maps the name of each pod to whether it was marked. A pod is called as its session.

    A session that has messages and no pod, as it began when its pod was about to go, gets its pod back to work them
    off. One that has neither messages nor a consumer holds up nobody.
    """
    sessions = {one.session: one for one in status.sessions}
    numbered = [(ordinal_of(stateful_set, one.session), one) for one in status.sessions]
    holding = [
        (ordinal, one)
        for ordinal, one in numbered
        if ordinal is not None and ordinal >= desired and (one.state == LIVE or one.messages)
    ]
    close = tuple(one.session for _, one in holding if one.state != CLOSING)
    ending = {*close, *(one.session for one in status.sessions if one.state == CLOSING)}
    over = [name for name, is_marked in pods.items() if is_marked and name not in sessions]
    return SessionPlan(
        replicas=max([desired, *(ordinal + 1 for ordinal, _ in holding)]),
        close=close,
        mark=tuple(name for name, is_marked in pods.items() if name in ending and not is_marked),
        unmark=tuple(
            name for name, is_marked in pods.items() if is_marked and name in sessions and name not in ending
        ),
        renew=() if status.closed else tuple(_below(desired, stateful_set, over)),
        waits_for=tuple(one for _, one in holding),
    )


def ordinal_of(stateful_set: str, name: str) -> int | None:
    """The number of a pod, and so of its session; None for what is neither of this StatefulSet."""
    before, _, number = name.rpartition("-")
    return int(number) if before == stateful_set and number.isdecimal() else None


def names_of_sessions(sessions: Iterable[SessionStatus], *, at_most: int = 10) -> str:
    """The sessions by name, with their states and messages."""
    named = [f"{one.session} ({one.state}, {counted(one.messages, 'message')})" for one in sessions]
    return ", ".join(named[:at_most]) + (f" and {len(named) - at_most} more" if len(named) > at_most else "")


def _below(desired: int, stateful_set: str, pods: Iterable[str]) -> Iterable[str]:
    for pod in pods:
        ordinal = ordinal_of(stateful_set, pod)
        if ordinal is not None and ordinal < desired:
            yield pod


ENDING = "lbg.dev/session-ending"
"""An annotation of a pod whose session is to end. When it is over the sidecar stays out of the group for as long as the
pod lives, and nothing else distinguishes such a pod from one that is starting."""


LIMIT_S = 20.0
"""For closing one session."""


class SessionScaling:
    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._waiting: dict[Key, ScaleIn] = {}

    def waiting(self, key: Key) -> ScaleIn | None:
        """Sessions that a scale-in waits for."""
        return self._waiting.get(key)

    def forget(self, key: Key) -> None:
        self._waiting.pop(key, None)

    async def paced(self, key: Key, group: GroupManifest, stateful_set: Object) -> tuple[Object, float]:
        """The StatefulSet to apply now, and in how many seconds to ask again or infinity. Raises ClusterError."""
        name, desired = stateful_set["metadata"]["name"], stateful_set["spec"]["replicas"]
        existing = self._context.store.get(STATEFUL_SET, Key(key.namespace, name))
        current = 0 if existing is None else existing["replicas"]
        status = await self._sessions(key, is_fresh=desired < current)
        if status is None:
            if desired >= current:
                self._waiting.pop(key, None)
                return stateful_set, float("inf")
            self._waiting[key] = ScaleIn(desired, "")
            return _with_replicas(stateful_set, current), RETRY_S
        pods = {
            pod: ENDING in one["metadata"].get("annotations", {})
            for pod, one in self._context.store.pods(key).items()
        }
        plan = plan_sessions(name, desired, status, pods)
        await self._apply_plan(key, group, plan)
        if plan.replicas == desired:
            self._waiting.pop(key, None)
            return stateful_set, RETRY_S if plan.renew else float("inf")
        self._waiting[key] = ScaleIn(desired, names_of_sessions(plan.waits_for))
        return _with_replicas(stateful_set, plan.replicas), RETRY_S

    async def _sessions(self, key: Key, *, is_fresh: bool) -> SessionsStatus | None:
        surveys = self._context.surveys
        survey = await surveys.fresh(key) if is_fresh else surveys.latest(key)
        native = None if survey is None or survey.description is None else survey.description.native
        return native if isinstance(native, SessionsStatus) else None

    async def _apply_plan(self, key: Key, group: GroupManifest, plan: SessionPlan) -> None:
        cluster = self._context.cluster
        for marked, mark in ((plan.mark, "true"), (plan.unmark, None)):  # before the session is closed
            for pod in marked:
                patch = {"metadata": {"annotations": {ENDING: mark}}}
                await cluster.merge(POD, key.namespace, pod, patch)
        for session in plan.close:
            await self._close(key, group, session)
        for pod in plan.renew:
            # By its uid: the store may have one that is gone, and the pod in its place is not the one that is over.
            if (existing := self._context.store.pods(key).get(pod)) is not None:
                await cluster.delete(POD, key.namespace, pod, uid=existing["metadata"]["uid"])

    async def _close(self, key: Key, group: GroupManifest, session: str) -> None:
        reach = self._context.reach.get(broker_key(group))
        if reach is None:
            return
        try:
            async with asyncio.timeout(LIMIT_S):
                await close_group(reach.admin, group.spec.name, session=session)
        except (TimeoutError, ProvisioningError) as error:  # the next reconcile tries again
            log.warning("%s: session %s could not be closed: %s", key, session, error or "no answer")
            return
        if (manifest := self._context.store.get(GROUP, key)) is not None:
            message = f"session {session} gets no new messages: its consumer is removed when it has ended"
            self._context.announce(manifest, type="Normal", reason="SessionClosed", message=message)


def _with_replicas(stateful_set: Object, replicas: int) -> Object:
    copied = copy.deepcopy(stateful_set)
    copied["spec"]["replicas"] = replicas
    return copied
