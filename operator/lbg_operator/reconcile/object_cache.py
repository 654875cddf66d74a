"""Cache of watched objects, and the lists that complete it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lbg_operator.kube.api import Cluster, Object
from lbg_operator.kube.kinds import BROKER, GROUP, POD, SECRET, Kind
from lbg_operator.resources.names import GROUP_LABEL

WatchedObject = Mapping[str, Any]


class Key(NamedTuple):
    namespace: str
    name: str

    @classmethod
    def of(cls, seen: WatchedObject) -> Key:
        return cls(seen["metadata"]["namespace"], seen["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class ObjectCache:
    """Groups and brokers as they are; of pods and of the operator's objects, the fields that are read later.

    `set_back` is called with the evidence that the cluster was restored to an earlier state: an object that went
    backwards. Only objects of one UID are compared, since one that was deleted and made again is another object."""

    set_back: Callable[[str], None] = lambda evidence: None
    _seen: dict[Kind, dict[Key, WatchedObject]] = field(default_factory=dict)
    _pods: dict[Key, dict[str, WatchedObject]] = field(default_factory=dict)

    def put(self, kind: Kind, seen: WatchedObject) -> None:
        """Unless it is older than the cached one: the answer to a request comes before the watch reports the change."""
        key = Key.of(seen)
        if kind is POD:
            if (group := group_of(seen)) is not None:
                self._pods.setdefault(group, {})[key.name] = _trimmed(seen)
            return
        known = self._seen.setdefault(kind, {})
        if key not in known or not _is_older(seen, known[key]):
            if key in known and _generation_of(seen) < _generation_of(known[key]):
                self._went_back(kind, known[key], seen)
            is_ours = kind in (GROUP, BROKER)
            kept = _unmanaged(seen) if is_ours else _trimmed(seen, with_data=kind is SECRET)
            known[key] = _shared(kept, known.get(key))

    def update(self, kind: Kind, answer: WatchedObject) -> None:
        """The same with the answer to a request, unless the watch reported meanwhile that the object is gone."""
        if self.get(kind, Key.of(answer)) is not None:
            self.put(kind, answer)

    def drop(self, kind: Kind, seen: WatchedObject) -> None:
        key = Key.of(seen)
        if kind is POD:
            if (group := group_of(seen)) is not None:
                pods = self._pods.get(group, {})
                pods.pop(key.name, None)
                if not pods:
                    self._pods.pop(group, None)
            return
        known = self._seen.get(kind, {})
        if key in known and not _is_older(seen, known[key]):
            del known[key]

    def compare(self, kind: Kind, known: WatchedObject, listed: WatchedObject) -> None:
        """`known`: as the cache had the object when the list was requested, which is consistent and so not older."""
        if _is_older(listed, known) or _generation_of(listed) < _generation_of(known):
            self._went_back(kind, known, listed)

    def _went_back(self, kind: Kind, known: WatchedObject, seen: WatchedObject) -> None:
        if known["metadata"].get("uid") == seen["metadata"].get("uid"):
            self.set_back(f"{kind.kind} {Key.of(seen)} is at {_position(seen)} after {_position(known)}")

    def get(self, kind: Kind, key: Key) -> WatchedObject | None:
        return self._seen.get(kind, {}).get(key)

    def count(self, kind: Kind) -> int:
        """Of objects of a kind other than Pod."""
        return len(self._seen.get(kind, {}))

    def all(self, kind: Kind) -> Iterator[tuple[Key, WatchedObject]]:
        if kind is POD:
            return iter([(Key.of(pod), pod) for pods in self._pods.values() for pod in pods.values()])
        return iter(tuple(self._seen.get(kind, {}).items()))

    def pods(self, group: Key) -> Mapping[str, WatchedObject]:
        """A group's consumer pods by name."""
        return self._pods.get(group, {})


def group_of(child: WatchedObject) -> Key | None:
    """The group that an object of ours, or one of its pods, belongs to."""
    name = child["metadata"].get("labels", {}).get(GROUP_LABEL)
    return None if name is None else Key(child["metadata"]["namespace"], name)


def version_of(seen: WatchedObject) -> str:
    """A fingerprint of what an object should be: not of its status, which changes the resourceVersion,
    but of its labels and owners, which change no generation."""
    metadata = seen["metadata"]
    spec_version = metadata.get("generation")
    if spec_version is None:
        spec_version = {name: value for name, value in seen.items() if name not in ("metadata", "status")}
    content = (spec_version, metadata.get("labels"), metadata.get("ownerReferences"))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_older(seen: WatchedObject, known: WatchedObject) -> bool:
    """Versions of one kind can be compared (Kubernetes: "API Concepts", resource versions)."""
    return _age_of(seen) < _age_of(known)


