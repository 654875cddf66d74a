"""Namespaces that are being deleted, as far as the API server's refusals tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from lbg_operator.kube.kinds import BROKER, GROUP
from lbg_operator.reconcile.object_cache import Key, ObjectCache

OBJECTS_MAX = 10_000
"""An object that is forgotten costs one refused request."""


@dataclass(slots=True)
class EndingNamespaces:
    """One refusal tells that all groups and Brokers of a namespace go; nothing can keep a namespace any more. They are
    known by UID: the objects of a namespace that is made anew under its name are others."""

    store: ObjectCache
    _uids: dict[str, None] = field(default_factory=dict)

    def add(self, namespace: str, uid: str = "") -> None:
        """`uid`: of an object there that may have left the cache."""
        seen = (
            one for kind in (GROUP, BROKER) for key, one in self.store.all(kind) if key.namespace == namespace
        )
        self._uids |= dict.fromkeys([uid, *(one["metadata"].get("uid", "") for one in seen)])
        self._uids.pop("", None)
        while len(self._uids) > OBJECTS_MAX:
            del self._uids[next(iter(self._uids))]

    def has(self, uid: str) -> bool:
        return uid in self._uids

    def covers(self, owner: Key) -> bool:
        """True if the group or Broker of that name goes with its namespace."""
        seen = (self.store.get(kind, owner) for kind in (GROUP, BROKER))
        uids = [one["metadata"].get("uid", "") for one in seen if one is not None]
        return bool(uids) and all(map(self.has, uids))
