"""Pods that are not made, do not start or end again and again: Degraded with their reason, within half a minute."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from lbg_operator.kube.kinds import BROKER, DEPLOYMENT, POD, STATEFUL_SET
from testing.kubernetes.manifests import broker_manifest, consumer
from testing.operator.operated import MAIN, SETTLED_S, Place, wall_clock
from testing.operator.operated_sessions import sessions_place
from testing.virtual_time import in_virtual_time

SOON_S = 5.0
WITHIN_S = 30.0


def timestamp() -> str:
    return f"{wall_clock():%Y-%m-%dT%H:%M:%SZ}"


def waits(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "app", "state": state, "restartCount": 0}]}


def befalls(place: Place, status: dict[str, Any]) -> str:
    """The status of the first consumer pod, as the kubelet or the scheduler writes it; its name."""
    pod = str(place.pods.of("orders")[0]["metadata"]["name"])
    place.cluster.edit(POD, "shop", pod, {"status": status})
    return pod


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("CrashLoopBackOff", "back-off 10s restarting failed container"),
        ("ErrImagePull", "not found"),
        ("ImagePullBackOff", 'Back-off pulling image "example.org/app:1"'),
        ("InvalidImageName", "couldn't parse image name"),
        ("CreateContainerConfigError", 'configmap "settings" not found'),
    ],
)
@in_virtual_time
async def test_a_consumer_s_container_that_does_not_run_is_told_with_the_pod_s_reason(
    reason: str, message: str
) -> None:
    async with Place() as place:
        await place.ready()
        pod = befalls(place, waits(reason, message))
        await asyncio.sleep(SOON_S)
        assert place.conditions()["Degraded"] == ("True", "PodsFailing")
        assert place.message("Degraded") == f"{pod}: app: {reason}: {message}"
        assert "PodsFailing" in place.reasons()
        place.cluster.edit(POD, "shop", pod, {"status": {"containerStatuses": None}})
        await asyncio.sleep(SOON_S)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")


@pytest.mark.parametrize(
    "message",
    ["0/1 nodes are available: 1 Insufficient cpu.", 'persistentvolumeclaim "journals" not found'],
)
@in_virtual_time
async def test_a_consumer_s_pod_without_a_node_is_told_when_that_lasts(message: str) -> None:
    async with Place() as place:
        await place.ready()
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod = befalls(place, {"conditions": [{**condition, "lastTransitionTime": timestamp()}]})
        await asyncio.sleep(10)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        await asyncio.sleep(WITHIN_S - 10)
        assert place.conditions()["Degraded"] == ("True", "PodsFailing")
        assert place.message("Degraded") == f"{pod}: Unschedulable: {message}"


@in_virtual_time
async def test_a_consumer_s_pod_whose_volumes_are_missing_is_told_with_their_names() -> None:
    async with Place() as place:
        template = {
            "spec": {
                "containers": [{"name": "app", "image": "example.org/app:1"}],
                "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
            }
        }
        await place.ready(consumer=consumer(template=template))
        befalls(
            place,
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp()},
                    {
                        "type": "PodReadyToStartContainers",
                        "status": "False",
                        "lastTransitionTime": timestamp(),
                    },
                ],
                **waits("ContainerCreating", ""),
            },
        )
        await asyncio.sleep(WITHIN_S)
        assert place.conditions()["Degraded"] == ("True", "PodsFailing")
        assert "ContainerCreating: its volumes (ConfigMap settings)" in place.message("Degraded")


@in_virtual_time
async def test_pods_that_a_quota_forbids_are_told_in_the_deployment_s_words() -> None:
    async with Place() as place:
        await place.ready()
        condition = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": 'pods "orders-7" is forbidden: exceeded quota: few',
        }
        place.cluster.edit(DEPLOYMENT, "shop", "orders", {"status": {"conditions": [condition]}})
        await asyncio.sleep(SOON_S)
        assert place.conditions()["Degraded"] == ("True", "PodsFailing")
        assert "exceeded quota: few" in place.message("Degraded")


@in_virtual_time
async def test_a_container_that_ends_again_and_again_is_one_event_and_few_writes() -> None:
    async with Place() as place:
        await place.ready()
        await asyncio.sleep(60)
        written = place.cluster.changed.count(("merge", "LoadBalancedGroup", "orders"))
        for restarts in range(1, 8):
            ended = {"exitCode": 1, "reason": "Error", "startedAt": timestamp(), "finishedAt": timestamp()}
            one = {"name": "app", "lastState": {"terminated": ended}}
            back_off = {"reason": "CrashLoopBackOff", "message": f"back-off {restarts}0s"}
            for state, count in (
                ({"terminated": ended}, restarts),
                ({"waiting": back_off}, restarts),
                ({"running": {"startedAt": timestamp()}}, restarts + 1),
            ):
                befalls(place, {"containerStatuses": [{**one, "state": state, "restartCount": count}]})
                await asyncio.sleep(5)
        assert place.reasons().count("PodsFailing") == 1
        assert place.cluster.changed.count(("merge", "LoadBalancedGroup", "orders")) - written <= 6
        await asyncio.sleep(90)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")


@pytest.mark.parametrize("run_s", [1, 30, 90])
@in_virtual_time
async def test_an_application_that_ends_with_0_is_a_problem_that_does_not_flap(run_s: int) -> None:
    async with Place() as place:
        await place.ready()
        for restarts in range(1, 10):
            for state in ("terminated", "waiting", "running"):
                ended = {
                    "exitCode": 0,
                    "reason": "Completed",
                    "startedAt": timestamp(),
                    "finishedAt": timestamp(),
                }
                told = {
                    "terminated": {"terminated": ended},
                    "waiting": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                    "running": {"running": {"startedAt": timestamp()}},
                }[state]
                one = {"name": "app", "state": told, "lastState": {"terminated": ended}}
                befalls(
                    place, {"containerStatuses": [{**one, "restartCount": restarts + (state == "running")}]}
                )
                await asyncio.sleep(run_s if state == "running" else 20)
        assert place.conditions()["Degraded"] == ("True", "PodsCompleted")
        assert "Completed: it ended with exit code 0" in place.message("Degraded")
        assert place.reasons().count("PodsCompleted") <= 2
        assert place.reasons().count("AsExpected") <= 1
        befalls(place, {"containerStatuses": None})
        await asyncio.sleep(70)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")


@in_virtual_time
async def test_sessions_whose_pods_are_not_made_are_told_when_that_lasts() -> None:
    place, broker = sessions_place()
    async with place:
        place.apply_broker()
        await place.start()
        place.apply_group(mode="Sessions", queues={"count": 1})
        await asyncio.sleep(SETTLED_S)
        broker.pods.is_away = True
        place.cluster.edit(STATEFUL_SET, "shop", "orders-lbg", {"status": {"replicas": 1}})
        await asyncio.sleep(10)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        await asyncio.sleep(WITHIN_S - 10)
        assert place.conditions()["Degraded"] == ("True", "PodsFailing")
        assert "1 of 2 pods exist" in place.message("Degraded")


async def begun(place: Place) -> None:
    place.broker.password, place.broker.is_down = None, True
    place.cluster.put(broker_manifest({"embedded": {}}))
    await place.start()
    await asyncio.sleep(SETTLED_S)


def broker_pod(status: dict[str, Any]) -> dict[str, Any]:
    labels = {"lbg.dev/broker": "main"}
    metadata = {"name": "main-0", "namespace": "shop", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


@in_virtual_time
async def test_the_pod_of_an_embedded_broker_that_crashes_is_told() -> None:
    async with Place() as place:
        await begun(place)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "Starting")
        ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": timestamp(), "finishedAt": timestamp()}
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
        one = {"name": "broker", "state": state, "lastState": {"terminated": ended}, "restartCount": 1}
        place.cluster.put(broker_pod({"containerStatuses": [one]}))
        await asyncio.sleep(SOON_S)
        assert place.conditions(MAIN, BROKER)["Degraded"] == ("True", "PodsFailing")
        said = next(one for one in place.status(MAIN, BROKER)["conditions"] if one["type"] == "Degraded")
        assert said["message"] == "main-0: broker: CrashLoopBackOff: it ended with exit code 137 (OOMKilled)"
        assert "PodsFailing" in place.reasons("main")
        place.broker.is_down = False
        place.cluster.put(broker_pod({"containerStatuses": []}))
        await asyncio.sleep(SOON_S)
        assert place.conditions(MAIN, BROKER)["Degraded"] == ("False", "AsExpected")


@in_virtual_time
async def test_the_pod_of_an_embedded_broker_without_a_node_is_told_when_that_lasts() -> None:
    async with Place() as place:
        await begun(place)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no cpu",
        }
        at = f"{wall_clock() - timedelta(seconds=5):%Y-%m-%dT%H:%M:%SZ}"
        place.cluster.put(broker_pod({"conditions": [{**condition, "lastTransitionTime": at}]}))
        await asyncio.sleep(WITHIN_S)
        assert place.conditions(MAIN, BROKER)["Degraded"] == ("True", "PodsFailing")


@in_virtual_time
async def test_an_embedded_broker_whose_pod_is_not_made_is_told_when_that_lasts() -> None:
    async with Place() as place:
        await begun(place)
        place.cluster.edit(STATEFUL_SET, *MAIN, {"status": {"replicas": 0}})
        await asyncio.sleep(WITHIN_S)
        assert place.conditions(MAIN, BROKER)["Degraded"] == ("True", "PodsFailing")


@in_virtual_time
async def test_the_watch_of_a_broker_s_pod_ends_with_the_broker_and_asks_for_nothing_meanwhile() -> None:
    async with Place() as place:
        watched: list[str] = []
        watch = place.cluster.watch

        def noted(kind: Any, namespace: str, name: str) -> Any:
            if kind is POD:
                watched.append(name)
            return watch(kind, namespace, name)

        place.cluster.watch = noted
        await begun(place)
        tasks = {task.get_name() for task in asyncio.all_tasks()}
        assert "pod of Broker shop/main" in tasks
        await asyncio.sleep(300)
        assert watched == ["main-0"]
        place.cluster.take_away(BROKER, *MAIN)
        await asyncio.sleep(SOON_S)
        assert "pod of Broker shop/main" not in {task.get_name() for task in asyncio.all_tasks()}
