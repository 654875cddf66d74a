"""Those who apply manifests from Git own what these say, and find out from the status what became of it."""

from __future__ import annotations

import json

import pytest

from e2e import stage
from e2e.kubectl import CommandFailed, Kubectl, Object, until
from e2e.test_life import is_served, status

GITOPS = "argocd-controller"


def apply_as(shop: Kubectl, manager: str, one: Object) -> None:
    shop("apply", "--server-side", f"--field-manager={manager}", "-f", "-", given=json.dumps(one))


def managed(shop: Kubectl, name: str) -> list[Object]:
    """Managers of a group's fields, and the times of their last writes."""
    one = json.loads(shop("get", "lbg", name, "-o", "json", "--show-managed-fields"))
    entries: list[Object] = one["metadata"]["managedFields"]
    return entries


def sync(shop: Kubectl, one: Object, *arguments: str) -> Object:
    """As Argo CD does it with ServerSideApply=true: by force. Returns what the API server makes of it."""
    command = (
        "apply",
        "--server-side",
        f"--field-manager={GITOPS}",
        "--force-conflicts",
        "-o",
        "json",
        *arguments,
    )
    made: Object = json.loads(shop(*command, "-f", "-", given=json.dumps(one)))
    return made


def is_in_sync(shop: Kubectl, one: Object) -> bool:
    """True if another sync would change nothing, by Argo CD's server-side diff."""
    live, wanted = shop.get("lbg", one["metadata"]["name"]), sync(shop, one, "--dry-run=server")
    return (wanted["spec"], wanted["metadata"]["generation"]) == (
        live["spec"],
        live["metadata"]["generation"],
    )


def owners(shop: Kubectl, name: str, *field: str) -> set[tuple[str, str]]:
    """The managers of a field of the spec, and the subresource by which each wrote it. Who scales what nobody owns is
    not recorded."""
    found = set()
    for entry in managed(shop, name):
        inner = entry["fieldsV1"].get("f:spec", {})
        for part in field[:-1]:
            inner = inner.get(f"f:{part}", {})
        if f"f:{field[-1]}" in inner:
            found.add((entry["manager"], entry.get("subresource", "")))
    return found


def spec_owners(entries: list[Object]) -> set[str]:
    return {entry["manager"] for entry in entries if "f:spec" in entry["fieldsV1"]}


def test_who_applies_a_manifest_does_not_fight_the_operator_nor_an_autoscaler(shop: Kubectl) -> None:
    group = stage.group("orders")
    apply_as(shop, GITOPS, group)
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    shop("scale", "lbg/orders", "--replicas=2")
    until(lambda: shop.get("deployment", "orders")["spec"]["replicas"] == 2, what="two consumers")
    group["spec"]["releaseIntervalSeconds"] = 2
    apply_as(shop, GITOPS, group)  # without --force-conflicts
    assert shop.get("lbg", "orders")["spec"]["replicas"] == 2
    entries = managed(shop, "orders")
    assert spec_owners(entries) <= {GITOPS, "kubectl"}, "the operator owns nothing of the spec"
    ours = [entry["fieldsV1"] for entry in entries if entry["manager"] == "lbg-operator"]
    assert {field for one in ours for field in one} == {"f:metadata", "f:status"}
    metadata = [one["f:metadata"] for one in ours if "f:metadata" in one]
    assert {field for one in metadata for field in one} <= {".", "f:annotations", "f:finalizers"}
    annotations = {field for one in metadata for field in one.get("f:annotations", {})}
    assert annotations <= {".", "f:lbg.dev/group-name"}


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


def test_queues_and_replicas_of_a_manifest_stay_its_managers_while_the_operator_follows_them(
    shop: Kubectl,
) -> None:
    group = stage.group("orders", queues=6, replicas=2)
    sync(shop, group)
    until(lambda: is_served(shop, 2, "orders"), what="two members that serve all queues")
    assert is_in_sync(shop, group)

    group["spec"]["queues"]["count"] = 8
    group["spec"]["replicas"] = 3
    generation = sync(shop, group)["metadata"]["generation"]
    until(lambda: len(status(shop, "orders").get("queues", ())) == 8, what="eight queues")
    until(lambda: is_served(shop, 3, "orders"), what="three members that serve all queues")
    assert sum(len(one["queues"]) for one in status(shop, "orders")["members"]) == 8
    assert is_in_sync(shop, group)
    assert shop.get("lbg", "orders")["metadata"]["generation"] == generation, (
        "nobody wrote the spec but its manager"
    )
    assert owners(shop, "orders", "queues", "count") == owners(shop, "orders", "replicas") == {(GITOPS, "")}


def test_a_sync_leaves_replicas_that_are_in_no_manifest_to_the_autoscaler(shop: Kubectl) -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 4, "targetLag": 1000}
    group = stage.group("orders", scaling=scaling)
    sync(shop, group)
    until(lambda: is_served(shop, 2, "orders"), what="the autoscaler's two members", timeout_s=240)
    for change in (2, 3):
        group["spec"]["releaseIntervalSeconds"] = change
        assert sync(shop, group)["spec"]["replicas"] == 2
        assert is_in_sync(shop, group)
    until(lambda: is_served(shop, 2, "orders"), what="two members still")
    assert (GITOPS, "") not in owners(shop, "orders", "replicas")
    assert owners(shop, "orders", "scaling", "targetLag") == {(GITOPS, "")}


def test_an_object_that_nobody_has_looked_at_says_so(desk: Kubectl) -> None:
    """As the API server makes it: whoever goes by kstatus waits."""
    group = stage.group("orders", replicas=0)
    made = json.loads(desk("create", "-f", "-", "-o", "json", given=json.dumps(group)))
    assert made["status"]["observedGeneration"] == -1
