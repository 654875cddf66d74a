"""Directories of the journals that a group's sidecars write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from lbg_operator.crds import GroupManifest
from lbg_operator.errors import ManifestError
from lbg_operator.resources.sidecar_injection import SIDECAR, injected
from lbg_operator.resources.workload import deployment_of
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.manifests import consumer, group_manifest

SETTINGS = OperatorSettings(sidecar_image="lbg-sidecar:1", broker_image="lbg-broker:1")


def journaling(journal: dict[str, str], **pod: Any) -> GroupManifest:
    told = consumer("Stream")
    told["template"]["spec"] |= pod
    return GroupManifest.parse(group_manifest({"consumer": {**told, "sidecar": {"journal": journal}}}))


def sidecar_of(template: dict[str, Any]) -> dict[str, Any]:
    (found,) = (one for one in template["spec"]["initContainers"] if one["name"] == SIDECAR)
    container: dict[str, Any] = found
    return container


def told_of(group: GroupManifest) -> dict[str, Any]:
    environment = sidecar_of(injected(group, SETTINGS, has_ca=True))["env"]
    return {one["name"]: one.get("value") for one in environment}


def test_by_default_there_is_none() -> None:
    group = GroupManifest.parse(group_manifest({"consumer": consumer("Stream")}))
    assert "LBG_JOURNAL" not in told_of(group)
    assert "securityContext" not in injected(group, SETTINGS, has_ca=True)["spec"]


def test_a_journal_is_kept_on_a_claim_that_groups_share_in_a_folder_of_its_own() -> None:
    group = journaling({"volumeClaim": "journals"})
    assert told_of(group)["LBG_JOURNAL"] == "/var/lib/lbg-journals/shop-orders-644f7b8c"
    made = injected(group, SETTINGS, has_ca=True)
    assert {"name": "lbg-journals", "mountPath": "/var/lib/lbg-journals"} in sidecar_of(made)["volumeMounts"]
    assert {"name": "lbg-journals", "persistentVolumeClaim": {"claimName": "journals"}} in made["spec"][
        "volumes"
    ]
    assert made["spec"]["securityContext"]["fsGroup"] == 65532
    assigned = injected(group, replace(SETTINGS, assigns_users=True), has_ca=True)
    assert "securityContext" not in assigned["spec"]


def test_a_journal_can_be_kept_on_a_volume_of_the_users_own() -> None:
    volume = {"name": "logs", "nfs": {"server": "files", "path": "/logs"}}
    group = journaling({"volume": "logs"}, volumes=[volume])
    made = injected(group, SETTINGS, has_ca=True)
    assert {"name": "logs", "mountPath": "/var/lib/lbg-journals"} in sidecar_of(made)["volumeMounts"]
    assert [one["name"] for one in made["spec"]["volumes"]] == ["logs", "lbg-credentials"]
    with pytest.raises(ManifestError, match=r"journal\.volume: 'logs' is not a volume of the template: it"):
        injected(journaling({"volume": "logs"}), SETTINGS, has_ca=True)


def test_it_is_what_kubernetes_takes() -> None:
    group = journaling({"volumeClaim": "journals"})
    kubernetes_validate.validate(deployment_of(group, SETTINGS, has_ca=True), "1.29", strict=True)
