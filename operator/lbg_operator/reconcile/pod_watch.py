"""Pods that controllers should have created and have not, and the pods of embedded brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from lbg_operator.kube.api import Cluster, ClusterError
from lbg_operator.kube.kinds import POD
from lbg_operator.reconcile.object_cache import Key, WatchedObject
from lbg_operator.status.pods import MISSING_AFTER_S, are_missing, missing

log = logging.getLogger("lbg.operator")

RETRY_S = 1.0
"""Between the end of a watch and the next one, which begins with a list."""
RETRY_MAX_S = 30.0
"""The same after failures, which double it."""


class Shortages:
    """Since when each StatefulSet has fewer pods than it should, which it does not say itself. Times are of a monotonic
    clock, in seconds."""

    def __init__(self) -> None:
        self._since: dict[Key, float] = {}

    def seen(self, owner: Key, workload: WatchedObject | None, *, now: float) -> str:
        """The message about it, empty for none."""
        if workload is None or not are_missing(workload):
            self.forget(owner)
            return ""
        return missing(workload, self._since.setdefault(owner, now), now)

    def due_in_s(self, owner: Key, *, now: float) -> float:
        """In how many seconds the message will change; infinity for never."""
        left_s = self._since.get(owner, float("-inf")) + MISSING_AFTER_S - now
        return left_s if left_s > 0 else float("inf")

    def forget(self, owner: Key) -> None:
        self._since.pop(owner, None)


@dataclass(slots=True)
class _Watched:
    task: asyncio.Task[None]
    seen: WatchedObject | None = None


class BrokerPods:
    """Each pod is watched by its name: it has labels that consumers' pods have not, and the other way round.

    `changed` is called with each Broker whose pod's status has changed.
    """

    def __init__(self, cluster: Cluster, *, changed: Callable[[Key], None]) -> None:
        self._cluster = cluster
        self._changed = changed
        self._watched: dict[Key, _Watched] = {}

    def latest(self, broker: Key) -> WatchedObject | None:
        """Its pod as it was last seen; None while there is none, or it is unknown. From the first call on it is
        watched."""
        one = self._watched.get(broker)
        if one is None:
            task = asyncio.create_task(self._follow(broker), name=f"pod of Broker {broker}")
            one = self._watched[broker] = _Watched(task)
        return one.seen

    async def forget(self, broker: Key) -> None:
        if (one := self._watched.pop(broker, None)) is not None:
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)

    async def close(self) -> None:
        for broker in tuple(self._watched):
            await self.forget(broker)

    async def _follow(self, broker: Key) -> None:
        retry_s = RETRY_S
        while True:
            try:
                watch = self._cluster.watch(POD, broker.namespace, f"{broker.name}-0")
                async with aclosing(watch):
                    async for seen in watch:
                        retry_s = RETRY_S
                        self._take(broker, seen)
            except ClusterError as error:
                log.warning("%s; again in %g s", error, retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            else:
                await asyncio.sleep(RETRY_S)

    def _take(self, broker: Key, pod: dict[str, Any] | None) -> None:
        one = self._watched.get(broker)
        if one is None:
            return
        seen = None if pod is None else {"metadata": pod["metadata"], "status": pod.get("status", {})}
        is_other = _status(one.seen) != _status(seen)
        one.seen = seen
        if is_other:
            self._changed(broker)


def _status(pod: WatchedObject | None) -> object:
    return None if pod is None else (pod["metadata"].get("uid"), pod["status"])
