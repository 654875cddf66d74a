"""Writes one status patch for each reconcile, and the events of its changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lbg_operator.crds import GroupManifest
from lbg_operator.kube.kinds import GROUP
from lbg_operator.reconcile.context import ReconcileContext
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.reconcile.survey_cache import latest, moves
from lbg_operator.status.condition_rules import Observation
from lbg_operator.status.events import events_for
from lbg_operator.status.status import due_in_s, patch_of, scheduling_news, status_of


@dataclass(slots=True)
class _Written:
    status: dict[str, Any]
    at: float


@dataclass(slots=True)
class _Handoffs:
    looked: int = 0
    kept: list[dict[str, Any]] = field(default_factory=list)


class StatusWriter:
    def __init__(self, world: ReconcileContext) -> None:
        self._context = world
        self._written: dict[Key, _Written] = {}
        self._handoffs: dict[Key, _Handoffs] = {}

    async def write(
        self, key: Key, group: GroupManifest | None, facts: Observation, *, generation: int
    ) -> float:
        """Returns in how many seconds a status that was held back is to be written. Raises ClusterError.

        `generation`: what the round judged. The manifest may have become another one meanwhile.
        """
        world = self._context
        manifest = world.store.get(GROUP, key)
        if manifest is None:
            return float("inf")
        last = self._written.get(key)
        former = last.status if last is not None else manifest.get("status", {})
        look = world.looks.latest(key)
        wanted = status_of(
            group,
            facts,
            former=former,
            generation=generation,
            now=world.timestamp,
            observed=None if look is None or look.description is None else look.time,
            lag=None if (seen := world.looks.lag(key)) is None else (seen.lag, seen.time),
            handoffs=self._seen_handoffs(key, former),
        )
        since_s = 0.0 if last is None else world.now() - last.at
        quiet_s = world.looks.quiet_s
        if (wait_s := due_in_s(wanted, former, since_last_s=since_s, quiet_s=quiet_s)) > 0:
            if last is None:
                self._written[key] = _Written(dict(former), world.now())
            return wait_s
        patch = patch_of(wanted, former)
        answer = await world.cluster.merge(GROUP, key.namespace, key.name, patch, subresource="status")
        if answer is None:  # gone, and the watch did not tell
            world.store.drop(GROUP, manifest)
            return 0.0
        world.store.update(GROUP, answer)
        world.wrote(GROUP, answer)
        there = (world.store.get(GROUP, key) or {}).get("status")
        # The same object as in the cache: statuses are most of what hundreds of groups take.
        self._written[key] = _Written(there if there == wanted else wanted, world.now())
        self._announce(manifest, former, wanted)
        return float("inf")

    def forget(self, key: Key) -> None:
        self._written.pop(key, None)
        self._handoffs.pop(key, None)

    def _seen_handoffs(self, key: Key, former: dict[str, Any]) -> list[dict[str, Any]]:
        known = self._handoffs.get(key)
        if known is None:
            known = self._handoffs[key] = _Handoffs(kept=list(former.get("lastHandoffs", ())))
        look = self._context.looks.latest(key)
        if look is not None and look.description is not None and look.number > known.looked:
            known.looked = look.number
            known.kept = latest(moves(look.before, look.description, time=look.time), known.kept)
        return known.kept

    def _announce(self, manifest: Any, former: dict[str, Any], wanted: dict[str, Any]) -> None:
        told = events_for(former.get("conditions", ()), wanted["conditions"])
        scheduled = scheduling_news(former.get("scaling", {}), wanted.get("scaling", {}))
        for one in (*told, *scheduled):
            self._context.announce(manifest, type=one.type, reason=one.reason, message=one.message)
