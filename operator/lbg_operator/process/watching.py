"""What the operator listens to, by kopf: each event goes into the store, and wakes the object that it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from ..children.naming import BROKER_LABEL, GROUP_LABEL, OURS
from ..cluster.kinds import (
    AUTOSCALER,
    BROKER,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    GROUP,
    NETWORK_POLICY,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    VOLUME_CLAIM,
    Kind,
)
from ..cluster.seam import Cluster
from ..reconciling.listing import gone, listed
from ..reconciling.store import Key, Object, Store, group_of
from .openness import Openness, logging_in

SELECTORS: dict[Kind, str] = {
    GROUP: "",
    BROKER: "",
    POD: GROUP_LABEL,
    **dict.fromkeys(
        (
            DEPLOYMENT,
            AUTOSCALER,
            BUDGET,
            NETWORK_POLICY,
            CONFIG_MAP,
            SECRET,
            SERVICE,
            STATEFUL_SET,
            VOLUME_CLAIM,
        ),
        OURS,
    ),
}
"""What is watched, and the labels by which the API server chooses what it tells of."""

Told = Callable[[Kind, Key, Object, bool], None]
"""A kind, the object's key, the object as it is or was, and whether it is gone."""


async def list_all(cluster: Cluster, store: Store, namespaces: tuple[str, ...]) -> None:
    """Fill `store` before the first round: one that does not know the Broker yet would say that there is none.

    Raises ClusterError.
    """
    for kind, selector in SELECTORS.items():
        for seen in await listed(cluster, kind, selector, namespaces):
            store.put(kind, seen)


async def missed(cluster: Cluster, store: Store, namespaces: tuple[str, ...]) -> list[tuple[Kind, Object]]:
    """What is in `store` and gone from the cluster, with its kind. Raises ClusterError."""
    return [
        (kind, seen)
        for kind, selector in SELECTORS.items()
        for seen in await gone(cluster, store, kind, selector, namespaces)
    ]


def registry_of(told: Told, openness: Openness) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    logging_in(openness, registry)
    for kind in SELECTORS:
        _register(registry, kind, told)
    return registry


def settings_of() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    for kind, selector in SELECTORS.items():
        if selector:
            settings.watching.label_selectors[_parts(kind)] = selector
    return settings


def take(store: Store, kind: Kind, seen: Object, *, is_gone: bool) -> None:
    if is_gone:
        store.drop(kind, seen)
    else:
        store.put(kind, seen)


def owner_of(kind: Kind, seen: Object) -> tuple[Kind, Key] | None:
    """Whose round an event is cause for."""
    if kind in (GROUP, BROKER):
        return kind, Key.of(seen)
    if (group := group_of(seen)) is not None:
        return GROUP, group
    broker = seen["metadata"].get("labels", {}).get(BROKER_LABEL)
    return None if broker is None else (BROKER, Key(seen["metadata"]["namespace"], broker))


def _register(registry: kopf.OperatorRegistry, kind: Kind, told: Told) -> None:
    @kopf.on.event(*_parts(kind), registry=registry, id=kind.plural)
    async def seen(*, event: Any, **_: Any) -> None:
        raw = dict(event["object"])
        told(kind, Key.of(raw), raw, event["type"] == "DELETED")


def _parts(kind: Kind) -> tuple[str, str, str]:
    return kind.api_group, kind.api_version.rpartition("/")[2], kind.plural
