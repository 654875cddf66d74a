"""Stabilization of conditions that flip. No I/O; the time is an argument.

A condition gets worse at once. It gets better at once too, unless it flips: what got worse within a minute after it had
recovered has to be good for a minute before it is shown so. A pod has to be ready for `minReadySeconds` before it is
available in the same way, and a HorizontalPodAutoscaler takes the worst of its stabilization window. A new generation
starts anew, so that `kubectl wait` sees each change at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from lbg_operator.status.conditions import Condition, Reason, State, Type

STEADY_S = 60.0
GOOD = {
    Type.PROVISIONED: State.TRUE,
    Type.READY: State.TRUE,
    Type.SCALING_ACTIVE: State.TRUE,
    Type.DEGRADED: State.FALSE,
}
"""The good status of each condition that is stabilized."""
_REASONS = {reason.word: reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Of one condition and generation, in seconds of one clock.

    - `was_good`: it was shown as good once.
    - `recovered_at`: when it was last shown as good again.
    - `flips`: it got worse within STEADY_S of that.
    - `good_since`: since when it is good and not shown so.
    """

    was_good: bool = False
    recovered_at: float = -inf
    flips: bool = False
    good_since: float = inf


def stabilized(
    last: Steadiness, shown: Mapping[str, Any], observed: Condition, *, generation: int, now_s: float
) -> tuple[Condition, Steadiness]:
    """The condition to show, and its steadiness then. `shown`: the condition of this type in the status."""
    good = GOOD[observed.reason.type]
    if shown.get("observedGeneration") != generation:
        return observed, Steadiness()
    was_shown, is_good = shown["status"] == good, observed.reason.state is good
    last = replace(last, was_good=last.was_good or was_shown)
    if was_shown or not is_good:
        flips = last.flips or (was_shown and not is_good and now_s - last.recovered_at < STEADY_S)
        return observed, replace(last, flips=flips, good_since=inf)
    since_s = min(last.good_since, now_s)
    reason = _REASONS.get(shown["reason"])
    if reason is None or not last.flips or now_s - since_s >= STEADY_S:
        return observed, Steadiness(last.was_good, recovered_at=now_s if last.was_good else -inf)
    return Condition(reason, shown["message"]), replace(last, good_since=since_s)


@dataclass(slots=True)
class Stabilizer:
    """The steadiness of each object's conditions. Times are of a monotonic clock, in seconds."""

    _known: dict[Hashable, dict[Type, Steadiness]] = field(default_factory=dict)

    def shown(
        self,
        owner: Hashable,
        former: Iterable[Mapping[str, Any]],
        observed: Sequence[Condition],
        *,
        generation: int,
        now_s: float,
    ) -> list[Condition]:
        """The conditions to show of what was observed. `former`: those of the status."""
        before = {one["type"]: one for one in former}
        known, shown = self._known.setdefault(owner, {}), []
        for condition in observed:
            type_ = condition.reason.type
            if type_ in GOOD:
                condition, known[type_] = stabilized(
                    known.get(type_, Steadiness()),
                    before.get(str(type_), {}),
                    condition,
                    generation=generation,
                    now_s=now_s,
                )
            shown.append(condition)
        return shown

    def due_in_s(self, owner: Hashable, *, now_s: float) -> float:
        """In how many seconds a condition is shown as good that is so already; infinity if none is."""
        since_s = min((one.good_since for one in self._known.get(owner, {}).values()), default=inf)
        return max(since_s + STEADY_S - now_s, 0.0)

    def forget(self, owner: Hashable) -> None:
        self._known.pop(owner, None)
