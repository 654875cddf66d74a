"""From what is known of a broker to its condition Degraded."""

from __future__ import annotations

from collections.abc import Sequence

from .conditions import Condition, Reason


def degraded_broker(
    volume_refusal: str | None, alarms: Sequence[str] | None, *, forbidden: str | None = None
) -> Condition:
    """`volume_refusal`: why the cluster refuses the volume, `forbidden`: another of the broker's objects; empty or None
    if it does not. `alarms` is None when nobody could ask."""
    if alarms:
        return Condition(Reason.BROKER_ALARM, "; ".join(alarms))
    if forbidden:
        return Condition(Reason.CLUSTER_REFUSES, forbidden)
    if volume_refusal:
        return Condition(Reason.VOLUME_REFUSED, volume_refusal)
    return Condition(Reason.NOT_KNOWN if alarms is None else Reason.AS_EXPECTED)
