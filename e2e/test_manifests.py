"""Manifests in users' hands: mistakes, drift, deletion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e import stage
from e2e.kubectl import CommandFailed, Kubectl, until


def reason(shop: Kubectl, name: str, type_: str) -> str:
    return str(stage.condition(shop.get("lbg", name), type_).get("reason"))


NOON, NIGHT = "2026-11-27T12:00:00Z", "2026-11-27T22:00:00+01:00"
WEEKLY = {"days": ["Mon", "Tue"], "from": "07:45", "until": "18:00"}
DAILY = {"minReplicas": 2, "weekly": WEEKLY}


def scheduled(entry: dict[str, object]) -> dict[str, object]:
    return {"scaling": {"maxReplicas": 2, "schedule": [{"minReplicas": 2, **entry}]}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"queues": {"count": 200}}, "HC >= QC"),
        ({"replicas": 9}, "QC >= CC"),
        ({"scaling": {"maxReplicas": 9, "targetLag": 1}}, "QC >= CC"),
        ({"scaling": {"maxReplicas": 2}}, "scaling needs a target or a schedule"),
        (scheduled({}), "set either from and until, or weekly"),
        (scheduled({"from": NOON}), "set either from and until, or weekly"),
        (scheduled({"from": NOON, "until": NIGHT, "weekly": WEEKLY}), "set either from and until, or weekly"),
        (scheduled({"from": NIGHT, "until": NOON}), "from must be before until"),
        (scheduled({"from": NOON, "until": NOON}), "from must be before until"),
        (scheduled({"from": "2026-02-30T12:00:00Z", "until": NIGHT}), "date-time"),
        (scheduled({"from": "27.11.2026", "until": NIGHT}), "should match"),
        (scheduled({"weekly": {**WEEKLY, "until": "24:00"}}), "should match"),
        (scheduled({"weekly": {**WEEKLY, "days": ["Mon", "Mon"]}}), "duplicate entries"),
        (scheduled({"weekly": {**WEEKLY, "days": ["Monday"]}}), "Unsupported value"),
        (scheduled({"weekly": {**WEEKLY, "days": []}}), "at least 1 items"),
        (scheduled({"weekly": {**WEEKLY, "timeZone": "../etc/passwd"}}), "should match"),
        (scheduled({"minReplicas": 0, "weekly": WEEKLY}), "greater than or equal to 1"),
        ({"scaling": {"maxReplicas": 2, "schedule": 513 * [DAILY]}}, "must have at most 512 items"),
        ({"mode": "Sessions"}, "queues.count must be 1 in modes MessageGroups and Sessions"),
        ({"mode": "Partitioned", "replicas": 9}, "QC >= CC"),
        ({"replicas": 17, "queues": {"count": 8, "max": 16}}, "QC >= CC"),
        ({"queues": {"count": 8, "max": 4}}, "queues.max must be at least queues.count"),
        ({"queues": {"count": 8, "max": 200}}, "HC >= QC"),
        (
            {"assignment": "Static", "queues": {"count": 8, "max": 16}},
            "queues.max does not go with assignment Static",
        ),
        (
            {"mode": "Sessions", "queues": {"count": 1, "max": 2}},
            "queues.max is for modes Exclusive and Partitioned",
        ),
        ({"mode": "Sessions", "queues": {"count": 1}, "assignment": "Static"}, "assignment must be Balanced"),
    ],
)
def test_the_api_server_refuses_what_cannot_be_and_says_what_to_do(
    desk: Kubectl, spec: dict[str, object], said: str
) -> None:
    group = stage.group("refused")
    group["spec"] |= spec
    with pytest.raises(CommandFailed) as refused:
        desk.apply(group)
    assert said in refused.value.said


def test_a_schedule_is_of_one_owner_who_owns_nothing_else(desk: Kubectl) -> None:
    """As `lbg pipeline forecast --apply` does it."""
    desk.apply(stage.group("scheduled", replicas=0, scaling={"maxReplicas": 4, "targetLag": 100}))
    forecast = {
        "apiVersion": "lbg.dev/v1alpha1",
        "kind": "LoadBalancedGroup",
        "metadata": {"name": "scheduled"},
    }
    for entries in ([DAILY] * 512, [{"minReplicas": 3, "from": NOON, "until": NIGHT}]):
        told = {**forecast, "spec": {"scaling": {"schedule": entries}}}
        desk("apply", "--server-side", "--field-manager=lbg-forecast", "-f", "-", given=json.dumps(told))
        assert len(desk.get("lbg", "scheduled")["spec"]["scaling"]["schedule"]) == len(entries)
    desk.apply(stage.group("scheduled", replicas=0, scaling={"maxReplicas": 6, "targetLag": 50}))
    told = desk.get("lbg", "scheduled")["spec"]["scaling"]
    assert (told["maxReplicas"], [one["minReplicas"] for one in told["schedule"]]) == (6, [3])


def test_what_cannot_change_cannot_be_changed(desk: Kubectl) -> None:
    desk.apply(stage.group("orders", replicas=0))
    for patch in (
        '{"spec":{"hash":{"count":32}}}',
        '{"spec":{"hash":{"prefix":"x"}}}',
        '{"spec":{"groupName":"x"}}',
    ):
        with pytest.raises(CommandFailed, match="cannot be changed"):
            desk("patch", "lbg", "orders", "--type=merge", "-p", patch)


def test_the_times_of_partitions_cannot_be_changed(desk: Kubectl) -> None:
    group = stage.group("partitioned", replicas=0)
    group["spec"]["mode"] = "Partitioned"
    desk.apply(group)
    for patch in ('{"spec":{"rebalanceDelaySeconds":8}}', '{"spec":{"maxHandoffSeconds":8}}'):
        with pytest.raises(CommandFailed, match="cannot be changed in mode Partitioned"):
            desk("patch", "lbg", "partitioned", "--type=merge", "-p", patch)


@pytest.mark.parametrize(
    ("options", "order", "said"),
    [
        ({"republish": False}, "Queue", "app.order must be Key"),
        ({"republish": True}, "Key", "sidecar.republish must be false"),
        ({"republish": False, "queues": 1, "mode": "MessageGroups"}, "Key", "whenExhausted cannot be Park"),
    ],
)
def test_keys_are_not_parked_where_they_cannot_be(
    desk: Kubectl, options: dict[str, Any], order: str, said: str
) -> None:
    group = stage.group("refused", **options)
    group["spec"]["consumer"]["app"] |= {"whenExhausted": "Park", "order": order}
    with pytest.raises(CommandFailed) as refused:
        desk.apply(group)
    assert said in refused.value.said


def test_the_volumes_of_consumers_are_for_sessions_and_stay_as_they_are(desk: Kubectl) -> None:
    group = stage.group("sessions", replicas=0, queues=1)
    group["spec"]["consumer"]["storage"] = {"size": "2Gi"}
    with pytest.raises(CommandFailed, match=r"consumer\.storage is for mode Sessions"):
        desk.apply(group)
    group["spec"]["mode"] = "Sessions"
    desk.apply(group)
    for patch in (
        '{"spec":{"consumer":{"storage":{"size":"3Gi"}}}}',
        '{"spec":{"consumer":{"storage":null}}}',
    ):
        with pytest.raises(CommandFailed, match="storage cannot be changed"):
            desk("patch", "lbg", "sessions", "--type=merge", "-p", patch)
    group["metadata"]["name"] = "x" * 49
    with pytest.raises(CommandFailed, match="in mode Sessions the name may have 48 characters"):
        desk.apply(group)


def test_a_missing_broker_is_told_and_taken_when_it_comes(shop: Kubectl) -> None:
    group = stage.group("orders", replicas=0)
    group["spec"]["brokerRef"]["name"] = "other"
    shop.apply(group)
    until(lambda: reason(shop, "orders", "Accepted") == "BrokerNotFound", what="the mistake to be told")
    other = stage.broker()
    other["metadata"]["name"] = "other"
    shop.apply(other)
    until(lambda: reason(shop, "orders", "Provisioned") == "Provisioned", what="the group on its broker")


def test_drift_is_repaired(shop: Kubectl) -> None:
    shop.apply(stage.group("orders", replicas=1))
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    shop("scale", "deployment/orders", "--replicas=3")
    until(
        lambda: shop.get("deployment", "orders")["spec"]["replicas"] == 1, what="the replicas to be put right"
    )
    shop("delete", "deployment/orders", "configmap/orders-lbg", "networkpolicy/orders")
    until(lambda: shop.is_there("deployment", "orders"), what="the Deployment to be back")
    until(lambda: shop.is_there("configmap", "orders-lbg"), what="the ConfigMap to be back")
    until(lambda: shop.is_there("networkpolicy", "orders"), what="the NetworkPolicy to be back")


@pytest.mark.parametrize(
    ("mode", "workload"), [("Exclusive", "deployment/orders"), ("Sessions", "statefulset/orders-lbg")]
)
def test_objects_that_a_manifest_no_longer_asks_for_are_deleted(
    shop: Kubectl, mode: str, workload: str
) -> None:
    scaling = {"maxReplicas": 2, "targetLag": 1000}
    group = stage.group("orders", mode=mode, queues=1 if mode == "Sessions" else 8, scaling=scaling)
    shop.apply(group)
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    made = (workload, "hpa/orders", "pdb/orders", "networkpolicy/orders")
    for one in made:
        until(lambda one=one: shop.is_there(*one.split("/")), what=f"{one} to be made")
    del group["spec"]["scaling"]
    shop.apply(group)
    until(lambda: not shop.is_there("hpa", "orders"), what="the autoscaler to be deleted")
    del group["spec"]["consumer"]
    shop.apply(group)
    for one in made:
        until(lambda one=one: not shop.is_there(*one.split("/")), what=f"{one} to be deleted")
    assert shop.is_there("lbg", "orders")


def test_a_deleted_group_works_off_what_waits(shop: Kubectl) -> None:
    shop.apply(stage.group("orders", delay_ms=10, replicas=1))
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    stage.judging(shop, "orders", idle_s=20)
    shop.apply(stage.publisher("orders", rows=3000))
    stage.published(shop)
    shop("delete", "lbg", "orders", "--timeout=120s")
    said = stage.verdict(shop, timeout_s=60)
    assert (said["distinct"], said["lost"], said["order_errors"]) == (3000, 0, 0), said
    until(lambda: not shop.is_there("deployment", "orders"), what="the consumers to be gone")


def test_a_group_whose_broker_is_gone_can_be_deleted(shop: Kubectl) -> None:
    shop.apply(stage.group("orders", replicas=0))
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Provisioned"), what="the group on its broker")
    shop("delete", "broker", "main")
    shop("delete", "lbg", "orders", "--timeout=60s")
