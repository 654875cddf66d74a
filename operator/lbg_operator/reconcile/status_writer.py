"""Writes one status patch for each reconcile, and the events of its changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lbg_operator.crds import GroupManifest
from lbg_operator.kube.kinds import GROUP
from lbg_operator.reconcile.context import ReconcileContext
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.reconcile.survey_cache import latest, moves
from lbg_operator.status.condition_rules import Observation, conditions_of
from lbg_operator.status.events import events_for
from lbg_operator.status.stabilization import Stabilizer
from lbg_operator.status.status import due_in_s, patch_of, scheduling_news, status_of


@dataclass(slots=True)
class _Written:
    status: dict[str, Any]
    at: float


@dataclass(slots=True)
class _Handoffs:
    survey_number: int = 0
    shown: list[dict[str, Any]] = field(default_factory=list)


class StatusWriter:
    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._written: dict[Key, _Written] = {}
        self._handoffs: dict[Key, _Handoffs] = {}
        self._stabilizer = Stabilizer()

    async def write(
        self, key: Key, group: GroupManifest | None, observation: Observation, *, generation: int
    ) -> float:
        """Returns in how many seconds a status that was held back is to be written. Raises ClusterError.

        `generation`: of the manifest that was reconciled. It may have changed meanwhile.
        """
        context = self._context
        manifest = context.store.get(GROUP, key)
        if manifest is None:
            return float("inf")
        last = self._written.get(key)
        former = last.status if last is not None else manifest.get("status", {})
        survey = context.surveys.latest(key)
        conditions = self._stabilizer.shown(
            key,
            former.get("conditions", ()),
            conditions_of(group, observation),
            generation=generation,
            now_s=context.now(),
        )
        steady_in_s = self._stabilizer.due_in_s(key, now_s=context.now())
        status = status_of(
            group,
            observation,
            conditions,
            former=former,
            generation=generation,
            now=context.timestamp,
            observed=None if survey is None or survey.description is None else survey.time,
            lag=None if (seen := context.surveys.lag(key)) is None else (seen.lag, seen.time),
            handoffs=self._seen_handoffs(key, former),
        )
        since_s = 0.0 if last is None else context.now() - last.at
        quiet_s = context.surveys.quiet_s
        if (wait_s := due_in_s(status, former, since_last_s=since_s, quiet_s=quiet_s)) > 0:
            if last is None:
                self._written[key] = _Written(dict(former), context.now())
            return min(wait_s, steady_in_s)
        answer = await context.write_status(GROUP, manifest, patch_of(status, former))
        if answer is None:  # gone, and the watch has not reported it
            context.store.drop(GROUP, manifest)
            return 0.0
        cached = (context.store.get(GROUP, key) or {}).get("status")
        # The same object as in the cache: statuses are most of what hundreds of groups take.
        self._written[key] = _Written(cached if cached == status else status, context.now())
        self._announce(manifest, former, status)
        return steady_in_s

    def forget(self, key: Key) -> None:
        self._written.pop(key, None)
        self._handoffs.pop(key, None)
        self._stabilizer.forget(key)

    def _seen_handoffs(self, key: Key, former: dict[str, Any]) -> list[dict[str, Any]]:
        known = self._handoffs.get(key)
        if known is None:
            known = self._handoffs[key] = _Handoffs(shown=list(former.get("lastHandoffs", ())))
        survey = self._context.surveys.latest(key)
        if survey is not None and survey.description is not None and survey.number > known.survey_number:
            known.survey_number = survey.number
            known.shown = latest(moves(survey.before, survey.description, time=survey.time), known.shown)
        return known.shown

    def _announce(self, manifest: Any, former: dict[str, Any], status: dict[str, Any]) -> None:
        changes = events_for(former.get("conditions", ()), status["conditions"])
        scheduled = scheduling_news(former.get("scaling", {}), status.get("scaling", {}))
        for one in (*changes, *scheduled):
            self._context.announce(manifest, type=one.type, reason=one.reason, message=one.message)
