"""Server-side apply of what differs from the last apply, or was changed by somebody else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from lbg_operator.kube.api import Cluster, ClusterError, Object, Terminating
from lbg_operator.kube.kinds import Kind, kind_of
from lbg_operator.reconcile.ending_namespaces import EndingNamespaces
from lbg_operator.reconcile.object_cache import Key, ObjectCache, version_of

REPEAT_AFTER_S = 3600.0
"""Everything is applied again after this long, whatever the watches say. They show each change of what was applied, and
lists every ten minutes what they missed, so this is for annotations and for mistakes of ours."""


DISPUTE_S = 60.0
REPAIRS_MAX = 3
"""Changes of somebody else, and deletions, that are reverted at once. Who makes another one within a minute after each
of them is no person: another controller, or an operator of another version, which reverts as quickly as this one."""


@dataclass(slots=True)
class _Last:
    """`repairs`: how often in a row the same was applied over somebody else's change."""

    digest: bytes
    version: str
    at: float
    repairs: int = 0


@dataclass(slots=True)
class ServerSideApply:
    """One memory for all objects; `owner` groups them, to be forgotten together. Each kind is followed, by a watch or,
    KEDA's, by lists."""

    cluster: Cluster
    store: ObjectCache
    ending: EndingNamespaces
    _last: dict[Key, dict[tuple[Kind, str], _Last]] = field(default_factory=dict)

    async def apply(self, owner: Key, manifest: Object, *, now: float) -> bool:
        """True if anything was sent. Raises ClusterError, also instead of one more repair in a dispute, and Terminating
        instead of a request in a namespace that is being deleted."""
        kind = kind_of(manifest["apiVersion"], manifest["kind"])
        name = manifest["metadata"]["name"]
        if self.ending.covers(owner):
            raise Terminating(f"apply {kind.kind} {owner.namespace}/{name}", "the namespace is being deleted")
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).digest()
        last = self._last.setdefault(owner, {}).get((kind, name))
        is_recent = last is not None and last.digest == digest and now < last.at + REPEAT_AFTER_S
        if is_recent and self.is_untouched(owner, kind, name):
            return False
        repairs = 0 if last is None or last.digest != digest else last.repairs
        if repairs >= REPAIRS_MAX and last is not None:
            if now < last.at + DISPUTE_S:
                why = "somebody else has changed it after each of the last repairs: one of the two must leave it alone"
                raise ClusterError(f"apply {kind.kind} {owner.namespace}/{name}", why)
            repairs -= 1
        seen = self.store.get(kind, Key(owner.namespace, name))
        try:
            applied = await self.cluster.apply(manifest)
        except Terminating:
            self.ending.add(owner.namespace)
            raise
        version = version_of(applied)
        repairs += last is not None and (seen is None or seen["version"] != version)
        self._last.setdefault(owner, {})[kind, name] = _Last(digest, version, now, repairs)
        self.store.put(kind, applied)
        return True

    def are_untouched(self, owner: Key, *, now: float) -> bool:
        """True while all that was applied for `owner` is as it was, and not due to be applied again."""
        applied = self._last.get(owner, {})
        return all(
            now < last.at + REPEAT_AFTER_S and self.is_untouched(owner, kind, name)
            for (kind, name), last in applied.items()
        )

    def is_untouched(self, owner: Key, kind: Kind, name: str) -> bool:
        """True if an object was applied, and nobody has changed or deleted it since."""
        last = self._last.get(owner, {}).get((kind, name))
        seen = self.store.get(kind, Key(owner.namespace, name))
        return last is not None and seen is not None and seen["version"] == last.version

    async def remove(self, owner: Key, kind: Kind, name: str) -> None:
        """Delete an object that is there, or that was applied. Raises ClusterError."""
        was_ours = self._last.get(owner, {}).pop((kind, name), None) is not None
        if was_ours or self.store.get(kind, Key(owner.namespace, name)) is not None:
            await self.cluster.delete(kind, owner.namespace, name)

    def forget(self, owner: Key) -> None:
        self._last.pop(owner, None)
