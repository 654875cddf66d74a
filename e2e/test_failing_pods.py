"""Pods that do not run for causes that no container tells of, and those of Sessions and of brokers."""

from __future__ import annotations

from typing import Any

import pytest

from e2e import stage
from e2e.kubectl import Kubectl, Object, until


def group(name: str, **changes: Any) -> Object:
    made = stage.group(name, replicas=1)
    made["spec"]["consumer"]["template"]["spec"]["containers"][0].update(changes)
    return made


def told(shop: Kubectl, kind: str, name: str, words: str, *, reason: str = "PodsFailing") -> None:
    def seen() -> bool:
        degraded = stage.condition(shop.get(kind, name), "Degraded")
        return degraded.get("reason") == reason and words in degraded["message"]

    until(seen, what=f"Degraded of {name} to say {words!r}", timeout_s=180)


def test_a_volume_that_cannot_be_mounted_is_named(shop: Kubectl) -> None:
    made = group("orders")
    pod = made["spec"]["consumer"]["template"]["spec"]
    pod["volumes"].append({"name": "settings", "configMap": {"name": "nowhere"}})
    pod["containers"][0]["volumeMounts"].append({"name": "settings", "mountPath": "/settings"})
    shop.apply(made)
    told(shop, "lbg", "orders", "ContainerCreating: its volumes (ConfigMap files, ConfigMap nowhere)")


def test_an_image_whose_name_is_none_is_told(shop: Kubectl) -> None:
    shop.apply(group("orders", image="NO IMAGE"))
    told(shop, "lbg", "orders", "app: InvalidImageName")


def test_an_application_that_ends_with_0_is_told(shop: Kubectl) -> None:
    shop.apply(group("orders", command=["true"]))
    told(shop, "lbg", "orders", "app: Completed", reason="PodsCompleted")


@pytest.mark.parametrize(
    ("mode", "words"), [("Exclusive", "exceeded quota"), ("Sessions", "0 of 1 pod exists")]
)
def test_pods_that_a_quota_forbids_are_told(shop: Kubectl, mode: str, words: str) -> None:
    there = len(shop.select("pods"))
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": there}},
    }
    shop.apply(quota)
    until(lambda: shop.get("resourcequota", "few").get("status", {}).get("used"), what="the quota to count")
    made = group("orders")
    made["spec"] |= {"mode": mode, "queues": {"count": 1}}
    shop.apply(made)
    told(shop, "lbg", "orders", words)


def test_the_pod_of_a_broker_that_does_not_run_is_told(shop: Kubectl) -> None:
    other = stage.broker()
    other["metadata"]["name"] = "other"
    other["spec"]["embedded"]["image"] = "localhost:1/no-such-image:1"
    shop.apply(other)
    told(shop, "broker", "other", "other-0: broker: ")
