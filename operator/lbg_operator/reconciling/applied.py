"""What the operator applied last, so that it applies again only what differs or was changed by somebody else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from ..cluster.kinds import Kind, kind_of
from ..cluster.seam import Cluster, Object
from .store import Key, Store, version_of

REPEAT_AFTER_S = 600.0
"""Everything is applied again after this long, also what is not watched."""


@dataclass(slots=True)
class _Last:
    digest: bytes
    version: str
    at: float


@dataclass(slots=True)
class Applied:
    """One memory for all objects; `owner` groups them, to be forgotten together."""

    cluster: Cluster
    store: Store
    _last: dict[Key, dict[tuple[Kind, str], _Last]] = field(default_factory=dict)
    _removed: set[tuple[Key, Kind, str]] = field(default_factory=set)

    async def apply(self, owner: Key, wanted: Object, *, now: float) -> bool:
        """Whether anything was sent. Raises ClusterError."""
        kind = kind_of(wanted["apiVersion"], wanted["kind"])
        name = wanted["metadata"]["name"]
        known = self._last.setdefault(owner, {})
        digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).digest()
        last = known.get((kind, name))
        if last is not None and last.digest == digest and now < last.at + REPEAT_AFTER_S:
            seen = self.store.get(kind, Key(wanted["metadata"]["namespace"], name))
            if not kind.is_watched or (seen is not None and seen["version"] == last.version):
                return False
        applied = await self.cluster.apply(wanted)
        known[kind, name] = _Last(digest, version_of(applied), now)
        if kind.is_watched:
            self.store.put(kind, applied)
        return True

    async def remove(self, owner: Key, kind: Kind, name: str) -> None:
        """Delete an object that is there by what the watches say, or that was applied. What is not watched may be a
        former operator's: it is deleted once. Raises ClusterError."""
        was_ours = self._last.get(owner, {}).pop((kind, name), None) is not None
        is_there = self.store.get(kind, Key(owner.namespace, name)) is not None
        is_first = not kind.is_watched and (owner, kind, name) not in self._removed
        if was_ours or is_there or is_first:
            await self.cluster.delete(kind, owner.namespace, name)
            self._removed.add((owner, kind, name))

    def forget(self, owner: Key) -> None:
        self._last.pop(owner, None)
        self._removed = {one for one in self._removed if one[0] != owner}
