"""Cache of Secrets as the watches deliver them.

The operator's own are watched by their label, with everything else that it made. Those that a Broker names are somebody
else's and have no label: each is watched by its name (`metadata.name`), so that the operator is sent that Secret and no
other of the namespace. Both need `list` and `watch` on Secrets, and RBAC can limit neither to a label. `get` is for one
question alone: before a password is generated, whether there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from lbg_operator.kube.api import Cluster, ClusterError
from lbg_operator.kube.kinds import SECRET
from lbg_operator.reconcile.object_cache import Key, ObjectCache, WatchedObject

log = logging.getLogger("lbg.operator")

RETRY_S = 1.0
"""Between the end of a watch and the next one, which begins with a list."""
RETRY_MAX_S = 30.0
"""The same after failures, which double it."""


@dataclass(slots=True)
class _Named:
    """`seen` is None while there is no such Secret; `failure`: why one that was never seen is unknown."""

    owners: set[Key] = field(default_factory=set)
    seen: WatchedObject | None = None
    failure: ClusterError | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class SecretCache:
    """`changed` is called with each Broker whose Secret has changed."""

    def __init__(self, cluster: Cluster, store: ObjectCache, *, changed: Callable[[Key], None]) -> None:
        self._cluster = cluster
        self._store = store
        self._changed = changed
        self._named: dict[Key, _Named] = {}

    async def own(self, namespace: str, name: str) -> WatchedObject | None:
        """A Secret that the operator made. Raises ClusterError.

        The API server is asked where no watch has shown one: a password is generated for none that is there.
        """
        seen = self._store.get(SECRET, Key(namespace, name))
        return seen if seen is not None else await self._cluster.read(SECRET, namespace, name)

    async def named(self, broker: Key, name: str) -> WatchedObject | None:
        """A Secret that `broker` names, in its namespace. Raises ClusterError where it was never seen and cannot be."""
        key = Key(broker.namespace, name)
        one = self._named.setdefault(key, _Named())
        one.owners.add(broker)
        if one.task is None:
            one.task = asyncio.create_task(self._follow(key, one), name=f"Secret {key}")
        await one.answered.wait()
        if one.failure is not None:
            raise one.failure
        return one.seen

    async def keep(self, broker: Key, names: Collection[str]) -> None:
        """End the watches of what `broker` does not name any more, and nobody else does."""
        ending = []
        for key, one in tuple(self._named.items()):
            if key.namespace == broker.namespace and key.name not in names:
                one.owners.discard(broker)
                if not one.owners:
                    ending.append(self._named.pop(key))
        await _end(ending)

    async def close(self) -> None:
        ending, self._named = tuple(self._named.values()), {}
        await _end(ending)

    async def _follow(self, key: Key, one: _Named) -> None:
        retry_s = RETRY_S
        while True:
            try:
                async with aclosing(self._cluster.watch(SECRET, *key)) as watch:
                    async for seen in watch:
                        retry_s = RETRY_S
                        self._take(one, seen)
            except ClusterError as error:
                log.warning("%s; again in %g s", error, retry_s)
                if not one.answered.is_set() or one.failure is not None:  # what was seen once counts on
                    one.failure = error
                    one.answered.set()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            else:
                await asyncio.sleep(RETRY_S)

    def _take(self, one: _Named, seen: Mapping[str, object] | None) -> None:
        is_first = not one.answered.is_set()
        is_other = one.failure is not None or _data(one.seen) != _data(seen)
        one.seen, one.failure = seen, None
        one.answered.set()
        if is_other and not is_first:
            for owner in tuple(one.owners):
                self._changed(owner)


def _data(secret: Mapping[str, object] | None) -> object:
    return None if secret is None else secret.get("data", {})


async def _end(ending: Collection[_Named]) -> None:
    tasks = [one.task for one in ending if one.task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in ending:  # whoever waits for it
        one.failure = one.failure or ClusterError("watch a Secret", "no Broker names it any more")
        one.answered.set()
