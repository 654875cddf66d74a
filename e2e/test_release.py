"""The release itself: an upgrade changes nothing that runs, an uninstall hangs on nothing and deletes no group."""

from __future__ import annotations

import helm_python as helm
import pytest

from e2e import stage
from e2e.conftest import CHART, RELEASE, SYSTEM, chart_values
from e2e.kubectl import Kubectl, until

NO_IMAGE = "localhost:1/no-such-image:1"
METRICS = "v1beta1.external.metrics.k8s.io"
OURS = "app.kubernetes.io/part-of=lbg"
CLUSTER_WIDE = ("apiservice", "clusterrole", "clusterrolebinding")


def versions(shop: Kubectl) -> dict[str, str]:
    """Of each object that the operator makes: it changes when somebody changes what the object is to be."""
    made = {}
    for kind in ("deployment", "statefulset", "networkpolicy", "poddisruptionbudget", "configmap", "secret"):
        for one in shop.select(kind, "app.kubernetes.io/managed-by=lbg-operator"):
            metadata = one["metadata"]
            version = metadata.get("generation") or metadata["resourceVersion"]
            made[f"{kind}/{metadata['name']}"] = f"{metadata['uid']} {version}"
    return made


def test_an_upgrade_and_an_uninstall_leave_groups_alone(release: helm.Config, shop: Kubectl) -> None:
    shop.apply(stage.group("orders", replicas=1))
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    (pod,) = shop.select("pod", "lbg.dev/group=orders")
    before = versions(shop)
    assert len(before) > 5
    values = {**chart_values(), "operator": {"log": {"level": "debug"}}}
    release.upgrade(CHART, RELEASE, values, namespace=SYSTEM, wait="watcher", timeout=120)
    shop.apply(stage.group("later", replicas=1))
    until(
        lambda: stage.is_condition(shop, "lbg", "later", "Ready"), what="another group, by the new operator"
    )
    now = versions(shop)
    assert {name: now.get(name) for name in before} == before
    release.uninstall(RELEASE, wait="watcher", timeout=120)
    assert shop.select("pod", "lbg.dev/group=orders")[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert not shop.get("lbg", "orders")["metadata"].get("finalizers"), "nobody is there to take it away"
    shop("delete", "lbg", "orders", "--timeout=30s")
    release.install(CHART, RELEASE, values, namespace=SYSTEM, wait="watcher", timeout=180)


def test_an_uninstall_whose_hook_has_no_image_deletes_the_release(
    release: helm.Config, shop: Kubectl
) -> None:
    system = Kubectl(SYSTEM)
    shop.apply(stage.group("orders", replicas=1))
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Ready"), what="a group that is served")
    release.upgrade(CHART, RELEASE, chart_values(operator=NO_IMAGE), namespace=SYSTEM)
    assert system.is_there("apiservice", METRICS)
    with pytest.raises(helm.HelmError, match=r"Job/.*-release not ready"):
        release.uninstall(RELEASE, wait="watcher", timeout=180)
    assert not release.list(all_states=True)
    assert not system.select("deployment", OURS)
    assert {kind: system.select(kind, OURS) for kind in CLUSTER_WIDE} == {kind: [] for kind in CLUSTER_WIDE}
    # A namespace goes when the API server has listed all kinds in it, which an APIService without a server prevents.
    other = f"{shop.namespace}-other"
    shop("create", "namespace", other)
    shop("delete", "namespace", other, "--timeout=60s")
    # What the hook was to do is done by hand (docs/operations.md, "Uninstall").
    assert shop.get("lbg", "orders")["metadata"]["finalizers"]
    shop("patch", "lbg", "orders", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    shop("delete", "lbg", "orders", "--timeout=30s")
    release.install(CHART, RELEASE, chart_values(), namespace=SYSTEM, wait="watcher", timeout=180)
    assert [one["status"] for one in release.list(all_states=True)] == ["deployed"]
