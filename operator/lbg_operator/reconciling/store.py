"""The last that the watches told of every object, by namespace and name. No I/O here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..children.naming import GROUP_LABEL
from ..cluster.kinds import BROKER, GROUP, POD, SECRET, Kind

Object = Mapping[str, Any]


class Key(NamedTuple):
    namespace: str
    name: str

    @classmethod
    def of(cls, seen: Object) -> Key:
        return cls(seen["metadata"]["namespace"], seen["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class Store:
    """Groups and brokers as they are; of pods and of what the operator made, what is asked of it later."""

    _seen: dict[Kind, dict[Key, Object]] = field(default_factory=dict)
    _pods: dict[Key, dict[str, Object]] = field(default_factory=dict)

    def put(self, kind: Kind, seen: Object) -> None:
        """Unless it is older than what is known: what a request was answered comes before the watch tells of it."""
        key = Key.of(seen)
        if kind is POD:
            if (group := group_of(seen)) is not None:
                self._pods.setdefault(group, {})[key.name] = _trimmed(seen)
            return
        known = self._seen.setdefault(kind, {})
        if key not in known or not _is_older(seen, known[key]):
            is_ours = kind in (GROUP, BROKER)
            known[key] = _unmanaged(seen) if is_ours else _trimmed(seen, with_data=kind is SECRET)

    def update(self, kind: Kind, answer: Object) -> None:
        """The same with what a request was answered, unless the watch told meanwhile that the object is gone."""
        if self.get(kind, Key.of(answer)) is not None:
            self.put(kind, answer)

    def drop(self, kind: Kind, seen: Object) -> None:
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

    def get(self, kind: Kind, key: Key) -> Object | None:
        return self._seen.get(kind, {}).get(key)

    def count(self, kind: Kind) -> int:
        """Of objects of a kind other than Pod."""
        return len(self._seen.get(kind, {}))

    def all(self, kind: Kind) -> Iterator[tuple[Key, Object]]:
        if kind is POD:
            return iter([(Key.of(pod), pod) for pods in self._pods.values() for pod in pods.values()])
        return iter(tuple(self._seen.get(kind, {}).items()))

    def pods(self, group: Key) -> Mapping[str, Object]:
        """A group's consumer pods by name."""
        return self._pods.get(group, {})


def group_of(child: Object) -> Key | None:
    """The group that an object of ours, or one of its pods, belongs to."""
    name = child["metadata"].get("labels", {}).get(GROUP_LABEL)
    return None if name is None else Key(child["metadata"]["namespace"], name)


def version_of(seen: Object) -> str:
    """A fingerprint of what an object should be: not of its status, which changes the resourceVersion,
    but of its labels and owners, which change no generation."""
    metadata = seen["metadata"]
    wanted = metadata.get("generation")
    if wanted is None:
        wanted = {name: value for name, value in seen.items() if name not in ("metadata", "status")}
    told = (wanted, metadata.get("labels"), metadata.get("ownerReferences"))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _is_older(seen: Object, known: Object) -> bool:
    """Versions of one kind can be compared (Kubernetes: "API Concepts", resource versions)."""
    return _age_of(seen) < _age_of(known)


def _age_of(seen: Object) -> int:
    return int(seen["metadata"].get("resourceVersion", 0))


def _unmanaged(seen: Object) -> Object:
    """Without who owns which field, which is as large as the rest and asked for by nobody."""
    metadata = {name: value for name, value in seen["metadata"].items() if name != "managedFields"}
    return {**seen, "metadata": metadata}


def _trimmed(seen: Object, *, with_data: bool = False) -> Object:
    """Without what nobody asks for: five hundred Deployments with their templates are memory."""
    metadata = seen["metadata"]
    kept = ("namespace", "name", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp")
    return {
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "owners": tuple(owner["uid"] for owner in metadata.get("ownerReferences", ())),
        "version": version_of(seen),
        "replicas": seen.get("spec", {}).get("replicas"),
        "status": seen.get("status", {}),
        **({"data": seen.get("data", {})} if with_data else {}),
    }
