"""A group in mode Sessions on a cluster and a broker in memory: pods by number, whose sessions outlive them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from lbg_core.admin.actions import Action, ActOnQueue
from lbg_core.admin.snapshot import (
    AWAY,
    CLOSING,
    LIVE,
    STRANDED,
    QueueStatus,
    SessionsStatus,
    SessionStatus,
    Snapshot,
)
from lbg_core.group import GroupSpec, Names
from lbg_operator.kube.api import Object
from lbg_operator.kube.kinds import POD, STATEFUL_SET, Kind
from lbg_operator.resources.names import GROUP_LABEL
from testing.kubernetes.fake_cluster import FakeCluster
from testing.operator.operated import MAIN, Place
from testing.operator.operated_broker import OperatedBroker

LATER_S = 0.2
WAITING = 5
"""Messages of each session when its pod gets it."""


@dataclass
class _Session:
    messages: int = WAITING
    closing: bool = False
    away_since: float | None = None


class SessionPods:
    """The StatefulSet's controller. `gone`: the pods that it or the operator took, in order. `is_away`: it does
    nothing."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.gone: list[str] = []
        self.is_away = False
        cluster.watchers.insert(0, self._told)

    def all(self) -> dict[str, Object]:
        return {name: one for (kind, _, name), one in self._cluster.objects.items() if kind is POD}

    def _told(self, kind: Kind, seen: Object, is_gone: bool) -> None:
        if kind is POD and is_gone:
            self.gone.append(seen["metadata"]["name"])
        if kind in (POD, STATEFUL_SET) and not self.is_away:
            asyncio.get_running_loop().call_later(LATER_S, self._follow)

    def _follow(self) -> None:
        for (kind, namespace, name), one in list(self._cluster.objects.items()):
            if kind is not STATEFUL_SET or GROUP_LABEL not in one["metadata"]["labels"]:
                continue
            wanted = {f"{name}-{ordinal}" for ordinal in range(one["spec"]["replicas"])}
            there = self.all()
            for pod in sorted(wanted - there.keys()):
                metadata = {
                    "namespace": namespace,
                    "name": pod,
                    "labels": dict(one["spec"]["template"]["metadata"]["labels"]),
                    "ownerReferences": [{"uid": one["metadata"]["uid"], "kind": kind.kind, "name": name}],
                }
                self._cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
            for pod in sorted(there.keys() - wanted, reverse=True):
                self._cluster.take_away(POD, namespace, pod)
            status = {"replicas": len(wanted), "readyReplicas": len(wanted)}
            self._cluster.edit(STATEFUL_SET, str(namespace), name, {"status": status})


class SessionsBroker(OperatedBroker):
    """`works`: pods work off what their sessions have once these are closing. `starts`: a pod takes its session up."""

    def __init__(self, pods: SessionPods) -> None:
        super().__init__()
        self.pods = pods
        self.works = True
        self.starts = True
        self.closed = False
        self.sessions: dict[str, _Session] = {}
        self.told: list[str] = []
        """The sessions that were closed, in order."""
        self._over: set[str] = set()

    def begin(self, session: str) -> None:
        self.sessions[session] = _Session()

    async def observe(self, group: str, *, desired: GroupSpec | None = None) -> Snapshot:
        observed = await super().observe(group, desired=desired)
        parent = Names(group).parent
        queue = observed.queues.get(parent)
        if not isinstance(queue, QueueStatus):
            return observed
        native = self._seen()
        told = replace(queue, native=native, ready=sum(one.messages for one in native.sessions), unacked=0)
        return replace(observed, queues={**observed.queues, parent: told})

    async def perform(self, action: Action) -> None:
        if isinstance(action, ActOnQueue):
            self._require()
            session = str(action.arguments["session"])
            self.told.append(session)
            self.sessions[session].closing = True
            self.sessions[session].messages += 1
            return
        await super().perform(action)

    def _seen(self) -> SessionsStatus:
        pods = {name: one["metadata"]["uid"] for name, one in self.pods.all().items()}
        for name, uid in pods.items():
            if uid not in self._over and self.starts:
                self.sessions.setdefault(name, _Session())
        for name, session in list(self.sessions.items()):
            if session.closing and self.works and name in pods:
                self._over.add(pods[name])
                del self.sessions[name]
        return SessionsStatus(
            self.closed, 0, tuple(self._shown(name, name in pods) for name in sorted(self.sessions))
        )

    def _shown(self, name: str, is_live: bool) -> SessionStatus:
        session = self.sessions[name]
        state = CLOSING if session.closing else LIVE if is_live else STRANDED if session.messages else AWAY
        return SessionStatus(name, state, None, 9, 4, session.messages, session.away_since)


def sessions_place() -> tuple[Place, SessionsBroker]:
    place = Place()
    broker = SessionsBroker(SessionPods(place.cluster))
    place.broker = place.brokers[MAIN] = broker
    return place, broker
