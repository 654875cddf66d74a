"""Those who apply manifests from Git own what these say, and find out from the status what became of it."""

from __future__ import annotations

import json

import pytest

from e2e import stage
from e2e.kubectl import CommandFailed, Kubectl, Object, until

GITOPS = "argocd-controller"


def apply_as(shop: Kubectl, manager: str, one: Object) -> None:
    shop("apply", "--server-side", f"--field-manager={manager}", "-f", "-", given=json.dumps(one))


def managed(shop: Kubectl, name: str) -> list[Object]:
    """Who set which fields of a group, and when last."""
    one = json.loads(shop("get", "lbg", name, "-o", "json", "--show-managed-fields"))
    entries: list[Object] = one["metadata"]["managedFields"]
    return entries


def spec_owners(entries: list[Object]) -> set[str]:
    return {entry["manager"] for entry in entries if "f:spec" in entry["fieldsV1"]}


def test_who_applies_a_manifest_does_not_fight_the_operator_nor_an_autoscaler(shop: Kubectl) -> None:
    group = stage.group("orders")
    apply_as(shop, GITOPS, group)
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    shop("scale", "lbg/orders", "--replicas=2")
    until(lambda: shop.get("deployment", "orders")["spec"]["replicas"] == 2, what="two consumers")
    group["spec"]["releasePeriodSeconds"] = 2
    apply_as(shop, GITOPS, group)  # without --force-conflicts
    assert shop.get("lbg", "orders")["spec"]["replicas"] == 2
    entries = managed(shop, "orders")
    assert spec_owners(entries) <= {GITOPS, "kubectl"}, "the operator owns nothing of the spec"
    ours = [entry["fieldsV1"] for entry in entries if entry["manager"] == "lbg-operator"]
    assert {field for one in ours for field in one} == {"f:metadata", "f:status"}
    assert {field for one in ours for field in one.get("f:metadata", {})} <= {".", "f:finalizers"}


def test_replicas_that_are_taken_out_of_a_manifest_stay_where_somebody_scaled(shop: Kubectl) -> None:
    group = stage.group("orders", replicas=1)
    apply_as(shop, GITOPS, group)
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    shop("scale", "lbg/orders", "--replicas=2")
    with pytest.raises(CommandFailed, match=r"conflict.*\.spec\.replicas"):
        apply_as(shop, GITOPS, group)
    del group["spec"]["replicas"]
    apply_as(shop, GITOPS, group)
    assert shop.get("lbg", "orders")["spec"]["replicas"] == 2


def test_an_object_that_nobody_has_looked_at_says_so(shop: Kubectl) -> None:
    """As the API server makes it: whoever goes by kstatus waits."""
    group = stage.group("orders", replicas=0)
    made = json.loads(shop("create", "-f", "-", "-o", "json", given=json.dumps(group)))
    assert made["status"]["observedGeneration"] == -1
