"""From what is known of a broker to its conditions."""

from __future__ import annotations

from collections.abc import Sequence

from .conditions import Condition, Reason
from .judging import ALL_APPLIED, Unapplied, not_taken


def ready_broker(checked: Condition, unapplied: str) -> Condition:
    """Of a generation that the cluster never had all of, and `unapplied` says why. `checked`: what became of the last
    try to reach the broker."""
    return Condition(Reason.NOT_APPLIED, unapplied) if unapplied else checked


def degraded_broker(
    volume_refusal: str | None,
    alarms: Sequence[str] | None,
    *,
    unapplied: Unapplied = ALL_APPLIED,
    pods: str = "",
) -> Condition:
    """`volume_refusal`: why the cluster refuses the volume; empty or None if it does not. `alarms` is None when nobody
    could ask. `pods`: what keeps the broker's pod from running."""
    if alarms:
        return Condition(Reason.BROKER_ALARM, "; ".join(alarms))
    if (refused := not_taken(unapplied)) is not None:
        return refused
    if pods:
        return Condition(Reason.PODS_FAILING, pods)
    if volume_refusal:
        return Condition(Reason.VOLUME_REFUSED, volume_refusal)
    return Condition(Reason.NOT_KNOWN if alarms is None else Reason.AS_EXPECTED)
