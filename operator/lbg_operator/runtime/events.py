"""Event recorder: Kubernetes Events, sent beside the reconciles.

A namespace that is being deleted takes no events.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from lbg_operator.kube.api import Cluster, ClusterError, Object, Terminating
from lbg_operator.reconcile.ending_namespaces import EndingNamespaces
from lbg_operator.reconcile.object_cache import WatchedObject as Seen
from lbg_operator.resources.names import MANAGER

log = logging.getLogger("lbg.operator")

WAITING_MAX = 1000
"""More events than that wait only while the API server is away: the newest are dropped, as conditions say the same."""
MESSAGE_MAX = 1024
"""Characters (Kubernetes API: Event, "message")."""


class EventRecorder:
    def __init__(self, cluster: Cluster, ending: EndingNamespaces) -> None:
        self._cluster = cluster
        self._ending = ending
        self._waiting: asyncio.Queue[Object] = asyncio.Queue(WAITING_MAX)

    def __call__(self, about: Seen, *, type: str, reason: str, message: str) -> None:
        event = event_of(about, type=type, reason=reason, message=message, now=datetime.now(UTC))
        log.info("%s %s: %s", event["metadata"]["namespace"], about["metadata"]["name"], message)
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("an event was dropped: %s", message)

    async def run(self) -> None:
        while True:
            event = await self._waiting.get()
            uid = event["involvedObject"].get("uid", "")
            if self._ending.has(uid):
                continue
            try:
                await self._cluster.create(event)
            except Terminating as error:
                log.debug("%s", error)
                self._ending.add(event["metadata"]["namespace"], uid)
            except ClusterError as error:
                log.debug("%s", error)


def event_of(about: Seen, *, type: str, reason: str, message: str, now: datetime) -> dict[str, Any]:
    metadata = about["metadata"]
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    names = ("apiVersion", "kind")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            **{name: about[name] for name in names},
            **{
                name: metadata[name]
                for name in ("namespace", "name", "uid", "resourceVersion")
                if name in metadata
            },
        },
        "type": type,
        "reason": reason,
        "message": message if len(message) <= MESSAGE_MAX else message[: MESSAGE_MAX - 1] + "…",
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": MANAGER,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
