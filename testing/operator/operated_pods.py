"""The controllers of a cluster, as far as groups need them: pods for each Deployment, a member in each pod."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from lbg_core.group import group_name_of
from lbg_operator.kube.api import Object
from lbg_operator.kube.kinds import DEPLOYMENT, GROUP, POD, Kind
from lbg_operator.reconcile.desired import DELETION_COST
from lbg_operator.resources.names import GROUP_LABEL
from testing.kubernetes.fake_cluster import FakeCluster

LATER_S = 0.2


class Pods:
    """`gone`: the pods that scale-ins took, in order; `replicas_seen`: each number of replicas a Deployment had."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count()
        self.gone: list[str] = []
        self.replicas_seen: list[int] = []
        self.has_members = True
        cluster.watchers.insert(0, self._told)

    def of(self, group: str, namespace: str = "shop") -> list[Object]:
        """The oldest first."""
        return [
            one
            for (kind, place, _), one in self._cluster.objects.items()
            if kind is POD and place == namespace and one["metadata"]["labels"].get(GROUP_LABEL) == group
        ]

    def members(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Of the group that the broker knows by `name`; queues are dealt out one by one, the oldest pod first."""
        for (kind, namespace, group), one in self._cluster.objects.items():
            if kind is GROUP and group_name_of(one) == name:
                pods = self.of(group, str(namespace)) if self.has_members else []
                count = one.get("status", {}).get("queueCount", one["spec"]["queues"]["count"])
                return [_beat(index, pod, len(pods), count) for index, pod in enumerate(pods)]
        return ()

    def _told(self, kind: Kind, seen: Object, is_gone: bool) -> None:
        if kind is DEPLOYMENT and not is_gone:
            metadata = seen["metadata"]
            place = (DEPLOYMENT, metadata["namespace"], metadata["name"])
            self.replicas_seen.append(seen["spec"]["replicas"])
            asyncio.get_running_loop().call_later(LATER_S, self._follow, place)

    def _follow(self, place: tuple[Kind, str, str]) -> None:
        seen = self._cluster.objects.get(place)
        if seen is None:
            return
        metadata, replicas = seen["metadata"], seen["spec"]["replicas"]
        there = self.of(metadata["labels"][GROUP_LABEL], metadata["namespace"])
        for _ in range(replicas - len(there)):
            self._cluster.put(_pod(seen, next(self._numbers)))
        if len(there) > replicas:
            # The youngest of those that cost the same (Kubernetes: "ReplicaSet", scaling down).
            there.reverse()
            there.sort(key=_cost)
            for pod in there[: len(there) - replicas]:
                self.gone.append(pod["metadata"]["name"])
                self._cluster.take_away(POD, metadata["namespace"], pod["metadata"]["name"])
        status = {"replicas": replicas, "readyReplicas": replicas}
        self._cluster.edit(DEPLOYMENT, metadata["namespace"], metadata["name"], {"status": status})


def _cost(pod: Object) -> int:
    return int(pod["metadata"].get("annotations", {}).get(DELETION_COST, "0"))


def _pod(deployment: Object, number: int) -> Object:
    metadata = deployment["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": metadata["namespace"],
            "name": f"{metadata['name']}-{number}",
            "labels": dict(deployment["spec"]["template"]["metadata"]["labels"]),
            "ownerReferences": [{"uid": metadata["uid"], "kind": "Deployment", "name": metadata["name"]}],
        },
    }


def _beat(index: int, pod: Object, members: int, queues: int) -> dict[str, Any]:
    name = pod["metadata"]["name"]
    mine = range(index, queues, members)
    queue = {"role": "primary", "active": True, "status": "Ready"}
    return {
        "index": index,
        "name": name,
        "incarnation": name,
        "queues": [{"queue": number, **queue} for number in mine],
    }
