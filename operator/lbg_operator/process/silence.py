"""Whether the watches still tell: an operator that stopped hearing looks healthy from outside. Pure.

The operator writes statuses all the time, and each write must come back through the watch of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cluster.kinds import Kind
from ..reconciling.store import Key

SILENT_S = 120.0
"""A watch that has not brought a write of ours for so long is dead. kopf renews one that is idle for 70 s by itself."""


@dataclass(slots=True)
class Silence:
    _seen: dict[tuple[Kind, Key], int] = field(default_factory=dict)
    _unseen: dict[tuple[Kind, Key], tuple[int, float]] = field(default_factory=dict)

    def wrote(self, kind: Kind, key: Key, version: str, now: float) -> None:
        """`version`: the resourceVersion of the API server's answer, which grows (Kubernetes: "Resource versions").

        A write that changed nothing has the version that was there before, and no watch will tell of it.
        """
        if int(version) > self._seen.get((kind, key), 0):
            self._unseen.setdefault((kind, key), (int(version), now))

    def saw(self, kind: Kind, key: Key, version: str) -> None:
        self._seen[kind, key] = int(version)
        wrote = self._unseen.get((kind, key))
        if wrote is not None and int(version) >= wrote[0]:
            del self._unseen[kind, key]

    def gone(self, kind: Kind, key: Key) -> None:
        self._unseen.pop((kind, key), None)
        self._seen.pop((kind, key), None)

    def silent_s(self, kind: Kind, now: float) -> float:
        """For how long the oldest write of this kind has not been seen."""
        return max((now - since for (one, _), (_, since) in self._unseen.items() if one is kind), default=0.0)
