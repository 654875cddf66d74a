"""Scaling by the CPU, where the cluster serves what pods use of it."""

from __future__ import annotations

from e2e import stage
from e2e.kubectl import CommandFailed, Kubectl, until

POD_METRICS = "/apis/metrics.k8s.io/v1beta1/pods"


def has_metrics(shop: Kubectl) -> bool:
    try:
        shop("get", "--raw", POD_METRICS)
    except CommandFailed:
        return False
    return True


def replicas(shop: Kubectl) -> int:
    return int(shop.get("lbg", "flights")["status"].get("replicas", 0))


def test_consumers_grow_with_the_cpu_and_shrink_again_or_missing_metrics_are_told(shop: Kubectl) -> None:
    scaling = {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50, "scaleDownStabilizationSeconds": 0}
    shop.apply(stage.group("flights", busy_ms=5, republish=False, scaling=scaling))
    until(lambda: stage.is_condition(shop, "lbg", "flights", "Ready"), what="a group that is served")
    if not has_metrics(shop):
        until(
            lambda: (
                stage.condition(shop.get("lbg", "flights"), "ScalingActive").get("reason") == "MetricsMissing"
            ),
            what="missing metrics to be told",
        )
        assert replicas(shop) == 1
        return
    until(
        lambda: stage.is_condition(shop, "lbg", "flights", "ScalingActive"),
        what="scaling to be told active",
        timeout_s=240,
    )
    shop.apply(stage.publisher("flights", rows=2000, rate_hz=20))
    until(lambda: replicas(shop) == 3, what="three consumers", timeout_s=240)
    stage.published(shop)
    until(
        lambda: shop.get("lbg", "flights")["status"].get("lag") == 0,
        what="all to be worked off",
        timeout_s=240,
    )
    until(lambda: replicas(shop) == 1, what="one consumer again", timeout_s=300)
