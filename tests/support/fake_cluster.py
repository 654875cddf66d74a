"""The Kubernetes API as `Cluster` sees it, in memory: versions and conflicts as the real one has them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from lbg_operator.cluster.kinds import API_SERVICE, Kind, kind_of
from lbg_operator.cluster.seam import ClusterError, Object

CONFLICT = 409


class FakeCluster:
    """`written` says what was changed, in order. `failing`: the verbs that fail, as after a lost connection. `served`:
    the API versions that custom resources have brought."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, str | None, str], Object] = {}
        self.written: list[tuple[str, str, str]] = []
        self.failing: set[str] = set()
        self.served: set[str] = set()
        self._version = 0

    async def read(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        self._require("read", kind)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def serves(self, api_version: str) -> bool:
        self._require("read", API_SERVICE)
        return api_version in self.served

    async def select(self, kind: Kind, namespace: str | None, selector: str) -> Sequence[Object]:
        """`selector` has signs of equality only."""
        self._require("select", kind)
        wanted = dict(one.split("=") for one in selector.split(",") if one)
        return [
            copy.deepcopy(one)
            for (held, place, _), one in self.objects.items()
            if held == kind and namespace in (None, place)
            if wanted.items() <= one["metadata"].get("labels", {}).items()
        ]

    async def apply(self, wanted: Object) -> Object:
        kind = kind_of(wanted["apiVersion"], wanted["kind"])
        self._require("apply", kind)
        former = self.objects.get(self._place(wanted), {})
        return self._keep("apply", _merged(former, wanted))

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Object, *, subresource: str = ""
    ) -> Object | None:
        self._require("merge", kind)
        former = self.objects.get((kind, namespace, name))
        if former is None:
            return None
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, former["metadata"]["resourceVersion"]):
            raise ClusterError(f"patch {kind.kind} {name}", "the object has been modified", status=CONFLICT)
        return self._keep("merge", _merged(former, patch))

    async def create(self, new: Object) -> Object:
        kind = kind_of(new["apiVersion"], new["kind"])
        self._require("create", kind)
        if self._place(new) in self.objects:
            raise ClusterError(
                f"create {kind.kind} {new['metadata']['name']}", "already exists", status=CONFLICT
            )
        return self._keep("create", new)

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        self._require("delete", kind)
        if self.objects.pop((kind, namespace, name), None) is not None:
            self.written.append(("delete", kind.kind, name))

    def put(self, wanted: Object) -> None:
        """Somebody else's doing."""
        self._keep("put", wanted)
        self.written.pop()

    def _keep(self, verb: str, wanted: Object) -> Object:
        self._version += 1
        kept = copy.deepcopy(wanted)
        kept["metadata"]["resourceVersion"] = str(self._version)
        self.objects[self._place(wanted)] = kept
        self.written.append((verb, wanted["kind"], wanted["metadata"]["name"]))
        return copy.deepcopy(kept)

    def _require(self, verb: str, kind: Kind) -> None:
        if verb in self.failing:
            raise ClusterError(f"{verb} {kind.kind}", "connection refused")

    @staticmethod
    def _place(one: Object) -> tuple[Kind, str | None, str]:
        metadata = one["metadata"]
        return kind_of(one["apiVersion"], one["kind"]), metadata.get("namespace"), metadata["name"]


def _merged(former: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(former) if isinstance(former, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
