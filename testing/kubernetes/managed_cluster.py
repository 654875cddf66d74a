"""A `FakeCluster` that knows who owns which field, as server-side apply does (Kubernetes: "Server-Side Apply")."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from lbg_operator.kube.api import ClusterError, Object
from lbg_operator.kube.kinds import GROUP, Kind
from lbg_operator.resources.names import MANAGER
from testing.kubernetes.fake_cluster import CONFLICT, FakeCluster, Place
from testing.kubernetes.manifests import fill_in, schema_of

Path = tuple[str, ...]
_IDENTITY = frozenset({("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")})


class ManagedCluster(FakeCluster):
    """Fields of groups have owners: whoever applied them, or changed them by a patch. A list is one field."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.owners: dict[Place, dict[Path, set[str]]] = {}

    def apply_as(self, manager: str, manifest: Object, *, force: bool = False) -> Object:
        """Raises ClusterError (409) where it would change a field that another manager owns, unless by `force`."""
        metadata = manifest["metadata"]
        place = (GROUP, metadata["namespace"], metadata["name"])
        owners, live = self.owners.setdefault(place, {}), copy.deepcopy(self.objects.get(place, {}))
        wanted = {path: value for path, value in _leaves(manifest) if path not in _IDENTITY}
        changed = {path for path, value in wanted.items() if _at(live, path) != value}
        conflicts = sorted(path for path in changed if owners.get(path, set()) - {manager})
        if conflicts and not force:
            raise ClusterError("apply", f"conflicts: {conflicts}", status=CONFLICT)
        for path in changed:
            owners[path] = set()
        for path in [path for path, names in owners.items() if manager in names and path not in wanted]:
            owners[path].discard(manager)
            if not owners[path]:
                _put(live, path, None)
        for path, value in (*wanted.items(), *((path, _at(manifest, path)) for path in _IDENTITY)):
            _put(live, path, value)
        for path in wanted:
            owners.setdefault(path, set()).add(manager)
        fill_in(live["spec"], schema_of(GROUP.plural)["properties"]["spec"])
        self.put(live)
        return copy.deepcopy(self.objects[place])

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Object, *, subresource: str = ""
    ) -> Object | None:
        """By the operator: what it changes is its own from then on."""
        before = copy.deepcopy(self.objects.get((kind, namespace, name), {}))
        answer = await super().merge(kind, namespace, name, patch, subresource=subresource)
        if kind is GROUP and answer is not None:
            owners = self.owners.setdefault((kind, namespace, name), {})
            for path, value in _leaves(patch):
                if path != ("metadata", "resourceVersion") and _at(before, path) != value:
                    owners[path] = {MANAGER}
        return answer


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path, value


def _at(value: Any, path: Path) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _put(into: Object, path: Path, value: Any) -> None:
    """None takes it out."""
    for name in path[:-1]:
        into = into.setdefault(name, {})
    if value is None:
        into.pop(path[-1], None)
    else:
        into[path[-1]] = copy.deepcopy(value)
