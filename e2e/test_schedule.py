"""A schedule on a cluster: its times come, and nobody has to look."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from e2e import stage
from e2e.kubectl import Kubectl, Object, until


def dated(replicas: int, after_s: float, lasts_s: float) -> Object:
    begins = datetime.now(UTC) + timedelta(seconds=after_s)
    told = (begins, begins + timedelta(seconds=lasts_s))
    return {"minReplicas": replicas, **dict(zip(("from", "until"), map(rfc3339, told), strict=True))}


def rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def leasts(shop: Kubectl) -> list[int]:
    """Of the autoscaler, if there is one: the operator's, or the one that KEDA makes of a ScaledObject."""
    return [int(one["spec"]["minReplicas"]) for one in shop.select("hpa")]


def status(shop: Kubectl) -> Object:
    """Empty until the operator has written it."""
    found: Object = shop.get("lbg", "flights").get("status", {})
    return found


def members(shop: Kubectl) -> int:
    return int(status(shop).get("memberCount", 0))


def scheduled_events(shop: Kubectl) -> int:
    events = [one for one in shop.select("events") if one["involvedObject"]["name"] == "flights"]
    return sum(one["reason"] == "ScheduledReplicas" for one in events)


@pytest.mark.parametrize("target", [{"targetLag": 1000}, {}], ids=["with a target", "alone"])
def test_an_entry_brings_consumers_at_its_beginning_and_lets_them_go_at_its_end(
    shop: Kubectl, target: Object
) -> None:
    entry = dated(3, 60, 150)
    scaling = {"maxReplicas": 4, "scaleDownStabilizationSeconds": 0, "schedule": [entry], **target}
    shop.apply(stage.group("flights", scaling=scaling))
    until(lambda: members(shop) == 1, what="one consumer")
    before = {"minReplicas": 1, "why": "MinReplicas", "until": entry["from"]}
    until(lambda: status(shop).get("scaling") == before, what="the least before the entry")
    until(lambda: members(shop) == 3, what="three consumers", timeout_s=210)
    assert rfc3339(datetime.now(UTC)) >= entry["from"]
    assert leasts(shop) == ([3] if target else [])
    during = {"minReplicas": 3, "why": "Schedule", "entry": 0, "until": entry["until"]}
    until(lambda: status(shop).get("scaling") == during, what="the least by the entry")
    until(lambda: members(shop) == 1, what="one consumer again", timeout_s=300)
    assert rfc3339(datetime.now(UTC)) >= entry["until"]
    assert leasts(shop) == ([1] if target else [])
    until(lambda: scheduled_events(shop) == 2, what="an event at each change")
