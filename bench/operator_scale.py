"""Hundreds of groups on one operator: how soon each is on its broker, and what the operator takes when all is quiet.

On any cluster that KUBECONFIG names, with the CRDs in it (`kubectl apply --server-side -f crds/`) and no other operator
of ours; or, with `--api fixture`, on the API server of the tests, which takes no work off the operator. That runs
here as a process of its own, for one namespace that is made and deleted; the broker is an embedded one of this machine.
The groups have no pods, as 500 of these would measure the cluster: two members for each are faked on the broker, with a
beat a second each and a consumer on every queue. From the answer of the API server to each manifest until its condition
Provisioned is True in a watch; CPU of the operator's process in percent of a core over a time in which nothing changes
(proc(5), stat), memory resident at its end. `python -m bench.operator_scale --groups 500 --rate 5`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes

from bench.measurement import percentile
from bench.workers import cpu_s, resident_mb
from lbg_operator.kube.kinds import Kind
from testing.broker.embedded import PASSWORD, USER, EmbeddedBroker
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.manifests import broker_manifest, group_manifest
from testing.kubernetes.served_cluster import ServedCluster
from testing.operator.process import OperatorProcess
from testing.waiting import until

GROUP, VERSION, PLURAL = "lbg.dev", "v1alpha1", "loadbalancedgroups"
SETTLING_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--rate", type=float, default=10, help="manifests applied in a second")
    parser.add_argument("--quiet-s", type=float, default=120, help="how long CPU is measured")
    parser.add_argument("--api", choices=("cluster", "fixture"), default="cluster")
    asked = parser.parse_args()
    if asked.api == "fixture":
        return asyncio.run(_measured_on_fixture(asked))
    if not os.environ.get("KUBECONFIG"):
        print("operator_scale: set KUBECONFIG to a cluster that has the CRDs", file=sys.stderr)
        return 2
    kubernetes.config.load_kube_config()
    return measured(asked)


def measured(asked: argparse.Namespace) -> int:
    name = f"lbg-bench-{uuid.uuid4().hex[:6]}"
    core, custom = kubernetes.client.CoreV1Api(), kubernetes.client.CustomObjectsApi()
    core.create_namespace({"metadata": {"name": name}})
    try:
        with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(Path(directory) / "data") as broker:
            _make_broker(core, custom, name, broker)
            with _operator(name) as process:
                waits = _provisioned(custom, name, asked)
                with _members(broker.url, f"{name}-group-{{}}", asked.groups):
                    time.sleep(SETTLING_S)
                    cpu = _cpu_percent(process.pid, asked.quiet_s)
                    memory = resident_mb(process.pid)
                _delete_groups(custom, name)
    finally:
        core.delete_namespace(name)
    return _report(asked, waits, cpu, memory)


def _report(asked: argparse.Namespace, waits: list[float], cpu: float, memory: float) -> int:
    p99 = percentile(waits, 0.99)
    print(f"{len(waits)} groups of {asked.queues} queues, {asked.rate:g} applied a second")
    print(
        f"apply to Provisioned: p50 {statistics.median(waits):.2f} s  p99 {p99:.2f} s  max {max(waits):.2f} s"
    )
    print(f"when quiet: {cpu:.1f} % of a core, {memory:.0f} MB")
    print(f"load of the machine: {os.getloadavg()[1]:.0f} processes on {os.cpu_count()} cores")
    return 0


async def _measured_on_fixture(asked: argparse.Namespace) -> int:
    applied: dict[str, float] = {}
    waits: dict[str, float] = {}

    def seen(kind: Kind, told: dict[str, Any], is_gone: bool) -> None:
        name = told["metadata"]["name"]
        said = told.get("status", {}).get("conditions", ())
        is_made = any(one["type"] == "Provisioned" and one["status"] == "True" for one in said)
        if name in applied and name not in waits and is_made:
            waits[name] = time.monotonic() - applied[name]

    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(Path(directory) / "data") as broker:
        async with ServedCluster(FakeCluster()) as served:
            served.cluster.put(_secret())
            served.cluster.put(broker_manifest({"rabbitmq": _where(broker)}))
            place = OperatorProcess(served, broker, Path(directory))
            place.start()
            try:
                await place.watches()
                served.cluster.watchers.append(seen)
                begun = time.monotonic()
                for number in range(asked.groups):
                    await asyncio.sleep(max(0.0, begun + number / asked.rate - time.monotonic()))
                    name = f"group-{number}"
                    applied[name] = time.monotonic()
                    served.cluster.put(group_manifest(_spec(asked.queues), name=name))
                await until(lambda: len(waits) == asked.groups, timeout_s=1800, what="groups are provisioned")
                with _members(broker.url, "shop-group-{}", asked.groups):
                    await asyncio.sleep(SETTLING_S)
                    before = cpu_s(place.pid)
                    await asyncio.sleep(asked.quiet_s)
                    cpu = (cpu_s(place.pid) - before) / asked.quiet_s * 100
                    memory = resident_mb(place.pid)
            finally:
                place.kill()
    return _report(asked, list(waits.values()), cpu, memory)


@contextmanager
def _members(url: str, named: str, groups: int) -> Iterator[None]:
    told = json.dumps({"role": "members", "url": url, "groups": groups, "named": named})
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "bench.survey", "--worker", told]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise SystemExit("operator_scale: the members could not be faked")
            yield
        finally:
            process.kill()


def _make_broker(core: Any, custom: Any, namespace: str, broker: EmbeddedBroker) -> None:
    core.create_namespaced_secret(namespace, {"metadata": {"name": "admin"}, "data": _secret()["data"]})
    _create(custom, namespace, "Broker", "brokers", "main", {"rabbitmq": _where(broker)})


def _secret() -> dict[str, Any]:
    login = {"username": USER, "password": PASSWORD}
    data = {name: b64encode(value.encode()).decode() for name, value in login.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "admin", "namespace": "shop"},
        "data": data,
    }


def _where(broker: EmbeddedBroker) -> dict[str, Any]:
    return {
        "uris": [f"amqp://127.0.0.1:{broker.port}"],
        "managementURIs": [f"http://127.0.0.1:{broker.management_port}"],
        "adminSecretName": "admin",
    }


def _spec(queues: int) -> dict[str, Any]:
    return {
        "brokerRef": {"name": "main"},
        "hash": {"count": 32},
        "queues": {"count": queues, "size": "1M"},
        "replicas": 0,
        "drainTimeoutSeconds": 0,
        "consumer": {
            "app": {"channel": "Stream"},
            "template": {"spec": {"containers": [{"name": "app", "image": "app"}]}},
        },
    }


@contextmanager
def _operator(namespace: str) -> Iterator[subprocess.Popen[bytes]]:
    told = {
        "LBG_OPERATOR_SIDECAR_IMAGE": "lbg-sidecar",
        "LBG_OPERATOR_BROKER_IMAGE": "lbg-broker",
        "LBG_OPERATOR_WATCH_NAMESPACES": namespace,
        "LBG_OPERATOR_LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "lbgroup", "operator", "run", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, env={**os.environ, **told})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _provisioned(custom: Any, namespace: str, asked: argparse.Namespace) -> list[float]:
    """Seconds for each group, in the order in which they were provisioned."""
    applied: dict[str, float] = {}
    waits: dict[str, float] = {}

    def watch() -> None:
        stream = kubernetes.watch.Watch().stream(
            custom.list_namespaced_custom_object, GROUP, VERSION, namespace, PLURAL, timeout_seconds=600
        )
        for event in stream:
            seen = event["object"]
            name = seen["metadata"]["name"]
            said = seen.get("status", {}).get("conditions", ())
            if name not in waits and any(
                one["type"] == "Provisioned" and one["status"] == "True" for one in said
            ):
                waits[name] = time.monotonic()
                if len(waits) == asked.groups:
                    return

    watching = threading.Thread(target=watch)
    watching.start()
    begun = time.monotonic()
    for number in range(asked.groups):
        time.sleep(max(0.0, begun + number / asked.rate - time.monotonic()))
        _create(custom, namespace, "LoadBalancedGroup", PLURAL, f"group-{number}", _spec(asked.queues))
        applied[f"group-{number}"] = time.monotonic()
    watching.join(timeout=600)
    missing = asked.groups - len(waits)
    if missing:
        raise SystemExit(f"operator_scale: {missing} groups were not provisioned within 600 s")
    return [at - applied[name] for name, at in waits.items()]


def _create(custom: Any, namespace: str, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}
    custom.create_namespaced_custom_object(GROUP, VERSION, namespace, plural, body)


def _delete_groups(custom: Any, namespace: str) -> None:
    """While there is an operator that takes their finalizers away."""
    custom.delete_collection_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL)
    deadline = time.monotonic() + 300
    while custom.list_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, limit=1)["items"]:
        if time.monotonic() > deadline:
            raise SystemExit("operator_scale: the groups were not deleted within 300 s")
        time.sleep(1)


def _cpu_percent(pid: int, seconds: float) -> float:
    before = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) / seconds * 100


if __name__ == "__main__":
    sys.exit(main())
