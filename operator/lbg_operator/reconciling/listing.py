"""What lists show that no watch has told: what is gone, and kinds that are listed now and then."""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster.kinds import Kind
from ..cluster.seam import Cluster, Object
from .store import Key, Store
from .store import Object as Seen


async def listed(cluster: Cluster, kind: Kind, selector: str, namespaces: Sequence[str]) -> list[Object]:
    """`namespaces` empty: of all. Raises ClusterError."""
    return [
        seen
        for namespace in namespaces or (None,)
        for seen in await cluster.select(kind, namespace, selector)
    ]


async def gone(
    cluster: Cluster, store: Store, kind: Kind, selector: str, namespaces: Sequence[str]
) -> list[Seen]:
    """What is in `store` and not in the cluster. A watch that has to begin anew (410) lists again, and no list says
    what is not in it.

    Raises ClusterError.
    """
    before = tuple(store.all(kind))
    there = {Key.of(seen) for seen in await listed(cluster, kind, selector, namespaces)}
    return _left(store, kind, before, there)


async def relisted(
    cluster: Cluster, store: Store, kind: Kind, selector: str, namespaces: Sequence[str]
) -> list[Seen]:
    """Bring `store` up to date for a kind that nothing watches; what came, went, or changed but for numbers.

    Raises ClusterError.
    """
    before = tuple(store.all(kind))
    there = await listed(cluster, kind, selector, namespaces)
    left = _left(store, kind, before, {Key.of(seen) for seen in there})
    for seen in left:
        store.drop(kind, seen)
    known = dict(store.all(kind))
    for seen in there:
        store.put(kind, seen)
    now = dict(store.all(kind))
    return [*left, *(seen for key, seen in now.items() if _gist(known.get(key)) != _gist(seen))]


def _left(store: Store, kind: Kind, before: Sequence[tuple[Key, Seen]], there: set[Key]) -> list[Seen]:
    """Without what was changed while the list was under way: it is newer than the list."""
    known = dict(store.all(kind))
    return [seen for key, seen in before if key not in there and known.get(key) is seen]


def _gist(seen: Seen | None) -> tuple[object, object] | None:
    return None if seen is None else (seen["version"], seen["status"].get("conditions"))
