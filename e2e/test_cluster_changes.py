"""Changes that a cluster makes beside the operator: objects that are made again at once, admission that denies, a CRD
that changes under stored objects, and two operators at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e import stage
from e2e.conftest import RELEASE, SYSTEM
from e2e.kubectl import Kubectl, Object, until
from e2e.test_life import begun, is_served

CRD = "loadbalancedgroups.lbg.dev"
TOGETHER_S = 60


def pods(shop: Kubectl) -> set[str]:
    return {one["metadata"]["uid"] for one in shop.select("pod", "lbg.dev/group=orders")}


def generation(shop: Kubectl) -> int:
    return int(shop.get("deployment", "orders")["metadata"]["generation"])


@contextmanager
def denied(shop: Kubectl, words: str) -> Iterator[None]:
    """A policy of the cluster that takes no change of Deployments in the namespace."""
    rules = [
        {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments"]}
    ]
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": shop.namespace},
        "spec": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": "false", "message": words}],
        },
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": shop.namespace}}
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": shop.namespace},
        "spec": {
            "policyName": shop.namespace,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": here},
        },
    }
    shop.apply(policy, binding)
    try:
        yield
    finally:
        shop("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", shop.namespace)


def crd_field(shop: Kubectl, op: str, schema: Object | None = None) -> None:
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later"
    change = {"op": op, "path": path, **({} if schema is None else {"value": schema})}
    shop("patch", "crd", CRD, "--type=json", "-p", json.dumps([change]))


def test_a_group_that_is_deleted_and_made_again_at_once_is_served_anew(shop: Kubectl) -> None:
    group = stage.group("orders", replicas=1, republish=False)
    begun(shop, group, members=1)
    uids = [shop.get("lbg", "orders")["metadata"]["uid"]]
    for _ in range(3):
        shop("delete", "lbg", "orders", "--timeout=60s")
        shop.apply(group)
        until(lambda: is_served(shop, 1, "orders"), what="the group to be served")
        uids.append(shop.get("lbg", "orders")["metadata"]["uid"])
    assert len(set(uids)) == 4
    shop.apply(stage.publisher("orders", rows=300))
    stage.published(shop)
    until(lambda: stage.waiting(shop, "orders") == 0, what="all to be consumed")


def test_what_admission_denies_is_told_and_applied_when_it_may(shop: Kubectl) -> None:
    begun(shop, stage.group("orders", replicas=1), members=1)
    before = pods(shop), generation(shop)
    with denied(shop, "no changes today"):
        until(lambda: _is_refused(shop), what="the policy to be in force", every_s=3)
        shop.apply(stage.group("orders", delay_ms=1, replicas=1))
        until(
            lambda: "no changes today" in stage.condition(shop.get("lbg", "orders"), "Degraded")["message"],
            what="Degraded to have the policy's words",
        )
        assert shop.get("lbg", "orders")["status"]["memberCount"] == 1
        assert (pods(shop), generation(shop)) == before
    until(lambda: generation(shop) != before[1], what="the change to be applied")
    until(lambda: is_served(shop, 1, "orders"), what="the group to be served")
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Degraded", "False"), what="no problem")


def _is_refused(shop: Kubectl) -> bool:
    """A policy takes some seconds to be in force."""
    patch = ("patch", "deployment", "orders", "-p", '{"metadata": {"annotations": {"tried": "1"}}}')
    return "no changes today" in _error_of(shop, *patch, "--dry-run=server")


def _error_of(shop: Kubectl, *arguments: str) -> str:
    try:
        shop(*arguments)
    except Exception as error:
        return str(error)
    return ""


def test_a_field_that_a_crd_gains_and_loses_changes_no_consumer(shop: Kubectl) -> None:
    begun(shop, stage.group("orders", replicas=1), members=1)
    before = pods(shop)
    crd_field(shop, "add", {"type": "string", "default": "something"})
    try:
        until(lambda: shop.get("lbg", "orders")["spec"].get("later") == "something", what="the new default")
        shop("patch", "lbg", "orders", "--type=merge", "-p", '{"spec": {"later": "other", "replicas": 2}}')
        until(lambda: is_served(shop, 2, "orders"), what="two members")
        both = pods(shop)
        assert before < both
    finally:
        crd_field(shop, "remove")
    until(lambda: "later" not in shop.get("lbg", "orders")["spec"], what="the field to be gone")
    shop("scale", "lbg/orders", "--replicas=1")
    until(lambda: is_served(shop, 1, "orders"), what="one member")
    until(lambda: len(pods(shop)) == 1, what="one pod")
    assert pods(shop) < both


def test_two_operators_at_a_time_write_nothing_against_each_other(shop: Kubectl) -> None:
    """An upgrade has two if its first pod does not end."""
    system = Kubectl(SYSTEM)
    (operator,) = system.select("deployment", f"app.kubernetes.io/instance={RELEASE}")
    begun(shop, stage.group("orders", replicas=1), members=1)
    before = pods(shop)
    system("scale", f"deployment/{operator['metadata']['name']}", "--replicas=2")
    try:
        until(
            lambda: (
                system.get("deployment", operator["metadata"]["name"])["status"].get("readyReplicas") == 2
            ),
            what="two operators",
        )
        version = shop.get("deployment", "orders")["metadata"]["resourceVersion"]
        time.sleep(TOGETHER_S)
        assert shop.get("deployment", "orders")["metadata"]["resourceVersion"] == version
        shop("scale", "lbg/orders", "--replicas=2")
        until(lambda: is_served(shop, 2, "orders"), what="two members")
        shop.apply(stage.group("later", replicas=1))
        until(lambda: is_served(shop, 1, "later"), what="a group that both have made")
        assert before <= pods(shop)
    finally:
        system("scale", f"deployment/{operator['metadata']['name']}", "--replicas=1")
