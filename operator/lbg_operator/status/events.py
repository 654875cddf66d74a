"""Events for condition transitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lbg_operator.status.conditions import Reason


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """As an Event of Kubernetes has it: `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


_GOOD = {
    "Accepted": "True",
    "Provisioned": "True",
    "Ready": "True",
    "ScalingActive": "True",
    "QueuesScaled": "True",
    "Degraded": "False",
    "KeysParked": "False",
}
_PROBLEMS = frozenset({"Degraded", "KeysParked"})
_WARNINGS = frozenset(
    {("Accepted", "False"), ("Provisioned", "False"), *((one, "True") for one in _PROBLEMS)}
)
_WORSE = frozenset({"ParkingFull"})
"""Reasons that are an event although the condition's status is as before."""
_WARNINGS_IF_LOST = frozenset(
    (type_, state) for type_ in ("Provisioned", "Ready", "ScalingActive") for state in ("False", "Unknown")
)
"""Of a group that never had it, it is only not so yet."""


def events_for(
    former: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]
) -> Iterator[StatusEvent]:
    """An event for each condition whose status changed, but for what is only not so yet; for what is wrong with a
    generation in another way than with the one before; and for the reasons that are worse than the one before."""
    before = {one["type"]: one for one in former}
    for one in now:
        last = before.get(one["type"], {})
        if one["reason"] == Reason.REFUSED.word:
            continue  # Accepted or Provisioned has the same event
        if last.get("reason") == Reason.REFUSED.word:
            last = {**last, "status": "False"}
        kind = (
            "Warning"
            if _is_wrong_anew(last, one)
            else _kind_of(one["type"], last.get("status"), one["status"])
        )
        if kind is not None:
            yield StatusEvent(kind, one["reason"], f"{one['type']} is {one['status']}: {one['message']}")


def _is_wrong_anew(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    is_still_wrong = was.get("status") == now["status"] and (now["type"], now["status"]) in _WARNINGS
    if is_still_wrong and now["reason"] in _WORSE and was.get("reason") != now["reason"]:
        return True
    is_next = was.get("observedGeneration") != now.get("observedGeneration")
    return is_still_wrong and is_next and was["message"] != now["message"]


def _kind_of(type_: str, was: str | None, now: str) -> str | None:
    if was == now:
        return None
    if (type_, now) in _WARNINGS or (was == _GOOD.get(type_) and (type_, now) in _WARNINGS_IF_LOST):
        return "Warning"
    if now != _GOOD.get(type_) or (type_ in _PROBLEMS and was != "True"):
        return None
    if was is None and type_ != "Ready":  # what is good from the beginning is expected
        return None
    return "Normal"
