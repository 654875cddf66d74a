"""The consumers of a group in mode Sessions: a StatefulSet, and a volume for each of its pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ManifestError
from lbg_operator.resources.sidecar_injection import SIDECAR, STATE_VOLUME
from lbg_operator.resources.workload import NAME_MAX, session_set_of
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.manifests import Manifest, consumer, group_manifest

SETTINGS = OperatorSettings(sidecar_image="lbg-sidecar:1", broker_image="lbg-broker:1")
SESSIONS = {"mode": "Sessions", "queues": {"count": 1}}


def made(
    spec: Manifest | None = None,
    *,
    name: str = "orders",
    settings: OperatorSettings = SETTINGS,
    **consumes: Any,
) -> Manifest:
    told = {**SESSIONS, "consumer": {**consumer(), **consumes}, **(spec or {})}
    group = GroupManifest.parse(group_manifest(told, name=name))
    return session_set_of(group, settings, has_ca=True)


def sidecar_of(stateful_set: Manifest) -> Manifest:
    pod = stateful_set["spec"]["template"]["spec"]
    (found,) = (one for one in pod["initContainers"] if one["name"] == SIDECAR)
    return found


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_it_is_what_kubernetes_takes_and_its_pods_are_the_groups(version: str) -> None:
    stateful_set = made({"replicas": 3})
    kubernetes_validate.validate(stateful_set, version, strict=True)
    assert stateful_set["metadata"]["name"] == "orders-lbg", "a Broker of the group's name has one too"
    assert stateful_set["spec"]["replicas"] == 3
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    assert stateful_set["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_sidecar_keeps_its_position_on_a_volume_of_the_pod() -> None:
    stateful_set = made()
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    mounts = {one["name"]: one["mountPath"] for one in sidecar_of(stateful_set)["volumeMounts"]}
    told = {one["name"]: one.get("value") for one in sidecar_of(stateful_set)["env"]}
    assert claim["metadata"]["name"] == STATE_VOLUME
    assert told["LBG_COMMITS"] is not None
    assert told["LBG_COMMITS"].startswith(mounts[STATE_VOLUME])
    assert told["LBG_ORDER"] == "queue", "how far a session is, is one number"
    volumes = {one["name"] for one in stateful_set["spec"]["template"]["spec"]["volumes"]}
    assert STATE_VOLUME not in volumes, "the claim takes its place"


def test_the_volume_is_as_the_manifest_says() -> None:
    (claim,) = made(storage={"size": "10Mi", "storageClassName": "slow"})["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "10Mi"}}
    assert claim["spec"]["storageClassName"] == "slow"


@pytest.mark.parametrize(("policy", "then"), [("Delete", "Delete"), ("Retain", "Retain")])
def test_volumes_go_with_their_sessions(policy: str, then: str) -> None:
    kept = made({"deletionPolicy": policy})["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenScaled": "Delete", "whenDeleted": then}


def test_no_pod_waits_for_another_to_come_up() -> None:
    assert made()["spec"]["podManagementPolicy"] == "Parallel"
    assert made()["spec"]["updateStrategy"] == {"type": "RollingUpdate"}


def test_the_sidecar_may_write_to_its_volume() -> None:
    def security(settings: OperatorSettings, **told: Any) -> Any:
        template = {"spec": {"containers": [{"name": "app", "image": "a:1"}], **told}}
        pod = made(settings=settings, template=template)["spec"]["template"]["spec"]
        return pod.get("securityContext", {}).get("fsGroup")

    assert security(SETTINGS) == 65532
    assert security(SETTINGS, securityContext={"fsGroup": 7, "runAsUser": 7}) == 7
    assert security(replace(SETTINGS, assigns_users=True)) is None, "the cluster gives one"


def test_a_name_that_pods_cannot_have_with_a_number_is_refused() -> None:
    assert made(name="x" * NAME_MAX)
    with pytest.raises(ManifestError, match="make the group with a shorter name"):
        made(name="x" * (NAME_MAX + 1))
