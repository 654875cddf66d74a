"""Take the operator's finalizer from every group, so that nothing waits for an operator that is going for good."""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster.kinds import GROUP
from ..cluster.live import connected
from ..cluster.seam import Cluster
from ..reconciling.finalizing import has_finalizer, without_finalizer


async def release(namespaces: Sequence[str]) -> list[str]:
    """The groups that were let go, as namespace/name; their queues stay. Raises ClusterError."""
    cluster = await connected()
    try:
        return await release_all(cluster, namespaces)
    finally:
        await cluster.close()


async def release_all(cluster: Cluster, namespaces: Sequence[str]) -> list[str]:
    """The same with a cluster that is there; `namespaces` empty: all."""
    released = []
    for namespace in namespaces or (None,):
        for group in await cluster.select(GROUP, namespace, ""):
            if has_finalizer(group):
                metadata = group["metadata"]
                await cluster.merge(GROUP, metadata["namespace"], metadata["name"], without_finalizer(group))
                released.append(f"{metadata['namespace']}/{metadata['name']}")
    return released
