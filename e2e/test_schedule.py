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


def least(shop: Kubectl) -> int:
    return int(shop.get("hpa", "flights")["spec"]["minReplicas"])


def members(shop: Kubectl) -> int:
    return int(shop.get("lbg", "flights")["status"].get("memberCount", 0))


@pytest.mark.parametrize("target", [{"targetLag": 1000}, {}], ids=["with a target", "alone"])
def test_an_entry_brings_consumers_at_its_beginning_and_lets_them_go_at_its_end(
    shop: Kubectl, target: Object
) -> None:
    entry = dated(3, 45, 60)
    scaling = {"maxReplicas": 4, "scaleDownStabilizationSeconds": 0, "schedule": [entry], **target}
    shop.apply(stage.group("flights", scaling=scaling))
    until(lambda: members(shop) == 1, what="one consumer")
    told = shop.get("lbg", "flights")["status"]["scaling"]
    assert told == {"minReplicas": 1, "why": "MinReplicas", "until": entry["from"]}
    until(lambda: members(shop) == 3, what="three consumers")
    assert rfc3339(datetime.now(UTC)) >= entry["from"]
    assert shop.is_there("hpa", "flights") == bool(target)
    if target:
        assert least(shop) == 3
    told = shop.get("lbg", "flights")["status"]["scaling"]
    assert told == {"minReplicas": 3, "why": "Schedule", "entry": 0, "until": entry["until"]}
    until(lambda: members(shop) == 1, what="one consumer again", timeout_s=180)
    assert rfc3339(datetime.now(UTC)) >= entry["until"]
    if target:
        assert least(shop) == 1
    told = [one["reason"] for one in shop.select("events") if one["involvedObject"]["name"] == "flights"]
    assert told.count("ScheduledReplicas") == 2
