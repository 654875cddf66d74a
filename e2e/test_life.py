"""A group's life on a cluster: it grows with its lag and shrinks again, its pods are killed and replaced, and the
validator says each time what became of its messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e import stage
from e2e.conftest import RELEASE, SYSTEM
from e2e.kubectl import Kubectl, Object, until

ROWS = 24_951
"""Of the sample of flights."""
SEEN_WITHIN_S = 15
"""A lag that changes is counted every two seconds; the rest is for a busy node."""


def status(shop: Kubectl, name: str = "flights") -> Object:
    found: Object = shop.get("lbg", name).get("status", {})
    return found


def is_served(shop: Kubectl, members: int, name: str = "flights") -> bool:
    told = status(shop, name)
    is_settled = told.get("rebalance") == "Ready" and told.get("memberCount") == members
    return is_settled and stage.is_condition(shop, "lbg", name, "Ready")


def begun(shop: Kubectl, group: Object, *, members: int) -> None:
    """The group with its members, and a validator that has heard everything from the beginning."""
    shop.apply(group)
    name = group["metadata"]["name"]
    until(lambda: is_served(shop, members, name), what=f"{members} members that serve all queues")


@pytest.mark.parametrize(
    ("target", "delay_ms"), [({"targetLag": 1500}, 20), ({"targetDelay": "10s"}, 100)], ids=["lag", "delay"]
)
def test_consumers_grow_with_a_burst_and_shrink_again_and_nothing_is_lost_repeated_or_out_of_order(
    shop: Kubectl, target: dict[str, Any], delay_ms: int
) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 4, "scaleDownStabilizationSeconds": 10, **target}
    begun(shop, stage.group("flights", delay_ms=delay_ms, scaling=scaling), members=1)
    stage.judging(shop, "flights", idle_s=45)
    shop.apply(stage.publisher("flights"))
    until(lambda: status(shop).get("replicas") == 4, what="four consumers", timeout_s=180)
    until(
        lambda: stage.is_condition(shop, "lbg", "flights", "ScalingActive"), what="scaling to be told active"
    )
    if "targetDelay" in target:
        demand = status(shop)["demand"]
        assert demand["wantedReplicas"] >= 4, demand
        assert demand["memberCapacityPerMinute"] > 0, demand
    stage.published(shop)
    until(lambda: status(shop).get("lag") == 0, what="all to be worked off", timeout_s=300)
    until(lambda: status(shop).get("replicas") == 1, what="one consumer again", timeout_s=180)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (ROWS, 0, 0, 0), said
    assert said["queue_moves"] > 0


def test_a_flood_shows_in_the_lag_for_as_long_as_the_broker_has_messages(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", delay_ms=50, replicas=2, republish=False), members=2)
    shop.apply(stage.publisher("flights", rows=6000))
    until(lambda: stage.waiting(shop, "flights"), what="messages to wait", timeout_s=60)
    until(lambda: status(shop).get("lag"), what="the lag", timeout_s=SEEN_WITHIN_S)
    looks = 0
    while True:
        lag = status(shop).get("lag")
        if not stage.waiting(shop, "flights"):
            break
        looks += 1
        assert lag, f"look {looks}: the broker has messages"
    assert looks > 5
    until(lambda: status(shop).get("lag") == 0, what="the lag to be 0 again", timeout_s=SEEN_WITHIN_S)


def test_a_scale_in_under_load_loses_repeats_and_reorders_nothing(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", delay_ms=5, replicas=4), members=4)
    stage.judging(shop, "flights", idle_s=30)
    shop.apply(stage.publisher("flights", rows=9000, rate_hz=200))
    until(lambda: status(shop).get("activeCount") == 4, what="all four at work")
    shop("scale", "lbg/flights", "--replicas=3")
    until(lambda: is_served(shop, 3), what="three members that serve all queues")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (9000, 0, 0, 0), said


def test_killed_pods_lose_and_reorder_nothing(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", delay_ms=5, replicas=3), members=3)
    stage.judging(shop, "flights", idle_s=40)
    shop.apply(stage.publisher("flights", rows=9000, rate_hz=150))
    for _ in range(3):
        pod = shop.select("pod", "lbg.dev/group=flights")[0]["metadata"]["name"]
        shop("delete", "pod", pod, "--force", "--grace-period=0")
        until(lambda gone=pod: not shop.is_there("pod", gone), what=f"{pod} to be gone")
        until(lambda: is_served(shop, 3), what="three members again")
    shop("delete", "pod", "main-0", "--force", "--grace-period=0")
    until(lambda: is_served(shop, 3), what="three members after the broker came back")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"]) == (9000, 0, 0), said


def test_a_rollout_moves_each_queue_once_and_repeats_nothing(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", delay_ms=5, replicas=3, queues=6), members=3)
    stage.judging(shop, "flights", idle_s=30)
    shop.apply(stage.publisher("flights", rows=9000, rate_hz=150))
    until(lambda: status(shop).get("activeCount") == 3, what="all three at work")
    before = {one["name"] for one in status(shop)["members"]}
    shop.apply(stage.group("flights", delay_ms=6, replicas=3, queues=6))
    until(lambda: not before & {one["name"] for one in status(shop).get("members", ())}, what="a new crew")
    until(lambda: is_served(shop, 3), what="the new crew to serve")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (9000, 0, 0, 0), said
    assert said["queue_moves"] <= 2 * 6, f"each queue moves as few times as possible: {json.dumps(said)}"


def test_consumers_do_not_notice_that_the_operator_is_away(shop: Kubectl) -> None:
    system = Kubectl(SYSTEM)
    begun(shop, stage.group("flights", replicas=2), members=2)
    stage.judging(shop, "flights", idle_s=30)
    pods = {one["metadata"]["uid"] for one in shop.select("pod", "lbg.dev/group=flights")}
    (operator,) = system.select("deployment", f"app.kubernetes.io/instance={RELEASE}")
    name = operator["metadata"]["name"]
    system("scale", f"deployment/{name}", "--replicas=0")
    until(
        lambda: not system.get("deployment", name)["status"].get("replicas"), what="the operator to be gone"
    )
    shop.apply(stage.publisher("flights", rows=3000, rate_hz=300))
    stage.published(shop)
    version = shop.get("deployment", "flights")["metadata"]["resourceVersion"]
    system("scale", f"deployment/{name}", "--replicas=1")
    until(
        lambda: system.get("deployment", name)["status"].get("readyReplicas"), what="the operator to be back"
    )
    until(lambda: is_served(shop, 2), what="the group to be served")
    assert shop.get("deployment", "flights")["metadata"]["resourceVersion"] == version
    assert {one["metadata"]["uid"] for one in shop.select("pod", "lbg.dev/group=flights")} == pods
    said = stage.verdict(shop, timeout_s=120)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (3000, 0, 0, 0), said