def _age_of(seen: WatchedObject) -> int:
    return int(seen["metadata"].get("resourceVersion", 0))


def _generation_of(seen: WatchedObject) -> int:
    """It grows with each change of what an object should be (Kubernetes: "API Conventions", metadata)."""
    return int(seen["metadata"].get("generation", 0))


def _position(seen: WatchedObject) -> str:
    return f"version {_age_of(seen)}, generation {_generation_of(seen)}"


def _unmanaged(seen: WatchedObject) -> WatchedObject:
    """Without `managedFields`, which are as large as the rest and are never read."""
    metadata = {name: value for name, value in seen["metadata"].items() if name != "managedFields"}
    return {**seen, "metadata": metadata}


def _trimmed(seen: WatchedObject, *, with_data: bool = False) -> WatchedObject:
    """Without the fields that are never read: five hundred Deployments with their templates are memory."""
    metadata = seen["metadata"]
    kept = (
        "namespace",
        "name",
        "uid",
        "resourceVersion",
        "generation",
        "labels",
        "annotations",
        "deletionTimestamp",
    )
    return {
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "owners": tuple(owner["uid"] for owner in metadata.get("ownerReferences", ())),
        "version": version_of(seen),
        "replicas": seen.get("spec", {}).get("replicas"),
        "status": seen.get("status", {}),
        **({"data": seen.get("data", {})} if with_data else {}),
    }


def _shared(seen: WatchedObject, last: WatchedObject | None) -> WatchedObject:
    """With the parts of `last` that are equal: whoever has one of them, as the parsed manifest and the status that was
    written have, and the cache have one object. Words that many objects have are one string."""
    last = last or {}
    return {
        name: last[name] if name in last and last[name] == value else interned(value)
        for name, value in seen.items()
    }


WORD_MAX = 200
"""Characters of a text that is kept once for all objects that have it."""


def interned(value: Any) -> Any:
    """The same JSON, whose names and short texts are one string for all objects."""
    if type(value) is str:
        return sys.intern(value) if len(value) <= WORD_MAX else value
    if isinstance(value, dict):
        return {sys.intern(name): interned(one) for name, one in value.items()}
    return list(map(interned, value)) if isinstance(value, list) else value


async def listed(cluster: Cluster, kind: Kind, selector: str, namespaces: Sequence[str]) -> list[Object]:
    """`namespaces` empty: of all. Raises ClusterError."""
    return [
        seen
        for namespace in namespaces or (None,)
        for seen in await cluster.select(kind, namespace, selector)
    ]


async def gone(
    cluster: Cluster, store: ObjectCache, kind: Kind, selector: str, namespaces: Sequence[str]
) -> list[WatchedObject]:
    """Objects that are in `store` and not in the cluster. A watch that has to begin anew (410) lists again, and no
    list says what is not in it.

    Raises ClusterError.
    """
    before = tuple(store.all(kind))
    return _left(store, kind, before, await listed(cluster, kind, selector, namespaces))


async def relisted(
    cluster: Cluster, store: ObjectCache, kind: Kind, selector: str, namespaces: Sequence[str]
) -> list[WatchedObject]:
    """Bring `store` up to date for a kind that nothing watches; what came, went, or changed but for numbers.

    Raises ClusterError.
    """
    before = tuple(store.all(kind))
    existing = await listed(cluster, kind, selector, namespaces)
    left = _left(store, kind, before, existing)
    for seen in left:
        store.drop(kind, seen)
    known = dict(store.all(kind))
    for seen in existing:
        store.put(kind, seen)
    now = dict(store.all(kind))
    return [*left, *(seen for key, seen in now.items() if _gist(known.get(key)) != _gist(seen))]


def _left(
    store: ObjectCache,
    kind: Kind,
    before: Sequence[tuple[Key, WatchedObject]],
    existing: Sequence[WatchedObject],
) -> list[WatchedObject]:
    """Without what was changed while the list was under way: it is newer than the list."""
    known, now = dict(store.all(kind)), {Key.of(seen): seen for seen in existing}
    for key, seen in before:
        if key in now:
            store.compare(kind, seen, now[key])
    return [seen for key, seen in before if key not in now and known.get(key) is seen]


def _gist(seen: WatchedObject | None) -> tuple[object, object] | None:
    return None if seen is None else (seen["version"], seen["status"].get("conditions"))
