"""The Kubernetes API as `Cluster` sees it, in memory: versions, conflicts, finalizers and owners as the real one has
them."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lbg_operator.kube.api import ClusterError, Object
from lbg_operator.kube.kinds import (
    API_SERVICE,
    BROKER,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    GROUP,
    NETWORK_POLICY,
    SCALED_OBJECT,
    STATEFUL_SET,
    Kind,
    kind_of,
)

CONFLICT = 409
WITH_GENERATION = frozenset({GROUP, BROKER, BUDGET, DEPLOYMENT, NETWORK_POLICY, SCALED_OBJECT, STATEFUL_SET})
WITH_STATUS = frozenset({GROUP, BROKER})
"""Kinds whose status only its subresource changes."""

Place = tuple[Kind, str | None, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that etcd has at `version`."""

    objects: dict[Place, Object]
    applied: dict[Place, Object]
    version: int


CALLERS = (CONFIG_MAP, "kube-system", "extension-apiserver-authentication")
"""Resources that a Role of Kubernetes' own lets the operator read."""


class FakeCluster:
    """`written` says what the operator asked to be changed, in order, and `changed` what of that changed anything.

    `failing`: the verbs that fail, as after a lost connection; `fail` may raise for a single request, or tell how many
    seconds it takes. What the table of kinds does not grant is an AssertionError, unless the cluster
    `grants_all`. `served`: the API versions that custom resources have brought. `watchers` are told of each change:
    kind, object, whether it is gone.
    """

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.objects: dict[Place, Object] = {}
        self.written: list[tuple[str, str, str]] = []
        self.changed: list[tuple[str, str, str]] = []
        self.failing: set[str] = set()
        self.grants_all = False
        self.fail: Callable[[str, Kind, str], None] = lambda verb, kind, name: None
        self.served: set[str] = set()
        self.watchers: list[Callable[[Kind, Object, bool], None]] = []
        self._clock = clock
        self._applied: dict[Place, Object] = {}
        self.version = 0
        self._uids = itertools.count(1)

    async def read(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        if (kind, namespace, name) != CALLERS:
            self._require_right(kind.verbs, "get", kind)
        self._require("read", kind, name)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def serves(self, api_version: str) -> bool:
        self._require("read", API_SERVICE)
        return api_version in self.served

    async def select(self, kind: Kind, namespace: str | None, selector: str) -> Sequence[Object]:
        self._require_right(kind.verbs, "list", kind)
        self._require("select", kind)
        return [
            copy.deepcopy(one)
            for (held, place, _), one in self.objects.items()
            if held == kind and namespace in (None, place) and matches(selector, one)
        ]

    async def watch(self, kind: Kind, namespace: str, name: str) -> AsyncGenerator[Object | None]:
        self._require_right(kind.verbs, "list", kind)
        self._require_right(kind.verbs, "watch", kind)
        self._require("watch", kind, name)
        told: asyncio.Queue[Object | None] = asyncio.Queue()

        def tell(one: Kind, seen: Object, is_gone: bool) -> None:
            if (one, seen["metadata"].get("namespace"), seen["metadata"]["name"]) == (kind, namespace, name):
                told.put_nowait(None if is_gone else seen)

        self.watchers.append(tell)
        try:
            yield copy.deepcopy(self.objects.get((kind, namespace, name)))
            while True:
                yield await told.get()
        finally:
            self.watchers.remove(tell)

    async def apply(self, wanted: Object) -> Object:
        kind, _, name = place = _place_of(wanted)
        self._require_right(kind.verbs, "patch", kind)
        if place not in self.objects:
            self._require_right(kind.verbs, "create", kind)
        self._require("apply", kind, name)
        former = _without(self.objects.get(place, {}), self._applied.get(place, {}), wanted)
        self._applied[place] = copy.deepcopy(wanted)
        applied = self._write("apply", place, merged(former, wanted))
        owners = {owner["uid"] for owner in wanted["metadata"].get("ownerReferences", ())}
        if owners and not owners & {one["metadata"]["uid"] for one in self.objects.values()}:
            self.take_away(*place)
        return applied

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Object, *, subresource: str = ""
    ) -> Object | None:
        self._require_right(kind.status_verbs if subresource == "status" else kind.verbs, "patch", kind)
        self._require("merge", kind, name)
        former = self.objects.get((kind, namespace, name))
        if former is None:
            return None
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, former["metadata"]["resourceVersion"]):
            raise ClusterError(f"patch {kind.kind} {name}", "the object has been modified", status=CONFLICT)
        if subresource == "status":
            patch = {"status": patch["status"]}
        elif kind in WITH_STATUS:
            patch = {field: value for field, value in patch.items() if field != "status"}
        return self._write("merge", (kind, namespace, name), merged(former, patch))

    async def create(self, new: Object) -> Object:
        kind = kind_of(new["apiVersion"], new["kind"])
        self._require_right(kind.verbs, "create", kind)
        self._require("create", kind)
        new = copy.deepcopy(new)
        new["metadata"].setdefault("name", f"{new['metadata'].get('generateName')}{self.version}")
        place = _place_of(new)
        if place in self.objects:
            raise ClusterError(f"create {kind.kind} {place[2]}", "already exists", status=CONFLICT)
        return self._write("create", place, new)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> None:
        self._require_right(kind.verbs, "delete", kind)
        self._require("delete", kind, name)
        there = self.objects.get((kind, namespace, name))
        if there is not None and uid in (None, there["metadata"]["uid"]):
            self.written.append(("delete", kind.kind, name))
            self.changed.append(("delete", kind.kind, name))
            self.take_away(kind, namespace, name)

    def snapshot(self) -> Snapshot:
        return Snapshot(copy.deepcopy(self.objects), copy.deepcopy(self._applied), self.version)

    def restore(self, snapshot: Snapshot, *, bump: int = 0) -> None:
        """As `etcdutl snapshot restore --bump-revision`: the next version is higher by `bump`, and those of the objects
        are as they were. Nobody is told."""
        self.objects = copy.deepcopy(snapshot.objects)
        self._applied = copy.deepcopy(snapshot.applied)
        self.version = snapshot.version + bump

    # What others do, and the cluster itself

    def put(self, wanted: Object) -> None:
        self._keep(_place_of(wanted), wanted)

    def edit(self, kind: Kind, namespace: str, name: str, patch: Object) -> None:
        """A merge patch of somebody else, of the status too."""
        place = (kind, namespace, name)
        self._keep(place, merged(self.objects[place], patch))

    def take_away(self, kind: Kind, namespace: str | None, name: str) -> None:
        """Delete: an object that has finalizers is kept until they are gone, one that has dependents takes them along
        (Kubernetes: "Garbage Collection")."""
        place = (kind, namespace, name)
        there = self.objects[place]
        if there["metadata"].get("finalizers"):
            if "deletionTimestamp" not in there["metadata"]:
                at = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
                self._keep(place, merged(there, {"metadata": {"deletionTimestamp": at}}), is_news=True)
            return
        del self.objects[place]
        self._applied.pop(place, None)
        self.version += 1
        self._tell(kind, merged(there, {"metadata": {"resourceVersion": str(self.version)}}), is_gone=True)
        uid = there["metadata"].get("uid")
        for dependent, one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences", ())
            if uid and any(owner["uid"] == uid for owner in owners) and dependent in self.objects:
                self.take_away(*dependent)

    def _write(self, verb: str, place: Place, wanted: Object) -> Object:
        kind, _, name = place
        self.written.append((verb, kind.kind, name))
        if self._keep(place, wanted):
            self.changed.append((verb, kind.kind, name))
        return copy.deepcopy(self.objects.get(place, wanted))

    def _keep(self, place: Place, wanted: Object, *, is_news: bool = False) -> bool:
        """True if anything changed."""
        kind, there = place[0], self.objects.get(place)
        kept = copy.deepcopy(wanted)
        metadata = kept["metadata"]
        if there is None:
            metadata.setdefault("uid", f"uid-{next(self._uids)}")
            metadata.setdefault("creationTimestamp", self._clock().strftime("%Y-%m-%dT%H:%M:%SZ"))
            if kind in WITH_GENERATION:
                metadata.setdefault("generation", 1)
        else:
            for name in ("uid", "creationTimestamp", "generation"):
                if name in there["metadata"]:
                    metadata.setdefault(name, there["metadata"][name])
            metadata["resourceVersion"] = there["metadata"]["resourceVersion"]
            if kept == there:
                return False
            if kind in WITH_GENERATION and (is_news or _wanted_of(kept) != _wanted_of(there)):
                metadata["generation"] = there["metadata"]["generation"] + 1
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self.objects[place] = kept
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self.take_away(*place)
        else:
            self._tell(kind, kept, is_gone=False)
        return True

    def _tell(self, kind: Kind, seen: Object, *, is_gone: bool) -> None:
        for told in self.watchers:
            told(kind, copy.deepcopy(seen), is_gone)

    def _require_right(self, verbs: frozenset[str], verb: str, kind: Kind) -> None:
        if verb not in verbs and not self.grants_all:
            raise AssertionError(f"the table of kinds, and so the chart, does not grant {verb} {kind.kind}")

    def _require(self, verb: str, kind: Kind, name: str = "") -> None:
        if verb in self.failing:
            raise ClusterError(f"{verb} {kind.kind}", "connection refused")
        self.fail(verb, kind, name)


def matches(selector: str, seen: Object) -> bool:
    """Signs of equality, and labels that have to be there."""
    labels = seen["metadata"].get("labels", {})
    told = (one.partition("=") for one in selector.split(",") if one)
    return all(labels.get(name) == value if sign else name in labels for name, sign, value in told)


def _place_of(one: Object) -> Place:
    metadata = one["metadata"]
    return kind_of(one["apiVersion"], one["kind"]), metadata.get("namespace"), metadata["name"]


def _wanted_of(one: Object) -> Object:
    return {name: value for name, value in one.items() if name not in ("metadata", "status")}


def _without(there: Any, applied: Any, wanted: Any) -> Any:
    """`there` without the fields that the same manager applied before and does not any more (Kubernetes: "Server-Side
    Apply")."""
    if not (isinstance(there, dict) and isinstance(applied, dict) and isinstance(wanted, dict)):
        return there
    return {
        name: _without(value, applied.get(name), wanted.get(name))
        for name, value in there.items()
        if name in wanted or name not in applied
    }


def merged(former: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(former) if isinstance(former, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
