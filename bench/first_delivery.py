"""Start of a new consumer pod: the time from ready to the first queue that it serves.

On a cluster with the chart in it, that KUBECONFIG names; images as for `make e2e`. A group of 8 queues with the
default rebalance delay (5 s) has one consumer under load, and is scaled to two, again and again. From its condition
Ready, which Kubernetes tells in whole seconds, to the sidecar's log line of the first queue taken over, which it writes
with the first delivery. `python -m bench.first_delivery --rounds 10`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import uuid
from datetime import datetime

from e2e import stage
from e2e.kubectl import Kubectl, Object, until


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    rounds: int = parser.parse_args().rounds
    name = f"lbg-bench-{uuid.uuid4().hex[:6]}"
    shop = Kubectl(name)
    shop("create", "namespace", name)
    try:
        shop.apply(stage.files(), stage.broker())
        until(
            lambda: stage.is_condition(shop, "broker", stage.BROKER, "Ready"), what="the broker to be ready"
        )
        group = stage.group("flights", replicas=1, rebalanceDelaySeconds=5)
        group["spec"]["consumer"]["sidecar"]["republish"] = False
        shop.apply(group)
        until(lambda: stage.is_condition(shop, "lbg", "flights", "Ready"), what="a group that is served")
        shop.apply(stage.publisher("flights", rate_hz=100))
        waits = sorted(_round(shop) for _ in range(rounds))
    finally:
        shop("delete", "namespace", name, "--wait=false")
    print(
        f"{rounds} pods, from ready to the first delivery: p50 {statistics.median(waits):.1f} s  max {waits[-1]:.1f} s"
    )
    return 0


def _round(shop: Kubectl) -> float:
    before = set(_pods(shop))
    shop("scale", "lbg/flights", "--replicas=2")
    new = until(lambda: next((name for name in _pods(shop) if name not in before), ""), what="another pod")
    taken = until(lambda: _first_taken(shop, new), what="its first queue")
    ready = until(lambda: _ready_at(_pods(shop)[new]), what="it to be ready")
    shop("scale", "lbg/flights", "--replicas=1")
    until(lambda: len(_pods(shop)) == 1, what="one pod again")
    return (datetime.fromisoformat(taken) - datetime.fromisoformat(ready)).total_seconds()


def _pods(shop: Kubectl) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in shop.select("pod", "lbg.dev/group=flights")}


def _first_taken(shop: Kubectl, pod: str) -> str:
    lines = map(json.loads, shop("logs", pod, "--container=lbg-sidecar").splitlines())
    return next((str(line["time"]) for line in lines if line.get("event") == "taken_over"), "")


def _ready_at(pod: Object) -> str:
    said = {one["type"]: one for one in pod["status"].get("conditions", ())}
    ready = said.get("Ready", {})
    return str(ready["lastTransitionTime"]) if ready.get("status") == "True" else ""


if __name__ == "__main__":
    sys.exit(main())
