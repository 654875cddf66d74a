"""The release itself: an upgrade changes nothing that runs, an uninstall hangs on nothing and deletes no group."""

from __future__ import annotations

import helm_python as helm

from e2e import stage
from e2e.conftest import CHART, RELEASE, SYSTEM
from e2e.kubectl import Kubectl, until


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
    values = {"images": {name: stage.image(name) for name in ("operator", "sidecar", "broker")}}
    values["operator"] = {"log": {"level": "debug"}}
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
