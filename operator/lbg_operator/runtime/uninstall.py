"""Removes the operator's finalizer from every group, for an operator that goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lbg_operator.kube.api import Cluster, ClusterError
from lbg_operator.kube.client import connected
from lbg_operator.kube.kinds import DEPLOYMENT, GROUP, POD
from lbg_operator.reconcile.group_deletion import has_finalizer, without_finalizer

PAUSE_S, PAUSES = 1.0, 60
"""Together twice the grace period that the operator's pod has."""


async def remove_finalizer(
    namespaces: Sequence[str], *, operator: tuple[str, str] | None = None
) -> list[str]:
    """The groups that were let go, as namespace/name; their queues stay. Raises ClusterError.

    `operator`: the namespace and the labels of an operator that is stopped first.
    """
    cluster = await connected()
    try:
        if operator is not None:
            await stop(cluster, *operator)
        return await release_all(cluster, namespaces)
    finally:
        await cluster.close()


async def stop(cluster: Cluster, namespace: str, selector: str, *, pause_s: float = PAUSE_S) -> None:
    """Delete the operator's Deployment and wait for its pod: one that runs would put the finalizers back at once."""
    for deployment in await cluster.select(DEPLOYMENT, namespace, selector):
        await cluster.delete(DEPLOYMENT, namespace, deployment["metadata"]["name"])
    for _ in range(PAUSES):
        if not await cluster.select(POD, namespace, selector):
            return
        await asyncio.sleep(pause_s)
    raise ClusterError(
        "stop the operator", f"pods {selector} in {namespace} still run: delete them, and try again"
    )


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
