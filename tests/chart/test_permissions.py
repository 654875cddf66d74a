"""The operator may do what its code does, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lbg_operator.kube.kinds import API_SERVICE, DEPLOYMENT, GROUP, KEDA_KINDS, KINDS, POD, SECRET, Kind
from lbg_operator.kube.kinds import NAMESPACE as KUBE_NAMESPACE
from lbg_operator.metrics_api.metrics import Service
from lbg_operator.metrics_api.tls import secret_name
from lbg_operator.resources.autoscaler import METRICS
from testing.kubernetes.chart import LARGE, NAMESPACE, Object, named, of_kind, rendered

Right = tuple[str, str, str]


def used(kind: Kind) -> set[Right]:
    verbs = {"": kind.verbs, "/status": kind.status_verbs, "/finalizers": kind.finalizers_verbs}
    return {(kind.api_group, kind.plural + part, verb) for part, some in verbs.items() for verb in some}


def given(role: Object) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


WITH_KEDA: Mapping[str, Any] = {"metrics": {"provider": "keda"}}


@pytest.mark.parametrize("values", [{}, WITH_KEDA], ids=["without KEDA", "with KEDA"])
def test_the_rules_are_the_verbs_that_the_code_uses(values: Mapping[str, Any]) -> None:
    objects = rendered(values)
    left_out = KEDA_KINDS if values is not WITH_KEDA else frozenset()
    namespaced = set().union(*(used(kind) for kind in KINDS if kind.namespaced and kind not in left_out))
    assert given(named(objects, "ClusterRole", "lbg-operator-lbg-system")) == namespaced
    assert given(named(objects, "ClusterRole", "lbg-operator-lbg-system-metrics")) == used(API_SERVICE)
    assert given(named(objects, "ClusterRole", "lbg-operator-lbg-system-identity")) == used(KUBE_NAMESPACE)
    assert {kind for kind in KINDS if not kind.namespaced} == {API_SERVICE, KUBE_NAMESPACE}


@pytest.mark.parametrize("provider", ["auto", "external", "none"])
def test_nothing_of_kedas_is_granted_where_keda_is_not(provider: str) -> None:
    for role in of_kind(rendered({"metrics": {"provider": provider}}), "ClusterRole"):
        assert not [right for right in given(role) if right[0] == "keda.sh"]


def test_no_single_config_map_can_be_read_everywhere() -> None:
    for role in of_kind(rendered(WITH_KEDA), "ClusterRole"):
        assert ("", "configmaps", "get") not in given(role)


def test_no_rule_has_a_wildcard_or_repeats_another() -> None:
    for role in of_kind(rendered(), "ClusterRole"):
        listed = [right for rule in role["rules"] for right in given({"rules": [rule]})]
        assert len(set(listed)) == len(listed)
        assert not any("*" in right for right in listed)


def test_of_api_services_only_the_one_of_external_metrics_is_the_operators() -> None:
    (rule,) = named(rendered(), "ClusterRole", "lbg-operator-lbg-system-metrics")["rules"]
    assert rule["resources"] == [API_SERVICE.plural]
    assert rule["resourceNames"] == ["v1beta1.external.metrics.k8s.io"]


def test_of_namespaces_only_the_one_whose_uid_is_the_clusters_is_read() -> None:
    (rule,) = named(rendered(), "ClusterRole", "lbg-operator-lbg-system-identity")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["kube-system"], ["get"])


@pytest.mark.parametrize(
    ("values", "places"),
    [({}, {("ClusterRoleBinding", None)}), (LARGE, {("RoleBinding", "shop"), ("RoleBinding", "lbg-system")})],
    ids=["everywhere", "in two namespaces"],
)
def test_the_rights_are_given_where_it_watches_and_nowhere_else(
    values: Mapping[str, Any], places: set[tuple[str, str | None]]
) -> None:
    objects = rendered(values)
    bindings = of_kind(objects, "ClusterRoleBinding") + of_kind(objects, "RoleBinding")
    found = {
        (one["kind"], one["metadata"].get("namespace"))
        for one in bindings
        if (one["roleRef"]["kind"], one["roleRef"]["name"]) == ("ClusterRole", "lbg-operator-lbg-system")
    }
    assert found == places
    for one in bindings:
        if one["metadata"]["name"] == "lbg-pipeline" or is_after_deletion(one):
            continue
        assert one["subjects"] == [{"kind": "ServiceAccount", "name": "lbg-operator", "namespace": NAMESPACE}]


def test_who_forwards_ports_to_brokers_has_that_role_and_nobody_by_default() -> None:
    role = named(rendered(), "ClusterRole", "lbg-operator-lbg-system-forward")
    assert given(role) == {
        ("", "services", "get"),
        ("", "pods", "get"),
        ("", "pods", "list"),
        ("", "pods/portforward", "get"),
        ("", "pods/portforward", "create"),
    }
    assert not any("aggregate" in label for label in role["metadata"]["labels"])


def test_in_its_own_namespace_it_may_keep_its_certificate_wherever_it_watches() -> None:
    own = named(rendered({"watchNamespaces": ["shop"]}), "Role", "lbg-operator")
    assert "namespace" not in own["metadata"]  # that of the release
    keeping = {("", "secrets", verb) for verb in ("get", "create", "patch")}
    assert keeping <= used(SECRET)
    assert given(own) == keeping
    limited, created = own["rules"]
    assert limited["resourceNames"] == [secret_name(Service(NAMESPACE, "lbg-operator"))]
    assert created["verbs"] == ["create"]


@pytest.mark.parametrize(
    ("values", "places"),
    [({}, [None]), (LARGE, ["shop", "lbg-system"])],
    ids=["everywhere", "in two namespaces"],
)
def test_the_hook_that_releases_groups_may_do_that_and_see_the_operator_end(
    values: Mapping[str, Any], places: list[str | None]
) -> None:
    """`lbg_operator.runtime.uninstall`: it lists and patches groups, and ends the operator at home."""
    objects = [one for one in rendered(values) if is_after_deletion(one)]
    subject = {"kind": "ServiceAccount", "name": "lbg-operator-release", "namespace": NAMESPACE}
    groups = named(objects, "ClusterRole", "lbg-operator-lbg-system-release")
    assert given(groups) == {("lbg.dev", GROUP.plural, "list"), ("lbg.dev", GROUP.plural, "patch")}
    home = named(objects, "Role", "lbg-operator-release")
    ending = {("apps", "deployments", "list"), ("apps", "deployments", "delete"), ("", "pods", "list")}
    assert given(home) == ending
    assert given(home) | given(groups) <= used(DEPLOYMENT) | used(POD) | used(GROUP)
    bindings = of_kind(objects, "ClusterRoleBinding") + of_kind(objects, "RoleBinding")
    assert all(one["subjects"] == [subject] for one in bindings)
    given_at = [
        one["metadata"].get("namespace")
        for one in bindings
        if one["roleRef"]["name"] == groups["metadata"]["name"]
    ]
    assert given_at == places
    assert [one["kind"] for one in bindings if one["roleRef"]["kind"] == "Role"] == ["RoleBinding"]


def is_after_deletion(one: Object) -> bool:
    return bool(one["metadata"].get("annotations", {}).get("helm.sh/hook") == "post-delete")


def test_it_may_read_how_the_api_server_shows_who_asks() -> None:
    (binding,) = (
        one for one in of_kind(rendered(), "RoleBinding") if one["metadata"].get("namespace") == "kube-system"
    )
    assert binding["roleRef"]["name"] == "extension-apiserver-authentication-reader"
    assert binding["roleRef"]["kind"] == "Role", "one of Kubernetes' own, for this one ConfigMap"


def test_who_may_edit_a_namespace_may_have_groups_there_and_scale_them() -> None:
    objects = rendered()
    view = named(objects, "ClusterRole", "lbg-operator-lbg-system-view")
    edit = named(objects, "ClusterRole", "lbg-operator-lbg-system-edit")
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    assert {name for name in view["metadata"]["labels"] if name.startswith(aggregate)} == {
        f"{aggregate}view",
        f"{aggregate}edit",
        f"{aggregate}admin",
    }
    assert f"{aggregate}view" not in edit["metadata"]["labels"]
    assert {verb for _, _, verb in given(view)} == {"get", "list", "watch"}
    for metric in METRICS:
        assert ("external.metrics.k8s.io", metric, "list") in given(view)
    assert ("lbg.dev", "loadbalancedgroups/scale", "patch") in given(edit)
    assert not any("status" in resource for _, resource, _ in given(edit))
